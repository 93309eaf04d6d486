// The smallest policy that does: one queue, first come, first served. For tests of what is around it.
#pragma once

#include <algorithm>
#include <deque>

#include "agents/policy.hpp"

namespace teal::tests {

class Fifo : public Policy {
public:
    void on_new(PolicyRequest& request, std::uint64_t) override {
        ++news;
        if (request.runnable && !request.staged) queue.push_back(&request);
    }
    void on_runnable(PolicyRequest& request, std::uint64_t) override { queue.push_back(&request); }
    void on_blocked(PolicyRequest& request, std::uint64_t) override { std::erase(queue, &request); }
    void on_done(PolicyRequest& request, std::uint64_t) override {
        ++done;
        std::erase(queue, &request);
    }
    void on_departed(PolicyRequest& request, std::uint64_t) override {
        ++departed;
        std::erase(queue, &request);
    }
    void on_latch_failure(PolicyRequest& request, Outcome outcome, std::uint64_t now) override {
        last_refusal = outcome;
        Policy::on_latch_failure(request, outcome, now);
    }
    Decision pick(PolicyWorker& worker, std::uint64_t) override {
        for (auto at = queue.begin(); at != queue.end(); ++at) {
            if ((*at)->worker != no_object && (*at)->worker != worker.index) continue;
            Decision decision;
            decision.request = *at;
            queue.erase(at);
            return decision;
        }
        return {};
    }
    unsigned depth() const override { return ahead; }
    bool preempt(const PolicyWorker&, std::uint64_t) override {
        ++wondered;
        return false;
    }
    bool preempts() const override { return may_preempt; }
    bool set(std::string_view, std::string_view) override { return false; }
    PolicySettings settings() const override { return {}; }
    std::string_view name() const override { return "fifo"; }

    std::deque<PolicyRequest*> queue;
    unsigned ahead = 1;
    bool may_preempt = true;
    unsigned wondered = 0;  // times it was asked whether something is to leave
    std::uint64_t news = 0, done = 0, departed = 0;
    Outcome last_refusal = Outcome::complete;
};

// The more urgent one goes first, and nothing is decided before it has to be: what the default order would do, but for sessions' fair shares.
class ByPriority final : public Fifo {
public:
    ByPriority() { ahead = 0; }
    Decision pick(PolicyWorker& worker, std::uint64_t now) override {
        std::stable_sort(queue.begin(), queue.end(), [](const PolicyRequest* a, const PolicyRequest* b) { return a->priority > b->priority; });
        return Fifo::pick(worker, now);
    }
};

}  // namespace teal::tests
