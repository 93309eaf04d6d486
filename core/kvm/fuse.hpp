// A bound on how long a core may run: CPU time of the thread, and time on the wall.
//
// Theory of operation. Two timers send this thread a signal; its handler tells the vcpu to leave the guest (immediate_exit), and KVM_RUN
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
    // For the calling thread, from now on. Throws quota_exceeded.
    Fuse(Core& core, std::uint64_t cpu_ns, std::uint64_t wall_ns);
    ~Fuse();
    Fuse(const Fuse&) = delete;
    Fuse& operator=(const Fuse&) = delete;

    [[nodiscard]] bool cpu_over() const noexcept { return thread_cpu_ns() - cpu_began_ >= cpu_ns_; }
    [[nodiscard]] bool wall_over() const noexcept { return kvm::wall_ns() - wall_began_ >= wall_ns_; }
    [[nodiscard]] std::uint64_t cpu_used() const noexcept { return thread_cpu_ns() - cpu_began_; }
    [[nodiscard]] std::uint64_t wall_used() const noexcept { return kvm::wall_ns() - wall_began_; }

private:
    std::uint64_t cpu_ns_, wall_ns_, cpu_began_, wall_began_;
    timer_t timers_[2]{};
    unsigned made_ = 0;
};

}  // namespace teal::kvm

#endif
