// How still a core is: the gaps that the machine itself puts into a program that does nothing but read the clock.
//
// Theory of operation. A thread of our own, pinned to the core, reads ticks() back to back. Two reads are some 10-30 ns apart;
// whatever took longer was not us: an interrupt, another task, the hypervisor. No call can have better tails than this, so
// benchmarks print it beside theirs and `teal doctor` judges it.
#pragma once

#include <cstdint>

namespace teal {

struct Jitter {
    int core = -1;
    double milliseconds = 0.0;      // how long was measured, really
    std::uint64_t reads = 0;        // clock reads in that time
    std::uint64_t over_5us = 0;     // gaps longer than this; the three counts are cumulative: each includes the next
    std::uint64_t over_20us = 0;
    std::uint64_t over_100us = 0;
    double lost_ms = 0.0;           // sum of the gaps over 5 us
    double max_us = 0.0;            // the longest gap
};

// Spins on `core` for `milliseconds` (1 to 60,000) and leaves the affinity of the caller alone. Throws Error: invalid_argument
// for a core that this process may not use or a time out of range, internal_error when the system has no thread to give.
Jitter measure_jitter(int core, int milliseconds);

}  // namespace teal
