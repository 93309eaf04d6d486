// Requests that have begun and left their worker (host/pool.hpp, host/worker.hpp).
//
// Theory of operation. A piece is what runs between going on and leaving. A kernel that yields runs its pieces on the worker's own stack and
// keeps what it has to; one that can be left anywhere runs on a fiber. When a piece is over and the request is not, it is queued again,
// unless nobody would go before it: then the next piece begins at once. What ends a request that has left (a cancel, its deadline, its
// session, a forced unload) ends its record, its client's word or its session; the loop finds it at its next turn and drops the run.
#include <algorithm>
#include <cstdio>
#include <string>

#include "cpu/clock.hpp"
#include "host/words.hpp"
#include "host/worker.hpp"

namespace teal {
namespace {

constexpr std::uint64_t patience_ns = 2'000'000'000;
constexpr std::uint64_t ask_look_ns = 100'000;  // so often a run without a slice is looked at for an agent's ask
constexpr std::size_t most_suspended = 256;  // of one worker, each with a stack: more than that run to their ends

}  // namespace

// ---- the pool's side, under the role -----------------------------------------------------------------------------------------------

bool Pool::suspend(std::uint32_t index, std::uint32_t worker, std::uint64_t ran_ns, MessageType why) noexcept {
    Record& record = memory_->records[index];
    record.suspended = worker + 1;
    SessionLine& session = memory_->sessions[record.session];
    if (session.epoch == record.epoch) {
        // What it really took so far, and no longer what its version usually takes.
        if (ran_ns > record.charge) {
            session.finish += ran_ns - record.charge;  // no overrun(): its session's others had not run in its place, and go first
            record.charge = static_cast<std::uint32_t>(std::min<std::uint64_t>(ran_ns, UINT32_MAX));
        }
        // As if its client had asked for the rest of it now.
        slip(record);  // and nothing of the past is added
        record.tag = std::max(memory_->header.virtual_time, session.finish);
    }
    record.sequence = memory_->header.next_sequence++;
    std::uint32_t expected = low_half(record.state.load(std::memory_order_relaxed) >> 8, State::running);
    // SYNC: acq_rel pairs with end_record(): it is queued again, or has ended.
    if (!record.state.compare_exchange_strong(expected, low_half(expected >> 8, State::queued), std::memory_order_acq_rel)) return false;
    if (seated()) [[unlikely]] offer_to_agent(index, why, ran_ns);
    return true;
}

bool Pool::resume(std::uint32_t index) noexcept {
    Record& record = memory_->records[index];
    std::uint32_t expected = low_half(record.state.load(std::memory_order_relaxed) >> 8, State::queued);
    // SYNC: acq_rel pairs with end_record().
    if (!record.state.compare_exchange_strong(expected, low_half(expected >> 8, State::running), std::memory_order_acq_rel)) return false;
    memory_->header.virtual_time = std::max(memory_->header.virtual_time, record.tag);
    memory_->versions[record.version_line].resumed.fetch_add(1, std::memory_order_relaxed);
    return true;
}

std::uint32_t Pool::best_suspended(std::span<const std::uint32_t> suspended) const noexcept {
    std::uint32_t best = nobody;
    for (const std::uint32_t index : suspended)
        if (state_of_record(memory_->records[index]) == State::queued && !is_offered(index) && (best == nobody || before(index, best))) best = index;
    return best;
}

bool Pool::goes_on(std::span<const std::uint32_t> suspended) const noexcept {
    for (const std::uint32_t index : suspended)
        if (!is_offered(index)) return true;
    return false;
}

bool Pool::would_wait(std::uint32_t index, std::span<const std::uint32_t> suspended, bool before_equals) const noexcept {
    // Who is more urgent than what it has decided an agent says itself.
    if (before_equals && memory_->header.offered_size > 0) return true;
    const std::int32_t priority = memory_->records[index].entry.priority;
    const auto goes_first = [&](std::uint32_t other) {
        const std::int32_t its = memory_->records[other].entry.priority;
        return before_equals ? its >= priority : its > priority;
    };
    if (memory_->header.heap_size > 0 && goes_first(memory_->heap[0])) return true;
    const std::uint32_t mine = best_suspended(suspended);
    return mine != nobody && goes_first(mine);
}

// ---- the worker's side -------------------------------------------------------------------------------------------------------------

// What the next piece may take, ns; 0: as long as it likes.
std::uint64_t Worker::slice_ns(std::uint32_t record) const noexcept { return pool_->slice_of(record).ns; }

// The same, for the timer: an agent that could ask it to leave is heard at the timer's next tick, where no pipe brings its call.
std::uint64_t Worker::timer_ns(std::uint32_t record) const noexcept {
    const Pool::SliceOf slice = pool_->slice_of(record);
    if (slice.ns != 0 || seat_ == nullptr || !slice.may_be_asked || preemptor_->is_rung()) return slice.ns;
    return ask_look_ns;
}

// Can a run of this binding be made to leave, and will anybody want it to?
bool Worker::may_leave(const Binding& binding, std::uint32_t record) {
    if (suspended_.size() >= most_suspended || lender_) return false;  // what is lent is given back by the end of a run
    const bool anywhere = binding.preemption == Preemption::anywhere;
    const Pool::SliceOf slice = pool_->slice_of(record);
    if (!slice.may_be_asked) return false;
    if (anywhere && slice.ns == 0 && seat_ == nullptr && (!preemptor_ || !preemptor_->listens())) return false;
    const bool open = preemptor().is_open();  // it keeps the time also where it cannot be
    return !anywhere || open;
}

// Of the loop's thread.
Preemptor& Worker::preemptor() {
    if (!preemptor_) {
        preemptor_ = std::make_unique<Preemptor>();
        std::string why;
        if (!preemptor_->open(why)) std::fprintf(stderr, "teal worker: no kernel can be preempted here: %s\n", why.c_str());
        watch_asks();
        preemptor_->wanted_context = this;
        preemptor_->wanted = [](void* worker) { return static_cast<Worker*>(worker)->wanted_now(); };
    }
    return *preemptor_;
}

// A slice is over. Called by signal, on the stack of what runs, or at its yield points: reads only.
bool Worker::wanted_now() const noexcept { return running_ == nullptr || is_wanted(*running_); }

bool Worker::is_wanted(const Begun& begun) const noexcept {
    // A tick of ask_look_ns is no end of a slice; but what has come is to be told to the agent, which may ask then.
    if (seat_ != nullptr && slice_ns(begun.record) == 0) return is_over(begun) || pool_->work_ready(live_);
    return news_.load(std::memory_order_relaxed) || goes_on_by_itself() || pool_->work_ready(live_) || pool_->offered() > 0 || is_over(begun);
}

// Does nobody want it any more? Its client has ended it, or is leaving.
bool Worker::is_over(const Begun& begun) const noexcept {
    const SessionLine& line = pool_->memory().sessions[begun.session->map->index];
    return is_past(begun.line->word.load(std::memory_order_acquire), begun.generation) ||
           static_cast<SessionState>(line.state.load(std::memory_order_relaxed)) != SessionState::open;
}

// At a yield point.
bool Worker::yields_now(Begun& begun) {
    if (is_over(begun)) return true;
    if (preemptor_->request_pending()) {
        if (preemptor_->was_asked() || is_wanted(begun)) return true;
        preemptor_->arm(slice_ns(begun.record), false);
    }
    if (!goes_on_by_itself() && !pool_->work_ready(live_)) return false;
    // Somebody waits: is he more urgent?
    if (!pool_->try_enter()) return false;
    pool_->drain(live_);
    const bool leaves = pool_->would_wait(begun.record, resumable(), false);
    const bool more = pool_->queued() > 0;
    pool_->leave();
    if (more && !leaves) pool_->promote(index_);
    return leaves;
}

// Whom the preemptor believes.
void Worker::watch_asks() {
    if (!preemptor_ || watched_seat_ == seat_) return;
    if (watched_seat_ != nullptr) preemptor_->watch(watched_seat_->seat(), nullptr);
    if (seat_ != nullptr) preemptor_->watch(seat_->seat(), &seat_->map().worker_desk(index_).preempt);
    watched_seat_ = seat_;
}

void Worker::run_leaving(std::unique_ptr<Begun> begun) {
    Run& run = begun->run;
    Binding& binding = *begun->slot->binding;
    begun->slot->begun = true;
    run.answer_context = begun.get();
    run.answer = [](Run& r) { return static_cast<Begun*>(r.answer_context)->answer(); };
    if (binding.preemption == Preemption::anywhere) {
        try {
            begun->fiber = fibers_.take();
        } catch (const std::exception&) {  // no memory for a stack: on this one, to the end
            run_through(*begun);
            settle(*begun);
            count_overrun(*begun);
            return;
        }
        run.gate = preemptor_.get();
        begun->fiber->prepare([](void* context) {
            auto& one = *static_cast<Begun*>(context);
            one.ok = one.slot->binding->run(one.run);
        }, begun.get());
    } else {
        run.leave_context = begun.get();
        run.leave = [](Run& r) {
            auto& one = *static_cast<Begun*>(r.leave_context);
            return one.worker->yields_now(one);
        };
    }
    run_pieces(std::move(begun));
}

// Until it ends, or others go first.
void Worker::run_pieces(std::unique_ptr<Begun> begun) {
    while (!run_piece(*begun))
        if (must_go(*begun)) {
            suspend(std::move(begun));
            return;
        }
    if (begun->fiber) fibers_.give(std::move(begun->fiber));
    settle(*begun);
    tell_asks();
}

// Of its agent, for what did not run any more.
void Worker::tell_asks() noexcept {
    const std::uint64_t now = preemptor_->in_vain();
    if (now != told_in_vain_ && seat_ != nullptr) seat_->count_in_vain(now - told_in_vain_);
    told_in_vain_ = now;
}

// True: it has come to its end.
bool Worker::run_piece(Begun& begun) {
    Run& run = begun.run;
    const std::uint64_t now = ticks();
    if (begun.left_at == 0) {
        run.started = now;
    } else {  // its time on the core, as all figures have it, ends as late as it really does and begins as if it had never left
        __atomic_store_n(&run.away, run.away + (now - begun.left_at), __ATOMIC_RELAXED);
        run.started += now - begun.left_at;
    }
    line_.run_started.store(now, std::memory_order_relaxed);
    piece_began_ = now;
    running_ = &begun;
    if (!begun.fiber) preemptor_->disarm();  // what looks for itself is not disturbed
    preemptor_->name(Preemptor::name_of(begun.record, run.record_generation));
    preemptor_->arm(begun.fiber != nullptr ? timer_ns(begun.record) : slice_ns(begun.record), begun.fiber != nullptr);
    if (seat_ != nullptr) seat_->prefetch_ahead(index_);
    bool done = false;
    if (begun.fiber) {
        done = preemptor_->go(*begun.fiber);
    } else {
        run.left = false;
        begun.ok = begun.slot->binding->run(run);
        done = !run.left;
    }
    begun.left_at = ticks();
    running_ = nullptr;
    return done;
}

// It has left: is there a reason to let others go first? Else it goes on.
bool Worker::must_go(const Begun& begun) {
    if (preemptor_->was_asked() || news_.load(std::memory_order_relaxed)) return true;
    if (is_over(begun)) return true;
    if (!pool_->try_enter()) return true;  // the loop has more patience
    pool_->drain(live_);
    // Without a slice it is the agent's to say who goes first: it has been told now, and asks.
    const bool until_asked = seat_ != nullptr && slice_ns(begun.record) == 0;
    const bool wait = pool_->would_wait(begun.record, resumable(), !until_asked);
    const bool more = pool_->queued() > 0;
    pool_->leave();
    if (more && !wait) pool_->promote(index_);
    return wait;
}

void Worker::suspend(std::unique_ptr<Begun> begun) {
    line_.run_started.store(0, std::memory_order_relaxed);
    serving_ = nobody;
    wait_began_ = 0;
    const std::uint32_t index = begun->record;
    const Left how = begun->fiber ? Left::preempted : Left::yielded;
    VersionLine& version = pool_->memory().versions[begun->version_line];
    (how == Left::preempted ? version.preemptions : version.yields).fetch_add(1, std::memory_order_relaxed);
    const auto ran_ns = static_cast<std::uint64_t>(ticks_to_ns(begun->left_at - begun->run.started));
    if (Trace* trace = pool_->trace(); trace != nullptr) [[unlikely]] {
        const auto end = how == Left::yielded ? TraceEnd::yielded : TraceEnd::preempted;
        trace->add(TraceKind::run, begun->left_at, piece_began_, index_, index, static_cast<std::uint32_t>(end), begun->version_line);
    }
    piece_began_ = 0;
    const bool asked = preemptor_->was_asked();
    suspended_.push_back(std::move(begun));
    suspended_records_.push_back(index);
    while (!pool_->enter(patience_ns)) {}  // the host ends whoever has it that long
    const MessageType why = how == Left::preempted ? MessageType::request_preempt : MessageType::request_yield;
    if (pool_->suspend(index, index_, ran_ns, why) && on_left) on_left(index, how, ran_ns);
    if (asked && seat_ != nullptr) seat_->count_asked();
    pool_->leave();
    tell_asks();
    line_.record.store(nobody, std::memory_order_relaxed);
}

// pick() has made it running again.
void Worker::go_on(std::uint32_t index) {
    const auto found = std::find(suspended_records_.begin(), suspended_records_.end(), index);
    if (found == suspended_records_.end()) {  // somebody scribbled over the pool
        abandon(index);
        return;
    }
    std::unique_ptr<Begun> begun = take_suspended(static_cast<std::size_t>(found - suspended_records_.begin()));
    line_.record.store(index, std::memory_order_relaxed);
    serving_ = pool_->memory().records[index].session;
    run_pieces(std::move(begun));
}

std::unique_ptr<Worker::Begun> Worker::take_suspended(std::size_t at) {
    std::unique_ptr<Begun> begun = std::move(suspended_[at]);
    suspended_.erase(suspended_.begin() + static_cast<std::ptrdiff_t>(at));
    suspended_records_.erase(suspended_records_.begin() + static_cast<std::ptrdiff_t>(at));
    return begun;
}

// Lets go of those that have ended while they were away.
void Worker::shed() {
    for (std::size_t i = suspended_.size(); i-- > 0;) {
        const Begun& begun = *suspended_[i];
        const bool ended = state_of_record(pool_->memory().records[begun.record]) != State::queued;
        if (ended || is_over(begun)) drop(take_suspended(i), Reason::client_gone);
    }
}

// Its run never goes on. Reason: what its client hears, if it has not heard yet.
void Worker::drop(std::unique_ptr<Begun> begun, Reason reason) {
    line_.record.store(begun->record, std::memory_order_relaxed);
    serving_ = begun->session->map->index;
    begun->slot->binding->drop();
    if (begun->fiber) fibers_.give(std::move(begun->fiber));
    pool_->memory().versions[begun->version_line].dropped.fetch_add(1, std::memory_order_relaxed);
    Slot& slot = begun->session->slots[begun->slot_index];
    slot.begun = false;
    Ending ending;
    ending.state = State::cancelled;
    ending.reason = reason;
    begun->run.answered = false;
    begun->run.message.clear();
    finish(begun->record, begun->session, begun->run, ending, false);
    if (slot.chain.spilled()) slot = Slot{};
}

void Worker::when_unused(std::function<bool(const Begun&)> of, std::function<void(Worker&)> news) {
    if (std::none_of(suspended_.begin(), suspended_.end(), [&](const auto& begun) { return of(*begun); })) news(*this);
    else postponed_.push_back({std::move(of), std::move(news)});
}

void Worker::retry_postponed() {
    std::vector<Postponed> postponed;
    postponed.swap(postponed_);
    for (Postponed& one : postponed) when_unused(std::move(one.of), std::move(one.news));
}

}  // namespace teal
