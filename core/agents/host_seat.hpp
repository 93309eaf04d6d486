// The host's side of a seat: tells an agent what happens and carries out what it decides (docs/protocol.md).
//
// Theory of operation. One incarnation of a seat is two regions (agents/seat_layout.hpp); host and workers each map both, and each has a HostSeat
// of its own for them. What they share lies in the view, which only they can write; all of it but SeatWorker.asleep is written under the
// pool's role, so there is one writer at a time, and a writer that dies leaves nothing that restate…() does not set right.
//
// Telling: each function below writes the status word first and then sends the message; flush(), before the role is left, makes the
// messages of one hold of the role visible (over a link: together) and rings for an agent that sleeps.
// Deciding: claim() takes up the next transaction of a worker's desk, copies it once, checks it in a fixed order, and hands it out only if
// it passes; the caller then sees to what only it knows (ended meanwhile, parked, …) and says by commit() what came of it. A refusal is told as
// latch_failure, and the next transaction is looked at.
//
// It knows nothing of pools: a simulator drives it the same way. Under the role, unless said otherwise.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "agents/seat_layout.hpp"
#include "agents/trace.hpp"
#include "link/link.hpp"

namespace teal {

// What an agent is told of a request that may run.
struct RequestFacts {
    std::uint32_t index = no_object;
    std::uint32_t generation = 0;
    std::uint16_t model = 0, session = 0;
    std::int32_t priority = 0;
    std::uint32_t expected_ns = 0;
    std::uint32_t ran_us = 0;
    std::uint64_t arrived = 0;            // ticks
    std::uint64_t deadline_ns = 0;
    std::uint32_t worker = no_object;     // the only one that can go on with it
    std::uint16_t flags = 0;              // message_preemptible, message_yields
};

// A transaction's fields behind its word, copied once.
struct Decided {
    std::uint32_t object, generation, tseq, aseq, slice_us;
    std::uint16_t version;
    std::uint8_t commit_flags, run_flags;
    std::uint32_t group, id;
    std::uint64_t staged, expires_ns;
    std::int32_t priority;
    std::uint32_t members;
};
static_assert(sizeof(Decided) == sizeof(Transaction) - sizeof(Transaction::word));

struct Claim {
    std::uint32_t worker;
    std::uint32_t serial;
    Decided decided;
};

struct SeatSpec {
    std::uint32_t seat = 0;
    std::uint32_t incarnation = 1;
    std::uint32_t workers = 0;
    std::uint32_t records = 0;
    std::uint32_t ring_capacity = 8192;
    std::uint32_t link = 0;               // LinkKind, for the agent to see
};

class HostSeat {
public:
    // Host. Throws as Region::create() does.
    static std::shared_ptr<HostSeat> create(const SeatSpec& spec);
    // Worker: takes both descriptors, also when it throws (version_mismatch, invalid_argument).
    static std::shared_ptr<HostSeat> attach(int view_fd, int desk_fd);

    // `link` and `clock` are this process's own, set before anything else. Null: shm.
    void set_link(std::shared_ptr<Link> link) noexcept { link_ = std::move(link); }
    void set_clock(SeatClock clock) noexcept { clock_ = clock; }
    void set_trace(Trace* trace) noexcept { trace_ = trace; }  // under the role; null: nobody records
    [[nodiscard]] Link* link() const noexcept { return link_.get(); }

    [[nodiscard]] const SeatMap& map() const noexcept { return map_; }
    [[nodiscard]] std::uint32_t seat() const noexcept { return seat_; }
    [[nodiscard]] std::uint32_t incarnation() const noexcept { return incarnation_; }
    [[nodiscard]] std::uint32_t workers() const noexcept { return map_.layout.workers; }
    [[nodiscard]] std::uint32_t records() const noexcept { return map_.layout.records; }
    [[nodiscard]] int view_fd() const noexcept { return view_->fd(); }           // for workers
    [[nodiscard]] int desk_fd() const noexcept { return desk_->fd(); }
    [[nodiscard]] int agent_view_fd() const { return view_->readable_fd(); }     // for the agent; the caller's to close

    // ---- what the agent says of itself: any time, and believed in nothing ----
    [[nodiscard]] std::uint64_t beat() const noexcept { return desk_header().beat.load(std::memory_order_relaxed); }
    [[nodiscard]] AgentState agent_state() const noexcept;
    [[nodiscard]] std::uint32_t agent_pid() const noexcept { return desk_header().pid.load(std::memory_order_relaxed); }
    [[nodiscard]] std::uint64_t timer_ns() const noexcept { return desk_header().timer_ns.load(std::memory_order_relaxed); }
    [[nodiscard]] bool agent_asleep() const noexcept { return desk_header().asleep.load(std::memory_order_relaxed) != 0; }
    [[nodiscard]] std::uint64_t settings_seen() const noexcept { return desk_header().settings_seen.load(std::memory_order_relaxed); }

    // ---- telling ----
    // It may run: request_new, or request_runnable if it was known in this generation or another.
    void ready(const RequestFacts& facts) noexcept;
    // It left its worker and may run again: request_preempt or request_yield.
    void left(const RequestFacts& facts, MessageType why, std::uint32_t worker, std::uint64_t run_ns) noexcept;
    // It may not run for now. `worker` took it along with another one (message_taken), or no_object: it waits.
    void blocked(std::uint32_t record, std::uint32_t worker = no_object) noexcept;
    // It runs on a worker without a decision of this seat.
    void taken(std::uint32_t record, std::uint32_t worker) noexcept;
    // The record is free again. `answered`: done or failed, else departed. Nothing for one that was never told of.
    void ended(std::uint32_t record, bool answered, bool failed) noexcept;
    void priority(std::uint32_t record, std::int32_t value) noexcept;
    void affinity(std::uint32_t record, std::uint32_t worker) noexcept;
    void worker_came(std::uint32_t worker) noexcept;
    void worker_gone(std::uint32_t worker) noexcept;       // what is staged for it is void
    // It looked and found nothing; `waiting`: though requests wait. Told once until it runs again.
    void found_nothing(std::uint32_t worker, bool waiting) noexcept;
    void tick() noexcept;
    void timer() noexcept;
    void wakeup(bool settings) noexcept;                   // `settings`: they have changed
    // Its process has something to read beside the seat: it is to look soon, also when it sleeps. Any time, any thread.
    void call() noexcept;
    // Makes it all visible, and wakes the agent if it sleeps. With `all` what a link may hold back goes as well.
    void flush(bool all = false) noexcept;

    // ---- deciding ----
    // Is there something on the worker's desk? Any time, by the worker.
    [[nodiscard]] bool staged(std::uint32_t worker) noexcept;
    // The next transactions of a worker that passed the checks: none (0), one, or all members of a group (the first is this worker's).
    // Each has to be committed before anything else is claimed. `out` has room for max_group.
    unsigned claim(std::uint32_t worker, std::span<Claim> out) noexcept;
    void commit(const Claim& claim, Outcome outcome) noexcept;
    // What the agent wants to leave the worker: record:32 | generation:32. Any time.
    [[nodiscard]] std::uint64_t preempt_asked(std::uint32_t worker) const noexcept {
        return map_.worker_desk(worker).preempt.load(std::memory_order_relaxed);
    }
    // Asks for the worker's next slot ahead of time: over a link before a run, else shortly before it is looked at, as asking takes it
    // from the agent that may be writing it.
    void prefetch(std::uint32_t worker) noexcept {
        if (link_ != nullptr) return;
        const std::uint32_t serial = map_.seat_worker(worker).next_serial.load(std::memory_order_relaxed);
        __builtin_prefetch(&map_.worker_desk(worker).slots[serial % stage_depth], 1);
    }
    void prefetch_ahead(std::uint32_t worker) noexcept {
        if (link_ != nullptr) link_->prefetch(worker, map_.seat_worker(worker).next_serial.load(std::memory_order_relaxed), link_->now());
    }

    // ---- sleeping: the worker's own ----
    [[nodiscard]] const std::atomic<std::uint32_t>* bell(std::uint32_t worker) const noexcept { return &map_.worker_desk(worker).bell; }
    void set_asleep(std::uint32_t worker, bool asleep) noexcept {
        // SYNC: seq_cst pairs with AgentSeat::ring(): it stages, then reads `asleep`; the worker stores it, then looks at its slot.
        map_.seat_worker(worker).asleep.store(asleep ? 1 : 0, std::memory_order_seq_cst);
    }

    // After a sleep.
    void woken(std::uint32_t worker) noexcept;

    // ---- coming and going ----
    void activate() noexcept;
    // Withdraws all that is ready: `why`. From here on nothing is claimed.
    void deactivate(Outcome why) noexcept;
    [[nodiscard]] bool is_active() const noexcept { return view_header().active.load(std::memory_order_relaxed) != 0; }
    // All words anew, after a death, an overflow or before the first activate(): each record and worker once, between begin and end. What
    // was decided on the old words is stale.
    void begin_restating() noexcept;
    void restate(const RequestFacts& facts, std::uint32_t flags) noexcept;   // RequestFlags without request_in_use: facts.worker runs it
    void restate_free(std::uint32_t record) noexcept;
    void restate_worker(std::uint32_t worker, std::uint32_t flags, std::uint32_t running, std::uint32_t generation) noexcept;
    void end_restating() noexcept;
    // The agent is to read all words: what a process without this incarnation's mapping did not tell.
    void lose() noexcept;

    // By the worker that ran it, at any time: how long, up to `ended`, without what it was away.
    void ran(std::uint32_t record, std::uint64_t started, std::uint64_t ended) noexcept {
        map_.times(record).started.store(started, std::memory_order_relaxed);
        map_.times(record).ended.store(ended, std::memory_order_relaxed);
    }
    // By a worker whose request left because the agent asked for it (under the role), and of asks that named what did not run any more.
    void count_asked() noexcept;
    void count_in_vain(std::uint64_t asks) noexcept { numbers().asks_in_vain.fetch_add(asks, std::memory_order_relaxed); }
    // By a worker, of what it ran to its end: did the agent ask for it, though it could not be left? Counted, once for each.
    bool count_unobeyed(std::uint32_t worker, std::uint32_t record, std::uint32_t generation) noexcept;
    [[nodiscard]] bool is_idle(std::uint32_t worker) const noexcept {
        const SeatWorker& line = map_.seat_worker(worker);
        return (line.flags & worker_online) != 0 && line.running == no_object && line.told != 0;
    }
    [[nodiscard]] std::uint64_t idle_since(std::uint32_t worker) const noexcept { return map_.seat_worker(worker).since; }  // ticks
    [[nodiscard]] std::uint64_t told_at(std::uint32_t record) const noexcept { return map_.times(record).told; }  // ticks
    [[nodiscard]] SeatNumbers& numbers() const noexcept { return map_.numbers(); }
    [[nodiscard]] const SeatClock& clock() const noexcept { return clock_; }

private:
    HostSeat(std::shared_ptr<Region> view, std::shared_ptr<Region> desk, const SeatLayout& layout) noexcept;
    [[nodiscard]] ViewHeader& view_header() const noexcept { return map_.view_header(); }
    [[nodiscard]] DeskHeader& desk_header() const noexcept { return map_.desk_header(); }

    Message message(MessageType type, std::uint32_t object) noexcept;
    Message about(MessageType type, std::uint32_t record, RequestWord& word) noexcept;   // raises its tseq
    void fill(RequestWord& word, const RequestFacts& facts) const noexcept;
    void describe(Message& message, const RequestFacts& facts) const noexcept;
    void send(Message& message) noexcept;
    void push(const Message& message) noexcept;
    void write_worker(std::uint32_t worker) noexcept;
    void leave_worker(std::uint32_t worker, std::uint32_t record) noexcept;
    void enter_worker(std::uint32_t worker, std::uint32_t record, std::uint32_t generation) noexcept;
    void count_interval(SeatStage stage, std::uint64_t from, std::uint64_t to) noexcept;
    void count_waits(const RequestTimes& times, std::uint64_t arrived) noexcept;
    void count_stages(std::uint32_t record, std::uint64_t now) noexcept;

    // claim.cpp
    enum class Next { none, taken, settled };
    Next take_up(std::uint32_t worker, Claim& claim) noexcept;
    [[nodiscard]] bool visible(std::uint32_t worker, std::uint32_t serial, const Transaction& slot) noexcept;
    [[nodiscard]] Outcome check(const Claim& claim) noexcept;
    [[nodiscard]] Outcome check_flags(const Decided& decided) const noexcept;
    [[nodiscard]] bool group_complete(const Transaction& first) noexcept;
    unsigned claim_group(const Claim& first, std::span<Claim> out) noexcept;
    void settle(std::uint32_t worker, std::uint32_t serial, Outcome outcome) noexcept;
    void void_desk(std::uint32_t worker, Outcome why) noexcept;

    SeatMap map_;
    std::shared_ptr<Region> view_;
    std::shared_ptr<Region> desk_;
    std::uint32_t seat_ = 0;
    std::uint32_t incarnation_ = 0;
    std::shared_ptr<Link> link_;
    SeatClock clock_;
    Trace* trace_ = nullptr;
    std::uint64_t now_ = 0;            // ticks, of this hold of the role; 0: nothing sent in it
    std::vector<Message> pending_;     // over a link: until flush()
    unsigned pending_ends_ = 0;
    unsigned settled_ = 0;             // over a link: outcomes that were written and are not paid for yet
    std::uint32_t seen_serial_ = 0;    // over a link: the slot that was paid for last, by this process's worker
    std::uint64_t seen_at_ = 0;
};

}  // namespace teal
