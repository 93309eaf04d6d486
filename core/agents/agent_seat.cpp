#include "agents/agent_seat.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <unistd.h>

#include "base/error.hpp"
#include "cpu/clock.hpp"
#include "queue/wait.hpp"

namespace teal {

AgentSeat::AgentSeat(const SeatMap& map, std::shared_ptr<Region> view, std::shared_ptr<Region> desk)
    : map_(map), view_(std::move(view)), desk_(std::move(desk)), workers_(map.layout.workers) {
    rings_.reserve(map.layout.workers);
    const ViewHeader& header = map_.view_header();
    // From here on: what was told before is in the words, and lost() says that they are to be read.
    position_ = header.head.load(std::memory_order_acquire);
    map_.desk_header().tail.store(position_, std::memory_order_release);
    for (std::uint32_t i = 0; i < map_.layout.workers; ++i) workers_[i].next = workers_[i].settled = map_.seat_worker(i).next_serial.load(std::memory_order_acquire);
    map_.desk_header().pid.store(static_cast<std::uint32_t>(::getpid()), std::memory_order_relaxed);
    beat(clock_.now_ns());
}

std::shared_ptr<AgentSeat> AgentSeat::attach(int view_fd, int desk_fd) {
    std::shared_ptr<Region> view;
    try {
        view = Region::adopt(view_fd, RegionKind::view, false);
    } catch (...) {
        ::close(desk_fd);
        throw;
    }
    std::shared_ptr<Region> desk = Region::adopt(desk_fd, RegionKind::desk, true);
    if (view->size() < page_bytes + sizeof(ViewHeader) || desk->size() < page_bytes + sizeof(DeskHeader))
        throw Error(Code::invalid_argument, "a seat's regions are too small for their headers");
    const auto& header = *reinterpret_cast<const ViewHeader*>(view->base() + page_bytes);
    const auto& desk_header = *reinterpret_cast<const DeskHeader*>(desk->base() + page_bytes);
    if (header.magic != view_magic || desk_header.magic != desk_magic)
        throw Error(Code::invalid_argument, "a seat's regions: wrong magic; the first descriptor is the view's, the second the desk's");
    if (header.version != agent_protocol || desk_header.version != agent_protocol)
        throw Error(Code::version_mismatch, "this host speaks version " + std::to_string(header.version) + " of the agent protocol, this agent " +
                    std::to_string(agent_protocol) + "; run the same Teal on both sides");
    SeatMap map;
    map.layout = seat_layout(header.workers, header.records, header.ring_capacity);
    if (view->size() < map.layout.view_size || desk->size() < map.layout.desk_size)
        throw Error(Code::invalid_argument, "a seat's regions are smaller than the view's header says");
    map.view = view->base();
    map.desk = desk->base();
    return std::shared_ptr<AgentSeat>{new AgentSeat(map, std::move(view), std::move(desk))};
}

std::shared_ptr<AgentSeat> AgentSeat::beside(const HostSeat& host) {
    std::shared_ptr<AgentSeat> seat{new AgentSeat(host.map(), nullptr, nullptr)};
    seat->clock_ = host.clock();
    return seat;
}

// ---- messages ------------------------------------------------------------------------------------------------------------------

bool AgentSeat::has_message() const noexcept {
    // SYNC: seq_cst for sleep(): pairs with the fence in HostSeat::flush(); on x86 a plain load.
    return map_.ring_slot(position_).sequence.load(std::memory_order_seq_cst) == position_ + 1;
}

bool AgentSeat::poll(Message& message) noexcept {
    const RingSlot& slot = map_.ring_slot(position_);
    // SYNC: acquire pairs with the release in HostSeat::push().
    if (slot.sequence.load(std::memory_order_acquire) != position_ + 1) return false;
    if (link_ != nullptr) {
        Message when;
        std::memcpy(&when, slot.payload, sizeof when);
        if (!is_visible(link_.get(), std::uint64_t{when.when_high} << 32 | when.when_low, link_->now())) return false;
    }
    std::memcpy(&message, slot.payload, sizeof message);
    aseq_ = message.aseq;
    ++position_;
    // SYNC: release pairs with the acquire in HostSeat::push(). Not for each one: the host looks only when the ring seems full to it.
    if ((position_ & 31) == 0 || map_.ring_slot(position_).sequence.load(std::memory_order_relaxed) != position_ + 1)
        map_.desk_header().tail.store(position_, std::memory_order_release);
    return true;
}

bool AgentSeat::lost() noexcept {
    // SYNC: acquire pairs with the release in HostSeat::push() and lose().
    const std::uint64_t now = map_.view_header().overflow.load(std::memory_order_acquire);
    if (now == overflow_) return false;
    overflow_ = now;
    return true;
}

namespace {

template <class Word>
bool read_word(const StatusWord& entry, Word& word) noexcept {
    for (unsigned attempt = 0; attempt < 1000; ++attempt) {
        if (entry.read(word)) return true;
        cpu_relax();
    }
    return false;
}

}  // namespace

bool AgentSeat::request(std::uint32_t record, RequestWord& word) const noexcept { return read_word(map_.request_word(record), word); }

bool AgentSeat::worker(std::uint32_t worker, WorkerWord& word) const noexcept { return read_word(map_.worker_word(worker), word); }

// ---- decisions -----------------------------------------------------------------------------------------------------------------

std::uint32_t AgentSeat::settled(std::uint32_t worker) const noexcept {
    // SYNC: acquire pairs with the release in HostSeat::settle(): the slots before it are the agent's again.
    return map_.seat_worker(worker).next_serial.load(std::memory_order_acquire);
}

unsigned AgentSeat::room(std::uint32_t worker) noexcept {
    WorkerEnd& end = workers_[worker];
    if (end.next - end.settled >= stage_depth) end.settled = settled(worker);
    const std::uint32_t out = end.next - end.settled;
    return out < stage_depth ? stage_depth - out : 0;
}

AgentSeat::Staged AgentSeat::prepare(std::uint32_t worker, Decided decided) noexcept {
    if (room(worker) == 0) return {false, 0};
    const std::uint32_t serial = workers_[worker].next++;
    Transaction& slot = map_.worker_desk(worker).slots[serial % stage_depth];
    decided.version = agent_protocol;
    decided.staged = clock_.ticks();
    std::memcpy(reinterpret_cast<std::byte*>(&slot) + sizeof slot.word, &decided, sizeof decided);
    return {true, serial};
}

void AgentSeat::publish(std::uint32_t worker, std::uint32_t serial) noexcept {
    // SYNC: release pairs with the acquire in HostSeat::take_up().
    map_.worker_desk(worker).slots[serial % stage_depth].word.store(transaction_word(serial, TransactionState::ready), std::memory_order_release);
    ++published_;
    if (workers_[worker].to_ring != 0) return;
    workers_[worker].to_ring = 1;
    rings_.push_back(worker);
}

AgentSeat::Staged AgentSeat::stage(std::uint32_t worker, Decided decided) noexcept {
    const Staged staged = prepare(worker, decided);
    if (staged.ok) publish(worker, staged.serial);
    return staged;
}

bool AgentSeat::withdraw(std::uint32_t worker, std::uint32_t serial) noexcept {
    std::uint64_t word = transaction_word(serial, TransactionState::ready);
    // SYNC: acq_rel: against HostSeat::take_up(); one of the two has it.
    return map_.worker_desk(worker).slots[serial % stage_depth].word.compare_exchange_strong(
        word, transaction_word(serial, TransactionState::committed, Outcome::aborted), std::memory_order_acq_rel);
}

std::uint64_t AgentSeat::state(std::uint32_t worker, std::uint32_t serial) const noexcept {
    // SYNC: acquire pairs with the release in HostSeat::settle().
    return map_.worker_desk(worker).slots[serial % stage_depth].word.load(std::memory_order_acquire);
}

void AgentSeat::ring() noexcept {
    if (rings_.empty()) return;
    // SYNC: seq_cst fence pairs with the seq_cst store in HostSeat::set_asleep(): we have staged, and look whether the worker sleeps; it says
    // so, then looks at its slot.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    counts_.batches += published_ > 1 ? 1 : 0;
    counts_.batched += published_ > 1 ? published_ : 0;
    const std::uint64_t before = counts_.rung;
    for (const std::uint32_t worker : rings_) {
        workers_[worker].to_ring = 0;
        if (collected_ != nullptr) {
            collected_->push_back(worker);
            continue;
        }
        if (map_.seat_worker(worker).asleep.load(std::memory_order_relaxed) == 0) continue;
        send_kick(link_.get());
        std::atomic<std::uint32_t>& bell = map_.worker_desk(worker).bell;
        bell.fetch_add(1, std::memory_order_seq_cst);
        futex_wake(&bell, 1);
        ++counts_.rung;
    }
    counts_.spared += published_ - (counts_.rung - before);
    published_ = 0;
    rings_.clear();
}

void AgentSeat::ask_preempt(std::uint32_t worker, std::uint32_t record, std::uint32_t generation) noexcept {
    map_.worker_desk(worker).preempt.store(record | std::uint64_t{generation} << 32, std::memory_order_release);
}

// ---- being there ---------------------------------------------------------------------------------------------------------------

void AgentSeat::set_state(AgentState state) noexcept {
    // SYNC: release pairs with the acquire in HostSeat::agent_state().
    map_.desk_header().state.store(static_cast<std::uint32_t>(state), std::memory_order_release);
}

std::uint32_t AgentSeat::lie_down() noexcept {
    DeskHeader& desk = map_.desk_header();
    const std::uint32_t bell = desk.bell.load(std::memory_order_seq_cst);
    desk.asleep.store(1, std::memory_order_relaxed);
    // SYNC: seq_cst fence pairs with that in HostSeat::flush(): we have said that we sleep, and look at the ring; it has written, and
    // looks whether we sleep.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return bell;
}

bool AgentSeat::has_news() const noexcept {
    const ViewHeader& view = map_.view_header();
    return has_message() || view.overflow.load(std::memory_order_relaxed) != overflow_ || view.orders.load(std::memory_order_relaxed) != orders_;
}

void AgentSeat::doze(std::uint32_t bell, std::uint64_t until_ns) noexcept { futex_wait(&map_.desk_header().bell, bell, until_ns); }

void AgentSeat::doze_at_all(std::span<AgentSeat* const> seats, const std::uint32_t* bells, std::uint64_t until_ns) noexcept {
    FutexWaiter waiters[max_futex_waiters];
    for (std::size_t i = 0; i < seats.size(); ++i) waiters[i] = {&seats[i]->map_.desk_header().bell, bells[i]};
    if (futex_wait_any(waiters, static_cast<unsigned>(seats.size()), until_ns)) return;
    constexpr std::uint64_t short_nap_ns = 500'000;  // this kernel cannot wait for several
    seats[0]->doze(bells[0], std::min(until_ns, static_cast<std::uint64_t>(monotonic_ns()) + short_nap_ns));
}

void AgentSeat::wake() noexcept {
    DeskHeader& desk = map_.desk_header();
    desk.bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(&desk.bell, 1);
}

}  // namespace teal
