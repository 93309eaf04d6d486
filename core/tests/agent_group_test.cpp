// Groups in the agent's loop, driven by hand: all members begin or none does, refusals come back with their reasons, and nobody waits for a member
// whose worker has gone. Then how the loop waits and rings: settings, counts, calls of the host.
#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "agents/agent.hpp"
#include "base/error.hpp"
#include "tests/check.hpp"
#include "tests/fifo_policy.hpp"
#include "tests/made_seat.hpp"

namespace {

using namespace teal;
using teal::tests::Fifo;

// So many at a time, or nothing.
class Gangs final : public Fifo {
public:
    explicit Gangs(unsigned size) : size_(size) {}
    bool groups() const override { return true; }
    unsigned pick_group(std::span<const PolicyWorker* const> idle, std::span<GroupMember> out, std::uint64_t) override {
        ++asked;
        if (idle.size() < size_ || queue.size() < size_) return 0;
        for (unsigned i = 0; i < size_; ++i) {
            out[i].worker = idle[twice ? 0 : i]->index;
            out[i].decision.request = queue.front();
            queue.pop_front();
        }
        return size_;
    }
    Decision pick(PolicyWorker&, std::uint64_t) override { return {}; }
    void on_latch_failure(PolicyRequest& request, Outcome outcome, std::uint64_t now) override {
        refusals.push_back(outcome);
        Fifo::on_latch_failure(request, outcome, now);
    }
    unsigned asked = 0;
    bool twice = false;
    std::vector<Outcome> refusals;

private:
    unsigned size_;
};

struct Table {
    std::uint64_t now = 1'000'000;
    std::shared_ptr<HostSeat> host;
    std::shared_ptr<Fifo> policy;
    std::unique_ptr<AgentLoop> loop;
    Claim claims[max_group];

    explicit Table(std::shared_ptr<Fifo> with, std::uint32_t workers = 4) : policy(std::move(with)) {
        host = tests::made_seat(now, workers);
        loop = std::make_unique<AgentLoop>(AgentSeat::beside(*host), policy);
        step();
    }
    unsigned step() {
        host->flush(true);
        return loop->step(now += 10);
    }
    void ready(std::uint32_t index) {
        RequestFacts facts;
        facts.index = index;
        facts.generation = 1;
        facts.arrived = now;
        host->ready(facts);
    }
    unsigned claim(std::uint32_t worker) { return host->claim(worker, claims); }
    void commit(unsigned count) {
        for (unsigned i = 0; i < count; ++i) host->commit(claims[i], Outcome::complete);
    }
};

void test_all_begin() {
    const auto policy = std::make_shared<Gangs>(3);
    Table t(policy);
    t.ready(0);
    t.ready(1);
    t.step();
    CHECK_EQ(t.loop->figures().groups, 0);  // too few
    t.ready(2);
    t.ready(3);
    t.step();
    CHECK_EQ(t.loop->figures().groups, 1);
    CHECK_EQ(t.loop->figures().decisions, 3);
    unsigned count = 0;
    std::uint32_t first = 0;
    for (; first < 4 && count == 0; ++first) count = t.claim(first);  // whoever of them comes first takes all
    CHECK_EQ(count, 3);
    t.commit(count);
    CHECK_EQ(t.host->numbers().groups.load(), 1);
    for (std::uint32_t i = 0; i < 3; ++i) t.host->ended(i, true, false);
    for (std::uint32_t i = 4; i < 6; ++i) t.ready(i);
    t.step();
    CHECK_EQ(t.loop->figures().groups, 2);  // with the one that was left over
    CHECK(policy->refusals.empty());
    CHECK_EQ(t.loop->figures().errors, 0);
}

// One of them has ended meanwhile: nothing begins, and the policy hears who was refused and who was poisoned.
void test_one_cannot() {
    const auto policy = std::make_shared<Gangs>(3);
    Table t(policy);
    for (std::uint32_t i = 0; i < 3; ++i) t.ready(i);
    t.step();
    t.host->ended(1, false, false);
    unsigned count = 0;
    for (std::uint32_t i = 0; i < 4; ++i) count += t.claim(i);
    CHECK_EQ(count, 0);
    CHECK_EQ(t.host->numbers().groups_refused.load(), 1);
    t.step();
    CHECK_EQ(policy->departed, 1);
    CHECK_EQ(policy->queue.size(), 2);  // the others are the policy's again
    CHECK_EQ(std::count(policy->refusals.begin(), policy->refusals.end(), Outcome::poisoned), 2);
    t.ready(5);
    t.step();
    CHECK_EQ(t.loop->figures().groups, 2);
    CHECK_EQ(t.loop->figures().errors, 0);
}

// The worker of one is gone before it began: the others do not wait for it.
void test_a_worker_goes() {
    const auto policy = std::make_shared<Gangs>(3);
    Table t(policy, 3);
    for (std::uint32_t i = 0; i < 3; ++i) t.ready(i);
    t.step();
    t.host->worker_gone(1);
    CHECK_EQ(t.claim(0), 0);  // not all are there
    t.step();
    CHECK_EQ(policy->queue.size(), 3);
    CHECK_EQ(std::count(policy->refusals.begin(), policy->refusals.end(), Outcome::poisoned), 2);
    CHECK_EQ(std::count(policy->refusals.begin(), policy->refusals.end(), Outcome::worker_offline), 1);
    CHECK_EQ(t.claim(0) + t.claim(2), 0);  // what was taken back is passed by
    t.host->worker_came(1);
    t.step();
    t.step();
    CHECK_EQ(t.loop->figures().groups, 2);
    CHECK_EQ(t.claim(2), 3);
    t.commit(3);
}

// Members that wait in vain come back when their time is over.
void test_its_time_is_over() {
    const auto policy = std::make_shared<Gangs>(2);
    Table t(policy, 2);
    t.ready(0);
    t.ready(1);
    t.step();
    t.now += 30'000'000;
    CHECK_EQ(t.claim(0), 0);
    t.step();
    CHECK_EQ(std::count(policy->refusals.begin(), policy->refusals.end(), Outcome::timeout), 2);
}

void test_nonsense_is_an_error() {
    const auto policy = std::make_shared<Gangs>(2);
    policy->twice = true;  // the same worker
    Table t(policy);
    t.ready(0);
    t.ready(1);
    t.step();
    CHECK_EQ(t.loop->figures().groups, 0);
    CHECK_EQ(t.loop->figures().errors, 1);
}

// ---- waiting and ringing -------------------------------------------------------------------------------------------------------

void test_rings_are_counted() {
    Table t(std::make_shared<Fifo>(), 2);
    t.host->set_asleep(0, true);
    t.ready(0);
    t.ready(1);
    t.step();
    const AgentSeat::Rings& rings = t.loop->seat().rings();
    CHECK_EQ(rings.rung, 1);    // the other one is awake
    CHECK_EQ(rings.spared, 1);
    CHECK_EQ(rings.batches, 1);
    CHECK_EQ(rings.batched, 2);
}

void test_rings_wait_for_others() {
    Table t(std::make_shared<Fifo>(), 2);
    CHECK(t.loop->set("coalesce", "1ms"));
    t.host->set_asleep(0, true);
    t.host->set_asleep(1, true);
    t.ready(0);
    t.step();
    CHECK_EQ(t.loop->seat().rings().rung, 0);  // messages came: more may
    t.ready(1);
    t.step();
    CHECK_EQ(t.loop->seat().rings().rung, 0);
    t.step();                                  // none came: nothing to wait for
    CHECK_EQ(t.loop->seat().rings().rung, 2);
    CHECK_EQ(t.loop->seat().rings().batches, 1);
    t.host->set_asleep(0, true);
    t.host->set_asleep(1, true);
    CHECK(t.loop->set("coalesce", "off"));
    t.ready(2);
    t.ready(3);
    t.step();
    CHECK_EQ(t.loop->seat().rings().batches, 1);  // a ring each
}

void test_settings() {
    Table t(std::make_shared<Fifo>(), 1);
    const auto said = [&](const char* name) {
        for (const auto& [known, value] : t.loop->settings())
            if (known == name) return value;
        return std::string();
    };
    CHECK_EQ(said("poll"), "adaptive");
    CHECK_EQ(said("coalesce"), "step");
    for (const char* value : {"spin", "sleep", "30us", "adaptive"}) {
        CHECK(t.loop->set("poll", value));
        CHECK_EQ(said("poll"), value);
    }
    for (const char* value : {"off", "20us", "step"}) {
        CHECK(t.loop->set("coalesce", value));
        CHECK_EQ(said("coalesce"), value);
    }
    CHECK(!t.loop->set("colour", "blue"));
    for (const auto& [name, value] : {std::pair("poll", "often"), std::pair("coalesce", "2ms")}) {
        try {
            t.loop->set(name, value);
            CHECK(false);
        } catch (const Error& error) {
            CHECK_EQ(error.code(), Code::invalid_argument);
        }
    }
    CHECK_EQ(said("coalesce"), "step");
}

// A loop that sleeps comes back to its caller when the host calls, and not before.
void test_called() {
    Table t(std::make_shared<Fifo>(), 1);
    CHECK(t.loop->set("poll", "sleep"));
    std::thread runner([&] { t.loop->run(UINT64_MAX); });
    while (!t.host->agent_asleep()) cpu_relax();
    t.host->call();
    runner.join();
    CHECK(t.loop->figures().sleeps >= 1);
}

}  // namespace

int main() {
    test_all_begin();
    test_one_cannot();
    test_a_worker_goes();
    test_its_time_is_over();
    test_nonsense_is_an_error();
    test_rings_are_counted();
    test_rings_wait_for_others();
    test_settings();
    test_called();
    return teal::check::summary();
}
