// Weighted fair: sessions (or models) share the workers by weight, in time that requests ran. Start-time fair queueing over flows.
//
// Theory of operation. A flow is a session ("by=session") or a model. Its tag is the virtual time at which its next request starts: when one
// is picked, the tag moves on by what that one is expected to take, divided by the weight, and is put right when what it took is known. The
// flow with the least tag is next. A flow that had nothing to run starts at the present (the tag that was picked last), so nobody saves
// up time by idling. Within a flow: arrival. Whole numbers only, so that every machine decides alike.
//
// Flows with requests for any worker lie in a heap. What is bound to a worker lies in that worker's list, which is short: it is looked
// through, and wins against the heap with an equal tag, because it has begun.
#include "agents/policies/make.hpp"
#include "agents/policies/queue.hpp"
#include "agents/policies/settings.hpp"

namespace teal {
namespace {

constexpr unsigned word_flow = word::own;
constexpr unsigned word_guess = word::own + 1;  // virtual time that the flow was charged when it was picked
constexpr unsigned word_ran = word::own + 2;    // ran_ns by then; plus 1, 0: not picked

struct Flow {
    RequestList waiting;        // for any worker
    std::uint64_t tag = 0;
    std::uint64_t usual = 0;    // ns that its last run took
    std::uint32_t backlog = 0;  // requests that wait, bound ones too
    std::uint32_t position = 0; // in heap_, plus 1; 0: not in it
};

class Fair final : public Policy {
public:
    void on_new(PolicyRequest& request, std::uint64_t now) override {
        forget(request);
        request.data[word_flow] = by_ == Named::session ? request.session : request.model;
        reach(flows_, request.data[word_flow]);
        if (!request.staged) on_runnable(request, now);
    }
    void on_runnable(PolicyRequest& request, std::uint64_t now) override {
        if (queued(request)) return on_affinity(request, now);
        settle(request);  // it runs anew
        if (request.runnable) enter(request, ++stamp_);
    }
    void on_blocked(PolicyRequest& request, std::uint64_t) override {
        settle(request);
        leave(request);
    }
    void on_preempt(PolicyRequest& request, std::uint64_t now) override {
        settle(request);
        on_runnable(request, now);
    }
    void on_done(PolicyRequest& request, std::uint64_t now) override { on_blocked(request, now); }
    void on_departed(PolicyRequest& request, std::uint64_t now) override { on_blocked(request, now); }
    void on_affinity(PolicyRequest& request, std::uint64_t) override {
        if (!queued(request)) return;
        leave(request);
        enter(request, request.data[word::stamp]);
    }
    void on_latch_failure(PolicyRequest& request, Outcome, std::uint64_t now) override {
        settle(request);
        if (!request.runnable || queued(request)) return;
        if (request.data[word::stamp] == 0) return on_runnable(request, now);
        enter(request, request.data[word::stamp]);
    }

    Decision pick(PolicyWorker& worker, std::uint64_t) override {
        PolicyRequest* const request = best(worker.index);
        if (request == nullptr) return {};
        Flow& flow = flow_of(*request);
        leave(*request);
        if (flow.tag > now_) now_ = flow.tag;
        std::uint64_t guess = request->expected_ns > request->ran_ns ? request->expected_ns - request->ran_ns : flow.usual;
        if (guess == 0) guess = 1'000;
        if (quantum_ != 0 && guess > quantum_) guess = quantum_;
        request->data[word_guess] = scaled(*request, guess);
        request->data[word_ran] = request->ran_ns + 1;
        move(flow, flow.tag + request->data[word_guess]);
        const bool slice = quantum_ != 0 && (request->preemptible || request->yields) && best(worker.index) != nullptr;
        return {.request = request, .slice_ns = slice ? quantum_ : 0};
    }
    bool preempt(const PolicyWorker& worker, std::uint64_t now) override {
        if (quantum_ == 0 || worker.running == nullptr || now < worker.since_ns + quantum_) return false;
        if (worker.slice_ns != 0 && now < worker.since_ns + 2 * worker.slice_ns) return false;
        PolicyRequest* const next = best(worker.index);
        return next != nullptr && flow_of(*next).tag <= flow_of(*worker.running).tag;
    }

    bool has_work() const override { return waiting_ > 0; }

    void on_name(Named kind, std::uint16_t index, std::string_view name) override { weights_[kind == Named::session].name(index, name); }
    bool set(std::string_view name, std::string_view value) override {
        const auto [setting, of] = split_setting(name);
        if (name == "by") by_ = parse_named(name, value);
        else if (name == "quantum") quantum_ = value == "0" ? 0 : parse_time(name, value, 1'000);
        else if (name == "weight") for (auto& each : weights_) each.set_usual(parse_weight(name, value));
        else if (setting == "weight" && !of.empty()) for (auto& each : weights_) each.set(of, parse_weight(name, value));
        else return false;
        return true;
    }
    PolicySettings settings() const override {
        PolicySettings all{{"by", std::string(show_named(by_))}, {"weight", show_weight(weights_[0].usual())}, {"quantum", show_time(quantum_)}};
        for (const auto& [name, value] : weights_[0].said()) all.emplace_back("weight." + name, show_weight(value));
        return all;
    }
    std::string_view name() const override { return "fair"; }
    std::string dump() const override {
        std::string text = "virtual time " + std::to_string(now_);
        for (std::size_t i = 0; i < flows_.size(); ++i)
            if (flows_[i].backlog > 0)
                text += ", " + weights_[by_ == Named::session].name_of(static_cast<std::uint16_t>(i)) + " " + std::to_string(flows_[i].backlog);
        return text;
    }

private:
    Flow& flow_of(const PolicyRequest& request) { return flows_[request.data[word_flow]]; }
    std::uint64_t scaled(const PolicyRequest& request, std::uint64_t ns) {
        return ns * 1000 / weights_[by_ == Named::session][static_cast<std::uint16_t>(request.data[word_flow])];
    }

    // What it was charged becomes what it took.
    void settle(PolicyRequest& request) {
        if (request.data[word_ran] == 0) return;
        const std::uint64_t before = request.data[word_ran] - 1, took = request.ran_ns > before ? request.ran_ns - before : 0;
        Flow& flow = flow_of(request);
        if (took > 0) flow.usual = took;
        const std::uint64_t tag = flow.tag + scaled(request, took);
        move(flow, tag > request.data[word_guess] ? tag - request.data[word_guess] : 0);
        request.data[word_ran] = 0;
    }

    PolicyRequest* best(std::uint32_t worker) {
        PolicyRequest* found = heap_.empty() ? nullptr : flows_[heap_[0]].waiting.first();
        std::uint64_t least = found == nullptr ? UINT64_MAX : flow_of(*found).tag;
        if (worker >= bound_.size()) return found;
        bool begun = false;
        for (PolicyRequest* each = bound_[worker].first(); each != nullptr; each = RequestList::after(*each)) {
            const std::uint64_t tag = flow_of(*each).tag;
            if (begun ? tag >= least : tag > least) continue;
            found = each;
            least = tag;
            begun = true;
        }
        return found;
    }

    void enter(PolicyRequest& request, std::uint64_t stamp) {
        Flow& flow = flow_of(request);
        ++waiting_;
        if (flow.backlog++ == 0 && flow.tag < now_) flow.tag = now_;
        request.data[word::stamp] = stamp;
        request.data[word::place] = place_for(request);
        if (request.worker != no_object) return reach(bound_, request.worker).insert(request);
        flow.waiting.insert(request);
        if (flow.position != 0) return;
        heap_.push_back(static_cast<std::uint32_t>(request.data[word_flow]));
        flow.position = static_cast<std::uint32_t>(heap_.size());
        rise(flow.position - 1);
    }
    void leave(PolicyRequest& request) {
        if (!queued(request)) return;
        Flow& flow = flow_of(request);
        const std::uint64_t place = request.data[word::place];
        request.data[word::place] = 0;
        --waiting_;
        --flow.backlog;
        if (place != 1) return bound_[place - 2].remove(request);
        flow.waiting.remove(request);
        if (!flow.waiting.empty()) return;
        const std::size_t hole = flow.position - 1;
        flow.position = 0;
        const std::uint32_t last = heap_.back();
        heap_.pop_back();
        if (hole == heap_.size()) return;
        put(hole, last);
        rise(hole);
        sink(flows_[last].position - 1);
    }

    // The heap of flows, binary: there are few. Least tag first, then least index.
    void move(Flow& flow, std::uint64_t tag) {
        flow.tag = tag;
        if (flow.position == 0) return;
        rise(flow.position - 1);
        sink(flow.position - 1);
    }
    bool before(std::uint32_t a, std::uint32_t b) const { return flows_[a].tag != flows_[b].tag ? flows_[a].tag < flows_[b].tag : a < b; }
    void put(std::size_t position, std::uint32_t flow) {
        heap_[position] = flow;
        flows_[flow].position = static_cast<std::uint32_t>(position + 1);
    }
    void rise(std::size_t position) {
        for (const std::uint32_t flow = heap_[position]; position > 0 && before(flow, heap_[(position - 1) / 2]); position = (position - 1) / 2) {
            put(position, heap_[(position - 1) / 2]);
            put((position - 1) / 2, flow);
        }
    }
    void sink(std::size_t position) {
        for (const std::uint32_t flow = heap_[position];;) {
            std::size_t least = 2 * position + 1;
            if (least >= heap_.size()) return;
            if (least + 1 < heap_.size() && before(heap_[least + 1], heap_[least])) ++least;
            if (!before(heap_[least], flow)) return;
            put(position, heap_[least]);
            put(least, flow);
            position = least;
        }
    }

    Named by_ = Named::session;
    std::uint64_t quantum_ = 0;      // 0: nobody is preempted
    PerName<std::uint64_t> weights_[2] = {PerName<std::uint64_t>{1000}, PerName<std::uint64_t>{1000}};  // thousandths; of models, of sessions
    std::vector<Flow> flows_;
    std::vector<std::uint32_t> heap_;    // flows with something for any worker
    std::vector<RequestList> bound_;     // by worker: what it alone may run
    std::size_t waiting_ = 0;
    std::uint64_t now_ = 0;              // virtual
    std::uint64_t stamp_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_fair() { return std::make_unique<Fair>(); }

}  // namespace teal
