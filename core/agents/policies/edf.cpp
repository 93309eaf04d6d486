// Earliest deadline first. Requests without a deadline of their own get their model's ("deadline.bert=5ms" after its arrival), or the usual
// one ("deadline=10ms"), or come last, in the order of arrival. With preempt=1 one that runs leaves its worker when a request with an
// earlier deadline waits for it, once it has run for `quantum`.
#include "agents/policies/make.hpp"
#include "agents/policies/queue.hpp"
#include "agents/policies/settings.hpp"

namespace teal {
namespace {

constexpr std::uint64_t none = UINT64_MAX - 1;  // later than any deadline, and not the key of an empty heap
constexpr unsigned word_key = word::own;

class Edf final : public Policy {
public:
    void on_new(PolicyRequest& request, std::uint64_t now) override {
        forget(request);
        request.data[word_key] = key_of(request);
        if (!request.staged) on_runnable(request, now);
    }
    void on_runnable(PolicyRequest& request, std::uint64_t now) override {
        if (queued(request)) return on_affinity(request, now);
        if (request.runnable) waiting_.push(request, request.data[word_key], ++stamp_);
    }
    void on_blocked(PolicyRequest& request, std::uint64_t) override { leave(request); }
    void on_done(PolicyRequest& request, std::uint64_t) override { leave(request); }
    void on_departed(PolicyRequest& request, std::uint64_t) override { leave(request); }
    void on_affinity(PolicyRequest& request, std::uint64_t) override {
        if (!queued(request)) return;
        waiting_.remove(request);
        waiting_.push(request, request.data[word_key], request.data[word::stamp]);
    }
    void on_latch_failure(PolicyRequest& request, Outcome, std::uint64_t now) override {
        if (!request.runnable || queued(request)) return;
        if (request.data[word::stamp] == 0) return on_runnable(request, now);
        waiting_.push(request, request.data[word_key], request.data[word::stamp]);
    }

    Decision pick(PolicyWorker& worker, std::uint64_t) override {
        PolicyRequest* const request = waiting_.first(worker.index);
        if (request != nullptr) waiting_.remove(*request);
        return {.request = request};
    }
    bool preempt(const PolicyWorker& worker, std::uint64_t now) override {
        if (!preempt_ || worker.running == nullptr || now < worker.since_ns + quantum_) return false;
        return waiting_.first_key(worker.index) < worker.running->data[word_key];
    }

    bool has_work() const override { return waiting_.size() > 0; }

    void on_name(Named kind, std::uint16_t index, std::string_view name) override {
        if (kind == Named::model) deadlines_.name(index, name);
    }
    bool set(std::string_view name, std::string_view value) override {
        const auto [setting, of] = split_setting(name);
        if (name == "deadline") deadlines_.set_usual(parse_time(name, value));
        else if (setting == "deadline" && !of.empty()) deadlines_.set(of, parse_time(name, value));
        else if (name == "preempt") preempt_ = parse_flag(name, value);
        else if (name == "quantum") quantum_ = parse_time(name, value, 1'000);
        else return false;
        return true;
    }
    PolicySettings settings() const override {
        PolicySettings all{{"deadline", show_time(deadlines_.usual())}, {"preempt", preempt_ ? "1" : "0"}, {"quantum", show_time(quantum_)}};
        for (const auto& [name, value] : deadlines_.said()) all.emplace_back("deadline." + name, show_time(value));
        return all;
    }
    std::string_view name() const override { return "edf"; }
    std::string dump() const override { return "waiting " + std::to_string(waiting_.size()); }

private:
    std::uint64_t key_of(const PolicyRequest& request) {
        if (request.deadline_ns != 0) return request.deadline_ns < none ? request.deadline_ns : none;
        const std::uint64_t after = deadlines_[request.model];
        return after == 0 ? none : request.arrived_ns + after;
    }
    void leave(PolicyRequest& request) {
        if (queued(request)) waiting_.remove(request);
    }

    PerName<std::uint64_t> deadlines_{0};
    std::uint64_t quantum_ = 50'000;
    bool preempt_ = false;
    WaitHeap waiting_;
    std::uint64_t stamp_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_edf() { return std::make_unique<Edf>(); }

}  // namespace teal
