// The state of a request: one word, changed by compare-and-swap, with a generation.
//
//   free → submitted → queued → running → done | failed | cancelled | expired
//
// A request has two such words. The *record's* word (host/pool.hpp, memory of host and workers only) is
// the authority on queued, running and the end. The *completion line's* word is what the client sees: it
// goes from the end of generation g-1 straight to the end of generation g, because "submitted" is the
// ring entry itself; the client (cancel, expire), a worker (done, failed) and the host (all four) race for that one
// transition, and exactly one of them wins it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace teal {

enum class State : std::uint8_t {
    free = 0,
    submitted,
    queued,
    running,
    done,       // first of the terminal states
    failed,
    cancelled,
    expired,
};

constexpr bool is_terminal(State state) noexcept { return state >= State::done; }

// May a record's word go from `from` to `to`? (The table that tests and the model check use.)
constexpr bool transition_allowed(State from, State to) noexcept {
    switch (from) {
        case State::free: return to == State::submitted || to == State::queued;
        case State::submitted: return to == State::queued || to == State::cancelled || to == State::expired || to == State::failed;
        case State::queued: return to == State::running || to == State::cancelled || to == State::expired || to == State::failed;
        case State::running: return is_terminal(to) || to == State::queued;  // queued again: an idempotent request whose worker died
        default: return to == State::free;
    }
}

// Why a request ended as it did. Fixed numbers: docs/errors.md lists them.
enum class Reason : std::uint16_t {
    none = 0,
    invalid = 1,          // the descriptor or the request line broke a rule; the message says which
    not_found = 2,        // no such model or version (any more)
    quota = 3,            // in-flight or byte limit
    kernel = 4,           // the kernel itself reported an error
    worker_died = 5,      // detail: signal number, or 256 + exit status
    client_cancelled = 6,
    client_gone = 7,
    deadline = 8,
    host_stopping = 9,
    output_spilled = 10,  // done; detail: spill id: outputs are in a region that the client has to ask the host for
    internal = 11,
    unloaded = 12,        // the version was unloaded by force while the request waited
    dependency = 13,      // what it waited for ended otherwise than done; detail: the slot of that
};

// word = generation:24 | state:8 in the low half (the half a futex waits on), reason:16 | flags:16 in the high half.
inline constexpr std::uint32_t generation_mask = 0xffffff;

constexpr std::uint32_t low_half(std::uint32_t generation, State state) noexcept {
    return (generation & generation_mask) << 8 | static_cast<std::uint32_t>(state);
}
constexpr std::uint64_t make_word(std::uint32_t generation, State state, Reason reason = Reason::none, std::uint16_t flags = 0) noexcept {
    return std::uint64_t{low_half(generation, state)} | std::uint64_t{static_cast<std::uint16_t>(reason)} << 32 | std::uint64_t{flags} << 48;
}
constexpr std::uint32_t generation_of(std::uint64_t word) noexcept { return static_cast<std::uint32_t>(word) >> 8; }
constexpr State state_of(std::uint64_t word) noexcept { return static_cast<State>(word & 0xff); }
constexpr Reason reason_of(std::uint64_t word) noexcept { return static_cast<Reason>(word >> 32 & 0xffff); }
constexpr std::uint16_t flags_of(std::uint64_t word) noexcept { return static_cast<std::uint16_t>(word >> 48); }
// Did this generation of a completion line come to its end? ((g, running) is a claim, not an end.)
constexpr bool has_ended(std::uint64_t word, std::uint32_t generation) noexcept {
    return generation_of(word) == (generation & generation_mask) && is_terminal(state_of(word));
}
// Is generation `a` after `b`, counting round? (Neither is ever half a lap behind the other.)
constexpr bool is_later(std::uint32_t a, std::uint32_t b) noexcept {
    const std::uint32_t ahead = (a - b) & generation_mask;
    return ahead != 0 && ahead <= generation_mask / 2;
}
// Is there nothing left to say about this generation: it has ended, or the word is about a later one already? (Whoever
// cleans up after a death may come to an old generation late.)
constexpr bool is_past(std::uint64_t word, std::uint32_t generation) noexcept {
    return has_ended(word, generation) || is_later(generation_of(word), generation);
}
// The generation after this one; 0 means "never used" and is skipped.
constexpr std::uint32_t next_generation(std::uint32_t generation) noexcept {
    const std::uint32_t next = (generation + 1) & generation_mask;
    return next == 0 ? 1 : next;
}

inline constexpr std::uint16_t entry_after = 1;  // RequestEntry.flags: the slot's AfterLine says what the request waits for

// What the client writes into a ring slot (60 bytes after the slot's sequence number).
struct RequestEntry {
    std::uint16_t op;              // 0: call
    std::uint16_t flags;
    std::uint32_t slot;
    std::uint32_t generation;
    std::uint32_t model;           // index of a model name in this pool
    std::uint32_t version;         // 0: the current one
    std::int32_t priority;         // larger goes first
    std::uint32_t stamp;           // changes whenever the descriptor block changed
    std::uint32_t region;          // descriptor block: region
    std::uint32_t reserved;
    std::uint32_t offset_low;      // descriptor block: offset (two halves keep the struct free of padding)
    std::uint32_t offset_high;
    std::uint32_t deadline_low;    // CLOCK_MONOTONIC ns, 0: none
    std::uint32_t deadline_high;
    std::uint32_t submitted_low;   // ticks (cpu/clock.hpp) at submit
    std::uint32_t submitted_high;
};
static_assert(sizeof(RequestEntry) == 60);

// What a slot's next request waits for: ends of other lines of the same session. Written by the client before it submits, copied and
// checked once by whoever takes the request. A line that is about a later generation by then counts as ended well.
inline constexpr std::uint32_t max_after = 7;
struct alignas(64) AfterLine {
    std::uint32_t count;
    std::uint32_t pad;
    struct { std::uint32_t slot; std::uint32_t generation; } on[max_after];
};
static_assert(sizeof(AfterLine) == 64);

constexpr std::uint64_t join(std::uint32_t low, std::uint32_t high) noexcept { return std::uint64_t{high} << 32 | low; }

// How long the kernel ran and when it left, beside the word so that both change in one 16-byte compare-and-swap: a second store
// to the line would let the polling client take it away in between, one more trip between the cores.
//   run:32 (ticks, at most 2^32 - 1) | left:32 (low half of the ticks when the kernel left; 0: it did not run)
constexpr std::uint64_t make_times(std::uint64_t started, std::uint64_t left) noexcept {
    if (started == 0 || left < started) return 0;
    const std::uint64_t run = left - started < UINT32_MAX ? left - started : UINT32_MAX;
    const std::uint64_t low = (left & UINT32_MAX) == 0 ? 1 : left & UINT32_MAX;
    return run | low << 32;
}
constexpr std::uint64_t run_ticks(std::uint64_t times) noexcept { return times & UINT32_MAX; }
// Ticks from the kernel's end to `now`, modulo 2^32: right for anything below a second.
constexpr std::uint64_t ticks_since_left(std::uint64_t times, std::uint64_t now) noexcept { return (now - (times >> 32)) & UINT32_MAX; }

// One line per slot: the worker (or host, or the client itself) stores the end of a request here.
struct alignas(64) CompletionLine {
    std::atomic<std::uint64_t> word;       // make_word(): the last ended generation
    std::atomic<std::uint64_t> times;      // make_times(); changes with the word
    std::atomic<std::uint32_t> waiting;    // client: threads that may sleep on the low half of `word`
    std::atomic<std::uint32_t> released;   // generation that the worker side no longer touches; written by worker or host
    // Stored before the word, and only when they differ from what stands here:
    std::atomic<std::uint32_t> version;    // version number that answered
    std::atomic<std::uint32_t> detail;     // by reason: signal, spill id, …
    std::atomic<std::uint64_t> copied_in;  // bytes the worker copied for this request
    std::atomic<std::uint64_t> copied_out;
    std::uint8_t pad[8];
};
static_assert(sizeof(CompletionLine) == 64);
static_assert(offsetof(CompletionLine, word) == 0 && offsetof(CompletionLine, times) == 8);

// Both halves at once. `word` and `times` are what was seen; on failure what is there now.
inline bool exchange_end(CompletionLine& line, std::uint64_t& word, std::uint64_t& times, std::uint64_t new_word, std::uint64_t new_times) noexcept {
    __extension__ typedef unsigned __int128 __attribute__((may_alias)) Pair;
    const auto join_pair = [](std::uint64_t low, std::uint64_t high) { return static_cast<Pair>(high) << 64 | low; };
    const Pair expected = join_pair(word, times);
    // A full barrier, as all __sync operations are. (__atomic of this size would call into a library.)
    const Pair found = __sync_val_compare_and_swap(reinterpret_cast<Pair*>(&line), expected, join_pair(new_word, new_times));
    if (found == expected) return true;
    word = static_cast<std::uint64_t>(found);
    times = static_cast<std::uint64_t>(found >> 64);
    return false;
}

}  // namespace teal
