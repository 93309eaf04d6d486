// What a host and an agent say to each other: message and decision layouts, states, refusals. docs/protocol.md is its prose.
//
// Theory of operation. An agent sits at a *seat* of a pool: two regions, made anew for each agent that attaches.
//   - the *view* (host → agent): messages and status words. The agent maps it read-only; host and workers write it under the pool's role.
//   - the *desk* (agent → host): transactions, heartbeat, bells. The agent writes it, so host and workers believe nothing in it: what
//     they read is copied once and checked against what they know themselves.
// Nothing here has a pointer, and each side keeps its own positions in memory of its own.
//
// Sequence numbers. Each message about a request raises that request's tseq (latch_failure, which changes nothing about it, does not), each
// message raises the seat's aseq; both are in the message, and the tseq is in the status word, which is written before the message. A
// transaction names the tseq (and, when it asks for it, the aseq) that it was decided on; if the world has moved on it is refused as
// stale. So a decision can be late, and never wrong.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "queue/status.hpp"

namespace teal {

inline constexpr std::uint32_t view_magic = 0x57565454;  // "TTVW"
inline constexpr std::uint32_t desk_magic = 0x4b445454;  // "TTDK"
inline constexpr std::uint16_t agent_protocol = 3;       // version; in both headers and in each transaction
inline constexpr std::uint32_t shortest_slice_us = 20;    // one that is shorter ends before its request has got anywhere: an agent could hold it for ever
inline constexpr std::uint32_t stage_depth = 4;          // decisions that may be staged for one worker
inline constexpr std::uint32_t no_object = UINT32_MAX;
inline constexpr std::uint32_t max_group = 64;           // transactions of one group

// ---- messages ------------------------------------------------------------------------------------------------------------------

enum class MessageType : std::uint16_t {
    nop = 0,
    // about a request (object: its record)
    request_new = 64,     // it may run: facts
    request_runnable,     // it may run (again): what it waited for has come, or its worker died and it runs anew
    request_blocked,      // it was taken from a worker, or offered, and waits: parked version, others of its name, …
    request_yield,        // it gave its worker up itself, and may run again there
    request_preempt,      // its worker was taken from it, and it may run again there
    request_done,         // it ended, done or failed
    request_departed,     // it ended without an answer of its own: cancelled, expired, its client left
    request_priority,     // its priority changed
    request_affinity,     // where it may run changed
    latch_failure,        // a staged decision was refused when its worker came to it: `why`
    // about a worker (object: its index)
    worker_available = 128,  // it has nothing to do and nothing staged
    worker_busy,             // it runs something that was not decided here (the local default, another seat)
    worker_tick,             // a look of the sweeper while requests are out: once a millisecond; object: no_object, all of them
    worker_gone,             // it died or was taken away; what was staged for it is void
    worker_came,             // a process is at that place (again)
    // about the agent
    agent_timer = 192,    // a time that the agent asked for has come
    agent_wakeup,         // somebody rang; look at the settings
    agent_rescan,         // messages were lost, or this agent is new: read all status words
};

// Why a decision was not carried out. 0–15 as ghOSt numbers its outcomes in docs/protocol.md's table; the order of the checks is theirs too.
enum class Outcome : std::uint8_t {
    complete = 0,         // it runs, or ran
    aborted,              // withdrawn before a worker took it
    already_running,      // target on a worker
    target_stale,         // tseq differs
    not_found,            // no such request (any more)
    not_runnable,         // it waits for something
    agent_stale,          // aseq differs, where that was asked for
    worker_offline,       // no process at that place
    worker_unavailable,   // busy, where an idle one was asked for; or not of this seat
    invalid_flags,
    invalid_target,       // an index out of range, a special target that makes no sense
    not_permitted,        // the request is another seat's, or bound to another worker
    invalid_worker,       // ghOSt's number; a desk for each worker leaves nothing that could cause it
    no_agent,             // the agent is gone
    unsupported_version,
    poisoned,             // another one of its group was refused
    timeout,              // its `expires` passed before it was taken
};
inline constexpr std::size_t outcome_count = 17;

// Refusals that a correct agent meets; all others are bugs of the agent, and counted as such.
constexpr bool is_expected(Outcome outcome) noexcept {
    switch (outcome) {
        case Outcome::complete:
        case Outcome::aborted:
        case Outcome::already_running:
        case Outcome::target_stale:
        case Outcome::not_found:
        case Outcome::not_runnable:
        case Outcome::agent_stale:
        case Outcome::worker_offline:
        case Outcome::worker_unavailable:
        case Outcome::no_agent:
        case Outcome::poisoned:
        case Outcome::timeout: return true;
        default: return false;
    }
}

inline constexpr std::uint16_t message_preemptible = 1;  // Message.flags: its kernel can be taken from a worker
inline constexpr std::uint16_t message_yields = 2;       // … but at its own yield points only
inline constexpr std::uint16_t message_latched = 4;      // what it is about had been staged
inline constexpr std::uint16_t message_failed = 8;       // request_done: failed
inline constexpr std::uint16_t message_taken = 16;       // request_blocked: a worker took it along with another one; request_done follows

// 60 bytes: the payload of a ring slot. Fields that a type does not use are 0.
struct Message {
    std::uint16_t type;          // MessageType
    std::uint16_t flags;
    std::uint32_t aseq;          // the seat's, with this message counted
    std::uint32_t object;        // record, or worker
    std::uint32_t generation;    // of the record
    std::uint32_t tseq;          // the request's, with this message counted
    std::uint32_t worker;        // where it happened, or no_object
    std::uint32_t when_low;      // ticks (cpu/clock.hpp): when this was written
    std::uint32_t when_high;
    union {
        struct { std::uint16_t model, session; std::int32_t priority; std::uint32_t expected_ns, arrived_low, arrived_high, deadline_low, deadline_high; } request;  // new, runnable, priority, affinity
        struct { std::uint32_t ran_us, expected_ns, run_ns_low, run_ns_high; } run;     // done, yield, preempt
        struct { std::uint32_t serial; std::uint8_t why; std::uint8_t pad[3]; } latch;  // latch_failure
        std::uint32_t words[7];
    };
};
static_assert(sizeof(Message) == 60);

// ---- status words (in the view) -------------------------------------------------------------------------------------------------

enum RequestFlags : std::uint32_t {
    request_in_use = 1,
    request_is_runnable = 2,
    request_on_worker = 4,
    request_preemptible = 8,
    request_yields = 16,
    request_suspended = 32,   // begun, taken from its worker, and can go on there
};

struct RequestWord {             // 56 bytes: StatusEntry<7>
    std::uint32_t flags;         // RequestFlags
    std::uint32_t generation;
    std::uint32_t tseq;
    std::uint32_t worker;        // runs it, or is the only one that can; else no_object
    std::uint16_t model, session;
    std::int32_t priority;
    std::uint32_t expected_ns;
    std::uint32_t ran_us;
    std::uint64_t arrived;       // ticks
    std::uint64_t deadline_ns;
    std::uint32_t seat;          // whose decisions count
    std::uint32_t pad;
};
static_assert(sizeof(RequestWord) == 56);

enum WorkerFlags : std::uint32_t {
    worker_online = 1,
    worker_idle = 2,
    worker_asleep = 4,
    worker_preemptible = 8,      // what it runs can be taken from it
    worker_of_seat = 16,         // this seat decides for it
};

struct WorkerWord {              // 56 bytes
    std::uint32_t flags;         // WorkerFlags
    std::uint32_t running;       // record, or no_object
    std::uint32_t generation;    // of that
    std::uint32_t next_serial;   // of the transaction that it takes next: those before are settled
    std::uint64_t since;         // ticks: when it began to run or to idle
    std::uint64_t requests;
    std::uint64_t staged_hits;   // found something staged when it looked
    std::uint64_t staged_misses;
    std::uint32_t core;
    std::uint32_t pad;
};
static_assert(sizeof(WorkerWord) == 56);

// ---- the desk ---------------------------------------------------------------------------------------------------------------------

enum class TransactionState : std::uint8_t { empty = 0, ready, claimed, committed };

// word = serial:32 (low half) | state:8 | outcome:8 | 0:16. The agent makes it ready, a worker (or the host) claims and commits, the agent
// may withdraw what is ready: each a compare-and-swap on this word.
constexpr std::uint64_t transaction_word(std::uint32_t serial, TransactionState state, Outcome outcome = Outcome::complete) noexcept {
    return std::uint64_t{serial} | std::uint64_t{static_cast<std::uint8_t>(state)} << 32 | std::uint64_t{static_cast<std::uint8_t>(outcome)} << 40;
}
constexpr std::uint32_t serial_of(std::uint64_t word) noexcept { return static_cast<std::uint32_t>(word); }
constexpr TransactionState transaction_state_of(std::uint64_t word) noexcept { return static_cast<TransactionState>(word >> 32 & 0xff); }
constexpr Outcome outcome_of(std::uint64_t word) noexcept { return static_cast<Outcome>(word >> 40 & 0xff); }

enum CommitFlags : std::uint16_t {
    commit_check_agent = 1,      // refuse when aseq differs
    commit_idle_only = 2,        // refuse unless the worker has nothing to do
    commit_idempotent = 4,       // committing it again (after a doubt) is no error: already running there counts as complete
    commit_group = 8,            // member of `group`: all or none
};
enum RunFlags : std::uint16_t {
    run_may_not_preempt = 1,     // not even when its slice is over
    run_local_default = 2,       // target no_object only: let the pool's own order choose
};

// Serial n of a worker lies in slot n % stage_depth of its desk; serials count from 1.
struct alignas(64) Transaction {
    std::atomic<std::uint64_t> word;
    std::uint32_t object;        // record; no_object: see RunFlags
    std::uint32_t generation;
    std::uint32_t tseq;
    std::uint32_t aseq;
    std::uint32_t slice_us;      // how long it may run before its worker is taken from it, shortest_slice_us at least; 0: until it ends
    std::uint16_t version;       // agent_protocol
    std::uint8_t commit_flags;
    std::uint8_t run_flags;
    std::uint32_t group;         // number of the group (commit_group), else 0
    std::uint32_t id;            // the agent's own
    std::uint64_t staged;        // ticks: when it was decided
    std::uint64_t expires_ns;    // CLOCK_MONOTONIC; 0: never
    std::int32_t priority;       // given to the request when it is committed
    std::uint32_t members;       // of the group
};
static_assert(sizeof(Transaction) == 64);

struct alignas(64) WorkerDesk {
    std::atomic<std::uint32_t> bell;      // futex word: the agent rings it for a worker that sleeps
    std::uint32_t pad0;
    std::atomic<std::uint64_t> preempt;   // record:32 | generation:32 of what is to leave the worker; anything else is ignored
    std::uint8_t pad1[48];
    Transaction slots[stage_depth];
};
static_assert(sizeof(WorkerDesk) == 64 * (1 + stage_depth));

enum class AgentState : std::uint32_t { attaching = 0, ready, online, leaving };

struct DeskHeader {
    std::uint32_t magic, version;
    std::atomic<std::uint32_t> state;               // AgentState: what the agent says of itself
    std::atomic<std::uint32_t> pid;
    std::uint8_t pad0[48];
    alignas(64) std::atomic<std::uint64_t> beat;    // CLOCK_MONOTONIC ns: the agent's heart
    std::atomic<std::uint64_t> timer_ns;            // wants agent_timer at that time; 0: does not
    std::atomic<std::uint64_t> settings_seen;       // of ViewHeader.settings
    std::uint8_t pad1[40];
    alignas(64) std::atomic<std::uint32_t> tail;    // position in the ring: messages read
    std::uint8_t pad2[60];
    alignas(64) std::atomic<std::uint32_t> bell;    // futex word: the host rings it for an agent that sleeps
    std::atomic<std::uint32_t> asleep;              // 1 while it may sleep on `bell`
    std::uint8_t pad3[56];
    // Told by the agent for people to see; never used for anything.
    alignas(64) std::atomic<std::uint64_t> events;
    std::atomic<std::uint64_t> decisions, steps, runnable, busy_ns, errors, rescans;
    std::atomic<std::uint64_t> sleeps, spins, rings, rings_spared, batches, groups, preempts, batched;
};
static_assert(sizeof(DeskHeader) == 384);

// Three lines by who touches them: what never changes; the writer's own; what the agent looks at in each step.
struct ViewHeader {
    std::uint32_t magic, version;
    std::uint32_t seat, incarnation;
    std::uint32_t workers, records;                 // numbers of status words
    std::uint32_t ring_capacity;
    std::uint32_t link;                             // 0: shm; else the emulated link's kind (core/link)
    std::uint64_t view_size, desk_size;
    std::uint8_t pad0[16];
    alignas(64) std::atomic<std::uint32_t> aseq;    // messages written so far, those that found the ring full among them
    std::atomic<std::uint32_t> head;                // position in the ring: messages written into it
    std::uint32_t known_tail;                       // DeskHeader.tail as it was read last
    std::uint8_t pad1[52];
    alignas(64) std::atomic<std::uint64_t> overflow;  // times messages were lost, or all words written anew: rescan when it changes
    std::atomic<std::uint64_t> settings;            // changes when the settings did
    std::atomic<std::uint32_t> active;              // 1: this agent's decisions count
    std::atomic<std::uint32_t> orders;              // changes when the agent's process has something to read beside the seat
    std::uint8_t pad2[40];
};
static_assert(sizeof(ViewHeader) == 192);

}  // namespace teal
