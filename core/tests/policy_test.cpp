// The shipped policies, each on its own: order, what is bound to a worker, what comes back, settings, and that nothing is lost.
#include "agents/policy.hpp"

#include <deque>
#include <random>
#include <string>

#include "agents/policies/make.hpp"
#include "agents/policies/settings.hpp"
#include "base/error.hpp"
#include "check.hpp"
#include "sim/play.hpp"

namespace {

using teal::Policy;
using teal::PolicyRequest;
using teal::PolicyWorker;

// What a mechanism does around a policy, by hand.
struct Bench {
    std::unique_ptr<Policy> policy;
    std::deque<PolicyRequest> requests;
    std::deque<PolicyWorker> workers;
    std::uint64_t now = 1000;

    explicit Bench(std::string_view name, std::initializer_list<std::pair<const char*, const char*>> settings = {}, unsigned count = 2)
        : policy(teal::make_policy(name)) {
        for (const auto& [setting, value] : settings) teal::set_or_throw(*policy, setting, value);
        for (unsigned i = 0; i < count; ++i) {
            workers.emplace_back().index = i;
            policy->on_worker_available(workers.back(), now);
        }
    }
    PolicyRequest& add(std::uint16_t model = 0, std::uint16_t session = 0, std::uint64_t deadline = 0, std::int32_t priority = 0) {
        PolicyRequest& request = requests.emplace_back();
        request.index = static_cast<std::uint32_t>(requests.size() - 1);
        request.model = model;
        request.session = session;
        request.deadline_ns = deadline;
        request.priority = priority;
        request.arrived_ns = now;
        request.runnable = true;
        request.preemptible = true;
        policy->on_new(request, now);
        return request;
    }
    PolicyRequest* pick(unsigned worker = 0) {
        const teal::Decision decision = policy->pick(workers[worker], now);
        if (decision.request == nullptr) return nullptr;
        decision.request->staged = true;
        workers[worker].running = decision.request;
        workers[worker].since_ns = now;
        workers[worker].slice_ns = decision.slice_ns;
        return decision.request;
    }
    std::uint32_t picked(unsigned worker = 0) {
        const PolicyRequest* request = pick(worker);
        return request == nullptr ? teal::no_object : request->index;
    }
    void preempted(PolicyRequest& request, std::uint32_t worker) {
        request.staged = false;
        request.ran_ns += now - workers[worker].since_ns;
        request.worker = worker;
        workers[worker].running = nullptr;
        policy->on_preempt(request, now);
    }
    void done(PolicyRequest& request, std::uint64_t ran) {
        request.staged = false;
        request.runnable = false;
        request.ran_ns += ran;
        policy->on_done(request, now);
    }
    void refused(PolicyRequest& request) {
        request.staged = false;
        policy->on_latch_failure(request, teal::Outcome::aborted, now);
    }
};

void fifo() {
    for (const char* name : {"fifo", "edf", "fifo-per-worker", "shinjuku", "fair", "composite"}) {  // equal requests: all alike
        Bench bench(name, {}, 1);
        for (int i = 0; i < 4; ++i) bench.add();
        CHECK_EQ(bench.picked(), 0u);
        bench.policy->on_departed(bench.requests[1], bench.now);
        PolicyRequest* second = bench.pick();
        if (!CHECK(second != nullptr)) continue;
        CHECK_EQ(second->index, 2u);
        bench.refused(*second);  // comes back to its place, before 3
        CHECK_EQ(bench.picked(), 2u);
        bench.requests[3].runnable = false;
        bench.policy->on_blocked(bench.requests[3], bench.now);
        CHECK_EQ(bench.picked(), teal::no_object);
        bench.requests[3].runnable = true;
        bench.policy->on_runnable(bench.requests[3], bench.now);
        bench.policy->on_runnable(bench.requests[3], bench.now);  // told twice, queued once
        CHECK_EQ(bench.picked(), 3u);
        CHECK_EQ(bench.picked(), teal::no_object);
    }
}

void bound() {
    for (const std::string_view name : teal::policy_names()) {
        Bench bench(name);
        PolicyRequest& first = bench.add();
        CHECK_EQ(bench.picked(1), 0u);
        bench.now += 100'000;
        bench.preempted(first, 1);
        CHECK_EQ(bench.picked(0), teal::no_object);  // its stack lies with worker 1
        PolicyRequest& second = bench.add();
        CHECK_EQ(bench.picked(0), second.index);
        CHECK_EQ(bench.picked(1), first.index);
        bench.preempted(first, 1);
        bench.policy->on_worker_gone(bench.workers[1], bench.now);
        first.worker = teal::no_object;  // its worker died: it runs anew, anywhere
        bench.policy->on_runnable(first, bench.now);
        CHECK_EQ(bench.picked(0), first.index);
        bench.done(first, 10);
        bench.done(second, 10);
        CHECK_EQ(bench.picked(0), teal::no_object);
    }
}

void edf() {
    Bench bench("edf", {{"deadline.#7", "3us"}, {"preempt", "1"}, {"quantum", "10us"}});
    const PolicyRequest& never = bench.add();
    const PolicyRequest& late = bench.add(0, 0, 9'000);
    const PolicyRequest& model = bench.add(7);  // 4'000
    const PolicyRequest& soon = bench.add(0, 0, 2'000);
    CHECK_EQ(bench.picked(), soon.index);
    CHECK_EQ(bench.picked(), model.index);
    bench.policy->on_name(teal::Named::model, 7, "bert");
    teal::set_or_throw(*bench.policy, "deadline.bert", "1us");
    const PolicyRequest& named = bench.add(7);
    CHECK_EQ(bench.picked(), named.index);
    CHECK(!bench.policy->preempt(bench.workers[0], bench.now + 10'000));  // runs what is most urgent
    CHECK_EQ(bench.picked(), late.index);
    CHECK_EQ(bench.picked(), never.index);
    bench.add(0, 0, 50'000);
    CHECK(!bench.policy->preempt(bench.workers[0], bench.now + 9'999));
    CHECK(bench.policy->preempt(bench.workers[0], bench.now + 10'000));
}

void fair() {
    Bench bench("fair", {{"weight.#1", "3"}, {"weight", "1"}}, 1);
    for (int i = 0; i < 400; ++i) bench.add(0, static_cast<std::uint16_t>(i % 2)).expected_ns = 1000;
    int heavy = 0;
    for (int i = 0; i < 200; ++i) {
        PolicyRequest* request = bench.pick();
        heavy += request->session;
        bench.done(*request, 1000);
    }
    CHECK_EQ(heavy, 150);
    PolicyRequest& idler = bench.add(0, 2);  // no credit for having idled: one turn, not two hundred
    PolicyRequest& idlers = bench.add(0, 2);
    std::uint32_t first = teal::no_object, second = teal::no_object;
    for (std::uint32_t i = 0; i < 20 && second == teal::no_object; ++i) {
        PolicyRequest* request = bench.pick();
        if (request == &idler) first = i;
        if (request == &idlers) second = i;
        bench.done(*request, 1000);
    }
    CHECK(first <= 2);
    CHECK(second >= first + 3);
}

void shinjuku() {
    Bench bench("shinjuku", {{"quantum", "20us"}, {"slo.short", "10us"}, {"slo", "1ms"}}, 1);
    bench.policy->on_name(teal::Named::model, 1, "short");
    PolicyRequest& old = bench.add(0);
    CHECK_EQ(bench.picked(), old.index);
    CHECK_EQ(bench.workers[0].slice_ns, 0u);  // nothing waits
    bench.now += 30'000;
    CHECK(!bench.policy->preempt(bench.workers[0], bench.now));
    const PolicyRequest& longer = bench.add(0);
    bench.now += 10'000;
    const PolicyRequest& shorter = bench.add(1);
    bench.now += 1'000;  // waited: 11 us of 1 ms, 1 us of 10 us
    CHECK(bench.policy->preempt(bench.workers[0], bench.now));
    bench.preempted(old, 0);
    CHECK_EQ(bench.picked(), shorter.index);
    CHECK_EQ(bench.workers[0].slice_ns, 20'000u);
    CHECK(!bench.policy->preempt(bench.workers[0], bench.now + 20'000));  // its own timer does it
    CHECK(bench.policy->preempt(bench.workers[0], bench.now + 40'000));   // or does not
    CHECK_EQ(bench.picked(), longer.index);
    CHECK_EQ(bench.picked(), old.index);
}

void per_worker() {
    Bench bench("fifo-per-worker", {{"steal", "0"}}, 3);
    for (int i = 0; i < 6; ++i) bench.add();  // two each
    CHECK_EQ(bench.picked(1), 1u);
    CHECK_EQ(bench.picked(1), 4u);
    CHECK_EQ(bench.picked(1), teal::no_object);
    CHECK(!bench.policy->work_conserving());
    bench.done(bench.requests[1], 1);
    bench.add();  // to 1, which has one
    CHECK_EQ(bench.picked(1), 6u);
    bench.policy->on_worker_gone(bench.workers[0], bench.now);  // 0 and 3 move, each at its age
    teal::set_or_throw(*bench.policy, "steal", "1");
    std::vector<std::uint32_t> rest;
    for (std::uint32_t index = bench.picked(2); index != teal::no_object; index = bench.picked(2)) rest.push_back(index);
    CHECK_EQ(rest.size(), 4u);
}

void composite() {
    Bench bench("composite", {{"by", "priority"}, {"part.urgent", "fifo"}, {"part.a", "fair"}, {"rank.urgent", "1"}, {"a.weight.#1", "2"},
                              {"to.5", "urgent"}, {"else", "a"}, {"quantum", "10us"}}, 1);
    PolicyRequest& usual = bench.add();
    CHECK_EQ(bench.picked(), usual.index);
    PolicyRequest& other = bench.add();
    CHECK(!bench.policy->preempt(bench.workers[0], bench.now + 10'000));
    PolicyRequest& urgent = bench.add(0, 0, 0, 7);
    CHECK(bench.policy->preempt(bench.workers[0], bench.now + 10'000));
    CHECK_EQ(bench.picked(), urgent.index);
    other.priority = 5;  // moves to the other part
    PolicyRequest& last = bench.add();
    bench.policy->on_priority(other, 0, bench.now);
    CHECK_EQ(bench.picked(), other.index);
    CHECK_EQ(bench.picked(), last.index);
    for (PolicyRequest& request : bench.requests) bench.done(request, 100);

    Bench shares("composite", {{"part.a", "fifo"}, {"part.b", "fifo"}, {"share.b", "4"}, {"to.#1", "b"}}, 1);
    for (int i = 0; i < 200; ++i) shares.add(static_cast<std::uint16_t>(i % 2)).expected_ns = 1000;
    int second = 0;
    for (int i = 0; i < 100; ++i) {
        PolicyRequest* request = shares.pick();
        second += request->model;
        shares.done(*request, 1000);
    }
    CHECK_EQ(second, 80);
    // What it says of itself sets up another one alike.
    const auto again = teal::make_policy("composite");
    for (const auto& [name, value] : bench.policy->settings()) teal::set_or_throw(*again, name, value);
    CHECK(again->settings() == bench.policy->settings());
}

template <class Call>
void refuses(Call call) {
    bool thrown = false;
    try {
        call();
    } catch (const teal::Error& error) {
        thrown = error.code() == teal::Code::invalid_argument;
    }
    CHECK(thrown);
}

void settings() {
    CHECK_EQ(teal::parse_time("t", "1.5s"), 1'500'000'000u);
    CHECK_EQ(teal::parse_time("t", "300ns"), 300u);
    CHECK_EQ(teal::show_time(teal::parse_time("t", "50us")), std::string("50us"));
    CHECK_EQ(teal::show_weight(teal::parse_weight("w", "0.25")), std::string("0.25"));
    for (const char* bad : {"", "5", "-5us", "us", "1e3us", "5 us", "5.us", "99999999999999999999s", "25000000s", "1.5"})
        refuses([bad] { teal::parse_time("t", bad); });
    for (const char* bad : {"", "0", "-1", "x", "1000001", "0.0001"}) refuses([bad] { teal::parse_weight("w", bad); });
    for (const std::string_view name : teal::policy_names()) {
        const auto policy = teal::make_policy(name);
        CHECK_EQ(policy->name(), name);
        refuses([&policy] { teal::set_or_throw(*policy, "quantums", "1"); });
        refuses([&policy] { teal::set_or_throw(*policy, "slo.", "1us"); });
        const auto other = teal::make_policy(name);
        for (const auto& [setting, value] : policy->settings()) teal::set_or_throw(*other, setting, value);
        CHECK(other->settings() == policy->settings());
    }
    CHECK(teal::make_policy("lifo") == nullptr);
    const auto composite = teal::make_policy("composite");
    for (const auto& [name, value] : {std::pair{"part.to", "fifo"}, {"part.a.b", "fifo"}, {"part.x", "none"}, {"else", "x"}, {"x.quantum", "1us"}, {"by", "x"}})
        refuses([&composite, name = name, value = value] { teal::set_or_throw(*composite, name, value); });
}

// Any order of events: sim/play.hpp looks at what is decided.
void any_order(std::string_view name, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto policy = teal::make_policy(name);
    if (name == "composite") {
        teal::set_or_throw(*policy, "by", "priority");
        for (const auto& [setting, value] : {std::pair{"part.a", "shinjuku"}, {"part.b", "fair"}, {"part.c", "fifo-per-worker"}, {"to.2", "b"}, {"to.4", "c"}})
            teal::set_or_throw(*policy, setting, value);
    }
    std::vector<std::uint32_t> script(800);
    for (std::uint32_t& word : script) word = static_cast<std::uint32_t>(random());
    const teal::Played played = teal::play(*policy, script, 4);
    if (!CHECK_EQ(played.violation, std::string())) std::fprintf(stderr, "    %s, seed %llu\n", std::string(name).c_str(), static_cast<unsigned long long>(seed));
    CHECK(played.decisions.size() > 100);
}

}  // namespace

int main() {
    fifo();
    bound();
    edf();
    fair();
    shinjuku();
    per_worker();
    composite();
    settings();
    for (const std::string_view name : teal::policy_names())
        for (std::uint64_t seed = 1; seed <= 200; ++seed) any_order(name, seed);
    return teal::check::summary();
}
