// The device control line: how a client tells a resident kernel "run", and hears "done". And the directory, which says what
// a line means.
//
// Theory of operation. A line is two cache lines with one writer each. The client stores the next generation in the request
// line; the resident kernel, which polls it, runs the line's task, then stores the same generation in the reply line. That is
// all a client can say: which tensors, which weights, how many items stand in the directory, memory that no client maps, so
// a hostile client disturbs its own line and nothing else. The kernel never reads back what it stored in a reply line
// either (the client maps it writable): what it has done stands in the directory's ledger.
//
// A resident kernel leaves after an idle time. So that no request is lost at that moment, both sides store, fence, then look:
//
//     client: request.generation = g;  fence;  look at reply.state       parked: ask the worker to launch the kernel again
//     kernel: reply.state = parked;    fence;  look at all requests      any there: take parked back and go on
//
// Whatever the order, one of the two sees the other's store (tests/model/park.py explores it). The kernels themselves are
// core/device/resident.cpp (CPU) and src/teal/device/source/ (OpenCL C, CUDA); all three keep to the layouts below.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace teal {

enum class LineStatus : std::uint32_t { ok = 0, invalid = 1, failed = 2 };
enum class LineState : std::uint32_t { parked = 0, resident = 1, lost = 2 };

struct alignas(64) RequestLine {  // written by the client
    std::atomic<std::uint32_t> generation;
    std::uint8_t reserved[60];
};

struct alignas(64) ReplyLine {  // written by the resident kernel; by the worker when the kernel is lost, by the host when the worker is
    std::atomic<std::uint32_t> generation;  // done up to here
    std::atomic<std::uint32_t> status;      // LineStatus of that generation
    std::atomic<std::uint32_t> state;       // LineState
    std::atomic<std::uint32_t> epoch;       // which launch of the kernel wrote last
    // Lines of a session's slots; written by the worker before the kernel is told of the line.
    std::atomic<std::uint32_t> stamp;       // of the descriptor block whose tensors the directory has
    std::atomic<std::uint32_t> owner;       // worker + 1, or 0
    std::atomic<std::uint32_t> limit_ns;    // a client whose calls take longer asks by the ring, where the worker judges; 0: none
    std::uint8_t reserved[36];
};

struct DeviceLine {
    RequestLine request;
    ReplyLine reply;
};
static_assert(sizeof(RequestLine) == 64 && sizeof(ReplyLine) == 64 && sizeof(DeviceLine) == 128);
static_assert(offsetof(ReplyLine, epoch) == 12 && offsetof(ReplyLine, limit_ns) == 24);

inline constexpr std::uint32_t directory_magic = 0x52445454;  // "TTDR"
inline constexpr std::uint32_t directory_layout = 1;
inline constexpr std::uint32_t directory_capacity = 256;  // lines of one resident kernel
inline constexpr std::uint32_t directory_regions = 64;    // regions a kernel is given as arguments; a client takes two

struct alignas(64) DirectoryHeader {  // written by the worker
    std::uint32_t magic;
    std::uint32_t layout;
    std::atomic<std::uint32_t> version;  // raised after a change of the entries; read together with quit, as one 64-bit word
    std::atomic<std::uint32_t> quit;
    std::uint32_t count;                 // entries [0, count) are looked at
    std::uint32_t epoch;                 // raised before each launch
    std::uint64_t idle;                  // leave after so long without a request, in units of the kernel's clock
    std::uint32_t backoff;               // longest pause between two looks, in units of the kernel's relax
    std::uint8_t reserved[28];
};

struct alignas(64) DirectoryPulse {  // written by the kernel
    std::atomic<std::uint32_t> version;  // of the entries that the kernel works from: it has read them all
    std::atomic<std::uint32_t> state;    // LineState of the kernel as a whole
    std::atomic<std::uint32_t> epoch;
    std::uint32_t reserved0;
    std::atomic<std::uint64_t> runs;
    std::atomic<std::uint64_t> polls;  // looks at the lines, raised every 1024 and when leaving
    std::uint8_t reserved[32];
};

// Written by the worker. A kernel copies all entries when it sees a new version, and works from its copy, so whoever takes an
// entry away (active = 0) or changes it raises the version and waits for the pulse before the entry's memory is used again.
struct alignas(64) DirectoryEntry {
    std::uint32_t active;
    std::uint32_t batch;
    std::uint64_t line;        // offset of the DeviceLine in its region
    std::uint8_t regions[8];   // argument numbers of: line, weights, in, out0, out1
    std::uint64_t offsets[4];  // of weights, in, out0, out1
    std::uint8_t reserved[8];
};

struct Directory {
    DirectoryHeader header;
    DirectoryPulse pulse;
    DirectoryEntry entries[directory_capacity];
    std::uint32_t ledger[directory_capacity];  // written by the kernel: generation done, by entry
};
static_assert(sizeof(DirectoryHeader) == 64 && sizeof(DirectoryPulse) == 64 && sizeof(DirectoryEntry) == 64);
static_assert(offsetof(DirectoryHeader, idle) == 24 && offsetof(DirectoryEntry, regions) == 16 && offsetof(DirectoryEntry, offsets) == 24);
static_assert(offsetof(Directory, ledger) == 128 + 64 * directory_capacity);

enum class Answer : std::uint32_t {
    done = 0,     // the outputs are there
    invalid = 1,  // the directory's entry makes no sense to the kernel
    failed = 2,
    parked = 3,   // no kernel is looking: ask the worker, then wait again; the request stands
    lost = 4,     // the kernel is gone for good: this line is of no more use
    late = 5,     // the deadline passed; the request stands
};

// Will nobody touch the tensors any more for that generation's sake?
[[nodiscard]] inline bool settled(const DeviceLine& line, std::uint32_t generation) noexcept {
    // SYNC: acquire pairs with the kernel's release of reply.generation: it is done with the tensors.
    return line.reply.generation.load(std::memory_order_acquire) == generation ||
           line.reply.owner.load(std::memory_order_acquire) == 0 ||  // taken from the kernel, with nobody to ask again
           line.reply.state.load(std::memory_order_acquire) == static_cast<std::uint32_t>(LineState::lost);
}

// Asks for one run and returns the generation to wait for. One thread a line.
std::uint32_t ask(DeviceLine& line) noexcept;

// Waits for a generation of ask(); spins for `spin_ns`, then sleeps in short naps until `timeout_ns` have passed since the call.
Answer await(const DeviceLine& line, std::uint32_t generation, std::uint64_t timeout_ns, std::uint64_t spin_ns) noexcept;

}  // namespace teal
