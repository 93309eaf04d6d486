// Plays any sequence of events to a policy and writes down what it decides: for property tests, and to see that two policies are the same.
//
// Theory of operation. Each word of the script is one event, its bits choose the rest; whatever does not fit the state of things is left out,
// so every script is a possible history. After each the books are looked at: what is offered may run, there, and was not offered already;
// a policy that is work conserving offers something whenever there is something; in the end everything that waits is offered.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "agents/policy.hpp"

namespace teal {

struct Played {
    std::vector<std::uint64_t> decisions;  // per pick: record + 1 (0: nothing), slice; per preempt asked: 0 or 1
    std::string violation;                 // the first; empty: none
};

Played play(Policy& policy, std::span<const std::uint32_t> script, std::uint32_t workers);

}  // namespace teal
