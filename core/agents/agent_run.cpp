// AgentLoop on the real clock: how it waits, what it is told by other threads, and what people see of it (agents/agent.hpp).
#include <algorithm>

#include "agents/agent.hpp"
#include "agents/policies/settings.hpp"
#include "base/error.hpp"
#include "cpu/clock.hpp"

namespace teal {
namespace {

constexpr std::uint64_t longest_coalescing_ns = 1'000'000;  // far below what a heart may stand still

}  // namespace

void AgentLoop::post(std::function<void(AgentLoop&)> news) {
    {
        const std::lock_guard lock(inbox_mutex_);
        inbox_.push_back(std::move(news));
    }
    news_.store(true, std::memory_order_seq_cst);
    seat_->wake();
}

void AgentLoop::stop() noexcept {
    stop_.store(true, std::memory_order_seq_cst);
    seat_->wake();
}

void AgentLoop::apply_inbox() {
    if (!news_.exchange(false, std::memory_order_acquire)) return;
    std::vector<std::function<void(AgentLoop&)>> inbox;
    {
        const std::lock_guard lock(inbox_mutex_);
        inbox.swap(inbox_);
    }
    for (auto& news : inbox) news(*this);
    dirty_ = true;
}

void AgentLoop::show() noexcept {
    DeskHeader& desk = seat_->figures();
    desk.events.store(figures_.events, std::memory_order_relaxed);
    desk.decisions.store(figures_.decisions, std::memory_order_relaxed);
    desk.steps.store(figures_.steps, std::memory_order_relaxed);
    desk.runnable.store(waiting_, std::memory_order_relaxed);
    desk.busy_ns.store(figures_.busy_ns, std::memory_order_relaxed);
    desk.errors.store(figures_.errors, std::memory_order_relaxed);
    desk.rescans.store(figures_.rescans, std::memory_order_relaxed);
    desk.sleeps.store(figures_.sleeps, std::memory_order_relaxed);
    desk.spins.store(figures_.spins, std::memory_order_relaxed);
    desk.groups.store(figures_.groups, std::memory_order_relaxed);
    desk.preempts.store(figures_.preempts, std::memory_order_relaxed);
    const AgentSeat::Rings& rings = seat_->rings();
    desk.rings.store(rings.rung, std::memory_order_relaxed);
    desk.rings_spared.store(rings.spared, std::memory_order_relaxed);
    desk.batches.store(rings.batches, std::memory_order_relaxed);
    desk.batched.store(rings.batched, std::memory_order_relaxed);
}

void AgentLoop::run() {
    while (!stop_.load(std::memory_order_relaxed)) run(UINT64_MAX);
    leave();
}

std::uint64_t AgentLoop::patience_ns() const noexcept {
    switch (spec_.polling) {
        case AgentPolling::spin: return UINT64_MAX;
        case AgentPolling::sleep: return 0;
        case AgentPolling::fixed: return spec_.fixed_ns;
        default: return spec_.idle_ns == UINT64_MAX ? UINT64_MAX : spin_.budget_ns();
    }
}

void AgentLoop::woke(std::uint64_t now, bool slept) {
    if (quiet_since_ == 0) return;
    spin_.learn(now - quiet_since_);
    if (!slept) ++figures_.spins;
    quiet_since_ = 0;
}

void AgentLoop::run(std::uint64_t until_ns) {
    auto now = static_cast<std::uint64_t>(monotonic_ns());
    bool slept = false;
    while (!stop_.load(std::memory_order_relaxed)) {
        if (news_.load(std::memory_order_relaxed)) apply_inbox();
        const unsigned done = step(now);
        const auto after = static_cast<std::uint64_t>(monotonic_ns());
        if (done > 0) figures_.busy_ns += after - now;
        if (done > 0) woke(now, slept);
        else if (!preemptible_.empty()) quiet_since_ = 0;
        else if (quiet_since_ == 0) quiet_since_ = now;
        slept = false;
        if ((++looked_ & 63) == 0) show();
        now = after;
        if (now >= until_ns || seat_->called()) break;
        if (quiet_since_ == 0 || seat_->has_to_ring() || now - quiet_since_ < patience_ns()) {
            if (done == 0) cpu_relax();
            continue;
        }
        show();
        const std::uint64_t nap = nap_until(now);
        seat_->sleep(nap, [this] { return stop_.load(std::memory_order_seq_cst) || news_.load(std::memory_order_seq_cst); });
        slept = true;
        if (!seat_->has_message() && !news_.load(std::memory_order_relaxed)) break;
        now = static_cast<std::uint64_t>(monotonic_ns());
    }
    show();
}

void AgentLoop::leave() {
    show();
    withdraw_all();
    seat_->set_state(AgentState::leaving);
}

void AgentLoop::set_idle(std::uint64_t ns) noexcept {
    if (ns == spec_.idle_ns) return;
    spec_.idle_ns = ns;
    spin_.set_ceiling(std::min(ns, std::uint64_t{1'000'000'000}));
}

bool AgentLoop::set(std::string_view name, std::string_view value) {
    if (name == "poll") {
        if (value == "adaptive") spec_.polling = AgentPolling::adaptive;
        else if (value == "spin") spec_.polling = AgentPolling::spin;
        else if (value == "sleep") spec_.polling = AgentPolling::sleep;
        else {
            spec_.fixed_ns = parse_time(name, value, 0);
            spec_.polling = AgentPolling::fixed;
        }
        return true;
    }
    if (name != "coalesce") return false;
    const std::uint64_t ns = value == "off" || value == "step" ? 0 : parse_time(name, value, 0);
    if (ns > longest_coalescing_ns)
        throw Error(Code::invalid_argument, "coalesce=" + std::string(value) + ": expected off, step, or a time up to 1ms that a ring may wait for others");
    spec_.ring_each = value == "off";
    spec_.coalesce_ns = ns;
    return true;
}

PolicySettings AgentLoop::settings() const {
    constexpr const char* names[] = {"adaptive", "spin", "sleep"};
    const bool fixed = spec_.polling == AgentPolling::fixed;
    return {{"poll", fixed ? show_time(spec_.fixed_ns) : names[static_cast<std::size_t>(spec_.polling)]},
            {"coalesce", spec_.ring_each ? "off" : spec_.coalesce_ns == 0 ? "step" : show_time(spec_.coalesce_ns)}};
}

// While requests are known its heart has to beat; else nobody looks at it. When a worker has passed by what was taken back, and found nothing
// else, nobody says that there is room again.
std::uint64_t AgentLoop::nap_until(std::uint64_t now) {
    ++figures_.sleeps;
    const std::uint64_t timer = policy_->timer_ns(now);
    seat_->want_timer(timer);
    constexpr std::uint64_t crowded_nap_ns = 200'000;
    const std::uint64_t nap = known_ > 0 ? spec_.nap_ns : spec_.long_nap_ns;
    const std::uint64_t until = now + (crowded_ ? std::min(nap, crowded_nap_ns) : nap);
    return timer != 0 ? std::min(until, timer) : until;
}

std::string AgentLoop::dump() const {
    std::string text = "policy " + std::string(policy_->name()) + ", seat " + std::to_string(seat_->seat()) + ", incarnation " +
                       std::to_string(seat_->incarnation()) + (online_ ? ", online\n" : ", not online\n");
    std::uint32_t requests = 0;
    for (const PolicyRequest& request : requests_) requests += request.index != no_object ? 1 : 0;
    text += "requests known " + std::to_string(requests) + ", waiting " + std::to_string(waiting_) + "; events " + std::to_string(figures_.events) +
            ", decisions " + std::to_string(figures_.decisions) + ", rescans " + std::to_string(figures_.rescans) + ", errors " +
            std::to_string(figures_.errors) + "\n";
    for (const Place& place : places_) {
        if (!place.view.online) continue;
        text += "worker " + std::to_string(place.view.index) + ": ";
        if (!place.busy) text += "idle";
        else text += place.view.running != nullptr ? "runs " + std::to_string(place.view.running->index) : "busy";
        text += ", staged " + std::to_string(place.view.staged) + "\n";
    }
    return text + policy_->dump();
}

}  // namespace teal
