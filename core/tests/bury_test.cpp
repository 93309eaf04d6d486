// Tests of what the host makes of dead workers: whose requests fail, which run again, and worker processes killed at random
// instructions.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/check.hpp"
#include "tests/hand_pool.hpp"

namespace {

using namespace teal::tests;
using teal::nobody;
using teal::Reason;
using teal::State;

void test_bury() {
    HandPool scene;
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
    CHECK_EQ(scene.memory.versions[1].requests.load(), 2);  // both ended for their client
}

// The host ended the worker: nothing runs again, and that is what the clients are told.
void test_bury_stopping() {
    HandPool scene;
    scene.submit(plain_model);
    scene.submit(again_model);
    for (int i = 0; i < 2; ++i) CHECK(scene.pick(5) != nobody);
    CHECK_EQ(scene.sweeper.bury_worker(5, 9, true).again, 0);
    for (const auto& slot : scene.slots) {
        CHECK_EQ(state_of(*slot), State::cancelled);
        CHECK_EQ(reason_of(*slot), Reason::host_stopping);
        CHECK(teal::ClientSession::quiescent(*slot));
    }
    scene.check_consistent();
    scene.finish();
}

// A request that kills whoever runs it is given up after the third.
void test_bury_gives_up() {
    HandPool scene;
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
    HandPool scene;
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
    HandPool scene;
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
    const int deaths = slow_fork ? 200 : 1'500;
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
    test_bury();
    test_bury_gives_up();
    test_bury_stopping();
    test_bury_ended_by_others();
    test_bury_handed_over();
    test_random_deaths(1);
    test_random_deaths(2);
    return teal::check::summary();
}
