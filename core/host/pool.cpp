#include "host/pool.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "cpu/clock.hpp"
#include "host/hot.hpp"
#include "host/words.hpp"
#include "queue/wait.hpp"

namespace teal {
namespace {

constexpr std::uint64_t pool_offset = page_bytes;
constexpr std::uint32_t heap_arity = 4;  // of two, the way down among hundreds that wait is twice as long, and is made of records that are not at hand
constexpr unsigned slip_shift = 6;  // a record counts slips in 64 ns, of which it has room for 275 s
// Entries taken from one ring in one drain(): a client that fills its ring as fast as it is emptied holds up nobody else.
constexpr unsigned longest_turn = 16;

std::uint32_t slips(const SessionLine& line) noexcept { return static_cast<std::uint32_t>(line.slipped >> slip_shift); }

}  // namespace

Pool::Pool(std::shared_ptr<Region> region) noexcept
    : region_(std::move(region)), memory_(reinterpret_cast<PoolMemory*>(region_->base() + pool_offset)) {}

std::shared_ptr<Pool> Pool::create(std::uint64_t idle_ns) {
    auto region = Region::create(RegionKind::pool, pool_offset + sizeof(PoolMemory), 0, Pages::small);
    std::shared_ptr<Pool> pool{new Pool(std::move(region))};
    PoolHeader& header = pool->memory_->header;
    header.magic = pool_magic;
    header.abi = abi_version;
    header.size = sizeof(PoolMemory);
    header.idle_ns = idle_ns;
    header.role.init();
    pool->rebuild();  // makes the free list
    return pool;
}

std::shared_ptr<Pool> Pool::attach(int fd, bool writable) {
    auto region = Region::adopt(fd, RegionKind::pool, writable);
    if (region->size() < pool_offset + sizeof(PoolMemory)) throw Error(Code::version_mismatch, "pool region is too small for this build");
    std::shared_ptr<Pool> pool{new Pool(std::move(region))};
    const PoolHeader& header = pool->memory_->header;
    if (header.magic != pool_magic || header.abi != abi_version || header.size != sizeof(PoolMemory))
        throw Error(Code::version_mismatch, "pool region was made by another build of Teal; restart the host");
    return pool;
}

TEAL_HOT bool Pool::try_enter() noexcept {
    const Role::Taken taken = memory_->header.role.try_lock();
    if (taken == Role::Taken::no) return false;
    if (taken == Role::Taken::after_death) {
        repair();
        memory_->header.role.repaired();
    }
    return true;
}

TEAL_HOT bool Pool::enter(std::uint64_t timeout_ns) noexcept {
    if (try_enter()) return true;
    const Role::Taken taken = memory_->header.role.lock_until(static_cast<std::uint64_t>(monotonic_ns()) + timeout_ns);
    if (taken == Role::Taken::no) return false;
    if (taken == Role::Taken::after_death) {
        repair();
        memory_->header.role.repaired();
    }
    return true;
}

TEAL_HOT bool Pool::before(std::uint32_t a, std::uint32_t b) const noexcept {
    const Record& left = memory_->records[a];
    const Record& right = memory_->records[b];
    if (left.entry.priority != right.entry.priority) return left.entry.priority > right.entry.priority;
    if (left.tag != right.tag) return left.tag < right.tag;
    return left.sequence < right.sequence;
}

TEAL_HOT void Pool::heap_push(std::uint32_t record) noexcept {
    if (keeps_front_) {
        if (front_ == nobody || before(record, front_)) std::swap(record, front_);
        if (record == nobody) return;
    }
    std::uint32_t* heap = memory_->heap;
    const std::uint32_t at = memory_->header.heap_size;
    heap[at] = record;
    poke(memory_->header.heap_size, at + 1);
    sift_up(at);
}

TEAL_HOT void Pool::sift_up(std::uint32_t at) noexcept {
    std::uint32_t* heap = memory_->heap;
    while (at > 0) {
        const std::uint32_t parent = (at - 1) / heap_arity;
        if (!before(heap[at], heap[parent])) break;
        std::swap(heap[at], heap[parent]);
        at = parent;
    }
}

TEAL_HOT void Pool::heap_remove(std::uint32_t at) noexcept {
    std::uint32_t* heap = memory_->heap;
    const std::uint32_t last = memory_->header.heap_size - 1;
    heap[at] = heap[last];
    poke(memory_->header.heap_size, last);
    if (at == last) return;
    sift_down(at, last);
    sift_up(at);
}

TEAL_HOT std::uint32_t Pool::heap_pop() noexcept {
    if (memory_->header.heap_size == 0) return nobody;
    const std::uint32_t top = memory_->heap[0];
    heap_remove(0);
    return top;
}

TEAL_HOT void Pool::sift_down(std::uint32_t at, std::uint32_t size) noexcept {
    std::uint32_t* heap = memory_->heap;
    for (;;) {
        std::uint32_t best = at;
        for (std::uint32_t child = heap_arity * at + 1; child <= heap_arity * at + heap_arity && child < size; ++child)
            if (before(heap[child], heap[best])) best = child;
        if (best == at) return;
        std::swap(heap[at], heap[best]);
        at = best;
    }
}

TEAL_HOT void Pool::put_front_back() noexcept {
    if (front_ != nobody) heap_push(std::exchange(front_, nobody));
}

// From any order.
void Pool::heapify() noexcept {
    const std::uint32_t size = memory_->header.heap_size;
    for (std::uint32_t at = size; at-- > 0;) sift_down(at, size);
}

std::uint32_t Pool::take_free() noexcept {
    PoolHeader& header = memory_->header;
    if (header.free_head == 0) return nobody;
    const std::uint32_t record = header.free_head - 1;
    header.free_head = memory_->records[record].next_free;
    return record;
}

Reason Pool::resolve(const RequestEntry& entry, std::uint32_t& version_line) const noexcept {
    if (entry.model >= max_models) return Reason::invalid;
    if (entry.version == 0) {
        const std::uint32_t current = memory_->models[entry.model].current.load(std::memory_order_relaxed);
        if (current == 0 || current > max_versions) return Reason::not_found;
        version_line = current - 1;
        return Reason::none;
    }
    for (std::uint32_t i = 0; i < max_versions; ++i) {
        const VersionLine& version = memory_->versions[i];
        // SYNC: acquire pairs with Sweeper::publish_version(): the line's other fields are complete, and only read once it is ready.
        const auto state = static_cast<VersionState>(version.state.load(std::memory_order_acquire));
        if (state != VersionState::ready && state != VersionState::parked) continue;
        if (version.model != entry.model || version.number != entry.version) continue;
        version_line = i;
        return Reason::none;
    }
    return Reason::not_found;
}

// Runs that take less than they were charged bring their session's next turn forward; what it asked for before comes first all the same.
TEAL_HOT std::uint64_t Pool::tag_of_newest(const SessionLine& line, std::uint32_t session) const noexcept {
    if (line.newest == 0) return 0;
    const Record& newest = memory_->records[line.newest - 1];
    const bool waits = newest.session == session && newest.epoch == line.epoch && state_of_record(newest) == State::queued;
    return waits && newest.charge != 0 ? turn_of(newest) : 0;
}

// As if its client asked for it now. Its session is charged what its version costs.
TEAL_HOT void Pool::deal_turn(std::uint32_t index) noexcept {
    Record& record = memory_->records[index];
    SessionLine& line = memory_->sessions[record.session];
    record.charge = cost_of(record.version_line);
    const std::uint64_t turn = std::max(memory_->header.virtual_time, line.finish);
    record.tag = std::max(turn, tag_of_newest(line, record.session));
    record.slipped = slips(line);
    line.finish = turn + record.charge;
    line.newest = static_cast<std::uint16_t>(index + 1);
}

// One of the session's ran longer than was charged. What it asks for from now on comes later by that, and so does what it has asked for: else a
// client that had hundreds wait at once would be charged for them what the first was thought to cost.
TEAL_HOT void Pool::overrun(SessionLine& line, std::uint64_t ns) const noexcept {
    line.finish += ns;
    const auto free = static_cast<std::uint32_t>(std::min<std::uint64_t>(ns, line.spared));
    line.spared -= free;
    line.slipped += ns - free;
}

// Its tag with all that its session has slipped since.
TEAL_HOT std::uint64_t Pool::turn_of(const Record& record) const noexcept {
    const SessionLine& line = memory_->sessions[record.session];
    if (line.epoch != record.epoch) return record.tag;
    return record.tag + (std::uint64_t{slips(line) - record.slipped} << slip_shift);
}

// True: its tag was not its turn any more, and is now. Tags only grow so, which is why it is enough to do it to whoever comes first.
TEAL_HOT bool Pool::slip(Record& record) const noexcept {
    const std::uint64_t turn = turn_of(record);
    const bool later = turn != record.tag;
    record.tag = turn;
    record.slipped = slips(memory_->sessions[record.session]);
    return later;
}

// One entry: refused at once, or made a queued record. False when there is no record to hold it.
TEAL_HOT bool Pool::admit(SessionLine& line, SessionMap& map, const RequestEntry& entry) noexcept {
    if (entry.slot >= line.slots) {
        ++line.garbage;  // nowhere to answer to
        return true;
    }
    std::uint32_t version_line = 0;
    Reason reason = entry.op == 0 && (entry.flags & ~entry_after) == 0 ? resolve(entry, version_line) : Reason::invalid;
    AfterLine after{};
    if (reason == Reason::none && (entry.flags & entry_after) != 0 && (!read_after(map, entry, line.slots, after) || awaited_already(map.index, entry)))
        reason = Reason::invalid;
    // What was in the ring before the host began to stop is taken all the same.
    const bool late = memory_->header.stopping.load(std::memory_order_relaxed) != 0 && static_cast<std::int32_t>(line.head - line.last) >= 0;
    if (reason == Reason::none && late) reason = Reason::host_stopping;
    if (reason != Reason::none) {
        Ending ending;
        ending.state = reason == Reason::host_stopping ? State::cancelled : State::failed;
        ending.reason = reason;
        end_request(map.lines()[entry.slot], entry.generation, ending);
        return true;
    }
    const std::uint32_t index = take_free();
    if (index == nobody) return false;
    Record& record = memory_->records[index];
    record.worker = nobody;
    record.session = map.index;
    record.epoch = line.epoch;
    record.entry = entry;
    record.version_line = version_line;
    record.attempts = 0;
    record.counted = 0;
    record.due_ns = 0;
    record.suspended = 0;
    record.offered = 0;
    record.ring_position = line.head;
    record.sequence = memory_->header.next_sequence++;
    record.entry.priority = std::min(entry.priority, line.most_priority);
    if ((entry.submitted_low | entry.submitted_high) == 0) {  // a BPF program has no tick counter to read: it waits from here on
        const std::uint64_t now = ticks();
        record.entry.submitted_low = static_cast<std::uint32_t>(now);
        record.entry.submitted_high = static_cast<std::uint32_t>(now >> 32);
    }
    record.charge = 0;
    record.tag = 0;
    if (after.count > 0) memory_->afters[index] = after;  // it is dealt its turn when it can run: waiting is no credit
    else deal_turn(index);
    store_state(record, State::queued);  // from here on repair() knows it
    poke(line.in_flight, line.in_flight + 1);
    ++line.requests;
    VersionLine& version = memory_->versions[version_line];
    poke(version.in_flight, version.in_flight + 1);
    memory_->header.active.store(memory_->header.active.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (after.count > 0) block(index);
    else enqueue(index);
    return true;
}

TEAL_HOT void Pool::drain_to_pick(std::span<SessionMap* const> live) noexcept {
    keeps_front_ = !seated();
    drain(live);
    keeps_front_ = false;
}

TEAL_HOT unsigned Pool::drain(std::span<SessionMap* const> live) noexcept {
    unsigned moved = 0;
    if (memory_->header.next_due_ns != 0) release_due();
    const auto count = static_cast<std::uint32_t>(live.size());
    if (count == 0) return 0;
    PoolHeader& header = memory_->header;
    const std::uint32_t first = header.next_session < count ? header.next_session : 0;
    for (std::uint32_t step = 0; step < count; ++step) {
        const std::uint32_t at = first + step < count ? first + step : first + step - count;
        SessionMap* map = live[at];
        SessionLine& line = memory_->sessions[map->index];
        if (line.epoch != map->epoch || static_cast<SessionState>(line.state.load(std::memory_order_acquire)) != SessionState::open) continue;
        RingConsumer ring(map->ring(), map->layout.ring_capacity, line.head);
        for (unsigned turn = 0; turn < longest_turn && line.in_flight < line.limit; ++turn) {
            const std::uint8_t* message = ring.peek();
            if (message == nullptr) break;
            RequestEntry entry;  // the one copy: checked and used from here on
            std::memcpy(&entry, message, sizeof entry);
            if (!admit(line, *map, entry)) {
                header.next_session = at;  // the table is full; this one is first when it no longer is
                unblock(live);
                return moved;
            }
            // Our own position first: should we die between the two, the ring looks one entry fuller than it is, not emptier.
            poke(line.head, ring.position() + 1);
            ring.retire();
            ++moved;
        }
    }
    header.next_session = (first + 1) % count;
    if (look_due(live)) unblock(live);
    return moved;
}

void Pool::refuse_ring(SessionMap& map, Reason reason) noexcept {
    SessionLine& line = memory_->sessions[map.index];
    RingConsumer ring(map.ring(), map.layout.ring_capacity, line.head);
    Ending ending;
    ending.state = State::cancelled;
    ending.reason = reason;
    for (std::uint32_t turn = 0; turn < map.layout.ring_capacity; ++turn) {
        const std::uint8_t* message = ring.peek();
        if (message == nullptr) return;
        RequestEntry entry;
        std::memcpy(&entry, message, sizeof entry);
        if (entry.slot < line.slots) end_request(map.lines()[entry.slot], entry.generation, ending);
        poke(line.head, ring.position() + 1);
        ring.retire();
    }
}

TEAL_HOT void Pool::count_end(VersionLine& version, State state) noexcept {
    version.requests.fetch_add(1, std::memory_order_relaxed);
    if (state == State::failed) version.failed.fetch_add(1, std::memory_order_relaxed);
    if (state == State::cancelled) version.cancelled.fetch_add(1, std::memory_order_relaxed);
    if (state == State::expired) version.expired.fetch_add(1, std::memory_order_relaxed);
}

void Pool::end_queued(std::uint32_t index, SessionMap* map, State state, Reason reason, std::uint32_t detail) noexcept {
    Record& record = memory_->records[index];
    SessionLine& session = memory_->sessions[record.session];
    const std::uint32_t charge = record.charge;
    record.charge = 0;
    // The compiler keeps to this order: should we die in between, the session waits longer for once, and is not given it back twice.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (session.epoch == record.epoch) session.finish -= std::min<std::uint64_t>(charge, session.finish);  // it had nothing of the workers
    if (map != nullptr && map->epoch == record.epoch) {
        Ending ending;
        ending.state = state;
        ending.reason = reason;
        ending.detail = detail;
        ending.version = memory_->versions[record.version_line].number;
        CompletionLine& line = map->lines()[record.entry.slot];
        if (!end_request(line, record.entry.generation, ending)) state = state_seen(line, record.entry.generation, state);
    }
    count_end(memory_->versions[record.version_line], state);
}

TEAL_HOT std::uint32_t Pool::pick(std::uint32_t worker, std::span<SessionMap* const> maps, std::span<const std::uint32_t> suspended) noexcept {
    if (memory_->workers[worker].latched.load(std::memory_order_relaxed) != 0) [[unlikely]] {
        if (const std::uint32_t index = take_latched(worker); index != nobody) {
            put_front_back();
            return index;
        }
    }
    if (seated()) [[unlikely]] return pick_decided(worker, maps, suspended);
    const std::uint32_t index = pick_default(worker, maps, suspended);
    put_front_back();
    return index;
}

// May a queued record run now? If not it is where it belongs by then: ended and free, among the blocked, or held.
TEAL_HOT Pool::Fit Pool::fit(std::uint32_t index, std::span<SessionMap* const> maps) noexcept {
    Record& record = memory_->records[index];
    if (state_of_record(record) != State::queued ||  // ended while it waited; give_back() was left to us
        ended_early(index, record.session < maps.size() ? maps[record.session] : nullptr)) {
        give_back({&index, 1});
        return Fit::ended;
    }
    if (is_parked(record.version_line)) {
        if ((record.entry.flags & entry_after) == 0) memory_->afters[index].count = 0;  // else its ends have come, and stay so
        wanted_.set(record.version_line);
        stop_clock(record);
        block(index);
        if (seated()) [[unlikely]] tell_blocked(index);
        return Fit::waits;
    }
    VersionLine& version = memory_->versions[record.version_line];
    const ModelLine& model = memory_->models[version.model];
    if (model.most != 0 && model.running >= model.most) {  // the others go first
        version.held.fetch_add(1, std::memory_order_relaxed);
        hold(index);
        if (seated()) [[unlikely]] tell_blocked(index);
        return Fit::waits;
    }
    return Fit::fits;
}

TEAL_HOT bool Pool::start(std::uint32_t index, std::uint32_t worker, std::uint32_t slice_us) noexcept {
    if (!begin(index, worker, slice_us)) {
        give_back({&index, 1});
        return false;
    }
    Record& record = memory_->records[index];
    ModelLine& model = memory_->models[memory_->versions[record.version_line].model];
    if (model.most != 0) {
        record.counted = 1;
        ++model.running;
    }
    memory_->header.virtual_time = std::max(memory_->header.virtual_time, record.tag);
    return true;
}

TEAL_HOT std::uint32_t Pool::pick_default(std::uint32_t worker, std::span<SessionMap* const> maps, std::span<const std::uint32_t> suspended) noexcept {
    for (;;) {
        while (memory_->header.heap_size > 0 && slip(memory_->records[memory_->heap[0]])) sift_down(0, memory_->header.heap_size);
        std::uint32_t index = memory_->header.heap_size > 0 ? memory_->heap[0] : nobody;
        if (front_ != nobody && (index == nobody || before(front_, index))) index = front_;
        if (!suspended.empty()) {
            const std::uint32_t mine = best_suspended(suspended);
            if (mine != nobody && (index == nobody || before(mine, index))) {
                poke(memory_->slices[mine], 0U);
                if (resume(mine)) return mine;
                continue;  // ended this instant
            }
        }
        if (index == nobody) return nobody;
        if (index == front_) front_ = nobody;
        else heap_remove(0);
        if (fit(index, maps) != Fit::fits) continue;
        if (start(index, worker)) return index;
    }
}

TEAL_HOT bool Pool::end_record(std::uint32_t index, State to) noexcept {
    Record& record = memory_->records[index];
    std::uint32_t seen = record.state.load(std::memory_order_acquire);
    for (;;) {
        const State state = static_cast<State>(seen & 0xff);
        if (state != State::queued && state != State::running) return false;
        // SYNC: acq_rel pairs with every other compare-and-swap on the word: exactly one ends a request.
        if (record.state.compare_exchange_weak(seen, low_half(seen >> 8, to), std::memory_order_acq_rel)) return true;
    }
}

void Pool::requeue(std::uint32_t index) noexcept {
    Record& record = memory_->records[index];
    if (record.offered != 0) retract(index);
    record.worker = nobody;
    record.suspended = 0;
    record.due_ns = 0;
    const std::uint32_t generation = record.state.load(std::memory_order_relaxed) >> 8;
    // SYNC: release pairs with the acquire in state_of_record().
    record.state.store(low_half(generation + 1, State::queued), std::memory_order_release);
    offer(index);
    uncount(record);
    let_next(record);
}

TEAL_HOT void Pool::charge_run(std::uint32_t index, std::uint32_t ran_ns) noexcept {
    Record& record = memory_->records[index];
    SessionLine& line = memory_->sessions[record.session];
    std::uint32_t& cost = memory_->versions[record.version_line].cost_ns;
    const std::uint32_t ran = std::max(ran_ns, least_cost_ns);
    // A run that the machine held up for a thousand times as long would cost whoever calls next a thousand turns.
    const std::int64_t step = static_cast<std::int64_t>(std::min<std::uint64_t>(ran, std::uint64_t{2} * cost)) - cost;
    cost = cost == 0 ? ran : static_cast<std::uint32_t>(cost + step / 8);
    if (record.charge == 0 || line.epoch != record.epoch) return;
    if (ran > record.charge) {
        overrun(line, ran - record.charge);
    } else {
        line.finish -= std::min<std::uint64_t>(record.charge - ran, line.finish);
        line.spared = std::min(line.spared + (record.charge - ran), record.charge);  // of one run: it is no account to save on
    }
    record.charge = ran;
}

TEAL_HOT void Pool::give_back(std::span<const std::uint32_t> records) noexcept {
    for (const std::uint32_t index : records) {
        free_record(index);
        let_next(memory_->records[index]);
    }
}

TEAL_HOT void Pool::free_record(std::uint32_t index) noexcept {
    PoolHeader& header = memory_->header;
    Record& record = memory_->records[index];
    if (record.offered != 0) [[unlikely]] retract(index);
    if (seated()) [[unlikely]] tell_end(index);
    SessionLine& line = memory_->sessions[record.session];
    if (line.epoch == record.epoch && line.in_flight > 0) {
        poke(line.in_flight, line.in_flight - 1);
        poke(line.ended, static_cast<std::uint16_t>(line.ended + 1));
    }
    VersionLine& version = memory_->versions[record.version_line];
    if (version.in_flight > 0) poke(version.in_flight, version.in_flight - 1);
    const std::uint32_t generation = record.state.load(std::memory_order_relaxed) >> 8;
    // SYNC: release pairs with the acquire in state_of_record().
    record.state.store(low_half(generation + 1, State::free), std::memory_order_release);
    record.next_free = header.free_head;
    header.free_head = index + 1;
    header.active.store(header.active.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
    uncount(record);
}

TEAL_HOT bool Pool::ring_ready(std::span<SessionMap* const> live) const noexcept {
    for (const SessionMap* map : live) {
        const SessionLine& line = memory_->sessions[map->index];
        RingConsumer ring(map->ring(), map->layout.ring_capacity, peek_at(line.head));
        if (ring.peek() == nullptr || peek_at(line.in_flight) >= line.limit) continue;
        // drain() passes a closing session by; whoever waits for it must not take its ring for work.
        if (peek_at(line.epoch) == map->epoch && static_cast<SessionState>(line.state.load(std::memory_order_acquire)) == SessionState::open) return true;
    }
    return false;
}

void Pool::wake_worker(std::uint32_t worker) noexcept {
    WorkerLine& line = memory_->workers[worker];
    line.wake.fetch_add(1, std::memory_order_seq_cst);
    // SYNC: seq_cst pairs with the worker's store of `sleeping` before it re-reads what it waits for.
    if (line.sleeping.load(std::memory_order_seq_cst) != 0) futex_wake(&line.wake, 1);
}

bool Pool::promote(std::uint32_t self) noexcept {
    const std::uint32_t end = memory_->header.worker_end.load(std::memory_order_relaxed);
    std::uint32_t lent = nobody;
    for (std::uint32_t i = 0; i < end; ++i) {
        if (i == self) continue;
        const auto state = static_cast<WorkerState>(memory_->workers[i].state.load(std::memory_order_seq_cst));
        if (state == WorkerState::resting && lent == nobody) lent = i;
        if (state != WorkerState::idle) continue;
        wake_worker(i);
        return true;
    }
    if (lent == nobody) [[likely]] return false;
    const std::uint32_t leader = memory_->header.leader.load(std::memory_order_seq_cst);
    if (leader != 0 && leader - 1 != self && !is_lent(leader - 1)) return false;  // one of the pool's own looks
    wake_worker(lent);
    return true;
}

}  // namespace teal
