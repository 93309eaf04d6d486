// Tests of waiting: spinning that learns, sleeping that loses no wake-up, between threads and between processes.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "cpu/clock.hpp"
#include "queue/expectation.hpp"
#include "queue/wait.hpp"
#include "tests/check.hpp"
#include "tests/meeting.hpp"

namespace {

using teal::tests::relax;
using teal::tests::scaled;
using teal::tests::shared_memory;

void test_spin_budget() {
    teal::SpinBudget budget(100'000);
    CHECK_EQ(budget.budget_ns(), 100'000);
    int halvings = 0;
    for (; budget.budget_ns() > 0 && halvings < 100; ++halvings) budget.learn(1'000'000);
    CHECK(halvings > 5 && halvings < 12);  // down to nothing while it does not pay
    budget.learn(500);
    CHECK_EQ(budget.budget_ns(), 2'000);
    budget.learn(300);
    CHECK_EQ(budget.budget_ns(), 2'000);  // shorter waits take nothing away
    budget.learn(30'000);
    CHECK_EQ(budget.budget_ns(), 61'000);
    budget.learn(90'000);
    CHECK_EQ(budget.budget_ns(), 100'000);  // never above the ceiling
    budget.set_ceiling(10'000);
    CHECK_EQ(budget.budget_ns(), 10'000);
    budget.learn(UINT64_MAX);
    CHECK_EQ(budget.budget_ns(), 5'000);
    teal::SpinBudget never(0);
    never.learn(0);
    never.learn(10);
    CHECK_EQ(never.budget_ns(), 0);
    never.set_ceiling(50);
    CHECK_EQ(never.budget_ns(), 50);
}

void test_spin_for() {
    CHECK(teal::spin_for(0, [] { return true; }));
    CHECK(!teal::spin_for(0, [] { return false; }));
    const std::int64_t start = teal::monotonic_ns();
    CHECK(!teal::spin_for(2'000'000, [] { return false; }));
    CHECK(teal::monotonic_ns() - start >= 1'900'000);
    int calls = 0;
    CHECK(teal::spin_for(1'000'000'000'000, [&] { return ++calls == 100; }));
    int asked = 0;
    const auto in_the_way = [&] { return ++asked > 0; };
    CHECK(!teal::spin_for(3'000, [] { return false; }, in_the_way));
    CHECK_EQ(asked, 0);  // too short to be anybody's fault
    CHECK(!teal::spin_for(2'000'000, [] { return false; }, in_the_way));
    CHECK(asked > 0);
}

// Calls of one length: nothing is known at first, then the window lies around it, never wider than an eighth.
void test_expectation() {
    teal::Expectation expectation;
    CHECK_EQ(expectation.window().end_ns, 0);
    for (int i = 0; i < 50; ++i) expectation.learn(10'000'000 + (i % 2 == 0 ? 50'000U : 0U));
    const auto window = expectation.window();
    CHECK(window.begin_ns > 9'000'000 && window.begin_ns < 10'000'000);
    CHECK(window.end_ns > 10'050'000 && window.end_ns - window.begin_ns <= 10'050'000 / 8 + 1);
    expectation.learn(900'000'000);  // one outlier
    const auto after = expectation.window();
    CHECK(after.end_ns - after.begin_ns <= 120'000'000 / 8);
    teal::Expectation brief;
    for (int i = 0; i < 50; ++i) brief.learn(20'000);
    CHECK_EQ(brief.window().end_ns, 0);  // spun through all the way
}

constexpr std::uint64_t long_nap_ns = 3'000'000'000;

std::uint64_t now_ns() { return static_cast<std::uint64_t>(teal::monotonic_ns()); }

// Waits for `word` to become `value` as every waiter in Teal does: announce, look once more, sleep. True when it slept
// through the change until its nap was over: a lost wake-up.
bool sleep_until(std::atomic<std::uint32_t>& word, std::atomic<std::uint32_t>& waiting, std::uint32_t value) {
    bool lost = false;
    while (word.load(std::memory_order_acquire) != value) {
        waiting.store(1, std::memory_order_seq_cst);  // SYNC: pairs with tell()
        const std::uint32_t seen = word.load(std::memory_order_seq_cst);
        if (seen != value) {
            const std::uint64_t until = now_ns() + long_nap_ns;
            teal::futex_wait(&word, seen, until);
            lost = lost || (now_ns() >= until && word.load() == value);
        }
        waiting.store(0, std::memory_order_relaxed);
    }
    return lost;
}

void tell(std::atomic<std::uint32_t>& word, std::atomic<std::uint32_t>& waiting, std::uint32_t value) {
    word.store(value, std::memory_order_seq_cst);
    if (waiting.load(std::memory_order_seq_cst) != 0) teal::futex_wake(&word, 1);
}

struct PingPong {
    alignas(64) std::atomic<std::uint32_t> ping;
    std::atomic<std::uint32_t> ping_waiting;
    alignas(64) std::atomic<std::uint32_t> pong;
    std::atomic<std::uint32_t> pong_waiting;
};

void test_no_lost_wake_up() {
    constexpr std::uint32_t rounds = scaled(30'000U, 8'000U);
    auto* shared = shared_memory<PingPong>();
    const auto answer = [shared] {
        int lost = 0;
        for (std::uint32_t i = 1; i <= rounds; ++i) {
            if (i % 3 == 0) teal::spin_for(2'000, [&] { return shared->ping.load(std::memory_order_acquire) == i; });
            lost += sleep_until(shared->ping, shared->ping_waiting, i) ? 1 : 0;
            tell(shared->pong, shared->pong_waiting, i);
        }
        return lost;
    };
    const auto ask = [shared] {
        int lost = 0;
        for (std::uint32_t i = 1; i <= rounds; ++i) {
            tell(shared->ping, shared->ping_waiting, i);
            if (i % 2 == 0) teal::spin_for(1'000, [&] { return shared->pong.load(std::memory_order_acquire) == i; });
            lost += sleep_until(shared->pong, shared->pong_waiting, i) ? 1 : 0;
        }
        return lost;
    };
    std::thread other([&] { CHECK_EQ(answer(), 0); });
    CHECK_EQ(ask(), 0);
    other.join();
    std::memset(static_cast<void*>(shared), 0, sizeof *shared);
    const pid_t child = ::fork();
    if (child == 0) ::_exit(answer());
    CHECK_EQ(ask(), 0);
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
    ::munmap(static_cast<void*>(shared), sizeof *shared);
}

void test_wait_any() {
    std::atomic<std::uint32_t> words[3] = {};
    teal::FutexWaiter waiters[3] = {{&words[0], 0}, {&words[1], 0}, {&words[2], 0}};
    const std::uint64_t start = now_ns();
    if (!teal::futex_wait_any(waiters, 3, start + 5'000'000)) return;  // this kernel has no futex_waitv: callers nap instead
    CHECK(now_ns() >= start + 5'000'000);
    words[1].store(1);
    CHECK(teal::futex_wait_any(waiters, 3, now_ns() + long_nap_ns));  // differs: returns at once
    waiters[1].expected = 1;
    std::thread waker([&] {
        while (words[0].load() == 0) {  // until it is seen: it may not be asleep yet
            teal::futex_wake(&words[2], 1);
            relax();
        }
    });
    CHECK(teal::futex_wait_any(waiters, 3, now_ns() + 60'000'000'000));
    words[0].store(1);
    waker.join();
    std::vector<teal::FutexWaiter> many(teal::max_futex_waiters + 1, waiters[0]);
    CHECK(!teal::futex_wait_any(many.data(), teal::max_futex_waiters + 1, now_ns()));
}

}  // namespace

int main() {
    test_spin_budget();
    test_spin_for();
    test_expectation();
    test_no_lost_wake_up();
    test_wait_any();
    return teal::check::summary();
}
