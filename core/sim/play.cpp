#include "sim/play.hpp"

#include <deque>

namespace teal {
namespace {

class Player {
public:
    Player(Policy& policy, std::uint32_t workers) : policy_(policy), workers_(workers) {
        for (std::uint32_t i = 0; i < workers; ++i) {
            workers_[i].index = i;
            policy_.on_worker_available(workers_[i], now_);
        }
    }

    void step(std::uint32_t word) {
        now_ += (word >> 4 & 0xff) * 997;
        const std::uint32_t choice = word >> 12;
        switch (word & 15) {
            case 0: case 1: case 2: case 3: arrive(choice); break;
            case 4: case 5: case 6: pick(choice % count()); break;
            case 7: leave(choice, Leave::done); break;
            case 8: leave(choice, Leave::preempted); break;
            case 9: leave(choice, Leave::yielded); break;
            case 10: leave(choice, Leave::refused); break;
            case 11: block(choice); break;
            case 12: depart(choice); break;
            case 13: priority(choice); break;
            case 14: ask(choice % count()); break;
            default: worker_lost(choice % count());
        }
    }
    void finish() {
        for (std::uint32_t i = 0; i < count(); ++i)
            if (!workers_[i].online) worker_lost(i);
        for (std::uint32_t i = 0; i < count(); ++i)
            while (violation_.empty() && pick(i)) {}
        for (const PolicyRequest& each : requests_)
            if (waits(each)) complain("request " + std::to_string(each.index) + " waits for ever");
    }

    Played result() { return {std::move(decisions_), std::move(violation_)}; }
    bool broken() const { return !violation_.empty(); }

private:
    enum class Leave { done, preempted, yielded, refused };

    std::uint32_t count() const { return static_cast<std::uint32_t>(workers_.size()); }
    static bool over(const PolicyRequest& request) { return request.generation == 0; }
    static bool waits(const PolicyRequest& request) { return !over(request) && request.runnable && !request.staged; }
    void complain(std::string text) {
        if (violation_.empty()) violation_ = std::move(text);
    }
    PolicyRequest* any(std::uint32_t choice) {
        if (requests_.empty()) return nullptr;
        PolicyRequest& request = requests_[choice % requests_.size()];
        return over(request) ? nullptr : &request;
    }

    void arrive(std::uint32_t choice) {
        std::size_t at = 0;  // records are used again
        while (at < requests_.size() && !over(requests_[at])) ++at;
        if (at == requests_.size()) {
            requests_.emplace_back();
            at_.push_back(no_object);
        }
        PolicyRequest& request = requests_[at];
        request = {};
        request.index = static_cast<std::uint32_t>(at);
        request.generation = ++generation_;
        request.model = static_cast<std::uint16_t>(choice & 3);
        request.session = static_cast<std::uint16_t>(choice >> 2 & 3);
        request.priority = static_cast<std::int32_t>(choice >> 4 & 7);
        request.arrived_ns = now_;
        request.deadline_ns = (choice >> 7 & 1) != 0 ? now_ + (choice >> 8 & 0xff) * 1000 : 0;
        request.expected_ns = (choice >> 16 & 3) * 20'000;
        request.runnable = (choice >> 18 & 7) != 0;
        request.preemptible = (choice >> 19 & 1) != 0;
        request.yields = !request.preemptible;
        at_[at] = no_object;
        policy_.on_new(request, now_);
    }

    bool pick(std::uint32_t index) {
        PolicyWorker& worker = workers_[index];
        if (!worker.online) return false;
        const Decision decision = policy_.pick(worker, now_);
        PolicyRequest* const request = decision.request;
        decisions_.push_back(request == nullptr ? 0 : request->index + std::uint64_t{1});
        if (request == nullptr) {
            if (policy_.work_conserving())
                for (const PolicyRequest& each : requests_)
                    if (waits(each) && (each.worker == no_object || each.worker == index))
                        complain("worker " + std::to_string(index) + " was given nothing, and request " + std::to_string(each.index) + " waits");
            return false;
        }
        decisions_.push_back(decision.slice_ns);
        if (request->index >= requests_.size() || request != &requests_[request->index] || over(*request)) complain("a request was offered that is over");
        else if (!request->runnable || request->staged) complain("request " + std::to_string(request->index) + " was offered, and may not run");
        else if (request->worker != no_object && request->worker != index) complain("request " + std::to_string(request->index) + " was offered to a worker that it cannot run on");
        if (broken()) return false;
        request->staged = true;
        at_[request->index] = index;
        if (worker.running != nullptr) {
            ++worker.staged;
            return true;
        }
        worker.running = request;
        worker.since_ns = now_;
        worker.slice_ns = decision.slice_ns;
        return true;
    }

    // A request that was offered comes back, or ends.
    void leave(std::uint32_t choice, Leave how) {
        PolicyRequest* const request = any(choice);
        if (request == nullptr || !request->staged) return;
        PolicyWorker& worker = workers_[at_[request->index]];
        const bool ran = worker.running == request;
        if (!ran && how != Leave::refused && how != Leave::done) return;
        request->staged = false;
        at_[request->index] = no_object;
        if (ran) {
            if (how != Leave::refused) request->ran_ns += now_ - worker.since_ns;
            worker.running = nullptr;
        } else if (worker.staged > 0) {
            --worker.staged;
        }
        if (how == Leave::refused) {
            request->runnable = (choice >> 12 & 3) != 0;
            policy_.on_latch_failure(*request, request->runnable ? Outcome::aborted : Outcome::not_runnable, now_);
        } else if (how == Leave::done) {
            policy_.on_done(*request, now_);
            request->generation = 0;
        } else {
            request->worker = worker.index;
            how == Leave::preempted ? policy_.on_preempt(*request, now_) : policy_.on_yield(*request, now_);
        }
    }
    void block(std::uint32_t choice) {
        PolicyRequest* const request = any(choice);
        if (request == nullptr || request->staged) return;
        request->runnable = !request->runnable;
        request->runnable ? policy_.on_runnable(*request, now_) : policy_.on_blocked(*request, now_);
    }
    void depart(std::uint32_t choice) {
        PolicyRequest* const request = any(choice);
        if (request == nullptr || request->staged) return;
        policy_.on_departed(*request, now_);
        request->generation = 0;
    }
    void priority(std::uint32_t choice) {
        PolicyRequest* const request = any(choice);
        if (request == nullptr) return;
        const std::int32_t before = request->priority;
        request->priority = static_cast<std::int32_t>(choice >> 12 & 7);
        policy_.on_priority(*request, before, now_);
    }
    void ask(std::uint32_t index) {
        const PolicyWorker& worker = workers_[index];
        if (worker.running != nullptr && !over(*worker.running)) decisions_.push_back(policy_.preempt(worker, now_) ? 1 : 0);
    }
    // It dies, and what it had runs anew, elsewhere; or it comes.
    void worker_lost(std::uint32_t index) {
        PolicyWorker& worker = workers_[index];
        worker.online = !worker.online;
        if (worker.online) return policy_.on_worker_available(worker, now_);
        worker.running = nullptr;
        worker.staged = 0;
        for (PolicyRequest& request : requests_) {
            if (over(request)) continue;
            const bool had = request.staged && at_[request.index] == index;
            if (!had && request.worker != index) continue;
            request.worker = no_object;
            if (had) {
                request.staged = false;
                at_[request.index] = no_object;
                policy_.on_latch_failure(request, Outcome::worker_offline, now_);
            } else if (request.runnable) {
                policy_.on_runnable(request, now_);
            } else {
                policy_.on_affinity(request, now_);
            }
        }
        policy_.on_worker_gone(worker, now_);
    }

    Policy& policy_;
    std::deque<PolicyRequest> requests_;   // by record
    std::vector<std::uint32_t> at_;        // worker that has it
    std::vector<PolicyWorker> workers_;
    std::uint64_t now_ = 1'000'000;
    std::uint32_t generation_ = 0;
    std::vector<std::uint64_t> decisions_;
    std::string violation_;
};

}  // namespace

Played play(Policy& policy, std::span<const std::uint32_t> script, std::uint32_t workers) {
    Player player(policy, workers == 0 ? 1 : workers);
    for (const std::uint32_t word : script) {
        player.step(word);
        if (player.broken()) break;
    }
    if (!player.broken()) player.finish();
    return player.result();
}

}  // namespace teal
