// First in, first out, one queue for all workers. What is preempted or yields goes to the end.
#include "agents/policies/make.hpp"
#include "agents/policies/queue.hpp"

namespace teal {
namespace {

class Fifo final : public Policy {
public:
    void on_new(PolicyRequest& request, std::uint64_t now) override {
        forget(request);
        if (!request.staged) on_runnable(request, now);
    }
    void on_runnable(PolicyRequest& request, std::uint64_t now) override {
        if (queued(request)) return on_affinity(request, now);
        if (request.runnable) waiting_.push(request, ++stamp_);
    }
    void on_blocked(PolicyRequest& request, std::uint64_t) override { leave(request); }
    void on_done(PolicyRequest& request, std::uint64_t) override { leave(request); }
    void on_departed(PolicyRequest& request, std::uint64_t) override { leave(request); }
    void on_affinity(PolicyRequest& request, std::uint64_t) override {
        if (!queued(request)) return;
        waiting_.remove(request);
        waiting_.push(request, request.data[word::stamp]);
    }
    void on_latch_failure(PolicyRequest& request, Outcome, std::uint64_t now) override {
        if (!request.runnable || queued(request)) return;
        if (request.data[word::stamp] == 0) return on_runnable(request, now);
        waiting_.push(request, request.data[word::stamp]);  // at its old place
    }

    Decision pick(PolicyWorker& worker, std::uint64_t) override {
        PolicyRequest* const request = waiting_.first(worker.index);
        if (request != nullptr) waiting_.remove(*request);
        return {.request = request};
    }

    bool has_work() const override { return waiting_.size() > 0; }
    bool preempts() const override { return false; }

    bool set(std::string_view, std::string_view) override { return false; }
    PolicySettings settings() const override { return {}; }
    std::string_view name() const override { return "fifo"; }
    std::string dump() const override { return "waiting " + std::to_string(waiting_.size()); }

private:
    void leave(PolicyRequest& request) {
        if (queued(request)) waiting_.remove(request);
    }

    WaitList waiting_;
    std::uint64_t stamp_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_fifo() { return std::make_unique<Fifo>(); }

}  // namespace teal
