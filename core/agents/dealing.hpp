// Which of a pool's agents a request is dealt to, and whose waiting requests one with idle workers takes over.
//
// Theory of operation: the choices only, from what each seat has to do; who makes them says what follows to the agents (core/host/dealing.cpp for a
// pool, core/sim for a simulated one, so that both choose alike). No seat here is preferred for its number: `next` goes round.
#pragma once

#include <cstdint>
#include <span>

namespace teal {

struct SeatLoad {
    bool takes = false;        // it gets a part of the requests
    bool decides = false;      // an agent sits there; else what is dealt to it lies in the pool's run queue
    std::uint32_t waits = 0;   // requests that wait for its agent's decision, or in the run queue
    std::uint32_t idle = 0;    // of its workers
};

inline constexpr std::uint32_t no_seat = UINT32_MAX;

// The one that has the least to do for each worker with nothing to do; no_seat: none takes any.
constexpr std::uint32_t seat_to_deal_to(std::span<const SeatLoad> seats, std::uint32_t next) noexcept {
    std::uint32_t best = no_seat;
    std::int64_t least = INT64_MAX;
    for (std::size_t k = 0; k < seats.size(); ++k) {
        const auto at = static_cast<std::uint32_t>((next + k) % seats.size());
        const std::int64_t surplus = std::int64_t{seats[at].waits} - seats[at].idle;
        if (!seats[at].takes || surplus >= least) continue;
        least = surplus;
        best = at;
    }
    return best;
}

// Whose request the agent of `mine` takes over, if it has idle workers and nothing that waits: of those that decide and whose workers are all
// busy the one where most wait. no_seat: nobody's.
constexpr std::uint32_t seat_to_take_from(std::span<const SeatLoad> seats, std::uint32_t mine) noexcept {
    if (!seats[mine].takes || !seats[mine].decides || seats[mine].waits > 0) return no_seat;
    std::uint32_t best = no_seat;
    for (std::uint32_t at = 0; at < seats.size(); ++at) {
        if (at == mine || !seats[at].takes || !seats[at].decides || seats[at].waits == 0 || seats[at].idle > 0) continue;
        if (best == no_seat || seats[at].waits > seats[best].waits) best = at;
    }
    return best;
}

}  // namespace teal
