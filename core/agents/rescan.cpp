// AgentLoop: reading all status words, after messages were lost or when it is new.
//
// Theory of operation: first everything that is staged is withdrawn, so that nothing is decided on what is no longer known; then each word is
// read, and the policy is told the difference to what it was told before. A word is written before its message, so whatever still lies in
// the ring, or comes while this reads, is older than the word it changed (and passed by, by its tseq) or follows it.
#include "agents/agent.hpp"

namespace teal {

void AgentLoop::learn(PolicyRequest& request, const RequestWord& word) {
    request.generation = word.generation;
    request.tseq = word.tseq;
    request.model = word.model;
    request.session = word.session;
    request.priority = word.priority;
    request.expected_ns = word.expected_ns;
    request.ran_ns = std::uint64_t{word.ran_us} * 1000;
    request.arrived_ns = time_of(word.arrived);
    request.deadline_ns = word.deadline_ns;
    request.worker = (word.flags & request_on_worker) != 0 ? no_object : word.worker;
    request.preemptible = (word.flags & request_preemptible) != 0;
    request.yields = (word.flags & request_yields) != 0;
}

// Afterwards no worker is believed to run anything, and what was staged or ran is marked so still: rescan_request() finds out what became of it.
void AgentLoop::withdraw_all() {
    for (Place& place : places_) {
        if (!place.busy && place.view.staged == 0) continue;
        if (place.busy && place.running.own) seat_->withdraw(place.view.index, place.running.serial);
        for (unsigned i = 0; i < place.view.staged; ++i) seat_->withdraw(place.view.index, place.staged[i].serial);
        place.busy = false;
        place.asked = false;
        place.running = Out{};
        place.view.running = nullptr;
        place.view.staged = 0;
        update(place);
    }
    for (std::uint32_t& at : at_) at = no_object;
}

void AgentLoop::rescan() {
    ++figures_.rescans;
    withdraw_all();
    seat_->fetch_words();
    for (std::uint32_t i = 0; i < requests_.size(); ++i) {
        RequestWord word;
        if (seat_->request(i, word)) rescan_request(i, word);
        else seat_->read_again();  // a writer was in the way; what it says next may not be all that this one lacks
    }
    for (Place& place : places_) rescan_worker(place);
    dirty_ = true;
}

void AgentLoop::rescan_request(std::uint32_t index, const RequestWord& word) {
    PolicyRequest& request = requests_[index];
    const bool there = (word.flags & request_in_use) != 0 && word.seat == seat_->seat();
    if (request.index != no_object && (!there || request.generation != word.generation)) end(request, true);
    if (!there) return;
    const bool runs = (word.flags & request_on_worker) != 0;
    const bool runnable = (word.flags & request_is_runnable) != 0;
    const bool is_new = request.index == no_object;
    if (is_new && !runnable) return;  // told as new when it may run
    const bool queued = !is_new && request.runnable && !request.staged;
    request.index = index;
    known_ += is_new ? 1 : 0;
    learn(request, word);
    mark(request, runnable, runs);
    if (is_new) policy_->on_new(request, now_);
    else if (runnable && !runs && !queued) policy_->on_runnable(request, now_);
    else if (queued && (runs || !runnable)) policy_->on_blocked(request, now_);
}

void AgentLoop::rescan_worker(Place& place) {
    WorkerWord word;
    if (!seat_->worker(place.view.index, word)) return seat_->read_again();
    const bool was_online = place.view.online;
    place.view.online = (word.flags & worker_online) != 0 && (word.flags & worker_of_seat) != 0;
    if ((word.flags & worker_idle) == 0 && place.view.online) {
        const bool ours = known(word.running, word.generation) && requests_[word.running].staged;
        begin(place, ours ? Out{0, word.running, 0, true, false} : Out{});
        if (ours) at_[word.running] = place.view.index;
        place.view.since_ns = time_of(word.since);
    }
    update(place);
    if (place.view.idle) policy_->on_worker_available(place.view, now_);
    else if (was_online && !place.view.online) policy_->on_worker_gone(place.view, now_);
}

}  // namespace teal
