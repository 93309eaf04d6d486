// AgentLoop: gangs, which several workers begin together or not at all (docs/protocol.md, "Batches and groups").
#include <algorithm>

#include "agents/agent.hpp"

namespace teal {

// True: there is one more group on its way.
bool AgentLoop::decide_group() {
    free_.clear();
    for (const std::uint32_t worker : idle_)
        if (seat_->settled(worker) == seat_->next(worker)) free_.push_back(&places_[worker].view);
    if (free_.size() < 2) return false;
    members_.assign(std::min<std::size_t>(free_.size(), max_group), GroupMember{});
    const unsigned count = policy_->pick_group(free_, members_, now_);
    if (count == 0) return false;
    if (count > members_.size() || !is_group({members_.data(), count})) {
        ++figures_.errors;
        return false;
    }
    stage_group({members_.data(), count});
    return true;
}

// Different requests, each for another one of the workers that were offered?
bool AgentLoop::is_group(std::span<const GroupMember> members) const noexcept {
    if (members.size() < 2) return false;
    for (std::size_t i = 0; i < members.size(); ++i) {
        const GroupMember& member = members[i];
        if (!may_run(member.decision.request, member.worker)) return false;
        const auto offered = [&](const PolicyWorker* worker) { return worker->index == member.worker; };
        if (std::none_of(free_.begin(), free_.end(), offered)) return false;
        for (std::size_t j = 0; j < i; ++j)
            if (members[j].worker == member.worker || members[j].decision.request == member.decision.request) return false;
    }
    return true;
}

// All are written before one is ready: whoever comes to the first finds the others.
void AgentLoop::stage_group(std::span<const GroupMember> members) {
    constexpr std::uint64_t patience_ns = 20'000'000;  // members wait for one another, and their workers with them
    if (++group_ == 0) ++group_;
    std::uint32_t serials[max_group];
    for (std::size_t i = 0; i < members.size(); ++i) {
        Decided d = decided(members[i].decision, members[i].decision.request->index);
        d.commit_flags |= commit_group;
        d.group = group_;
        d.members = static_cast<std::uint32_t>(members.size());
        if (d.expires_ns == 0) d.expires_ns = now_ + patience_ns;
        serials[i] = seat_->prepare(members[i].worker, d).serial;  // there is room: nothing is unsettled there
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
        const Decision& decision = members[i].decision;
        seat_->publish(members[i].worker, serials[i]);
        entrust(places_[members[i].worker], Out{serials[i], decision.request->index, decision.slice_ns, true, true, group_});
    }
    ++figures_.groups;
}

// One of its workers has gone: what of it is not carried out yet is taken back.
void AgentLoop::break_group(std::uint32_t group, const Place& but) {
    for (Place& place : places_) {
        if (&place == &but || !place.busy || !place.running.own || place.running.group != group) continue;
        const Out out = place.running;
        if (!seat_->withdraw(place.view.index, out.serial)) continue;
        finish_running(place);
        if (!out.live) continue;
        PolicyRequest& request = requests_[out.object];
        at_[out.object] = no_object;
        mark(request, request.runnable, false);
        policy_->on_latch_failure(request, Outcome::poisoned, now_);
    }
}

}  // namespace teal
