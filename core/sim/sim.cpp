#include "sim/sim.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "sim/simulation.hpp"

namespace teal {
namespace {

constexpr std::size_t most_violations = 8;
constexpr std::uint64_t patience_ns = 3'000'000'000;  // nothing comes and nothing runs for so long: what is out was lost
constexpr std::uint64_t longest_ns = 3'600'000'000'000;  // an hour, of what is a time in a spec
constexpr std::uint64_t progress_events = 1u << 15;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) { return (hash ^ word) * 0x100000001b3; }

void check(const SimSpec& spec) {
    if (spec.workers == 0 || spec.workers > most_seat_workers) throw Error(Code::invalid_argument, "workers: expected 1 to 65536");
    if (spec.agents == 0 || spec.agents > most_sim_agents || spec.agents > spec.workers) throw Error(Code::invalid_argument, "agents: expected 1 to 4, and a worker for each");
    if (spec.records == 0 || spec.records > most_seat_records) throw Error(Code::invalid_argument, "records: expected 1 to 1048576");
    if (spec.sweep_ns == 0 || spec.poll_ns == 0) throw Error(Code::invalid_argument, "sweep and poll: expected times above 0");
    for (const std::uint64_t ns : {spec.link_ns, spec.agent_step_ns, spec.agent_event_ns, spec.worker_ns, spec.preempt_ns, spec.poll_ns, spec.sweep_ns, spec.watchdog_ns,
                                   spec.max_wait_ns, spec.restart_ns, spec.quantum_ns})
        if (ns > longest_ns) throw Error(Code::invalid_argument, "times of a simulation: expected one hour at most");
    const SimFaults& f = spec.faults;
    for (const double rate : {f.agent_dies, f.agent_freezes, f.agent_slow, f.link_slow, f.upgrades, f.worker_dies, f.overflows, f.garbles, f.restates, f.priorities})
        if (!(rate >= 0.0 && rate <= 1e5)) throw Error(Code::invalid_argument, "faults: expected 0 to 100000 a second");
    for (const double share : {f.cancels, f.lost_wakeups})
        if (!(share >= 0.0 && share <= 1.0)) throw Error(Code::invalid_argument, "cancels and lost wakeups: expected a share of 0 to 1");
}

}  // namespace

SimFaults SimFaults::all() {
    SimFaults faults;
    faults.agent_dies = faults.agent_freezes = faults.upgrades = 10;
    faults.agent_slow = faults.link_slow = faults.worker_dies = 30;
    faults.overflows = faults.garbles = faults.restates = faults.priorities = 60;
    faults.cancels = 0.05;
    faults.lost_wakeups = 0.01;
    return faults;
}

std::uint64_t SimTypeResult::percentile(double p) const {
    if (latency_ns.empty()) return 0;
    const auto rank = static_cast<std::size_t>(p / 100.0 * static_cast<double>(latency_ns.size()));
    return latency_ns[std::min(rank, latency_ns.size() - 1)];
}

SimResult simulate(const SimSpec& spec, const MakePolicy& make, const SimProgress& progress) {
    check(spec);
    return Simulation(spec, make).run(progress);
}

Simulation::Simulation(const SimSpec& spec, const MakePolicy& make)
    : spec_(spec), make_(make), arrivals_(spec.load, spec.workers, spec.seed), fate_(spec.seed ^ 0x6661746531), detail_(spec.seed ^ 0x64657461696c),
      requests_(spec.records), workers_(spec.workers), seats_(spec.agents) {
    for (std::uint32_t i = spec.records; i-- > 0;) free_.push_back(i);
    for (std::uint32_t i = 0; i < spec.workers; ++i) set_idle(i, true);
    for (const SimType& type : spec.load.types) result_.types.emplace_back().name = type.name;
}

void Simulation::at(std::uint64_t when, What what, std::uint32_t a, std::uint64_t b) {
    events_.push_back({std::max(when, now_), order_++, what, a, b});
    std::push_heap(events_.begin(), events_.end());
}

void Simulation::complain(const std::string& text) {
    if (result_.violations.size() < most_violations) result_.violations.push_back("at " + std::to_string(now_) + " ns: " + text);
    broken_ = true;
}

void Simulation::breach(const std::string& text) {
    ++result_.breached;
    if (result_.breaches.size() < most_violations) result_.breaches.push_back("at " + std::to_string(now_) + " ns: " + text);
}

SimResult Simulation::run(const SimProgress& progress) {
    for (std::uint32_t seat = 0; seat < seats(); ++seat) attach(seat);
    at(now_ + spec_.sweep_ns, What::sweep);
    next_ = arrivals_.next();
    const std::uint64_t start = now_;
    if (next_) at(start + next_->at_ns, What::arrive);
    else coming_ = false;
    next_fault();
    while (!over() && !broken_) {
        std::pop_heap(events_.begin(), events_.end());
        const Event event = events_.back();
        events_.pop_back();
        now_ = event.at;
        ++result_.events;
        result_.fingerprint = mixed(mixed(result_.fingerprint, now_), static_cast<std::uint64_t>(event.what) << 32 | event.a);
        if (progress && result_.events % progress_events == 0) progress(result_.arrived);
        if (coming_ || out_.size() > queued_) moved_at_ = now_;
        if (now_ - moved_at_ > patience_ns) complain(std::to_string(out_.size()) + " requests never end");
        else happen(event);
    }
    result_.virtual_ns = now_ - start;
    finish();
    return std::move(result_);
}

void Simulation::happen(const Event& event) {
    switch (event.what) {
        case What::arrive: arrive(); break;
        case What::look: look(event.a); break;
        case What::leave: leave(event.a, event.b); break;
        case What::ask: ask(event.a, event.b); break;
        case What::agent: agent_looks(event.a, event.b); break;
        case What::zombie: zombies_[event.a]->loop->step(now_); break;
        case What::sweep: sweep(); break;
        case What::fault: fault(); break;
        case What::cancel: cancel(event.a, static_cast<std::uint32_t>(event.b)); break;
        case What::back: worker_back(event.a); break;
        case What::attach:
            if (!active(event.a)) {
                ++result_.restarts;
                attach(event.a);
            }
            break;
    }
}

void Simulation::finish() {
    for (std::uint32_t seat = 0; seat < seats(); ++seat) {
        if (!active(seat)) continue;
        SimAgent& agent = *seats_[seat].agent;
        if (!broken_) {  // it hears of the last ends
            host(seat).flush(true);
            agent.frozen_until = 0;
            for (int i = 0; i < 4; ++i) agent.loop->step(now_ += 1000);
            check_words(seat);
            if (agent.loop->known() != 0 && agent.policy->errors() == 0) complain("all has ended, and an agent knows of " + std::to_string(agent.loop->known()) + " requests");
        }
        retire(std::move(seats_[seat].agent));
    }
    for (SimTypeResult& type : result_.types) std::sort(type.latency_ns.begin(), type.latency_ns.end());
    if (broken_) return;
    if (result_.arrived != result_.done + result_.cancelled + result_.expired + result_.turned_away)
        complain(std::to_string(result_.arrived) + " requests came, and " + std::to_string(result_.done + result_.cancelled + result_.expired + result_.turned_away) + " ended");
}

}  // namespace teal
