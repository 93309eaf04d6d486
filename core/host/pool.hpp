// A pool: what its workers and the host share about requests, models and each other.
//
// Theory of operation. The pool region is mapped by the host and the pool's workers only; clients never
// see it, so its contents are trusted, but any of its writers may die at any instruction. Therefore
//   - everything that can be derived is derived again after a death under the lock (repair()): the run
//     queue, the free list and the in-flight counts all follow from the records' state words;
//   - a record becomes visible (state queued) before its ring entry is retired, and repair() retires an
//     entry whose record exists, so that a request is neither lost nor taken twice.
//
// The order of the run queue: priority, then start-time fair queueing between sessions (each request's tag is where the session's last
// one ends in virtual time, or now; its length is what this version usually takes), then arrival. With one session that is arrival, also
// where what ran before took less than it was charged (tag_of_newest()); a session that fills its quota is served in turn with the others.
//
// A parked version's requests wait as well, among the blocked: pick() puts them there and says that the version is wanted.
//
// A request that has begun may leave its worker and be queued again, `suspended` (suspended.cpp): only that worker, whose process holds its
// stack, can go on with it. So it does not lie in the run queue; the worker has a list of its own, which pick() is given. Its record stays the
// worker's: whoever ends it leaves the record to the worker, who lets go of what the run holds and gives the record back.
//
// A request may wait for the ends of others of its session, or of events (AfterLine). Its record is queued as all are, but lies
// in `blocked` until they have come; every dispatcher looks, and a leader that watches the rings watches these lines as well.
//
// With an agent at a seat (docs/protocol.md) what may run is not in the run queue but offered to the agent, and pick() carries out what
// that has staged for the worker. All else is as without: limits, parked versions, company, deadlines. Without regions of the agent's
// incarnation in this process nothing can be told or claimed here; the agent then reads everything anew.
//
// Who does what: `Role` is held for drain() and pick() only. `leader` names the worker that watches the
// rings; the others sleep. A leader that goes to run something long, or leaves work behind, resigns and wakes
// one of the others (promote()). The host's sweeper (host/sweeper.hpp) watches over deadlines and over leaders
// that turn out to be busy for longer than was thought.
#pragma once

#include <atomic>
#include <bitset>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "agents/dealing.hpp"
#include "agents/host_seat.hpp"
#include "agents/inline.hpp"
#include "agents/trace.hpp"
#include "host/session.hpp"
#include "memory/region.hpp"
#include "queue/histogram.hpp"
#include "queue/request.hpp"
#include "queue/role.hpp"

namespace teal {

inline constexpr std::uint32_t pool_magic = 0x4c4f5054;  // "TPOL"
inline constexpr std::uint32_t max_workers = 64;
inline constexpr std::uint32_t max_sessions = 1024;
inline constexpr std::uint32_t max_models = 1024;    // names over a pool's life
inline constexpr std::uint32_t max_versions = 256;   // loaded at once
inline constexpr std::uint32_t record_count = 8192;  // requests taken from rings and not yet ended
inline constexpr std::uint32_t nobody = UINT32_MAX;

enum class Stage : std::uint8_t { queue, run, copy };
inline constexpr std::size_t stage_count = 3;

struct alignas(64) Record {
    std::atomic<std::uint32_t> state;   // low_half(generation of the record, State)
    std::uint32_t worker;               // who runs it; `nobody` while queued, unless suspended; under the role, before state becomes running
    std::uint32_t session;
    std::uint32_t epoch;
    RequestEntry entry;                 // private copy of what the client sent
    std::uint32_t version_line;
    std::uint16_t attempts;
    std::uint16_t offered;              // while its seat's agent has it to decide about: position in `offered` + 1; under the role
    std::uint32_t ring_position;        // repair(): the entry this record came from
    union {
        std::uint32_t next_free;        // of a free one: record + 1, or 0
        std::uint32_t slipped;          // of one that waits: its session's slips that are in its tag
    };
    std::uint32_t suspended;            // worker + 1 whose process holds its stack or generator; 0: none
    std::uint64_t sequence;             // order of arrival
    std::uint64_t tag;                  // its start in virtual time, of a parked version's from now on: who has had less of the workers goes first
    std::uint32_t charge;               // what it added to its session's virtual time, ns; taken back when it never runs; 0: its turn is not dealt yet
    std::uint32_t counted;              // 1: it is one of its model's `running`; under the role
    std::uint64_t due_ns;               // waits for company until then (CLOCK_MONOTONIC); 0: it does not
};
static_assert(sizeof(Record) == 128 && record_count < UINT16_MAX);

// Of a worker that another pool lends (lent.cpp): resting: it may be woken; barred: it has found nothing that it may do, and the sweeper
// says when there is; helping: it runs something. Its own states, so that nobody takes it for one of the pool's.
enum class WorkerState : std::uint32_t { absent = 0, starting, idle, leading, running, resting, barred, helping };

struct alignas(64) WorkerLine {
    std::atomic<std::uint32_t> state;         // WorkerState; written by the worker, `absent` by the host
    std::atomic<std::uint32_t> pid;
    std::atomic<std::uint32_t> wake;          // futex word: bumped by whoever wants the worker to look up
    std::atomic<std::uint32_t> sleeping;      // 1 while it may sleep on `wake`
    std::atomic<std::uint32_t> record;        // what it runs, or `nobody`
    std::atomic<std::uint32_t> latched;       // record + 1 that is running in its name already, and that it is to take; under the role
    std::atomic<std::uint64_t> run_started;   // ticks (cpu/clock.hpp); 0 when not running
    std::atomic<std::uint64_t> requests;
    std::atomic<std::uint64_t> sleeps;
    std::uint8_t pad1[8];
};
static_assert(sizeof(WorkerLine) == 64);

enum class SessionState : std::uint32_t { free = 0, open, closing };

struct alignas(64) SessionLine {
    std::atomic<std::uint32_t> state;      // SessionState; host only
    std::uint32_t epoch;                   // host only, changed while free, under the role
    std::uint32_t head;                    // ring position; under the role
    std::uint32_t in_flight;               // records not free; under the role
    std::uint32_t limit;                   // host only
    std::uint32_t slots;                   // host only
    std::atomic<std::uint32_t> granted;    // tensor regions handed out so far; host only
    std::int32_t most_priority;            // what it asks for beyond that is cut to it; host only
    std::uint64_t finish;                  // virtual time when what it has asked for so far would be done; under the role
    std::uint64_t slipped;                 // ns that its runs took beyond their charges: so much later come its turns that were dealt before; under the role
    std::uint32_t spared;                  // ns that they took less, which the next that takes more may use up; under the role
    std::uint32_t last;                    // ring position where stop_taking() drew the line: requests from there on are refused
    std::uint16_t blocked;                 // of its records: wait for others' ends; under the role
    std::uint16_t ended;                   // of its records: given back so far, round and round; under the role
    std::uint16_t newest;                  // record that was admitted last + 1, if it still has it; under the role
    alignas(64) std::uint64_t requests;    // under the role
    std::uint32_t garbage;                 // entries that named no slot; under the role
};
static_assert(sizeof(SessionLine) == 128);

// parked: no worker holds its kernel; what is asked of it waits until the host has brought it back.
enum class VersionState : std::uint32_t { empty = 0, loading, ready, retiring, parked };

enum KernelFlags : std::uint32_t {
    kernel_pure = 1,        // running it twice or for nobody cannot be noticed
    kernel_idempotent = 2,  // run again after a worker died under it
    kernel_native = 4,      // runs in the core; `native_op` says what (kernel/builtin.hpp)
    kernel_batches = 8,     // requests may run together: each tensor's first dimension counts rows
    kernel_preemptible = 16,  // a request of it may be taken from its worker …
    kernel_yields = 32,     // … but at its own yield points only
};

struct alignas(64) VersionLine {
    std::atomic<std::uint32_t> state;       // VersionState; under the role
    std::uint32_t generation;               // changes when the line is used for another version
    std::uint32_t model;
    std::uint32_t number;                   // what users call it, from 1
    std::uint32_t flags;                    // KernelFlags
    std::uint32_t native_op;
    std::uint32_t in_flight;                // under the role
    std::atomic<std::uint32_t> run_ns;      // moving average, for "is it worth waking somebody"
    std::atomic<std::uint64_t> requests;
    std::atomic<std::uint64_t> failed;
    std::atomic<std::uint64_t> cancelled;
    std::atomic<std::uint64_t> expired;
    alignas(64) std::atomic<std::uint64_t> copies_in;
    std::atomic<std::uint64_t> copies_out;
    std::atomic<std::uint64_t> bytes_copied;
    std::atomic<std::uint64_t> bindings;
    std::atomic<std::uint64_t> paths[3];     // of a device model: runs on the cpu, by a resident kernel, by a launch
    std::atomic<std::uint64_t> fallbacks;    // slots that went to another path than was asked for
    alignas(64) std::atomic<std::uint64_t> chained;  // requests that took outputs of others as inputs
    std::atomic<std::uint64_t> batches;      // runs of several requests at once
    std::atomic<std::uint64_t> batched;      // requests in these
    std::atomic<std::uint64_t> held;         // times one was passed over, as its name ran in as many workers as it may
    std::uint32_t company;                   // that wait for company; under the role
    std::uint32_t cost_ns;                   // what one is charged when it comes: an average that one long run in a hundred does not move; under the role
    std::uint8_t pad0[24];
    alignas(64) std::atomic<std::uint64_t> preemptions;  // times a request of it was taken from its worker
    std::atomic<std::uint64_t> yields;       // … and times one left by itself, at a yield point
    std::atomic<std::uint64_t> resumed;      // times one went on
    std::atomic<std::uint64_t> cannot_preempt;  // requests that should have left and could not
    std::atomic<std::uint64_t> dropped;      // that had begun and left, and were ended before they went on
    std::uint8_t pad1[24];
};
static_assert(sizeof(VersionLine) == 256);

struct ModelLine {
    std::atomic<std::uint32_t> current;  // version line + 1, or 0; under the role
    std::uint32_t known;                 // 1 once the name was given out
    std::uint32_t most;                  // workers that may run it at once; 0: any number; under the role, as is the next
    std::uint32_t running;               // that do
};

struct VersionHistograms { Histogram stages[stage_count]; };

struct PoolHeader {
    std::uint32_t magic;  // pool_magic
    std::uint32_t abi;
    std::uint64_t size;   // sizeof(PoolMemory): another build's layout does not match by chance
    std::atomic<std::uint32_t> stopping;  // no new requests are taken
    std::atomic<std::uint32_t> worker_end;  // 1 + the highest worker index so far; written by workers as they start
    std::uint64_t idle_ns;                // spin ceiling of workers
    std::uint64_t delay_ns;               // longest wait of a request for company
    std::uint32_t batch;                  // most rows that run together; 0, 1: each request runs alone
    std::uint8_t pad0[4];
    std::uint64_t quantum_ns;             // so long one runs while others wait, if its kernel can be preempted; 0: until it ends
    std::uint8_t pad1[8];
    alignas(64) Role role;
    alignas(64) std::atomic<std::uint32_t> leader;  // worker + 1, or 0: who watches the rings
    std::atomic<std::uint32_t> active;              // records not free; for the sweeper's pace
    std::atomic<std::uint32_t> seats;               // bit i: an agent decides at seat i; under the role
    std::atomic<std::uint32_t> seats_changed;       // with every change of that
    std::uint32_t dealt;        // bit i: seat i gets a part of all requests (Pool::deal_among()); 0: each name has its seat; under the role
    std::uint32_t next_dealt;   // the seat that comes first when several are as good; under the role
    std::atomic<std::uint32_t> lent_from;  // workers from this index on are lent by other pools; 0: none is. Host only, before they start
    std::uint8_t pad2[36];
    // All below: under the role.
    std::uint32_t heap_size;
    std::uint32_t free_head;    // record + 1, or 0
    std::uint32_t next_session; // where the next drain starts: no session is always first
    std::uint32_t blocked_size;
    std::uint64_t next_sequence;
    std::uint64_t repairs;
    std::uint64_t virtual_time;  // tag of the request that was picked last
    std::uint32_t next_blocked;  // where the next look at blocked records starts
    std::uint32_t held_size;
    std::uint64_t next_due_ns;   // when the first that waits for company has waited long enough; 0: none does
    std::uint32_t offered_size;
    std::uint32_t fast_seats;    // bit i: set_local_fast_path(i)
};
static_assert(sizeof(PoolHeader) == 256);

// A seat as the pool sees it (agents/host_seat.hpp). Under the role.
struct SeatLine {
    std::uint32_t incarnation;   // whose decisions count; 0: nobody's, the default order holds
    std::uint32_t missed;        // messages that a process did not send, as it does not have that incarnation's regions
};
inline constexpr std::uint32_t max_seats = 4;
inline constexpr std::uint32_t inline_incarnation = UINT32_MAX;  // no regions: a policy in the worker

struct PoolMemory {
    PoolHeader header;
    SeatLine seats[max_seats];
    std::uint8_t model_seats[max_models];    // the seat that decides about a name's requests; under the role, as is the next
    std::uint8_t worker_seats[max_workers];  // the seat that decides for a worker
    std::uint32_t seat_offered[max_seats];   // how many of `offered` are that seat's; kept while requests are dealt
    WorkerLine workers[max_workers];
    std::atomic<std::uint64_t> holds[max_workers][max_versions / 64];  // of a lent worker: versions that it can run; by it, cleared by the host
    SessionLine sessions[max_sessions];
    VersionLine versions[max_versions];
    ModelLine models[max_models];
    std::uint32_t heap[record_count];
    std::uint32_t blocked[record_count];   // queued records that wait for the end of others; under the role
    std::uint32_t held[record_count];      // queued records that wait for company, or for a worker that runs their name to end
    std::uint32_t offered[record_count];   // queued records that an agent has to decide about
    std::uint32_t slices[record_count];    // of running ones: what an agent gave them, µs; 0: nothing; UINT32_MAX: until they end
    std::uint32_t dealt_to[record_count];  // generation of the record + 1:24 | its seat:8, while requests are dealt
    Record records[record_count];
    AfterLine afters[record_count];        // of blocked records: private copies, checked
    VersionHistograms histograms[max_versions];
};

class Pool {
public:
    static std::shared_ptr<Pool> create(std::uint64_t idle_ns);
    static std::shared_ptr<Pool> attach(int fd, bool writable = true);  // takes the descriptor

    [[nodiscard]] PoolMemory& memory() const noexcept { return *memory_; }
    [[nodiscard]] int fd() const noexcept { return region_->fd(); }
    [[nodiscard]] int readable_fd() const { return region_->readable_fd(); }  // for who may only look; the caller's to close

    // The role, repaired if its last holder died. False: could not get it (held) within the time.
    bool try_enter() noexcept;
    bool enter(std::uint64_t timeout_ns) noexcept;
    void leave() noexcept {
        if (seated()) [[unlikely]] flush_seats();
        memory_->header.role.unlock();
    }

    // Under the role. `live` are this process's mappings, in any order; `maps[i]` is that of session i, or null.
    // Moves requests from rings to the run queue; refuses broken ones on the spot. Returns how many it moved.
    unsigned drain(std::span<SessionMap* const> live) noexcept;
    // The same, with pick() to follow before anything else: whoever goes first of those that came stays out of the run queue.
    void drain_to_pick(std::span<SessionMap* const> live) noexcept;
    // Best runnable record, marked running for `worker`; expired ones on the way are ended. `nobody` when empty.
    // `suspended`: records that the worker can go on with.
    std::uint32_t pick(std::uint32_t worker, std::span<SessionMap* const> maps, std::span<const std::uint32_t> suspended = {}) noexcept;
    // After pick(): others of the picked one's version, in their order, that may run together with it; marked running for the same worker.
    void gather(std::uint32_t first, std::span<SessionMap* const> maps, std::vector<std::uint32_t>& company) noexcept;
    // A running one that has left its worker, after ran_ns on the core: queued again, behind those that wait. False: it has ended meanwhile.
    // `why`: request_preempt or request_yield, for an agent to hear.
    bool suspend(std::uint32_t record, std::uint32_t worker, std::uint64_t ran_ns, MessageType why = MessageType::request_preempt) noexcept;
    // Can the worker go on with one of these without an agent's decision?
    [[nodiscard]] bool goes_on(std::span<const std::uint32_t> suspended) const noexcept;
    // Would another go first (before_equals: also one that is only as urgent) if this running one left now?
    [[nodiscard]] bool would_wait(std::uint32_t record, std::span<const std::uint32_t> suspended, bool before_equals) const noexcept;
    // Gives records back that ended (state terminal).
    void give_back(std::span<const std::uint32_t> records) noexcept;
    // Versions that pick() passed by since the last time, because they are parked.
    [[nodiscard]] std::bitset<max_versions> take_wanted() noexcept { return std::exchange(wanted_, {}); }
    [[nodiscard]] bool is_parked(std::uint32_t version_line) const noexcept;
    // Gives those back that ended while they waited in the run queue.
    void prune() noexcept;
    // Ends what is left in the ring of a session that takes no more requests.
    void refuse_ring(SessionMap& map, Reason reason) noexcept;
    // Takes a record that is queued or running to its end; false when somebody else did.
    bool end_record(std::uint32_t record, State to) noexcept;
    // Running → queued, in its old place, as a new generation: what its dead worker may still have said of it is void.
    void requeue(std::uint32_t record) noexcept;
    void repair() noexcept;
    // Is a request of the session out that waits, or waited, for this one?
    [[nodiscard]] bool is_awaited(std::uint32_t session, std::uint32_t slot, std::uint32_t generation) const noexcept;
    // The i-th of those that wait for others: session, version and entry of its record. False: there are not so many.
    bool copy_blocked(std::uint32_t i, Record& record, AfterLine& after) const noexcept;

    // ---- seats (seats.cpp, docs/protocol.md) ----
    // Does an agent decide about anything here? All that a pool without one pays for them.
    [[nodiscard]] bool seated() const noexcept { return memory_->header.seats.load(std::memory_order_relaxed) != 0; }
    // SYNC: acquire pairs with the releases in seat_agent(), unseat_agent(), move_worker(), decide_inline() and deal_among(). A worker looks at
    // it without the role, to know whether to look closer; what it then looks up it reads under the role (Worker::refresh_seat()).
    [[nodiscard]] std::uint32_t seats_changed() const noexcept { return memory_->header.seats_changed.load(std::memory_order_acquire); }
    // Under the role, as all of these. This process's regions of an incarnation; counted, where several share the object.
    void add_seat(std::shared_ptr<HostSeat> seat);
    void drop_seat(std::uint32_t seat, std::uint32_t incarnation) noexcept;
    // The one whose agent decides now, or null: nobody, or this process does not have its regions.
    [[nodiscard]] HostSeat* seat_at(std::uint32_t seat) const noexcept;
    [[nodiscard]] std::shared_ptr<HostSeat> seat_for(std::uint32_t worker) const noexcept;
    // From now on that incarnation's agent decides, and is told of everything by its words; or nobody, and the default order holds.
    void seat_agent(std::uint32_t seat, std::uint32_t incarnation) noexcept;
    void unseat_agent(std::uint32_t seat, Outcome why) noexcept;
    // In place of an agent: the policy is called by this process's worker, the pool's only one. For who measures what an agent costs.
    void decide_inline(std::shared_ptr<Policy> policy, std::uint32_t worker);
    void move_model(std::uint32_t model, std::uint32_t seat) noexcept;    // that seat decides about its requests from now on
    void move_worker(std::uint32_t worker, std::uint32_t seat) noexcept;
    // dealing.cpp: from now on these seats (a bit each) share all requests; 0: each name has its seat again.
    void deal_among(std::uint32_t seats) noexcept;
    [[nodiscard]] std::uint32_t offered_at(std::uint32_t seat) const noexcept;
    void tell_tick() noexcept;
    // A worker has come or is gone.
    void tell_worker(std::uint32_t worker, bool there) noexcept;
    void return_latched(std::uint32_t worker) noexcept;  // what it was to take is queued again
    void change_priority(std::uint32_t record, std::int32_t priority) noexcept;
    // Ticks at which the agent of a seat was told of the one that waits longest for it; 0: none does.
    [[nodiscard]] std::uint64_t oldest_offered(std::uint32_t seat) const noexcept;
    // Ticks for which a request has waited for that agent while a worker of its that could run it had nothing to do: the longest such time.
    [[nodiscard]] std::uint64_t longest_neglected(std::uint32_t seat) const noexcept;
    // How much later than a request that waits for this seat came one of no higher priority that runs now in its place: ticks.
    [[nodiscard]] std::uint64_t furthest_overtaken(std::uint32_t seat) const noexcept;
    // How long a running request may run before it leaves, if it can: as it was decided, else the pool's quantum. 0: until it ends.
    struct SliceOf { std::uint64_t ns; bool decided; bool may_be_asked; };
    [[nodiscard]] SliceOf slice_of(std::uint32_t record) const noexcept;
    // By the worker that runs it, any time; `mine`: the seat that decides for it, as it knows. A run during which another agent took over is in
    // nobody's stages.
    void note_run(std::uint32_t record, std::uint64_t started, std::uint64_t ended, HostSeat* mine) noexcept;
    // A recording that this process writes to from now on; null: none. Under the role.
    void set_trace(std::shared_ptr<Trace> trace) noexcept;
    [[nodiscard]] Trace* trace() const noexcept { return trace_.get(); }  // the worker's loop, or under the role
    // Of a seat: a request that finds a worker with nothing to do, and nobody waiting, runs at once and the agent is told.
    void set_local_fast_path(std::uint32_t seat, bool on) noexcept;

    // Under the role: how many workers may run the model at once (0: any number).
    void limit_running(std::uint32_t model, std::uint32_t most) noexcept;

    // Any time. True when some session's ring has an entry that drain() would take.
    [[nodiscard]] bool ring_ready(std::span<SessionMap* const> live) const noexcept;
    // Any time. True when what some blocked record waits for has come.
    [[nodiscard]] bool after_ready(std::span<SessionMap* const> live) const noexcept;
    // Any time, cheap: may something have come since the blocked were last looked at? Every 100 µs in any case.
    [[nodiscard]] bool look_due(std::span<SessionMap* const> live) const noexcept;
    // Any time. The blocked are to be looked at once more.
    void look_again() noexcept;
    // Any time. True when a blocked record could run but for its version, which is parked and not among `told`.
    [[nodiscard]] bool wanted_ready(std::span<SessionMap* const> live, const std::bitset<max_versions>& told) const noexcept;
    // Is there anything to do for a worker that takes the role?
    [[nodiscard]] bool work_ready(std::span<SessionMap* const> live) const noexcept {
        return ring_ready(live) || queued() > 0 || after_ready(live) || due() || (inline_ != nullptr && offered() > 0);
    }
    // The same for whoever asks again and again: what is blocked is looked at only when something may have come.
    [[nodiscard]] bool work_due(std::span<SessionMap* const> live) const noexcept {
        return ring_ready(live) || queued() > 0 || look_due(live) || due() || (inline_ != nullptr && offered() > 0);
    }
    // When somebody has to look, for what waits for company; 0: nobody has to.
    [[nodiscard]] std::uint64_t next_due_ns() const noexcept { return __atomic_load_n(&memory_->header.next_due_ns, __ATOMIC_RELAXED); }
    [[nodiscard]] bool due() const noexcept;
    [[nodiscard]] unsigned waiting() const noexcept {
        return queued() + __atomic_load_n(&memory_->header.held_size, __ATOMIC_RELAXED) + __atomic_load_n(&memory_->header.offered_size, __ATOMIC_RELAXED);
    }
    [[nodiscard]] unsigned offered() const noexcept { return __atomic_load_n(&memory_->header.offered_size, __ATOMIC_RELAXED); }
    [[nodiscard]] unsigned queued() const noexcept { return __atomic_load_n(&memory_->header.heap_size, __ATOMIC_RELAXED); }

    // ---- workers that other pools lend (lent.cpp) ----
    [[nodiscard]] bool is_lent(std::uint32_t worker) const noexcept {
        const std::uint32_t from = memory_->header.lent_from.load(std::memory_order_relaxed);
        return from != 0 && worker >= from;
    }
    // Any time: may somebody else use the time of this pool's worker now? It has nothing to do, and nothing waits here.
    [[nodiscard]] bool may_lend(std::uint32_t worker) const noexcept;
    // Any time: has one of the pool's own workers nothing to do?
    [[nodiscard]] bool has_idle() const noexcept;
    void set_held(std::uint32_t worker, std::uint32_t version_line, bool held) noexcept;
    [[nodiscard]] bool holds(std::uint32_t worker, std::uint32_t version_line) const noexcept;
    // Under the role: does something wait that this lent worker can run?
    [[nodiscard]] bool has_work_for(std::uint32_t worker) const noexcept;
    // Under the role: pick() for a lent worker, from what it holds.
    std::uint32_t pick_held(std::uint32_t worker, std::span<SessionMap* const> maps) noexcept;

    // Wakes one idle worker other than `self` to lead or to take queued work; if the pool has none and none leads, one that is lent. False
    // when there is none.
    bool promote(std::uint32_t self) noexcept;
    void wake_worker(std::uint32_t worker) noexcept;

    // Under the role, before it is given back: what its run took, ns, in place of what it was charged when it came.
    void charge_run(std::uint32_t record, std::uint32_t ran_ns) noexcept;
    // Adds an end to the version's numbers: called once a request, by whoever ended the record, as its client sees it.
    static void count_end(VersionLine& version, State state) noexcept;
    // Ends a queued record's request towards its client, and counts it; under the role.
    void end_queued(std::uint32_t record, SessionMap* map, State state, Reason reason, std::uint32_t detail = 0) noexcept;

private:
    explicit Pool(std::shared_ptr<Region> region) noexcept;
    std::uint32_t take_free() noexcept;
    void heap_push(std::uint32_t record) noexcept;
    std::uint32_t heap_pop() noexcept;
    void heap_remove(std::uint32_t at) noexcept;
    void sift_up(std::uint32_t at) noexcept;
    void sift_down(std::uint32_t at, std::uint32_t size) noexcept;
    void heapify() noexcept;
    void put_front_back() noexcept;
    [[nodiscard]] bool before(std::uint32_t a, std::uint32_t b) const noexcept;
    void rebuild() noexcept;
    [[nodiscard]] std::uint32_t best_suspended(std::span<const std::uint32_t> suspended) const noexcept;
    bool resume(std::uint32_t record) noexcept;
    bool admit(SessionLine& line, SessionMap& map, const RequestEntry& entry) noexcept;
    [[nodiscard]] std::uint64_t tag_of_newest(const SessionLine& line, std::uint32_t session) const noexcept;
    // blocked.cpp
    static bool read_after(const SessionMap& map, const RequestEntry& entry, std::uint32_t slots, AfterLine& copy) noexcept;
    void block(std::uint32_t record) noexcept;
    void uncount_blocked(const Record& record) noexcept;
    void close_gap(std::uint32_t from, std::uint32_t to) noexcept;
    static constexpr std::uint32_t least_cost_ns = 200;
    // Of one request, in virtual time, ns; handing it out costs something in any case.
    [[nodiscard]] std::uint32_t cost_of(std::uint32_t version_line) const noexcept {
        return std::max(memory_->versions[version_line].cost_ns, least_cost_ns);
    }
    void deal_turn(std::uint32_t record) noexcept;
    void overrun(SessionLine& line, std::uint64_t ns) const noexcept;
    [[nodiscard]] std::uint64_t turn_of(const Record& record) const noexcept;
    bool slip(Record& record) const noexcept;
    void stop_clock(Record& record) const noexcept;
    void start_clock(std::uint32_t record) noexcept;
    [[nodiscard]] std::uint32_t ends_of(std::span<SessionMap* const> live) const noexcept;
    // held.cpp
    void enqueue(std::uint32_t record) noexcept;             // newly admitted, and waiting for nobody's end
    void hold(std::uint32_t record) noexcept;
    void unhold(std::uint32_t at) noexcept;
    void prune_held() noexcept;
    void release_due() noexcept;
    void release_held(std::uint32_t model) noexcept;
    void uncount(Record& record) noexcept;
    void let_next(const Record& record) noexcept;
    void free_record(std::uint32_t record) noexcept;         // give_back() of one, without looking who may go on for it
    bool ended_early(std::uint32_t record, SessionMap* map) noexcept;
    bool begin(std::uint32_t record, std::uint32_t worker, std::uint32_t slice_us = 0) noexcept;
    [[nodiscard]] bool awaited_already(std::uint32_t session, const RequestEntry& entry) const noexcept;
    void unblock(std::span<SessionMap* const> live) noexcept;  // what has come by now goes to the run queue, some at a time
    Reason resolve(const RequestEntry& entry, std::uint32_t& version_line) const noexcept;
    // seats.cpp
    void offer(std::uint32_t record) noexcept {              // it may run: to the run queue, or to the agent of its seat
        if (seated()) [[unlikely]] offer_to_agent(record, MessageType::nop, 0);
        else heap_push(record);
    }
    void offer_to_agent(std::uint32_t record, MessageType left, std::uint64_t run_ns) noexcept;
    void retract(std::uint32_t record) noexcept;             // it is offered no more
    void prune_offered() noexcept;
    void restate() noexcept;
    void restate(std::uint32_t seat) noexcept;
    void flush_seats() noexcept;
    void tell_end(std::uint32_t record) noexcept;
    void tell_blocked(std::uint32_t record) noexcept;
    void tell_taken(std::uint32_t record, std::uint32_t worker, bool along) noexcept;
    [[nodiscard]] std::uint32_t seat_of(const Record& record) const noexcept;
    // dealing.cpp
    [[nodiscard]] std::uint32_t dealt_seat(const Record& record) const noexcept;
    void deal(std::uint32_t record, bool left) noexcept;
    void load_of_seats(std::span<SeatLoad, max_seats> seats) const noexcept;
    void forget_at(std::uint32_t seat, std::uint32_t record) noexcept;
    void forget_dealt(std::uint32_t record) noexcept;
    bool take_over(std::uint32_t seat) noexcept;
    void take_over_for_idle() noexcept;
    [[nodiscard]] std::uint32_t idle_at(std::uint32_t seat) const noexcept;
    void count_offered(std::uint32_t record, int by) noexcept;
    [[nodiscard]] RequestFacts facts_of(std::uint32_t record) const noexcept;
    std::uint32_t pick_decided(std::uint32_t worker, std::span<SessionMap* const> maps, std::span<const std::uint32_t> suspended) noexcept;
    std::uint32_t run_claimed(std::span<const Claim> claims, std::span<SessionMap* const> maps, std::span<const std::uint32_t> suspended, HostSeat& seat) noexcept;
    std::uint32_t pick_default(std::uint32_t worker, std::span<SessionMap* const> maps, std::span<const std::uint32_t> suspended) noexcept;
    [[nodiscard]] std::uint32_t best_held(std::uint32_t worker) const noexcept;
    void put_offered(std::uint32_t record) noexcept;
    void retake(std::uint32_t record) noexcept;              // offered → where it waits in the default order
    [[nodiscard]] bool is_offered(std::uint32_t record) const noexcept { return __atomic_load_n(&memory_->records[record].offered, __ATOMIC_RELAXED) != 0; }
    Outcome fit_claimed(const Claim& claim, std::span<SessionMap* const> maps) noexcept;
    std::uint32_t pick_inline(std::uint32_t worker, std::span<SessionMap* const> maps) noexcept;
    void restate_inline() noexcept;
    std::uint32_t pick_offered(std::uint32_t worker, std::uint32_t seat, std::span<SessionMap* const> maps) noexcept;
    [[nodiscard]] bool within_limits(std::span<const Claim> claims) const noexcept;
    bool begin_claimed(const Claim& claim, bool elsewhere) noexcept;
    std::uint32_t take_latched(std::uint32_t worker) noexcept;
    enum class Fit : std::uint8_t { fits, ended, waits };
    Fit fit(std::uint32_t record, std::span<SessionMap* const> maps) noexcept;
    bool start(std::uint32_t record, std::uint32_t worker, std::uint32_t slice_us = 0) noexcept;

    std::shared_ptr<Region> region_;
    PoolMemory* memory_;
    std::bitset<max_versions> wanted_;  // this process's own
    // Between drain_to_pick() and pick(): among hundreds that wait, whose turn comes at once would be sifted all the way up, and the last of them
    // down again. Who dies in between leaves a queued record behind like any other (repair()).
    std::uint32_t front_ = nobody;
    bool keeps_front_ = false;
    // This process's looks at the blocked. Relaxed: what is missed is looked at 100 µs later.
    struct Look {
        std::atomic<std::uint32_t> left{0};    // records that this look has yet to see
        std::atomic<std::uint32_t> ends{0};    // ends_of() when it began
        std::atomic<std::uint64_t> began{0};   // ticks
        bool found = false;                    // one that can go on; under the role
    } look_;
    struct MappedSeat {
        std::shared_ptr<HostSeat> seat;
        unsigned count;
    };
    std::vector<MappedSeat> mapped_;    // under the role
    std::unique_ptr<InlinePolicy> inline_;  // null: an agent decides, or nobody
    std::shared_ptr<Trace> trace_;      // this process's own; while somebody records
};

}  // namespace teal
