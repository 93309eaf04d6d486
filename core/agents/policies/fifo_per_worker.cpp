// First in, first out, a queue for each worker: a request goes to the worker with the fewest when it comes, and stays there. With steal=1 (the
// default) a worker that has nothing takes the oldest request of another in turn; with steal=0 it idles, and what is cached stays with it.
//
// Workers are known from the first word about them. Requests that come before wait for anybody, and go first. Workers lie in lists by
// how many requests each has, so the least loaded one is found in O(1): loads change by one.
#include <algorithm>

#include "agents/policies/make.hpp"
#include "agents/policies/queue.hpp"
#include "agents/policies/settings.hpp"

namespace teal {
namespace {

constexpr unsigned word_home = word::own;  // its worker, plus 1

struct Home {
    RequestList waiting;            // free ones of this home
    RequestList bound;              // what it alone may run
    std::uint32_t load = 0;         // waiting, staged or running
    std::uint32_t busy = 0;         // position in busy_, plus 1
    std::uint32_t next = no_object, previous = no_object;  // in its load's list
    bool known = false;
};
struct Level {
    std::uint32_t first = no_object, last = no_object;
};

class FifoPerWorker final : public Policy {
public:
    void on_new(PolicyRequest& request, std::uint64_t now) override {
        forget(request);
        if (request.worker != no_object) settle(request, request.worker);
        if (!request.staged) on_runnable(request, now);
    }
    void on_runnable(PolicyRequest& request, std::uint64_t now) override {
        if (queued(request)) return on_affinity(request, now);
        if (!request.runnable) return;
        house(request);
        enter(request, ++stamp_);
    }
    void on_blocked(PolicyRequest& request, std::uint64_t) override { leave(request); }
    void on_done(PolicyRequest& request, std::uint64_t) override {
        leave(request);
        settle(request, no_object);
    }
    void on_departed(PolicyRequest& request, std::uint64_t now) override { on_done(request, now); }
    void on_affinity(PolicyRequest& request, std::uint64_t) override {
        const bool waits = queued(request);
        leave(request);
        house(request);
        if (waits) enter(request, request.data[word::stamp]);
    }
    void on_latch_failure(PolicyRequest& request, Outcome, std::uint64_t now) override {
        if (!request.runnable || queued(request)) return;
        if (request.data[word::stamp] == 0) return on_runnable(request, now);
        house(request);
        enter(request, request.data[word::stamp]);
    }
    void on_worker_available(PolicyWorker& worker, std::uint64_t) override { meet(worker.index); }
    void on_worker_busy(PolicyWorker& worker, std::uint64_t) override { meet(worker.index); }
    void on_worker_gone(PolicyWorker& worker, std::uint64_t) override {
        if (worker.index >= homes_.size() || !homes_[worker.index].known) return;
        Home& home = homes_[worker.index];
        unlink(worker.index);
        home.known = false;
        --workers_;
        while (PolicyRequest* request = home.waiting.first()) {  // the others', each at its age
            leave(*request);
            settle(*request, workers_ > 0 ? least() : no_object);
            enter(*request, request->data[word::stamp]);
        }
    }

    Decision pick(PolicyWorker& worker, std::uint64_t) override {
        meet(worker.index);
        Home& home = homes_[worker.index];
        PolicyRequest* first = home.bound.first();
        for (PolicyRequest* other : {home.waiting.first(), anybodys_.first()})
            if (other != nullptr && (first == nullptr || other->data[word::stamp] < first->data[word::stamp])) first = other;
        if (first == nullptr && steal_ && !busy_.empty()) first = homes_[busy_[turn_++ % busy_.size()]].waiting.first();
        if (first == nullptr) return {};
        leave(*first);
        settle(*first, worker.index);
        return {.request = first};
    }

    bool has_work() const override { return waiting_ > 0; }
    bool preempts() const override { return false; }
    bool moves() const override { return steal_; }

    bool set(std::string_view name, std::string_view value) override {
        if (name != "steal") return false;
        steal_ = parse_flag(name, value);
        return true;
    }
    PolicySettings settings() const override { return {{"steal", steal_ ? "1" : "0"}}; }
    std::string_view name() const override { return "fifo-per-worker"; }
    bool work_conserving() const override { return steal_; }
    std::string dump() const override {
        std::string text = std::to_string(workers_) + " workers";
        for (std::size_t i = 0; i < homes_.size(); ++i)
            if (homes_[i].load > 0) text += ", " + std::to_string(i) + " has " + std::to_string(homes_[i].load);
        return text;
    }

private:
    void meet(std::uint32_t worker) {
        Home& home = reach(homes_, worker);
        if (home.known) return;
        home.known = true;
        ++workers_;
        link(worker);
    }

    // Where it is bound, where it was, or where there is least to do.
    void house(PolicyRequest& request) {
        const std::uint64_t home = request.data[word_home];
        if (request.worker != no_object) settle(request, request.worker);
        else if (home == 0 || !homes_[home - 1].known) settle(request, workers_ > 0 ? least() : no_object);
    }
    // Its home, and so who counts it.
    void settle(PolicyRequest& request, std::uint32_t worker) {
        if (worker != no_object && request.data[word_home] == worker + std::uint64_t{1}) return;
        if (request.data[word_home] != 0) count(static_cast<std::uint32_t>(request.data[word_home] - 1), false);
        request.data[word_home] = worker == no_object ? 0 : worker + std::uint64_t{1};
        if (worker == no_object) return;
        reach(homes_, worker);
        count(worker, true);
    }
    void count(std::uint32_t worker, bool more) {
        Home& home = homes_[worker];
        if (home.known) unlink(worker);
        home.load += more ? 1 : UINT32_MAX;
        if (home.known) link(worker);
    }
    std::uint32_t least() {
        while (levels_[least_].first == no_object) ++least_;
        return levels_[least_].first;
    }
    void link(std::uint32_t worker) {
        Home& home = homes_[worker];
        Level& level = reach(levels_, home.load);
        home.next = no_object;
        home.previous = level.last;
        (level.last == no_object ? level.first : homes_[level.last].next) = worker;
        level.last = worker;
        least_ = std::min(least_, home.load);
    }
    void unlink(std::uint32_t worker) {
        const Home& home = homes_[worker];
        Level& level = levels_[home.load];
        (home.previous == no_object ? level.first : homes_[home.previous].next) = home.next;
        (home.next == no_object ? level.last : homes_[home.next].previous) = home.previous;
    }

    void enter(PolicyRequest& request, std::uint64_t stamp) {
        request.data[word::stamp] = stamp;
        request.data[word::place] = place_for(request);
        ++waiting_;
        if (request.worker != no_object) return homes_[request.worker].bound.insert(request);
        if (request.data[word_home] == 0) return anybodys_.insert(request);
        Home& home = homes_[request.data[word_home] - 1];
        home.waiting.insert(request);
        if (home.busy != 0) return;
        busy_.push_back(static_cast<std::uint32_t>(request.data[word_home] - 1));
        home.busy = static_cast<std::uint32_t>(busy_.size());
    }
    void leave(PolicyRequest& request) {
        if (!queued(request)) return;
        const std::uint64_t place = request.data[word::place];
        request.data[word::place] = 0;
        --waiting_;
        if (place != 1) return homes_[place - 2].bound.remove(request);
        if (request.data[word_home] == 0) return anybodys_.remove(request);
        Home& home = homes_[request.data[word_home] - 1];
        home.waiting.remove(request);
        if (!home.waiting.empty()) return;
        const std::uint32_t last = busy_.back();
        busy_[home.busy - 1] = last;
        homes_[last].busy = home.busy;
        busy_.pop_back();
        home.busy = 0;
    }

    bool steal_ = true;
    std::vector<Home> homes_;
    std::vector<Level> levels_;          // by load
    std::vector<std::uint32_t> busy_;    // homes with something that others might take
    RequestList anybodys_;
    std::size_t waiting_ = 0;
    std::uint32_t workers_ = 0;
    std::uint32_t least_ = 0;            // no worker has fewer
    std::uint64_t turn_ = 0;
    std::uint64_t stamp_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_fifo_per_worker() { return std::make_unique<FifoPerWorker>(); }

}  // namespace teal
