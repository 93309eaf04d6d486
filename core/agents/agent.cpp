#include "agents/agent.hpp"

#include <algorithm>

#include "cpu/clock.hpp"

namespace teal {

AgentLoop::AgentLoop(std::shared_ptr<AgentSeat> seat, std::shared_ptr<Policy> policy, AgentSpec spec)
    : seat_(std::move(seat)), policy_(std::move(policy)), spec_(spec), spin_(std::min(spec.idle_ns, std::uint64_t{1'000'000'000})),
      requests_(seat_->records()), at_(seat_->records(), no_object), places_(seat_->workers()) {
    for (std::uint32_t i = 0; i < places_.size(); ++i) {
        places_[i].view.index = i;
        places_[i].view.online = false;
    }
    for (auto* list : {&idle_, &room_, &behind_, &preemptible_}) list->reserve(places_.size());
    seat_->set_state(AgentState::ready);
}

// ---- lists ---------------------------------------------------------------------------------------------------------------------

void AgentLoop::put(std::vector<std::uint32_t>& list, std::uint32_t Place::*at, Place& place, bool in) {
    if ((place.*at != 0) == in) return;
    if (in) {
        list.push_back(place.view.index);
        place.*at = static_cast<std::uint32_t>(list.size());
        return;
    }
    const std::uint32_t position = place.*at - 1;
    const std::uint32_t last = list.back();
    list[position] = last;
    places_[last].*at = position + 1;
    list.pop_back();
    place.*at = 0;
}

// After whatever changed about a worker: where it is listed follows.
void AgentLoop::update(Place& place) {
    PolicyWorker& view = place.view;
    view.idle = view.online && !place.busy;
    const bool room = view.online && place.busy && view.staged < depth_;
    put(idle_, &Place::at_idle, place, view.idle);
    put(room_, &Place::at_room, place, room);
    put(behind_, &Place::at_behind, place, view.staged > 0);
    put(preemptible_, &Place::at_preemptible, place, view.running != nullptr && view.running->preemptible && !place.asked && preempts_);
    dirty_ = true;
}

void AgentLoop::begin(Place& place, const Out& out) {
    place.busy = true;
    place.asked = false;
    place.running = out;
    place.view.running = out.live ? &requests_[out.object] : nullptr;
    place.view.since_ns = now_;
    place.view.slice_ns = out.slice_ns;
}

// What ran is gone from the worker: the next that is staged runs, as is believed.
void AgentLoop::finish_running(Place& place) {
    place.busy = false;
    place.view.running = nullptr;
    place.running = Out{};
    place.view.since_ns = now_;
    if (place.view.staged > 0) {
        const Out next = place.staged[0];
        drop_staged(place, 0);
        begin(place, next);
    }
    update(place);
}

// Has its worker begun it? Then it has ended what it ran before, which nobody tells of something that is not this seat's.
bool AgentLoop::is_carried_out(const Place& place, unsigned at) const noexcept {
    const std::uint64_t word = seat_->state(place.view.index, place.staged[at].serial);
    return word == transaction_word(place.staged[at].serial, TransactionState::committed, Outcome::complete);
}

// Is what is believed to run still to be taken up? Its worker sleeps, or has no core.
bool AgentLoop::has_not_begun(const Place& place) const noexcept {
    if (!place.running.own) return false;
    const std::uint64_t word = seat_->state(place.view.index, place.running.serial);
    return word == transaction_word(place.running.serial, TransactionState::ready, Outcome::complete) ||
           word == transaction_word(place.running.serial, TransactionState::claimed, Outcome::complete);
}

// The worker has come to what was staged at that position, and, if it is `over`, past it.
void AgentLoop::come_to(Place& place, unsigned at, bool over) {
    if (place.running.live) return;  // messages will say
    for (unsigned i = 0; i < at; ++i) drop_staged(place, 0);
    finish_running(place);
    if (over) finish_running(place);
}

void AgentLoop::drop_staged(Place& place, unsigned at) {
    for (unsigned i = at; i + 1 < place.view.staged; ++i) place.staged[i] = place.staged[i + 1];
    --place.view.staged;
}

// All that is counted about a request changes here. `staged`: it is on a desk, or on a worker.
void AgentLoop::mark(PolicyRequest& request, bool runnable, bool staged) {
    waiting_ -= request.runnable && !request.staged ? 1 : 0;
    waiting_ += runnable && !staged ? 1 : 0;
    request.runnable = runnable;
    request.staged = staged;
    dirty_ = true;
}

// A request that was staged or ran is not any more. Its slot, if it has one still, is taken back; if that comes too late it will be refused.
void AgentLoop::leave(PolicyRequest& request) {
    if (!request.staged) return;
    mark(request, request.runnable, false);
    if (at_[request.index] == no_object) return;
    Place& place = places_[at_[request.index]];
    at_[request.index] = no_object;
    if (place.busy && place.running.live && place.running.object == request.index) {
        finish_running(place);
        return;
    }
    for (unsigned i = 0; i < place.view.staged; ++i) {
        if (!place.staged[i].live || place.staged[i].object != request.index) continue;
        place.staged[i].live = false;
        if (seat_->withdraw(place.view.index, place.staged[i].serial)) drop_staged(place, i);
        else if (is_carried_out(place, i)) come_to(place, i, true);
        break;
    }
    update(place);
}

void AgentLoop::end(PolicyRequest& request, bool departed) {
    leave(request);
    mark(request, false, false);
    if (departed) policy_->on_departed(request, now_);
    else policy_->on_done(request, now_);
    request = PolicyRequest{};
    --known_;
}

// ---- messages ------------------------------------------------------------------------------------------------------------------

std::uint64_t AgentLoop::time_of(std::uint64_t at) const noexcept {
    if (at >= now_ticks_) return now_;
    const std::uint64_t before = seat_->clock().to_ns(now_ticks_ - at);
    return before < now_ ? now_ - before : 0;
}

void AgentLoop::learn(PolicyRequest& request, const Message& m) {
    request.index = m.object;
    request.generation = m.generation;
    request.tseq = m.tseq;
    request.model = m.request.model;
    request.session = m.request.session;
    request.priority = m.request.priority;
    request.expected_ns = m.request.expected_ns;
    request.arrived_ns = time_of(std::uint64_t{m.request.arrived_high} << 32 | m.request.arrived_low);
    request.deadline_ns = std::uint64_t{m.request.deadline_high} << 32 | m.request.deadline_low;
    request.worker = m.worker;
    request.preemptible = (m.flags & message_preemptible) != 0;
    request.yields = (m.flags & message_yields) != 0;
}

void AgentLoop::handle(const Message& m) {
    const auto type = static_cast<MessageType>(m.type);
    if (type == MessageType::latch_failure) {
        handle_latch(m);
        return;
    }
    if (m.type >= static_cast<std::uint16_t>(MessageType::worker_available) || m.type < static_cast<std::uint16_t>(MessageType::request_new)) {
        handle_worker(type, m);
        return;
    }
    if (m.object >= requests_.size()) {
        ++figures_.errors;
        return;
    }
    PolicyRequest& request = requests_[m.object];
    if (request.index != no_object && static_cast<std::int32_t>(m.tseq - request.tseq) <= 0) return;  // the words said so already
    handle_request(type, m, request);
}

void AgentLoop::handle_request(MessageType type, const Message& m, PolicyRequest& request) {
    const bool same = request.index != no_object && request.generation == m.generation;
    if (type == MessageType::request_new || type == MessageType::request_runnable) {
        retake(request, m);
        return;
    }
    if (!same) return;
    request.tseq = m.tseq;
    switch (type) {
        case MessageType::request_blocked:
            leave(request);
            mark(request, false, false);
            if ((m.flags & message_taken) != 0 && m.worker < places_.size()) request.worker = m.worker;
            policy_->on_blocked(request, now_);
            break;
        case MessageType::request_yield:
        case MessageType::request_preempt:
            request.ran_ns = std::uint64_t{m.run.ran_us} * 1000;
            leave(request);
            mark(request, true, false);
            request.worker = m.worker;
            if (type == MessageType::request_yield) policy_->on_yield(request, now_);
            else policy_->on_preempt(request, now_);
            break;
        case MessageType::request_done:
            request.ran_ns = std::uint64_t{m.run.run_ns_high} << 32 | m.run.run_ns_low;
            end(request, false);
            break;
        case MessageType::request_departed: end(request, true); break;
        case MessageType::request_priority: {
            const std::int32_t before = request.priority;
            request.priority = m.request.priority;
            policy_->on_priority(request, before, now_);
            break;
        }
        case MessageType::request_affinity:
            request.worker = m.worker;
            dirty_ = true;
            policy_->on_affinity(request, now_);
            break;
        default: ++figures_.errors;
    }
}

// It may run: new, or again. One that is known as another generation has come to its end unseen, or runs anew.
void AgentLoop::retake(PolicyRequest& request, const Message& m) {
    const bool anew = static_cast<MessageType>(m.type) == MessageType::request_new;
    if (request.index != no_object && request.generation != m.generation && anew) end(request, true);
    if (request.index == no_object) {
        ++known_;
        learn(request, m);
        mark(request, true, false);
        policy_->on_new(request, now_);
        return;
    }
    const bool queued = request.runnable && !request.staged;  // the policy has it already
    leave(request);
    learn(request, m);
    mark(request, true, false);
    if (!queued) policy_->on_runnable(request, now_);
}

void AgentLoop::handle_latch(const Message& m) {
    if (m.worker >= places_.size() || m.latch.why >= outcome_count) return;
    ++figures_.refused[m.latch.why];
    Place& place = places_[m.worker];
    Out out;
    if (place.busy && place.running.own && place.running.serial == m.latch.serial) {
        out = place.running;
        finish_running(place);
    } else {
        for (unsigned i = 0; i < place.view.staged; ++i) {
            if (place.staged[i].serial != m.latch.serial) continue;
            out = place.staged[i];
            drop_staged(place, i);
            break;
        }
        update(place);
    }
    if (!out.live) return;
    PolicyRequest& request = requests_[out.object];
    at_[out.object] = no_object;
    const auto why = static_cast<Outcome>(m.latch.why);
    if (!is_expected(why)) ++figures_.errors;
    // It runs, and its end will be told; to decide about it again would be refused again.
    if (why == Outcome::already_running) return;
    mark(request, request.runnable, false);
    policy_->on_latch_failure(request, why, now_);
}

void AgentLoop::handle_worker(MessageType type, const Message& m) {
    switch (type) {
        case MessageType::worker_tick:
            for (Place& each : places_)
                if (each.busy && !each.running.own && !each.running.live && each.view.staged > 0 && is_carried_out(each, 0)) come_to(each, 0, false);
            policy_->on_tick(now_);
            return;
        case MessageType::agent_timer: policy_->on_timer(now_); return;
        case MessageType::agent_wakeup:
            dirty_ = true;
            policy_->on_wakeup(now_);
            return;
        case MessageType::agent_rescan:
        case MessageType::nop: return;  // the overflow count says so too
        default: break;
    }
    if (m.object >= places_.size()) {
        ++figures_.errors;
        return;
    }
    Place& place = places_[m.object];
    switch (type) {
        case MessageType::worker_available:
            // It had not seen yet what is staged, or has begun it since.
            if (place.busy && (place.running.own || place.running.live)) return;
            if (place.busy) finish_running(place);
            else update(place);
            policy_->on_worker_available(place.view, now_);
            break;
        case MessageType::worker_busy:
            if (known(m.worker, m.generation)) {
                PolicyRequest& request = requests_[m.worker];
                request.tseq = m.tseq;
                leave(request);
                mark(request, false, !place.busy);
                if (!place.busy) at_[request.index] = m.object;
                policy_->on_blocked(request, now_);
                if (!place.busy) begin(place, Out{0, request.index, 0, true, false});
            } else if (!place.busy) {
                begin(place, Out{});
            }
            update(place);
            policy_->on_worker_busy(place.view, now_);
            break;
        case MessageType::worker_came:
            place.view.online = true;
            update(place);
            policy_->on_worker_available(place.view, now_);
            break;
        case MessageType::worker_gone: gone(place); break;
        default: ++figures_.errors;
    }
}

// What had been decided for it has not begun: what had was told as ended, or as runnable again, before.
void AgentLoop::gone(Place& place) {
    Out outs[stage_depth + 1];
    unsigned count = 0;
    if (place.busy) outs[count++] = place.running;
    for (unsigned i = 0; i < place.view.staged; ++i) outs[count++] = place.staged[i];
    place.busy = false;
    place.running = Out{};
    place.view.running = nullptr;
    place.view.staged = 0;
    place.view.online = false;
    update(place);
    for (unsigned i = 0; i < count; ++i) {
        if (outs[i].group != 0) break_group(outs[i].group, place);
        if (!outs[i].live) continue;
        PolicyRequest& request = requests_[outs[i].object];
        at_[request.index] = no_object;
        mark(request, request.runnable, false);
        policy_->on_latch_failure(request, Outcome::worker_offline, now_);
    }
    policy_->on_worker_gone(place.view, now_);
}

// ---- decisions -----------------------------------------------------------------------------------------------------------------

Decided AgentLoop::decided(const Decision& decision, std::uint32_t object) const noexcept {
    Decided d{};
    d.object = object;
    d.slice_us = static_cast<std::uint32_t>(std::min<std::uint64_t>((decision.slice_ns + 999) / 1000, UINT32_MAX));
    d.aseq = seat_->aseq();
    d.commit_flags = decision.commit_flags;
    d.run_flags = decision.run_flags;
    d.expires_ns = decision.expires_ns;
    if (object != no_object) {
        const PolicyRequest& request = requests_[object];
        d.generation = request.generation;
        d.tseq = request.tseq;
        d.priority = request.priority;
        // Nobody will ask it to leave: its worker need not look. What looks for itself hears of a cancel so, and costs nothing.
        if (!preempts_ && decision.slice_ns == 0 && !request.yields) d.run_flags |= run_may_not_preempt;
    }
    return d;
}

bool AgentLoop::stage(Place& place, const Decision& decision, std::uint32_t object) {
    const AgentSeat::Staged staged = seat_->stage(place.view.index, decided(decision, object));
    if (!staged.ok) return false;
    entrust(place, Out{staged.serial, object, decision.slice_ns, object != no_object, true, 0});
    if (spec_.ring_each) seat_->ring();
    return true;
}

// It lies on the worker's desk: what is believed follows.
void AgentLoop::entrust(Place& place, const Out& out) {
    ++figures_.decisions;
    if (out.live) {
        mark(requests_[out.object], true, true);
        at_[out.object] = place.view.index;
    }
    if (!place.busy) begin(place, out);
    else place.staged[place.view.staged++] = out;
    update(place);
}

// Is it one that this worker may be given?
bool AgentLoop::may_run(const PolicyRequest* request, std::uint32_t worker) const noexcept {
    if (request == nullptr || request->index >= requests_.size() || &requests_[request->index] != request) return false;
    return !request->staged && request->runnable && (request->worker == no_object || request->worker == worker);
}

// True: it got something.
bool AgentLoop::decide_for(Place& place) {
    if (seat_->room(place.view.index) == 0) {  // what was withdrawn lies there until its worker looks, and nobody says when it has
        crowded_ = true;
        return false;
    }
    const Decision decision = policy_->pick(place.view, now_);
    if (decision.request == nullptr) return (decision.run_flags & run_local_default) != 0 && stage(place, decision, no_object);
    if (!may_run(decision.request, place.view.index)) {
        ++figures_.errors;  // it is not handed out, and not queued anywhere: the policy's own bug
        return false;
    }
    return stage(place, decision, decision.request->index);
}

bool AgentLoop::decide() {
    bool any = false;
    crowded_ = false;
    if (waiting_ > 0 && policy_->has_work()) {
        if (idle_.size() > 1 && waiting_ > 1 && policy_->groups())
            while (waiting_ > 1 && decide_group()) any = true;
        for (std::size_t i = idle_.size(); i-- > 0 && waiting_ > 0;)
            if (i < idle_.size()) any = decide_for(places_[idle_[i]]) || any;
        for (std::size_t i = room_.size(); i-- > 0;) {
            if (i >= room_.size()) continue;
            Place& place = places_[room_[i]];
            while (place.at_room != 0 && waiting_ > 0 && decide_for(place)) any = true;
        }
    }
    if (!idle_.empty() && !behind_.empty() && policy_->moves()) move_waiting();
    dirty_ = crowded_;
    return any;
}

// For each worker that has nothing to do, one that waits behind another request.
void AgentLoop::move_waiting() {
    for (std::size_t i = behind_.size(); i-- > 0 && !idle_.empty();) {
        if (i >= behind_.size()) continue;
        Place& from = places_[behind_[i]];
        const Out out = from.staged[from.view.staged - 1];
        if (!out.live || requests_[out.object].worker != no_object || seat_->room(idle_.back()) == 0) continue;
        if (!seat_->withdraw(from.view.index, out.serial)) continue;
        PolicyRequest& request = requests_[out.object];
        --from.view.staged;
        update(from);
        at_[out.object] = no_object;
        mark(request, request.runnable, false);
        ++figures_.moved;
        Decision decision;
        decision.slice_ns = out.slice_ns;
        if (!stage(places_[idle_.back()], decision, out.object)) policy_->on_latch_failure(request, Outcome::aborted, now_);
    }
}

void AgentLoop::ask_preempts() {
    for (std::size_t i = preemptible_.size(); i-- > 0;) {
        Place& place = places_[preemptible_[i]];
        if (!policy_->preempt(place.view, now_)) continue;
        if (has_not_begun(place)) {  // it was staged, and its worker did not come to it yet
            place.view.since_ns = now_;
            continue;
        }
        place.asked = true;
        ++figures_.preempts;
        seat_->ask_preempt(place.view.index, place.view.running->index, place.view.running->generation);
        put(preemptible_, &Place::at_preemptible, place, false);
    }
}

unsigned AgentLoop::step(std::uint64_t now) {
    now_ = now;
    seat_->beat(now);  // before its work: what a beat says is when it was
    preempts_ = policy_->preempts();
    depth_ = std::clamp(policy_->depth(), 0U, stage_depth);
    if (!seat_->stages_ahead()) depth_ = 0;
    else depth_ = std::min(depth_ + seat_->more_ahead(), stage_depth);
    ++figures_.steps;
    unsigned count = take_batch();
    if (seat_->lost()) {
        // What is said of workers has no tseq: all of it that is older than the words is taken before they are read.
        count += take_messages(seat_->map().layout.ring_capacity);
        now_ticks_ = seat_->clock().ticks();
        rescan();
        ++count;
    }
    if (const bool online = seat_->is_active(); online != online_) {
        online_ = online;
        dirty_ = true;
        seat_->set_state(online ? AgentState::online : AgentState::ready);
    }
    if (const std::uint64_t settings = seat_->settings(); settings != settings_) {
        settings_ = settings;
        seat_->saw_settings(settings);
    }
    if (const std::uint64_t timer = policy_->timer_ns(now); timer != 0 && now >= timer) {
        dirty_ = true;
        policy_->on_timer(now);
    }
    const std::uint64_t before = figures_.decisions;
    if (online_ && dirty_) decide();
    if (online_ && !preemptible_.empty()) ask_preempts();
    ring_workers(count > 0);
    return count + static_cast<unsigned>(figures_.decisions - before);
}

// As many as have come, up to a bound that grows while more wait behind it: where little comes the first decision waits for few messages,
// where much comes all that is done once a step is done for many.
unsigned AgentLoop::take_batch() {
    const unsigned most = std::min(batch_, spec_.events);
    const unsigned count = take_messages(most);
    if (count == most) batch_ = std::min(2 * batch_, std::max(spec_.events, least_events));
    else if (count > 0 && count < batch_ / 4) batch_ = std::max(batch_ / 2, least_events);
    return count;
}

unsigned AgentLoop::take_messages(unsigned most) {
    unsigned count = 0;
    Message message;
    while (count < most && seat_->poll(message)) {
        if (count++ == 0) now_ticks_ = seat_->clock().ticks();
        handle(message);
    }
    figures_.events += count;
    return count;
}

// `more`: messages came in this step, so more may.
void AgentLoop::ring_workers(bool more) {
    if (!seat_->has_to_ring()) return;
    if (spec_.coalesce_ns != 0 && more) {
        if (ring_since_ == 0) ring_since_ = now_ | 1;
        if (now_ - ring_since_ < spec_.coalesce_ns || now_ < ring_since_) return;
    }
    ring_since_ = 0;
    seat_->ring();
}

}  // namespace teal
