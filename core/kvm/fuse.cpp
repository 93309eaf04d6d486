#include "kvm/fuse.hpp"

#if defined(__x86_64__)

#include <cerrno>
#include <csignal>

#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.hpp"

// Older C libraries have no name for it.
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace teal::kvm {
namespace {

int fuse_signal() noexcept { return SIGRTMIN + 5; }

void on_fuse(int, siginfo_t* info, void*) noexcept {
    if (info->si_code == SI_TIMER) {
        static_cast<Core*>(info->si_value.sival_ptr)->stop();
    }
}

void take_signal() noexcept {
    static const bool taken = [] {
        struct sigaction action {};
        action.sa_sigaction = on_fuse;
        action.sa_flags = SA_SIGINFO;   // no SA_RESTART: KVM_RUN ends with EINTR
        return ::sigaction(fuse_signal(), &action, nullptr) == 0;
    }();
    static_cast<void>(taken);
}

std::uint64_t read_clock(clockid_t clock) noexcept {
    timespec time{};
    ::clock_gettime(clock, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(time.tv_nsec);
}

}  // namespace

std::uint64_t wall_ns() noexcept { return read_clock(CLOCK_MONOTONIC); }
std::uint64_t thread_cpu_ns() noexcept { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

Fuse::Fuse(Core& core, std::uint64_t cpu, std::uint64_t wall, std::uint64_t wait)
    : cpu_ns_(cpu), wall_ns_(wall), wait_ns_(wait), cpu_began_(thread_cpu_ns()), wall_began_(kvm::wall_ns()) {
    take_signal();
    for (const clockid_t clock : {CLOCK_THREAD_CPUTIME_ID, CLOCK_MONOTONIC}) {
        sigevent event{};
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_signo = fuse_signal();
        event.sigev_value.sival_ptr = &core;
        event.sigev_notify_thread_id = static_cast<pid_t>(::syscall(SYS_gettid));
        const std::uint64_t ns = clock == CLOCK_MONOTONIC ? wall : cpu;
        itimerspec when{};
        when.it_value = {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
        when.it_interval = {0, 10'000'000};   // again, should the first have come between two looks
        if (::timer_create(clock, &event, &timers_[made_]) != 0) {
            const int error = errno;
            for (unsigned i = 0; i < made_; ++i) ::timer_delete(timers_[i]);
            throw Error(Code::quota_exceeded, system_message("timer_create", error));
        }
        made_ += 1;
        ::timer_settime(timers_[made_ - 1], 0, &when, nullptr);
    }
}

Fuse::~Fuse() {
    for (unsigned i = 0; i < made_; ++i) {
        ::timer_delete(timers_[i]);
    }
}

}  // namespace teal::kvm

#endif
