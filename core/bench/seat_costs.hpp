// What the pieces of a seat cost, between two cores that have nothing else to do.
//
// Theory of operation: a host's side on one core and an agent's on another, as worker and agent are, on the real regions; no pool, no kernel.
// Times are taken with a fenced clock (loads and stores before it are done, those after it have not begun), whose own cost is measured the
// same way and returned beside them: a caller takes it off. Each sample is one operation, never a share of several.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "agents/policy.hpp"

namespace teal {

struct BenchCores {
    int host = 0;
    int agent = 1;
};

// Nanoseconds, one for each try.
struct SeatCosts {
    std::vector<std::uint32_t> clock;       // two readings with nothing between them
    std::vector<std::uint32_t> line;        // the hardware's share of a cold pick: one exchange on a line that the other core has just written
    std::vector<std::uint32_t> cold;        // claim() of a decision that the other core has just written
    std::vector<std::uint32_t> prefetched;  // … after prefetch(), a microsecond earlier
    std::vector<std::uint32_t> commit;      // what follows a claim: outcome and status words
    std::vector<std::uint32_t> messages;    // a done and a runnable with their words, made visible: two messages
    std::vector<std::uint32_t> roundtrip;   // nothing staged: from telling that a request may run until its decision is claimed
};

// n: 1 to 10^6 tries of each. Throws invalid_argument for that, and for a core that may not be used; peer_died when nothing comes for 10 s.
SeatCosts measure_seat(std::uint32_t n, BenchCores cores);

struct EventRate {
    std::uint64_t events = 0;               // messages that the policy was told of
    std::uint64_t decisions = 0;
    double seconds = 0;
};
// Requests that end as soon as they are decided on, as fast as host and agent can: 64 workers, 1024 requests out. The caller's thread is
// the agent's.
EventRate measure_events(std::shared_ptr<Policy> policy, double seconds, BenchCores cores);

}  // namespace teal
