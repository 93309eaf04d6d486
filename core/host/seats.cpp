// Pool: agents that decide what its workers do (docs/protocol.md, agents/host_seat.hpp).
//
// Theory of operation: a queued record that may run is *offered*: it lies in `offered` instead of the run queue, and the agent of its seat knows
// of it. pick() carries out what the agent has staged for the worker, after the same looks as at the top of the run queue. When the agent
// goes, what is offered goes to the run queue, and the default order holds from there on. The records' words remain what all is derived
// from: after a death under the role the seats' words are written anew, and the agents read them.
//
// A process that holds the role without the regions of the agent's incarnation (a worker that has just started) tells nothing; it counts that, and
// the host writes the words anew at its next look.
#include <algorithm>

#include "cpu/clock.hpp"
#include "host/hot.hpp"
#include "host/pool.hpp"
#include "host/words.hpp"

namespace teal {
namespace {

// Does its loop run? One that starts says itself that it has come, one that stops that it is gone.
bool is_there(const WorkerLine& line) noexcept {
    const auto state = static_cast<WorkerState>(line.state.load(std::memory_order_relaxed));
    return state == WorkerState::idle || state == WorkerState::leading || state == WorkerState::running;
}

std::uint32_t generation_of_record(const Record& record) noexcept { return record.state.load(std::memory_order_relaxed) >> 8; }

}  // namespace

// ---- regions -------------------------------------------------------------------------------------------------------------------

void Pool::add_seat(std::shared_ptr<HostSeat> seat) {
    for (MappedSeat& mapped : mapped_)
        if (mapped.seat->seat() == seat->seat() && mapped.seat->incarnation() == seat->incarnation()) {
            ++mapped.count;
            return;
        }
    seat->set_trace(trace_.get());
    mapped_.push_back({std::move(seat), 1});
}

void Pool::drop_seat(std::uint32_t seat, std::uint32_t incarnation) noexcept {
    for (auto mapped = mapped_.begin(); mapped != mapped_.end(); ++mapped) {
        if (mapped->seat->seat() != seat || mapped->seat->incarnation() != incarnation) continue;
        if (--mapped->count == 0) mapped_.erase(mapped);
        return;
    }
}

HostSeat* Pool::seat_at(std::uint32_t seat) const noexcept {
    const std::uint32_t incarnation = memory_->seats[seat].incarnation;
    if (incarnation == 0) return nullptr;
    for (const MappedSeat& mapped : mapped_)
        if (mapped.seat->seat() == seat && mapped.seat->incarnation() == incarnation) return mapped.seat.get();
    return nullptr;
}

std::shared_ptr<HostSeat> Pool::seat_for(std::uint32_t worker) const noexcept {
    const HostSeat* seat = seat_at(memory_->worker_seats[worker]);
    for (const MappedSeat& mapped : mapped_)
        if (mapped.seat.get() == seat) return mapped.seat;
    return nullptr;
}

void Pool::flush_seats() noexcept {
    for (const MappedSeat& mapped : mapped_) mapped.seat->flush();
}

// ---- telling -------------------------------------------------------------------------------------------------------------------

std::uint32_t Pool::seat_of(const Record& record) const noexcept {
    if (memory_->header.dealt != 0) [[unlikely]] return dealt_seat(record);
    return memory_->model_seats[memory_->versions[record.version_line].model] % max_seats;
}

RequestFacts Pool::facts_of(std::uint32_t index) const noexcept {
    const Record& record = memory_->records[index];
    const VersionLine& version = memory_->versions[record.version_line];
    RequestFacts facts;
    facts.index = index;
    facts.generation = generation_of_record(record);
    facts.model = static_cast<std::uint16_t>(version.model);
    facts.session = static_cast<std::uint16_t>(record.session);
    facts.priority = record.entry.priority;
    facts.expected_ns = version.run_ns.load(std::memory_order_relaxed);
    facts.arrived = join(record.entry.submitted_low, record.entry.submitted_high);  // the client's word: the agent's mechanism cuts it to now
    facts.deadline_ns = join(record.entry.deadline_low, record.entry.deadline_high);
    facts.worker = record.suspended != 0 ? record.suspended - 1 : nobody;
    if ((version.flags & kernel_preemptible) != 0) facts.flags |= message_preemptible;
    if ((version.flags & kernel_yields) != 0) facts.flags |= message_yields;
    facts.ran_us = record.suspended != 0 ? record.charge / 1000 : 0;  // suspend() keeps it there
    return facts;
}

void Pool::offer_to_agent(std::uint32_t index, MessageType left, std::uint64_t run_ns) noexcept {
    Record& record = memory_->records[index];
    if (memory_->header.dealt != 0) [[unlikely]] deal(index, left != MessageType::nop);
    const std::uint32_t at = seat_of(record);
    if ((memory_->header.seats.load(std::memory_order_relaxed) >> at & 1) == 0) {
        if (record.suspended == 0) heap_push(index);  // else its worker knows of it
        return;
    }
    put_offered(index);
    if (inline_ != nullptr) {
        if (left == MessageType::nop) inline_->ready(facts_of(index));
        else inline_->left(facts_of(index), left);
        return;
    }
    HostSeat* seat = seat_at(at);
    if (seat == nullptr) ++memory_->seats[at].missed;
    else if (left == MessageType::nop) seat->ready(facts_of(index));
    else seat->left(facts_of(index), left, record.suspended != 0 ? record.suspended - 1 : nobody, run_ns);
}

void Pool::put_offered(std::uint32_t index) noexcept {
    PoolHeader& header = memory_->header;
    memory_->offered[header.offered_size] = index;
    poke(header.offered_size, header.offered_size + 1);
    poke(memory_->records[index].offered, static_cast<std::uint16_t>(header.offered_size));
    if (header.dealt != 0) [[unlikely]] count_offered(index, 1);
}

void Pool::retake(std::uint32_t index) noexcept {
    retract(index);
    if (memory_->records[index].suspended == 0) heap_push(index);
}

void Pool::retract(std::uint32_t index) noexcept {
    PoolHeader& header = memory_->header;
    Record& record = memory_->records[index];
    if (record.offered == 0) return;
    if (header.dealt != 0) [[unlikely]] count_offered(index, -1);
    const std::uint32_t last = memory_->offered[header.offered_size - 1];
    memory_->offered[record.offered - 1] = last;
    poke(memory_->records[last].offered, record.offered);
    poke(record.offered, std::uint16_t{0});
    poke(header.offered_size, header.offered_size - 1);
}

void Pool::prune_offered() noexcept {
    for (std::uint32_t i = memory_->header.offered_size; i-- > 0;) {
        const std::uint32_t index = memory_->offered[i];
        const Record& record = memory_->records[index];
        if (state_of_record(record) == State::queued) continue;
        if (record.suspended != 0) retract(index);  // its worker lets go of it
        else free_record(index);                    // the last one comes here in its place
    }
}

void Pool::tell_end(std::uint32_t index) noexcept {
    const Record& record = memory_->records[index];
    const std::uint32_t at = seat_of(record);
    if (memory_->header.dealt != 0) [[unlikely]] forget_dealt(index);
    if ((memory_->header.seats.load(std::memory_order_relaxed) >> at & 1) == 0) return;
    const State state = state_of_record(record);
    if (inline_ != nullptr) return inline_->ended(index, state == State::done || state == State::failed);
    HostSeat* seat = seat_at(at);
    if (seat == nullptr) ++memory_->seats[at].missed;
    else seat->ended(index, state == State::done || state == State::failed, state == State::failed);
}

void Pool::tell_blocked(std::uint32_t index) noexcept {
    const std::uint32_t at = seat_of(memory_->records[index]);
    if ((memory_->header.seats.load(std::memory_order_relaxed) >> at & 1) == 0) return;
    if (inline_ != nullptr) return inline_->blocked(index);
    HostSeat* seat = seat_at(at);
    if (seat == nullptr) ++memory_->seats[at].missed;
    else seat->blocked(index);
}

// A worker runs it without a decision; `along`: with another one.
void Pool::tell_taken(std::uint32_t index, std::uint32_t worker, bool along) noexcept {
    HostSeat* seat = seat_at(seat_of(memory_->records[index]));
    HostSeat* workers = seat_at(memory_->worker_seats[worker] % max_seats);
    if (along) {
        if (seat != nullptr) seat->blocked(index, worker);
        return;
    }
    if (seat != nullptr) seat->taken(index, worker);
    if (workers != nullptr && workers != seat) workers->taken(index, worker);
}

void Pool::tell_tick() noexcept {
    if (memory_->header.dealt != 0) [[unlikely]] take_over_for_idle();
    for (std::uint32_t i = 0; i < max_seats; ++i) {
        HostSeat* seat = seat_at(i);
        if (seat == nullptr) continue;
        if (memory_->seats[i].missed != 0) restate(i);
        else seat->tick();
    }
}

void Pool::tell_worker(std::uint32_t worker, bool there) noexcept {
    if (!seated()) return;
    HostSeat* seat = seat_at(memory_->worker_seats[worker] % max_seats);
    if (seat == nullptr) return;
    if (there) seat->worker_came(worker);
    else seat->worker_gone(worker);
}

void Pool::change_priority(std::uint32_t index, std::int32_t priority) noexcept {
    Record& record = memory_->records[index];
    if (state_of_record(record) != State::queued) return;
    record.entry.priority = std::min(priority, memory_->sessions[record.session].most_priority);
    if (record.offered == 0) {
        heapify();
        return;
    }
    if (HostSeat* seat = seat_at(seat_of(record))) seat->priority(index, record.entry.priority);
}

std::uint64_t Pool::oldest_offered(std::uint32_t at) const noexcept {
    const HostSeat* seat = seat_at(at);
    std::uint64_t oldest = 0;
    for (std::uint32_t i = 0; seat != nullptr && i < memory_->header.offered_size; ++i) {
        const std::uint32_t index = memory_->offered[i];
        if (seat_of(memory_->records[index]) != at) continue;
        const std::uint64_t told = seat->told_at(index);
        if (oldest == 0 || told < oldest) oldest = told;
    }
    return oldest;
}

std::uint64_t Pool::longest_neglected(std::uint32_t at) const noexcept {
    const HostSeat* seat = seat_at(at);
    const std::uint64_t now = ticks();
    const std::uint32_t end = std::min(memory_->header.worker_end.load(std::memory_order_relaxed), max_workers);
    std::uint64_t longest = 0;
    for (std::uint32_t i = 0; seat != nullptr && i < memory_->header.offered_size; ++i) {
        const Record& record = memory_->records[memory_->offered[i]];
        if (seat_of(record) != at) continue;
        const std::uint64_t told = seat->told_at(memory_->offered[i]);
        for (std::uint32_t worker = 0; worker < end; ++worker) {
            if (memory_->worker_seats[worker] % max_seats != at) continue;  // not for this agent to use
            if (record.suspended != 0 && record.suspended != worker + 1) continue;
            const std::uint64_t since = std::max(told, seat->idle_since(worker));
            if (seat->is_idle(worker) && now > since) longest = std::max(longest, now - since);
        }
    }
    return longest;
}

std::uint64_t Pool::furthest_overtaken(std::uint32_t at) const noexcept {
    const HostSeat* seat = seat_at(at);
    const std::uint32_t end = std::min(memory_->header.worker_end.load(std::memory_order_relaxed), max_workers);
    std::uint64_t furthest = 0;
    for (std::uint32_t worker = 0; seat != nullptr && worker < end; ++worker) {
        const std::uint32_t running = memory_->workers[worker].record.load(std::memory_order_relaxed);
        if (running >= record_count) continue;
        const Record& other = memory_->records[running];
        // One that goes on is told of anew each time that it leaves: when it came is not known.
        if (state_of_record(other) != State::running || other.suspended != 0 || seat_of(other) != at) continue;
        const std::uint64_t came = seat->told_at(running);
        for (std::uint32_t i = 0; i < memory_->header.offered_size; ++i) {
            const Record& record = memory_->records[memory_->offered[i]];
            if (seat_of(record) != at || record.entry.priority < other.entry.priority) continue;
            if (record.suspended != 0 && record.suspended != worker + 1) continue;  // can go on nowhere else
            const std::uint64_t told = seat->told_at(memory_->offered[i]);
            if (told != 0 && came > told) furthest = std::max(furthest, came - told);
        }
    }
    return furthest;
}

void Pool::set_trace(std::shared_ptr<Trace> trace) noexcept {
    trace_ = std::move(trace);
    for (const MappedSeat& mapped : mapped_) mapped.seat->set_trace(trace_.get());
}

void Pool::set_local_fast_path(std::uint32_t seat, bool on) noexcept {
    const std::uint32_t bit = 1U << seat;
    memory_->header.fast_seats = on ? memory_->header.fast_seats | bit : memory_->header.fast_seats & ~bit;
}

void Pool::note_run(std::uint32_t index, std::uint64_t started, std::uint64_t ended, HostSeat* mine) noexcept {
    if (inline_ != nullptr) inline_->ran(index, started, ended);
    if (mine != nullptr && mine->seat() == seat_of(memory_->records[index])) mine->ran(index, started, ended);
}

TEAL_HOT // ---- agents come and go --------------------------------------------------------------------------------------------------------

void Pool::seat_agent(std::uint32_t at, std::uint32_t incarnation) noexcept {
    PoolHeader& header = memory_->header;
    if (HostSeat* before = seat_at(at)) {  // an upgrade: what is offered stays so
        before->deactivate(Outcome::no_agent);
        before->wakeup(false);
        before->flush(true);
    }
    memory_->seats[at] = {incarnation, 0};
    header.seats.store(header.seats.load(std::memory_order_relaxed) | 1U << at, std::memory_order_relaxed);
    HostSeat* seat = seat_at(at);
    if (seat != nullptr) seat->activate();
    restate(at);
    // SYNC: release pairs with the acquire in Pool::seats_changed().
    header.seats_changed.fetch_add(1, std::memory_order_release);
}

void Pool::unseat_agent(std::uint32_t at, Outcome why) noexcept {
    PoolHeader& header = memory_->header;
    if (memory_->seats[at].incarnation == 0) return;
    HostSeat* seat = seat_at(at);
    header.seats.store(header.seats.load(std::memory_order_relaxed) & ~(1U << at), std::memory_order_relaxed);
    memory_->seats[at] = {0, 0};
    for (std::uint32_t i = header.offered_size; i-- > 0;) {
        const std::uint32_t index = memory_->offered[i];
        if (seat_of(memory_->records[index]) == at) retake(index);
    }
    // SYNC: release pairs with the acquire in Pool::seats_changed().
    header.seats_changed.fetch_add(1, std::memory_order_release);
    if (seat == nullptr) return;
    seat->deactivate(why);
    seat->wakeup(false);
    seat->flush(true);
}

// What is offered to one seat cannot become another's by itself: all goes to the run queue, and to the seats from there.
void Pool::move_model(std::uint32_t model, std::uint32_t seat) noexcept {
    PoolHeader& header = memory_->header;
    for (std::uint32_t i = header.offered_size; i-- > 0;) {
        const std::uint32_t index = memory_->offered[i];
        if (memory_->versions[memory_->records[index].version_line].model == model) retake(index);
    }
    memory_->model_seats[model] = static_cast<std::uint8_t>(seat);
    restate();
}

void Pool::move_worker(std::uint32_t worker, std::uint32_t seat) noexcept {
    if (HostSeat* before = seat_at(memory_->worker_seats[worker] % max_seats)) before->worker_gone(worker);
    memory_->worker_seats[worker] = static_cast<std::uint8_t>(seat);
    if (HostSeat* after = seat_at(seat)) {
        const bool there = is_there(memory_->workers[worker]);
        if (there) after->worker_came(worker);
    }
    // SYNC: release pairs with the acquire in Pool::seats_changed().
    memory_->header.seats_changed.fetch_add(1, std::memory_order_release);
}

void Pool::restate() noexcept {
    for (std::uint32_t i = 0; i < max_seats; ++i)
        if (memory_->seats[i].incarnation != 0) restate(i);
}

// All words of a seat, from the records.
void Pool::restate(std::uint32_t at) noexcept {
    HostSeat* seat = seat_at(at);
    if (seat == nullptr) {
        ++memory_->seats[at].missed;  // the host does it
        return;
    }
    PoolHeader& header = memory_->header;
    memory_->seats[at].missed = 0;
    if (header.dealt != 0) memory_->seat_offered[at] = offered_at(at);
    std::uint32_t kept = 0;
    for (std::uint32_t i = 0; i < header.heap_size; ++i) {
        const std::uint32_t index = memory_->heap[i];
        if (seat_of(memory_->records[index]) != at) {
            memory_->heap[kept++] = index;
            continue;
        }
        put_offered(index);
    }
    poke(header.heap_size, kept);
    heapify();
    seat->begin_restating();
    std::uint32_t running[max_workers];
    std::fill(running, running + max_workers, nobody);
    for (std::uint32_t i = 0; i < record_count; ++i) {
        const Record& record = memory_->records[i];
        const State state = state_of_record(record);
        const bool ours = state != State::free && seat_of(record) == at;
        if (ours && is_suspended(record) && record.offered == 0) put_offered(i);
        const bool on_worker = state != State::free && state != State::queued && record.worker < max_workers;
        if (on_worker) running[record.worker] = i;
        if (ours && state == State::queued && record.offered != 0) {
            seat->restate(facts_of(i), request_is_runnable | (record.suspended != 0 ? static_cast<std::uint32_t>(request_suspended) : 0U));
        } else if (ours && on_worker) {
            RequestFacts facts = facts_of(i);
            facts.worker = record.worker;
            seat->restate(facts, request_is_runnable | request_on_worker);
        } else {
            seat->restate_free(i);
        }
    }
    for (std::uint32_t i = 0; i < max_workers && i < seat->workers(); ++i) {
        const bool there = is_there(memory_->workers[i]);
        const std::uint32_t flags = (there ? worker_online : 0U) | (memory_->worker_seats[i] % max_seats == at ? worker_of_seat : 0U);
        seat->restate_worker(i, flags, running[i], running[i] != nobody ? generation_of_record(memory_->records[running[i]]) : 0);
    }
    seat->end_restating();
}

}  // namespace teal
