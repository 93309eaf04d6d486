#include "agents/inline.hpp"

#include "cpu/clock.hpp"

namespace teal {

InlinePolicy::InlinePolicy(std::shared_ptr<Policy> policy, std::uint32_t records, std::uint32_t worker)
    : policy_(std::move(policy)), requests_(records), start_ticks_(ticks()), start_ns_(static_cast<std::uint64_t>(monotonic_ns())) {
    worker_.index = worker;
}

std::uint64_t InlinePolicy::now() const noexcept { return start_ns_ + static_cast<std::uint64_t>(ticks_to_ns(ticks() - start_ticks_)); }

// What arrived before this policy did counts as just arrived.
std::uint64_t InlinePolicy::ns_of(std::uint64_t at) const noexcept {
    const std::uint64_t since = at - start_ticks_;
    return start_ns_ + (static_cast<std::int64_t>(since) < 0 ? 0 : static_cast<std::uint64_t>(ticks_to_ns(since)));
}

void InlinePolicy::learn(PolicyRequest& request, const RequestFacts& facts) const noexcept {
    request.index = facts.index;
    request.generation = facts.generation;
    request.model = facts.model;
    request.session = facts.session;
    request.priority = facts.priority;
    request.arrived_ns = ns_of(facts.arrived);
    request.deadline_ns = facts.deadline_ns;
    request.expected_ns = facts.expected_ns;
    request.worker = facts.worker;
    request.preemptible = (facts.flags & message_preemptible) != 0;
    request.yields = (facts.flags & message_yields) != 0;
}

void InlinePolicy::ready(const RequestFacts& facts) {
    if (facts.index >= requests_.size()) return;
    PolicyRequest& request = requests_[facts.index];
    if (request.index != no_object && request.generation != facts.generation) ended(facts.index, false);
    const bool known = request.index != no_object;
    if (known && request.runnable && !request.staged) return;  // said twice
    learn(request, facts);
    request.runnable = true;
    request.staged = false;
    if (known) policy_->on_runnable(request, now());
    else policy_->on_new(request, now());
}

void InlinePolicy::left(const RequestFacts& facts, MessageType why) {
    if (facts.index >= requests_.size()) return;
    PolicyRequest& request = requests_[facts.index];
    if (request.index == no_object || request.generation != facts.generation) return ready(facts);
    learn(request, facts);
    request.ran_ns = std::uint64_t{facts.ran_us} * 1000;
    request.runnable = true;
    request.staged = false;
    worker_.running = nullptr;
    if (why == MessageType::request_yield) policy_->on_yield(request, now());
    else policy_->on_preempt(request, now());
}

void InlinePolicy::blocked(std::uint32_t record) {
    if (record >= requests_.size() || requests_[record].index == no_object) return;
    PolicyRequest& request = requests_[record];
    request.runnable = request.staged = false;
    policy_->on_blocked(request, now());
}

void InlinePolicy::ran(std::uint32_t record, std::uint64_t started, std::uint64_t ended) noexcept {
    if (record < requests_.size() && ended > started) requests_[record].ran_ns = static_cast<std::uint64_t>(ticks_to_ns(ended - started));
}

void InlinePolicy::ended(std::uint32_t record, bool answered) {
    if (record >= requests_.size() || requests_[record].index == no_object) return;
    PolicyRequest& request = requests_[record];
    request.runnable = request.staged = false;
    if (worker_.running == &request) worker_.running = nullptr;
    if (answered) policy_->on_done(request, now());
    else policy_->on_departed(request, now());
    request = PolicyRequest{};
}

void InlinePolicy::refused(std::uint32_t record) {
    worker_.running = nullptr;
    worker_.idle = true;
    // Whoever ended or blocked it has said so by now, unless that was another process.
    if (record < requests_.size() && requests_[record].index != no_object && requests_[record].runnable) ended(record, false);
}

InlinePolicy::Picked InlinePolicy::pick() {
    const std::uint64_t at = now();
    if (const std::uint64_t timer = policy_->timer_ns(at); timer != 0 && at >= timer) policy_->on_timer(at);
    worker_.running = nullptr;
    worker_.idle = true;
    worker_.since_ns = at;
    if (!policy_->has_work()) return {};
    const Decision decision = policy_->pick(worker_, at);
    PolicyRequest* request = decision.request;
    if (request == nullptr || request->index >= requests_.size() || request != &requests_[request->index]) return {};
    request->staged = true;
    worker_.running = request;
    worker_.slice_ns = decision.slice_ns;
    worker_.idle = false;
    return {request->index, request->generation, decision.slice_ns};
}

}  // namespace teal
