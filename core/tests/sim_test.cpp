// Policies in the simulator: figures that queueing theory knows, equal runs for equal seeds, and thousands of short runs in which everything
// breaks, with one agent and with several. A run that goes wrong prints its policy and seed: `sim_test POLICY SEED [AGENTS]` plays it again.
#include "sim/sim.hpp"

#include <chrono>
#include <cstdlib>
#include <string>

#include "agents/policies/make.hpp"
#include "check.hpp"

namespace {

using teal::SimResult;
using teal::SimSpec;

teal::MakePolicy maker(std::string name) {
    return [name] {
        std::shared_ptr<teal::Policy> policy = teal::make_policy(name);
        if (name == "composite")
            for (const auto& [setting, value] : {std::pair{"by", "priority"}, {"part.a", "shinjuku"}, {"part.b", "fair"}, {"to.1", "b"}, {"rank.b", "1"}})
                teal::set_or_throw(*policy, setting, value);
        return policy;
    };
}

SimSpec bimodal(std::uint32_t workers, double load, std::uint64_t requests) {
    SimSpec spec;
    spec.workers = workers;
    spec.load.load = load;
    spec.load.requests = requests;
    spec.load.types.push_back({.name = "short", .share = 0.995, .mean_ns = 10'000});
    spec.load.types.push_back({.name = "long", .share = 0.005, .mean_ns = 1'000'000});
    return spec;
}

bool fine(const SimResult& result, std::string_view policy, std::uint64_t seed) {
    for (const std::string& violation : result.violations) std::fprintf(stderr, "%s, seed %llu: %s\n", std::string(policy).c_str(), static_cast<unsigned long long>(seed), violation.c_str());
    for (const std::string& breach : result.breaches) std::fprintf(stderr, "%s, seed %llu: %s\n", std::string(policy).c_str(), static_cast<unsigned long long>(seed), breach.c_str());
    if (!result.policy_error.empty()) std::fprintf(stderr, "    %s\n", result.policy_error.c_str());
    return CHECK(result.violations.empty() && result.breaches.empty());
}

// M/M/1 at load 0.5: a request is there for 1 / (rate of service - rate of arrivals) on the average.
void theory() {
    SimSpec spec;
    spec.workers = 1;
    spec.load.load = 0.5;
    spec.load.requests = 200'000;
    spec.load.types.push_back({.name = "one", .spread = teal::Spread::exponential, .mean_ns = 100'000});
    spec.link_ns = spec.agent_step_ns = spec.agent_event_ns = spec.worker_ns = 0;
    spec.records = 65'536;
    const SimResult result = simulate(spec, maker("fifo"));
    fine(result, "fifo", spec.seed);
    double sum = 0;
    for (const std::uint64_t ns : result.types[0].latency_ns) sum += static_cast<double>(ns);
    const double mean = sum / static_cast<double>(result.done);
    CHECK(mean > 190'000 && mean < 210'000);
    CHECK_EQ(result.done, 200'000u);
    const double busy = static_cast<double>(result.busy_ns) / static_cast<double>(result.virtual_ns);
    CHECK(busy > 0.49 && busy < 0.51);
}

void preemption_helps_the_short() {
    const SimSpec spec = bimodal(8, 0.75, 60'000);
    const SimResult fifo = simulate(spec, maker("fifo")), shinjuku = simulate(spec, maker("shinjuku"));
    fine(fifo, "fifo", spec.seed);
    fine(shinjuku, "shinjuku", spec.seed);
    CHECK(fifo.types[0].percentile(99.9) > 5 * shinjuku.types[0].percentile(99.9));
    CHECK(shinjuku.preempted > 1000);
    CHECK_EQ(fifo.preempted, 0u);
}

void equal_runs() {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        const SimResult first = simulate(teal::any_run(seed), maker("shinjuku")), second = simulate(teal::any_run(seed), maker("shinjuku"));
        CHECK_EQ(first.fingerprint, second.fingerprint);
        CHECK_EQ(first.events, second.events);
    }
}

void thousands_of_workers() {
    SimSpec spec = bimodal(10'000, 0.6, 100'000);
    spec.records = 65'536;
    spec.ring = 65'536;
    spec.agent_step_ns = 10;
    spec.agent_event_ns = 1;  // else one agent is too slow for these
    const SimResult result = simulate(spec, maker("fifo"));
    fine(result, "fifo", spec.seed);
    CHECK_EQ(result.done, 100'000u);
}

void everything_breaks(std::uint64_t seeds) {
    std::uint64_t fallbacks = 0, upgrades = 0, reruns = 0, cancelled = 0, rescans = 0, local = 0, refused = 0, yielded = 0;
    for (const std::string_view name : teal::policy_names()) {
        for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
            const SimResult result = simulate(teal::any_run(seed), maker(std::string(name)));
            fine(result, name, seed);
            fallbacks += result.fallbacks;
            upgrades += result.upgrades;
            reruns += result.reruns;
            cancelled += result.cancelled;
            rescans += result.rescans;
            local += result.local;
            refused += result.refused;
            yielded += result.yielded;
        }
    }
    for (const std::uint64_t met : {fallbacks, upgrades, reruns, cancelled, rescans, local, refused, yielded}) CHECK(met > seeds / 20);
    std::printf("fallbacks %llu, upgrades %llu, reruns %llu, cancelled %llu, rescans %llu, in the default order %llu, refused %llu, yielded %llu\n",
                static_cast<unsigned long long>(fallbacks), static_cast<unsigned long long>(upgrades), static_cast<unsigned long long>(reruns),
                static_cast<unsigned long long>(cancelled), static_cast<unsigned long long>(rescans), static_cast<unsigned long long>(local),
                static_cast<unsigned long long>(refused), static_cast<unsigned long long>(yielded));
}

// What is broken on purpose is found, and soon.
void bugs_are_found() {
    for (const teal::SimBug bug : {teal::SimBug::twice, teal::SimBug::ended, teal::SimBug::elsewhere, teal::SimBug::lost, teal::SimBug::unheard}) {
        std::uint64_t found = 0;
        for (std::uint64_t seed = 1; seed <= 100; ++seed) {
            SimSpec spec = teal::any_run(seed);
            spec.bug = bug;
            const SimResult result = simulate(spec, maker("shinjuku"));
            found += bug == teal::SimBug::unheard ? !result.breaches.empty() : !result.violations.empty();
        }
        CHECK(found >= 20);
        std::printf("bug %u: found in %llu of 100 runs\n", static_cast<unsigned>(bug), static_cast<unsigned long long>(found));
    }
}

// A pool that is dealt out: each agent dies, freezes, is upgraded and comes again by itself.
void several_agents(std::uint64_t seeds) {
    std::uint64_t fallbacks = 0, upgrades = 0, restarts = 0, reruns = 0, cancelled = 0, local = 0, taken_over = 0;
    for (const std::string_view name : teal::policy_names()) {
        for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
            const auto agents = static_cast<std::uint32_t>(2 + seed % 3);
            const SimResult result = simulate(teal::any_run(seed, agents), maker(std::string(name)));
            fine(result, std::string(name) + " of " + std::to_string(agents) + " agents", seed);
            fallbacks += result.fallbacks;
            upgrades += result.upgrades;
            restarts += result.restarts;
            reruns += result.reruns;
            cancelled += result.cancelled;
            local += result.local;
            taken_over += result.taken_over;
        }
    }
    for (const std::uint64_t met : {fallbacks, upgrades, restarts, reruns, cancelled, local, taken_over}) CHECK(met > seeds / 20);
    std::printf("fallbacks %llu, upgrades %llu, restarts %llu, reruns %llu, cancelled %llu, in the default order %llu, taken over %llu\n",
                static_cast<unsigned long long>(fallbacks), static_cast<unsigned long long>(upgrades), static_cast<unsigned long long>(restarts),
                static_cast<unsigned long long>(reruns), static_cast<unsigned long long>(cancelled), static_cast<unsigned long long>(local),
                static_cast<unsigned long long>(taken_over));
}

void bugs_of_dealing_are_found() {
    for (const teal::SimBug bug : {teal::SimBug::kept, teal::SimBug::both, teal::SimBug::neither, teal::SimBug::forgotten, teal::SimBug::unended}) {
        std::uint64_t found = 0;
        for (std::uint64_t seed = 1; seed <= 60; ++seed) {
            SimSpec spec = teal::any_run(seed, 3);
            spec.bug = bug;
            if (bug == teal::SimBug::unended) {  // one that is run for an agent that is gone, and leaves when that is back
                spec.load.types = {{.name = "long", .mean_ns = 8'000'000}};
                spec.quantum_ns = 6'000'000;
                spec.faults.agent_dies = 50;
            }
            found += simulate(spec, maker("shinjuku")).violations.empty() ? 0 : 1;
            spec.bug = teal::SimBug::none;
            if (seed <= 20) fine(simulate(spec, maker("shinjuku")), "shinjuku, and no bug", seed);
        }
        std::printf("    bug %u of dealing: %llu of 60 seeds\n", static_cast<unsigned>(bug), static_cast<unsigned long long>(found));
        CHECK(found > 0);
    }
}

// A policy that leaves every choice to the pool.
void a_policy_that_leaves_it_to_the_pool() {
    class Local final : public teal::Policy {
    public:
        void on_new(teal::PolicyRequest&, std::uint64_t) override {}
        void on_runnable(teal::PolicyRequest&, std::uint64_t) override {}
        void on_done(teal::PolicyRequest&, std::uint64_t) override {}
        void on_departed(teal::PolicyRequest&, std::uint64_t) override {}
        teal::Decision pick(teal::PolicyWorker&, std::uint64_t) override { return {.run_flags = teal::run_local_default}; }
        bool set(std::string_view, std::string_view) override { return false; }
        teal::PolicySettings settings() const override { return {}; }
        std::string_view name() const override { return "local"; }
    };
    const SimResult result = simulate(bimodal(4, 0.7, 2'000), [] { return std::make_shared<Local>(); });
    fine(result, "local", 1);
    CHECK_EQ(result.done, 2'000u);
    CHECK(result.local > 1'000);
}

}  // namespace

int main(int count, char** arguments) {
    const auto agents = static_cast<std::uint32_t>(count == 4 ? std::strtoul(arguments[3], nullptr, 10) : 1);
    if (count >= 3) {
        const SimResult result = simulate(teal::any_run(std::strtoull(arguments[2], nullptr, 10), agents), maker(arguments[1]));
        fine(result, arguments[1], std::strtoull(arguments[2], nullptr, 10));
        return teal::check::summary();
    }
    const auto timed = [](const char* what, auto call) {
        const auto start = std::chrono::steady_clock::now();
        call();
        std::printf("%s: %.2f s\n", what, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    };
    timed("theory", theory);
    timed("preemption", preemption_helps_the_short);
    timed("equal runs", equal_runs);
    timed("bugs", bugs_are_found);
    timed("the pool's own order", a_policy_that_leaves_it_to_the_pool);
    timed("ten thousand workers", thousands_of_workers);
    const char* const asked = std::getenv("TEAL_SIM_SEEDS");  // for each policy
    const std::uint64_t seeds = asked == nullptr ? 1000 : std::strtoull(asked, nullptr, 10);
    timed("everything breaks", [seeds] { everything_breaks(seeds); });
    timed("everything breaks, several agents", [seeds] { several_agents(seeds); });
    timed("bugs of dealing", bugs_of_dealing_are_found);
    return teal::check::summary();
}
