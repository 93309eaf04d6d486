// Where the network loop takes calls to: whoever runs a session's program.
//
// Theory of operation. A session that is called from elsewhere has one sink, made by whoever opened it (a box's Caller, or a function of this
// process in tests and in trusted `inline` sessions). The loop owns the order: it hands in one ask at a time, polls until that one is
// answered, copies the answer, then hands in the next. All five functions are called by the loop's thread alone, never block, never
// throw, and allocate nothing on the way of a small call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace teal::duck {

struct Ask {
    std::uint64_t seq = 0;               // of the session; the sink may number its own line as it likes
    std::uint32_t op = 0;                // box::AskOp: 1 call, 2 clear the output buffer, 3 go over to another input buffer
    std::span<const std::byte> args;     // valid until submit() returns
};

// How a call ended, as it crosses the wire. `ran` says whether the program returned; all else is the duck's word.
enum class Outcome : std::uint32_t {
    ran = 0,        // `result` is the program's: bytes at the start of the output buffer, or negative its own status
    fate = 1,       // the session ended: `result` = box::Fate << 32 | detail (low half, signed)
    refused = 2,    // not run, and never will be: `result` = an errno (E2BIG, EINVAL, EAGAIN…)
    cancelled = 3,  // taken back before it began
    unknown = 4,    // no such session on this connection
    forgotten = 5,  // asked for again after the stored answer was overwritten: it may have run
};

struct Answer {
    Outcome outcome = Outcome::ran;
    std::int64_t result = 0;
    std::uint64_t took_ns = 0;           // in the program; 0: not known
    std::span<const std::byte> bytes;    // the first `result` bytes of the output buffer; valid until the next submit()
};

class CallSink {
public:
    virtual ~CallSink() = default;
    // Starts it. False: it cannot be started now or ever, and `refusal` says how it ended instead.
    virtual bool submit(const Ask& ask, Answer& refusal) noexcept = 0;
    // True once: the ask that was submitted last has been answered.
    virtual bool poll(Answer& answer) noexcept = 0;
    // Nobody wants the answer any more. True: it had not begun, and will not; false: it runs on, and poll() will see it end.
    virtual bool cancel() noexcept { return false; }
    // Does whoever runs the program poll on the very CPU of this thread? Then the loop gives way to it.
    [[nodiscard]] virtual bool in_the_way() const noexcept { return false; }
};

}  // namespace teal::duck
