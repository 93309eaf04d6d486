#include "host/sweeper.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>
#include <unistd.h>

#include "base/error.hpp"
#include "cpu/clock.hpp"
#include "host/batch.hpp"
#include "host/bpf_session.hpp"
#include "host/words.hpp"
#include "memory/bpf_map.hpp"

namespace teal {
namespace {

constexpr std::uint64_t role_patience_ns = 5'000'000'000;
constexpr std::uint64_t busy_leader_ns = 1'000'000;
constexpr std::uint64_t idle_leader_ns = 20'000'000;
constexpr std::uint64_t stuck_role_ns = 2'000'000'000;  // nobody needs a millisecond; seen held by the same one all that time

}  // namespace

Sweeper::Sweeper(std::shared_ptr<Pool> pool) : pool_(std::move(pool)), maps_(max_sessions, nullptr) {}

Sweeper::~Sweeper() {
    stop();
    if (events_fd_ >= 0) ::close(events_fd_);
}

void Sweeper::start() {
    stopping_ = false;
    thread_ = std::thread([this] { loop(); });
}

void Sweeper::stop() {
    {
        const std::lock_guard lock(stop_mutex_);
        stopping_ = true;
    }
    stop_signal_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void Sweeper::loop() {
    std::unique_lock lock(stop_mutex_);
    while (!stopping_) {
        lock.unlock();
        watch_role();
        tick();
        const bool busy = pool_->memory().header.active.load(std::memory_order_relaxed) > 0;
        lock.lock();
        // An agent that is silent is to be found within 50 ms of the request that it does not answer: time to look more closely is left.
        const int idle_ms = pool_->seated() || frozen_.load(std::memory_order_relaxed) > 0 ? 40 : 50;
        const std::chrono::milliseconds look(busy ? 1 : idle_ms);
        look_ns_ = static_cast<std::uint64_t>(std::chrono::nanoseconds(look).count());
        stop_signal_.wait_for(lock, look, [this] { return stopping_; });
    }
}

void Sweeper::enter() {
    if (!pool_->enter(role_patience_ns))
        throw Error(Code::internal_error, "the dispatch role was not released for 5 s; its holder is stopped or stuck");
}

// Not under mutex_: whoever has that may be waiting for the role.
void Sweeper::watch_role() noexcept {
    const std::uint32_t holder = pool_->memory().header.role.holder();
    const auto now = static_cast<std::uint64_t>(monotonic_ns());
    if (holder == 0 || holder != role_holder_) {
        role_holder_ = holder;
        role_since_ = now;
        return;
    }
    if (now - role_since_ < stuck_role_ns || holder == static_cast<std::uint32_t>(::getpid())) return;
    role_since_ = now;
    for (const WorkerLine& line : pool_->memory().workers)
        if (line.pid.load(std::memory_order_relaxed) == holder && line.state.load(std::memory_order_relaxed) != 0) ::kill(static_cast<pid_t>(holder), SIGKILL);
}

void Sweeper::tick() {
    const std::lock_guard lock(mutex_);
    if (pool_->seated() || frozen_.load(std::memory_order_relaxed) > 0) watch_seats(static_cast<std::uint64_t>(monotonic_ns()));
    watch_leader();
    if (!pool_->try_enter()) return;  // somebody dispatches right now; the next tick will do
    if (pool_->memory().header.leader.load(std::memory_order_relaxed) == 0) pool_->drain(live_);
    expire(static_cast<std::uint64_t>(monotonic_ns()));
    if (pool_->seated() && pool_->memory().header.active.load(std::memory_order_relaxed) > 0) pool_->tell_tick();
    if (!lent_.empty() && pool_->memory().header.active.load(std::memory_order_relaxed) > 0) rouse_lent();
    pool_->leave();
}

void Sweeper::watch_leader() noexcept {
    PoolMemory& memory = pool_->memory();
    std::uint32_t leader = memory.header.leader.load(std::memory_order_seq_cst);
    if (leader == 0 || memory.workers[leader - 1].sleeping.load(std::memory_order_relaxed) != 0) {
        rouse();
        return;
    }
    const std::uint64_t since = memory.workers[leader - 1].run_started.load(std::memory_order_relaxed);
    const std::uint64_t now = ticks();
    if (since == 0 ? !overlooks(leader) : now < since || static_cast<std::uint64_t>(ticks_to_ns(now - since)) < busy_leader_ns) return;
    // SYNC: seq_cst pairs with Worker::wait(): a follower that has stored `idle` re-reads the leader before it sleeps.
    if (memory.header.leader.compare_exchange_strong(leader, 0, std::memory_order_seq_cst)) pool_->promote(leader - 1);
}

// Is there work that a leader which is awake and runs nothing does not take, look after look? Then it was stopped.
bool Sweeper::overlooks(std::uint32_t leader) noexcept {
    const bool waiting = pool_->work_ready(live_);
    const std::uint64_t done = pool_->memory().workers[leader - 1].requests.load(std::memory_order_relaxed);
    const auto now = static_cast<std::uint64_t>(monotonic_ns());
    if (!waiting || leader != watched_ || done != watched_done_) {
        watched_ = leader;
        watched_done_ = done;
        watched_since_ = now;
        return false;
    }
    return now - watched_since_ >= idle_leader_ns;
}

// Work that no doorbell announces: a record queued again, or a ring entry whose session was at its limit until a record
// was given back here.
void Sweeper::rouse() noexcept {
    if (!pool_->work_ready(live_)) return;
    if (pool_->promote(nobody)) return;
    const std::uint32_t leader = pool_->memory().header.leader.load(std::memory_order_seq_cst);
    if (leader != 0) pool_->wake_worker(leader - 1);
}

void Sweeper::expire(std::uint64_t now) noexcept {
    PoolMemory& memory = pool_->memory();
    bool ended_waiting = false;
    std::uint32_t left = memory.header.active.load(std::memory_order_relaxed);
    for (std::uint32_t i = 0; i < record_count && left > 0; ++i) {
        Record& record = memory.records[i];
        const State state = state_of_record(record);
        if (state == State::free) continue;
        --left;
        if (state == State::running && record.worker == nobody) {  // Worker::abandon()
            if (pool_->end_record(i, State::failed)) end_running(i, State::failed, Reason::internal, 0, true);
            pool_->give_back({&i, 1});
            continue;
        }
        const std::uint64_t deadline = join(record.entry.deadline_low, record.entry.deadline_high);
        if (deadline == 0 || now <= deadline || is_terminal(state)) continue;
        if (!pool_->end_record(i, State::expired)) continue;
        if (state == State::running || record.suspended != 0) {
            end_running(i, State::expired, Reason::deadline, 0, false);
            if (state == State::queued) pool_->wake_worker(record.suspended - 1);  // it has to let go
        } else {
            pool_->end_queued(i, maps_[record.session], State::expired, Reason::deadline);
            ended_waiting = true;
        }
    }
    if (ended_waiting) pool_->prune();  // now, not when a worker gets there: they count against their client's limit
}

// Cancels one that waits. What it holds of a worker, if it had begun there, that one lets go.
void Sweeper::end_waiting(std::uint32_t index, Reason reason) noexcept {
    const Record& record = pool_->memory().records[index];
    if (!pool_->end_record(index, State::cancelled)) return;
    if (record.suspended == 0) {
        pool_->end_queued(index, maps_[record.session], State::cancelled, reason);
        return;
    }
    end_running(index, State::cancelled, reason, 0, false);
    pool_->wake_worker(record.suspended - 1);
}

// Tells the client of a record that is (or was) running and whose word we have just ended. False when its worker, or
// the client itself, had ended it.
bool Sweeper::end_running(std::uint32_t index, State state, Reason reason, std::uint32_t detail, bool released) noexcept {
    Record& record = pool_->memory().records[index];
    VersionLine& version = pool_->memory().versions[record.version_line];
    SessionMap* map = maps_[record.session];
    if (map == nullptr || map->epoch != record.epoch) {
        Pool::count_end(version, state);
        return false;
    }
    Ending ending;
    ending.state = state;
    ending.reason = reason;
    ending.detail = detail;
    ending.version = version.number;
    ending.flags = released ? word_released : 0;
    CompletionLine& line = map->lines()[record.entry.slot];
    const bool told = end_request(line, record.entry.generation, ending);
    Pool::count_end(version, told ? state : state_seen(line, record.entry.generation, state));
    return told;
}

void Sweeper::list_live() {
    live_.clear();
    for (SessionMap* map : maps_)
        if (map != nullptr) live_.push_back(map);
}

Sweeper::Opened Sweeper::open_session(std::uint32_t slots, std::uint32_t limit) {
    const std::lock_guard lock(mutex_);
    auto map = std::make_unique<SessionMap>();
    map->index = free_entry();
    map->epoch = pool_->memory().sessions[map->index].epoch + 1;
    map->layout = session_layout(slots);
    map->session = create_session_region(slots, map->index, map->epoch);
    return admit(std::move(map), limit);
}

Sweeper::Adopted Sweeper::adopt_bpf_session(int fd, std::uint32_t slots, std::uint32_t limit) {
    const std::lock_guard lock(mutex_);
    std::uint64_t bytes = 0;
    std::uint32_t index = 0;
    try {
        bytes = memory_map_bytes(fd);
        index = free_entry();
    } catch (...) {
        ::close(fd);
        throw;
    }
    auto map = map_bpf_session(fd, index, pool_->memory().sessions[index].epoch + 1, slots, bytes);
    format_bpf_session(*map);
    const Opened opened = admit(std::move(map), limit);
    return {opened.index, opened.epoch, opened.fd, bytes};
}

// Puts a session into the table; from here on workers take requests from its ring.
Sweeper::Opened Sweeper::admit(std::unique_ptr<SessionMap> map, std::uint32_t limit) {
    SessionLine& line = pool_->memory().sessions[map->index];
    enter();
    __atomic_store_n(&line.epoch, map->epoch, __ATOMIC_RELAXED);
    line.head = 0;
    line.last = 0;
    __atomic_store_n(&line.in_flight, 0, __ATOMIC_RELAXED);
    line.limit = limit;
    line.slots = map->layout.slots;
    line.granted.store(static_cast<std::uint32_t>(map->owned.size()), std::memory_order_relaxed);
    line.garbage = 0;
    line.requests = 0;
    line.finish = 0;
    line.slipped = 0;
    line.spared = 0;
    line.newest = 0;
    line.most_priority = INT32_MAX;
    line.state.store(static_cast<std::uint32_t>(SessionState::open), std::memory_order_release);
    pool_->leave();
    const Opened opened{map->index, map->epoch, map->session->fd()};
    maps_[map->index] = map.get();
    sessions_[map->index] = std::move(map);
    list_live();
    return opened;
}

std::uint32_t Sweeper::free_entry() const {
    for (std::uint32_t i = 0; i < max_sessions; ++i)
        if (static_cast<SessionState>(pool_->memory().sessions[i].state.load(std::memory_order_relaxed)) == SessionState::free) return i;
    throw Error(Code::quota_exceeded, "this pool has 1024 sessions open, the most it holds; close some or start another pool");
}

void Sweeper::limit_priority(std::uint32_t session, std::int32_t most) {
    const std::lock_guard lock(mutex_);
    enter();
    pool_->memory().sessions[session].most_priority = most;
    pool_->leave();
}

void Sweeper::set_batching(std::uint32_t rows, std::uint64_t delay_ns) {
    const std::lock_guard lock(mutex_);
    enter();
    pool_->memory().header.batch = std::min(rows, most_batch);
    pool_->memory().header.delay_ns = delay_ns;
    pool_->leave();
}

void Sweeper::set_quantum(std::uint64_t ns) noexcept { __atomic_store_n(&pool_->memory().header.quantum_ns, ns, __ATOMIC_RELAXED); }

void Sweeper::limit_running(std::uint32_t model, std::uint32_t most) {
    const std::lock_guard lock(mutex_);
    enter();
    pool_->limit_running(model, most);
    pool_->leave();
    rouse();
}

void Sweeper::grant_region(std::uint32_t session, std::uint32_t count) {
    pool_->memory().sessions[session].granted.store(count, std::memory_order_release);
}

void Sweeper::close_session(std::uint32_t session, Reason reason) {
    const std::lock_guard lock(mutex_);
    enter();
    PoolMemory& memory = pool_->memory();
    SessionLine& line = memory.sessions[session];
    if (maps_[session] != nullptr && maps_[session]->no_futex) shut_producer(*maps_[session]);
    line.state.store(static_cast<std::uint32_t>(SessionState::closing), std::memory_order_release);
    for (std::uint32_t i = 0; i < record_count; ++i) {
        Record& record = memory.records[i];
        if (record.session != session || record.epoch != line.epoch || state_of_record(record) != State::queued) continue;
        end_waiting(i, reason);
    }
    pool_->prune();
    if (maps_[session] != nullptr) pool_->refuse_ring(*maps_[session], reason);
    pool_->leave();
}

std::uint32_t Sweeper::session_in_flight(std::uint32_t session) {
    return __atomic_load_n(&pool_->memory().sessions[session].in_flight, __ATOMIC_RELAXED);
}

void Sweeper::free_session(std::uint32_t session) {
    const std::lock_guard lock(mutex_);
    maps_[session] = nullptr;
    list_live();
    sessions_[session].reset();
    pool_->memory().sessions[session].state.store(static_cast<std::uint32_t>(SessionState::free), std::memory_order_release);
}

std::span<const ClientStages> Sweeper::client_stages(std::uint32_t session) {
    const std::lock_guard lock(mutex_);
    if (session >= max_sessions || maps_[session] == nullptr) return {};
    return {maps_[session]->stages(), maps_[session]->layout.stage_count};
}

const BpfStages* Sweeper::bpf_stages(std::uint32_t session) {
    const std::lock_guard lock(mutex_);
    return session < max_sessions && maps_[session] != nullptr ? maps_[session]->bpf_stages : nullptr;
}

Sweeper::Buried Sweeper::bury_worker(std::uint32_t worker, std::uint32_t detail, bool stopping) {
    const State end = stopping ? State::cancelled : State::failed;
    const Reason reason = stopping ? Reason::host_stopping : Reason::worker_died;
    const std::lock_guard lock(mutex_);
    enter();
    PoolMemory& memory = pool_->memory();
    Buried buried{0, 0};
    for (std::uint32_t i = 0; i < record_count; ++i) {
        Record& record = memory.records[i];
        const State state = state_of_record(record);
        const bool suspended = record.suspended == worker + 1;  // what it held of it has gone with the process
        if (record.worker != worker || state == State::free || (state == State::queued && !suspended)) continue;
        const bool idempotent = (memory.versions[record.version_line].flags & kernel_idempotent) != 0;
        SessionMap* map = maps_[record.session];
        // Dying between telling the client and saying so here is no reason to run it again.
        const bool wanted = map != nullptr && map->epoch == record.epoch &&
                            static_cast<SessionState>(memory.sessions[record.session].state.load(std::memory_order_relaxed)) == SessionState::open &&
                            !is_past(map->lines()[record.entry.slot].word.load(std::memory_order_acquire), record.entry.generation);
        if (!stopping && !is_terminal(state) && idempotent && wanted && record.attempts < 3) {
            pool_->requeue(i);
            ++buried.again;
            continue;
        }
        if (pool_->end_record(i, end)) {
            if (end_running(i, end, reason, detail, true)) ++buried.failed;
        } else if (map != nullptr && map->epoch == record.epoch) {
            // Ended already (expired, or finished and died before giving it back): only the slot is left to release.
            release_slot(map->lines()[record.entry.slot], record.entry.generation);
        }
        pool_->give_back({&i, 1});
    }
    // Device kernels went with the process that kept them; their clients look at nothing but their lines.
    for (const SessionMap* map : live_)
        for (std::uint32_t i = 0; i < map->layout.slots; ++i) {
            ReplyLine& reply = map->devices()[i].reply;
            if (reply.owner.load(std::memory_order_relaxed) != worker + 1) continue;
            reply.state.store(static_cast<std::uint32_t>(LineState::lost), std::memory_order_release);
            reply.owner.store(0, std::memory_order_relaxed);
        }
    WorkerLine& line = memory.workers[worker];
    line.state.store(static_cast<std::uint32_t>(WorkerState::absent), std::memory_order_seq_cst);
    line.run_started.store(0, std::memory_order_relaxed);
    line.record.store(nobody, std::memory_order_relaxed);
    line.sleeping.store(0, std::memory_order_relaxed);
    line.latched.store(0, std::memory_order_relaxed);
    pool_->tell_worker(worker, false);
    std::uint32_t leader = worker + 1;
    memory.header.leader.compare_exchange_strong(leader, 0, std::memory_order_seq_cst);
    pool_->leave();
    pool_->promote(worker);  // to lead
    rouse();
    return buried;
}

void Sweeper::end_handed_over(std::uint32_t index, std::uint32_t generation, bool ok, std::uint32_t id, Reason reason) {
    if (index >= record_count) return;
    const std::lock_guard lock(mutex_);
    enter();
    Record& record = pool_->memory().records[index];
    if (record.state.load(std::memory_order_acquire) >> 8 != generation || state_of_record(record) == State::free) {
        pool_->leave();  // its worker died meanwhile and it was buried
        return;
    }
    const State state = ok ? State::done : State::failed;
    if (pool_->end_record(index, state)) {
        end_running(index, state, ok ? Reason::output_spilled : reason, id, true);
    } else if (SessionMap* map = maps_[record.session]; map != nullptr && map->epoch == record.epoch) {
        release_slot(map->lines()[record.entry.slot], record.entry.generation);
    }
    pool_->give_back({&index, 1});
    pool_->leave();
    rouse();
}

bool Sweeper::is_awaited(std::uint32_t session, std::uint32_t slot, std::uint32_t generation) {
    const std::lock_guard lock(mutex_);
    enter();
    pool_->drain(live_);  // what was submitted by now counts
    const bool found = pool_->is_awaited(session, slot, generation);
    pool_->leave();
    rouse();
    return found;
}

bool Sweeper::is_used_again(std::uint32_t session, std::uint32_t slot, std::uint32_t generation) {
    const std::lock_guard lock(mutex_);
    const SessionMap* map = maps_[session];
    return map != nullptr && slot < map->layout.slots && is_later(generation_of(map->lines()[slot].word.load(std::memory_order_relaxed)), generation);
}

void Sweeper::set_idle(std::uint64_t ns) noexcept { __atomic_store_n(&pool_->memory().header.idle_ns, ns, __ATOMIC_RELAXED); }

void Sweeper::stop_taking(bool stopping) {
    const std::lock_guard lock(mutex_);
    enter();
    for (const SessionMap* map : live_) {
        SessionLine& line = pool_->memory().sessions[map->index];
        line.last = line.head + RingConsumer(map->ring(), map->layout.ring_capacity, line.head).waiting();
    }
    pool_->memory().header.stopping.store(stopping ? 1 : 0, std::memory_order_release);
    pool_->leave();
}

bool Sweeper::all_taken() {
    const std::lock_guard lock(mutex_);
    for (const SessionMap* map : live_) {
        const SessionLine& line = pool_->memory().sessions[map->index];
        const bool open = static_cast<SessionState>(line.state.load(std::memory_order_relaxed)) == SessionState::open;
        if (open && static_cast<std::int32_t>(line.last - __atomic_load_n(&line.head, __ATOMIC_RELAXED)) > 0) return false;
    }
    return true;
}

std::uint32_t Sweeper::active() noexcept { return pool_->memory().header.active.load(std::memory_order_relaxed); }

}  // namespace teal
