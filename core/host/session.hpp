// A session: one client's connection to one pool, as memory.
//
// Layout of a session region:
//   RegionHeader (4096) | SessionHeader | request ring | completion lines[slots] | after lines[slots] |
//   device lines[slots] | ClientStages[64]
// Everything after the first page is writable by the client. The host formats it and remembers the
// sizes in the pool region (host/pool.hpp); workers use those, never the copy in here.
//
// Sleeping: before the leader of a pool sleeps it raises need_wake in every session and looks at every ring once
// more; a client that has published a request takes need_wake down, and if it was up bumps its doorbell and wakes
// whoever sleeps on it. Both change the flag with an exchange: the second of the two sees what was done before the
// first. Only the client takes it down: a worker that has just lost the lead could take it from the one that sleeps by
// now. The flag and the word are the client's own, so a hostile client only disturbs itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/line.hpp"
#include "memory/descriptor.hpp"
#include "memory/region.hpp"
#include "queue/histogram.hpp"
#include "queue/request.hpp"
#include "queue/ring.hpp"

namespace teal {

inline constexpr std::uint32_t session_magic = 0x53534554;  // "TESS"

inline constexpr std::uint32_t max_core_marks = 40;  // workers beyond share them
// This thread's core as a mark; many cores share one on large machines, which costs a needless yield at worst.
[[nodiscard]] std::uint8_t core_mark() noexcept;

struct SessionHeader {
    std::uint32_t magic;          // session_magic
    std::uint32_t abi;            // abi_version
    std::uint32_t slots;          // completion lines; ring capacity is the next power of two
    std::uint32_t ring_capacity;
    std::uint32_t index;          // in the pool's session table
    std::uint32_t epoch;          // of that table entry
    // Where the pool's workers were last seen, each its own: core_mark(), 0: nowhere. A client that spins gives way to them only.
    std::atomic<std::uint8_t> worker_cores[max_core_marks];
    alignas(64) std::atomic<std::uint32_t> doorbell;   // client bumps it, then wakes; the leader sleeps on it
    std::atomic<std::uint32_t> ends;                   // client: words of its lines that it has ended itself, round and round
    std::uint8_t pad1[56];
    alignas(64) std::atomic<std::uint32_t> need_wake;  // 1: a leader sleeps or is about to; raised by it, taken down by the client that rings
    std::uint8_t pad2[60];
};
static_assert(sizeof(SessionHeader) == 192);

// What a client sees of its calls of one model. Written by the client: the host shows it, and believes it no further.
struct ClientStages {
    std::atomic<std::uint32_t> model;      // index of the model + 1; 0: not in use
    std::uint32_t pad;
    std::atomic<std::uint64_t> requests;   // ended
    std::atomic<std::uint64_t> copies_in;  // arrays copied into slots
    std::atomic<std::uint64_t> bytes_in;
    std::atomic<std::uint64_t> direct;     // of the requests: answered by a resident device kernel, without a worker
    std::atomic<std::uint64_t> relayed;    // of the requests: this client passed others' outputs on to them
    Histogram copy;                        // copying arrays into the slot
    Histogram wake;                        // kernel left → client saw it
    Histogram total;                       // submit → client saw it
};
inline constexpr std::uint32_t stages_per_session = 64;  // the last one is shared by all models that found no other; 7 KiB each

struct SessionLayout {
    std::uint32_t slots;
    std::uint32_t ring_capacity;
    std::uint64_t ring;        // offsets from the region's start
    std::uint64_t lines;
    std::uint64_t afters;
    std::uint64_t devices;
    std::uint64_t stages;
    std::uint32_t stage_count;
    std::uint64_t size;
};

// slots: 1..65536; stages: how many ClientStages
SessionLayout session_layout(std::uint32_t slots, std::uint32_t stages = stages_per_session) noexcept;

struct BpfStages;

// What one process knows of a session: trusted numbers and where it mapped things.
struct SessionMap {
    std::uint32_t index = 0;
    std::uint32_t epoch = 0;
    SessionLayout layout{};
    bool no_futex = false;                       // its memory is a BPF map's: nobody can sleep on a word in it
    BpfStages* bpf_stages = nullptr;             // of such a session (host/bpf_session.hpp)
    std::shared_ptr<Region> session;
    std::vector<std::shared_ptr<Region>> owned;  // tensor regions by id; null where returned
    std::vector<RegionView> views;               // the same for descriptor checks

    [[nodiscard]] SessionHeader* header() const noexcept { return reinterpret_cast<SessionHeader*>(session->base() + page_bytes); }
    [[nodiscard]] RingHeader* ring() const noexcept { return reinterpret_cast<RingHeader*>(session->base() + layout.ring); }
    [[nodiscard]] CompletionLine* lines() const noexcept { return reinterpret_cast<CompletionLine*>(session->base() + layout.lines); }
    [[nodiscard]] AfterLine* afters() const noexcept { return reinterpret_cast<AfterLine*>(session->base() + layout.afters); }
    [[nodiscard]] DeviceLine* devices() const noexcept { return reinterpret_cast<DeviceLine*>(session->base() + layout.devices); }
    [[nodiscard]] ClientStages* stages() const noexcept { return reinterpret_cast<ClientStages*>(session->base() + layout.stages); }
    void set_region(std::uint32_t id, std::shared_ptr<Region> region);  // null forgets it
};

// Host: makes and formats the region. `slots` bounds the client's requests in flight.
std::shared_ptr<Region> create_session_region(std::uint32_t slots, std::uint32_t index, std::uint32_t epoch);

// What create_session_region() writes after the first page of zeroed memory.
void format_session(Region& region, const SessionLayout& layout, std::uint32_t index, std::uint32_t epoch) noexcept;

// Anyone: adopts the descriptor (always consumed) and checks its size against `slots`.
std::unique_ptr<SessionMap> map_session(int fd, std::uint32_t index, std::uint32_t epoch, std::uint32_t slots, Header header = Header::checked);

// Flags in the high bits of a completion word.
inline constexpr std::uint16_t word_released = 1;   // the worker side no longer touches the slot
inline constexpr std::uint16_t word_reshaped = 2;   // output shapes were written into the descriptor block
inline constexpr std::uint16_t word_message = 4;    // a message was written into the descriptor block

struct Ending {
    State state = State::done;
    Reason reason = Reason::none;
    std::uint16_t flags = word_released;
    std::uint32_t version = 0;
    std::uint32_t detail = 0;
    std::uint64_t started = 0;
    std::uint64_t ended = 0;
    std::uint64_t copied_in = 0;
    std::uint64_t copied_out = 0;
};

// Worker, before it runs a kernel whose effects can be noticed: from here on the client's cancel() comes too
// late. False when the client ended the request first: it must not run.
bool claim_request(CompletionLine& line, std::uint32_t generation) noexcept;

// Worker or host: nobody on this side touches the slot's memory any more. An old generation that the client has long
// left behind changes nothing.
void release_slot(CompletionLine& line, std::uint32_t generation) noexcept;

// Worker or host: ends generation `generation` of a line, wakes its waiter. False when it had ended already
// (the client cancelled, the host expired it); `released` is then stored instead when the ending says so.
bool end_request(CompletionLine& line, std::uint32_t generation, const Ending& ending) noexcept;

// How a request ended, as its client sees it; `otherwise` when the line is about another generation.
inline State state_seen(const CompletionLine& line, std::uint32_t generation, State otherwise) noexcept {
    const std::uint64_t word = line.word.load(std::memory_order_acquire);
    return has_ended(word, generation) ? state_of(word) : otherwise;
}

}  // namespace teal
