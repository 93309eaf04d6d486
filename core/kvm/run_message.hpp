// What the yard and a guest's process say to each other about a judged run, beside what all boxes are told.
//
// A process box is watched from outside; a guest's process watches its guest itself and says what it saw. It runs none of the program
// natively, so its word counts as far as the machine's own walls hold (docs/kvm.md). One process judges one run after the other.
#pragma once

#include <cstdint>

#include "box/message.hpp"

namespace teal::kvm {

// Yard → box; followed by steps and stack as in box::BecomeMessage, with the same descriptors.
struct RunMessage {
    box::BecomeMessage become;
    std::uint64_t time_limit_ns, wall_limit_ns;
    std::uint64_t memory_bytes, stack_bytes;
    std::uint64_t out_limit, err_limit;
    std::uint64_t report_address;
};

inline constexpr std::uint64_t most_reason = 256;

// Box → yard: box::RunRecord without its strings.
struct RunReply {
    std::uint32_t magic, version;
    std::uint32_t status;           // box::RunStatus
    std::int32_t return_code, signal;
    std::uint32_t trap_num;
    std::uint64_t trap_epc, trap_cr2;
    std::uint64_t clk_ref_tsc, time_ns, time_ns_ref_tsc, time_ns_real, time_tsc;
    double tsc_mhz;
    std::uint64_t memory_kb, memory_kb_accessed, stdout_size, stderr_size;
    std::uint64_t user_ns, system_ns, voluntary_switches, involuntary_switches, minor_faults, major_faults;
    std::uint32_t stdout_truncated, stderr_truncated, memory_exceeded, has_report;
    char reason[most_reason];
    std::byte report[4096];
};

}  // namespace teal::kvm
