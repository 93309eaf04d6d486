// Where things lie in the two regions of a seat, and the part of the view that is the host's own business.
//
// View:  RegionHeader (4096) | ViewHeader | ring | request words | worker words | SeatWorker[workers] | RequestTimes[records] | SeatNumbers
// Desk:  RegionHeader (4096) | DeskHeader | WorkerDesk[workers]
//
// Both follow from three numbers (workers, records, ring capacity), which the agent reads in the view and checks against the sizes
// of what it was given. SeatWorker.asleep and .next_serial are all that an agent reads behind the words; the rest it may look at as it likes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "agents/protocol.hpp"
#include "cpu/clock.hpp"
#include "memory/region.hpp"
#include "queue/histogram.hpp"
#include "queue/ring.hpp"
#include "queue/status.hpp"

namespace teal {

inline constexpr std::uint32_t most_seat_workers = 1u << 16;   // a pool has 64 at most; a simulated one thousands
inline constexpr std::uint32_t most_seat_records = 1u << 20;
inline constexpr std::uint32_t most_seat_ring = 1u << 20;

// What workers and host keep of a worker, under the role but for `asleep`.
struct alignas(64) SeatWorker {
    std::atomic<std::uint32_t> next_serial;  // of the transaction that is looked at next; read by the worker while it waits
    std::atomic<std::uint32_t> asleep;       // 1 while the worker may sleep on its bell; its own, any time
    std::uint32_t flags;                     // WorkerFlags, as the word says
    std::uint32_t running;                   // record or no_object
    std::uint32_t generation;                // of that
    std::uint32_t told;                      // 1: worker_available was sent since it ran last
    std::uint64_t since;                     // ticks
    std::uint64_t requests, hits, misses;
};
static_assert(sizeof(SeatWorker) == 64);

// When a request came to its stages: ticks, 0: not yet. Under the role, but for the run's, which its worker writes.
struct RequestTimes {
    std::uint64_t told;        // the message that it may run
    std::uint64_t decided;     // Transaction.staged of the decision that was carried out; the agent's word, cut to what is possible
    std::uint64_t committed;
    std::atomic<std::uint64_t> started, ended;  // of its kernel; as if it had never left
    std::uint64_t left;        // times it left its worker
};
static_assert(sizeof(RequestTimes) == 48);

enum class SeatStage : std::uint8_t { message = 0, decision, commit, start, run, done };  // each from the one before; message: from arrival
// A request that leaves its worker comes to decision and commit once more for each time; its start is not known, and not counted.
inline constexpr std::size_t seat_stages = 6;

// Counters of one incarnation. Written under the role; read at any time.
struct SeatNumbers {
    std::atomic<std::uint64_t> outcomes[outcome_count];
    std::atomic<std::uint64_t> forged;       // slots in a state that no agent makes
    std::atomic<std::uint64_t> messages, lost;
    std::atomic<std::uint64_t> hits, misses; // looks of a worker that found something staged, or nothing while requests waited
    std::atomic<std::uint64_t> groups, groups_refused;
    std::atomic<std::uint64_t> bells;        // rung for an agent that slept
    std::atomic<std::uint64_t> local;        // requests that ran without a decision while it was active
    std::atomic<std::uint64_t> preempted, yielded;  // requests that left their worker and were offered again
    std::atomic<std::uint64_t> asked;        // those among them that left because the agent said so, and not a quantum
    std::atomic<std::uint64_t> asks_in_vain; // of the agent, for what did not run any more; added to by workers without the role
    std::atomic<std::uint64_t> asks_refused; // of the agent, for what ran and could not be left; likewise
    Histogram stages[seat_stages];
    Histogram age;                           // of decisions, when a worker took them up: the staleness window
};
// Who changes this, or another layout of a seat, raises agent_protocol: an agent of an older build is to be told so, and not to guess.
static_assert(agent_protocol == 3 && sizeof(SeatNumbers) == 8 * (outcome_count + 14) + sizeof(Histogram) * (seat_stages + 1));

struct SeatLayout {
    std::uint32_t workers = 0, records = 0, ring_capacity = 0;
    std::uint64_t ring = 0, request_words = 0, worker_words = 0, seat_workers = 0, times = 0, numbers = 0, view_size = 0;
    std::uint64_t desks = 0, desk_size = 0;
};

// Throws invalid_argument for numbers out of range (1 … most_…; the ring a power of two).
SeatLayout seat_layout(std::uint32_t workers, std::uint32_t records, std::uint32_t ring_capacity);

using StatusWord = StatusEntry<7>;

// Addresses within a mapped pair of regions.
struct SeatMap {
    SeatLayout layout;
    std::byte* view = nullptr;
    std::byte* desk = nullptr;

    [[nodiscard]] ViewHeader& view_header() const noexcept { return *reinterpret_cast<ViewHeader*>(view + page_bytes); }
    [[nodiscard]] RingSlot& ring_slot(std::uint32_t position) const noexcept {
        return reinterpret_cast<RingSlot*>(view + layout.ring)[position & (layout.ring_capacity - 1)];
    }
    [[nodiscard]] StatusWord& request_word(std::uint32_t record) const noexcept { return reinterpret_cast<StatusWord*>(view + layout.request_words)[record]; }
    [[nodiscard]] StatusWord& worker_word(std::uint32_t worker) const noexcept { return reinterpret_cast<StatusWord*>(view + layout.worker_words)[worker]; }
    [[nodiscard]] SeatWorker& seat_worker(std::uint32_t worker) const noexcept { return reinterpret_cast<SeatWorker*>(view + layout.seat_workers)[worker]; }
    [[nodiscard]] RequestTimes& times(std::uint32_t record) const noexcept { return reinterpret_cast<RequestTimes*>(view + layout.times)[record]; }
    [[nodiscard]] SeatNumbers& numbers() const noexcept { return *reinterpret_cast<SeatNumbers*>(view + layout.numbers); }
    [[nodiscard]] DeskHeader& desk_header() const noexcept { return *reinterpret_cast<DeskHeader*>(desk + page_bytes); }
    [[nodiscard]] WorkerDesk& worker_desk(std::uint32_t worker) const noexcept { return reinterpret_cast<WorkerDesk*>(desk + layout.desks)[worker]; }
};

// Time as a seat counts it: ticks of this machine, or of a virtual clock at 10^9 a second (then all of it is that clock's).
class SeatClock {
public:
    SeatClock() = default;
    explicit SeatClock(const std::uint64_t* virtual_ns) noexcept : virtual_ns_(virtual_ns) {}
    [[nodiscard]] std::uint64_t ticks() const noexcept { return virtual_ns_ == nullptr ? teal::ticks() : *virtual_ns_; }
    [[nodiscard]] std::uint64_t now_ns() const noexcept { return virtual_ns_ == nullptr ? static_cast<std::uint64_t>(monotonic_ns()) : *virtual_ns_; }
    [[nodiscard]] std::uint64_t to_ns(std::uint64_t interval) const noexcept {
        return virtual_ns_ == nullptr ? static_cast<std::uint64_t>(ticks_to_ns(interval)) : interval;
    }
    [[nodiscard]] bool is_virtual() const noexcept { return virtual_ns_ != nullptr; }

private:
    const std::uint64_t* virtual_ns_ = nullptr;
};

}  // namespace teal
