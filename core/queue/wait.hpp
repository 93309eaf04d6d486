// Waiting: spin, then futex. The one implementation in Teal.
//
// Theory of operation: spinning costs a core, sleeping costs a wake-up (6–40 µs). How long to spin is a
// budget in nanoseconds that learns from what waiting has brought: it grows up to the ceiling while
// events come within the ceiling, and halves down to zero while they do not, so an idle process
// does not burn its core and a busy one never sleeps. Sleeping is always bounded: the caller looks at
// the world (peer alive? deadline?) between two naps.
#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>
#include <utility>

#include "cpu/clock.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace teal {

inline void cpu_relax() noexcept {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

class SpinBudget {
public:
    explicit SpinBudget(std::uint64_t ceiling_ns = 200'000) noexcept : ceiling_(ceiling_ns), budget_(ceiling_ns) {}

    [[nodiscard]] std::uint64_t budget_ns() const noexcept { return budget_.load(std::memory_order_relaxed); }
    [[nodiscard]] std::uint64_t ceiling_ns() const noexcept { return ceiling_.load(std::memory_order_relaxed); }
    void set_ceiling(std::uint64_t ns) noexcept {
        ceiling_.store(ns, std::memory_order_relaxed);
        const std::uint64_t budget = budget_ns();
        if (budget > ns || budget == 0) budget_.store(ns, std::memory_order_relaxed);
    }
    // The wait ended after `waited_ns`, whether spinning or asleep.
    void learn(std::uint64_t waited_ns) noexcept {
        const std::uint64_t ceiling = ceiling_ns();
        const std::uint64_t budget = budget_ns();
        if (waited_ns > ceiling) {
            budget_.store(budget < 1000 ? 0 : budget / 2, std::memory_order_relaxed);
            return;
        }
        // Spinning this long would have paid: make room for it, and for as much again.
        const std::uint64_t wanted = waited_ns * 2 + 1000;
        if (wanted > budget) budget_.store(wanted < ceiling ? wanted : ceiling, std::memory_order_relaxed);
    }

private:
    // Relaxed: several threads may wait on one session; a lesson lost between two of them is no loss.
    std::atomic<std::uint64_t> ceiling_;
    std::atomic<std::uint64_t> budget_;
};

// Lets another runnable thread of this core go first; a third of a microsecond when there is none.
void give_way() noexcept;

// Polls `ready` for up to `ns`; true as soon as it holds. Looks at the clock only every 16th time. After 5 µs it also
// gives way now and then while `in_the_way` says so: whoever we wait for may be waiting for this very core. Where nobody is, giving way to
// a busy stranger costs a whole time slice.
template <class Ready, class InTheWay>
bool spin_for(std::uint64_t ns, Ready&& ready, InTheWay&& in_the_way) noexcept {
    if (ready()) return true;
    if (ns == 0) return false;
    const std::uint64_t start = ticks();
    const std::uint64_t limit = ns_to_ticks(ns);
    const std::uint64_t polite = ns_to_ticks(5'000);
    for (unsigned round = 0;; ++round) {
        for (int i = 0; i < 16; ++i) {
            if (ready()) return true;
            cpu_relax();
        }
        const std::uint64_t passed = ticks() - start;
        if (passed > limit) return ready();
        if (passed > polite && (round & 3) == 0 && in_the_way()) give_way();
    }
}

// The same when nobody knows where the other side is.
template <class Ready>
bool spin_for(std::uint64_t ns, Ready&& ready) noexcept {
    return spin_for(ns, std::forward<Ready>(ready), [] { return true; });
}

// Sleeps until woken, `*word != expected`, or CLOCK_MONOTONIC `until_ns`. Spurious returns are allowed.
void futex_wait(const std::atomic<std::uint32_t>* word, std::uint32_t expected, std::uint64_t until_ns) noexcept;
void futex_wake(std::atomic<std::uint32_t>* word, int count) noexcept;

struct FutexWaiter {
    const std::atomic<std::uint32_t>* word;
    std::uint32_t expected;
};
inline constexpr unsigned max_futex_waiters = 128;  // what futex_waitv(2) takes
// Sleeps until any of the words is woken or differs, or `until_ns`. False where the kernel lacks
// futex_waitv: the caller then naps on one word with a short bound.
bool futex_wait_any(const FutexWaiter* waiters, unsigned count, std::uint64_t until_ns) noexcept;

// The half of a 64-bit word that changes with every transition (queue/request.hpp).
inline std::atomic<std::uint32_t>* low_word(std::atomic<std::uint64_t>* word) noexcept {
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
    return reinterpret_cast<std::atomic<std::uint32_t>*>(word);
}

}  // namespace teal
