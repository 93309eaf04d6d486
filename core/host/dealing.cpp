// Pool: requests that are dealt to several agents, each of which decides for some of the workers (seats.cpp has the rest of agents).
//
// Theory of operation: each request belongs to one seat from when it is first offered: the one that has the least to do for each worker with
// nothing to do (agents/dealing.hpp). An agent that is gone gets its part as well, which lies in the run queue, where all workers find it. A seat
// whose workers have nothing to do takes over what waits at another one whose workers are all busy: one request at a time, told to one agent
// as departed and to the other one as new. What has begun on a worker and left it belongs to that worker's seat. core/sim deals by the same
// rules on a virtual clock; tests/model/dealing.py has all interleavings.
#include <algorithm>
#include <bit>
#include <span>

#include "agents/dealing.hpp"
#include "host/pool.hpp"
#include "host/words.hpp"

namespace teal {
namespace {

constexpr std::uint32_t generation_bits = 24;

std::uint32_t dealt_word(const Record& record, std::uint32_t seat) noexcept {
    // + 1: memory that was never written names no generation yet.
    return (((record.state.load(std::memory_order_relaxed) >> 8) + 1) << (32 - generation_bits)) | seat;
}

bool is_free(const WorkerLine& line) noexcept {
    const auto state = static_cast<WorkerState>(line.state.load(std::memory_order_relaxed));
    return (state == WorkerState::idle || state == WorkerState::leading) && line.record.load(std::memory_order_relaxed) == nobody &&
           line.latched.load(std::memory_order_relaxed) == 0;
}

}  // namespace

std::uint32_t Pool::dealt_seat(const Record& record) const noexcept {
    if (record.suspended != 0) return memory_->worker_seats[(record.suspended - 1) % max_workers] % max_seats;
    const std::uint32_t seat = memory_->dealt_to[&record - memory_->records] % max_seats;
    const std::uint32_t dealt = memory_->header.dealt;
    return (dealt >> seat & 1) != 0 ? seat : static_cast<std::uint32_t>(std::countr_zero(dealt)) % max_seats;
}

std::uint32_t Pool::idle_at(std::uint32_t seat) const noexcept {
    const std::uint32_t end = std::min(memory_->header.worker_end.load(std::memory_order_relaxed), max_workers);
    std::uint32_t idle = 0;
    for (std::uint32_t i = 0; i < end; ++i)
        if (memory_->worker_seats[i] % max_seats == seat && is_free(memory_->workers[i])) ++idle;
    return idle;
}

std::uint32_t Pool::offered_at(std::uint32_t seat) const noexcept {
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < memory_->header.offered_size; ++i)
        if (seat_of(memory_->records[memory_->offered[i]]) == seat) ++count;
    return count;
}

void Pool::count_offered(std::uint32_t index, int by) noexcept {
    std::uint32_t& count = memory_->seat_offered[seat_of(memory_->records[index])];
    if (by > 0) ++count;
    else if (count > 0) --count;
}

void Pool::deal_among(std::uint32_t seats) noexcept {
    PoolHeader& header = memory_->header;
    // All that is offered goes to the run queue, and to the seats from there.
    for (std::uint32_t i = header.offered_size; i-- > 0;) {
        const std::uint32_t index = memory_->offered[i];
        const std::uint32_t at = seat_of(memory_->records[index]);
        retake(index);
        if (HostSeat* seat = seat_at(at)) seat->ended(index, false, false);
    }
    header.dealt = seats;
    std::fill(std::begin(memory_->seat_offered), std::end(memory_->seat_offered), 0);
    restate();
    // SYNC: release pairs with the acquire in Pool::seats_changed().
    header.seats_changed.fetch_add(1, std::memory_order_release);
}

// All that the choices of agents/dealing.hpp are made from.
void Pool::load_of_seats(std::span<SeatLoad, max_seats> seats) const noexcept {
    const PoolHeader& header = memory_->header;
    const std::uint32_t active = header.seats.load(std::memory_order_relaxed);
    for (std::uint32_t seat = 0; seat < max_seats; ++seat) {
        if ((header.dealt >> seat & 1) == 0) continue;
        const bool decides = (active >> seat & 1) != 0;
        seats[seat] = {true, decides, decides ? memory_->seat_offered[seat] : header.heap_size, idle_at(seat)};
    }
}

// It belongs to another seat from now on, or is over: the agent there has to hear of it, if it knows of it.
void Pool::forget_at(std::uint32_t seat, std::uint32_t index) noexcept {
    if ((memory_->header.seats.load(std::memory_order_relaxed) >> seat & 1) == 0) return;
    if (HostSeat* there = seat_at(seat)) there->ended(index, false, false);
    else ++memory_->seats[seat].missed;
}

// One that has left its worker belongs to that worker's seat; it may have ended before it was dealt to it (suspend()), and be known elsewhere.
void Pool::forget_dealt(std::uint32_t index) noexcept {
    const std::uint32_t dealt = memory_->dealt_to[index] % max_seats;
    if (dealt != seat_of(memory_->records[index])) forget_at(dealt, index);
}

// `left`: it comes back from a worker, whose seat it belongs to from now on.
void Pool::deal(std::uint32_t index, bool left) noexcept {
    PoolHeader& header = memory_->header;
    const Record& record = memory_->records[index];
    std::uint32_t& word = memory_->dealt_to[index];
    const std::uint32_t before = word % max_seats;
    if (left || record.suspended != 0) {
        const std::uint32_t now = seat_of(record);
        if (before == now) return;
        word = dealt_word(record, now);
        forget_at(before, index);
        if (HostSeat* seat = seat_at(now)) seat->lose();  // it has never heard of it
        return;
    }
    if (word >> (32 - generation_bits) == dealt_word(record, 0) >> (32 - generation_bits)) return;  // it has been there before
    SeatLoad seats[max_seats];
    load_of_seats(seats);
    const std::uint32_t to = seat_to_deal_to(seats, header.next_dealt % max_seats);
    if (to == no_seat) return;
    header.next_dealt = to + 1;
    word = dealt_word(record, to);
    if (before != to) forget_at(before, index);  // its worker died, and it runs anew: the agent that had it does not know
}

// For the agent of a seat that has workers with nothing to do: what waits longest at another one. False: there is nothing.
bool Pool::take_over(std::uint32_t at) noexcept {
    const PoolHeader& header = memory_->header;
    SeatLoad seats[max_seats];
    load_of_seats(seats);
    const std::uint32_t from = seat_to_take_from(seats, at);
    if (from == no_seat) return false;
    HostSeat* mine = seat_at(at);
    HostSeat* theirs = seat_at(from);
    if (mine == nullptr || theirs == nullptr) return false;
    std::uint32_t oldest = nobody;
    for (std::uint32_t i = 0; i < header.offered_size; ++i) {
        const std::uint32_t index = memory_->offered[i];
        const Record& record = memory_->records[index];
        if (record.suspended != 0 || seat_of(record) != from) continue;
        if (oldest == nobody || record.sequence < memory_->records[oldest].sequence) oldest = index;
    }
    if (oldest == nobody) return false;
    theirs->ended(oldest, false, false);
    count_offered(oldest, -1);
    memory_->dealt_to[oldest] = dealt_word(memory_->records[oldest], at);
    count_offered(oldest, 1);
    mine->ready(facts_of(oldest));
    return true;
}

// Workers that idle and look at nothing: another seat's got busy after they had looked. By the sweeper, once a look.
void Pool::take_over_for_idle() noexcept {
    for (std::uint32_t seat = 0; seat < max_seats; ++seat)
        if ((memory_->header.dealt >> seat & 1) != 0 && memory_->seat_offered[seat] == 0 && idle_at(seat) > 0) (void)take_over(seat);
}

}  // namespace teal
