// Tests of core/host, one behaviour each: answers and refusals, order, deadlines, cancelling, limits, closing, slots on loan.
//
// Where something has to happen "while the worker is busy", the worker sits in a kernel that waits for a gate: the test
// opens it when it has seen enough, so nothing here depends on how fast anything is.
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "cpu/clock.hpp"
#include "host/notifier.hpp"
#include "tests/check.hpp"
#include "tests/small_pool.hpp"

namespace {

using namespace teal::tests;
using teal::Code;
using teal::Dtype;
using teal::Reason;
using teal::State;

std::uint64_t now_ns() { return static_cast<std::uint64_t>(teal::monotonic_ns()); }

// Models of every test here.
constexpr std::uint32_t gate_model = 0;      // waits until the gate opens; its effects can be noticed
constexpr std::uint32_t log_model = 1;       // notes its input
constexpr std::uint32_t identity_model = 2;
constexpr std::uint32_t pure_gate_model = 3;

struct Scene : SmallPool {
    std::atomic<bool> open_gate{false};
    std::atomic<int> in_gate{0};
    std::mutex log_mutex;  // guards log
    std::vector<std::int64_t> log;

    explicit Scene(std::uint64_t idle_ns = 20'000) : SmallPool(idle_ns) {
        const auto gate = std::make_shared<Lambda>([this](const std::int64_t& in, std::int64_t& out, teal::Run&) {
            in_gate.fetch_add(1);
            until([this] { return open_gate.load(); });
            out = in;
            return true;
        });
        load(gate_model, 1, gate);
        load(pure_gate_model, 1, gate, teal::kernel_pure);
        load(log_model, 1, std::make_shared<Lambda>([this](const std::int64_t& in, std::int64_t& out, teal::Run&) {
            const std::lock_guard lock(log_mutex);
            log.push_back(in);
            out = in + 1;
            return true;
        }));
        load(identity_model, "identity", teal::kernel_pure);
    }
    ~Scene() {
        open_gate = true;
        stop();
    }

    // Occupies the one worker; returns once it is in the gate.
    std::unique_ptr<teal::ClientSlot> occupy(const Client& client, std::uint32_t model = gate_model, std::uint64_t deadline = 0) {
        auto slot = client.slot();
        const int before = in_gate.load();
        client.session->submit(*slot, model, 0, 0, deadline);
        until([&] { return in_gate.load() > before; });
        return slot;
    }
    // The worker is busy: the sweeper takes what lies in the rings until this many wait.
    void taken(unsigned waiting) {
        until([&] {
            sweeper.tick();
            return pool->queued() == waiting;
        });
    }
    std::unique_ptr<teal::ClientSlot> note(const Client& client, std::int64_t value, std::int32_t priority = 0, std::uint64_t deadline = 0) {
        auto slot = client.slot();
        input(*slot) = value;
        client.session->submit(*slot, log_model, 0, priority, deadline);
        return slot;
    }
};

std::string message_of(const teal::ClientSlot& slot) {
    if ((teal::flags_of(word_of(slot)) & teal::word_message) == 0) return {};
    teal::DescriptorHeader head;
    const std::byte* block = slot.base + slot.offset;
    std::memcpy(&head, block, sizeof head);
    const std::size_t at = sizeof head + (slot.inputs.size() + slot.outputs.size()) * sizeof(teal::TensorDesc);
    return std::string(reinterpret_cast<const char*>(block + at), head.message_size);
}

void ended_as(const teal::ClientSlot& slot, State state, Reason reason) {
    CHECK_EQ(state_of(slot), state);
    CHECK_EQ(reason_of(slot), reason);
}

void test_identity() {
    Scene scene;
    scene.add_worker();
    const Client client = scene.open(32, 64, 8 << 20);
    for (const std::int64_t size : {0, 1, 63, 64, 4096, 1'000'000}) {
        const auto slot = client.session->make_slot({plan(Dtype::u8, {size}), scalar}, {plan(Dtype::u8, {size}), scalar});
        for (int round = 0; round < 3; ++round) {
            std::byte* from = slot->base + slot->inputs[0].offset;
            for (std::int64_t i = 0; i < size; ++i) from[i] = static_cast<std::byte>(i * 31 + round);
            input(*slot, 1) = round;
            CHECK(call(*client.session, *slot, identity_model));
            CHECK(size == 0 || std::memcmp(from, slot->base + slot->outputs[0].offset, static_cast<std::size_t>(size)) == 0);
            CHECK_EQ(output(*slot, 1), round);
            CHECK_EQ(slot->line->version.load(), 1);
            CHECK(teal::ClientSession::quiescent(*slot));
        }
    }
    const auto slot = client.session->make_slot({plan(Dtype::bytes, {3}, 0, 256)}, {plan(Dtype::bytes, {3}, 0, 256)});
    CHECK(call(*client.session, *slot, identity_model));
    CHECK_EQ(scene.pool->memory().versions[3].requests.load(), 19);
    CHECK_EQ(scene.pool->memory().versions[3].bindings.load(), 7);  // one a slot
    scene.check_all_free();
}

void test_builtins() {
    Scene scene;
    scene.add_worker();
    scene.load(10, "sum");
    scene.load(11, "spin");
    scene.load(12, "sleep");
    const Client client = scene.open();
    const auto sum = client.session->make_slot({plan(Dtype::f32, {2, 50})}, {plan(Dtype::f64, {})});
    auto* floats = reinterpret_cast<float*>(sum->base + sum->inputs[0].offset);
    for (int i = 0; i < 100; ++i) floats[i] = 0.5F;
    CHECK(call(*client.session, *sum, 10));
    double total = 0;
    std::memcpy(&total, sum->base + sum->outputs[0].offset, sizeof total);
    CHECK_EQ(total, 50.0);
    const auto time = client.slot();
    input(*time) = 2'000;
    CHECK(call(*client.session, *time, 11));
    CHECK(output(*time) >= 2'000'000);
    CHECK(call(*client.session, *time, 12));
    CHECK_EQ(output(*time), 2'000);
    CHECK(time->line->ended.load() > time->line->started.load());
    input(*time) = -1;
    CHECK(!call(*client.session, *time, 12));
    ended_as(*time, State::failed, Reason::kernel);
    CHECK(message_of(*time).find("-1 microseconds") != std::string::npos);
    CHECK(!call(*client.session, *time, 10));  // int64 where float32 belongs
    ended_as(*time, State::failed, Reason::invalid);
    CHECK(message_of(*time).find("$.inputs[0].dtype: dtype int64, expected float32") != std::string::npos);
    input(*time) = 1;
    CHECK(call(*client.session, *time, 12));
    scene.check_all_free();
}

void test_refusals() {
    Scene scene;
    scene.add_worker();
    const Client client = scene.open(4);
    const auto slot = client.slot();
    CHECK(!call(*client.session, *slot, 99));
    ended_as(*slot, State::failed, Reason::not_found);
    CHECK(!call(*client.session, *slot, UINT32_MAX));
    ended_as(*slot, State::failed, Reason::invalid);
    CHECK(!call(*client.session, *slot, identity_model, 2));
    ended_as(*slot, State::failed, Reason::not_found);
    CHECK(call(*client.session, *slot, identity_model, 1));
    reinterpret_cast<teal::TensorDesc*>(slot->base + slot->offset + sizeof(teal::DescriptorHeader))->rank = 9;
    CHECK(call(*client.session, *slot, identity_model));  // what was checked is what is used, until the stamp changes
    slot->stamp = client.session->next_stamp();
    CHECK(!call(*client.session, *slot, identity_model));
    ended_as(*slot, State::failed, Reason::invalid);
    CHECK(message_of(*slot).find("$.inputs[0].rank") != std::string::npos);
    scene.sweeper.stop_taking(true);
    CHECK(!call(*client.session, *slot, identity_model));
    ended_as(*slot, State::cancelled, Reason::host_stopping);
    scene.sweeper.stop_taking(false);
    CHECK(call(*client.session, *client.slot(), identity_model));
    const auto code_of = [](auto&& run) {
        try {
            run();
        } catch (const teal::Error& error) {
            return static_cast<int>(error.code());
        }
        return -1;
    };
    std::vector<std::unique_ptr<teal::ClientSlot>> slots;
    CHECK_EQ(code_of([&] { for (int i = 0; i < 5; ++i) slots.push_back(client.slot()); }), static_cast<int>(Code::quota_exceeded));
    for (auto& one : slots) client.session->destroy_slot(std::move(one));
    const std::vector<teal::TensorPlan> many(1024, scalar);
    CHECK_EQ(code_of([&] { (void)client.session->make_slot(many, {scalar}); }), static_cast<int>(Code::invalid_argument));
    CHECK(client.session->make_slot({plan(Dtype::u8, {100 << 20})}, {}) == nullptr);  // no room: ask for a region
    client.session->close();
    CHECK_EQ(code_of([&] { client.session->submit(*slot, 0, 0, 0, 0); }), static_cast<int>(Code::closed));
    scene.check_all_free();
}

void test_order() {
    Scene scene;
    scene.add_worker();
    const Client one = scene.open(32);
    const Client two = scene.open(32);
    const auto gate = scene.occupy(one);
    std::vector<std::unique_ptr<teal::ClientSlot>> slots;
    const std::int32_t priorities[] = {0, -5, 3, 0, 3, INT32_MAX, 0, INT32_MIN, 3, 0};
    for (std::int64_t i = 0; i < 10; ++i) {
        slots.push_back(scene.note(i % 2 == 0 ? one : two, i, priorities[i]));
        scene.taken(static_cast<unsigned>(i) + 1);  // so that the order of arrival is known
    }
    scene.open_gate = true;
    for (std::size_t i = 0; i < slots.size(); ++i) (i % 2 == 0 ? one : two).session->wait(*slots[i], 0, 0);
    CHECK(teal::ClientSession::ended(*gate));
    const std::lock_guard lock(scene.log_mutex);
    CHECK((scene.log == std::vector<std::int64_t>{5, 2, 4, 8, 0, 3, 6, 9, 1, 7}));
}

void test_deadlines() {
    Scene scene;
    scene.add_worker();
    const Client client = scene.open();
    scene.sweeper.start();
    const auto gate = scene.occupy(client, gate_model, now_ns() + 20'000'000);
    const auto waiting = scene.note(client, 1, 0, now_ns() + 5'000'000);
    const auto patient = scene.note(client, 2, 0, now_ns() + 600'000'000'000);
    client.session->wait(*waiting, 0, 0);  // the host's clock, not the client's
    ended_as(*waiting, State::expired, Reason::deadline);
    CHECK(teal::ClientSession::quiescent(*waiting));
    client.session->wait(*gate, 0, 0);
    ended_as(*gate, State::expired, Reason::deadline);
    CHECK(!teal::ClientSession::quiescent(*gate));  // the worker still writes there
    CHECK(!teal::ClientSession::ended(*patient));
    const auto mine = scene.note(client, 3, 0, now_ns() + 1'000'000);
    CHECK(client.session->wait(*mine, 0, now_ns() + 2'000'000));  // whoever's clock is first
    ended_as(*mine, State::expired, Reason::deadline);
    CHECK(!client.session->wait(*patient, now_ns() + 1'000'000, 0));  // that was only my patience
    scene.open_gate = true;
    client.session->wait(*patient, 0, 0);
    CHECK_EQ(state_of(*patient), State::done);
    until([&] { return teal::ClientSession::quiescent(*gate) && teal::ClientSession::quiescent(*mine); });
    ended_as(*gate, State::expired, Reason::deadline);
    const std::lock_guard lock(scene.log_mutex);
    CHECK(scene.log == std::vector<std::int64_t>{2});
    CHECK_EQ(scene.pool->memory().versions[0].expired.load(), 1);
}

// The same behind the builtin spin, which nothing can interrupt.
void test_deadlines_behind_spin() {
    Scene scene;
    scene.add_worker();
    scene.load(11, "spin");
    const Client client = scene.open();
    scene.sweeper.start();
    const auto spin = client.slot();
    input(*spin) = 60'000;
    client.session->submit(*spin, 11, 0, 0, 0);
    until([&] { return state_of(*spin) == State::running; });
    const auto waiting = scene.note(client, 1, 0, now_ns() + 1'000'000);
    client.session->wait(*waiting, 0, 0);
    ended_as(*waiting, State::expired, Reason::deadline);
    client.session->wait(*spin, 0, 0);
    CHECK_EQ(state_of(*spin), State::done);
    const std::lock_guard lock(scene.log_mutex);
    CHECK(scene.log.empty());
}

void test_cancel() {
    Scene scene;
    scene.add_worker();
    const Client client = scene.open();
    const auto gate = scene.occupy(client);
    CHECK(!client.session->cancel(*gate, State::cancelled, Reason::client_cancelled));  // its effects can be noticed
    std::vector<std::unique_ptr<teal::ClientSlot>> slots;
    for (std::int64_t i = 0; i < 6; ++i) slots.push_back(scene.note(client, i));
    scene.taken(6);
    for (std::size_t i = 0; i < 6; i += 2) {
        CHECK(client.session->cancel(*slots[i], State::cancelled, Reason::client_cancelled));
        CHECK(!client.session->cancel(*slots[i], State::cancelled, Reason::client_cancelled));
        CHECK(teal::ClientSession::ended(*slots[i]));
        CHECK(!teal::ClientSession::quiescent(*slots[i]));
        try {
            client.session->submit(*slots[i], log_model, 0, 0, 0);
            CHECK(false);
        } catch (const teal::Error& error) {
            CHECK(error.code() == Code::busy);
        }
    }
    scene.open_gate = true;
    for (const auto& slot : slots) client.session->wait(*slot, 0, 0);
    CHECK_EQ(state_of(*gate), State::done);
    until([&] { return teal::ClientSession::quiescent(*slots[0]) && teal::ClientSession::quiescent(*slots[2]) && teal::ClientSession::quiescent(*slots[4]); });
    for (std::size_t i = 0; i < 6; ++i) CHECK_EQ(state_of(*slots[i]), i % 2 == 0 ? State::cancelled : State::done);
    {
        const std::lock_guard lock(scene.log_mutex);
        CHECK((scene.log == std::vector<std::int64_t>{1, 3, 5}));
    }
    scene.open_gate = false;
    const auto pure = scene.occupy(client, pure_gate_model);
    CHECK(client.session->cancel(*pure, State::cancelled, Reason::client_cancelled));  // nobody can tell that it ran
    CHECK(!teal::ClientSession::quiescent(*pure));
    scene.open_gate = true;
    until([&] { return teal::ClientSession::quiescent(*pure); });
    CHECK_EQ(state_of(*pure), State::cancelled);
    scene.check_all_free();
}

void test_limit() {
    Scene scene;
    scene.add_worker();
    const Client client = scene.open(16, 2);
    const Client other = scene.open(16, 64);
    const auto gate = scene.occupy(client);
    std::vector<std::unique_ptr<teal::ClientSlot>> slots;
    for (std::int64_t i = 0; i < 5; ++i) slots.push_back(scene.note(client, i, 0, i < 2 ? now_ns() + 2'000'000 : 0));
    scene.taken(1);
    CHECK_EQ(scene.sweeper.session_in_flight(client.index), 2);
    // An expired one makes room at once, not when the busy worker gets to it.
    until([&] {
        scene.sweeper.tick();
        CHECK(scene.sweeper.session_in_flight(client.index) <= 2);
        return teal::ClientSession::ended(*slots[1]);
    });
    ended_as(*slots[0], State::expired, Reason::deadline);
    ended_as(*slots[1], State::expired, Reason::deadline);
    const auto theirs = scene.note(other, 100);
    scene.taken(2);  // and one of `client` that has moved up
    CHECK_EQ(scene.sweeper.session_in_flight(other.index), 1);
    scene.open_gate = true;
    for (const auto& slot : slots) client.session->wait(*slot, 0, 0);
    other.session->wait(*theirs, 0, 0);
    for (std::size_t i = 2; i < 5; ++i) CHECK_EQ(output(*slots[i]), static_cast<std::int64_t>(i) + 1);
    CHECK_EQ(state_of(*theirs), State::done);
    scene.check_all_free();
}

void test_close_session(Reason reason) {
    Scene scene;
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
    CHECK_EQ(scene.log.size(), 2);
    scene.check_all_free();
}

void test_cancel_version() {
    Scene scene;
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
    Scene scene;
    scene.add_worker();
    const Client client = scene.open(8);
    auto home = std::make_shared<teal::SlotHome>(client.session, std::vector{scalar}, std::vector{scalar}, 2);
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
    Scene scene(0);
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
}

void test_notifier() {
    Scene scene;
    scene.add_worker();
    const Client client = scene.open(256, 256);
    int ends[2] = {};  // poll() wants a socket that is open
    CHECK_EQ(::pipe(ends), 0);
    const auto session = std::make_shared<teal::ClientSession>(
        teal::map_session(::dup(client.session_fd), client.index, client.epoch, client.slots), 0, ends[0]);
    session->add_region(0, ::dup(client.region->fd()));
    teal::Notifier notifier(session);
    std::atomic<int> called{0};
    const auto home = std::make_shared<teal::SlotHome>(session, std::vector{scalar}, std::vector{scalar}, 256);
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
    scene.check_all_free();
}

}  // namespace

int main() {
    test_identity();
    test_builtins();
    test_refusals();
    test_order();
    test_deadlines();
    test_deadlines_behind_spin();
    test_cancel();
    test_limit();
    test_close_session(Reason::host_stopping);
    test_close_session(Reason::client_gone);
    test_cancel_version();
    test_slot_home();
    test_sleepers();
    test_notifier();
    return teal::check::summary();
}
