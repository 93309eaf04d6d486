// The agent's loop around a policy, driven by hand and by a host that is made up: on a virtual clock, with everything that may happen to
// requests and workers, and with messages that are lost.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "agents/agent.hpp"
#include "tests/check.hpp"
#include "tests/fifo_policy.hpp"
#include "tests/made_seat.hpp"

namespace {

using namespace teal;
using teal::tests::Fifo;

struct Table {
    std::uint64_t now = 1'000'000;
    std::shared_ptr<HostSeat> host;
    std::shared_ptr<Fifo> policy = std::make_shared<Fifo>();
    std::unique_ptr<AgentLoop> loop;
    Claim claims[max_group];

    explicit Table(std::uint32_t workers = 2, std::uint32_t ring = 64, std::uint32_t records = 32) {
        host = tests::made_seat(now, workers, ring, records);
        loop = std::make_unique<AgentLoop>(AgentSeat::beside(*host), policy);
        step();
    }
    unsigned step() {
        host->flush(true);
        return loop->step(now += 10);
    }
    RequestFacts facts(std::uint32_t index, std::uint32_t generation = 1) const {
        RequestFacts facts;
        facts.index = index;
        facts.generation = generation;
        facts.arrived = now;
        return facts;
    }
    // What the worker runs next, or no_object.
    std::uint32_t look(std::uint32_t worker) {
        const unsigned count = host->claim(worker, claims);
        if (count == 0) {
            host->found_nothing(worker, false);
            return no_object;
        }
        for (unsigned i = 0; i < count; ++i) host->commit(claims[i], Outcome::complete);
        return claims[0].decided.object;
    }
};

void test_stages_ahead() {
    Table t;
    for (std::uint32_t i = 0; i < 6; ++i) t.host->ready(t.facts(i));
    t.step();
    CHECK_EQ(t.loop->figures().decisions, 4);  // one to run and one behind it, for each of two workers
    CHECK_EQ(t.policy->queue.size(), 2);
    const std::uint32_t first = t.look(0);
    CHECK(first != no_object);
    t.host->ended(first, true, false);
    const std::uint32_t second = t.look(0);  // there already
    CHECK(second != no_object && second != first);
    t.step();
    CHECK_EQ(t.loop->figures().decisions, 5);
    CHECK_EQ(t.policy->done, 1);
    t.policy->ahead = 0;
    t.host->ended(second, true, false);
    t.step();
    CHECK_EQ(t.policy->done, 2);
    CHECK_EQ(t.loop->figures().decisions, 5);  // nothing behind what runs any more
}

// A policy that never asks is not asked, and what it gives without a slice runs undisturbed; unless it looks for itself.
void test_never_preempts() {
    for (const bool may_preempt : {true, false}) {
        Table t(3);
        t.policy->may_preempt = may_preempt;
        const std::uint16_t kinds[] = {message_preemptible, static_cast<std::uint16_t>(message_preemptible | message_yields), 0};
        for (std::uint32_t i = 0; i < 3; ++i) {
            RequestFacts facts = t.facts(i);
            facts.flags = kinds[i];
            t.host->ready(facts);
        }
        t.step();
        std::uint8_t flags[3] = {};
        for (std::uint32_t worker = 0; worker < 3; ++worker) {
            const std::uint32_t index = t.look(worker);
            if (CHECK(index < 3)) flags[index] = t.claims[0].decided.run_flags;
        }
        t.step();
        CHECK_EQ(flags[0], may_preempt ? 0 : run_may_not_preempt);
        CHECK_EQ(flags[1], 0);
        CHECK_EQ(flags[2], may_preempt ? 0 : run_may_not_preempt);
        CHECK_EQ(t.policy->wondered > 0, may_preempt);
    }
}

// What waits behind another one goes to a worker that has nothing to do.
void test_moves() {
    Table t;
    t.host->ready(t.facts(0));
    t.step();
    const std::uint32_t on = t.look(0) == 0 ? 0 : 1;
    if (on == 1) CHECK_EQ(t.look(1), 0);
    t.host->ready(t.facts(1));
    t.step();
    t.host->ready(t.facts(2));  // both run something: it waits behind
    CHECK_EQ(t.look(1 - on), 1);
    t.step();
    CHECK_EQ(t.loop->figures().decisions, 3);
    const std::uint32_t behind = t.host->staged(0) ? 0 : 1;
    const std::uint32_t other = 1 - behind;
    t.host->ended(other == on ? 0 : 1, true, false);
    CHECK_EQ(t.look(other), no_object);
    t.step();
    CHECK_EQ(t.loop->figures().moved, 1);
    CHECK_EQ(t.look(other), 2);
    CHECK_EQ(t.loop->figures().errors, 0);
}

// A rescan that comes upon a word while it is written reads it later: what is told next may be its new priority only.
void test_rescan_over_a_writer() {
    Table t(1);
    t.host->ready(t.facts(0));
    Message m;
    std::shared_ptr<AgentSeat> other = AgentSeat::beside(*t.host);  // one that came later, and missed what was told
    auto policy = std::make_shared<Fifo>();
    AgentLoop loop(other, policy);
    std::atomic<std::uint32_t>& count = t.host->map().request_word(0).count;
    count.fetch_or(1);
    loop.step(t.now += 10);
    CHECK_EQ(policy->queue.size() + loop.figures().decisions, 0);
    count.fetch_add(1);
    t.host->priority(0, 3);
    t.host->flush(true);
    loop.step(t.now += 10);
    CHECK_EQ(policy->queue.size() + loop.figures().decisions, 1);
    while (other->poll(m)) {}
}

void test_refused_and_back() {
    Table t(1);
    t.host->ready(t.facts(0));
    t.step();
    t.host->blocked(0);  // the decision is on the desk by now
    CHECK_EQ(t.look(0), no_object);
    t.step();
    CHECK_EQ(t.policy->queue.size(), 0);
    CHECK_EQ(t.loop->figures().refused[static_cast<std::size_t>(Outcome::target_stale)], 1);
    t.host->ready(t.facts(0));
    t.step();
    CHECK_EQ(t.look(0), 0);
    t.host->left(t.facts(0), MessageType::request_yield, 0, 5);
    t.step();
    CHECK_EQ(t.look(0), 0);
    t.host->ended(0, false, false);
    t.step();
    CHECK_EQ(t.policy->departed, 1);
    CHECK_EQ(t.loop->figures().errors, 0);
}

void test_worker_goes() {
    Table t(2);
    t.policy->ahead = 2;
    for (std::uint32_t i = 0; i < 4; ++i) t.host->ready(t.facts(i));
    t.step();
    const std::uint32_t running = t.look(0);
    // It dies over it: this one runs anew, what was staged for it goes elsewhere.
    RequestFacts again = t.facts(running, 2);
    t.host->ready(again);
    t.host->worker_gone(0);
    t.step();
    std::vector<bool> ran(4, false);
    for (int turn = 0; turn < 4; ++turn) {
        const std::uint32_t index = t.look(1);
        if (!CHECK(index < 4 && !ran[index])) return;
        ran[index] = true;
        t.host->ended(index, true, false);
        t.step();
    }
    t.host->worker_came(0);
    t.host->ready(t.facts(9));
    t.step();
    CHECK(t.host->staged(0) || t.host->staged(1));
    CHECK_EQ(t.loop->figures().errors, 0);
}

// Not online before it is its turn; a timer; asks to leave; news from other threads.
void test_life() {
    struct Timed final : Fifo {
        std::uint64_t due = 0;
        int timers = 0, ticks = 0, wakeups = 0;
        std::uint64_t timer_ns(std::uint64_t) override { return due; }
        void on_timer(std::uint64_t) override { ++timers; due = 0; }
        void on_tick(std::uint64_t) override { ++ticks; }
        void on_wakeup(std::uint64_t) override { ++wakeups; }
        bool preempt(const PolicyWorker& worker, std::uint64_t now) override { return now - worker.since_ns > 100; }
    };
    Table t(1);
    auto policy = std::make_shared<Timed>();
    t.host->deactivate(Outcome::no_agent);
    t.loop = std::make_unique<AgentLoop>(AgentSeat::beside(*t.host), policy);
    RequestFacts facts = t.facts(3);
    facts.flags = message_preemptible;
    t.host->ready(facts);
    t.step();
    CHECK_EQ(t.loop->figures().decisions, 0);
    CHECK_EQ(t.host->agent_state(), AgentState::ready);
    t.host->activate();
    t.step();
    CHECK_EQ(t.host->agent_state(), AgentState::online);
    t.now += 200;
    t.step();
    CHECK_EQ(t.loop->figures().preempts, 0);  // its worker has not come to it: it has had no time yet
    CHECK_EQ(t.look(0), 3);
    CHECK_EQ(t.host->preempt_asked(0), 0);
    t.now += 200;
    t.step();
    CHECK_EQ(t.host->preempt_asked(0), 3 | std::uint64_t{1} << 32);
    CHECK_EQ(t.loop->figures().preempts, 1);
    t.step();
    CHECK_EQ(t.loop->figures().preempts, 1);  // asked once
    policy->due = t.now + 15;
    t.step();
    CHECK_EQ(policy->timers, 0);
    t.step();
    CHECK_EQ(policy->timers, 1);
    t.host->tick();
    t.host->wakeup(true);
    t.step();
    CHECK_EQ(policy->ticks, 1);
    CHECK_EQ(policy->wakeups, 1);
    CHECK_EQ(t.host->settings_seen(), 1);
    CHECK_EQ(t.host->beat(), t.now);
    CHECK(t.loop->dump().find("worker 0: runs 3") != std::string::npos);
    // It stops when it is told, asleep or not, and takes back what it has staged.
    t.host->ready(t.facts(4));
    t.step();
    CHECK(t.host->staged(0));
    std::atomic<int> applied{0};
    std::thread runner([&] { t.loop->run(); });
    t.loop->post([&](AgentLoop&) { applied = 1; });
    while (applied == 0) cpu_relax();
    t.loop->stop();
    runner.join();
    CHECK_EQ(t.host->agent_state(), AgentState::leaving);
    t.host->ended(3, true, false);
    CHECK_EQ(t.look(0), no_object);
}

// A host that is made up: requests come, run, block, leave and go at random, workers die and come back, messages get lost in a ring of
// few slots. Every request that comes ends once, and runs on one worker at a time.
class Chaos {
public:
    Chaos(std::uint64_t seed, std::uint32_t workers, std::uint32_t ring) : random_(seed), t_(workers, ring, 64), there_(workers, true), running_(workers, no_object), requests_(64) {}

    void play(unsigned rounds) {
        for (unsigned i = 0; i < rounds; ++i) {
            happen();
            if (chance(3)) t_.step();
        }
        // Nothing new: all that is there comes to its end, while the agent is awake.
        for (unsigned turn = 0; turn < 4000 && left() > 0; ++turn) {
            for (std::uint32_t i = 0; i < requests_.size(); ++i) unblock(i);
            for (std::uint32_t w = 0; w < there_.size(); ++w) {
                if (!there_[w]) come(w);
                work(w);
            }
            t_.step();
        }
        CHECK_EQ(left(), 0);
        t_.step();
        t_.step();
        CHECK_EQ(t_.policy->queue.size(), 0);
        CHECK_EQ(t_.policy->news, t_.policy->done + t_.policy->departed);
        CHECK_EQ(t_.loop->figures().errors, 0);
        for (std::size_t i = 0; i < outcome_count; ++i)
            if (!is_expected(static_cast<Outcome>(i))) CHECK_EQ(t_.host->numbers().outcomes[i].load(), 0);
    }
    [[nodiscard]] std::uint64_t ended() const { return ended_; }
    [[nodiscard]] std::uint64_t rescans() const { return t_.loop->figures().rescans; }

private:
    enum class State { none, waits, blocked, runs };
    struct Request {
        State state = State::none;
        std::uint32_t generation = 0;
        std::uint32_t worker = no_object;  // runs there, or is bound to it
    };

    bool chance(unsigned one_in) { return random_() % one_in == 0; }
    std::uint32_t any(std::size_t count) { return static_cast<std::uint32_t>(random_() % count); }
    [[nodiscard]] std::size_t left() const {
        return static_cast<std::size_t>(std::count_if(requests_.begin(), requests_.end(), [](const Request& r) { return r.state != State::none; }));
    }
    RequestFacts facts(std::uint32_t index) {
        RequestFacts facts = t_.facts(index, requests_[index].generation);
        facts.worker = requests_[index].worker;
        return facts;
    }
    void end(std::uint32_t index, bool answered) {
        Request& r = requests_[index];
        if (r.state == State::runs) running_[r.worker] = no_object;
        t_.host->ended(index, answered, false);
        ++r.generation;
        r.state = State::none;
        r.worker = no_object;
        ++ended_;
    }
    void unblock(std::uint32_t index) {
        if (requests_[index].state != State::blocked) return;
        requests_[index].state = State::waits;
        t_.host->ready(facts(index));
    }
    void come(std::uint32_t worker) {
        there_[worker] = true;
        t_.host->worker_came(worker);
    }
    void die(std::uint32_t worker) {
        for (std::uint32_t i = 0; i < requests_.size(); ++i) {
            Request& r = requests_[i];
            if (r.worker != worker) continue;
            if (chance(2)) {  // it runs anew
                r.worker = no_object;
                r.state = State::waits;
                ++r.generation;
                t_.host->ready(facts(i));
            } else {
                end(i, true);
            }
        }
        running_[worker] = no_object;
        there_[worker] = false;
        t_.host->worker_gone(worker);
    }
    // One turn of a worker.
    void work(std::uint32_t worker) {
        if (!there_[worker]) return;
        if (const std::uint32_t index = running_[worker]; index != no_object) {
            if (chance(4)) {
                Request& r = requests_[index];
                running_[worker] = no_object;
                r.state = State::waits;
                t_.host->left(facts(index), chance(2) ? MessageType::request_yield : MessageType::request_preempt, worker, 10);
            } else {
                t_.host->ran(index, t_.now - 5, t_.now);
                end(index, true);
            }
        }
        const unsigned count = t_.host->claim(worker, t_.claims);
        if (count == 0) {
            t_.host->found_nothing(worker, true);
            return;
        }
        const Claim claim = t_.claims[0];
        Request& r = requests_[claim.decided.object];
        if (!CHECK(r.state == State::waits) || !CHECK_EQ(r.generation, claim.decided.generation)) std::abort();
        CHECK(r.worker == no_object || r.worker == worker);
        if (chance(12)) {  // gone this instant: what only the pool can see
            end(claim.decided.object, false);
            t_.host->commit(claim, Outcome::not_found);
        } else if (r.worker == no_object && chance(12)) {
            r.state = State::blocked;
            t_.host->blocked(claim.decided.object);
            t_.host->commit(claim, Outcome::not_runnable);
        } else {
            r.state = State::runs;
            r.worker = worker;
            running_[worker] = claim.decided.object;
            t_.host->commit(claim, Outcome::complete);
        }
    }
    void restate() {
        t_.host->begin_restating();
        for (std::uint32_t i = 0; i < requests_.size(); ++i) {
            const State state = requests_[i].state;
            if (state == State::waits) t_.host->restate(facts(i), request_is_runnable);
            else if (state == State::runs) t_.host->restate(facts(i), request_is_runnable | request_on_worker);
            else t_.host->restate_free(i);
        }
        for (std::uint32_t w = 0; w < there_.size(); ++w) {
            const std::uint32_t flags = there_[w] ? worker_online | worker_of_seat : 0U;
            t_.host->restate_worker(w, flags, running_[w], running_[w] != no_object ? requests_[running_[w]].generation : 0);
        }
        t_.host->end_restating();
    }
    void happen() {
        const std::uint32_t index = any(requests_.size());
        Request& r = requests_[index];
        switch (any(14)) {
            case 0:
            case 1:
            case 2:
            case 3:
                if (r.state != State::none) return;
                r.state = State::waits;
                t_.host->ready(facts(index));
                return;
            case 4:
                if (r.state != State::none && chance(3)) end(index, false);
                return;
            case 5:
                if (r.state != State::waits || r.worker != no_object) return;
                r.state = State::blocked;
                t_.host->blocked(index);
                return;
            case 6: unblock(index); return;
            case 7:
                if (r.state != State::none) t_.host->priority(index, static_cast<std::int32_t>(any(5)));
                return;
            case 8:
                if (chance(10)) die(any(there_.size()));
                return;
            case 9:
                for (std::uint32_t w = 0; w < there_.size(); ++w)
                    if (!there_[w]) come(w);
                return;
            case 10:
                if (chance(30)) restate();
                return;
            default: work(any(there_.size()));
        }
    }

    std::mt19937_64 random_;
    Table t_;
    std::vector<bool> there_;
    std::vector<std::uint32_t> running_;
    std::vector<Request> requests_;
    std::uint64_t ended_ = 0;
};

void test_chaos(std::uint64_t seeds) {
    std::uint64_t ended = 0;
    std::uint64_t rescans = 0;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        const std::uint64_t before = check::failed.load();
        const std::uint32_t rings[] = {4, 16, 256};
        Chaos chaos(seed, static_cast<std::uint32_t>(1 + seed % 5), rings[seed % 3]);
        chaos.play(2000);
        ended += chaos.ended();
        rescans += chaos.rescans();
        if (check::failed.load() != before) {
            std::fprintf(stderr, "    seed %llu\n", static_cast<unsigned long long>(seed));
            return;
        }
    }
    CHECK(ended > seeds * 100);
    CHECK(rescans > seeds);
}

// Thousands of workers, for a simulator: a step does not cost them all.
void test_many_workers() {
    Table t(2000, 1024, 4096);
    for (std::uint32_t round = 0; round < 4; ++round) {
        for (std::uint32_t i = 0; i < 500; ++i) t.host->ready(t.facts(i, round + 1));
        while (t.step() > 0) {}  // its batches grow
        std::uint32_t ran = 0;
        for (std::uint32_t w = 0; w < 2000; ++w)
            if (t.host->staged(w)) {
                const std::uint32_t index = t.look(w);
                CHECK(index != no_object);
                t.host->ended(index, true, false);
                ++ran;
            }
        CHECK_EQ(ran, 500);
        t.step();
    }
    CHECK_EQ(t.policy->done, 2000);
}

}  // namespace

int main(int argc, char** argv) {
    test_stages_ahead();
    test_never_preempts();
    test_moves();
    test_rescan_over_a_writer();
    test_refused_and_back();
    test_worker_goes();
    test_life();
    test_many_workers();
    test_chaos(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 300);
    return teal::check::summary();
}
