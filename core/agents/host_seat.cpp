#include "agents/host_seat.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <unistd.h>

#include "base/error.hpp"
#include "queue/wait.hpp"

namespace teal {
namespace {

// One writer at a time: no need for a locked instruction.
void add(std::atomic<std::uint64_t>& counter, std::uint64_t by = 1) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}
void add(Histogram& histogram, std::uint64_t ns) noexcept {
    std::atomic<std::uint32_t>& bucket = histogram.buckets[Histogram::bucket_of(ns)];
    bucket.store(bucket.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

std::uint32_t low(std::uint64_t value) noexcept { return static_cast<std::uint32_t>(value); }
std::uint32_t high(std::uint64_t value) noexcept { return static_cast<std::uint32_t>(value >> 32); }

bool is_end(const Message& message) noexcept {
    const auto type = static_cast<MessageType>(message.type);
    return type == MessageType::request_done || type == MessageType::request_departed;
}

}  // namespace

HostSeat::HostSeat(std::shared_ptr<Region> view, std::shared_ptr<Region> desk, const SeatLayout& layout) noexcept
    : map_{layout, view->base(), desk->base()}, view_(std::move(view)), desk_(std::move(desk)) {
    seat_ = view_header().seat;
    incarnation_ = view_header().incarnation;
}

std::shared_ptr<HostSeat> HostSeat::create(const SeatSpec& spec) {
    const SeatLayout layout = seat_layout(spec.workers, spec.records, spec.ring_capacity);
    auto view = Region::create(RegionKind::view, layout.view_size, spec.incarnation, Pages::small);
    auto desk = Region::create(RegionKind::desk, layout.desk_size, spec.incarnation, Pages::small);
    auto& header = *reinterpret_cast<ViewHeader*>(view->base() + page_bytes);
    header.magic = view_magic;
    header.version = agent_protocol;
    header.seat = spec.seat;
    header.incarnation = spec.incarnation;
    header.workers = spec.workers;
    header.records = spec.records;
    header.ring_capacity = spec.ring_capacity;
    header.link = spec.link;
    header.view_size = layout.view_size;
    header.desk_size = layout.desk_size;
    std::shared_ptr<HostSeat> seat{new HostSeat(std::move(view), std::move(desk), layout)};
    seat->desk_header().magic = desk_magic;
    seat->desk_header().version = agent_protocol;
    for (std::uint32_t i = 0; i < spec.workers; ++i) {
        SeatWorker& line = seat->map_.seat_worker(i);
        line.next_serial.store(1, std::memory_order_relaxed);
        line.running = no_object;
        seat->write_worker(i);
    }
    return seat;
}

std::shared_ptr<HostSeat> HostSeat::attach(int view_fd, int desk_fd) {
    std::shared_ptr<Region> view;
    std::shared_ptr<Region> desk;
    try {
        view = Region::adopt(view_fd, RegionKind::view, true);
    } catch (...) {
        ::close(desk_fd);
        throw;
    }
    // The agent can write the desk's first page too.
    desk = Region::adopt(desk_fd, RegionKind::desk, true, Header::ignored);
    if (view->size() < page_bytes + sizeof(ViewHeader)) throw Error(Code::invalid_argument, "a seat's view is too small for its header");
    const auto& header = *reinterpret_cast<const ViewHeader*>(view->base() + page_bytes);
    if (header.magic != view_magic || header.version != agent_protocol)
        throw Error(Code::version_mismatch, "a seat's view speaks version " + std::to_string(header.version) + " of the agent protocol, this build " +
                    std::to_string(agent_protocol) + "; run the same Teal on both sides");
    const SeatLayout layout = seat_layout(header.workers, header.records, header.ring_capacity);
    if (view->size() < layout.view_size || desk->size() < layout.desk_size)
        throw Error(Code::invalid_argument, "a seat's regions are smaller than its header says");
    return std::shared_ptr<HostSeat>{new HostSeat(std::move(view), std::move(desk), layout)};
}

AgentState HostSeat::agent_state() const noexcept {
    const std::uint32_t state = desk_header().state.load(std::memory_order_acquire);
    return state <= static_cast<std::uint32_t>(AgentState::leaving) ? static_cast<AgentState>(state) : AgentState::attaching;
}

// ---- messages ------------------------------------------------------------------------------------------------------------------

Message HostSeat::message(MessageType type, std::uint32_t object) noexcept {
    Message m{};
    m.type = static_cast<std::uint16_t>(type);
    m.object = object;
    m.worker = no_object;
    return m;
}

Message HostSeat::about(MessageType type, std::uint32_t record, RequestWord& word) noexcept {
    Message m = message(type, record);
    m.generation = word.generation;
    m.tseq = ++word.tseq;
    return m;
}

namespace {

bool is_about_worker(const Message& m) noexcept {
    return m.type >= static_cast<std::uint16_t>(MessageType::worker_available) && m.type < static_cast<std::uint16_t>(MessageType::agent_timer);
}

}  // namespace

void HostSeat::send(Message& m) noexcept {
    std::atomic<std::uint32_t>& aseq = view_header().aseq;
    m.aseq = aseq.load(std::memory_order_relaxed) + 1;
    aseq.store(m.aseq, std::memory_order_relaxed);
    if (now_ == 0) now_ = clock_.ticks();
    add(numbers().messages);
    if (trace_ != nullptr) [[unlikely]] trace_->add(TraceKind::message, now_, now_, is_about_worker(m) ? m.object : m.worker, is_about_worker(m) ? no_object : m.object, m.type, m.tseq);
    if (link_ == nullptr) {
        m.when_low = low(now_);
        m.when_high = high(now_);
        push(m);
        return;
    }
    pending_ends_ += is_end(m) ? 1 : 0;
    pending_.push_back(m);
    if (!batches(link_.get())) flush(true);
}

void HostSeat::push(const Message& m) noexcept {
    ViewHeader& header = view_header();
    const std::uint32_t head = header.head.load(std::memory_order_relaxed);
    if (head - header.known_tail >= map_.layout.ring_capacity) {
        // SYNC: acquire pairs with the release in AgentSeat::poll(): it has finished reading the slots up to its tail. What it says is its
        // own affair: a lie makes it lose messages.
        header.known_tail = desk_header().tail.load(std::memory_order_acquire);
        if (head - header.known_tail >= map_.layout.ring_capacity) {
            add(numbers().lost);
            // SYNC: release pairs with the acquire in AgentSeat::lost(): the words that are to be read anew are complete.
            header.overflow.store(header.overflow.load(std::memory_order_relaxed) + 1, std::memory_order_release);
            return;
        }
    }
    RingSlot& slot = map_.ring_slot(head);
    std::memcpy(slot.payload, &m, sizeof m);
    // SYNC: release pairs with the acquire in AgentSeat::poll(). Before `head`: should we die in between, begin_restating() moves it on;
    // the other way round the agent would wait for a slot that stays empty.
    slot.sequence.store(head + 1, std::memory_order_release);
    header.head.store(head + 1, std::memory_order_relaxed);
    __builtin_prefetch(&map_.ring_slot(head + 2), 1);  // it was read by the agent's core a lap ago
}

void HostSeat::flush(bool all) noexcept {
    if (now_ == 0 && pending_.empty() && settled_ == 0) return;
    now_ = 0;
    if (link_ != nullptr) {
        const auto count = static_cast<std::uint32_t>(pending_.size());
        if (!all && count == pending_ends_ && count < most_held_ends(link_.get())) return;  // for company
        // Each message is a line, and so is the slot that an outcome is written to.
        const std::uint64_t when = link_->charge_write(count * 64 + settled_ * 8, count + settled_);
        settled_ = 0;
        for (Message& m : pending_) {
            m.when_low = low(when);
            m.when_high = high(when);
            push(m);
        }
        pending_.clear();
        pending_ends_ = 0;
    }
    // SYNC: seq_cst fence pairs with that in AgentSeat::sleep(): it stores `asleep`, then looks at the ring; we have written, and look at `asleep`.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    std::atomic<std::uint32_t>& asleep = desk_header().asleep;
    // The first that finds it takes it down: one system call, not one for each message until the agent has come to.
    if (asleep.load(std::memory_order_relaxed) == 0 || asleep.exchange(0, std::memory_order_acq_rel) == 0) return;
    send_kick(link_.get());
    desk_header().bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(&desk_header().bell, 1);
    add(numbers().bells);
}

// ---- requests ------------------------------------------------------------------------------------------------------------------

void HostSeat::fill(RequestWord& word, const RequestFacts& facts) const noexcept {
    word.flags = request_in_use | request_is_runnable;
    if ((facts.flags & message_preemptible) != 0) word.flags |= request_preemptible;
    if ((facts.flags & message_yields) != 0) word.flags |= request_yields;
    word.generation = facts.generation;
    word.worker = facts.worker;
    word.model = facts.model;
    word.session = facts.session;
    word.priority = facts.priority;
    word.expected_ns = facts.expected_ns;
    word.ran_us = facts.ran_us;
    word.arrived = facts.arrived;
    word.deadline_ns = facts.deadline_ns;
    word.seat = seat_;
}

void HostSeat::describe(Message& m, const RequestFacts& facts) const noexcept {
    m.flags = facts.flags;
    m.worker = facts.worker;
    m.request.model = facts.model;
    m.request.session = facts.session;
    m.request.priority = facts.priority;
    m.request.expected_ns = facts.expected_ns;
    m.request.arrived_low = low(facts.arrived);
    m.request.arrived_high = high(facts.arrived);
    m.request.deadline_low = low(facts.deadline_ns);
    m.request.deadline_high = high(facts.deadline_ns);
}

void HostSeat::ready(const RequestFacts& facts) noexcept {
    StatusWord& entry = map_.request_word(facts.index);
    RequestWord word;
    entry.copy_own(word);
    const bool known = (word.flags & request_in_use) != 0;
    fill(word, facts);
    Message m = about(known ? MessageType::request_runnable : MessageType::request_new, facts.index, word);
    describe(m, facts);
    entry.write(word);
    RequestTimes& times = map_.times(facts.index);
    if (now_ == 0) now_ = clock_.ticks();
    times.told = now_;
    times.decided = 0;
    times.left = 0;
    times.started.store(0, std::memory_order_relaxed);  // whoever runs it may not know this seat
    times.ended.store(0, std::memory_order_relaxed);
    send(m);
}

void HostSeat::left(const RequestFacts& facts, MessageType why, std::uint32_t worker, std::uint64_t run_ns) noexcept {
    StatusWord& entry = map_.request_word(facts.index);
    RequestWord word;
    entry.copy_own(word);
    fill(word, facts);
    if (facts.worker != no_object) word.flags |= request_suspended;
    Message m = about(why, facts.index, word);
    m.flags = facts.flags;
    m.worker = worker;
    m.run.ran_us = facts.ran_us;
    m.run.expected_ns = facts.expected_ns;
    m.run.run_ns_low = low(run_ns);
    m.run.run_ns_high = high(run_ns);
    entry.write(word);
    if (now_ == 0) now_ = clock_.ticks();
    RequestTimes& times = map_.times(facts.index);
    count_waits(times, word.arrived);
    times.told = now_;
    times.decided = 0;
    ++times.left;
    add(why == MessageType::request_yield ? numbers().yielded : numbers().preempted);
    leave_worker(worker, facts.index);
    send(m);
}

void HostSeat::count_asked() noexcept { add(numbers().asked); }

bool HostSeat::count_unobeyed(std::uint32_t worker, std::uint32_t record, std::uint32_t generation) noexcept {
    std::uint64_t asked = preempt_asked(worker);
    if (asked != (record | std::uint64_t{generation} << 32)) return false;
    map_.worker_desk(worker).preempt.compare_exchange_strong(asked, 0, std::memory_order_relaxed);
    numbers().asks_refused.fetch_add(1, std::memory_order_relaxed);
    return true;
}

void HostSeat::blocked(std::uint32_t record, std::uint32_t worker) noexcept {
    StatusWord& entry = map_.request_word(record);
    RequestWord word;
    entry.copy_own(word);
    if ((word.flags & request_in_use) == 0) return;
    word.flags &= ~(request_is_runnable | request_on_worker);
    if (worker != no_object) word.flags |= request_is_runnable | request_on_worker;
    word.worker = worker;
    Message m = about(MessageType::request_blocked, record, word);
    m.worker = worker;
    if (worker != no_object) m.flags |= message_taken;
    entry.write(word);
    send(m);
}

void HostSeat::taken(std::uint32_t record, std::uint32_t worker) noexcept {
    StatusWord& entry = map_.request_word(record);
    RequestWord word;
    entry.copy_own(word);
    const bool known = (word.flags & request_in_use) != 0;
    if (known) {
        word.flags |= request_is_runnable | request_on_worker;
        word.worker = worker;
        ++word.tseq;
        entry.write(word);
    }
    enter_worker(worker, known ? record : no_object, word.generation);
    Message m = message(MessageType::worker_busy, worker);
    m.worker = known ? record : no_object;
    m.generation = known ? word.generation : 0;
    m.tseq = known ? word.tseq : 0;
    add(numbers().local);
    send(m);
}

void HostSeat::ended(std::uint32_t record, bool answered, bool failed) noexcept {
    StatusWord& entry = map_.request_word(record);
    RequestWord word;
    entry.copy_own(word);
    if ((word.flags & request_in_use) == 0) return;
    const std::uint32_t worker = (word.flags & request_on_worker) != 0 ? word.worker : no_object;
    word.flags = 0;
    Message m = about(answered ? MessageType::request_done : MessageType::request_departed, record, word);
    m.worker = worker;
    if (failed) m.flags |= message_failed;
    const RequestTimes& times = map_.times(record);
    const std::uint64_t started = times.started.load(std::memory_order_relaxed);
    const std::uint64_t last = times.ended.load(std::memory_order_relaxed);
    const std::uint64_t run_ns = worker != no_object && started != 0 && last > started ? clock_.to_ns(last - started) : 0;
    m.run.ran_us = static_cast<std::uint32_t>(std::min<std::uint64_t>(run_ns / 1000, UINT32_MAX));
    m.run.expected_ns = word.expected_ns;
    m.run.run_ns_low = low(run_ns);
    m.run.run_ns_high = high(run_ns);
    word.worker = no_object;
    entry.write(word);
    if (worker != no_object) leave_worker(worker, record);
    if (now_ == 0) now_ = clock_.ticks();
    if (answered) count_stages(record, now_);
    map_.times(record).decided = 0;
    send(m);
}

// Times of other cores may be a little ahead of ours.
void HostSeat::count_interval(SeatStage stage, std::uint64_t from, std::uint64_t to) noexcept {
    if (from != 0 && to != 0) add(numbers().stages[static_cast<std::size_t>(stage)], to > from ? clock_.to_ns(to - from) : 0);
}

// Up to the decision that was carried out last.
void HostSeat::count_waits(const RequestTimes& times, std::uint64_t arrived) noexcept {
    if (times.decided == 0) return;
    if (times.left == 0) count_interval(SeatStage::message, arrived, times.told);
    count_interval(SeatStage::decision, times.told, times.decided);
    count_interval(SeatStage::commit, times.decided, times.committed);
}

// Of one that was decided here and ran.
void HostSeat::count_stages(std::uint32_t record, std::uint64_t now) noexcept {
    const RequestTimes& times = map_.times(record);
    if (times.decided == 0) return;
    RequestWord word;
    map_.request_word(record).copy_own(word);
    const std::uint64_t started = times.started.load(std::memory_order_relaxed);
    const std::uint64_t ended = times.ended.load(std::memory_order_relaxed);
    count_waits(times, word.arrived);
    if (times.left == 0) count_interval(SeatStage::start, times.committed, started);
    count_interval(SeatStage::run, started, ended);
    count_interval(SeatStage::done, ended, now);
}

void HostSeat::priority(std::uint32_t record, std::int32_t value) noexcept {
    StatusWord& entry = map_.request_word(record);
    RequestWord word;
    entry.copy_own(word);
    if ((word.flags & request_in_use) == 0) return;
    word.priority = value;
    Message m = about(MessageType::request_priority, record, word);
    m.worker = word.worker;
    m.request.model = word.model;
    m.request.session = word.session;
    m.request.priority = value;
    entry.write(word);
    send(m);
}

void HostSeat::affinity(std::uint32_t record, std::uint32_t worker) noexcept {
    StatusWord& entry = map_.request_word(record);
    RequestWord word;
    entry.copy_own(word);
    if ((word.flags & request_in_use) == 0) return;
    if ((word.flags & request_on_worker) == 0) word.worker = worker;
    Message m = about(MessageType::request_affinity, record, word);
    m.worker = worker;
    m.request.model = word.model;
    m.request.session = word.session;
    m.request.priority = word.priority;
    entry.write(word);
    send(m);
}

}  // namespace teal
