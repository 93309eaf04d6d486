// What an emulated link really takes on this machine, beside what it was asked to take.
//
// Theory of operation: each primitive is done n times and timed from outside, with the tick clock, as its user would see it. What concerns
// the other side too (one_way, kick) is timed on a second thread: from the stamp until that thread may see it. The cost of reading the clock
// twice is in all of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "link/link.hpp"

namespace teal {

struct LinkDelay {
    std::string name;                         // the figure's, or what was done
    std::uint64_t asked_ns = 0;
    std::vector<std::uint32_t> delivered_ns;  // n of them
};

// n: 1 to 10^6 of each; throws invalid_argument. The tricks of `spec` do not matter: each primitive is measured where it is used.
std::vector<LinkDelay> measure_link(const LinkSpec& spec, std::uint32_t n);

}  // namespace teal
