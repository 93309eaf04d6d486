// A bound on how long a core may run: CPU time of the thread, and time on the wall without what the thread waited for a CPU.
//
// Theory of operation. A judged program's thread runs, waits for a CPU, or sleeps in a call that is played for it (calls.cpp); the calls
// say how long that was. So what it ran and what it slept is what it took on the wall, whatever else this machine does; a second bound, on
// the wall itself, ends what waits for ever. Two timers send this thread a signal; its handler tells the vcpu to leave the guest (immediate_exit), and KVM_RUN
// ends with EINTR also if it was just about to start. Which bound it was is decided by the clocks, not by the signal.
#pragma once

#if defined(__x86_64__)

#include <cstdint>
#include <ctime>

#include "kvm/machine.hpp"

namespace teal::kvm {

std::uint64_t wall_ns() noexcept;
std::uint64_t thread_cpu_ns() noexcept;

class Fuse {
public:
    // For the calling thread, from now on; wait_ns: so much longer on the wall at most. Throws quota_exceeded.
    Fuse(Core& core, std::uint64_t cpu_ns, std::uint64_t wall_ns, std::uint64_t wait_ns);
    ~Fuse();
    Fuse(const Fuse&) = delete;
    Fuse& operator=(const Fuse&) = delete;

    [[nodiscard]] bool cpu_over() const noexcept { return thread_cpu_ns() - cpu_began_ >= cpu_ns_; }
    [[nodiscard]] bool wall_over() const noexcept { return cpu_used() + slept_ns_ >= wall_ns_ || wall_used() >= wall_ns_ + wait_ns_; }
    void slept(std::uint64_t ns) noexcept { slept_ns_ += ns; }
    [[nodiscard]] std::uint64_t cpu_used() const noexcept { return thread_cpu_ns() - cpu_began_; }
    [[nodiscard]] std::uint64_t wall_used() const noexcept { return kvm::wall_ns() - wall_began_; }

private:
    std::uint64_t cpu_ns_, wall_ns_, wait_ns_, cpu_began_, wall_began_, slept_ns_ = 0;
    timer_t timers_[2]{};
    unsigned made_ = 0;
};

}  // namespace teal::kvm

#endif
