// The thread is taken from a kernel at any instruction, and every register is as it was when it goes on.
#include "kernel/preemptor.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <csignal>
#include <fcntl.h>
#include <memory>
#include <thread>
#include <unistd.h>
#include <vector>

#include "cpu/clock.hpp"
#include "cpu/features.hpp"
#include "queue/wait.hpp"
#include "tests/check.hpp"
#include "tests/churn.hpp"
#include "tests/meeting.hpp"

namespace {

using namespace teal;
using namespace teal::tests;

std::uint64_t now_ns() { return static_cast<std::uint64_t>(monotonic_ns()); }

struct Random {
    std::uint64_t state = 1;
    std::uint64_t below(std::uint64_t end) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        return (state >> 33) % end;
    }
};

// A preemptor that is open on this thread, or the test says why not and is over.
struct Thread {
    Preemptor preemptor;
    Run run;
    bool ready = false;
    Thread() {
        std::string why;
        ready = preemptor.open(why);
        if (!ready) std::printf("no preemption here: %s\n", why.c_str());
        run.gate = &preemptor;
    }
};

// ---- registers ---------------------------------------------------------------------------------------------------------------------

struct Work {
    Isa isa;
    const Run* run;
    Churn state;
    std::uint64_t rounds;
};

void work(void* context) {
    auto& one = *static_cast<Work*>(context);
    const Preemptible preemptible(*one.run);
    churn(one.isa, one.state, one.rounds);
}

// Two of them in turn, each left thousands of times, and the thread itself churns in between.
void registers_survive(Thread& t, Isa isa) {
    constexpr std::uint64_t rounds = 200'000;
    constexpr std::uint64_t wanted = scaled(3000, 100);
    Churn start[2];
    Churn expected[2];
    for (std::uint64_t i = 0; i < 2; ++i) {
        start[i].fill(i + 7);
        expected[i] = start[i];
        churn(isa, expected[i], rounds);
    }
    Random random;
    std::uint64_t left = 0;
    std::uint64_t finished = 0;
    std::uint64_t wrong = 0;
    Fiber fibers[2];
    Work works[2];
    while (left < wanted) {
        for (std::size_t i = 0; i < 2; ++i) {
            if (fibers[i].done()) {
                works[i] = {isa, &t.run, start[i], rounds};
                fibers[i].prepare(work, &works[i]);
            }
            t.preemptor.arm(3'000 + random.below(60'000));
            if (t.preemptor.go(fibers[i])) {
                ++finished;
                if (!(works[i].state == expected[i])) ++wrong;
            } else {
                ++left;
            }
            Churn mine;
            mine.fill(left);
            churn(isa, mine, 3);
        }
    }
    t.preemptor.disarm();
    CHECK_EQ(wrong, 0);
    std::printf("isa %d: left %llu times, %llu runs finished, all as without\n", static_cast<int>(isa), static_cast<unsigned long long>(left),
                static_cast<unsigned long long>(finished));
    // A short of the time that is left: the two that are in the middle still come to their right end.
    for (std::size_t i = 0; i < 2; ++i) {
        if (fibers[i].done()) continue;
        CHECK(t.preemptor.go(fibers[i]));
        CHECK(works[i].state == expected[i]);
    }
}

// ---- slices ------------------------------------------------------------------------------------------------------------------------

struct Spin {
    const Run* run;
    std::atomic<bool>* stop;
    std::uint64_t turns = 0;
};

void spin(void* context) {
    auto& one = *static_cast<Spin*>(context);
    const Preemptible preemptible(*one.run);
    while (!one.stop->load(std::memory_order_relaxed)) {
        cpu_relax();
        __atomic_store_n(&one.turns, one.turns + 1, __ATOMIC_RELAXED);
    }
}

void a_slice_of_20_us(Thread& t) {
    std::atomic<bool> stop{false};
    Spin one{&t.run, &stop};
    Fiber fiber;
    fiber.prepare(spin, &one);
    std::vector<std::uint64_t> took;
    for (int i = 0; i < scaled(2000, 50); ++i) {
        const std::uint64_t start = ticks();
        t.preemptor.arm(20'000);
        CHECK(!t.preemptor.go(fiber));
        took.push_back(static_cast<std::uint64_t>(ticks_to_ns(ticks() - start)));
    }
    CHECK(*std::min_element(took.begin(), took.end()) >= 18'000);  // a sixteenth early at most, and two clocks
    std::sort(took.begin(), took.end());
    std::printf("slices of 20 us: p50 %.1f us, p99 %.1f us\n", static_cast<double>(took[took.size() / 2]) / 1000,
                static_cast<double>(took[took.size() * 99 / 100]) / 1000);
    stop = true;
    CHECK(t.preemptor.go(fiber));
}

// Many that end within their slice: a timer goes off at most once for each slice's time, not once for each of them.
void short_ones_pay_nothing(Thread& t) {
    Fiber fiber;
    int ran = 0;
    const std::uint64_t signals = t.preemptor.signals();
    const std::uint64_t start = now_ns();
    for (int i = 0; i < 200'000; ++i) {
        fiber.prepare([](void* context) { ++*static_cast<int*>(context); }, &ran);
        t.preemptor.arm(100'000);
        CHECK(t.preemptor.go(fiber));
    }
    const std::uint64_t passed = now_ns() - start;
    CHECK_EQ(ran, 200'000);
    CHECK(t.preemptor.signals() - signals <= passed / 100'000 + 1);
    std::printf("on a fiber, with a slice: %.1f ns a run\n", static_cast<double>(passed) / 200'000);
    t.preemptor.disarm();
}

// A slice that nobody else wants the thread for goes on.
void not_wanted_not_left(Thread& t) {
    std::atomic<bool> stop{false};
    Spin one{&t.run, &stop};
    struct Asked {
        int times = 0;
        std::atomic<bool>* stop;
    } asked{0, &stop};
    t.preemptor.wanted_context = &asked;
    t.preemptor.wanted = [](void* context) {
        auto& a = *static_cast<Asked*>(context);
        if (++a.times == 5) *a.stop = true;
        return false;
    };
    Fiber fiber;
    fiber.prepare(spin, &one);
    const std::uint64_t start = now_ns();
    t.preemptor.arm(20'000);
    CHECK(t.preemptor.go(fiber));
    // Once a slice, which ends a sixteenth early at most; five, and more where the machine holds us up between the fifth and the end.
    CHECK(asked.times >= 5);
    CHECK(static_cast<std::uint64_t>(asked.times) <= (now_ns() - start) / 18'000 + 1);
    t.preemptor.wanted = nullptr;
    t.preemptor.disarm();
}

// What comes while the gate is shut is found when it opens.
void a_shut_gate_is_not_left(Thread& t) {
    struct Parts {
        const Run* run;
        std::uint64_t shut_until = 0;
        bool was_left = false;
        int parts = 0;
    } parts{&t.run};
    Fiber fiber;
    fiber.prepare([](void* context) {
        auto& p = *static_cast<Parts*>(context);
        const std::uint64_t start = now_ns();
        while (now_ns() - start < 300'000) cpu_relax();  // its slice is long over
        p.parts = 1;
        {
            const Preemptible preemptible(*p.run);
            p.parts = 2;
        }
        p.parts = 3;
    }, &parts);
    t.preemptor.arm(20'000);
    CHECK(!t.preemptor.go(fiber));
    CHECK_EQ(parts.parts, 1);
    CHECK(t.preemptor.go(fiber));  // no slice any more
    CHECK_EQ(parts.parts, 3);
}

// ---- asks --------------------------------------------------------------------------------------------------------------------------

void until_moved(const Spin& one, std::uint64_t seen) {
    while (__atomic_load_n(&one.turns, __ATOMIC_RELAXED) == seen) relax();
}

void asked_by_name(Thread& t) {
    int ends[2];
    CHECK(::pipe(ends) == 0);
    std::string why;
    CHECK(t.preemptor.listen(2, ends[0], why));
    std::atomic<std::uint64_t> word{0};
    t.preemptor.watch(2, &word);
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> asked_at{0};
    std::atomic<int> rounds{0};
    std::atomic<bool> over{false};
    Spin one{&t.run, &stop};
    const std::uint64_t vain = t.preemptor.in_vain();
    std::vector<std::uint64_t> took;
    std::vector<std::uint64_t> cost;
    std::thread agent([&] {
        for (int round = 0; !over; ) {
            if (rounds.load() == round) {
                relax();
                continue;
            }
            round = rounds.load();
            const auto generation = static_cast<std::uint32_t>(round);
            word = Preemptor::name_of(7, generation + 1);  // what does not run
            CHECK_EQ(::write(ends[1], "x", 1), 1);
            const std::uint64_t seen = __atomic_load_n(&one.turns, __ATOMIC_RELAXED);
            until_moved(one, seen);
            word = Preemptor::name_of(7, generation);
            const std::uint64_t start = ticks();
            asked_at = start;
            CHECK_EQ(::write(ends[1], "x", 1), 1);
            cost.push_back(static_cast<std::uint64_t>(ticks_to_ns(ticks() - start)));
        }
    });
    Fiber fiber;
    fiber.prepare(spin, &one);
    const int count = scaled(500, 20);
    for (int i = 1; i <= count; ++i) {
        t.preemptor.name(Preemptor::name_of(7, static_cast<std::uint32_t>(i)));
        t.preemptor.arm(0);
        rounds = i;
        CHECK(!t.preemptor.go(fiber));
        took.push_back(static_cast<std::uint64_t>(ticks_to_ns(ticks() - asked_at)));
        CHECK(t.preemptor.was_asked());
        CHECK_EQ(word.load(), 0);  // taken down, so it was not for the wrong name
    }
    over = true;
    agent.join();
    CHECK(t.preemptor.in_vain() > vain);
    std::sort(took.begin(), took.end());
    std::sort(cost.begin(), cost.end());
    std::printf("asked: the kernel was left after p50 %.1f us, p99 %.1f us; asking took p50 %.1f us\n", static_cast<double>(took[took.size() / 2]) / 1000,
                static_cast<double>(took[took.size() * 99 / 100]) / 1000, static_cast<double>(cost[cost.size() / 2]) / 1000);
    stop = true;
    t.preemptor.name(0);
    CHECK(t.preemptor.go(fiber));
    ::close(ends[1]);
    t.preemptor.forget(2);
}

// What has left for an ask, or was asked for while another one ran, can be asked for again when it goes on.
void asked_again(Thread& t) {
    std::atomic<std::uint64_t> word{0};
    t.preemptor.watch(1, &word);
    const std::uint64_t one = Preemptor::name_of(3, 1), other = Preemptor::name_of(4, 1);
    const std::uint64_t vain = t.preemptor.in_vain();
    for (int turn = 0; turn < 3; ++turn) {
        t.preemptor.name(one);
        t.preemptor.arm(0, false);
        CHECK(!t.preemptor.request_pending());
        word = one;
        CHECK(t.preemptor.request_pending());
        CHECK(t.preemptor.was_asked());
        t.preemptor.name(other);
        word = one;  // too late
        CHECK(!t.preemptor.request_pending());
        CHECK(!t.preemptor.request_pending());
        CHECK_EQ(t.preemptor.in_vain(), vain + static_cast<std::uint64_t>(turn) + 1);
        word = 0;
    }
    t.preemptor.forget(1);
}

// One that rings without end and names nothing that runs is no longer heard.
void a_flood_ends(Thread& t) {
    int ends[2];
    CHECK(::pipe(ends) == 0);
    std::string why;
    CHECK(t.preemptor.listen(0, ends[0], why));
    std::atomic<std::uint64_t> word{Preemptor::name_of(1, 1)};
    t.preemptor.watch(0, &word);
    std::atomic<bool> stop{false};
    Spin one{&t.run, &stop};
    const std::uint64_t before = t.preemptor.signals();
    std::thread agent([&] {
        for (int i = 0; i < 20'000; ++i) CHECK(::write(ends[1], "x", 1) == 1 || errno == EAGAIN);
        stop = true;
    });
    ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
    Fiber fiber;
    fiber.prepare(spin, &one);
    t.preemptor.name(Preemptor::name_of(7, 7));
    CHECK(t.preemptor.go(fiber));
    agent.join();
    CHECK(t.preemptor.signals() - before <= 5000);
    CHECK(t.preemptor.signals() > before);
    ::close(ends[1]);
    t.preemptor.forget(0);
}

// ---- other signals -----------------------------------------------------------------------------------------------------------------

std::atomic<int> in_handler{0};
std::atomic<int> handled{0};

void busy_handler(int) {
    in_handler = 1;
    const std::uint64_t start = now_ns();
    while (now_ns() - start < 100'000) cpu_relax();
    handled.fetch_add(1);
    in_handler = 0;
}

// A kernel whose thread is in a handler of somebody else's is not left from there: that handler's signal would stay blocked.
void other_handlers_end_first(Thread& t) {
    struct sigaction action {};
    action.sa_handler = busy_handler;
    ::sigaction(SIGUSR1, &action, nullptr);
    const pthread_t self = pthread_self();
    std::atomic<bool> stop{false};
    std::atomic<bool> over{false};
    std::thread other([&] {
        while (!over) {
            const int before = handled.load();
            ::pthread_kill(self, SIGUSR1);
            while (handled.load() == before && !over) relax();
        }
    });
    Spin one{&t.run, &stop};
    Fiber fiber;
    fiber.prepare(spin, &one);
    int inside = 0;
    for (int i = 0; i < scaled(300, 20) || handled == 0; ++i) {
        t.preemptor.arm(20'000);
        CHECK(!t.preemptor.go(fiber));
        inside += in_handler.load();
        sigset_t blocked;
        ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
        CHECK(::sigismember(&blocked, SIGUSR1) == 0);
    }
    CHECK_EQ(inside, 0);
    over = true;
    stop = true;
    t.preemptor.arm(0);
    while (!t.preemptor.go(fiber)) {}
    other.join();
    ::signal(SIGUSR1, SIG_DFL);
    t.preemptor.disarm();
}

// A handler that was there is left in place, and preemption is refused.
void a_foreign_handler_is_respected() {
    struct sigaction ours {};
    struct sigaction theirs {};
    theirs.sa_handler = [](int) {};
    ::sigaction(SIGURG, &theirs, &ours);
    Preemptor one;
    std::string why;
    CHECK(!one.open(why));
    CHECK(!why.empty());
    struct sigaction now {};
    ::sigaction(SIGURG, nullptr, &now);
    CHECK(now.sa_handler == theirs.sa_handler);
    ::sigaction(SIGURG, &ours, nullptr);
}

// Several threads of a process, each with its own.
void threads_do_not_mix() {
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int n = 0; n < 3; ++n)
        threads.emplace_back([&, n] {
            auto t = std::make_unique<Thread>();
            std::atomic<bool> stop{false};
            Spin one{&t->run, &stop};
            Fiber fiber;
            fiber.prepare(spin, &one);
            for (int i = 0; i < 200; ++i) {
                t->preemptor.arm(20'000 + static_cast<std::uint64_t>(n) * 5'000);
                if (t->preemptor.go(fiber)) ++wrong;
            }
            stop = true;
            t->preemptor.arm(0);
            if (!t->preemptor.go(fiber)) ++wrong;
        });
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(wrong, 0);
}

}  // namespace

int main() {
    Thread t;
    if (!t.ready) return 0;
    const Isa widest = widest_isa(cpu_features());
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512})
        if (isa <= widest) registers_survive(t, isa);
    a_slice_of_20_us(t);
    short_ones_pay_nothing(t);
    not_wanted_not_left(t);
    a_shut_gate_is_not_left(t);
    asked_by_name(t);
    asked_again(t);
    a_flood_ends(t);
    other_handlers_end_first(t);
    a_foreign_handler_is_respected();
    threads_do_not_mix();
    return teal::check::summary();
}
