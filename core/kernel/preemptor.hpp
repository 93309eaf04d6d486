// Takes the thread away from a kernel that runs on it: because its slice is over, or because somebody asks.
//
// Theory of operation. A kernel that may be left at any instruction runs on a fiber, and says by a Gate when it may (kernel/kernel.hpp). A
// timer of the thread, or a byte in a pipe that an agent holds the other end of, brings a signal to the thread. The signal's frame comes to lie
// on the fiber's stack, with every register in it; the handler leaves the fiber, and so the thread's own loop goes on where it entered it.
// When the fiber is entered again, the handler returns, and with it the kernel goes on as if nothing had been.
//
// Away from a kernel, or while its gate is shut, a signal leaves a note and nothing else; the gate looks at the note when it opens.
//
// The signal is SIGURG, which by default is ignored: one that comes too late, or to a process whose handler somebody replaced, does no harm. It
// is blocked in its handler only, which calls nothing but system calls and what the worker gives it as `wanted`, none of which takes a lock
// or memory. A thread that has other signals blocked is in another handler, and is not left from there.
//
// The timer is set lazily. One that goes off before the slice is over is set again by the handler, so requests that end within their slice
// cost no system call each: at most one for a slice's time. From a timer to its handler it takes microseconds (12 on a virtual machine); how
// many is learned, and the timer set so much earlier.
//
// One thread's own, except where it says otherwise. What a fiber that is left was asked for does not outlive the run: see name().
#pragma once

#include <atomic>
#include <cstdint>
#include <csignal>
#include <ctime>
#include <string>
#include <vector>

#include "kernel/fiber.hpp"
#include "kernel/kernel.hpp"

namespace teal {

class Preemptor final : public Gate {
public:
    Preemptor() = default;
    ~Preemptor();

    // On the thread that is to run kernels: makes its timer and sees to the signal. False, with `why`: it cannot be had here.
    bool open(std::string& why);
    [[nodiscard]] bool is_open() const noexcept { return opened_; }

    // What runs next, as asks name it. Older asks are void.
    static constexpr std::uint64_t name_of(std::uint32_t record, std::uint32_t generation) noexcept { return record | std::uint64_t{generation} << 32; }
    void name(std::uint64_t running) noexcept;
    // From now on it may run so long; 0: as long as it likes. `timer`: not for kernels that look for themselves (request_pending()).
    void arm(std::uint64_t slice_ns, bool timer = true) noexcept;
    // No signal comes from the timer any more; for what must not be interrupted in a system call.
    void disarm() noexcept;
    [[nodiscard]] bool armed() const noexcept { return armed_until_ != 0; }
    // Runs or goes on with a fiber. True: it has come to its end; false: it was left, or left by itself.
    bool go(Fiber& fiber) noexcept;

    // Is the slice over, or was it asked to leave? For kernels that look for themselves.
    [[nodiscard]] bool request_pending() noexcept;
    // Of the last that left: was it asked, or was its time over?
    [[nodiscard]] bool was_asked() const noexcept { return asked_; }

    // When a slice is over: is there anything that the thread is wanted for? If not, another slice begins. Called in the handler.
    bool (*wanted)(void* context) = nullptr;
    void* wanted_context = nullptr;

    // An agent's word for this worker: it holds the name of what is to leave. Believed only while that runs, and then set to 0. Null takes
    // it back.
    void watch(std::uint32_t seat, std::atomic<std::uint64_t>* word) noexcept;
    // Takes the reading end of a pipe, whose writer is to look at its word with every byte. False, with `why`; the descriptor is closed then.
    bool listen(std::uint32_t seat, int fd, std::string& why);
    void forget(std::uint32_t seat) noexcept;  // both
    // Does each ask that it watches for ring as well? Else it is found when the timer goes off.
    [[nodiscard]] bool is_rung() const noexcept;
    [[nodiscard]] bool listens() const noexcept;  // may anybody ask?
    // Whoever finds out otherwise that what runs is to leave; this thread, or its handler.
    void note_ask() noexcept;

    static constexpr std::uint32_t most_seats = 4;

    // Figures, for tests and statistics.
    [[nodiscard]] std::uint64_t signals() const noexcept { return signals_; }
    [[nodiscard]] std::uint64_t in_vain() const noexcept { return in_vain_; }  // asks that named what does not run

private:
    static void on_signal(int number, siginfo_t* info, void* context) noexcept;
    void opened() noexcept override;   // Gate: with a note pending
    void notice(const siginfo_t& info, bool elsewhere) noexcept;
    void consider() noexcept;
    [[nodiscard]] bool must_leave() noexcept;
    [[nodiscard]] bool is_asked() noexcept;
    void set_timer(std::uint64_t ticks_from_now) noexcept;    // its handler is to be called then
    void start_timer(std::uint64_t ticks_from_now) noexcept;  // it is to go off then
    void learn() noexcept;
    void hear(std::uint32_t seat) noexcept;

    bool opened_ = false;
    bool asked_ = false;
    timer_t timer_{};
    std::uint64_t mask_ = 0;         // signals that are blocked while a kernel runs
    Fiber* fiber_ = nullptr;
    std::uint64_t running_ = 0;
    std::uint64_t slice_ = 0;        // ticks
    std::uint64_t slice_end_ = 0;    // ticks; 0: none
    std::uint64_t armed_until_ = 0;  // ticks: when its handler is expected to be called; 0: it is not
    std::uint64_t lateness_ = 0;     // ticks from a timer's time to its handler, as learned
    std::uint64_t goes_off_ = 0;     // ticks: the time that it was set to
    std::atomic<std::uint64_t>* words_[most_seats]{};
    std::uint64_t refused_[most_seats]{};  // asks that were found in vain, so that each counts once
    std::uint32_t calls_[most_seats]{};    // bytes of its pipe since it last asked for what ran
    int pipes_[most_seats]{-1, -1, -1, -1};
    std::uint64_t signals_ = 0;
    std::uint64_t in_vain_ = 0;
};

}  // namespace teal
