// A judged run: one program, once, from zero, with limits; and the record of what happened.
//
// Theory of operation. A fresh box, made ahead of need, is seized by the calling thread with ptrace, told what to run, and left alone until it ends
// or the fuse blows (time limit + 1 % + 10 ms, CPU time; a wall bound beside it). The kernel stops it once more on its way out: then its
// memory is still there to be counted. Nothing of the record is taken from the box's word. The field names are those of the reference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "box/box.hpp"

namespace teal::box {

enum class Abi : std::uint8_t { linux_static, duckinfo };

struct RunOrder {
    Image image;                    // its stack's bytes already say where stdin and the others are mapped (DuckInfo)
    Abi abi = Abi::linux_static;
    std::uint64_t time_limit_ns = 1'000'000'000;    // CPU time; 1 … 500 s
    std::uint64_t wall_limit_ns = 0;                // 0: twice the time limit + 1 s; without what the program waited for a CPU
    std::uint64_t memory_bytes = 256 << 20;
    std::uint64_t stack_bytes = 0;  // 0: as stack_of() says; of a DuckInfo program none, it is a part of its image
    int in = -1;                    // stdin: linux_static reads it as fd 0 (-1: empty)
    int out = -1, err = -1;         // memfds for fd 1 and 2 of linux_static (-1: thrown away)
    std::uint64_t out_limit = 64 << 20, err_limit = 1 << 20;
    // duckinfo: whole pages mapped at these addresses, in this order: stdin, stdout, stderr, IB, OB
    struct Buffer {
        int fd = -1;
        std::uint64_t address = 0, bytes = 0, offset = 0;
        bool writable = false;
        bool counted = true;        // in memory_kb_accessed
    };
    std::vector<Buffer> buffers;
    std::uint64_t report_address = 0;   // duckinfo: the page that is copied into RunRecord::report when the run is over; 0: none
    std::int32_t pin = -1;          // CPU to run on; -1: wherever
};

// How far a run's stack may grow. Programs that recurse deeply are bounded by their memory, as on the reference, and by nothing less.
[[nodiscard]] std::uint64_t stack_of(const RunOrder& order) noexcept;

// So much longer on the wall, at most, if it waits for a CPU meanwhile: less than clients wait for its record.
[[nodiscard]] constexpr std::uint64_t longest_wait_ns(const RunOrder& order) noexcept { return order.time_limit_ns / 2 + 20'000'000'000; }

enum class RunStatus : std::uint8_t { finished, time_limit, runtime_error, judge_failed };

struct RunRecord {
    RunStatus status = RunStatus::judge_failed;
    std::string reason;             // judge_failed: whose fault and what
    std::string clock;              // what `time_ns` was measured with
    std::string memory;             // and what memory_kb was
    std::uint64_t count_inst = 0;   // 0: no counter
    std::uint64_t clk_thread = 0, clk_ref_tsc = 0;
    double clock_mhz = 0, tsc_mhz = 0, ext_mhz = 0;
    std::uint64_t time_ns = 0;      // judged: CPU time
    std::uint64_t time_ns_ref_tsc = 0, time_ns_real = 0, time_tsc = 0;
    std::uint64_t memory_kb = 0;    // pages that it wrote; of buffers that both sides write, those that it touched
    std::uint64_t memory_kb_accessed = 0;   // pages that it touched, without stdin; at most 64 KiB more around each page of its file (fault-around)
    std::uint64_t stdout_size = 0, stderr_size = 0;
    std::int32_t return_code = 0;
    std::uint32_t trap_num = 0;     // 0–31 CPU exceptions, 32 timer, 253 abort, 254 invalid system call, 255 exit
    std::uint64_t trap_epc = 0, trap_cr2 = 0;
    // Beyond the reference
    std::int32_t signal = 0;        // 0: none
    std::vector<std::byte> report;  // the page at report_address
    bool stdout_truncated = false, stderr_truncated = false, memory_exceeded = false;
    std::uint64_t user_ns = 0, system_ns = 0;
    std::uint64_t voluntary_switches = 0, involuntary_switches = 0, minor_faults = 0, major_faults = 0;
};

const char* run_status_name(RunStatus status) noexcept;   // the reference's words

}  // namespace teal::box
