// The agent of a simulation: when it looks, when what it says arrives, how it comes and goes.
#include <algorithm>

#include "sim/simulation.hpp"

namespace teal {

namespace {
constexpr std::uint64_t nap_ns = 20'000'000;  // as AgentSpec's
}

std::uint64_t Simulation::link_delay(const SimAgent& agent) const { return spec_.link_ns * (now_ < agent.link_slow_until ? 100 : 1); }

// A new incarnation: its own regions, the words of all there is, a first look, and then it counts. An old one that works does so until then.
void Simulation::attach(std::uint32_t seat) {
    auto agent = std::make_unique<SimAgent>();
    SeatSpec spec;
    spec.seat = seat;
    spec.incarnation = ++incarnations_;
    spec.workers = spec_.workers;
    spec.records = spec_.records;
    spec.ring_capacity = spec_.ring;
    agent->host = HostSeat::create(spec);
    agent->host->set_clock(SeatClock(&now_));
    restate(seat, *agent->host);
    agent->host->flush(true);
    agent->seat = AgentSeat::beside(*agent->host);
    agent->seat->set_clock(SeatClock(&now_));
    agent->seat->collect_rings(&agent->rung);
    agent->policy = make_();
    for (std::size_t i = 0; i < spec_.load.types.size(); ++i) agent->policy->on_name(Named::model, static_cast<std::uint16_t>(i), spec_.load.types[i].name);
    agent->loop = std::make_unique<AgentLoop>(agent->seat, agent->policy);
    agent->loop->step(now_);
    if (policy_failed(*agent)) {  // it does not come, and one that works goes on
        if (!active(seat)) at(now_ + spec_.restart_ns, What::attach, seat);
        return;
    }
    if (active(seat)) {
        host(seat).deactivate(Outcome::aborted);
        retire(std::move(seats_[seat].agent));
        restate(seat, *agent->host);  // what was committed meanwhile
    }
    seats_[seat].agent = std::move(agent);
    host(seat).activate();
    seats_[seat].gone_since = 0;
    for (std::uint32_t worker = seat; worker < spec_.workers; worker += seats()) host(seat).set_asleep(worker, workers_[worker].idle != 0);
    tell(seat);
}

void Simulation::restate(std::uint32_t seat, HostSeat& host) {
    host.begin_restating();
    for (std::uint32_t i = 0; i < requests_.size(); ++i) {
        if (seat_of(requests_[i]) != seat || (spec_.bug == SimBug::kept && incarnations_ > seats())) {
            host.restate_free(i);
        } else if (requests_[i].state == SimRequest::State::queued) {
            const bool suspended = requests_[i].worker != no_object;
            host.restate(facts(i), request_is_runnable | (suspended ? request_suspended : 0U));
        } else if (requests_[i].state == SimRequest::State::running) {
            host.restate(facts(i), request_is_runnable | request_on_worker);
        } else {
            host.restate_free(i);
        }
    }
    for (std::uint32_t i = 0; i < workers_.size(); ++i) {
        const SimWorker& w = workers_[i];
        const std::uint32_t mine = seat_of_worker(i) == seat ? static_cast<std::uint32_t>(worker_of_seat) : 0U;
        const std::uint32_t flags = w.there ? worker_online | mine | (w.idle != 0 ? worker_idle : 0U) : 0U;
        host.restate_worker(i, flags, w.running, w.running == no_object ? 0 : requests_[w.running].generation);
    }
    host.end_restating();
}

void Simulation::fall_back(std::uint32_t seat, const char*) {
    ++result_.fallbacks;
    if (seats_[seat].gone_since != 0) {
        const std::uint64_t gap = now_ - seats_[seat].gone_since;
        result_.longest_gap_ns = std::max(result_.longest_gap_ns, gap);
        // Its last beat may be a nap old when it dies.
        if (gap > spec_.watchdog_ns + 2 * spec_.sweep_ns) complain("the default order came " + std::to_string(gap) + " ns after the agent's end");
    }
    host(seat).deactivate(Outcome::no_agent);
    host(seat).flush(true);
    retire(std::move(seats_[seat].agent));
    for (std::size_t i = idle_.size(); i-- > 0;) wake_somebody();
    at(now_ + spec_.restart_ns, What::attach, seat);
}

void Simulation::retire(std::unique_ptr<SimAgent> agent) {
    const AgentFigures& figures = agent->loop->figures();
    result_.messages += figures.events;
    result_.decisions += figures.decisions;
    result_.moved += figures.moved;
    result_.rescans += figures.rescans;
    for (std::size_t i = 1; i < outcome_count; ++i) {
        result_.refused += figures.refused[i];
        if (!is_expected(static_cast<Outcome>(i)) && figures.refused[i] != 0) complain("a decision was refused as outcome " + std::to_string(i) + ", which a correct agent never meets");
    }
    if (figures.errors != 0) complain(std::to_string(figures.errors) + " decisions of the policy, or messages, made no sense");
    policy_failed(*agent);
    agent->frozen_until = 0;
    zombies_.push_back(std::move(agent));
    at(now_ + fate_.below(10'000'000), What::zombie, static_cast<std::uint32_t>(zombies_.size() - 1));  // it does not know yet
}

// Its process would end, and the host put the default order in its place. Says it once.
bool Simulation::policy_failed(SimAgent& agent) {
    if (agent.policy->errors() == 0) return false;
    if (!agent.failed) {
        const std::string error = agent.policy->last_error();
        if (result_.policy_error.empty()) result_.policy_error = error;
        const std::size_t end = error.find_last_not_of('\n') + 1, line = end == 0 ? std::string::npos : error.rfind('\n', end - 1);
        breach("the policy failed: " + error.substr(line == std::string::npos ? 0 : line + 1, 400));
    }
    agent.failed = true;
    return true;
}

// Some rings are heard by nobody.
bool Simulation::is_heard() {
    if (spec_.faults.lost_wakeups == 0 || !coming_ || !fate_.chance(spec_.faults.lost_wakeups)) return true;
    ++result_.met.lost_wakeups;
    return false;
}

void Simulation::wake_agent(std::uint32_t seat, std::uint64_t when) {
    SimAgent& agent = *seats_[seat].agent;
    when = std::max(when, std::max(now_, agent.free_at));
    if (agent.look_at <= when) return;
    agent.look_at = when;
    at(when, What::agent, seat, ++agent.look);
}

// What the host has said is on its way.
void Simulation::tell(std::uint32_t seat) {
    host(seat).flush();
    const bool heard = is_heard();
    wake_agent(seat, heard ? now_ + link_delay(*seats_[seat].agent) : now_ + nap_ns);
    if (!heard) calm_since_ = now_;
}

void Simulation::agent_looks(std::uint32_t seat, std::uint64_t look) {
    if (!active(seat) || seats_[seat].agent->look != look || seats_[seat].agent->frozen_until == never) return;
    SimAgent& agent = *seats_[seat].agent;
    agent.look_at = never;
    if (now_ < agent.frozen_until) return wake_agent(seat, agent.frozen_until);
    seats_[seat].gone_since = 0;
    const unsigned count = agent.loop->step(now_);
    if (policy_failed(agent)) return fall_back(seat, "the policy failed");
    const std::uint64_t slow = now_ < agent.slow_until ? 100 : 1;
    agent.free_at = now_ + (spec_.agent_step_ns + count * spec_.agent_event_ns) * slow;
    const std::uint64_t arrives = agent.free_at + link_delay(agent);
    for (const std::uint32_t worker : agent.rung) {
        SimWorker& w = workers_[worker];
        if (w.idle == 0 || w.looks) continue;
        w.looks = true;
        const bool heard = is_heard();
        at(heard ? arrives : arrives + spec_.sweep_ns, What::look, worker);
    }
    agent.rung.clear();
    if (agent.loop->figures().preempts != agent.preempts) pass_on_asks(seat, arrives);
    const std::uint64_t timer = agent.loop->wanted_at(now_);
    std::uint64_t next = now_ + nap_ns;
    if (count >= least_events) next = agent.free_at;  // there may be more
    else if (queued_ > 0 && leavable_ > 0) next = now_ + spec_.poll_ns;
    if (timer != 0) next = std::min(next, std::max(timer, now_ + 1));
    wake_agent(seat, next);
}

void Simulation::pass_on_asks(std::uint32_t seat, std::uint64_t when) {
    seats_[seat].agent->preempts = seats_[seat].agent->loop->figures().preempts;
    for (std::uint32_t worker = seat; worker < workers_.size(); worker += seats()) {
        SimWorker& w = workers_[worker];
        if (w.running == no_object || w.asked == w.token || !can_leave(requests_[w.running])) continue;
        if (host(seat).preempt_asked(worker) != (w.running | std::uint64_t{requests_[w.running].generation} << 32)) continue;
        w.asked = w.token;
        at(when, What::ask, worker, w.token);
    }
}

}  // namespace teal
