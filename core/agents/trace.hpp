// A recording of what happens in a pool: runs on workers, messages to agents, what became of their decisions.
//
// Theory of operation. A region of its own, made when somebody wants a recording and mapped by the host and the pool's workers. Who has
// something to say takes the next place with one addition and writes it; a place is valid once its `kind` is there. It is filled once: what
// comes after the last place is counted and left out, so that what was recorded has no holes. While nobody records there is no region,
// and each place that could say something tests one pointer of its own process.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "cpu/clock.hpp"
#include "memory/region.hpp"

namespace teal {

enum class TraceKind : std::uint32_t {
    none = 0,   // not written yet
    run,        // begin … at: on `worker`; why: how it left (TraceEnd); more: version line
    message,    // at; why: MessageType; more: tseq
    decision,   // at: taken up by `worker`; begin: when it was decided; why: Outcome; more: slice in us
    agent,      // at; why: 1 its decisions count, 0 they do not any more; more: incarnation
};

enum class TraceEnd : std::uint16_t { done = 0, failed, preempted, yielded };

struct TraceEvent {
    std::uint64_t at;         // ticks
    std::uint64_t begin;      // ticks
    std::uint32_t record;     // or UINT32_MAX
    std::uint32_t more;
    std::uint16_t worker;     // or UINT16_MAX
    std::uint16_t why;
    std::atomic<std::uint32_t> kind;
};
static_assert(sizeof(TraceEvent) == 32);

inline constexpr std::uint32_t trace_magic = 0x43525454;  // "TTRC"
inline constexpr std::uint32_t trace_version = 1;
inline constexpr std::uint32_t most_trace_events = 1u << 24;

struct TraceHeader {
    std::uint32_t magic, version;
    std::uint32_t capacity;
    std::uint32_t pad0;
    std::uint64_t pad1[6];
    alignas(64) std::atomic<std::uint64_t> next;  // places given out; beyond capacity: left out
    std::uint8_t pad2[56];
};
static_assert(sizeof(TraceHeader) == 128);

class Trace {
public:
    // Throws as Region::create() does; invalid_argument for a number of events out of range.
    static std::shared_ptr<Trace> create(std::uint32_t events);
    // Takes the descriptor, also when it throws (version_mismatch, invalid_argument).
    static std::shared_ptr<Trace> attach(int fd);

    void add(TraceKind kind, std::uint64_t at, std::uint64_t begin, std::uint32_t worker, std::uint32_t record, std::uint32_t why, std::uint32_t more) noexcept {
        const std::uint64_t place = header().next.fetch_add(1, std::memory_order_relaxed);
        if (place >= capacity_) return;
        TraceEvent& event = events()[place];
        event.at = at;
        event.begin = begin;
        event.record = record;
        event.more = more;
        event.worker = static_cast<std::uint16_t>(worker < UINT16_MAX ? worker : UINT16_MAX);
        event.why = static_cast<std::uint16_t>(why);
        // SYNC: release pairs with the acquire load of `kind` in read().
        event.kind.store(static_cast<std::uint32_t>(kind), std::memory_order_release);
    }

    // Event `i` as far as it is written. False: it is not (its writer died, or writes).
    struct Seen { TraceKind kind; std::uint64_t at, begin; std::uint32_t record, more; std::uint16_t worker, why; };
    bool read(std::uint32_t i, Seen& seen) const noexcept;
    [[nodiscard]] std::uint32_t size() const noexcept;        // events that there are, or are being written
    [[nodiscard]] std::uint64_t left_out() const noexcept;
    [[nodiscard]] std::uint32_t capacity() const noexcept { return capacity_; }
    [[nodiscard]] int fd() const noexcept { return region_->fd(); }

private:
    Trace(std::shared_ptr<Region> region, std::uint32_t capacity) noexcept : region_(std::move(region)), capacity_(capacity) {}
    [[nodiscard]] TraceHeader& header() const noexcept { return *reinterpret_cast<TraceHeader*>(region_->base() + page_bytes); }
    [[nodiscard]] TraceEvent* events() const noexcept {
        return reinterpret_cast<TraceEvent*>(region_->base() + page_bytes + sizeof(TraceHeader));
    }

    std::shared_ptr<Region> region_;
    std::uint32_t capacity_;
};

}  // namespace teal
