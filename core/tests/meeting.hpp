// Where threads and processes of a test meet, and how they wait there: yielding, because there may be fewer free cores than
// threads.
#pragma once

#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "queue/wait.hpp"

namespace teal::tests {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool slow_build = true;  // every access is checked: an order of magnitude slower
#else
inline constexpr bool slow_build = false;
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool slow_fork = true;  // the shadow memory is copied too
#else
inline constexpr bool slow_fork = false;
#endif

// How often to repeat something: as often as stated, less often under the thread sanitizer.
template <class T>
constexpr T scaled(T rounds, T slow_rounds) noexcept { return slow_build ? slow_rounds : rounds; }

inline void relax() noexcept {
    thread_local std::uint32_t turns = 0;
    if (++turns % 64 == 0) ::sched_yield();
    else cpu_relax();
}

// Zeroed memory that a forked child shares.
template <class T>
T* shared_memory(std::size_t bytes = sizeof(T)) {
    return static_cast<T*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
}

// A barrier for a fixed number of threads, used any number of times.
class Meeting {
public:
    explicit Meeting(std::uint32_t count) : count_(count) {}
    void wait() noexcept {
        const std::uint32_t round = round_.load(std::memory_order_acquire);
        // SYNC: acq_rel and release pair with the acquire loads of round_: what anyone wrote before, everyone sees after.
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
            arrived_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_release);
            return;
        }
        while (round_.load(std::memory_order_acquire) == round) relax();
    }

private:
    std::uint32_t count_;
    alignas(64) std::atomic<std::uint32_t> arrived_{0};
    alignas(64) std::atomic<std::uint32_t> round_{0};
};

}  // namespace teal::tests
