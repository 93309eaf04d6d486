// Judged runs of DuckInfo programs (version 40): the buffers that they get and the sizes that they leave.
#pragma once

#include "box/judge.hpp"
#include "box/yard.hpp"
#include "elf/place.hpp"

namespace teal::box {

// Memfds that are mapped as they are, without a copy; -1 where there are 0 bytes. Outputs are grown to their limits.
struct DuckInfoOrder {
    std::uint64_t time_limit_ns = 1'000'000'000, wall_limit_ns = 0;
    std::uint64_t memory_bytes = 256 << 20;     // the program's region, stack included
    int in = -1, out = -1, err = -1, ib = -1, ob = -1;
    std::uint64_t in_bytes = 0, out_limit = 0, err_limit = 0, ib_bytes = 0, ob_bytes = 0;
    std::uint64_t in_offset = 0, ib_offset = 0, ob_offset = 0;   // where they begin in their memfds; whole pages
    bool clear_ob = false;                      // zeros before the run; otherwise it keeps what it had
    std::int32_t pin = -1;
};

// The place holds a program that was read by the rules for DuckInfo. Never throws for what the program does, nor for an order that does not fit:
// the record says. Not for two runs at once with one output memfd.
RunRecord judge_duckinfo(Yard& yard, const elf::Place& place, const DuckInfoOrder& order);

}  // namespace teal::box
