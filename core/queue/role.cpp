#include "queue/role.hpp"

#include <cerrno>
#include <ctime>
#include <linux/futex.h>

#include "base/error.hpp"

namespace teal {

void Role::init() {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    const int result = pthread_mutex_init(&mutex_, &attributes);
    pthread_mutexattr_destroy(&attributes);
    if (result != 0) throw Error(Code::internal_error, system_message("pthread_mutex_init", result));
}

Role::Taken Role::taken(int result) noexcept {
    if (result == 0) return Taken::yes;
    return result == EOWNERDEAD ? Taken::after_death : Taken::no;
}

Role::Taken Role::try_lock() noexcept { return taken(pthread_mutex_trylock(&mutex_)); }

Role::Taken Role::lock_until(std::uint64_t until_ns) noexcept {
#if defined(__SANITIZE_THREAD__)
    // gcc 12's thread sanitizer does not know pthread_mutex_clocklock(), and would take every holder for an intruder.
    for (;;) {
        if (const Taken got = try_lock(); got != Taken::no) return got;
        timespec now{};
        ::clock_gettime(CLOCK_MONOTONIC, &now);
        if (static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec) >= until_ns) return Taken::no;
        const timespec nap{0, 20'000};
        ::nanosleep(&nap, nullptr);
    }
#endif
    timespec until{};
    until.tv_sec = static_cast<time_t>(until_ns / 1'000'000'000);
    until.tv_nsec = static_cast<long>(until_ns % 1'000'000'000);
    return taken(pthread_mutex_clocklock(&mutex_, CLOCK_MONOTONIC, &until));
}

std::uint32_t Role::holder() const noexcept {
#if defined(__GLIBC__)
    // A robust mutex's word is the kernel's to clean up, so its layout is the kernel's: linux/futex.h.
    return static_cast<std::uint32_t>(__atomic_load_n(&mutex_.__data.__lock, __ATOMIC_RELAXED)) & FUTEX_TID_MASK;
#else
    return 0;
#endif
}

void Role::repaired() noexcept { pthread_mutex_consistent(&mutex_); }

}  // namespace teal
