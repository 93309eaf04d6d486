// What yard.cpp, nest.cpp and session.cpp share: the inside of a yard and of its sessions. Private to core/box.
//
// Locks, in this order: Session::State::order_mutex, Yard::State::mutex, Session::State::mutex.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "box/cgroup.hpp"
#include "box/descriptor.hpp"
#include "box/message.hpp"
#include "box/yard.hpp"

namespace teal::box {

// A box that waits for its message.
struct Spare {
    std::int32_t inner = 0;     // its pid, as the zygote says it
    std::uint32_t pid = 0;      // as this process would; 0: not known here
    Descriptor pidfd, socket;
    Cgroup group;               // of a box for sessions, where groups can be made
    Descriptor pages;           // its page table (/proc/PID/pagemap), for boxes of runs
};

// What a box has mapped before it is told what to run.
struct BoxMemory {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;   // addresses, in their order: [first, second)
    std::uint64_t data_bytes = 0;   // what of it RLIMIT_DATA counts
};

// A judged run that takes longer than a moment: the yard's thread watches its fuse.
struct Fuse {
    int pidfd = -1;
    std::uint32_t pid = 0;
    std::int32_t clock = 0;                 // the box's CPU clock
    std::uint64_t cpu_end = 0, wall_end = 0;
    std::uint64_t wait_most = 0;            // so much longer on the wall, if it waited for a CPU meanwhile
    std::uint64_t cpu_seen = 0, moved_ns = 0;   // its clock at the last look that saw it move, and when that was
    std::uint64_t stolen_before = 0;        // of this machine's CPUs by whoever it is a guest of, at the first look
    std::atomic<bool> blown{false};
};

struct Session::State {
    SessionFacts facts;
    ControlPage* page = nullptr;
    FatePage* fate = nullptr;
    Descriptor control, fate_file, ended_event;
    Spare box;
    std::weak_ptr<Yard::State> yard;
    bool of_another_process() const noexcept;
    std::uint32_t owner = 0;    // the process that made it
    bool direct = false;        // it has a socket of its own
    std::atomic<bool> ready{false};   // init() has returned: relaxed, a hint to the yard's thread

    std::function<void()> let_go;   // of a program in this process (inline.cpp): instead of killing it; set before anybody else has the session

    std::mutex order_mutex;     // one order at a time
    std::atomic<std::uint64_t> orders = 0;   // written under order_mutex; the yard's thread only looks whether there are new ones
    std::set<std::uint64_t> mapped;

    mutable std::mutex mutex;   // guards what follows
    mutable std::condition_variable changed;
    bool finished = false;
    bool closing = false;
    Fate wanted = Fate::running;    // why we kill it
    std::int32_t wanted_detail = 0;

    // The yard's thread only
    std::uint64_t answered = 0, since_ns = 0;   // the answer that was there when a call was first seen open, and when that was
    std::uint64_t gone_ns = 0;                  // the pidfd said so then
    std::uint64_t idle_ns = 0;                  // how long it may poll after each thing that it does
    std::uint64_t quiet_key = 0, quiet_cpu_ns = 0;   // what there was to do when it was last seen to do something, and its CPU time by then
    bool burns_unasked(std::uint64_t key) noexcept;

    ~State();
    int order(OrderOp op, std::uint64_t id, std::uint64_t bytes, int fd, std::uint64_t limit_ns);
    void kill(Fate fate, std::int32_t detail) noexcept;
    // The box is reaped (status as wait4 gives it), or will never be heard of (`lost`).
    void finish(int status, bool lost) noexcept;
    void wake_all() noexcept;
    bool wait(std::uint64_t limit_ns) const;
};

struct Yard::State : std::enable_shared_from_this<Yard::State> {
    YardOptions options;
    std::unique_ptr<CgroupHome> groups;   // null: not wanted. The yard's thread makes spots there
    std::uint32_t owner = 0;        // the process that made the yard
    std::thread thread;
    Descriptor nothing;             // /dev/null
    Descriptor wake;                // eventfd: the thread should look

    mutable std::mutex mutex;       // guards what follows
    std::condition_variable changed;
    HelloMessage hello{};
    Descriptor zygote;              // its socket
    std::int32_t zygote_pid = 0;    // the child of this process
    bool started = false, closed = false;
    std::string failure;            // why there is no zygote
    std::deque<Spare> spares[box_kinds];
    std::uint32_t asked[box_kinds] = {}, wanted[box_kinds] = {};
    std::map<std::int32_t, std::shared_ptr<Session::State>> sessions;
    std::vector<std::shared_ptr<Fuse>> fuses;
    std::vector<Spare> spent;       // boxes of runs that are over: closing their descriptors takes longer than a run may wait
    std::uint64_t ticked_ns = 0, burned_ns = 0;   // when its thread last looked at sessions, at fuses; 0: not yet, or there were none. That thread only
    std::uint64_t looks_until = 0;  // the thread looks at fuses until then without being told of new ones
    std::shared_ptr<const BoxMemory> memory;    // what every box has mapped before it becomes something; null: not looked at yet
    std::uint64_t next_id = 1;
    YardStatistics counts;

    void run() noexcept;                                    // the thread
    bool start_zygote();                                    // thread only
    void zygote_gone();                                     // thread only
    bool listen(int socket);                                // thread only
    void hear(const ZygoteMessage& message, Descriptor pidfd, Descriptor socket);
    void tick(std::uint64_t now) noexcept;
    std::uint64_t burn(std::uint64_t now) noexcept;         // fuses; ns until it has to be looked again, 0: no need
    void ask(BoxKind kind);                                 // with `mutex` held
    Spare take(BoxKind kind, std::uint64_t limit_ns);       // throws
    void replace(BoxKind kind);                             // has as many made as should be ready; with `mutex` held
    void nudge() noexcept;
    void close() noexcept;
};

// A session's memory, before it has a box. Throws.
std::shared_ptr<Session::State> make_session(const SessionOrder& order);
// What a box is told of it.
BecomeMessage become_message(const SessionOrder& order, const SessionFacts& facts);
// Waits until serve() has said what init() did. Throws.
void await_ready(Session::State& session, std::uint64_t limit_ns);
// The message that makes a box run something; throws when it does not fit.
void send_become(const Spare& box, const BecomeMessage& message, const Image& image, std::span<const int> fds);
// What a BecameMessage that is not "running" means, for people.
std::string became_text(const BecameMessage& said);
std::uint64_t writable_bytes(const Image& image) noexcept;
std::uint64_t image_bytes(const Image& image) noexcept;

}  // namespace teal::box
