// What boxes cost: a call, a switch of input buffers, a session's opening, a judged run beside a process of the operating system.
//
// Theory of operation. Each function takes what it measures ready-made, and returns one number a try, in nanoseconds, in the order in which they were
// taken. Rivals are measured in turn with ours, one try each, so that a slow moment of the machine meets both.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "box/caller.hpp"
#include "box/judge.hpp"
#include "box/yard.hpp"

namespace teal::box {

// Calls with `bytes` of arguments, one after the other; the first byte of the output is read each time. `pause_ns` between two.
// Throws internal_error when a call is not answered.
std::vector<std::uint32_t> time_calls(Caller& caller, const void* args, std::uint64_t bytes, std::uint32_t tries, std::uint64_t pause_ns = 0);

// One line of memory to another CPU and one back: what no call through memory can be faster than. CPUs as for sched_setaffinity; -1: wherever.
std::vector<std::uint32_t> time_echo(std::int32_t here, std::int32_t there, std::uint32_t tries);

// Makes `first` and `second` (mapped before) the input buffer in turn.
std::vector<std::uint32_t> time_switches(Session& session, std::uint64_t first, std::uint64_t second, std::uint32_t tries);

// open() until the program serves, then closed again. `pause_ns` before each: spares have the time to be made, or not.
std::vector<std::uint32_t> time_opens(Yard& yard, const SessionOrder& order, std::uint32_t tries, std::uint64_t pause_ns);

struct RunCosts {
    std::vector<std::uint32_t> judged, spawned;     // judge(); vfork + execve + waitpid of the file
    std::vector<std::uint32_t> judged_time;         // what the record says that the program took
};
// Throws internal_error when a run did not finish, not_found when the file cannot be executed.
RunCosts time_runs(Yard& yard, const RunOrder& order, const std::string& file, std::uint32_t tries, std::uint64_t pause_ns);

// So many one after the other, and all that they cost: until the last box is gone and the next spare is there, as it was before. ns of all together.
struct SeriesCosts {
    std::uint64_t judged = 0, spawned = 0;
    std::vector<std::uint32_t> judged_time;         // what each record says that the program took
};
// Throws as time_runs() does, and deadline_exceeded when boxes do not end.
SeriesCosts time_series(Yard& yard, const RunOrder& order, const std::string& file, std::uint32_t tries);

}  // namespace teal::box
