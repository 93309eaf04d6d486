#include "queue/wait.hpp"

#include <cerrno>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

namespace teal {
namespace {

timespec to_timespec(std::uint64_t ns) noexcept {
    timespec time{};
    time.tv_sec = static_cast<time_t>(ns / 1'000'000'000);
    time.tv_nsec = static_cast<long>(ns % 1'000'000'000);
    return time;
}

struct KernelWaiter {  // struct futex_waitv of linux/futex.h, which older headers lack
    std::uint64_t val;
    std::uint64_t uaddr;
    std::uint32_t flags;
    std::uint32_t reserved;
};
static_assert(sizeof(KernelWaiter) == 24);

}  // namespace

void give_way() noexcept { ::sched_yield(); }

void futex_wait(const std::atomic<std::uint32_t>* word, std::uint32_t expected, std::uint64_t until_ns) noexcept {
    const timespec until = to_timespec(until_ns);
    // WAIT_BITSET takes an absolute CLOCK_MONOTONIC time: a wall-clock jump cannot stretch the nap.
    if (::syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, &until, nullptr, FUTEX_BITSET_MATCH_ANY) == 0 || errno != EFAULT) return;
    const timespec nap{0, 50'000};  // memory that nobody can sleep on: a BPF map's
    ::nanosleep(&nap, nullptr);
}

void futex_wake(std::atomic<std::uint32_t>* word, int count) noexcept {
    ::syscall(SYS_futex, word, FUTEX_WAKE, count, nullptr, nullptr, 0);
}

bool futex_wait_any(const FutexWaiter* waiters, unsigned count, std::uint64_t until_ns) noexcept {
    KernelWaiter kernel[max_futex_waiters];
    if (count > max_futex_waiters) return false;
    for (unsigned i = 0; i < count; ++i)
        kernel[i] = {waiters[i].expected, reinterpret_cast<std::uint64_t>(waiters[i].word), 2 /* 32-bit, shared */, 0};
    const timespec until = to_timespec(until_ns);
    const long result = ::syscall(SYS_futex_waitv, kernel, count, 0, &until, CLOCK_MONOTONIC);
    return result >= 0 || (errno != ENOSYS && errno != EINVAL && errno != EPERM);
}

}  // namespace teal
