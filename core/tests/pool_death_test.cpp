// Tests of what a death leaves behind: half-done states of every step under the role, built by hand; workers buried by the
// host; and worker processes killed at random instructions.
//
// "Hand" is a worker without a loop: the test takes its steps one by one and stops where the worker would have died.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "cpu/clock.hpp"
#include "tests/check.hpp"
#include "tests/small_pool.hpp"

namespace {

using namespace teal::tests;
using teal::nobody;
using teal::PoolMemory;
using teal::Reason;
using teal::Record;
using teal::State;

std::uint64_t now_ns() { return static_cast<std::uint64_t>(teal::monotonic_ns()); }

constexpr std::uint32_t plain_model = 0;
constexpr std::uint32_t again_model = 1;  // idempotent

struct Scene : SmallPool {
    Client client;
    std::vector<teal::SessionMap*> maps = std::vector<teal::SessionMap*>(teal::max_sessions, nullptr);
    std::vector<teal::SessionMap*> live;
    std::vector<std::unique_ptr<teal::ClientSlot>> slots;
    PoolMemory& memory = pool->memory();

    Scene() : client(open(32, 32)) {
        load(plain_model, "identity");
        load(again_model, "identity", teal::kernel_idempotent);
        maps[client.index] = &client.session->map();
        live.push_back(maps[client.index]);
    }
    teal::ClientSlot& submit(std::uint32_t model = plain_model, std::int32_t priority = 0, std::uint64_t deadline = 0) {
        slots.push_back(client.slot());
        input(*slots.back()) = static_cast<std::int64_t>(slots.size()) * 11;
        client.session->submit(*slots.back(), model, 0, priority, deadline);
        return *slots.back();
    }
    void enter() { CHECK(pool->enter(1'000'000'000)); }
    std::uint32_t drain() {
        enter();
        const unsigned moved = pool->drain(live);
        pool->leave();
        return moved;
    }
    // Drains and picks for worker `hand`, as Worker::take() does.
    std::uint32_t pick(std::uint32_t hand) {
        enter();
        pool->drain(live);
        const std::uint32_t record = pool->pick(hand, maps);
        pool->leave();
        return record;
    }
    // The holder of the role has died: the next one repairs, and finds everything consistent.
    void die() {
        enter();
        pool->repair();
        pool->leave();
        check_consistent();
    }
    // Every request so far is answered by a real worker, once.
    void finish() {
        const std::uint32_t worker = add_worker();
        for (const auto& slot : slots) client.session->wait(*slot, 0, 0);
        until([&] { return std::all_of(slots.begin(), slots.end(), [](const auto& slot) { return teal::ClientSession::quiescent(*slot); }); });
        quit(worker);
        check_all_free();
    }
    void check_done(std::initializer_list<std::size_t> which) {
        for (const std::size_t i : which) {
            CHECK_EQ(state_of(*slots[i]), State::done);
            CHECK_EQ(output(*slots[i]), static_cast<std::int64_t>(i + 1) * 11);
        }
    }

    // What is derived from the records' words agrees with them.
    void check_consistent() {
        std::uint32_t active = 0;
        std::uint32_t waiting = 0;
        for (const Record& record : memory.records) {
            const auto state = static_cast<State>(record.state.load() & 0xff);
            active += state != State::free ? 1 : 0;
            waiting += state == State::queued ? 1 : 0;
            if (state == State::queued) CHECK_EQ(record.worker, nobody);
        }
        CHECK_EQ(memory.header.active, active);
        CHECK_EQ(memory.header.heap_size, waiting);
        CHECK_EQ(memory.sessions[client.index].in_flight, active);
        CHECK_EQ(memory.versions[0].in_flight + memory.versions[1].in_flight, active);
        std::vector<std::uint32_t> seen(teal::record_count, 0);
        for (std::uint32_t i = 0; i < memory.header.heap_size; ++i) ++seen[memory.heap[i]];
        std::uint32_t listed = 0;
        for (std::uint32_t at = memory.header.free_head; at != 0 && listed <= teal::record_count; at = memory.records[at - 1].next_free) {
            ++seen[at - 1];
            ++listed;
        }
        CHECK_EQ(listed, teal::record_count - active);
        CHECK(std::all_of(seen.begin(), seen.end(), [](std::uint32_t count) { return count <= 1; }));
    }
};

// ---- half-done steps -------------------------------------------------------------------------------------------

// Died in drain(): each line is a state between two of its stores.
void test_death_in_drain() {
    Scene scene;
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
    Scene scene;
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
    Scene scene;
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
    Scene scene;
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
    Scene scene;
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
    Scene scene;
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

// ---- burying ---------------------------------------------------------------------------------------------------

void test_bury() {
    Scene scene;
    scene.submit(plain_model);
    scene.submit(again_model);
    scene.submit(again_model);
    scene.submit(plain_model, -1);
    for (int i = 0; i < 3; ++i) CHECK(scene.pick(5) != nobody);
    teal::Ending done;
    CHECK(teal::end_request(*scene.slots[2]->line, 1, done));  // told its client, and died before it could say so here
    const auto buried = scene.sweeper.bury_worker(5, 6);
    CHECK_EQ(buried.failed, 1);
    CHECK_EQ(buried.again, 1);
    CHECK_EQ(reason_of(*scene.slots[0]), Reason::worker_died);
    CHECK_EQ(scene.slots[0]->line->detail.load(), 6);
    CHECK_EQ(state_of(*scene.slots[2]), State::done);
    CHECK(!teal::ClientSession::ended(*scene.slots[1]));
    CHECK_EQ(scene.pool->queued(), 2);
    scene.check_consistent();
    CHECK_EQ(static_cast<teal::WorkerState>(scene.memory.workers[5].state.load()), teal::WorkerState::absent);
    scene.finish();
    scene.check_done({1, 3});
    output(*scene.slots[2]) = 33;  // it never ran to the end here; only the count matters
    CHECK_EQ(scene.memory.versions[1].requests.load(), 1);
}

// A request that kills whoever runs it is given up after the third.
void test_bury_gives_up() {
    Scene scene;
    scene.submit(again_model);
    for (std::uint32_t hand = 1; hand <= 3; ++hand) {
        CHECK(scene.pick(hand) != nobody);
        CHECK(!teal::ClientSession::ended(*scene.slots[0]));
        const auto buried = scene.sweeper.bury_worker(hand, 256 + 3);
        CHECK_EQ(buried.again, hand < 3 ? 1 : 0);
    }
    CHECK_EQ(state_of(*scene.slots[0]), State::failed);
    CHECK_EQ(scene.slots[0]->line->detail.load(), 259);
    scene.finish();
}

void test_bury_ended_by_others() {
    Scene scene;
    scene.submit(again_model, 0, now_ns() + 1'000'000);
    scene.submit(again_model);
    const std::uint32_t expired = scene.pick(7);
    CHECK(scene.pick(7) != nobody);
    until([&] {
        scene.sweeper.tick();
        return teal::ClientSession::ended(*scene.slots[0]);
    });
    CHECK_EQ(static_cast<State>(scene.memory.records[expired].state.load() & 0xff), State::expired);
    CHECK(!teal::ClientSession::quiescent(*scene.slots[0]));
    CHECK(scene.client.session->cancel(*scene.slots[1], State::cancelled, Reason::client_cancelled));
    const auto buried = scene.sweeper.bury_worker(7, 9);
    CHECK_EQ(buried.failed + buried.again, 0);
    for (const auto& slot : scene.slots) CHECK(teal::ClientSession::quiescent(*slot));
    CHECK_EQ(state_of(*scene.slots[0]), State::expired);
    CHECK_EQ(state_of(*scene.slots[1]), State::cancelled);
    scene.finish();
}

// Handed over to the host, then its worker died: what it said of the old run is void.
void test_bury_handed_over() {
    Scene scene;
    scene.submit(again_model);
    scene.submit(again_model);
    const std::uint32_t record = scene.pick(2);
    const std::uint32_t generation = scene.memory.records[record].state.load() >> 8;
    CHECK_EQ(scene.sweeper.bury_worker(2, 9).again, 1);
    scene.sweeper.end_handed_over(record, generation, true, 4, Reason::none);
    CHECK(!teal::ClientSession::ended(*scene.slots[0]));
    scene.check_consistent();
    CHECK_EQ(scene.pick(3), record);
    scene.sweeper.end_handed_over(record, scene.memory.records[record].state.load() >> 8, true, 4, Reason::none);
    CHECK_EQ(state_of(*scene.slots[0]), State::done);
    CHECK_EQ(reason_of(*scene.slots[0]), Reason::output_spilled);
    CHECK_EQ(scene.slots[0]->line->detail.load(), 4);
    CHECK(teal::ClientSession::quiescent(*scene.slots[0]));
    scene.check_consistent();
    scene.finish();
    scene.check_done({1});
}

// ---- processes that die anywhere -------------------------------------------------------------------------------

struct Victim {
    std::uint32_t index;
    pid_t pid;
    std::unique_ptr<teal::Worker> worker;  // as the child was given it
};

void start(SmallPool& pool, Victim& victim, const std::map<std::uint32_t, std::string>& kernels) {
    victim.worker = std::make_unique<teal::Worker>(pool.pool, victim.index);
    for (const Client& client : pool.clients) {
        victim.worker->add_session(::dup(client.session_fd), client.index, client.epoch, client.slots);
        victim.worker->add_region(client.index, client.epoch, 0, ::dup(client.region->fd()));
    }
    for (const auto& [line, name] : kernels) victim.worker->set_kernel(line, pool.generation(line), teal::make_builtin(name));
    victim.pid = ::fork();
    if (victim.pid == 0) {
        victim.worker->run();
        ::_exit(0);
    }
}

void kill_and_bury(SmallPool& pool, Victim& victim, std::uint64_t& failed) {
    ::kill(victim.pid, SIGKILL);
    int status = 0;
    ::waitpid(victim.pid, &status, 0);
    failed += pool.sweeper.bury_worker(victim.index, SIGKILL).failed;
}

// Two worker processes, killed in turn at random instructions while one client keeps 8 requests going.
void test_random_deaths(std::uint32_t seed) {
    SmallPool pool(20'000);
    const Client client = pool.open(16, 6);
    const std::uint32_t plain = pool.load(plain_model, "identity");
    const std::uint32_t again = pool.load(again_model, "identity", teal::kernel_idempotent);
    const std::map<std::uint32_t, std::string> kernels{{plain, "identity"}, {again, "identity"}};
    Victim victims[2] = {{0, 0, nullptr}, {1, 0, nullptr}};
    for (Victim& victim : victims) start(pool, victim, kernels);
    std::mt19937 random(seed);
    std::vector<std::unique_ptr<teal::ClientSlot>> slots;
    std::vector<std::uint32_t> models(8, nobody);
    for (std::size_t i = 0; i < models.size(); ++i) slots.push_back(client.slot());
    std::uint64_t died = 0;
    std::uint64_t failed = 0;
    std::uint64_t done = 0;
    std::int64_t number = 0;
    const auto look = [&] {
        for (std::size_t i = 0; i < slots.size(); ++i) {
            if (models[i] != nobody && !teal::ClientSession::quiescent(*slots[i])) continue;
            if (models[i] != nobody) {
                const bool ok = state_of(*slots[i]) == State::done;
                // An idempotent one is given up only after three deaths under it.
                if (ok) CHECK_EQ(output(*slots[i]), input(*slots[i]));
                else CHECK_EQ(reason_of(*slots[i]), Reason::worker_died);
                ok ? ++done : ++died;
            }
            input(*slots[i]) = ++number;
            models[i] = random() % 2 == 0 ? plain_model : again_model;
            client.session->submit(*slots[i], models[i], 0, 0, 0);
        }
    };
    const int deaths = scaled(1'500, 50);
    for (int i = 0; i < deaths; ++i) {
        const std::uint64_t goal = done + 1 + random() % 12;
        const std::uint64_t moment = teal::ticks() + teal::ns_to_ticks(static_cast<std::int64_t>(random() % 40'000));
        until([&] {
            look();
            pool.sweeper.tick();
            return done >= goal && teal::ticks() >= moment;
        });
        Victim& victim = victims[random() % 2];
        kill_and_bury(pool, victim, failed);
        start(pool, victim, kernels);
    }
    for (std::size_t i = 0; i < slots.size(); ++i) client.session->wait(*slots[i], 0, 0);
    until([&] { return std::all_of(slots.begin(), slots.end(), [](const auto& slot) { return teal::ClientSession::quiescent(*slot); }); });
    for (const auto& slot : slots) died += state_of(*slot) == State::failed ? 1 : 0;
    for (Victim& victim : victims) kill_and_bury(pool, victim, failed);
    CHECK_EQ(died, failed);
    std::printf("%d workers killed: %llu requests done, %llu failed, %llu repairs\n", deaths, static_cast<unsigned long long>(done),
                static_cast<unsigned long long>(died), static_cast<unsigned long long>(pool.pool->memory().header.repairs));
    pool.check_all_free();
}

}  // namespace

int main() {
    test_death_in_drain();
    test_death_in_pick();
    test_death_in_pick_over_ended();
    test_death_in_give_back();
    test_death_in_repair();
    test_death_of_a_holder();
    test_bury();
    test_bury_gives_up();
    test_bury_ended_by_others();
    test_bury_handed_over();
    test_random_deaths(1);
    test_random_deaths(2);
    return teal::check::summary();
}
