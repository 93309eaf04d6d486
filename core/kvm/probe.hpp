// What KVM of this machine can do for us: found out by running a guest, not by reading names.
//
// Theory of operation. A list of capabilities does not say whether a guest's ring 3 runs natively, what leaving it costs, or whether wide
// vectors work there: so probe() makes a guest with a program of a few instructions and looks. It is asked for once a process (about 2 ms);
// TEAL_KVM_DEVICE=none makes it say that there is no KVM, another path takes that device.
#pragma once

#include <cstdint>
#include <string>

namespace teal::kvm {

struct Probe {
    bool available = false;        // a program ran in a guest and ended as it should
    std::string reason;            // if not: one line that says why and what would change it
    int api_version = 0;
    bool ring3 = false;            // code of ring 3 ran
    bool native = false;           // at the speed of this machine, not interpreted
    bool syscall_in_ring3 = false; // the syscall instruction lands in ring 3 (paravirtual KVM): told by a page fault
    bool avx = false, avx512 = false;
    bool fsgsbase = false;         // wrfsbase works in the guest
    bool code32 = false;           // 32-bit code, with vectors, and int $0x80 work
    bool touched_bits = false;     // accessed and dirty bits of the guest's tables, again after a turn
    bool tsc_offset = false;       // a guest's time stamp counter can begin at 0
    bool dirty_log = false, dirty_ring = false, read_only_memory = false;
    std::uint64_t exit_ns = 0;     // leaving by a system call and coming back, median
    std::uint64_t create_ns = 0;   // a machine with one core, ready to run
    unsigned most_cores = 0;
};

// Runs the guests now.
Probe probe_now() noexcept;
// The first answer of this process.
const Probe& probe() noexcept;

// "KVM: API 12, ring 3 native, AVX-512, exit 31.0 us, …", or the reason why not.
std::string describe(const Probe& probe);

}  // namespace teal::kvm
