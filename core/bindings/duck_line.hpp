// A line: the way that calls of one duck session take, and what Python sees of them.
//
// Theory of operation. On this machine (near) it is a box::Caller on the session's control memory, elsewhere (far) a
// duck::RemoteSession. One call is out at a time: `pending` from begin() until its end was seen. State is guarded by the GIL, which wait() gives
// away only while nobody but itself looks at the transport (`waiting`).
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>

#include "bindings/tensor.hpp"
#include "box/control.hpp"

namespace teal {

struct CallEnd {
    std::int64_t result = 0;      // bytes at the start of the output buffer, or the program's negative status
    std::uint64_t program_ns = 0; // in the program; 0: not known
};

// One transport. Throws Error for a session that is over; `who` names it in messages.
class Line {
public:
    explicit Line(std::string who) : who_(std::move(who)) {}
    virtual ~Line() = default;
    Line(const Line&) = delete;
    Line& operator=(const Line&) = delete;

    virtual std::byte* args() = 0;                  // where the next call's arguments go
    virtual void begin(const void* args, std::uint64_t bytes, box::AskOp op) = 0;
    virtual void begin_in_place(std::uint64_t bytes) = 0;
    // True: it has ended. `until_ns` of CLOCK_MONOTONIC; 0: looks once. Without the GIL, but not for looking once.
    virtual bool wait(std::uint64_t until_ns, CallEnd& end) = 0;
    virtual std::byte* output() = 0;
    virtual void take_back() {}                     // nobody wants the answer any more
    [[nodiscard]] virtual bool ended() = 0;         // the session has ended: no call can be made. Costs a load.
    [[nodiscard]] virtual bool over() = 0;          // the same, or the duck is gone; may cost a system call
    virtual void close() = 0;                       // of this side only
    [[nodiscard]] virtual bool near() const = 0;
    [[nodiscard]] virtual std::uint64_t direct_calls() const { return 0; }   // straight to a box elsewhere
    [[nodiscard]] virtual bool direct() const { return false; }              // the next one may go there

    std::uint64_t args_bytes = 0;
    std::uint64_t ob_bytes = 0;

protected:
    std::string who_;
};

[[noreturn]] void throw_fate(const std::string& who, box::Fate fate, std::int32_t detail);

// What Python holds.
struct DuckLine {
    std::shared_ptr<Line> line;
    bool pending = false;
    bool abandoned = false;           // the pending call's answer is dropped when it comes
    bool waiting = false;             // a thread waits without the GIL
    bool closed = false;
    std::uint64_t generation = 0;     // calls begun
    std::uint64_t prepared_calls = 0;
    CallEnd end{};                    // of the last call that has ended
    nb::object shown;                 // the last answer's tensor
    std::uint32_t forks = fork_generation.load(std::memory_order_relaxed);

    explicit DuckLine(std::shared_ptr<Line> l) : line(std::move(l)) {}
    DuckLine(const DuckLine&) = delete;
    DuckLine& operator=(const DuckLine&) = delete;
    ~DuckLine();

    void check_ready();               // throws Closed, Busy
    bool look();                      // has the pending call ended?
    bool wait(std::uint64_t until_ns);// 0: as long as it takes
    nb::object answer();              // throws KernelFailed
    void close();
};

void bind_duck_line(nb::module_& m);
nb::object duck_line(std::shared_ptr<Line> line);

}  // namespace teal
