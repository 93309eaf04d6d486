// Tests of workers that one pool lends to another (host/lent.cpp): when they take, what they take, and who watches meanwhile.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "tests/check.hpp"
#include "tests/small_pool.hpp"

namespace {

using namespace teal::tests;
using teal::Pool;
using teal::Worker;
using teal::WorkerState;

// Two pools with a worker each, and a lent one between them.
struct Pair {
    SmallPool lender, helped;
    std::unique_ptr<Worker> lent;
    std::thread thread;

    explicit Pair(unsigned own = 1) {
        lender.add_worker();
        for (unsigned i = 0; i < own; ++i) helped.add_worker();
        helped.sweeper.lend(own, lender.sweeper, 0);
        lent = std::make_unique<Worker>(helped.pool, own, Worker::Lender{lender.pool, lender.sweeper.loans(), 0});
        lender.sweeper.start();
        helped.sweeper.start();
        until([this] { return lender.pool->has_idle() || lender.pool->may_lend(0); });
        until([this] { return helped.pool->has_idle(); });  // or the lent one would be the first
    }
    ~Pair() {
        lent->quit();
        if (thread.joinable()) thread.join();
    }
    Client open() {
        Client client = helped.open(64, 256);
        lent->add_session(::dup(client.session_fd), client.index, client.epoch, client.slots);
        lent->add_region(client.index, client.epoch, 0, ::dup(client.region->fd()));
        return client;
    }
    std::uint32_t load(std::uint32_t model, std::shared_ptr<teal::Kernel> kernel, bool lend) {
        const std::uint32_t line = helped.load(model, 1, kernel, teal::kernel_pure);
        if (lend) lent->set_kernel(line, helped.pool->memory().versions[line].generation, std::move(kernel));
        return line;
    }
    void go() {
        thread = std::thread([this] { lent->run(); });
    }
    [[nodiscard]] std::uint64_t stolen(std::uint32_t index = 1) const { return helped.pool->memory().workers[index].requests.load(); }
};

struct Gate {
    std::atomic<int> inside{0};
    std::atomic<bool> open{false};
    std::shared_ptr<teal::Kernel> kernel() {
        return std::make_shared<Lambda>([this](const std::int64_t& in, std::int64_t& out, teal::Run&) {
            inside.fetch_add(1);
            until([this] { return open.load(); });
            out = in + 1;
            return true;
        });
    }
};

std::shared_ptr<teal::Kernel> plus_one() {
    return std::make_shared<Lambda>([](const std::int64_t& in, std::int64_t& out, teal::Run&) {
        out = in + 1;
        return true;
    });
}

void ask(const Client& client, teal::ClientSlot& slot, std::uint32_t model, std::int64_t value) {
    input(slot) = value;
    client.session->submit(slot, model, 0, 0, 0);
}

void answered(const Client& client, teal::ClientSlot& slot, std::int64_t value) {
    CHECK(client.session->wait(slot, 0, 0));
    CHECK_EQ(state_of(slot), teal::State::done);
    CHECK_EQ(output(slot), value + 1);
}

void test_takes_while_the_own_one_is_busy() {
    Pair pair;
    Gate gate;
    pair.load(0, gate.kernel(), true);
    pair.load(1, plus_one(), true);
    const Client client = pair.open();
    pair.go();
    auto first = client.slot(), second = client.slot();
    ask(client, *first, 0, 1);
    until([&] { return gate.inside.load() == 1; });
    for (std::int64_t value = 0; value < 100; ++value) {
        ask(client, *second, 1, value);
        answered(client, *second, value);
    }
    until([&] { return pair.stolen() == 100; });
    gate.open.store(true);
    answered(client, *first, 1);
    // Its own one is back, and takes over the watch by itself; until then the lent one may get some more.
    const std::uint64_t before = pair.stolen(0);
    until([&] {
        ask(client, *second, 1, 7);
        answered(client, *second, 7);
        return pair.stolen(0) >= before + 100;
    });
}

// What it does not hold stays in the queue, in order, and keeps nobody awake.
void test_passes_by_what_it_does_not_hold() {
    Pair pair;
    Gate gate;
    pair.load(0, gate.kernel(), true);
    pair.load(1, plus_one(), false);
    pair.load(2, plus_one(), true);
    const Client client = pair.open();
    pair.go();
    auto first = client.slot(), not_held = client.slot(), held = client.slot();
    ask(client, *first, 0, 1);
    until([&] { return gate.inside.load() == 1; });
    ask(client, *not_held, 1, 5);
    ask(client, *held, 2, 6);
    answered(client, *held, 6);
    CHECK(!teal::ClientSession::ended(*not_held));
    const std::atomic<std::uint32_t>& state = pair.helped.pool->memory().workers[1].state;
    until([&] { return static_cast<WorkerState>(state.load()) == WorkerState::barred; });
    gate.open.store(true);
    answered(client, *first, 1);
    answered(client, *not_held, 5);
    until([&] { return pair.stolen() == 1; });
}

// Only while the lender's worker has nothing to do, and one at a time.
void test_lends_idle_time_only() {
    Pair pair;
    Gate here, there;
    pair.load(0, here.kernel(), true);
    pair.load(1, plus_one(), true);
    pair.lender.load(0, 1, there.kernel(), 0);
    const Client client = pair.open();
    const Client other = pair.lender.open();
    pair.go();
    auto mine = other.slot(), first = client.slot(), second = client.slot();
    ask(other, *mine, 0, 9);
    until([&] { return there.inside.load() == 1; });
    CHECK(!pair.lender.pool->may_lend(0));
    ask(client, *first, 0, 1);
    until([&] { return here.inside.load() == 1; });
    ask(client, *second, 1, 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(!teal::ClientSession::ended(*second));
    there.open.store(true);
    answered(other, *mine, 9);
    answered(client, *second, 2);  // the sweeper has seen that there is time
    until([&] { return pair.stolen() == 1; });  // counted once the client has its answer
    here.open.store(true);
    answered(client, *first, 1);
    teal::Loans& loans = *pair.lender.sweeper.loans();
    until([&] { return loans.holder(0) == 0; });
    CHECK(loans.take(0, 77));
    CHECK(!loans.take(0, 78));
    loans.give_back(0, 78);  // not his
    CHECK(!loans.take(0, 78));
    pair.helped.sweeper.bury_lent(1, 77);
    CHECK(loans.take(0, 78));
    loans.give_back(0, 78);
}

// Many clients, two own workers and the lent one, while the lender is called too: everything is answered once, rightly.
void test_together() {
    Pair pair(2);
    std::atomic<std::uint64_t> ran{0};
    const auto kernel = std::make_shared<Lambda>([&](const std::int64_t& in, std::int64_t& out, teal::Run&) {
        ran.fetch_add(1);
        const std::uint64_t end = now_ns() + 20'000;
        until([end] { return now_ns() > end; });
        out = in + 1;
        return true;
    });
    pair.load(0, kernel, true);
    pair.lender.load(0, 1, plus_one(), 0);
    std::vector<Client> clients;
    for (int i = 0; i < 3; ++i) clients.push_back(pair.open());
    const Client other = pair.lender.open();
    pair.go();
    constexpr std::int64_t rounds = 150;
    std::vector<std::thread> threads;
    for (const Client& client : clients)
        threads.emplace_back([&client] {
            std::vector<std::unique_ptr<teal::ClientSlot>> slots;
            for (int k = 0; k < 4; ++k) slots.push_back(client.slot());
            for (std::int64_t round = 0; round < rounds; ++round) {
                for (std::size_t k = 0; k < slots.size(); ++k) ask(client, *slots[k], 0, round + static_cast<std::int64_t>(k));
                for (std::size_t k = 0; k < slots.size(); ++k) answered(client, *slots[k], round + static_cast<std::int64_t>(k));
            }
        });
    auto mine = other.slot();
    for (std::int64_t round = 0; round < rounds; ++round) {
        ask(other, *mine, 0, round);
        answered(other, *mine, round);
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(ran.load(), 3 * 4 * rounds);
    CHECK(pair.stolen(2) > 0);
}

}  // namespace

int main() {
    test_takes_while_the_own_one_is_busy();
    test_passes_by_what_it_does_not_hold();
    test_lends_idle_time_only();
    test_together();
    return teal::check::summary();
}
