// Tests of what the death of a role's holder leaves behind: half-done states of every step under the role, built by hand.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/check.hpp"
#include "tests/hand_pool.hpp"

namespace {

using namespace teal::tests;
using teal::PoolMemory;
using teal::Reason;
using teal::Record;
using teal::State;

// Died in drain(): each line is a state between two of its stores.
void test_death_in_drain() {
    HandPool scene;
    PoolMemory& memory = scene.memory;
    teal::SessionLine& line = memory.sessions[scene.client.index];
    for (int i = 0; i < 8; ++i) scene.submit();
    CHECK_EQ(scene.drain(), 8);
    // A free record was taken off the list and filled, but not queued yet.
    const std::uint32_t taken = memory.header.free_head - 1;
    memory.header.free_head = memory.records[taken].next_free;
    memory.records[taken].session = scene.client.index;
    memory.records[taken].epoch = scene.client.epoch;
    scene.die();
    // Queued, but not counted, not in the heap, and the entry is still in the ring.
    memory.header.heap_size -= 1;
    line.in_flight -= 1;
    memory.versions[0].in_flight -= 1;
    memory.header.active -= 1;
    line.head -= 1;
    scene.die();
    CHECK_EQ(line.head, 8);
    CHECK_EQ(scene.drain(), 0);
    // Counted as well, and our position moved on, but the ring's tail was not stored.
    memory.header.heap_size -= 1;
    scene.live[0]->ring()->tail.store(7);
    scene.die();
    CHECK_EQ(scene.drain(), 0);
    // In the heap, but not sifted up; and twice while it was being sifted.
    std::reverse(memory.heap, memory.heap + memory.header.heap_size);
    scene.die();
    memory.heap[3] = memory.heap[1];
    scene.die();
    scene.finish();
    scene.check_done({0, 1, 2, 3, 4, 5, 6, 7});
}

// Died in pick() by worker 9.
void test_death_in_pick() {
    HandPool scene;
    PoolMemory& memory = scene.memory;
    for (std::int32_t i = 0; i < 6; ++i) scene.submit(plain_model, i % 2);
    CHECK_EQ(scene.drain(), 6);
    const std::uint32_t top = memory.heap[0];
    // Popped; and named its worker, but not running yet.
    memory.heap[0] = memory.heap[5];
    memory.header.heap_size -= 1;
    scene.die();
    memory.heap[0] = memory.heap[5];
    memory.header.heap_size -= 1;
    memory.records[top].worker = 9;
    scene.die();
    CHECK_EQ(scene.sweeper.bury_worker(9, 11).failed, 0);  // it was nobody's yet
    scene.check_consistent();
    // The order is what it was.
    CHECK_EQ(scene.pick(9), top);
    CHECK_EQ(static_cast<State>(memory.records[top].state.load() & 0xff), State::running);
    scene.die();
    CHECK_EQ(scene.sweeper.bury_worker(9, 11).failed, 1);
    CHECK_EQ(state_of(*scene.slots[1]), State::failed);
    CHECK_EQ(reason_of(*scene.slots[1]), Reason::worker_died);
    CHECK_EQ(scene.slots[1]->line->detail.load(), 11);
    CHECK(teal::ClientSession::quiescent(*scene.slots[1]));
    scene.finish();
    scene.check_done({0, 2, 3, 4, 5});
}

// Died in pick() over a request that ended while it waited.
void test_death_in_pick_over_ended() {
    HandPool scene;
    PoolMemory& memory = scene.memory;
    const auto pop = [&] {
        const std::uint32_t top = memory.heap[0];
        memory.heap[0] = memory.heap[memory.header.heap_size - 1];
        memory.header.heap_size -= 1;
        return top;
    };
    for (int i = 0; i < 3; ++i) scene.submit(plain_model, 5 - i, i < 2 ? 1 : 0);  // the first two expired long ago
    CHECK_EQ(scene.drain(), 3);
    std::uint32_t record = pop();
    scene.pool->end_queued(record, scene.live[0], State::expired, Reason::deadline);  // told, but still queued
    scene.die();
    CHECK_EQ(memory.header.heap_size, 3);
    record = pop();
    scene.pool->end_queued(record, scene.live[0], State::expired, Reason::deadline);
    CHECK(scene.pool->end_record(record, State::expired));  // ended, but not given back
    scene.die();
    CHECK_EQ(memory.header.heap_size, 2);
    CHECK_EQ(scene.sweeper.active(), 2);
    // The client moves on meanwhile; the old end, told once more by who comes after, must not touch what is newer.
    CHECK_EQ(reason_of(*scene.slots[0]), Reason::deadline);
    scene.client.session->submit(*scene.slots[0], plain_model, 0, 0, 0);
    CHECK(scene.client.session->cancel(*scene.slots[0], State::cancelled, Reason::client_cancelled));
    teal::Ending late;
    late.state = State::expired;
    CHECK(!teal::end_request(*scene.slots[0]->line, scene.slots[0]->generation - 1, late));
    CHECK_EQ(state_of(*scene.slots[0]), State::cancelled);
    scene.finish();
    CHECK_EQ(state_of(*scene.slots[1]), State::expired);
    scene.check_done({2});
}

// Died in give_back(), as worker 4, with three ended records.
void test_death_in_give_back() {
    HandPool scene;
    PoolMemory& memory = scene.memory;
    teal::SessionLine& line = memory.sessions[scene.client.index];
    for (int i = 0; i < 4; ++i) scene.submit();
    std::vector<std::uint32_t> records;
    for (int i = 0; i < 3; ++i) {
        records.push_back(scene.pick(4));
        teal::Ending done;
        CHECK(teal::end_request(*scene.slots[static_cast<std::size_t>(i)]->line, 1, done));
        CHECK(scene.pool->end_record(records.back(), State::done));
    }
    line.in_flight -= 1;  // counted down, nothing else
    scene.die();
    CHECK_EQ(scene.sweeper.active(), 4);  // they are still worker 4's
    memory.versions[0].in_flight -= 1;
    Record& record = memory.records[records[0]];
    record.state.store(teal::low_half((record.state.load() >> 8) + 1, State::free));  // free, but not on the list
    scene.die();
    CHECK_EQ(scene.sweeper.active(), 3);
    memory.header.free_head = 0;  // the list itself is gone
    scene.die();
    CHECK_EQ(scene.sweeper.bury_worker(4, 9).failed, 0);  // all of them had been told
    scene.check_consistent();
    CHECK_EQ(scene.sweeper.active(), 1);
    scene.finish();
    for (std::size_t i = 0; i < 4; ++i) CHECK_EQ(state_of(*scene.slots[i]), State::done);
}

// Died in repair().
void test_death_in_repair() {
    HandPool scene;
    PoolMemory& memory = scene.memory;
    for (int i = 0; i < 5; ++i) scene.submit();
    CHECK_EQ(scene.drain(), 5);
    memory.sessions[scene.client.index].head -= 1;
    scene.enter();
    scene.pool->repair();
    scene.pool->leave();
    memory.header.heap_size = 2;
    memory.header.free_head = 17;
    memory.sessions[scene.client.index].in_flight = 3;
    for (auto& version : memory.versions) version.in_flight = 0;
    scene.die();
    CHECK_EQ(memory.sessions[scene.client.index].head, 5);
    CHECK_EQ(memory.header.repairs, 2);
    scene.finish();
    scene.check_done({0, 1, 2, 3, 4});
}

// A real holder: a child that dies with the role in its hands.
void test_death_of_a_holder() {
    HandPool scene;
    for (int i = 0; i < 4; ++i) scene.submit();
    const pid_t child = ::fork();
    if (child == 0) {
        if (scene.pool->enter(1'000'000'000)) scene.pool->drain(scene.live);
        ::kill(::getpid(), SIGKILL);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status));
    CHECK(scene.pool->try_enter());
    CHECK_EQ(scene.memory.header.repairs, 1);
    scene.pool->leave();
    scene.check_consistent();
    CHECK_EQ(scene.pool->queued(), 4);
    scene.finish();
    scene.check_done({0, 1, 2, 3});
}

}  // namespace

int main() {
    test_death_in_drain();
    test_death_in_pick();
    test_death_in_pick_over_ended();
    test_death_in_give_back();
    test_death_in_repair();
    test_death_of_a_holder();
    return teal::check::summary();
}
