// Tests of core/host: sessions and versions that end, slots on loan, waiters that sleep, callbacks.
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "host/notifier.hpp"
#include "tests/check.hpp"
#include "tests/gated_pool.hpp"

namespace {

using namespace teal::tests;
using teal::Reason;
using teal::State;

void test_close_session(Reason reason) {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open(16, 4);
    const Client other = scene.open();
    const auto gate = scene.occupy(client);
    std::vector<std::unique_ptr<teal::ClientSlot>> slots;
    for (std::int64_t i = 0; i < 6; ++i) slots.push_back(scene.note(client, i));
    const auto theirs = scene.note(other, 100);
    scene.taken(4);
    scene.sweeper.close_session(client.index, reason);
    for (const auto& slot : slots) {  // those beyond the limit, still in the ring, as well
        ended_as(*slot, State::cancelled, reason);
        CHECK(teal::ClientSession::quiescent(*slot));
    }
    CHECK_EQ(scene.sweeper.session_in_flight(client.index), 1);
    client.session->submit(*slots[0], log_model, 0, 0, 0);  // too late: nobody takes it, and nobody spins because of it
    teal::SessionMap* map = &client.session->map();
    CHECK(!scene.pool->ring_ready({&map, 1}));
    scene.open_gate = true;
    scene.close(client, reason);
    CHECK_EQ(state_of(*gate), State::done);
    other.session->wait(*theirs, 0, 0);
    CHECK_EQ(output(*theirs), 101);
    const Client again = scene.open();
    CHECK_EQ(again.index, client.index);
    CHECK(again.epoch != client.epoch);
    CHECK(call(*again.session, *again.slot(), log_model));
    scene.check_all_free();
    CHECK_EQ(scene.log.size(), 2);
}

// The worker waits for a region that it has not heard of yet, in the middle of a request, and hears that the session is to go.
void test_close_under_way() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open();
    scene.sweeper.grant_region(client.index, 2);
    const auto slot = client.slot();
    client.session->submit(*slot, identity_model, 0, 0, 0);
    until([&] { return scene.workers[0]->pool().memory().workers[0].record.load() != teal::nobody; });
    scene.sweeper.close_session(client.index, Reason::client_gone);
    scene.workers[0]->drop_session(client.index, client.epoch);
    std::atomic<bool> looked{false};
    scene.workers[0]->post([&](teal::Worker&) { looked = true; });
    until([&] { return looked.load(); });
    CHECK(scene.dropped == 0 || teal::ClientSession::quiescent(*slot));  // not while it is served
    scene.workers[0]->add_region(client.index, client.epoch, 1, ::dup(client.region->fd()));
    until([&] { return scene.dropped.load() == 1; });
    CHECK(teal::ClientSession::quiescent(*slot));
    until([&] { return scene.sweeper.session_in_flight(client.index) == 0; });
    scene.sweeper.free_session(client.index);
    scene.check_all_free();
}

void test_cancel_version() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open();
    const auto gate = scene.occupy(client);
    const auto first = scene.note(client, 1);
    scene.taken(1);
    const std::uint32_t line = scene.pool->memory().models[log_model].current.load() - 1;
    scene.sweeper.retire_version(line);
    CHECK_EQ(scene.sweeper.version_in_flight(line), 1);
    scene.sweeper.cancel_version(line);
    ended_as(*first, State::cancelled, Reason::unloaded);
    CHECK_EQ(scene.sweeper.version_in_flight(line), 0);
    const auto second = scene.note(client, 2);
    scene.open_gate = true;
    client.session->wait(*second, 0, 0);
    ended_as(*second, State::failed, Reason::not_found);
    CHECK(teal::ClientSession::ended(*gate));
    scene.check_all_free();
}

void test_slot_home() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open(8);
    auto home = std::make_shared<teal::SlotHome>(client.session, std::vector{scalar}, std::vector{scalar}, 2, true);
    {
        const auto one = home->loan();
        const auto two = home->loan();
        CHECK(one->index != two->index);
        CHECK(call(*client.session, *one, identity_model));
    }
    CHECK_EQ(client.session->slots_out(), 2);
    CHECK_EQ(home->loan()->generation, 1);  // the same slot again
    auto gate = home->loan();
    client.session->submit(*gate, pure_gate_model, 0, 0, 0);
    until([&] { return scene.in_gate.load() > 0; });
    CHECK(client.session->cancel(*gate, State::cancelled, Reason::client_cancelled));
    const std::uint32_t line = gate->index;
    gate.reset();  // in limbo: the kernel still runs on it
    for (int i = 0; i < 3; ++i) CHECK(home->loan()->index != line);
    home->forget_idle();
    home.reset();
    CHECK_EQ(client.session->slots_out(), 1);
    CHECK(client.session->bytes_used() > 0);
    scene.open_gate = true;
    until([&] {  // the session takes it back as soon as the worker lets go, when the next slot is made
        client.session->destroy_slot(client.slot());
        return client.session->slots_out() == 0;
    });
    CHECK_EQ(client.session->bytes_used(), 0);
    CHECK_EQ(client.session->take_empty_regions(0).size(), 1);
    scene.check_all_free();
}

// Nobody ever spins: every call is two sleeps and two wake-ups. One that is lost takes half a second.
void test_sleepers() {
    GatedPool scene(0);
    scene.add_worker();
    const Client client = scene.open();
    const auto slot = client.slot();
    int slow = 0;
    for (std::int64_t i = 0; i < scaled(4'000, 1'000); ++i) {
        input(*slot) = i;
        const std::uint64_t start = now_ns();
        CHECK(call(*client.session, *slot, identity_model));
        CHECK_EQ(output(*slot), i);
        slow += now_ns() - start > 450'000'000 ? 1 : 0;
    }
    CHECK(slow < 3);  // this machine may stand still once; a protocol that loses wake-ups does it all the time
    CHECK_EQ(slot->line->waiting.load(), 0);  // whoever is awake costs the worker no wake-up
    client.session->submit(*slot, gate_model, 0, 0, 0);
    CHECK(!client.session->wait(*slot, now_ns() + 2'000'000, 0));  // given up before the end
    CHECK_EQ(slot->line->waiting.load(), 0);
    scene.open_gate = true;
    CHECK(client.session->wait(*slot, 0, 0));
}

// More sessions than one futex_waitv holds doorbells: the leader naps shortly instead, and hears everybody.
void test_crowd() {
    GatedPool scene(0);
    scene.add_worker();
    std::vector<Client> crowd;
    for (int i = 0; i < 140; ++i) crowd.push_back(scene.open(2, 2, 64 << 10));
    for (int round = 0; round < 2; ++round)
        for (const Client& client : crowd) {
            auto slot = client.slot();
            input(*slot) = round;
            CHECK(call(*client.session, *slot, identity_model));
            CHECK_EQ(output(*slot), round);
            client.session->destroy_slot(std::move(slot));
        }
    for (std::size_t i = 0; i < crowd.size(); i += 3) scene.close(crowd[i], Reason::client_gone);
    CHECK(call(*crowd[1].session, *crowd[1].slot(), identity_model));
    scene.check_all_free();
    for (std::size_t i = 1; i < crowd.size(); i += 3) CHECK_EQ(scene.pool->memory().sessions[crowd[i].index].requests, i == 1 ? 3 : 2);
}

void test_notifier() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open(256, 256);
    int ends[2] = {};  // poll() wants a socket that is open
    CHECK_EQ(::pipe(ends), 0);
    const auto session = std::make_shared<teal::ClientSession>(
        teal::map_session(::dup(client.session_fd), client.index, client.epoch, client.slots), 0, ends[0]);
    session->add_region(0, ::dup(client.region->fd()));
    teal::Notifier notifier(session);
    std::atomic<int> called{0};
    const auto home = std::make_shared<teal::SlotHome>(session, std::vector{scalar}, std::vector{scalar}, 256, false);
    std::vector<std::shared_ptr<teal::ClientSlot>> slots;
    const auto add = [&](std::uint32_t model, std::uint64_t deadline) {
        slots.push_back(home->loan());
        session->submit(*slots.back(), model, 0, 0, deadline);
        notifier.add(slots.back(), deadline, [&] { called.fetch_add(1); });
    };
    add(gate_model, 0);
    for (int i = 0; i < 200; ++i) add(log_model, 0);  // more than one futex_waitv holds
    add(log_model, now_ns() + 2'000'000);
    until([&] { return called.load() > 0; });
    CHECK_EQ(called.load(), 1);  // the one with the deadline
    ended_as(*slots.back(), State::expired, Reason::deadline);
    scene.open_gate = true;
    until([&] { return called.load() == 202; });
    add(gate_model, 0);
    until([&] { return called.load() == 203; });
    scene.open_gate = false;
    add(gate_model, 0);
    ::close(ends[1]);  // the host is gone
    until([&] { return called.load() == 204; });
    CHECK(!teal::ClientSession::ended(*slots.back()));
    CHECK(session->peer_gone());
    notifier.stop();
    ::close(ends[0]);
    scene.open_gate = true;
    until([&] { return teal::ClientSession::ended(*slots.back()); });
    for (const auto& slot : slots) CHECK_EQ(slot->line->waiting.load(), 0);
    scene.check_all_free();
}

}  // namespace

int main() {
    test_close_session(Reason::host_stopping);
    test_close_session(Reason::client_gone);
    test_close_under_way();
    test_cancel_version();
    test_slot_home();
    test_sleepers();
    test_crowd();
    test_notifier();
    return teal::check::summary();
}
