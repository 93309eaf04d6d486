// The pool of a simulation: what its requests and workers really do. All of it is the truth that the agent's side is checked against.
#include <algorithm>

#include "sim/simulation.hpp"

namespace teal {

RequestFacts Simulation::facts(std::uint32_t record) const {
    const SimRequest& request = requests_[record];
    const SimType& type = type_of(request);
    RequestFacts facts;
    facts.index = record;
    facts.generation = request.generation;
    facts.model = static_cast<std::uint16_t>(request.type);
    facts.session = request.session;
    facts.priority = request.priority;
    facts.expected_ns = static_cast<std::uint32_t>(std::min<std::uint64_t>(type.mean_ns, UINT32_MAX));
    facts.ran_us = static_cast<std::uint32_t>(std::min<std::uint64_t>(request.ran / 1000, UINT32_MAX));
    facts.arrived = request.arrived;
    facts.deadline_ns = request.deadline;
    facts.worker = request.worker;
    facts.flags = static_cast<std::uint16_t>((type.preemptible && !type.yields ? message_preemptible : 0) | (type.yields ? message_yields : 0));
    return facts;
}

void Simulation::set_idle(std::uint32_t worker, bool idle) {
    SimWorker& w = workers_[worker];
    if ((w.idle != 0) == idle) return;
    SimSeat& seat = seats_[seat_of_worker(worker)];
    if (idle) {
        ++seat.idle;
        idle_.push_back(worker);
        w.idle = static_cast<std::uint32_t>(idle_.size());
        w.idle_since = now_;
        return;
    }
    --seat.idle;
    const std::uint32_t last = idle_.back();
    idle_[w.idle - 1] = last;
    workers_[last].idle = w.idle;
    idle_.pop_back();
    w.idle = 0;
}

// It waits: for its agent's decision, or in the default order.
void Simulation::queue(std::uint32_t record) {
    requests_[record].state = SimRequest::State::queued;
    ++queued_;
    ++seats_[seat_of(requests_[record])].queued;
}

// Before anything else of it changes: its seat's books go by what it is.
void Simulation::unqueue(std::uint32_t record) {
    --queued_;
    --seats_[seat_of(requests_[record])].queued;
}

void Simulation::arrive() {
    const SimArrival arrival = *next_;
    ++result_.arrived;
    ++of_type(arrival.type).arrived;
    next_ = arrivals_.next();
    if (next_) at(now_ + (next_->at_ns - arrival.at_ns), What::arrive);
    else coming_ = false;
    if (free_.empty()) {
        ++result_.turned_away;
        ++of_type(arrival.type).turned_away;
        return;
    }
    const std::uint32_t record = free_.back();
    free_.pop_back();
    SimRequest& request = requests_[record];
    const std::uint32_t generation = request.generation;
    request = {};
    request.generation = generation + 1;
    request.type = arrival.type;
    const SimType& type = type_of(request);
    request.session = static_cast<std::uint16_t>(type.sessions > 1 ? detail_.below(type.sessions) : arrival.type);
    request.priority = type.priority;
    request.id = ids_++;
    request.arrived = request.queued_at = now_;
    request.deadline = type.deadline_ns == 0 ? 0 : now_ + type.deadline_ns;
    request.service = request.left = arrival.service_ns;
    request.out = static_cast<std::uint32_t>(out_.size());
    out_.push_back(record);
    deal(record);
    queue(record);
    if (spec_.faults.cancels > 0 && fate_.chance(spec_.faults.cancels))
        at(now_ + static_cast<std::uint64_t>(fate_.exponential(static_cast<double>(2 * type.mean_ns))), What::cancel, record, request.generation);
    if (active(request.seat)) {
        if (spec_.bug != SimBug::unheard || fate_.chance(0.95)) host(request.seat).ready(facts(record));
        tell(request.seat);
    } else {
        wake_somebody();
    }
}

// In the default order: somebody who idles looks.
void Simulation::wake_somebody() {
    for (std::size_t i = idle_.size(); i-- > 0;) {
        if (workers_[idle_[i]].looks) continue;
        workers_[idle_[i]].looks = true;
        at(now_ + spec_.worker_ns, What::look, idle_[i]);
        return;
    }
}

void Simulation::look(std::uint32_t worker) {
    SimWorker& w = workers_[worker];
    w.looks = false;
    if (!w.there || w.running != no_object) return;
    if (active(seat_of_worker(worker)) ? look_at_desk(worker) : look_at_queue(worker)) return;
    set_idle(worker, true);
}

// What the agent has staged, as a worker of a pool takes it. True: it runs something.
bool Simulation::look_at_desk(std::uint32_t worker) {
    const std::uint32_t seat = seat_of_worker(worker);
    Claim claims[max_group];
    for (unsigned turn = 0; turn < stage_depth && workers_[worker].running == no_object; ++turn) {
        const unsigned count = host(seat).claim(worker, claims);
        if (count == 0) break;
        for (unsigned i = 0; i < count; ++i) {
            Claim& claim = claims[i];
            if (claim.decided.object == no_object) {
                take_default(claim);
                continue;
            }
            if (spec_.bug != SimBug::none) [[unlikely]] break_claim(claim);
            if (!check_claim(claim)) return false;
            host(seat).commit(claim, Outcome::complete);
            begin(claim.worker, claim.decided.object, std::uint64_t{claim.decided.slice_us} * 1000);
        }
    }
    if (workers_[worker].running == no_object && seats() > 1 && look_at_queue(worker)) host(seat).taken(workers_[worker].running, worker);
    const bool runs = workers_[worker].running != no_object;
    if (!runs) {
        if (seats() > 1) {
            set_idle(worker, true);
            take_over(seat);
        }
        host(seat).found_nothing(worker, queued_ > 0);
        host(seat).set_asleep(worker, true);
    }
    tell(seat);
    return runs;
}

// Do the books say what the seat said?
bool Simulation::check_claim(const Claim& claim) {
    const std::uint32_t record = claim.decided.object;
    if (record >= requests_.size()) {
        complain("worker " + std::to_string(claim.worker) + ": a decision about record " + std::to_string(record) + ", which there is not, was let through");
        return false;
    }
    const SimRequest& request = requests_[record];
    const std::string which = "request " + std::to_string(record) + " of worker " + std::to_string(claim.worker);
    if (request.generation != claim.decided.generation) complain(which + ": a decision about one that has ended was let through");
    else if (request.state == SimRequest::State::running) complain(which + ": it runs already");
    else if (request.state != SimRequest::State::queued) complain(which + ": it has ended");
    else if (seat_of(request) != seat_of_worker(claim.worker)) complain(which + ": agent " + std::to_string(seat_of_worker(claim.worker)) + " decided, and it is agent " + std::to_string(seat_of(request)) + "'s");
    else if (request.worker != no_object && request.worker != claim.worker) complain(which + ": it can go on at worker " + std::to_string(request.worker) + " only");
    return !broken_;
}

// As a host would that does not check what it should.
void Simulation::break_claim(Claim& claim) {
    const auto fits = [&](const SimRequest& request) {
        if (spec_.bug == SimBug::twice) return request.state == SimRequest::State::running;
        return spec_.bug == SimBug::elsewhere && request.state == SimRequest::State::queued && request.worker != no_object && request.worker != claim.worker;
    };
    if (spec_.bug == SimBug::ended) --claim.decided.generation;
    for (const std::uint32_t record : out_) {
        if (!fits(requests_[record])) continue;
        claim.decided.object = record;
        claim.decided.generation = requests_[record].generation;
        return;
    }
}

// The policy leaves it to the pool.
void Simulation::take_default(const Claim& claim) {
    const std::uint32_t seat = seat_of_worker(claim.worker), record = oldest(claim.worker, true);
    host(seat).commit(claim, record != no_object ? Outcome::complete : Outcome::not_found);
    if (record == no_object) return;
    ++result_.local;
    host(seat).taken(record, claim.worker);
    begin(claim.worker, record, 0);
}

// Of what no agent decides about. `of_agent`: or the agent of the worker, which leaves it to the pool.
std::uint32_t Simulation::oldest(std::uint32_t worker, bool of_agent) const {
    std::uint32_t best = no_object;
    for (const std::uint32_t record : out_) {
        const SimRequest& request = requests_[record];
        if (request.state != SimRequest::State::queued || (request.worker != no_object && request.worker != worker)) continue;
        const std::uint32_t seat = seat_of(request);
        if (spec_.bug == SimBug::kept && !active(seat)) continue;
        if (active(seat) && !(of_agent && seat == seat_of_worker(worker))) continue;
        if (best == no_object || request.id < requests_[best].id) best = record;
    }
    return best;
}

// The default order: the oldest that it may run.
bool Simulation::look_at_queue(std::uint32_t worker) {
    const std::uint32_t best = oldest(worker, false);
    if (best == no_object) return false;
    ++result_.local;
    begin(worker, best, queued_ > 1 ? spec_.quantum_ns : 0);
    return true;
}

void Simulation::begin(std::uint32_t worker, std::uint32_t record, std::uint64_t slice_ns) {
    SimWorker& w = workers_[worker];
    SimRequest& request = requests_[record];
    set_idle(worker, false);
    unqueue(record);
    request.state = SimRequest::State::running;
    request.worker = worker;
    w.running = record;
    w.began = now_ + spec_.worker_ns;
    ++w.token;
    if (can_leave(request)) ++leavable_;
    std::uint64_t runs = request.left;
    if (slice_ns != 0 && can_leave(request)) {
        std::uint64_t until = slice_ns;
        if (type_of(request).yields) {  // at the next of its own points
            const std::uint64_t step = std::max<std::uint64_t>(type_of(request).mean_ns / 4, 1);
            until = (request.ran + slice_ns + step - 1) / step * step - request.ran;
        }
        runs = std::min(runs, until);
    }
    at(w.began + runs + (runs < request.left ? spec_.preempt_ns : 0), What::leave, worker, w.token);
}

// The agent asks for it.
void Simulation::ask(std::uint32_t worker, std::uint64_t token) {
    SimWorker& w = workers_[worker];
    if (w.token != token || w.running == no_object) return;
    const SimRequest& request = requests_[w.running];
    std::uint64_t when = std::max(now_, w.began) + spec_.preempt_ns;
    if (type_of(request).yields) {
        const std::uint64_t step = std::max<std::uint64_t>(type_of(request).mean_ns / 4, 1), ran = request.ran + (when - w.began);
        when += (ran + step - 1) / step * step - ran;
    }
    at(when, What::leave, worker, token);  // or its end comes first
}

// Its time is over, or it is done.
void Simulation::leave(std::uint32_t worker, std::uint64_t token) {
    SimWorker& w = workers_[worker];
    if (w.token != token || w.running == no_object) return;
    const std::uint32_t record = w.running;
    SimRequest& request = requests_[record];
    const std::uint64_t ran = std::min(now_ > w.began ? now_ - w.began : 0, request.left);
    request.ran += ran;
    request.left -= ran;
    of_type(request.type).busy_ns += ran;
    const std::uint32_t seat = seat_of_worker(worker);
    if (request.left == 0) {
        if (active(seat) && request.seat == seat) host(seat).ran(record, w.began, now_);
        end(record, true);
    } else {
        free_worker(worker);
        deal_back(record, worker);
        queue(record);
        request.queued_at = now_;
        const bool yielded = type_of(request).yields;
        ++(yielded ? result_.yielded : result_.preempted);
        if (spec_.bug == SimBug::lost && fate_.chance(0.1)) request.state = SimRequest::State::none;
        if (active(seat)) host(seat).left(facts(record), yielded ? MessageType::request_yield : MessageType::request_preempt, worker, ran);
    }
    if (active(seat)) tell(seat);
    look(worker);
}

// The worker has nothing to do from now on; what it ran is the caller's.
void Simulation::free_worker(std::uint32_t worker) {
    SimWorker& w = workers_[worker];
    if (w.running == no_object) return;
    if (can_leave(requests_[w.running])) --leavable_;
    result_.busy_ns += now_ > w.began ? now_ - w.began : 0;
    w.running = no_object;
    ++w.token;
}

void Simulation::end(std::uint32_t record, bool answered) {
    SimRequest& request = requests_[record];
    if (request.state == SimRequest::State::none) return complain("request " + std::to_string(record) + " ends twice");
    const std::uint32_t seat = seat_of(request);
    if (request.state == SimRequest::State::running) free_worker(request.worker);
    else unqueue(record);
    if (active(seat)) {
        host(seat).ended(record, answered, false);
        if (seats() > 1) tell(seat);
    }
    if (answered) {
        ++result_.done;
        SimTypeResult& type = of_type(request.type);
        ++type.done;
        type.latency_ns.push_back(now_ - request.arrived);
        if (request.deadline != 0 && now_ > request.deadline) ++type.missed;
    }
    request.state = SimRequest::State::none;
    out_[request.out] = out_.back();
    requests_[out_.back()].out = request.out;
    out_.pop_back();
    free_.push_back(record);
}

// Its worker died: from the beginning, anywhere.
void Simulation::rerun(std::uint32_t record) {
    SimRequest& request = requests_[record];
    if (request.state == SimRequest::State::running) free_worker(request.worker);
    else unqueue(record);
    request.worker = no_object;
    ++request.generation;
    deal(record);
    queue(record);
    request.left = request.service;
    request.ran = 0;
    request.queued_at = now_;
    ++result_.reruns;
    if (active(request.seat)) host(request.seat).ready(facts(record));
    else wake_somebody();
    if (seats() > 1 && active(request.seat)) tell(request.seat);
}

void Simulation::sweep() {
    at(now_ + spec_.sweep_ns, What::sweep);
    for (std::size_t i = out_.size(); i-- > 0;) {
        const SimRequest& request = requests_[out_[i]];
        if (request.state != SimRequest::State::queued || request.deadline == 0 || now_ <= request.deadline || request.ran != 0) continue;
        ++result_.expired;
        ++of_type(request.type).expired;
        end(out_[i], false);
    }
    if (seats() > 1) take_over_for_idle();
    for (std::uint32_t seat = 0; seat < seats() && !broken_; ++seat) sweep(seat);
}

void Simulation::sweep(std::uint32_t seat) {
    if (!active(seat)) return wake_somebody();
    host(seat).tick();
    tell(seat);
    if (seats() > 1) {
        check_words(seat);
        check_idle_beside(seat);
    }
    const std::uint64_t beat = host(seat).beat(), silent = now_ > beat ? now_ - beat : 0;
    if (silent > spec_.watchdog_ns) return fall_back(seat, "no heartbeat");
    check_waiting(seat);
}

// Has the policy forgotten one, or does a worker idle while one waits? Each is said once.
void Simulation::check_waiting(std::uint32_t seat) {
    if (seats_[seat].idle == 0 || seats_[seat].queued == 0) return;
    const SimAgent& agent = *seats_[seat].agent;
    const bool calm = now_ - calm_since_ > 3 * spec_.sweep_ns + spec_.watchdog_ns && agent.free_at <= now_ && seats_[seat].gone_since == 0;
    const bool conserves = agent.policy->work_conserving();
    bool said = false;
    std::uint64_t idle_since = never;
    for (const std::uint32_t worker : idle_)
        if (seat_of_worker(worker) == seat) idle_since = std::min(idle_since, workers_[worker].idle_since);
    for (const std::uint32_t record : out_) {
        SimRequest& request = requests_[record];
        if (request.state != SimRequest::State::queued || seat_of(request) != seat) continue;
        if (request.worker != no_object && workers_[request.worker].idle == 0) continue;
        const std::uint64_t since = std::max(request.queued_at, request.worker == no_object ? idle_since : workers_[request.worker].idle_since);
        const bool overdue = now_ - request.queued_at > spec_.max_wait_ns && now_ - since > spec_.max_wait_ns;
        if (calm && !request.breached && (overdue || (conserves && now_ - since > 2 * spec_.sweep_ns))) {
            request.breached = true;
            if (said) ++result_.breached;
            else breach("request " + std::to_string(record) + " waits since " + std::to_string(request.queued_at) + " ns, and a worker that may run it idles since " +
                   std::to_string(since) + " ns; the agent: " + agent.loop->dump());
            said = true;
        }
        if (overdue) return fall_back(seat, "a request waits");
    }
}

}  // namespace teal
