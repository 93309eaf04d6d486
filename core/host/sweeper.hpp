// The sweeper: the host's thread that watches over one pool. Never on the path of a call.
//
// Theory of operation: it looks once a millisecond while requests are in flight, and 20 times a second (25 with an
// agent) while none are. It ends requests whose deadline has passed (waiting or running), takes requests out of the rings while
// every worker is busy (so that their deadlines count too), moves the watch over the rings away from a leader that
// turned out to be busy, and cleans up after a worker or a client that died. Everything it does to records is done
// under the role. A worker that holds the role for seconds is stopped or stuck, and everybody waits for it: it is killed,
// and the role passes on.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "host/loans.hpp"
#include "host/pool.hpp"

namespace teal {

class Sweeper {
public:
    explicit Sweeper(std::shared_ptr<Pool> pool);
    ~Sweeper();

    void start();
    void stop();
    void tick();  // one look; start() calls it on its thread, tests call it by hand

    // Sessions: open takes a free table entry and makes the region; returns its index. Throws quota_exceeded.
    struct Opened { std::uint32_t index; std::uint32_t epoch; int fd; };
    Opened open_session(std::uint32_t slots, std::uint32_t limit);  // fd stays ours; valid until free_session()
    // The same in a client's BPF map (takes the descriptor, also when it throws): checked, formatted, shut; region 0 is in it.
    struct Adopted { std::uint32_t index; std::uint32_t epoch; int fd; std::uint64_t bytes; };
    Adopted adopt_bpf_session(int fd, std::uint32_t slots, std::uint32_t limit);
    // What the client of a session asks for beyond it is cut to it; before the client is told of its session.
    void limit_priority(std::uint32_t session, std::int32_t most);
    // Requests of versions that take batches run together: up to so many rows, and the first of them waits so long for others.
    void set_batching(std::uint32_t rows, std::uint64_t delay_ns);
    void set_quantum(std::uint64_t ns) noexcept;  // longest piece of a request that can be preempted, while others wait; 0: none
    void limit_running(std::uint32_t model, std::uint32_t most);  // workers that run it at once; 0: any number
    void grant_region(std::uint32_t session, std::uint32_t count);  // how many regions were handed out so far
    // No new requests are taken, waiting ones are cancelled. Running ones go on: poll session_in_flight().
    void close_session(std::uint32_t session, Reason reason);
    std::uint32_t session_in_flight(std::uint32_t session);
    void free_session(std::uint32_t session);  // after every worker has let go

    // Versions.
    std::uint32_t open_version(std::uint32_t model, std::uint32_t number, std::uint32_t flags, std::uint32_t native_op);
    void publish_version(std::uint32_t line, bool make_current);
    void retire_version(std::uint32_t line);     // not current any more; in-flight requests finish
    std::uint32_t version_in_flight(std::uint32_t line);
    void cancel_version(std::uint32_t line);     // ends what still waits for it
    void free_version(std::uint32_t line);
    // No new request of it is run until unpark; those that run go on: poll version_running(). False when it is not ready.
    bool park_version(std::uint32_t line);
    void unpark_version(std::uint32_t line);     // every worker holds it again
    std::uint32_t version_running(std::uint32_t line);
    std::uint32_t version_waiting(std::uint32_t line);  // taken, and neither running nor ended
    void set_version_flags(std::uint32_t line, std::uint32_t flags);  // before publish_version()

    // The session's ClientStages, none for a free session.
    std::span<const ClientStages> client_stages(std::uint32_t session);
    const BpfStages* bpf_stages(std::uint32_t session);  // null: not a BPF session

    // ---- agents (agents.cpp, docs/protocol.md) ----
    // A new incarnation of a seat. The two descriptors for workers stay ours; the agent's is the caller's to close, and reads only.
    struct Seated { std::uint32_t incarnation; int view_fd; int desk_fd; int agent_view_fd; };
    Seated attach_seat(std::uint32_t seat, std::uint32_t ring_capacity, std::shared_ptr<Link> link = nullptr, std::uint32_t link_kind = 0);
    // Its agent decides from here on, in place of another one if there is one. Every worker has its regions. Throws not_found.
    void activate_seat(std::uint32_t seat, std::uint32_t incarnation);
    // The default order holds. False: nobody decided. `reason` goes into seat_events().
    bool deactivate_seat(std::uint32_t seat, const std::string& reason);
    void detach_seat(std::uint32_t seat, std::uint32_t incarnation);  // after every worker has let go
    [[nodiscard]] std::uint32_t active_seat(std::uint32_t seat);      // incarnation, or 0
    // An agent whose heart stands still for `beat_ns`, or that leaves a request waiting for `wait_ns` (0: any
    // time) beside a worker with nothing to do, or lets one run that came `overtaken_ns` (0: any time) later, is
    // put off its seat.
    void set_seat_limits(std::uint32_t seat, std::uint64_t beat_ns, std::uint64_t wait_ns, std::uint64_t overtaken_ns = 0);
    // A request that finds a worker with nothing to do, and nobody waiting, runs at once, and the agent is told.
    void set_local_fast_path(std::uint32_t seat, bool on);
    void set_trace(std::shared_ptr<Trace> trace);                     // a recording, of what this process does; null: none
    void seat_model(std::uint32_t model, std::uint32_t seat);         // who decides about requests of a name
    void seat_worker(std::uint32_t worker, std::uint32_t seat);       // who decides for a worker
    void deal_seats(std::uint32_t seats);                             // which of them (a bit each) share all requests; 0: each name has its own
    void wake_agent(std::uint32_t seat, bool settings);
    struct SeatFigures {
        std::uint32_t incarnation, pid;
        AgentState state;
        bool active, asleep;
        std::uint64_t beat_age_ns, oldest_wait_ns, since_ns;          // since_ns: active for so long
        std::uint32_t offered, ring_waiting;
        std::uint64_t settings, settings_seen;
    };
    SeatFigures seat_figures(std::uint32_t seat, std::uint32_t incarnation);    // throws not_found
    std::shared_ptr<HostSeat> seat(std::uint32_t seat, std::uint32_t incarnation);
    // What happened at seats since the last time, and when (CLOCK_MONOTONIC): an agent was put off, it was as its heart stood still (and
    // may come back), or the heart of such a one beats again: activate_seat() takes it back.
    enum class SeatEventKind : std::uint8_t { put_off = 0, frozen, beats };
    struct SeatEvent {
        std::uint32_t seat, incarnation;
        std::string reason;
        std::uint64_t at_ns;
        SeatEventKind kind = SeatEventKind::put_off;
    };
    std::vector<SeatEvent> take_seat_events();
    // Readable once there are events; ours to close, and to be read by whoever takes them. Throws internal_error.
    int seat_events_fd();
    // The agent of that incarnation is to look at what its process was sent (HostSeat::call()). Nothing when there is none.
    void call_agent(std::uint32_t seat, std::uint32_t incarnation);
    // By what the record's client knows: a request that waits gets another priority. False: there is none that waits.
    bool change_priority(std::uint32_t session, std::uint32_t slot, std::uint32_t generation, std::int32_t priority);

    // ---- workers that other pools lend (lent.cpp) ----
    // From this index on workers are lent: this one by that pool, while its worker has nothing to do. Before it starts.
    void lend(std::uint32_t worker, Sweeper& lender, std::uint32_t its_worker);
    const std::shared_ptr<Loans>& loans();  // of this pool's workers' time
    // With bury_worker(): what its process had of the lender's time, and what it held.
    void bury_lent(std::uint32_t worker, std::uint32_t pid);

    // A worker's process is gone. `detail`: signal number, or 256 + exit status. Returns how many requests failed and
    // how many run again.
    struct Buried { std::uint32_t failed; std::uint32_t again; };
    // stopping: the host ended it, and nothing runs again: its requests are cancelled for that reason.
    Buried bury_worker(std::uint32_t worker, std::uint32_t detail, bool stopping = false);

    // Ends a request that a worker handed over (its output lies in spill `id`), or that failed to spill.
    void end_handed_over(std::uint32_t record, std::uint32_t generation, bool ok, std::uint32_t id, Reason reason);

    // Of a request that left its outputs in a spill: does one that is out read them; is its slot out with a later one?
    bool is_awaited(std::uint32_t session, std::uint32_t slot, std::uint32_t generation);
    bool is_used_again(std::uint32_t session, std::uint32_t slot, std::uint32_t generation);

    // Before shutdown: what is in the rings now is still taken, what comes later is refused.
    void set_idle(std::uint64_t ns) noexcept;  // spin ceiling of the pool's workers, from their next wait on
    void stop_taking(bool stopping);
    [[nodiscard]] bool all_taken();  // of what was in the rings then
    std::uint32_t active() noexcept;

    [[nodiscard]] Pool& pool() noexcept { return *pool_; }

private:
    void loop();
    std::uint32_t free_entry() const;
    Opened admit(std::unique_ptr<SessionMap> map, std::uint32_t limit);
    void watch_role() noexcept;
    void watch_leader() noexcept;
    bool overlooks(std::uint32_t leader) noexcept;
    void rouse() noexcept;
    void rouse_lent() noexcept;
    void expire(std::uint64_t now) noexcept;
    void list_live();
    void enter();
    void end_waiting(std::uint32_t record, Reason reason) noexcept;
    bool end_running(std::uint32_t record, State state, Reason reason, std::uint32_t detail, bool released) noexcept;

    std::shared_ptr<Pool> pool_;
    std::recursive_mutex mutex_;  // guards the maps; taken before the role
    std::array<std::unique_ptr<SessionMap>, max_sessions> sessions_;
    std::vector<SessionMap*> maps_;
    std::vector<SessionMap*> live_;
    struct Lent {
        std::uint32_t worker;
        std::shared_ptr<const Pool> lender;
        std::shared_ptr<Loans> loans;
        std::uint32_t its_worker;
    };
    std::vector<Lent> lent_;             // guarded by mutex_, as is the next
    std::shared_ptr<Loans> loans_;

    struct Attached {
        std::shared_ptr<HostSeat> seat;
        std::uint64_t beat = 0;          // as seen last, and how long it has stood still since, as far as this thread was awake to see
        std::uint64_t still_ns = 0;
        std::uint64_t active_since = 0;  // CLOCK_MONOTONIC; 0: it does not decide
        bool frozen = false;             // put off for its heart, and watched still: it may come back
    };
    struct SeatLimits {
        std::uint64_t beat_ns = 50'000'000;
        std::uint64_t wait_ns = 0;
        std::uint64_t overtaken_ns = 0;
    };
    void watch_seats(std::uint64_t now) noexcept;
    void watch_frozen(std::uint64_t now);
    void put_off(std::uint32_t seat, std::string reason, SeatEventKind kind = SeatEventKind::put_off);
    void note_event(SeatEvent event);
    std::uint64_t unanswered_ns(std::uint32_t seat, std::uint64_t at_most) noexcept;
    std::string judge_waits(std::uint32_t seat);
    Attached* attached(std::uint32_t seat, std::uint32_t incarnation) noexcept;
    void wake_workers() noexcept;
    std::vector<Attached> attached_;     // guarded by mutex_, as are the next
    std::array<SeatLimits, max_seats> limits_;
    std::vector<SeatEvent> seat_events_;
    std::uint32_t incarnations_ = 0;
    std::uint64_t seats_watched_ = 0;    // when watch_seats() looked last
    std::uint64_t look_ns_ = 0;          // how long the thread meant to sleep before this look
    std::atomic<std::uint32_t> frozen_ = 0;  // agents that are watched though they do not decide
    int events_fd_ = -1;
    unsigned seat_looks_ = 0;

    std::uint32_t role_holder_ = 0;  // the sweeper's thread's own: who held the role at the last look, and since when
    std::uint64_t role_since_ = 0;

    std::uint32_t watched_ = 0;  // the leader at the last look, what it had done then, and since when that is so
    std::uint64_t watched_done_ = 0;
    std::uint64_t watched_since_ = 0;

    std::mutex stop_mutex_;  // guards stopping_
    std::condition_variable stop_signal_;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace teal
