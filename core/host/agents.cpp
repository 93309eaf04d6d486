// Sweeper: agents' seats, and the watch over who sits there.
//
// Theory of operation: each agent that attaches gets regions of its own (an incarnation). It decides from activate_seat() on, until another one
// is put in its place, or it is put off: because the host says so, because its heart stands still, or because a request has waited too
// long. What it is judged by is seen from here: that its beat changes, not what it says. Time that the sweeper's own thread did not get to look
// counts for 10 ms at most, so a machine that stood still takes nobody's seat away.
//
// The heart counts while requests are offered: an agent that has nothing to do sleeps, and so does the sweeper (40 ms at a time). So how long it has
// stood still is bounded by the age of the oldest request that waits for it. One that was put off for its heart is watched further: when it
// beats again the host is told, and may have it back.
#include "host/sweeper.hpp"

#include <algorithm>
#include <cerrno>
#include <string>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

#include "base/error.hpp"
#include "cpu/clock.hpp"

namespace teal {
namespace {

constexpr std::uint64_t longest_look_ns = 10'000'000;
constexpr std::uint64_t late_ns = 4'000'000;  // that an idle look may come late and count in full: less than a heart may stand still, with it
constexpr unsigned wait_look = 8;   // every so many looks the waiting requests are gone through

std::uint64_t now_ns() noexcept { return static_cast<std::uint64_t>(monotonic_ns()); }

void check_seat(std::uint32_t seat) {
    if (seat >= max_seats) throw Error(Code::invalid_argument, "seat " + std::to_string(seat) + ": a pool has seats 0 to " + std::to_string(max_seats - 1));
}

}  // namespace

Sweeper::Attached* Sweeper::attached(std::uint32_t seat, std::uint32_t incarnation) noexcept {
    for (Attached& one : attached_)
        if (one.seat->seat() == seat && one.seat->incarnation() == incarnation) return &one;
    return nullptr;
}

Sweeper::Seated Sweeper::attach_seat(std::uint32_t seat, std::uint32_t ring_capacity, std::shared_ptr<Link> link, std::uint32_t link_kind) {
    check_seat(seat);
    const std::lock_guard lock(mutex_);
    SeatSpec spec;
    spec.seat = seat;
    spec.incarnation = ++incarnations_;
    spec.workers = max_workers;
    spec.records = record_count;
    spec.ring_capacity = ring_capacity;
    spec.link = link_kind;
    std::shared_ptr<HostSeat> made = HostSeat::create(spec);
    made->set_link(std::move(link));
    const int agent_fd = made->agent_view_fd();
    enter();
    pool_->add_seat(made);
    pool_->leave();
    Attached one;
    one.seat = made;
    attached_.push_back(std::move(one));
    return {spec.incarnation, made->view_fd(), made->desk_fd(), agent_fd};
}

void Sweeper::activate_seat(std::uint32_t seat, std::uint32_t incarnation) {
    const std::lock_guard lock(mutex_);
    Attached* one = attached(seat, incarnation);
    if (one == nullptr) throw Error(Code::not_found, "seat " + std::to_string(seat) + " has no incarnation " + std::to_string(incarnation) + "; attach an agent first");
    for (Attached& other : attached_)
        if (other.seat->seat() == seat) other.active_since = 0;
    enter();
    pool_->drain(live_);
    pool_->seat_agent(seat, incarnation);
    pool_->leave();
    one->active_since = now_ns();
    one->beat = one->seat->beat();
    one->still_ns = 0;
    if (std::exchange(one->frozen, false)) frozen_.fetch_sub(1, std::memory_order_relaxed);
    wake_workers();
}

bool Sweeper::deactivate_seat(std::uint32_t seat, const std::string& reason) {
    check_seat(seat);
    const std::lock_guard lock(mutex_);
    if (pool_->memory().seats[seat].incarnation == 0) return false;
    put_off(seat, reason);
    return true;
}

void Sweeper::put_off(std::uint32_t seat, std::string reason, SeatEventKind kind) {
    enter();
    const std::uint32_t incarnation = pool_->memory().seats[seat].incarnation;
    pool_->unseat_agent(seat, Outcome::no_agent);
    pool_->leave();
    if (Attached* one = attached(seat, incarnation)) {
        one->active_since = 0;
        if (kind == SeatEventKind::frozen && !std::exchange(one->frozen, true)) frozen_.fetch_add(1, std::memory_order_relaxed);
    }
    note_event({seat, incarnation, std::move(reason), now_ns(), kind});
    wake_workers();
    rouse();
}

void Sweeper::note_event(SeatEvent event) {
    seat_events_.push_back(std::move(event));
    const std::uint64_t one = 1;
    if (events_fd_ >= 0) static_cast<void>(::write(events_fd_, &one, sizeof one));  // full: it is readable already
}

int Sweeper::seat_events_fd() {
    const std::lock_guard lock(mutex_);
    if (events_fd_ < 0) events_fd_ = ::eventfd(seat_events_.empty() ? 0 : 1, EFD_CLOEXEC | EFD_NONBLOCK);
    if (events_fd_ < 0) throw Error(Code::internal_error, system_message("eventfd", errno));
    return events_fd_;
}

void Sweeper::call_agent(std::uint32_t seat, std::uint32_t incarnation) {
    const std::lock_guard lock(mutex_);
    if (const Attached* one = attached(seat, incarnation)) one->seat->call();
}

void Sweeper::detach_seat(std::uint32_t seat, std::uint32_t incarnation) {
    const std::lock_guard lock(mutex_);
    if (attached(seat, incarnation) == nullptr) return;
    if (pool_->memory().seats[seat].incarnation == incarnation) put_off(seat, "detached");
    enter();
    pool_->drop_seat(seat, incarnation);
    pool_->leave();
    if (attached(seat, incarnation)->frozen) frozen_.fetch_sub(1, std::memory_order_relaxed);
    std::erase_if(attached_, [&](const Attached& one) { return one.seat->seat() == seat && one.seat->incarnation() == incarnation; });
}

std::uint32_t Sweeper::active_seat(std::uint32_t seat) {
    check_seat(seat);
    const std::lock_guard lock(mutex_);
    return pool_->memory().seats[seat].incarnation;
}

void Sweeper::set_seat_limits(std::uint32_t seat, std::uint64_t beat_ns, std::uint64_t wait_ns, std::uint64_t overtaken_ns) {
    check_seat(seat);
    const std::lock_guard lock(mutex_);
    limits_[seat] = {beat_ns, wait_ns, overtaken_ns};
}

void Sweeper::set_local_fast_path(std::uint32_t seat, bool on) {
    check_seat(seat);
    const std::lock_guard lock(mutex_);
    enter();
    pool_->set_local_fast_path(seat, on);
    pool_->leave();
}

void Sweeper::set_trace(std::shared_ptr<Trace> trace) {
    const std::lock_guard lock(mutex_);
    enter();
    pool_->set_trace(std::move(trace));
    pool_->leave();
}

void Sweeper::seat_model(std::uint32_t model, std::uint32_t seat) {
    check_seat(seat);
    if (model >= max_models) throw Error(Code::invalid_argument, "model index " + std::to_string(model) + " out of range");
    const std::lock_guard lock(mutex_);
    enter();
    pool_->move_model(model, seat);
    pool_->leave();
    wake_workers();
}

void Sweeper::seat_worker(std::uint32_t worker, std::uint32_t seat) {
    check_seat(seat);
    if (worker >= max_workers) throw Error(Code::invalid_argument, "worker index " + std::to_string(worker) + " out of range");
    const std::lock_guard lock(mutex_);
    enter();
    pool_->move_worker(worker, seat);
    pool_->leave();
    wake_workers();
}

void Sweeper::deal_seats(std::uint32_t seats) {
    if (seats >= 1U << max_seats) throw Error(Code::invalid_argument, "seats " + std::to_string(seats) + ": a pool has " + std::to_string(max_seats));
    const std::lock_guard lock(mutex_);
    enter();
    pool_->deal_among(seats);
    pool_->leave();
    wake_workers();
}

void Sweeper::wake_agent(std::uint32_t seat, bool settings) {
    check_seat(seat);
    const std::lock_guard lock(mutex_);
    enter();
    if (HostSeat* active = pool_->seat_at(seat)) {
        active->wakeup(settings);
        active->flush(true);
    }
    pool_->leave();
}

std::shared_ptr<HostSeat> Sweeper::seat(std::uint32_t seat, std::uint32_t incarnation) {
    const std::lock_guard lock(mutex_);
    const Attached* one = attached(seat, incarnation);
    if (one == nullptr) throw Error(Code::not_found, "seat " + std::to_string(seat) + " has no incarnation " + std::to_string(incarnation));
    return one->seat;
}

Sweeper::SeatFigures Sweeper::seat_figures(std::uint32_t number, std::uint32_t incarnation) {
    const std::lock_guard lock(mutex_);
    const std::shared_ptr<HostSeat> held = seat(number, incarnation);
    const Attached& one = *attached(number, incarnation);
    const ViewHeader& view = held->map().view_header();
    SeatFigures figures{};
    figures.incarnation = incarnation;
    figures.pid = held->agent_pid();
    figures.state = held->agent_state();
    figures.active = held->is_active();
    figures.asleep = held->agent_asleep();
    const std::uint64_t now = now_ns();
    figures.beat_age_ns = one.active_since != 0 ? one.still_ns : 0;
    figures.since_ns = one.active_since != 0 ? now - one.active_since : 0;
    figures.ring_waiting = view.head.load(std::memory_order_relaxed) - held->map().desk_header().tail.load(std::memory_order_relaxed);
    figures.settings = view.settings.load(std::memory_order_relaxed);
    figures.settings_seen = held->settings_seen();
    if (!figures.active) return figures;
    enter();
    const std::uint64_t oldest = pool_->oldest_offered(number);
    figures.offered = pool_->offered_at(number);
    pool_->leave();
    const std::uint64_t at = ticks();
    figures.oldest_wait_ns = oldest != 0 && at > oldest ? static_cast<std::uint64_t>(ticks_to_ns(at - oldest)) : 0;
    return figures;
}

std::vector<Sweeper::SeatEvent> Sweeper::take_seat_events() {
    const std::lock_guard lock(mutex_);
    return std::exchange(seat_events_, {});
}

void Sweeper::wake_workers() noexcept {
    const std::uint32_t end = std::min(pool_->memory().header.worker_end.load(std::memory_order_relaxed), max_workers);
    for (std::uint32_t i = 0; i < end; ++i) pool_->wake_worker(i);
}

void Sweeper::watch_seats(std::uint64_t now) noexcept {
    const std::uint64_t passed = seats_watched_ == 0 ? 0 : std::min(now - seats_watched_, std::max(longest_look_ns, look_ns_ + late_ns));
    seats_watched_ = now;
    ++seat_looks_;
    watch_frozen(now);
    for (std::uint32_t i = 0; i < max_seats; ++i) {
        Attached* one = attached(i, pool_->memory().seats[i].incarnation);
        if (one == nullptr) continue;
        const std::uint64_t beat = one->seat->beat();
        // A beat says when it was, which may be a whole idle look ago: it stands still since then. One that lies is believed between two looks only.
        const std::uint64_t still = beat == one->beat ? one->still_ns + passed : std::min(passed, now > beat ? now - beat : 0);
        one->still_ns = beat != one->beat && still < longest_look_ns ? still : unanswered_ns(i, still);
        one->beat = beat;
        std::string reason;
        auto kind = SeatEventKind::put_off;
        const bool left = one->seat->agent_state() == AgentState::leaving;
        if (left) reason = "left";
        else if (one->still_ns >= limits_[i].beat_ns) reason = "no heartbeat for " + std::to_string(one->still_ns / 1'000'000) + " ms";
        else if ((limits_[i].wait_ns | limits_[i].overtaken_ns) != 0 && seat_looks_ % wait_look == 0) reason = judge_waits(i);
        if (reason.empty()) continue;
        if (!left && one->still_ns >= limits_[i].beat_ns / 2) kind = SeatEventKind::frozen;  // a wait that is its heart's: it may come back too
        if (!left && one->still_ns >= longest_look_ns && one->still_ns < limits_[i].beat_ns)
            reason += "; no heartbeat for " + std::to_string(one->still_ns / 1'000'000) + " ms";
        try {
            put_off(i, reason, kind);
        } catch (const Error&) {
            // The role is held by somebody who is stuck: watch_role() sees to that, and the next look to this.
        }
    }
}

// For how long a heart that has stood still for `at_most` should have beaten: no longer than a request waits for it.
std::uint64_t Sweeper::unanswered_ns(std::uint32_t seat, std::uint64_t at_most) noexcept {
    if (__atomic_load_n(&pool_->memory().header.offered_size, __ATOMIC_RELAXED) == 0) return 0;
    if (!pool_->try_enter()) return at_most;
    const std::uint64_t oldest = pool_->oldest_offered(seat);
    pool_->leave();
    const std::uint64_t at = ticks();
    return oldest == 0 || at <= oldest ? 0 : std::min(at_most, static_cast<std::uint64_t>(ticks_to_ns(at - oldest)));
}

// Those that lost their seat as their heart stood still: does it beat again?
void Sweeper::watch_frozen(std::uint64_t now) {
    if (frozen_.load(std::memory_order_relaxed) == 0) return;
    for (Attached& one : attached_) {
        if (!one.frozen) continue;
        const std::uint64_t beat = one.seat->beat();
        if (beat == one.beat || one.seat->agent_state() == AgentState::leaving) continue;
        one.beat = beat;
        one.frozen = false;
        frozen_.fetch_sub(1, std::memory_order_relaxed);
        note_event({one.seat->seat(), one.seat->incarnation(), "its heart beats again", now, SeatEventKind::beats});
    }
}

// Has a request waited longer for its agent than it may? Empty: no, or somebody dispatches right now.
std::string Sweeper::judge_waits(std::uint32_t seat) {
    if (!pool_->try_enter()) return {};
    // Where all workers have their hands full nobody is to blame for a wait, unless it is with what came long after it.
    const SeatLimits& limits = limits_[seat];
    const auto waited = limits.wait_ns != 0 ? static_cast<std::uint64_t>(ticks_to_ns(pool_->longest_neglected(seat))) : 0;
    const auto overtaken = limits.overtaken_ns != 0 ? static_cast<std::uint64_t>(ticks_to_ns(pool_->furthest_overtaken(seat))) : 0;
    pool_->leave();
    if (waited > limits.wait_ns) return "a request has waited for " + std::to_string(waited / 1'000'000) + " ms beside a worker with nothing to do";
    if (overtaken > limits.overtaken_ns) return "a request waits while one runs that came " + std::to_string(overtaken / 1'000'000) + " ms after it";
    return {};
}

bool Sweeper::change_priority(std::uint32_t session, std::uint32_t slot, std::uint32_t generation, std::int32_t priority) {
    const std::lock_guard lock(mutex_);
    enter();
    pool_->drain(live_);
    bool found = false;
    for (std::uint32_t i = 0; i < record_count && !found; ++i) {
        const Record& record = pool_->memory().records[i];
        const auto state = static_cast<State>(record.state.load(std::memory_order_acquire) & 0xff);
        if (state != State::queued || record.session != session || record.entry.slot != slot) continue;
        if (((record.entry.generation ^ generation) & generation_mask) != 0) continue;
        pool_->change_priority(i, priority);
        found = true;
    }
    pool_->leave();
    rouse();
    return found;
}

}  // namespace teal
