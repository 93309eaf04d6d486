// A load that does not wait for its answers: requests come when they were meant to, however late the ones before them are.
//
// Theory of operation: the arrivals are drawn beforehand; step() submits those that are due and takes what has ended, and is called again and
// again by whoever owns the core, so that an agent's loop may share it. A request's latency counts from its intended arrival, also when it
// waited here for a slot or for the caller, until a step sees its end: the load's own lateness is in it and is reported beside it.
// With all arrivals at 0 and a bound on what is out it is a load at saturation: `most_out` are out at any time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/client.hpp"

namespace teal {

// What one kind of request is sent with: slots for as many as may be out at once, all alike. Each stays its owner's.
struct OpenSlot {
    std::shared_ptr<ClientSession> session;
    std::shared_ptr<ClientSlot> slot;
    std::uint32_t model = 0;
    std::uint32_t version = 0;
};
struct OpenKind {
    std::vector<OpenSlot> slots;
    bool writes = false;                   // the arrival's value goes into the first 8 bytes of input 0
};

struct OpenArrival {
    std::uint64_t at_ns = 0;               // from the start
    std::uint32_t kind = 0;
    std::int64_t value = 0;
};

struct OpenResult {
    std::vector<std::uint64_t> latency_ns; // by arrival; UINT64_MAX: it did not end, or ended otherwise than done
    std::vector<std::uint64_t> ended_ns;   // from the start: when it was seen
    std::uint64_t started_ns = 0;          // CLOCK_MONOTONIC, of the start
    std::uint64_t most_late_ns = 0;        // from an arrival to its submission, where nothing but the load itself was in the way
    std::uint32_t failed = 0;
    std::string failure;                   // the first one
};

class OpenLoop {
public:
    // Throws invalid_argument for a kind out of range, one without slots or with an input too small for a value, times that go back.
    OpenLoop(std::vector<OpenKind> kinds, std::vector<OpenArrival> arrivals, std::uint32_t most_out);

    // False once all have ended. The first call is the start.
    bool step();
    [[nodiscard]] const OpenResult& result() const noexcept { return result_; }
    [[nodiscard]] std::size_t ended() const noexcept { return ended_; }
    [[nodiscard]] std::size_t out() const noexcept { return out_.size(); }

private:
    struct Out {
        OpenSlot* slot;
        std::uint32_t kind;
        std::uint32_t arrival;
    };
    bool submit(std::uint64_t now);
    void take();
    void end(const Out& out, std::uint64_t now);
    void fail(std::uint32_t arrival, std::string why);

    std::vector<OpenKind> kinds_;
    std::vector<OpenArrival> arrivals_;
    std::uint32_t most_out_;
    std::vector<std::deque<OpenSlot*>> free_;  // by kind; the one that has rested longest first
    std::vector<Out> out_;
    OpenResult result_;
    std::uint64_t start_ = 0;                  // ticks
    std::size_t next_ = 0;
    std::size_t ended_ = 0;
    bool held_up_ = false;                     // the next arrival waits for a slot
};

// Steps until all have ended; `between` runs after each step, then this thread sleeps for `nap_ns` (0: it does not). Throws peer_died when
// nothing has ended for `patience_ns`.
void run_open_loop(OpenLoop& loop, const std::function<void()>& between, std::uint64_t patience_ns, std::uint64_t nap_ns = 0);

}  // namespace teal
