// Tests of core/host, one behaviour each: answers and refusals, order, deadlines, cancelling, limits.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unistd.h>
#include <vector>

#include "base/error.hpp"
#include "cpu/clock.hpp"
#include "host/words.hpp"
#include "tests/check.hpp"
#include "tests/gated_pool.hpp"

namespace {

using namespace teal::tests;
using teal::Code;
using teal::Dtype;
using teal::Reason;
using teal::State;

std::string message_of(const teal::ClientSlot& slot) {
    if ((teal::flags_of(word_of(slot)) & teal::word_message) == 0) return {};
    teal::DescriptorHeader head;
    const std::byte* block = slot.base + slot.offset;
    std::memcpy(&head, block, sizeof head);
    const std::size_t at = sizeof head + (slot.inputs.size() + slot.outputs.size()) * sizeof(teal::TensorDesc);
    return std::string(reinterpret_cast<const char*>(block + at), head.message_size);
}

template <class What>
void change(GatedPool& scene, What&& what) {
    CHECK(scene.pool->enter(1'000'000'000));
    what(scene.pool->memory());
    scene.pool->leave();
}

// Others write it at any time.
std::uint32_t blocked(const GatedPool& scene) { return teal::peek_at(scene.pool->memory().header.blocked_size); }

// Requests of 1000, 1001, … that wait for an event; returns when the host has them.
template <class Event>
void note_blocked(GatedPool& scene, const Client& client, std::vector<std::unique_ptr<teal::ClientSlot>>& slots, std::uint32_t count, const Event& event) {
    for (std::uint32_t i = 0; i < count; ++i) {
        slots.push_back(client.slot());
        input(*slots.back()) = 1000 + i;
        client.session->submit(*slots.back(), log_model, 0, 0, 0, {event});
    }
    until([&] {
        scene.sweeper.tick();
        return blocked(scene) == count;
    });
}

// Each request is charged 10 ms when it comes, which no run here takes: what one takes longer than another moves nobody's turn.
void charge_much(GatedPool& scene) {
    change(scene, [](teal::PoolMemory& memory) {
        for (teal::VersionLine& version : memory.versions) version.cost_ns = 10'000'000;
    });
}

// Of one int64 in and out; it takes its time to bind, and to refuse.
class SlowToBind final : public teal::Kernel {
public:
    static constexpr std::uint64_t takes_ns = 20'000'000;
    std::unique_ptr<teal::Binding> bind(const teal::Run& run, std::string& error) override {
        const std::int64_t until_ns = teal::monotonic_ns() + static_cast<std::int64_t>(takes_ns);
        until([&] { return teal::monotonic_ns() > until_ns; });
        return one_.bind(run, error);
    }

private:
    Lambda one_{[](const std::int64_t& in, std::int64_t& out, teal::Run&) {
        out = in;
        return true;
    }};
};

void test_identity() {
    GatedPool scene;
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
    scene.check_all_free();
    CHECK_EQ(scene.pool->memory().versions[3].requests.load(), 19);
    CHECK_EQ(scene.pool->memory().versions[3].bindings.load(), 7);  // one a slot
}

// Whoever waits for a worker sees where it runs, also one who came after the worker had shown itself to others.
void test_workers_show_their_cores() {
    GatedPool scene;
    scene.add_worker();
    for (int round = 0; round < 2; ++round) {
        const Client client = scene.open();
        const auto slot = client.slot();
        CHECK(call(*client.session, *slot, identity_model));
        const auto map = teal::map_session(::dup(client.session_fd), client.index, client.epoch, client.slots);
        const auto& marks = map->header()->worker_cores;
        CHECK(marks[0].load() != 0);
        CHECK(std::all_of(std::begin(marks) + 1, std::end(marks), [](const auto& mark) { return mark.load() == 0; }));
    }
}

void test_builtins() {
    GatedPool scene;
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
    CHECK(teal::run_ticks(time->line->times.load()) > 0);
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
    GatedPool scene;
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
    GatedPool scene;
    scene.add_worker();
    const Client one = scene.open(32);
    const Client two = scene.open(32);
    const Client third = scene.open();  // what is charged for the time in the gate, and has nothing else
    charge_much(scene);
    const auto gate = scene.occupy(third);
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
    GatedPool scene;
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
    GatedPool scene;
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
    GatedPool scene;
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
    GatedPool scene;
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

// A session that has filled its quota is served in turn with one that asks once.
void test_sessions_in_turn() {
    GatedPool scene;
    scene.add_worker();
    const Client flood = scene.open(200, 200);
    const Client other = scene.open(16, 64);
    const Client third = scene.open();
    charge_much(scene);
    const auto busy = scene.occupy(third);
    std::vector<std::unique_ptr<teal::ClientSlot>> many;
    for (int i = 0; i < 100; ++i) many.push_back(scene.note(flood, 1000 + i));
    scene.taken(100);
    const auto one = scene.note(other, 1);
    scene.taken(101);
    const auto two = scene.note(other, 2);
    scene.taken(102);
    scene.open_gate = true;
    for (auto& slot : many) flood.session->wait(*slot, 0, 0);
    other.session->wait(*one, 0, 0);
    other.session->wait(*two, 0, 0);
    const std::lock_guard lock(scene.log_mutex);
    const auto place = [&](std::int64_t value) { return std::find(scene.log.begin(), scene.log.end(), value) - scene.log.begin(); };
    CHECK(place(1) <= 2);
    CHECK(place(2) <= 4);
    CHECK(place(1) < place(2));
    for (int i = 1; i < 100; ++i) CHECK(place(1000 + i - 1) < place(1000 + i));
    CHECK_EQ(scene.log.size(), 102);
}

// A session whose runs take less than they were charged has its next turn sooner, but what it asked for before comes first.
void test_shorter_than_charged() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open(64, 64);
    const Client other = scene.open(16, 64);
    const auto busy = scene.occupy(other);
    charge_much(scene);
    std::vector<std::unique_ptr<teal::ClientSlot>> many;
    for (int i = 0; i < 10; ++i) many.push_back(scene.note(client, i));
    scene.taken(10);
    change(scene, [&](teal::PoolMemory& memory) { memory.sessions[client.index].finish -= 80'000'000; });  // as charge_run() does
    for (int i = 10; i < 20; ++i) many.push_back(scene.note(client, i));
    scene.taken(20);
    scene.open_gate = true;
    for (auto& slot : many) client.session->wait(*slot, 0, 0);
    const std::lock_guard lock(scene.log_mutex);
    CHECK_EQ(scene.log.size(), 20);
    CHECK(std::is_sorted(scene.log.begin(), scene.log.end()));
}

// A client that had many wait at once pays for those, too, what each of them turns out to take.
void test_longer_than_charged() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open(64, 64);
    const Client other = scene.open(64, 64);
    charge_much(scene);
    const auto busy = scene.occupy(client);
    std::vector<std::unique_ptr<teal::ClientSlot>> many, others;
    for (int i = 0; i < 5; ++i) many.push_back(scene.note(client, 100 + i));
    scene.taken(5);
    for (int i = 0; i < 5; ++i) others.push_back(scene.note(other, i));
    scene.taken(10);
    change(scene, [&](teal::PoolMemory& memory) { scene.pool->charge_run(memory.workers[0].record.load(), 35'000'000); });
    for (int i = 5; i < 7; ++i) many.push_back(scene.note(client, 100 + i));
    scene.taken(12);
    scene.open_gate = true;
    for (auto& slot : many) client.session->wait(*slot, 0, 0);
    for (auto& slot : others) other.session->wait(*slot, 0, 0);
    const std::lock_guard lock(scene.log_mutex);
    const std::vector<std::int64_t> expected{0, 1, 2, 3, 100, 4, 101, 102, 103, 104, 105, 106};
    CHECK(scene.log == expected);
}

// Preparing a slot is work of the worker's as a run is: who has a new one prepared for each call pays for it.
void test_preparing_is_charged() {
    GatedPool scene;
    scene.add_worker();
    scene.load(10, 1, std::make_shared<SlowToBind>());
    const Client client = scene.open();
    const auto slot = client.slot();
    const auto finish = [&] {
        std::uint64_t at = 0;
        until([&] { return scene.sweeper.active() == 0; });
        change(scene, [&](const teal::PoolMemory& memory) { at = memory.sessions[client.index].finish; });
        return at;
    };
    CHECK(call(*client.session, *slot, 10));
    const std::uint64_t first = finish();
    CHECK(first >= SlowToBind::takes_ns);
    CHECK(call(*client.session, *slot, 10));
    CHECK(finish() < first + SlowToBind::takes_ns);
    const auto bad = client.session->make_slot({scalar, scalar}, {scalar});
    CHECK(!call(*client.session, *bad, 10));
    CHECK(finish() >= first + SlowToBind::takes_ns);  // in vain too
}

// What waits for an event has no turn yet, and so holds up nothing else that its client asks for. When the event comes it is dealt turns as if
// it were asked for then, one after the other, however many looks it takes until all have been seen.
void test_blocked_have_no_turn() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open(64, 64);
    const Client other = scene.open(64, 64);
    charge_much(scene);
    const auto busy = scene.occupy(other);
    const auto event = client.session->make_event();
    std::vector<std::unique_ptr<teal::ClientSlot>> many, others;
    note_blocked(scene, client, many, 40, event);
    for (int i = 0; i < 30; ++i) others.push_back(scene.note(other, i));
    scene.taken(30);
    many.push_back(scene.note(client, 500));
    scene.taken(31);
    CHECK(client.session->signal(*event));
    until([&] {
        scene.sweeper.tick();
        change(scene, [](teal::PoolMemory& memory) { memory.header.virtual_time += 1'000; });  // others run between two looks
        return blocked(scene) == 0 && scene.pool->queued() == 71;
    });
    scene.open_gate = true;
    for (auto& slot : many) client.session->wait(*slot, 0, 0);
    for (auto& slot : others) other.session->wait(*slot, 0, 0);
    const std::lock_guard lock(scene.log_mutex);
    const auto place = [&](std::int64_t value) { return std::find(scene.log.begin(), scene.log.end(), value) - scene.log.begin(); };
    CHECK(place(500) <= 1);
    for (int i = 0; i < 29; ++i) {
        CHECK(place(1000 + i) < place(1001 + i));
        CHECK(std::abs(place(1000 + i) - place(i)) <= 4);
    }
    CHECK_EQ(scene.log.size(), 71);
}

// Requests that waited for an event while another session worked do not come before all of its next ones when the event comes.
void test_waiting_is_no_credit() {
    GatedPool scene;
    scene.add_worker();
    const Client flood = scene.open(200, 200);
    const Client other = scene.open(16, 64);
    const auto event = flood.session->make_event();
    std::vector<std::unique_ptr<teal::ClientSlot>> many;
    note_blocked(scene, flood, many, 100, event);
    const auto slot = other.slot();
    for (std::int64_t i = 0; i < 300; ++i) {
        input(*slot) = i;
        CHECK(call(*other.session, *slot, log_model));
    }
    const Client third = scene.open();
    charge_much(scene);
    const auto busy = scene.occupy(third);
    CHECK(flood.session->signal(*event));
    std::vector<std::unique_ptr<teal::ClientSlot>> next;
    for (int i = 0; i < 3; ++i) next.push_back(scene.note(other, 500 + i));
    until([&] {
        scene.sweeper.tick();
        return blocked(scene) == 0 && scene.pool->queued() == 103;
    });
    scene.open_gate = true;
    for (auto& one : many) flood.session->wait(*one, 0, 0);
    for (auto& one : next) other.session->wait(*one, 0, 0);
    const std::lock_guard lock(scene.log_mutex);
    const auto place = [&](std::int64_t value) { return std::find(scene.log.begin(), scene.log.end(), value) - scene.log.begin() - 300; };
    for (int i = 0; i < 3; ++i) CHECK(place(500 + i) <= 2 * (i + 1));
    for (int i = 1; i < 100; ++i) CHECK(place(1000 + i - 1) < place(1000 + i));
    CHECK_EQ(scene.log.size(), 403);
}

// What was asked for and never ran is not held against its session, whether it was cancelled in the queue or while it waited for an event.
void test_cancelled_is_not_charged() {
    GatedPool scene;
    scene.add_worker();
    const Client first = scene.open(200, 200);
    const Client other = scene.open(64, 64);
    const auto event = first.session->make_event();
    const auto busy = scene.occupy(other);
    std::vector<std::unique_ptr<teal::ClientSlot>> many;
    for (int i = 0; i < 60; ++i) many.push_back(scene.note(first, 1000 + i));
    scene.taken(60);
    note_blocked(scene, first, many, 60, event);
    std::vector<std::unique_ptr<teal::ClientSlot>> others;
    for (int i = 0; i < 20; ++i) others.push_back(scene.note(other, 2000 + i));
    scene.taken(80);
    const auto finish = [&] {
        std::uint64_t at = 0;
        change(scene, [&](const teal::PoolMemory& memory) { at = memory.sessions[first.index].finish; });
        return at;
    };
    const std::uint64_t asked = finish();
    CHECK(asked >= 60 * 200);  // of those in the queue: what waits for an event is charged when that has come
    for (auto& slot : many) CHECK(first.session->cancel(*slot, State::cancelled, Reason::client_cancelled));
    scene.open_gate = true;
    for (auto& slot : others) other.session->wait(*slot, 0, 0);
    until([&] {
        scene.sweeper.tick();
        return scene.sweeper.active() == 0;
    });
    CHECK_EQ(finish(), asked - 60 * 200);  // nobody knew yet how long these take: each was charged the least there is
}

// Who may not be more urgent is not.
void test_priority_is_cut() {
    GatedPool scene;
    scene.add_worker();
    const Client owner = scene.open();
    const Client guest = scene.open();
    scene.sweeper.limit_priority(guest.index, 0);
    const auto busy = scene.occupy(owner);
    const auto first = scene.note(owner, 1, 1);
    scene.taken(1);
    const auto urgent = scene.note(guest, 2, INT32_MAX);
    scene.taken(2);
    const auto lazy = scene.note(guest, 3, -5);
    const auto plain = scene.note(owner, 4, 0);
    scene.taken(4);
    scene.open_gate = true;
    for (const auto* slot : {&first, &plain}) owner.session->wait(**slot, 0, 0);
    for (const auto* slot : {&urgent, &lazy}) guest.session->wait(**slot, 0, 0);
    const std::lock_guard lock(scene.log_mutex);
    CHECK_EQ(scene.log.front(), 1);
    CHECK_EQ(scene.log.back(), 3);
}

}  // namespace

int main() {
    test_identity();
    test_workers_show_their_cores();
    test_builtins();
    test_refusals();
    test_order();
    test_deadlines();
    test_deadlines_behind_spin();
    test_cancel();
    test_limit();
    test_sessions_in_turn();
    test_shorter_than_charged();
    test_longer_than_charged();
    test_preparing_is_charged();
    test_blocked_have_no_turn();
    test_waiting_is_no_credit();
    test_cancelled_is_not_charged();
    test_priority_is_cut();
    return teal::check::summary();
}
