// The yard: makes boxes, watches them, ends them, and leaves nothing behind.
//
// Theory of operation. A yard has one thread and one zygote, a small process (teal-box) in namespaces of its own that forks boxes on request and
// hands back a pidfd and a socket for each. Some boxes are made ahead of need. The thread waits for endings (the zygote says them, pidfds
// are the second witness) and looks every tick at calls that take longer than they may. What became of a box is written to its fate
// page, which only the yard can write, and whoever sleeps in the session is woken. The zygote dies with the yard, and all boxes with the
// zygote: it is the init process of their process namespace, or where there is none it kills them by hand.
//
// Threads. Every method of Yard may be called from any thread. A Session's methods too; orders to one box queue behind each other.
// After a fork, a yard belongs to the parent: in the child it does nothing, not even when it is destroyed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "box/box.hpp"
#include "box/judge.hpp"

namespace teal::box {

struct YardOptions {
    std::string program;                // path of teal-box
    std::uint32_t spares = 1;           // resident boxes kept ready
    std::uint32_t judge_spares = 1;     // boxes for judged runs kept ready; made once the first run was asked for
    std::uint64_t tick_ns = 20'000'000;
    std::uint64_t zygote_limit_ns = 10'000'000'000;  // how long a zygote may take to start or to answer
    bool demand_seccomp = true;         // false: works without (says so in report()). For machines that offer nothing, and trusted programs.
    bool groups = true;                 // cgroups, where they are delegated
    bool namespaces = true;             // false: as if there were none (tests)
};

// One thing that confines boxes, and whether this machine offers it.
struct Guard {
    std::string name;     // "user namespace", "seccomp", "landlock", …
    bool used = false;
    std::string detail;   // the version used, or why it is not and what would change that
};

struct YardStatistics {
    std::uint64_t zygotes_started = 0;
    std::uint64_t boxes_made = 0, boxes_used = 0, boxes_ended = 0;
    std::uint64_t spares_ready = 0, spares_waited_for = 0;   // an open or a run that found no spare box
    std::uint64_t sessions_open = 0, sessions_opened = 0;
    std::uint64_t ended_overdue = 0, ended_killed = 0, ended_exited = 0, ended_memory = 0, ended_refused = 0;
    std::uint64_t maps = 0, maps_first = 0;
    std::uint64_t runs = 0, runs_failed = 0;
    std::uint64_t last_box_ns = 0;      // how long the zygote took for the last box
    std::uint64_t last_open_ns = 0;     // from open() to ready
};

class Yard;

// A resident program, as its yard sees it. The box ends when the last reference goes.
class Session {
public:
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    [[nodiscard]] const SessionFacts& facts() const noexcept;
    [[nodiscard]] int control_fd() const noexcept;   // mapped read-write by callers
    [[nodiscard]] int fate_fd() const noexcept;      // nobody but the yard can write it
    [[nodiscard]] Ending ending() const noexcept;    // running: not ended yet
    // The box has ended and is reaped, or `limit_ns` has passed (false).
    bool wait_ended(std::uint64_t limit_ns) const;
    [[nodiscard]] int bell_fd() const noexcept;      // for Caller::set_bell(): of a session with direct calls, else -1
    [[nodiscard]] std::uint64_t direct_calls() const noexcept;   // so far, as the box says: for people only
    [[nodiscard]] int ended_fd() const noexcept;     // an eventfd, readable once it has ended; for poll

    // Makes `id` the input buffer, between two calls. The first time the descriptor (sealed against shrinking, or a hugetlb memfd) is mapped read-only;
    // after that the mapping is kept, `fd` is not looked at and may be -1. Throws peer_died, deadline_exceeded, invalid_argument, not_found.
    void map(std::uint64_t id, int fd, std::uint64_t bytes);
    void unmap();                        // no input buffer; mappings are kept
    void forget(std::uint64_t id);       // and this one is not
    [[nodiscard]] bool has(std::uint64_t id) const;

    // Asks the program to end (its exit() runs), kills it after `limit_ns`. Idempotent.
    void close(std::uint64_t limit_ns);
    // Ends it now; what waits for it is told `fate`.
    void kill(Fate fate = Fate::closed, std::int32_t detail = 0) noexcept;

    // Log bytes from position `from` on (counted since the session began); `from` is moved to what was returned's beginning when older ones are lost.
    std::string log(std::uint64_t& from, std::uint64_t most) const;

    struct State;
    explicit Session(std::shared_ptr<State> state);

private:
    std::shared_ptr<State> state_;
};

class Yard {
public:
    // Starts the zygote. Throws not_found (no teal-box there), invalid_argument (seccomp is missing), internal_error.
    explicit Yard(YardOptions options);
    ~Yard();
    Yard(const Yard&) = delete;
    Yard& operator=(const Yard&) = delete;

    // Returns when init() has. Throws kernel_failed (refused, or died in init), invalid_argument, quota_exceeded, deadline_exceeded, closed.
    std::shared_ptr<Session> open(const SessionOrder& order);
    // One judged run in a fresh box, on the calling thread. Never throws for what the program or this machine does: the record says.
    RunRecord judge(const RunOrder& order);

    [[nodiscard]] std::vector<Guard> report() const;
    // Why its boxes can take no direct calls (sealed ones); empty: they can.
    [[nodiscard]] std::string refuses_direct(bool sealed) const;
    [[nodiscard]] YardStatistics statistics() const;
    [[nodiscard]] std::uint32_t zygote_pid() const noexcept;
    // Kills every box and the zygote, and waits for their ends. Idempotent; open() and judge() throw closed afterwards.
    void close() noexcept;

    struct State;

private:
    std::shared_ptr<State> state_;
};

}  // namespace teal::box
