// The memory that a resident session and whoever calls it share: layouts and states.
//
// Theory of operation. A session's region (memfd) is a page of lines, a page with the ask line and the arguments after it, a log ring, and the
// output buffer. Three parties map it: the *box* (the process in which the program runs), the *caller* (a client on this machine, or the
// network loop of the duck for a client elsewhere), and the *yard* (who made the box). Each line has one writer. The program runs in the
// box with all of it writable, so caller and yard believe nothing in it: whatever they read is copied once and checked against what
// they know themselves (sizes never come from here). What the yard has to say that must not be forged lies in a page of its own, the
// *fate*, which the box can only read.
//
// A call: the caller writes arguments, op, bytes, then `seq` (release). The box polls `seq` together with the order line, runs, writes the answer's
// result, then the answer's `seq` (release). Both sides spin for a while and then sleep on the low half of the word they poll, after they
// said so in `sleeps` (store, full fence, look once more); the other side wakes whoever sleeps. One call is in flight at a time: the next
// `seq` is the last one plus one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace teal::box {

inline constexpr std::uint64_t control_magic = 0x4c54'5845'424f'5831ULL;
inline constexpr std::uint32_t control_version = 3;
inline constexpr std::uint32_t most_cores = 64;
inline constexpr std::uint64_t shortest_args = 4096;

enum class AskOp : std::uint16_t {
    call = 1,
    clear = 2,  // zero the output buffer, and call nothing
    map = 3,    // the input buffer from now on is the one that the yard mapped as the id in the arguments (8 bytes; 0: none); -ENOENT: it has not
    once = 4,   // a call that may have come directly already, with the number in OnceLine: run it, unless it has run
};

// Written once by the yard before anybody else maps the region.
struct alignas(64) ControlHeader {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t cores;
    std::uint64_t size;          // of the region
    std::uint64_t args_bytes;    // capacity behind AskLine::args
    std::uint64_t log_offset;
    std::uint64_t log_bytes;     // a power of two; 0: no log
    std::uint64_t ob_offset;     // whole pages from here to the end
    std::uint64_t ob_bytes;
};
static_assert(sizeof(ControlHeader) == 64);

// Yard → box: what only the yard may say (a new input buffer, an end). What it means comes over the box's socket, with descriptors.
struct alignas(64) OrderLine {
    std::atomic<std::uint64_t> seq;   // orders sent so far
    std::uint8_t reserved[56];
};
static_assert(sizeof(OrderLine) == 64);

enum class BoxState : std::uint32_t { starting = 0, ready = 1, refused = 2 /* init() said no: `status` */, ended = 3 /* serve() has returned */ };

// Box → yard.
struct alignas(64) OrderDoneLine {
    std::atomic<std::uint64_t> seq;   // orders done so far
    std::atomic<std::uint32_t> state; // BoxState
    std::int32_t status;              // of init(), or of the order that was done last: 0, or an errno
    std::uint8_t reserved[48];
};
static_assert(sizeof(OrderDoneLine) == 64);

// Box → caller.
struct alignas(64) AnswerLine {
    std::atomic<std::uint64_t> seq;     // of the ask that is answered
    std::int64_t result;                // bytes at the start of the output buffer; negative: the program's status
    std::uint64_t began;                // ticks: the box saw the ask
    std::uint64_t done;                 // ticks: the program returned
    std::atomic<std::uint32_t> sleeps;  // written by the *caller*: it sleeps on the low half of `seq`
    std::atomic<std::uint32_t> cpu;     // 1 + the CPU that core 0 is polling on, as the box says; 0: it does not say. Who waits on the same one gives way
    std::uint8_t reserved[24];
};
static_assert(sizeof(AnswerLine) == 64);

struct alignas(64) LogLine {
    std::atomic<std::uint64_t> written; // bytes ever written into the ring; box only
    std::uint8_t reserved[56];
};
static_assert(sizeof(LogLine) == 64);

struct alignas(64) BarrierLine {
    std::uint32_t arrived, phase;       // duck.h
    std::uint8_t reserved[56];
};
static_assert(sizeof(BarrierLine) == 64);

// Box → yard: direct calls, which are nowhere else to be seen. For the watch over their time, and for people.
struct alignas(64) DirectLine {
    std::atomic<std::uint64_t> begun, done;
    std::uint8_t reserved[48];
};
static_assert(sizeof(DirectLine) == 64);

// Caller → box, before an ask of AskOp::once.
struct alignas(64) OnceLine {
    std::uint64_t number;
    std::uint8_t reserved[56];
};
static_assert(sizeof(OnceLine) == 64);

// Caller → box. The first 40 bytes of the arguments share the line with `seq`; what follows lies in the lines after it.
struct alignas(64) AskLine {
    std::atomic<std::uint64_t> seq;
    std::atomic<std::uint32_t> sleeps;  // written by the *box*: 1, it sleeps on the low half of `seq`; 2, on its sockets (OrderOp::wake)
    AskOp op;
    std::uint16_t cpu;                  // where the caller ran when it asked, plus one; 0: it does not say. Who polls on the same one gives way
    std::uint64_t bytes;                // of the arguments
    std::byte args[40];                 // and on: `args_bytes` in all
};
static_assert(sizeof(AskLine) == 64 && offsetof(AskLine, args) == 24);

struct ControlPage {
    ControlHeader header;
    OrderLine order;
    OrderDoneLine order_done;
    AnswerLine answer;
    LogLine log;
    BarrierLine barrier;
    DirectLine direct;
    OnceLine once;
    std::uint8_t reserved[4096 - 8 * 64];
    AskLine ask;                        // a page of its own begins here
};
static_assert(offsetof(ControlPage, ask) == 4096);

// The yard's own words; the box and callers map it read-only. Callers look at it when they wait longer than they like.
enum class Fate : std::uint32_t {
    running = 0,
    closed,        // asked for
    exited,        // the program ended by itself: detail = exit status
    killed,        // by a signal: detail = signal number
    overdue,       // a call took longer than the session's bound: detail = ms
    memory,        // it wanted more than it may have
    refused,       // init() said no: detail = its status
    not_started,   // our fault: detail = errno
    lost,          // whoever ran it is gone
};

struct FatePage {
    std::uint64_t magic;
    std::uint32_t version;
    std::atomic<std::uint32_t> fate;    // Fate; release after `detail`
    std::int32_t detail;
    std::uint32_t box_pid;
    std::atomic<std::uint64_t> alive_ns;// CLOCK_MONOTONIC when the yard last looked; 0: it does not say
    std::uint8_t reserved[4096 - 32];
};
static_assert(sizeof(FatePage) == 4096);

}  // namespace teal::box
