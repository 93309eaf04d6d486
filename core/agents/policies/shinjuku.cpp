// Shinjuku: preemptive, a queue for each type of request. The next request is the first of the queue that has waited longest in units of
// its type's SLO; one that has run for `quantum` leaves its worker if anything waits for it, and goes to the tail of its type's queue. So a
// short request waits for a quantum and not for a long request, whatever is mixed.
//
// A type is a model ("by=model"), or a session. What was taken from a worker can go on there only, so each queue has a part for each worker
// (queue.hpp). A decision says `quantum` as its slice when something else waits already, and the worker ends it by its own timer; if nothing
// does it may run on, and preempt() is what sees the next arrival.
#include <algorithm>

#include "agents/policies/make.hpp"
#include "agents/policies/queue.hpp"
#include "agents/policies/settings.hpp"

namespace teal {
namespace {

constexpr unsigned word_since = word::own;     // when it was put into its queue
constexpr unsigned word_type = word::own + 1;

struct Type {
    WaitList waiting;
    std::uint32_t active = 0;  // position in active_, plus 1; 0: nothing waits
};

class Shinjuku final : public Policy {
public:
    void on_new(PolicyRequest& request, std::uint64_t now) override {
        forget(request);
        request.data[word_type] = by_ == Named::model ? request.model : request.session;
        if (!request.staged) on_runnable(request, now);
    }
    void on_runnable(PolicyRequest& request, std::uint64_t now) override {
        if (queued(request)) return on_affinity(request, now);
        if (!request.runnable) return;
        request.data[word_since] = now;
        enter(request, ++stamp_);
    }
    void on_blocked(PolicyRequest& request, std::uint64_t) override { leave(request); }
    void on_done(PolicyRequest& request, std::uint64_t) override { leave(request); }
    void on_departed(PolicyRequest& request, std::uint64_t) override { leave(request); }
    void on_affinity(PolicyRequest& request, std::uint64_t) override {
        if (!queued(request)) return;
        leave(request);
        enter(request, request.data[word::stamp]);
    }
    void on_latch_failure(PolicyRequest& request, Outcome, std::uint64_t now) override {
        if (!request.runnable || queued(request)) return;
        if (request.data[word::stamp] == 0) return on_runnable(request, now);
        enter(request, request.data[word::stamp]);
    }

    Decision pick(PolicyWorker& worker, std::uint64_t now) override {
        PolicyRequest* best = nullptr;
        for (const std::uint32_t type : active_) {
            PolicyRequest* const first = types_[type].waiting.first(worker.index);
            if (first != nullptr && (best == nullptr || before(*first, *best, now))) best = first;
        }
        if (best == nullptr) return {};
        leave(*best);
        const bool more = waits_for(worker.index) && (best->preemptible || best->yields);
        return {.request = best, .slice_ns = more ? quantum_ : 0};
    }
    bool preempt(const PolicyWorker& worker, std::uint64_t now) override {
        if (worker.running == nullptr || now < worker.since_ns + quantum_) return false;
        if (worker.slice_ns != 0 && now < worker.since_ns + 2 * worker.slice_ns) return false;  // its own timer is about to
        return worker.staged > 0 || waits_for(worker.index);
    }

    bool has_work() const override { return size_ > 0; }

    void on_name(Named kind, std::uint16_t index, std::string_view name) override {
        slos_[kind == Named::session].name(index, name);
    }
    bool set(std::string_view name, std::string_view value) override {
        const auto [setting, of] = split_setting(name);
        if (name == "quantum") quantum_ = parse_time(name, value, 1'000);
        else if (name == "slo") set_usual(parse_time(name, value, 1'000));
        else if (setting == "slo" && !of.empty()) set_slo(of, parse_time(name, value, 1'000));
        else if (name == "by") by_ = parse_named(name, value);
        else return false;
        return true;
    }
    PolicySettings settings() const override {
        PolicySettings all{{"quantum", show_time(quantum_)}, {"by", std::string(show_named(by_))}, {"slo", show_time(slos_[0].usual())}};
        for (const auto& [name, value] : slos_[0].said()) all.emplace_back("slo." + name, show_time(value));
        return all;
    }
    std::string_view name() const override { return "shinjuku"; }
    std::string dump() const override {
        std::string text = "waiting " + std::to_string(size_);
        for (const std::uint32_t type : active_)
            text += ", " + slos().name_of(static_cast<std::uint16_t>(type)) + " " + std::to_string(types_[type].waiting.size());
        return text;
    }

private:
    PerName<std::uint64_t>& slos() { return slos_[by_ == Named::session]; }
    const PerName<std::uint64_t>& slos() const { return slos_[by_ == Named::session]; }
    void set_usual(std::uint64_t slo) {
        for (auto& each : slos_) each.set_usual(slo);
    }
    void set_slo(std::string_view name, std::uint64_t slo) {
        for (auto& each : slos_) each.set(name, slo);
    }
    // Has `a` waited longer than `b`, each in units of its SLO? Exact; equal: the lower type.
    bool before(const PolicyRequest& a, const PolicyRequest& b, std::uint64_t now) {
        const auto waited = [now](const PolicyRequest& request) { return now > request.data[word_since] ? now - request.data[word_since] : 0; };
        const auto slo = [this](const PolicyRequest& request) { return slos()[static_cast<std::uint16_t>(request.data[word_type])]; };
        const unsigned __int128 left = static_cast<unsigned __int128>(waited(a)) * slo(b), right = static_cast<unsigned __int128>(waited(b)) * slo(a);
        return left != right ? left > right : a.data[word_type] < b.data[word_type];
    }
    bool waits_for(std::uint32_t worker) const noexcept { return free_ > 0 || (worker < bound_.size() && bound_[worker] > 0); }
    std::uint32_t& count_of(const PolicyRequest& request) {
        const std::uint64_t place = request.data[word::place];
        return place == 1 ? free_ : reach(bound_, place - 2);
    }
    void enter(PolicyRequest& request, std::uint64_t stamp) {
        Type& type = reach(types_, request.data[word_type]);
        type.waiting.push(request, stamp);
        ++count_of(request);
        ++size_;
        if (type.active != 0) return;
        active_.push_back(static_cast<std::uint32_t>(request.data[word_type]));
        type.active = static_cast<std::uint32_t>(active_.size());
    }
    void leave(PolicyRequest& request) {
        if (!queued(request)) return;
        Type& type = types_[request.data[word_type]];
        --count_of(request);
        --size_;
        type.waiting.remove(request);
        if (type.waiting.size() > 0) return;
        const std::uint32_t last = active_.back();
        active_[type.active - 1] = last;
        types_[last].active = type.active;
        active_.pop_back();
        type.active = 0;
    }

    std::uint64_t quantum_ = 50'000;
    Named by_ = Named::model;
    PerName<std::uint64_t> slos_[2] = {PerName<std::uint64_t>{1'000'000}, PerName<std::uint64_t>{1'000'000}};  // of models, of sessions
    std::vector<Type> types_;
    std::vector<std::uint32_t> active_;  // types of which something waits
    std::uint32_t free_ = 0;             // waiting requests that any worker may run
    std::vector<std::uint32_t> bound_;   // … that this worker alone may
    std::size_t size_ = 0;
    std::uint64_t stamp_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_shinjuku() { return std::make_unique<Shinjuku>(); }

}  // namespace teal
