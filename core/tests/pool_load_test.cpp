// Tests of core/host under load: several workers and clients at once, versions that change meanwhile, leaders that hand over.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cpu/clock.hpp"
#include "tests/check.hpp"
#include "tests/small_pool.hpp"

namespace {

using namespace teal::tests;
using teal::Reason;
using teal::State;

constexpr std::uint32_t count_model = 0;
constexpr std::uint32_t gate_model = 1;
constexpr std::uint32_t versioned_model = 2;

// How often each request ran; requests have numbers.
struct Counters {
    std::vector<std::atomic<std::uint32_t>> runs;
    std::atomic<std::uint32_t> next{0};
    explicit Counters(std::size_t size) : runs(size) {}

    // Every 16th takes longer than a leader keeps the lead for.
    std::shared_ptr<teal::Kernel> kernel() {
        return std::make_shared<Lambda>([this](const std::int64_t& in, std::int64_t& out, teal::Run&) {
            runs[static_cast<std::size_t>(in)].fetch_add(1, std::memory_order_relaxed);
            if (in % 16 == 0) teal::spin_for(60'000, [] { return false; });
            out = in * 3 + 1;
            return true;
        });
    }
};

struct Tally {
    std::atomic<std::uint32_t> done{0};
    std::atomic<std::uint32_t> cancelled{0};
    std::atomic<std::uint32_t> wrong{0};
};

// One client: `depth` slots kept busy; now and then one is cancelled, or ended by its deadline.
void hammer(const Client& client, Counters& counters, Tally& tally, std::uint32_t requests, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<std::unique_ptr<teal::ClientSlot>> slots;
    std::vector<std::int64_t> numbers(1 + seed % 6, -1);
    for (std::size_t i = 0; i < numbers.size(); ++i) slots.push_back(client.slot());
    const auto settle = [&](std::size_t i) {
        client.session->wait(*slots[i], 0, 0);
        const auto runs = counters.runs[static_cast<std::size_t>(numbers[i])].load();
        if (state_of(*slots[i]) == State::done) {
            tally.done.fetch_add(1);
            if (output(*slots[i]) != numbers[i] * 3 + 1 || runs != 1) tally.wrong.fetch_add(1);
        } else if (state_of(*slots[i]) == State::cancelled) {
            tally.cancelled.fetch_add(1);
            if (runs != 0) tally.wrong.fetch_add(1);
        } else {
            tally.wrong.fetch_add(1);
        }
        until([&] { return teal::ClientSession::quiescent(*slots[i]); });
    };
    for (std::uint32_t n = 0; n < requests; ++n) {
        const std::size_t i = random() % slots.size();
        if (numbers[i] >= 0) settle(i);
        numbers[i] = counters.next.fetch_add(1);
        input(*slots[i]) = numbers[i];
        client.session->submit(*slots[i], count_model, 0, static_cast<std::int32_t>(random() % 3), 0);
        if (random() % 20 == 0) client.session->cancel(*slots[i], State::cancelled, Reason::client_cancelled);
    }
    for (std::size_t i = 0; i < slots.size(); ++i)
        if (numbers[i] >= 0) settle(i);
    for (auto& slot : slots) client.session->destroy_slot(std::move(slot));
}

void test_load(std::uint32_t workers, std::uint32_t clients, std::uint64_t idle_ns) {
    const std::uint32_t requests = scaled(24'000U, 8'000U) / clients;
    SmallPool pool(idle_ns);
    Counters counters(std::size_t{requests} * clients);
    for (std::uint32_t i = 0; i < workers; ++i) pool.add_worker();
    pool.load(count_model, 1, counters.kernel());
    pool.sweeper.start();
    Tally tally;
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < clients; ++i) {
        const Client client = pool.open(8, 2 + i * 3);
        threads.emplace_back([&, client, i] { hammer(client, counters, tally, requests, i + workers); });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(tally.wrong.load(), 0);
    CHECK_EQ(tally.done + tally.cancelled, requests * clients);
    CHECK(tally.cancelled > 0);
    std::uint64_t busy = 0;
    for (std::uint32_t i = 0; i < workers; ++i) busy += pool.pool->memory().workers[i].requests.load() > 0 ? 1 : 0;
    CHECK(busy > 1 || workers == 1);
    CHECK_EQ(pool.pool->memory().header.repairs, 0);
    pool.check_all_free();
    const teal::VersionLine& version = pool.pool->memory().versions[0];
    CHECK_EQ(version.cancelled, tally.cancelled);
    CHECK_EQ(version.requests, tally.done + tally.cancelled);
}

// All workers but one sit in a gate: the one that is left must hear of every request, whoever led before. Without the
// sweeper, which would put a forgotten lead right after a millisecond.
void test_hand_over() {
    SmallPool pool(0);
    std::atomic<bool> open_gate{false};
    std::atomic<int> in_gate{0};
    constexpr std::uint32_t workers = 4;
    for (std::uint32_t i = 0; i < workers; ++i) pool.add_worker();
    pool.load(gate_model, 1, std::make_shared<Lambda>([&](const std::int64_t&, std::int64_t&, teal::Run&) {
        in_gate.fetch_add(1);
        until([&] { return open_gate.load(); });
        return true;
    }));
    pool.pool->memory().versions[0].run_ns.store(1'000'000);  // known to be long: its leader resigns
    pool.load(count_model, 1, std::make_shared<Lambda>([](const std::int64_t& in, std::int64_t& out, teal::Run&) {
        out = in;
        return true;
    }));
    const Client client = pool.open();
    std::vector<std::unique_ptr<teal::ClientSlot>> gates;
    const auto slot = client.slot();
    int slow = 0;
    for (std::uint32_t held = 0; held < workers; ++held) {
        for (int i = 0; i < scaled(300, 100); ++i) {
            const std::int64_t start = teal::monotonic_ns();
            CHECK(call(*client.session, *slot, count_model));
            slow += teal::monotonic_ns() - start > 400'000'000 ? 1 : 0;
        }
        if (held + 1 == workers) break;
        gates.push_back(client.slot());
        client.session->submit(*gates.back(), gate_model, 0, 0, 0);
        until([&] { return in_gate.load() == static_cast<int>(held) + 1; });
    }
    CHECK(slow < 3);  // a lead that is lost costs a nap of half a second each time
    open_gate = true;
    for (const auto& gate : gates) client.session->wait(*gate, 0, 0);
    pool.check_all_free();
}

// Answers input * 1000 + version.
std::shared_ptr<teal::Kernel> version_kernel(std::int64_t number) {
    return std::make_shared<Lambda>([number](const std::int64_t& in, std::int64_t& out, teal::Run&) {
        out = in * 1000 + number;
        if (in % 64 == 0) teal::spin_for(30'000, [] { return false; });
        return true;
    });
}

void test_reload() {
    SmallPool pool;
    for (int i = 0; i < 2; ++i) pool.add_worker();
    pool.sweeper.start();
    std::uint32_t current = pool.load(versioned_model, 1, version_kernel(1));
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> calls{0};
    std::atomic<std::uint64_t> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) {
        const Client client = pool.open();
        threads.emplace_back([&, client] {
            const std::unique_ptr<teal::ClientSlot> slots[2] = {client.slot(), client.slot()};
            std::uint32_t newest = 0;
            for (std::int64_t i = 0; !stop.load(); ++i) {
                teal::ClientSlot& slot = *slots[i % 2];
                input(slot) = i;
                const bool done = call(*client.session, slot, versioned_model);
                const std::uint32_t version = slot.line->version.load();
                if (!done || output(slot) != i * 1000 + version || version < newest) wrong.fetch_add(1);
                newest = version;
                calls.fetch_add(1);
            }
        });
    }
    constexpr std::uint32_t reloads = scaled(300U, 150U);  // more than there are lines: each is used again
    for (std::uint32_t number = 2; number < reloads + 2; ++number) {
        const std::uint64_t before = calls.load();
        const std::uint32_t next = pool.load(versioned_model, number, version_kernel(number));
        until([&] { return calls.load() > before + 4; });
        pool.unload(current);
        CHECK_EQ(pool.pool->memory().versions[current].in_flight, 0);
        current = next;
    }
    stop = true;
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(wrong.load(), 0);
    CHECK(calls.load() > reloads * 4);
    pool.unload(current);
    const Client client = pool.open();
    const auto slot = client.slot();
    CHECK(!call(*client.session, *slot, versioned_model));
    CHECK_EQ(reason_of(*slot), Reason::not_found);
    pool.check_all_free();
}

// Sessions come and go, with work queued and running, while others are served.
void test_sessions_come_and_go() {
    SmallPool pool;
    Counters counters(1'000'000);
    counters.next = 1'000;  // those below are not counted on
    for (int i = 0; i < 2; ++i) pool.add_worker();
    pool.load(count_model, 1, counters.kernel());
    pool.sweeper.start();
    std::atomic<bool> stop{false};
    Tally tally;
    const Client steady = pool.open();
    std::thread other([&] {
        std::uint32_t seed = 10;
        while (!stop.load()) hammer(steady, counters, tally, 100, ++seed);
    });
    for (int round = 0; round < scaled(150, 40); ++round) {
        const Client client = pool.open(8, 3);
        std::vector<std::unique_ptr<teal::ClientSlot>> slots;
        for (int i = 0; i < 6; ++i) {
            slots.push_back(client.slot());
            input(*slots.back()) = 16;  // a long one
            client.session->submit(*slots.back(), count_model, 0, 0, 0);
        }
        if (round % 3 == 0) client.session->wait(*slots[0], 0, 0);
        pool.close(client, round % 2 == 0 ? Reason::client_gone : Reason::host_stopping);
        for (const auto& slot : slots) {
            CHECK(teal::ClientSession::ended(*slot));
            CHECK(state_of(*slot) == State::done || state_of(*slot) == State::cancelled);
        }
    }
    stop = true;
    other.join();
    CHECK_EQ(tally.wrong.load(), 0);
    pool.check_all_free();
}

}  // namespace

int main() {
    test_load(1, 1, 50'000);
    test_load(2, 3, 50'000);
    test_load(3, 4, 0);
    test_load(4, 2, 5'000);
    test_hand_over();
    test_reload();
    test_sessions_come_and_go();
    return teal::check::summary();
}
