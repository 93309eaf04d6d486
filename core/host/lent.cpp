// Workers that one pool lends to another (docs/design.md).
//
// Theory of operation. A lent worker is a process of its own on the cores of the pool that lends it: a worker of the pool that is helped, with
// the models of that pool, as far as they have room in the lender's budget. So what it runs can kill, fill or stop nobody but itself; of the
// lender's pool it sees who has something to do, and can change nothing. It takes a request only while it has lent time (loans.hpp, one holder
// at a time): the lender's worker has nothing to do, nothing waits in its pool, and all workers of the helped pool are busy. It never spins. While nobody of the pool's own watches the rings it
// does, asleep at their bells; the first own worker that has nothing to do takes that over. One that finds nothing that it may do is barred:
// nobody wakes it in vain, and the sweeper, which sees both pools, says when there is something.
//
// The agent of a pool decides for the pool's own workers: while one sits there, lent ones take nothing.
#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "host/loans.hpp"
#include "host/pool.hpp"
#include "host/sweeper.hpp"
#include "host/words.hpp"
#include "host/worker.hpp"

namespace teal {
namespace {

constexpr std::uint32_t longest_look = 1024;  // of the run queue, for what a lent worker holds
constexpr std::uint64_t patience_ns = 2'000'000'000;

std::uint64_t bit_of(std::uint32_t version_line) noexcept { return std::uint64_t{1} << (version_line % 64); }

}  // namespace

// ---- the lender's side -------------------------------------------------------------------------------------------------------------

bool Pool::may_lend(std::uint32_t worker) const noexcept {
    const WorkerLine& line = memory_->workers[worker];
    const auto state = static_cast<WorkerState>(line.state.load(std::memory_order_relaxed));
    if (state != WorkerState::idle && state != WorkerState::leading) return false;
    if (line.record.load(std::memory_order_relaxed) != nobody || line.latched.load(std::memory_order_relaxed) != 0) return false;
    return queued() == 0 && offered() == 0 && memory_->header.stopping.load(std::memory_order_relaxed) == 0;
}

std::shared_ptr<Loans> Loans::create() {
    static_assert(max_workers * sizeof(std::uint32_t) <= page_bytes);
    return std::shared_ptr<Loans>(new Loans(Region::create(RegionKind::loans, 2 * page_bytes, 0, Pages::small)));
}

std::shared_ptr<Loans> Loans::attach(int fd) {
    auto region = Region::adopt(fd, RegionKind::loans, true);
    if (region->size() < 2 * page_bytes) throw Error(Code::version_mismatch, "pool region is too small for this build");
    return std::shared_ptr<Loans>(new Loans(std::move(region)));
}

// ---- the helped pool's side --------------------------------------------------------------------------------------------------------

bool Pool::has_idle() const noexcept {
    const std::uint32_t end = std::min(memory_->header.lent_from.load(std::memory_order_relaxed), max_workers);
    for (std::uint32_t i = 0; i < end; ++i) {
        const WorkerLine& line = memory_->workers[i];
        const auto state = static_cast<WorkerState>(line.state.load(std::memory_order_seq_cst));
        if ((state == WorkerState::idle || state == WorkerState::leading) && line.record.load(std::memory_order_relaxed) == nobody) return true;
    }
    return false;
}

void Pool::set_held(std::uint32_t worker, std::uint32_t version_line, bool held) noexcept {
    std::atomic<std::uint64_t>& word = memory_->holds[worker][version_line / 64];
    if (held) word.fetch_or(bit_of(version_line), std::memory_order_relaxed);
    else word.fetch_and(~bit_of(version_line), std::memory_order_relaxed);
}

bool Pool::holds(std::uint32_t worker, std::uint32_t version_line) const noexcept {
    return (memory_->holds[worker][version_line / 64].load(std::memory_order_relaxed) & bit_of(version_line)) != 0;
}

// Its place in the run queue.
std::uint32_t Pool::best_held(std::uint32_t worker) const noexcept {
    const std::uint32_t end = std::min(memory_->header.heap_size, longest_look);
    std::uint32_t best = nobody;
    for (std::uint32_t at = 0; at < end; ++at) {
        const std::uint32_t index = memory_->heap[at];
        if (!holds(worker, memory_->records[index].version_line)) continue;
        if (best == nobody || before(index, memory_->heap[best])) best = at;
    }
    return best;
}

bool Pool::has_work_for(std::uint32_t worker) const noexcept { return best_held(worker) != nobody; }

std::uint32_t Pool::pick_held(std::uint32_t worker, std::span<SessionMap* const> maps) noexcept {
    for (;;) {
        const std::uint32_t at = best_held(worker);
        if (at == nobody) return nobody;
        const std::uint32_t index = memory_->heap[at];
        if (slip(memory_->records[index])) {
            sift_down(at, memory_->header.heap_size);
            continue;
        }
        heap_remove(at);
        if (fit(index, maps) != Fit::fits) continue;
        if (start(index, worker)) return index;
    }
}

// ---- the worker --------------------------------------------------------------------------------------------------------------------

std::uint32_t Worker::take_for_others() {
    const auto pid = static_cast<std::uint32_t>(line_.pid.load(std::memory_order_relaxed));
    lender_->loans->give_back(lender_->worker, pid);  // of what it ran before
    const bool open = lender_->pool->may_lend(lender_->worker);
    if (finished_.empty() && (!open || !work_ready())) return nobody;
    if (!pool_->enter(patience_ns)) return nobody;
    if (!finished_.empty()) give_back_finished();
    pool_->drain(live_);
    std::uint32_t record = nobody;
    company_.clear();
    in_vain_ = open && !pool_->seated() && !pool_->has_idle();
    if (in_vain_ && lender_->loans->take(lender_->worker, pid)) {
        record = pool_->pick_held(index_, maps_);
        if (record == nobody) lender_->loans->give_back(lender_->worker, pid);
        else if (pool_->memory().header.batch > 1) pool_->gather(record, maps_, company_);
    }
    const bool more = pool_->queued() > 0;
    const std::bitset<max_versions> wanted = pool_->take_wanted();
    pool_->leave();
    in_vain_ = in_vain_ && record == nobody && more;
    tell_wanted(wanted);
    if (record == nobody) return record;
    resign();
    // SYNC: seq_cst as in take(): who resigns stores leader 0, then looks for whom to wake.
    line_.state.store(static_cast<std::uint32_t>(WorkerState::helping), std::memory_order_seq_cst);
    if (more || pool_->memory().header.leader.load(std::memory_order_seq_cst) == 0) pool_->promote(index_);
    return record;
}

void Worker::resign() noexcept {
    leading_ = false;
    std::uint32_t me = index_ + 1;
    pool_->memory().header.leader.compare_exchange_strong(me, 0, std::memory_order_seq_cst);
}

void Worker::wait_for_others() {
    show_core();
    PoolHeader& header = pool_->memory().header;
    const std::uint32_t wake_seen = line_.wake.load(std::memory_order_seq_cst);
    const bool lent = lender_->pool->may_lend(lender_->worker) && !pool_->seated();
    const bool work = pool_->work_ready(live_);
    const bool others = pool_->has_idle();  // who is woken for what there is, and wakes us for the rest
    if (lent && work && !others && !std::exchange(in_vain_, false)) return;  // it has come since we looked
    std::uint32_t leader = header.leader.load(std::memory_order_seq_cst);
    if (lent && !work && !others && leader == 0) header.leader.compare_exchange_strong(leader, index_ + 1, std::memory_order_seq_cst);
    leading_ = lent && !work && header.leader.load(std::memory_order_seq_cst) == index_ + 1;
    if (!leading_) resign();
    const WorkerState state = lent && (!work || others) ? WorkerState::resting : WorkerState::barred;
    line_.state.store(static_cast<std::uint32_t>(state), std::memory_order_seq_cst);
    if (leading_) {
        sleep_leading(wake_seen);
        return;
    }
    // SYNC: seq_cst: we stored `resting`, then load the leader; who resigns stores leader 0, then looks for whom to wake.
    if (state == WorkerState::resting && header.leader.load(std::memory_order_seq_cst) == 0 && !pool_->has_idle()) return;
    sleep_following(wake_seen);
}

// ---- the host ----------------------------------------------------------------------------------------------------------------------

const std::shared_ptr<Loans>& Sweeper::loans() {
    const std::lock_guard lock(mutex_);
    if (loans_ == nullptr) loans_ = Loans::create();
    return loans_;
}

void Sweeper::lend(std::uint32_t worker, Sweeper& lender, std::uint32_t its_worker) {
    std::shared_ptr<Loans> loans = lender.loans();
    const std::lock_guard lock(mutex_);
    std::atomic<std::uint32_t>& from = pool_->memory().header.lent_from;
    const std::uint32_t seen = from.load(std::memory_order_relaxed);
    if (seen == 0 || worker < seen) from.store(worker, std::memory_order_relaxed);
    lent_.push_back({worker, lender.pool_, std::move(loans), its_worker});
}

void Sweeper::bury_lent(std::uint32_t worker, std::uint32_t pid) {
    const std::lock_guard lock(mutex_);
    for (std::atomic<std::uint64_t>& word : pool_->memory().holds[worker]) word.store(0, std::memory_order_relaxed);
    for (const Lent& lent : lent_)
        if (lent.worker == worker) lent.loans->give_back(lent.its_worker, pid);
}

// Those that have slept for want of work, or of the lender's time, are woken when there is some. Under the role.
void Sweeper::rouse_lent() noexcept {
    const PoolMemory& memory = pool_->memory();
    if (pool_->seated() || pool_->has_idle()) return;
    const bool unwatched = memory.header.leader.load(std::memory_order_seq_cst) == 0;
    for (const Lent& lent : lent_) {
        const WorkerLine& line = memory.workers[lent.worker];
        const auto state = static_cast<WorkerState>(line.state.load(std::memory_order_relaxed));
        if (state != WorkerState::resting && state != WorkerState::barred) continue;
        if (line.sleeping.load(std::memory_order_relaxed) == 0 || !lent.lender->may_lend(lent.its_worker) || lent.loans->holder(lent.its_worker) != 0) continue;
        if (pool_->queued() == 0 ? unwatched : pool_->has_work_for(lent.worker)) pool_->wake_worker(lent.worker);
    }
}

}  // namespace teal
