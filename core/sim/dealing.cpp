// A pool that is dealt out to several agents: whose each request is, what they are told of it, and whether they are told right.
//
// Theory of operation: as core/host/dealing.cpp, by the same choices (agents/dealing.hpp), on the simulation's own books. What these say is the truth:
// each look of the sweeper compares every agent's words with it, so that a request which one agent still believes to be its own, or that the right
// one has not heard of, is found at once and not only when a decision comes of it.
#include <algorithm>
#include <array>

#include "sim/simulation.hpp"

namespace teal {

namespace {
constexpr std::uint32_t most_compared = 1024;  // records: in larger pools words are compared at the end only
constexpr std::uint64_t patient_sweeps = 3;
}  // namespace

// What has left a worker belongs to that worker's agent.
std::uint32_t Simulation::seat_of(const SimRequest& request) const {
    return request.state == SimRequest::State::queued && request.worker != no_object ? seat_of_worker(request.worker) : request.seat;
}

void Simulation::load_of_seats(std::span<SeatLoad> loads) const {
    std::uint32_t free = 0;  // wait for no agent
    for (std::uint32_t seat = 0; seat < seats(); ++seat)
        if (!active(seat)) free += seats_[seat].queued;
    for (std::uint32_t seat = 0; seat < seats(); ++seat) loads[seat] = {true, active(seat), active(seat) ? seats_[seat].queued : free, seats_[seat].idle};
}

// New, or anew after its worker died: the agent that had it before has to hear that it is another one's.
void Simulation::deal(std::uint32_t record) {
    if (seats() == 1) return;
    SimRequest& request = requests_[record];
    std::array<SeatLoad, most_sim_agents> loads{};
    load_of_seats(std::span(loads).first(seats()));
    const std::uint32_t before = request.seat, to = seat_to_deal_to(std::span(loads).first(seats()), next_dealt_);
    next_dealt_ = (to + 1) % seats();
    request.seat = to;
    if (request.state == SimRequest::State::none || before == to || !active(before) || spec_.bug == SimBug::forgotten) return;
    host(before).ended(record, false, false);
    tell(before);
}

// It leaves a worker, whose agent it belongs to from now on.
void Simulation::deal_back(std::uint32_t record, std::uint32_t worker) {
    SimRequest& request = requests_[record];
    const std::uint32_t before = request.seat, now = seat_of_worker(worker);
    if (before == now) return;
    request.seat = now;
    if (active(before) && spec_.bug != SimBug::unended) {
        host(before).ended(record, false, false);
        tell(before);
    }
    if (active(now)) host(now).lose();
}

// For the agent of a seat with idle workers: what waits longest at another one. False: nothing does.
bool Simulation::take_over(std::uint32_t seat) {
    std::array<SeatLoad, most_sim_agents> loads{};
    load_of_seats(std::span(loads).first(seats()));
    const std::uint32_t from = seat_to_take_from(std::span(loads).first(seats()), seat);
    if (from == no_seat) return false;
    std::uint32_t best = no_object;
    for (const std::uint32_t record : out_) {
        const SimRequest& request = requests_[record];
        if (request.state != SimRequest::State::queued || request.worker != no_object || request.seat != from) continue;
        if (best == no_object || request.id < requests_[best].id) best = record;
    }
    if (best == no_object) return false;
    ++result_.taken_over;
    if (spec_.bug != SimBug::both) host(from).ended(best, false, false);
    unqueue(best);
    requests_[best].seat = seat;
    queue(best);
    if (spec_.bug != SimBug::neither) host(seat).ready(facts(best));
    tell(from);
    tell(seat);
    return true;
}

void Simulation::take_over_for_idle() {
    for (std::uint32_t seat = 0; seat < seats(); ++seat)
        if (active(seat) && seats_[seat].queued == 0 && seats_[seat].idle > 0) take_over(seat);
}

// Do an agent's words say what its part of the books says?
void Simulation::check_words(std::uint32_t seat) {
    if (requests_.size() > most_compared && coming_) return;
    for (std::uint32_t i = 0; i < requests_.size() && !broken_; ++i) {
        const SimRequest& request = requests_[i];
        const bool ours = request.state != SimRequest::State::none && seat_of(request) == seat;
        RequestWord word{};
        host(seat).map().request_word(i).copy_own(word);
        const bool there = (word.flags & request_in_use) != 0;
        const std::string which = "agent " + std::to_string(seat) + ", request " + std::to_string(i) + ": ";
        if (there && !ours) complain(which + (request.state == SimRequest::State::none ? "it has ended" : "it is agent " + std::to_string(seat_of(request)) + "'s") + ", and its word does not say so");
        else if (ours && !there) complain(which + "its word does not say that it is there");
        else if (ours && word.generation != request.generation) complain(which + "its word is of another generation");
        else if (ours && ((word.flags & request_on_worker) != 0) != (request.state == SimRequest::State::running)) complain(which + "its word is wrong about whether it runs");
    }
}

// Nobody may idle for long beside what waits at another agent whose workers are all busy: that is the host's to see to.
void Simulation::check_idle_beside(std::uint32_t seat) {
    std::array<SeatLoad, most_sim_agents> loads{};
    load_of_seats(std::span(loads).first(seats()));
    std::uint32_t waits = 0;  // elsewhere, that could be taken over
    const std::uint32_t from = seat_to_take_from(std::span(loads).first(seats()), seat);
    for (const std::uint32_t record : out_) {
        const SimRequest& request = requests_[record];
        if (request.state == SimRequest::State::queued && request.worker == no_object && request.seat == from) ++waits;
    }
    std::uint64_t& since = seats_[seat].idle_beside;
    if (seats_[seat].idle == 0 || from == no_seat || waits == 0) since = 0;
    else if (since == 0) since = now_;
    else if (now_ - since > patient_sweeps * spec_.sweep_ns) complain("workers of agent " + std::to_string(seat) + " idle beside what waits at agent " + std::to_string(from) + " since " + std::to_string(since) + " ns");
}

}  // namespace teal
