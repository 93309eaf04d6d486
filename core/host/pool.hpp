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
// one ends in virtual time, or now; its length is what this version usually takes), then arrival. With one session that is arrival; a
// session that fills its quota is served in turn with the others.
//
// A request may wait for the ends of others of its session, or of events (AfterLine). Its record is queued as all are, but lies
// in `blocked` until they have come; every dispatcher looks, and a leader that watches the rings watches these lines as well.
//
// Who does what: `Role` is held for drain() and pick() only. `leader` names the worker that watches the
// rings; the others sleep. A leader that goes to run something long, or leaves work behind, resigns and wakes
// one of the others (promote()). The host's sweeper (host/sweeper.hpp) watches over deadlines and over leaders
// that turn out to be busy for longer than was thought.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

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
    std::uint32_t worker;               // who runs it; `nobody` while queued; under the role, before state becomes running
    std::uint32_t session;
    std::uint32_t epoch;
    RequestEntry entry;                 // private copy of what the client sent
    std::uint32_t version_line;
    std::uint32_t attempts;
    std::uint32_t ring_position;        // repair(): the entry this record came from
    std::uint32_t next_free;
    std::uint64_t sequence;             // order of arrival
    std::uint64_t tag;                  // its start in virtual time: who has had less of the workers goes first
    std::uint32_t charge;               // what it added to its session's virtual time, ns; taken back when it never runs
};
static_assert(sizeof(Record) == 128);

enum class WorkerState : std::uint32_t { absent = 0, starting, idle, leading, running };

struct alignas(64) WorkerLine {
    std::atomic<std::uint32_t> state;         // WorkerState; written by the worker, `absent` by the host
    std::atomic<std::uint32_t> pid;
    std::atomic<std::uint32_t> wake;          // futex word: bumped by whoever wants the worker to look up
    std::atomic<std::uint32_t> sleeping;      // 1 while it may sleep on `wake`
    std::atomic<std::uint32_t> record;        // what it runs, or `nobody`
    std::uint32_t pad0;
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
    std::uint32_t garbage;                 // entries that named no slot; under the role
    std::uint64_t requests;                // under the role
    std::uint64_t finish;                  // virtual time when what it has asked for so far would be done; under the role
    std::uint32_t last;                    // ring position where stop_taking() drew the line: requests from there on are refused
    std::int32_t most_priority;            // what it asks for beyond that is cut to it; host only
    std::uint8_t pad[4];
};
static_assert(sizeof(SessionLine) == 64);

enum class VersionState : std::uint32_t { empty = 0, loading, ready, retiring };

enum KernelFlags : std::uint32_t {
    kernel_pure = 1,        // running it twice or for nobody cannot be noticed
    kernel_idempotent = 2,  // run again after a worker died under it
    kernel_native = 4,      // runs in the core; `native_op` says what (kernel/builtin.hpp)
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
};
static_assert(sizeof(VersionLine) == 128);

struct ModelLine {
    std::atomic<std::uint32_t> current;  // version line + 1, or 0; under the role
    std::uint32_t known;                 // 1 once the name was given out
};

struct VersionHistograms { Histogram stages[stage_count]; };

struct PoolHeader {
    std::uint32_t magic;  // pool_magic
    std::uint32_t abi;
    std::uint64_t size;   // sizeof(PoolMemory): another build's layout does not match by chance
    std::atomic<std::uint32_t> stopping;  // no new requests are taken
    std::atomic<std::uint32_t> worker_end;  // 1 + the highest worker index so far; written by workers as they start
    std::uint64_t idle_ns;                // spin ceiling of workers
    std::uint8_t pad1[32];
    alignas(64) Role role;
    alignas(64) std::atomic<std::uint32_t> leader;  // worker + 1, or 0: who watches the rings
    std::atomic<std::uint32_t> active;              // records not free; for the sweeper's pace
    std::uint8_t pad2[56];
    // All below: under the role.
    std::uint32_t heap_size;
    std::uint32_t free_head;    // record + 1, or 0
    std::uint32_t next_session; // where the next drain starts: no session is always first
    std::uint32_t blocked_size;
    std::uint64_t next_sequence;
    std::uint64_t repairs;
    std::uint64_t virtual_time;  // tag of the request that was picked last
    std::uint32_t next_blocked;  // where the next look at blocked records starts
    std::uint8_t pad4[20];
};
static_assert(sizeof(PoolHeader) == 256);

struct PoolMemory {
    PoolHeader header;
    WorkerLine workers[max_workers];
    SessionLine sessions[max_sessions];
    VersionLine versions[max_versions];
    ModelLine models[max_models];
    std::uint32_t heap[record_count];
    std::uint32_t blocked[record_count];   // queued records that wait for the end of others; under the role
    Record records[record_count];
    AfterLine afters[record_count];        // of blocked records: private copies, checked
    VersionHistograms histograms[max_versions];
};

class Pool {
public:
    static std::shared_ptr<Pool> create(std::uint64_t idle_ns);
    static std::shared_ptr<Pool> attach(int fd);  // takes the descriptor

    [[nodiscard]] PoolMemory& memory() const noexcept { return *memory_; }
    [[nodiscard]] int fd() const noexcept { return region_->fd(); }

    // The role, repaired if its last holder died. False: could not get it (held) within the time.
    bool try_enter() noexcept;
    bool enter(std::uint64_t timeout_ns) noexcept;
    void leave() noexcept { memory_->header.role.unlock(); }

    // Under the role. `live` are this process's mappings, in any order; `maps[i]` is that of session i, or null.
    // Moves requests from rings to the run queue; refuses broken ones on the spot. Returns how many it moved.
    unsigned drain(std::span<SessionMap* const> live) noexcept;
    // Best runnable record, marked running for `worker`; expired ones on the way are ended. `nobody` when empty.
    std::uint32_t pick(std::uint32_t worker, std::span<SessionMap* const> maps) noexcept;
    // Gives records back that ended (state terminal).
    void give_back(std::span<const std::uint32_t> records) noexcept;
    // Gives those back that ended while they waited in the run queue.
    void prune() noexcept;
    // Ends what is left in the ring of a session that takes no more requests.
    void refuse_ring(SessionMap& map, Reason reason) noexcept;
    // Takes a record that is queued or running to its end; false when somebody else did.
    bool end_record(std::uint32_t record, State to) noexcept;
    // Running → queued, in its old place, as a new generation: what its dead worker may still have said of it is void.
    void requeue(std::uint32_t record) noexcept;
    void repair() noexcept;

    // Any time. True when some session's ring has an entry that drain() would take.
    [[nodiscard]] bool ring_ready(std::span<SessionMap* const> live) const noexcept;
    // Any time. True when what some blocked record waits for has come.
    [[nodiscard]] bool after_ready(std::span<SessionMap* const> live) const noexcept;
    // Is there anything to do for a worker that takes the role?
    [[nodiscard]] bool work_ready(std::span<SessionMap* const> live) const noexcept {
        return ring_ready(live) || queued() > 0 || after_ready(live);
    }
    [[nodiscard]] unsigned queued() const noexcept { return __atomic_load_n(&memory_->header.heap_size, __ATOMIC_RELAXED); }

    // Wakes one idle worker other than `self` to lead or to take queued work. False when there is none.
    bool promote(std::uint32_t self) noexcept;
    void wake_worker(std::uint32_t worker) noexcept;

    // Adds an end to the version's numbers: called once a request, by whoever ended the record, as its client sees it.
    static void count_end(VersionLine& version, State state) noexcept;
    // Ends a queued record's request towards its client, and counts it; under the role.
    void end_queued(std::uint32_t record, SessionMap* map, State state, Reason reason, std::uint32_t detail = 0) noexcept;

private:
    explicit Pool(std::shared_ptr<Region> region) noexcept;
    std::uint32_t take_free() noexcept;
    void heap_push(std::uint32_t record) noexcept;
    std::uint32_t heap_pop() noexcept;
    void sift_down(std::uint32_t at, std::uint32_t size) noexcept;
    [[nodiscard]] bool before(std::uint32_t a, std::uint32_t b) const noexcept;
    void rebuild() noexcept;
    bool admit(SessionLine& line, SessionMap& map, const RequestEntry& entry) noexcept;
    // blocked.cpp
    static bool read_after(const SessionMap& map, const RequestEntry& entry, std::uint32_t slots, AfterLine& copy) noexcept;
    void block(std::uint32_t record) noexcept;
    void unblock(std::span<SessionMap* const> live) noexcept;  // what has come by now goes to the run queue, some at a time
    Reason resolve(const RequestEntry& entry, std::uint32_t& version_line) const noexcept;

    std::shared_ptr<Region> region_;
    PoolMemory* memory_;
};

}  // namespace teal
