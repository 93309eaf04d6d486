#include "queue/role.hpp"

#include <cerrno>
#include <ctime>

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
    timespec until{};
    until.tv_sec = static_cast<time_t>(until_ns / 1'000'000'000);
    until.tv_nsec = static_cast<long>(until_ns % 1'000'000'000);
    return taken(pthread_mutex_clocklock(&mutex_, CLOCK_MONOTONIC, &until));
}

void Role::repaired() noexcept { pthread_mutex_consistent(&mutex_); }

}  // namespace teal
