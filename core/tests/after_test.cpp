// Tests of requests that wait for the ends of others and for events.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "host/words.hpp"
#include "tests/check.hpp"
#include "tests/gated_pool.hpp"

namespace {

using namespace teal::tests;
using teal::Code;
using teal::Reason;
using teal::State;
using Waits = std::vector<std::shared_ptr<teal::ClientSlot>>;

// A slot as the clients of the API hold it: shared.
std::shared_ptr<teal::ClientSlot> shared(const Client& client, std::int64_t value = 0) {
    std::shared_ptr<teal::ClientSlot> slot{client.slot().release(), [session = client.session](teal::ClientSlot* raw) {
        session->destroy_slot(std::unique_ptr<teal::ClientSlot>(raw));
    }};
    input(*slot) = value;
    return slot;
}

void note_after(const Client& client, teal::ClientSlot& slot, Waits after, std::int32_t priority = 0, std::uint64_t deadline = 0) {
    client.session->submit(slot, log_model, 0, priority, deadline, std::move(after));
}

std::vector<std::int64_t> logged(GatedPool& scene) {
    const std::lock_guard lock(scene.log_mutex);  // for the sanitizer: a worker may still be on its way out of the kernel
    return scene.log;
}

int code_of(const std::function<void()>& run) {
    try {
        run();
    } catch (const teal::Error& error) {
        return static_cast<int>(error.code());
    }
    return -1;
}

void test_waits_for_event() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open();
    const auto event = client.session->make_event();
    const auto late = shared(client, 7);
    const auto early = shared(client, 8);
    note_after(client, *late, {event}, 9);
    note_after(client, *early, {});
    client.session->wait(*early, 0, 0);
    CHECK(!teal::ClientSession::ended(*late));
    CHECK(client.session->signal(*event));
    CHECK(!client.session->signal(*event));
    client.session->wait(*late, 0, 0);
    ended_as(*late, State::done, Reason::none);
    CHECK((logged(scene) == std::vector<std::int64_t>{8, 7}));
    scene.check_all_free();
}

// Ends of other requests: one after the other although the later ones come first and are more urgent.
void test_waits_for_requests() {
    for (const int workers : {1, 3}) {
        GatedPool scene;
        for (int i = 0; i < workers; ++i) scene.add_worker();
        const Client client = scene.open(64, 64);
        for (int round = 0; round < 200; ++round) {
            {
                const std::lock_guard lock(scene.log_mutex);
                scene.log.clear();
            }
            const auto event = client.session->make_event();
            Waits chain{event};
            for (int i = 0; i < 8; ++i) {
                chain.push_back(shared(client, i));
                note_after(client, *chain.back(), {chain[chain.size() - 2]}, i);
            }
            client.session->signal(*event);
            for (std::size_t i = chain.size(); i-- > 1;) {
                client.session->wait(*chain[i], 0, 0);
                ended_as(*chain[i], State::done, Reason::none);
            }
            CHECK((logged(scene) == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
        }
        scene.check_all_free();
    }
}

void test_several() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open(32);
    Waits events;
    for (int i = 0; i < 7; ++i) events.push_back(client.session->make_event());
    const auto last = shared(client, 1);
    note_after(client, *last, events);
    for (const auto& event : events) {
        const auto other = shared(client, 0);
        note_after(client, *other, {});
        client.session->wait(*other, 0, 0);
        CHECK(!teal::ClientSession::ended(*last));
        client.session->signal(*event);
    }
    client.session->wait(*last, 0, 0);
    ended_as(*last, State::done, Reason::none);
    events.push_back(client.session->make_event());
    CHECK_EQ(code_of([&] { note_after(client, *shared(client), events); }), static_cast<int>(Code::invalid_argument));
    scene.check_all_free();
}

// What never comes: the one that waits is cancelled with the reason, and runs in no case.
void test_bad_ends() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open(32);
    auto given_up = client.session->make_event();
    const auto orphan = shared(client, 1);
    note_after(client, *orphan, {given_up});
    client.session->signal(*given_up, State::cancelled);
    client.session->wait(*orphan, 0, 0);
    ended_as(*orphan, State::cancelled, Reason::dependency);
    CHECK_EQ(orphan->line->detail.load(), given_up->index);

    const auto broken = shared(client);
    const auto after_broken = shared(client, 2);
    client.session->submit(*broken, 99, 0, 0, 0);  // no such model
    note_after(client, *after_broken, {broken});
    client.session->wait(*after_broken, 0, 0);
    ended_as(*after_broken, State::cancelled, Reason::dependency);

    // The client's own end of the one that waits, and its deadline.
    const auto event = client.session->make_event();
    const auto cancelled = shared(client, 3);
    note_after(client, *cancelled, {event});
    CHECK(client.session->cancel(*cancelled, State::cancelled, Reason::client_cancelled));
    until([&] { return teal::ClientSession::quiescent(*cancelled); });
    const auto expired = shared(client, 4);
    note_after(client, *expired, {event}, 0, now_ns() + 1'000'000);
    until([&] {
        scene.sweeper.tick();
        return teal::ClientSession::ended(*expired);
    });
    ended_as(*expired, State::expired, Reason::deadline);
    client.session->signal(*event);
    until([&] { return teal::ClientSession::quiescent(*expired); });
    CHECK(logged(scene).empty());
    scene.check_all_free();
}

void test_rearm() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open();
    const auto event = client.session->make_event();
    CHECK_EQ(code_of([&] { client.session->rearm(*event); }), static_cast<int>(Code::busy));
    for (int round = 0; round < 300; ++round) {
        const auto slot = shared(client, round);
        note_after(client, *slot, {event});
        client.session->signal(*event);
        client.session->wait(*slot, 0, 0);
        ended_as(*slot, State::done, Reason::none);
        client.session->rearm(*event);
    }
    scene.check_all_free();
}

// A client that lies about what it waits for.
void test_lies() {
    GatedPool scene;
    const Client client = scene.open(8);
    const auto event = client.session->make_event();
    const auto slot = shared(client);
    // Without a worker nobody reads it before the change.
    const auto refused = [&](auto&& change) {
        note_after(client, *slot, {event});
        change(client.session->map().afters()[slot->index]);
        scene.sweeper.tick();
        ended_as(*slot, State::failed, Reason::invalid);
    };
    refused([](teal::AfterLine& line) { line.count = 0; });
    refused([](teal::AfterLine& line) { line.count = 8; });
    refused([](teal::AfterLine& line) { line.count = UINT32_MAX; });
    refused([](teal::AfterLine& line) { line.on[0].slot = 8; });
    refused([](teal::AfterLine& line) { line.on[0].slot = UINT32_MAX; });
    refused([&](teal::AfterLine& line) { line.on[0].slot = slot->index; });
    scene.check_all_free();
}

// A dispatcher dies with blocked requests about: they are found again.
void test_repair() {
    GatedPool scene;
    const Client client = scene.open(16);
    const auto event = client.session->make_event();
    Waits slots;
    for (int i = 0; i < 4; ++i) {
        slots.push_back(shared(client, i));
        note_after(client, *slots.back(), {event});
    }
    scene.sweeper.tick();  // takes them: there is no leader
    CHECK_EQ(scene.pool->memory().header.blocked_size, 4);
    scene.pool->repair();
    CHECK_EQ(scene.pool->memory().header.blocked_size, 4);
    CHECK_EQ(scene.pool->queued(), 0);
    client.session->signal(*event);
    scene.pool->repair();
    scene.add_worker();
    for (const auto& slot : slots) {
        client.session->wait(*slot, 0, 0);
        ended_as(*slot, State::done, Reason::none);
    }
    CHECK((logged(scene) == std::vector<std::int64_t>{0, 1, 2, 3}));
    scene.check_all_free();
}

// Whoever sleeps is woken: worker and waiter.
void test_sleepers() {
    GatedPool scene(1'000);
    scene.add_worker();
    const Client client = scene.open();
    for (int round = 0; round < 50; ++round) {
        const auto event = client.session->make_event();
        const auto slot = shared(client, round);
        note_after(client, *slot, {event});
        until([&] { return scene.pool->memory().workers[0].sleeping.load() != 0; });
        std::thread waiter([&] { client.session->wait(*slot, 0, 0); });
        std::thread other([&] { client.session->wait(*event, 0, 0); });
        client.session->signal(*event);
        waiter.join();
        other.join();
        ended_as(*slot, State::done, Reason::none);
    }
    scene.check_all_free();
}

// A client leaves, a version is unloaded by force: nothing stays behind.
void test_leavers() {
    GatedPool scene;
    scene.add_worker();
    const Client stays = scene.open();
    const Client leaves = scene.open();
    const auto event = leaves.session->make_event();
    const auto slot = shared(leaves);
    note_after(leaves, *slot, {event});
    const auto other = shared(stays, 5);
    note_after(stays, *other, {});
    stays.session->wait(*other, 0, 0);
    scene.close(leaves, Reason::client_gone);
    ended_as(*slot, State::cancelled, Reason::client_gone);
    const auto mine = stays.session->make_event();
    const auto blocked = shared(stays);
    note_after(stays, *blocked, {mine});
    until([&] { return teal::peek_at(scene.pool->memory().header.blocked_size) == 1; });
    scene.sweeper.cancel_version(2);  // the line of log_model
    ended_as(*blocked, State::cancelled, Reason::unloaded);
    CHECK_EQ(teal::peek_at(scene.pool->memory().header.blocked_size), 0);
    scene.check_all_free();
}

}  // namespace

int main() {
    test_waits_for_event();
    test_waits_for_requests();
    test_several();
    test_bad_ends();
    test_rearm();
    test_lies();
    test_repair();
    test_sleepers();
    test_leavers();
    return teal::check::summary();
}
