// Pool: what an agent has decided is carried out, or refused (seats.cpp has the rest of agents).
//
// Theory of operation: pick() asks the worker's seat for what is staged there. The seat has checked it against its words; here it is looked at as the
// top of the run queue is: it may have ended meanwhile, its version may be parked, its name may run in as many workers as it may. All members of a
// group pass, or none begins. What nobody decides about is left to the default order.
#include <algorithm>

#include "host/pool.hpp"
#include "host/words.hpp"

namespace teal {
namespace {

constexpr std::uint32_t whole_run = UINT32_MAX - 1;  // PoolMemory::slices: until it ends, unless it is asked to leave …
constexpr std::uint32_t undisturbed = UINT32_MAX;    // … not even then

std::uint32_t generation_of_record(const Record& record) noexcept { return record.state.load(std::memory_order_relaxed) >> 8; }

}  // namespace

Pool::SliceOf Pool::slice_of(std::uint32_t index) const noexcept {
    const std::uint32_t given = __atomic_load_n(&memory_->slices[index], __ATOMIC_RELAXED);
    if (given == 0) return {__atomic_load_n(&memory_->header.quantum_ns, __ATOMIC_RELAXED), false, true};
    if (given >= whole_run) return {0, true, given == whole_run};
    return {std::uint64_t{given} * 1000, true, true};
}

// Nobody else has a part in it: the host's own looks count as missed, and are made up for at the next pick.
void Pool::decide_inline(std::shared_ptr<Policy> policy, std::uint32_t worker) {
    PoolHeader& header = memory_->header;
    for (std::uint32_t i = 0; i < max_seats; ++i)
        if (memory_->seats[i].incarnation != 0 && memory_->seats[i].incarnation != inline_incarnation) unseat_agent(i, Outcome::no_agent);
    inline_ = std::make_unique<InlinePolicy>(std::move(policy), record_count, worker);
    memory_->seats[0] = {inline_incarnation, 1};
    header.seats.store(1, std::memory_order_relaxed);
    // SYNC: release pairs with the acquire in Pool::seats_changed().
    header.seats_changed.fetch_add(1, std::memory_order_release);
}

void Pool::restate_inline() noexcept {
    PoolHeader& header = memory_->header;
    memory_->seats[0].missed = 0;
    while (header.heap_size > 0) put_offered(heap_pop());
    for (std::uint32_t i = 0; i < header.offered_size; ++i) inline_->ready(facts_of(memory_->offered[i]));
}

std::uint32_t Pool::pick_inline(std::uint32_t worker, std::span<SessionMap* const> maps) noexcept {
    if (memory_->seats[0].missed != 0) [[unlikely]] restate_inline();
    for (;;) {
        const InlinePolicy::Picked picked = inline_->pick();
        if (picked.record == no_object) return nobody;
        Claim claim{worker, 0, {}};
        claim.decided.object = picked.record;
        claim.decided.generation = picked.generation;
        claim.decided.slice_us = static_cast<std::uint32_t>(std::min<std::uint64_t>((picked.slice_ns + 999) / 1000, UINT32_MAX));
        claim.decided.priority = memory_->records[picked.record].entry.priority;
        if (fit_claimed(claim, maps) == Outcome::complete && begin_claimed(claim, false)) return picked.record;
        inline_->refused(picked.record);
    }
}

std::uint32_t Pool::pick_decided(std::uint32_t worker, std::span<SessionMap* const> maps, std::span<const std::uint32_t> suspended) noexcept {
    if (inline_ != nullptr) return pick_inline(worker, maps);
    HostSeat* seat = seat_at(memory_->worker_seats[worker] % max_seats);
    if (seat != nullptr) {
        seat->worker_came(worker);
        Claim claims[max_group];
        for (std::uint32_t turn = 0; turn < stage_depth; ++turn) {
            const unsigned count = seat->claim(worker, claims);
            if (count == 0) break;
            if (const std::uint32_t index = run_claimed({claims, count}, maps, suspended, *seat); index != nobody) return index;
        }
    }
    // What no agent decides about.
    std::uint32_t index = pick_default(worker, maps, suspended);
    // Nobody waits but this one, and here is a worker with nothing to do: there is nothing to decide.
    if (index == nobody && seat != nullptr && memory_->header.offered_size == 1 && (memory_->header.fast_seats >> seat->seat() & 1) != 0) [[unlikely]]
        index = pick_offered(worker, seat->seat(), maps);
    if (index != nobody) tell_taken(index, worker, false);
    else if (seat != nullptr) {
        if (memory_->header.dealt != 0 && memory_->header.offered_size > 0) [[unlikely]] (void)take_over(memory_->worker_seats[worker] % max_seats);
        seat->found_nothing(worker, memory_->header.offered_size > 0);
    }
    return index;
}

// Where the agent leaves it to the pool: the best of all that it may choose from.
std::uint32_t Pool::pick_offered(std::uint32_t worker, std::uint32_t at, std::span<SessionMap* const> maps) noexcept {
    for (;;) {
        std::uint32_t best = nobody;
        for (std::uint32_t i = 0; i < memory_->header.offered_size; ++i) {
            const std::uint32_t index = memory_->offered[i];
            const Record& record = memory_->records[index];
            if (seat_of(record) != at || (record.suspended != 0 && record.suspended != worker + 1)) continue;
            if (best == nobody || before(index, best)) best = index;
        }
        if (best == nobody) return nobody;
        retract(best);
        const bool begun = memory_->records[best].suspended != 0;
        if (begun ? resume(best) : fit(best, maps) == Fit::fits && start(best, worker)) return best;
    }
}

// All of these passed the seat's own checks. Returns what the first one's worker runs, or nobody.
std::uint32_t Pool::run_claimed(std::span<const Claim> claims, std::span<SessionMap* const> maps, std::span<const std::uint32_t> suspended,
                                HostSeat& seat) noexcept {
    const std::uint32_t worker = claims[0].worker;
    if (claims[0].decided.object == no_object) {
        std::uint32_t index = pick_default(worker, maps, suspended);
        if (index == nobody) index = pick_offered(worker, seat.seat(), maps);
        seat.commit(claims[0], index != nobody ? Outcome::complete : Outcome::not_found);
        if (index != nobody) tell_taken(index, worker, false);
        return index;
    }
    Outcome outcomes[max_group];
    bool all = true;
    for (std::size_t i = 0; i < claims.size(); ++i) {
        outcomes[i] = fit_claimed(claims[i], maps);
        all = all && outcomes[i] == Outcome::complete;
    }
    const bool limited = all && claims.size() > 1 && !within_limits(claims);
    all = all && !limited;
    for (std::size_t i = 0; i < claims.size(); ++i) {
        const std::uint32_t index = claims[i].decided.object;
        if (all) {
            outcomes[i] = begin_claimed(claims[i], i > 0) ? Outcome::complete : Outcome::not_found;
        } else if (outcomes[i] == Outcome::complete) {
            outcomes[i] = limited ? Outcome::not_runnable : Outcome::poisoned;
            put_offered(index);  // as before, which needs no telling
        }
        seat.commit(claims[i], outcomes[i]);
    }
    return outcomes[0] == Outcome::complete ? claims[0].decided.object : nobody;
}

// What is to run is offered no more, and may run now: or it is where it belongs.
Outcome Pool::fit_claimed(const Claim& claim, std::span<SessionMap* const> maps) noexcept {
    const std::uint32_t index = claim.decided.object;
    const Record& record = memory_->records[index];
    // When words and records disagree, the records are right.
    if (record.offered == 0 || generation_of_record(record) != claim.decided.generation) return Outcome::not_found;
    if (record.suspended != 0) {
        if (state_of_record(record) != State::queued) return Outcome::not_found;  // its worker lets go of it
        if (record.suspended != claim.worker + 1) return Outcome::not_permitted;
        retract(index);
        return Outcome::complete;
    }
    retract(index);
    const Fit found = fit(index, maps);
    return found == Fit::fits ? Outcome::complete : found == Fit::ended ? Outcome::not_found : Outcome::not_runnable;
}

// Do the members of a group together stay within what may run of each name at once?
bool Pool::within_limits(std::span<const Claim> claims) const noexcept {
    for (const Claim& claim : claims) {
        const std::uint32_t model = memory_->versions[memory_->records[claim.decided.object].version_line].model;
        const ModelLine& line = memory_->models[model];
        std::uint32_t same = 0;
        for (const Claim& other : claims)
            if (memory_->versions[memory_->records[other.decided.object].version_line].model == model) ++same;
        if (line.most != 0 && line.running + same > line.most) return false;
    }
    return true;
}

// `elsewhere`: for a worker that does not hold the role; it finds it in its line.
bool Pool::begin_claimed(const Claim& claim, bool elsewhere) noexcept {
    const std::uint32_t index = claim.decided.object;
    Record& record = memory_->records[index];
    record.entry.priority = std::min(claim.decided.priority, memory_->sessions[record.session].most_priority);
    // Before it runs in that worker's name: what nobody knows of would run nowhere, should we die here.
    if (elsewhere) memory_->workers[claim.worker].latched.store(index + 1, std::memory_order_relaxed);
    std::uint32_t slice = claim.decided.slice_us == 0 ? whole_run : std::clamp(claim.decided.slice_us, shortest_slice_us, whole_run - 1);
    if ((claim.decided.run_flags & run_may_not_preempt) != 0) slice = undisturbed;
    if (record.suspended != 0) poke(memory_->slices[index], slice);
    if (record.suspended != 0 ? !resume(index) : !start(index, claim.worker, slice)) {
        if (elsewhere) memory_->workers[claim.worker].latched.store(0, std::memory_order_relaxed);
        return false;
    }
    if (elsewhere) wake_worker(claim.worker);
    return true;
}

std::uint32_t Pool::take_latched(std::uint32_t worker) noexcept {
    std::atomic<std::uint32_t>& latched = memory_->workers[worker].latched;
    const std::uint32_t index = latched.load(std::memory_order_relaxed) - 1;
    latched.store(0, std::memory_order_relaxed);
    if (index >= record_count || memory_->records[index].worker != worker) return nobody;
    const State state = state_of_record(memory_->records[index]);
    if (state == State::running) return index;
    if (is_terminal(state)) give_back({&index, 1});  // its time was over before its worker came to it
    return nobody;
}

void Pool::return_latched(std::uint32_t worker) noexcept {
    if (memory_->workers[worker].latched.load(std::memory_order_relaxed) == 0) return;
    if (const std::uint32_t index = take_latched(worker); index != nobody) requeue(index);
}

}  // namespace teal
