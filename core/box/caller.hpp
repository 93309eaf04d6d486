// A caller: calls a resident session on this machine with nobody in between.
//
// Theory of operation. control.hpp has the protocol. The caller maps the control region and the fate page, and believes neither what the box writes
// nor sizes that lie in shared memory: it knows them from the yard's answer. submit() writes an ask, poll() looks for the answer once,
// wait() looks for it until a deadline: it spins, then sleeps in naps, and between naps looks at the fate page and at the yard's heart.
// Every wait has a bound: without a deadline it is the session's bound for a call and some slack.
//
// One call is in flight at a time. A caller whose wait() ended with `late` still has its call in flight; further answers of that call
// can be waited for, and submit() says busy until it is over.
//
// Threads: one at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "box/box.hpp"

namespace teal::box {

enum class Outcome : std::uint8_t {
    done,       // `result` is the program's
    pending,    // not answered yet (poll)
    late,       // the deadline has passed; the call is still in flight
    busy,       // submit(): a call is in flight
    too_long,   // submit(): more arguments than the session takes
    ended,      // the session is over: `ending`
    lost,       // no word from the yard, nor from the box
};

struct Answer {
    Outcome outcome = Outcome::pending;
    std::int64_t result = 0;            // bytes at the start of the output buffer, at most ob_bytes; negative: the program's status
    bool clamped = false;               // it said more than there can be
    std::uint64_t began = 0, done = 0;  // ticks, as the box says: for statistics only
    Ending ending{};                    // outcome ended
};

class Caller {
public:
    // Maps both; the descriptors stay the caller's to close. Throws invalid_argument when they are not what `facts` says.
    Caller(int control_fd, int fate_fd, const SessionFacts& facts);
    ~Caller();
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;

    // 64-bit deadlines are CLOCK_MONOTONIC ns; 0: the session's own bound.
    Answer call(const void* args, std::uint64_t bytes, std::uint64_t deadline_ns = 0) noexcept;
    Outcome submit(const void* args, std::uint64_t bytes, AskOp op = AskOp::call) noexcept;
    Answer poll() noexcept;
    Answer wait(std::uint64_t deadline_ns = 0) noexcept;
    Answer clear(std::uint64_t deadline_ns = 0) noexcept;   // zeros the output buffer
    // Goes over to an input buffer that the yard has mapped before (Session::map); 0: to none. Result -ENOENT: it has not, or forgot it.
    Answer use(std::uint64_t id, std::uint64_t deadline_ns = 0) noexcept;

    // In place: where the next call's arguments go (args_bytes of room), for submit_in_place(). Not while a call is in flight.
    [[nodiscard]] std::byte* args() noexcept;
    Outcome submit_in_place(std::uint64_t bytes, AskOp op = AskOp::call) noexcept;

    // A call that may have come to the box directly already, under this number: it runs once.
    Outcome submit_once(std::uint64_t number, const void* args, std::uint64_t bytes) noexcept;
    // Session::bell_fd(), kept open by whoever gives it: how a box is woken that sleeps on its sockets.
    void set_bell(int fd) noexcept { bell_ = fd; }

    [[nodiscard]] bool in_flight() const noexcept;
    // Does the box poll on the CPU that this thread runs on? Then who polls for its answer should give way.
    [[nodiscard]] bool in_the_way() const noexcept;
    [[nodiscard]] std::uint64_t calls() const noexcept { return seq_; }
    [[nodiscard]] const SessionFacts& facts() const noexcept { return facts_; }
    [[nodiscard]] std::byte* output() noexcept;             // ob_bytes; written by the program during calls
    [[nodiscard]] Ending ending() const noexcept;           // what the fate page says
    void set_spin(std::uint64_t ns) noexcept { spin_ns_ = ns; }   // how long wait() polls before it sleeps

private:
    Answer look(std::uint64_t now) noexcept;
    ControlPage* page_ = nullptr;
    const FatePage* fate_ = nullptr;
    SessionFacts facts_;
    std::uint64_t seq_ = 0;       // of the last ask
    std::uint64_t asked_ns_ = 0;  // when, roughly; 0: wait() has not looked yet
    std::uint64_t spin_ns_ = 200'000;
    bool in_flight_ = false;
    int bell_ = -1;
};

}  // namespace teal::box
