// What breaks in a simulation, and when: all of it from one stream of random numbers.
#include <algorithm>
#include <cstring>

#include "sim/simulation.hpp"

namespace teal {

namespace {
constexpr std::uint64_t second_ns = 1'000'000'000;
constexpr std::uint64_t slow_ns = 5'000'000, worker_away_ns = 2'000'000, longest_freeze_ns = 200'000'000;

double rate_of(const SimFaults& f) {
    return f.agent_dies + f.agent_freezes + f.agent_slow + f.link_slow + f.upgrades + f.worker_dies + f.overflows + f.garbles + f.restates + f.priorities;
}
}  // namespace

SimSpec any_run(std::uint64_t seed, std::uint32_t agents) {
    Random random(seed);
    SimSpec spec;
    spec.seed = seed;
    spec.workers = 1 + static_cast<std::uint32_t>(random.below(6));
    spec.agents = agents;
    spec.workers = std::max(spec.workers, agents);
    spec.records = 256;
    spec.ring = 1u << (3 + random.below(6));
    spec.load.load = 0.3 + random.unit() * 0.6;
    spec.load.requests = 100 + random.below(150);
    for (std::uint64_t i = 0, types = 1 + random.below(3); i < types; ++i) {
        SimType type;
        type.name = "type" + std::to_string(i);
        type.share = 0.1 + random.unit();
        type.spread = static_cast<Spread>(random.below(3));
        type.mean_ns = 5'000 + random.below(500'000);
        type.sessions = 1 + static_cast<std::uint32_t>(random.below(4));
        type.priority = static_cast<std::int32_t>(random.below(3));
        type.deadline_ns = random.chance(0.3) ? 500'000 + random.below(20'000'000) : 0;
        type.preemptible = random.chance(0.7);
        type.yields = random.chance(0.3);
        spec.load.types.push_back(type);
    }
    if (random.chance(0.9)) spec.faults = SimFaults::all();
    if (agents > 1 && random.chance(0.5)) spec.quantum_ns = 20'000 + random.below(100'000);
    spec.poll_ns = 20'000;
    spec.max_wait_ns = 500'000'000;  // what is forgotten is to be seen as such, not saved by the default order
    return spec;
}

void Simulation::next_fault() {
    const double rate = rate_of(spec_.faults);
    if (rate > 0) at(now_ + static_cast<std::uint64_t>(fate_.exponential(static_cast<double>(second_ns) / rate)), What::fault);
}

void Simulation::fault() {
    if (!coming_) return;  // what is out comes to its end undisturbed
    next_fault();
    calm_since_ = now_;
    const SimFaults& f = spec_.faults;
    double choice = fate_.unit() * rate_of(f);
    const auto is = [&choice](double rate) { return (choice -= rate) < 0; };
    if (is(f.worker_dies)) return worker_dies();
    const std::uint32_t seat = seats() == 1 ? 0 : static_cast<std::uint32_t>(fate_.below(seats()));
    if (is(f.priorities)) {
        if (out_.empty() || (seats() == 1 && !active(0))) return;
        const std::uint32_t record = out_[fate_.below(out_.size())];
        if (!active(seat_of(requests_[record]))) return;
        requests_[record].priority = static_cast<std::int32_t>(fate_.below(8));
        ++result_.met.priorities;
        host(seat_of(requests_[record])).priority(record, requests_[record].priority);
        return tell(seat_of(requests_[record]));
    }
    if (!active(seat)) return;
    if (is(f.overflows)) {
        ++result_.met.overflows;
        host(seat).lose();
        return tell(seat);
    }
    if (is(f.garbles)) return garble(seat);
    if (is(f.restates)) {
        ++result_.met.restates;
        restate(seat, host(seat));
        return tell(seat);
    }
    break_agent(seat, choice);
}

void Simulation::break_agent(std::uint32_t seat, double choice) {
    const SimFaults& f = spec_.faults;
    SimAgent& agent = *seats_[seat].agent;
    const auto is = [&choice](double rate) { return (choice -= rate) < 0; };
    if (is(f.agent_slow)) {
        ++result_.met.agent_slow;
        agent.slow_until = now_ + slow_ns;
    } else if (is(f.link_slow)) {
        ++result_.met.link_slow;
        agent.link_slow_until = now_ + slow_ns;
    } else if (is(f.upgrades)) {
        if (agent.frozen_until != 0) return;
        ++result_.upgrades;
        ++result_.met.upgrades;
        attach(seat);
    } else if (agent.frozen_until < now_) {
        const bool dies = is(f.agent_dies);
        ++(dies ? result_.met.agent_dies : result_.met.agent_freezes);
        agent.frozen_until = dies ? never : now_ + fate_.below(longest_freeze_ns);
        seats_[seat].gone_since = now_;
    }
}

void Simulation::worker_dies() {
    const auto worker = static_cast<std::uint32_t>(fate_.below(workers_.size()));
    SimWorker& w = workers_[worker];
    if (!w.there) return;
    ++result_.met.worker_dies;
    for (std::size_t i = out_.size(); i-- > 0;)
        if (requests_[out_[i]].worker == worker) rerun(out_[i]);
    set_idle(worker, false);
    w.there = false;
    ++w.token;
    const std::uint32_t seat = seat_of_worker(worker);
    if (active(seat)) {
        host(seat).worker_gone(worker);
        tell(seat);
    }
    at(now_ + worker_away_ns, What::back, worker);
}

void Simulation::worker_back(std::uint32_t worker) {
    SimWorker& w = workers_[worker];
    w.there = true;
    set_idle(worker, true);
    const std::uint32_t seat = seat_of_worker(worker);
    if (!active(seat)) return wake_somebody();
    host(seat).worker_came(worker);
    host(seat).set_asleep(worker, true);
    tell(seat);
}

void Simulation::cancel(std::uint32_t record, std::uint32_t generation) {
    SimRequest& request = requests_[record];
    if (request.state == SimRequest::State::none || request.generation != generation) return;
    const std::uint32_t worker = request.state == SimRequest::State::running ? request.worker : no_object;
    ++result_.cancelled;
    ++of_type(request.type).cancelled;
    ++result_.met.cancels;
    const std::uint32_t seat = seat_of(request);
    end(record, false);
    if (active(seat)) tell(seat);
    if (worker != no_object) look(worker);
}

// Messages that the agent has not read yet: two change places, or one is there twice. The ring itself cannot do this; an agent is to
// stand it all the same. A message that is lost by it is told as lost.
void Simulation::garble(std::uint32_t seat) {
    const SeatMap& map = host(seat).map();
    const std::uint32_t head = map.view_header().head.load(std::memory_order_relaxed), tail = map.desk_header().tail.load(std::memory_order_relaxed);
    if (head - tail < 2) return;
    const std::uint32_t at = tail + static_cast<std::uint32_t>(fate_.below(head - tail - 1));
    Message first, second;
    std::memcpy(&first, map.ring_slot(at).payload, sizeof first);
    std::memcpy(&second, map.ring_slot(at + 1).payload, sizeof second);
    if (fate_.chance(0.5)) {
        std::memcpy(map.ring_slot(at + 1).payload, &first, sizeof first);
        host(seat).lose();
    } else {
        if (first.object == second.object || first.worker == second.worker) return;  // these have an order
        std::memcpy(map.ring_slot(at).payload, &second, sizeof second);
        std::memcpy(map.ring_slot(at + 1).payload, &first, sizeof first);
    }
    ++result_.met.garbles;
    tell(seat);
}

}  // namespace teal
