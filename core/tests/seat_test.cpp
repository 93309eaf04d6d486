// Both sides of a seat, by hand: layouts, messages, the order of the checks, withdrawing, groups, overflow, deaths, sleeping.
#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "agents/agent_seat.hpp"
#include "agents/host_seat.hpp"
#include "base/error.hpp"
#include "tests/check.hpp"
#include "tests/made_seat.hpp"

namespace {

using namespace teal;

// A seat with both sides in one process, and a clock that stands still unless told.
struct Table {
    std::uint64_t now = 1'000'000;
    std::shared_ptr<HostSeat> host;
    std::shared_ptr<AgentSeat> agent;
    Claim claims[max_group];

    explicit Table(std::uint32_t workers = 4, std::uint32_t ring = 64, std::uint32_t records = 32) {
        host = tests::made_seat(now, workers, ring, records);
        agent = AgentSeat::beside(*host);
        agent->lost();
    }
    RequestFacts facts(std::uint32_t index, std::uint32_t generation = 7) const {
        RequestFacts facts;
        facts.index = index;
        facts.generation = generation;
        facts.model = 3;
        facts.session = 2;
        facts.priority = 5;
        facts.arrived = now - 10;
        return facts;
    }
    // What the agent would decide about it, on what it can see now.
    Decided decided(std::uint32_t index) const {
        Decided d{};
        RequestWord word{};
        CHECK(agent->request(index, word));
        d.object = index;
        d.generation = word.generation;
        d.tseq = word.tseq;
        d.aseq = agent->aseq();
        d.priority = word.priority;
        return d;
    }
    std::uint32_t stage(std::uint32_t worker, const Decided& d) const {
        const AgentSeat::Staged staged = agent->stage(worker, d);
        CHECK(staged.ok);
        return staged.serial;
    }
    // The worker looks: how many claims, all of them committed.
    unsigned look(std::uint32_t worker) {
        const unsigned count = host->claim(worker, claims);
        for (unsigned i = 0; i < count; ++i) host->commit(claims[i], Outcome::complete);
        host->flush();
        return count;
    }
    std::vector<Message> messages() const {
        std::vector<Message> all;
        Message m;
        while (agent->poll(m)) all.push_back(m);
        return all;
    }
    Outcome outcome(std::uint32_t worker, std::uint32_t serial) const {
        const std::uint64_t word = agent->state(worker, serial);
        CHECK_EQ(serial_of(word), serial);
        CHECK_EQ(transaction_state_of(word), TransactionState::committed);
        return outcome_of(word);
    }
};

MessageType type_of(const Message& m) { return static_cast<MessageType>(m.type); }

template <class Body>
Code code_of(Body&& body) {
    try {
        body();
    } catch (const Error& error) {
        return error.code();
    }
    return Code::internal_error;
}

// What a refusal for the version says.
template <class Body>
std::string mismatch(Body&& body) {
    try {
        body();
    } catch (const Error& error) {
        CHECK_EQ(error.code(), Code::version_mismatch);
        return error.what();
    }
    return "it was taken";
}

void test_layout() {
    const SeatLayout small = seat_layout(1, 1, 1);
    CHECK_EQ(small.view_size % page_bytes, 0);
    CHECK(small.ring < small.request_words && small.request_words < small.worker_words && small.worker_words < small.seat_workers);
    CHECK(small.seat_workers < small.times && small.times < small.numbers && small.numbers + sizeof(SeatNumbers) <= small.view_size);
    const SeatLayout large = seat_layout(most_seat_workers, most_seat_records, most_seat_ring);
    CHECK(large.view_size > (1U << 27) && large.desk_size > std::uint64_t{most_seat_workers} * sizeof(WorkerDesk));
    CHECK_EQ(code_of([] { (void)seat_layout(0, 1, 1); }), Code::invalid_argument);
    CHECK_EQ(code_of([] { (void)seat_layout(1, most_seat_records + 1, 1); }), Code::invalid_argument);
    CHECK_EQ(code_of([] { (void)seat_layout(1, 1, 48); }), Code::invalid_argument);
}

void test_attach() {
    SeatSpec spec;
    spec.workers = 2;
    spec.records = 8;
    spec.incarnation = 9;
    const auto host = HostSeat::create(spec);
    const int view = host->agent_view_fd();
    // Read-only, however one tries.
    CHECK_EQ(::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, view, 0), MAP_FAILED);
    CHECK_EQ(::write(view, "x", 1), -1);
    if (::geteuid() != 0) CHECK_EQ(::open(("/proc/self/fd/" + std::to_string(view)).c_str(), O_RDWR), -1);
    const auto agent = AgentSeat::attach(::dup(view), ::dup(host->desk_fd()));
    CHECK_EQ(agent->incarnation(), 9);
    CHECK_EQ(agent->workers(), 2);
    CHECK_EQ(agent->records(), 8);
    CHECK(agent->lost());  // it has read nothing so far
    CHECK(!agent->lost());
    CHECK_EQ(host->agent_pid(), static_cast<std::uint32_t>(::getpid()));
    const auto worker = HostSeat::attach(::dup(host->view_fd()), ::dup(host->desk_fd()));
    CHECK_EQ(worker->incarnation(), 9);
    // The wrong way round, and versions that differ.
    CHECK_EQ(code_of([&] { AgentSeat::attach(::dup(host->desk_fd()), ::dup(view)); }), Code::invalid_argument);
    CHECK_EQ(code_of([&] { HostSeat::attach(::dup(host->desk_fd()), ::dup(host->view_fd())); }), Code::invalid_argument);
    for (const std::uint32_t other : {agent_protocol - 1U, agent_protocol + 1U}) {  // both are named, whoever is behind
        host->map().view_header().version = other;
        const std::string theirs = "speaks version " + std::to_string(other), ours = std::to_string(agent_protocol) + "; run the same Teal on both sides";
        for (const bool agents : {true, false}) {
            const std::string said = mismatch([&] {
                if (agents) AgentSeat::attach(::dup(view), ::dup(host->desk_fd()));
                else HostSeat::attach(::dup(host->view_fd()), ::dup(host->desk_fd()));
            });
            CHECK(said.find(theirs) != std::string::npos);
            CHECK(said.ends_with(ours));
        }
    }
    host->map().view_header().version = agent_protocol;
    host->map().view_header().records = 1'000'000;  // more than there is room for
    CHECK_EQ(code_of([&] { AgentSeat::attach(::dup(view), ::dup(host->desk_fd())); }), Code::invalid_argument);
    ::close(view);
}

void test_one_request() {
    Table t;
    t.now += 100;
    RequestFacts facts = t.facts(4);
    facts.flags = message_preemptible;
    facts.deadline_ns = 0x1234567890;
    t.host->ready(facts);
    t.host->flush();
    auto told = t.messages();
    if (!CHECK_EQ(told.size(), 1)) return;
    CHECK_EQ(type_of(told[0]), MessageType::request_new);
    CHECK_EQ(told[0].object, 4);
    CHECK_EQ(told[0].generation, 7);
    CHECK_EQ(told[0].tseq, 1);
    CHECK_EQ(told[0].flags, message_preemptible);
    CHECK_EQ(told[0].request.priority, 5);
    CHECK_EQ(std::uint64_t{told[0].request.deadline_high} << 32 | told[0].request.deadline_low, 0x1234567890);
    CHECK_EQ(std::uint64_t{told[0].when_high} << 32 | told[0].when_low, t.now);
    CHECK_EQ(told[0].aseq, t.agent->aseq());
    CHECK(!t.host->staged(1));
    Decided d = t.decided(4);
    d.slice_us = 77;
    t.now += 50;
    const std::uint32_t serial = t.stage(1, d);
    CHECK(t.host->staged(1));
    CHECK(!t.host->staged(0));
    t.now += 30;
    CHECK_EQ(t.look(1), 1);
    CHECK_EQ(t.claims[0].decided.object, 4);
    CHECK_EQ(t.claims[0].decided.slice_us, 77);
    CHECK_EQ(t.outcome(1, serial), Outcome::complete);
    CHECK(t.messages().empty());  // a decision that is carried out needs no message
    RequestWord word{};
    CHECK(t.agent->request(4, word));
    CHECK_EQ(word.flags, request_in_use | request_is_runnable | request_on_worker | request_preemptible);
    CHECK_EQ(word.worker, 1);
    WorkerWord worker{};
    CHECK(t.agent->worker(1, worker));
    CHECK_EQ(worker.running, 4);
    CHECK_EQ(worker.flags & worker_idle, 0);
    CHECK_EQ(worker.staged_hits, 1);
    CHECK_EQ(worker.next_serial, serial + 1);
    t.host->ran(4, t.now + 10, t.now + 510);
    t.now += 600;
    t.host->ended(4, true, false);
    t.host->found_nothing(1, false);
    t.host->found_nothing(1, false);  // said once
    t.host->flush();
    told = t.messages();
    if (!CHECK_EQ(told.size(), 2)) return;
    CHECK_EQ(type_of(told[0]), MessageType::request_done);
    CHECK_EQ(told[0].worker, 1);
    CHECK_EQ(told[0].tseq, 2);
    CHECK_EQ(told[0].run.run_ns_low, 500);
    CHECK_EQ(type_of(told[1]), MessageType::worker_available);
    CHECK_EQ(told[1].object, 1);
    CHECK_EQ(told[1].aseq, told[0].aseq + 1);
    CHECK(t.agent->request(4, word));
    CHECK_EQ(word.flags, 0);
    const SeatNumbers& numbers = t.host->numbers();
    CHECK_EQ(numbers.outcomes[0].load(), 1);
    CHECK_EQ(numbers.age.buckets[Histogram::bucket_of(30)].load(), 1);
    const std::uint64_t stages[seat_stages] = {10, 50, 30, 10, 500, 90};
    for (std::size_t i = 0; i < seat_stages; ++i) CHECK_EQ(numbers.stages[i].buckets[Histogram::bucket_of(stages[i])].load(), 1);
}

std::uint64_t total(const Histogram& histogram) {
    std::uint64_t sum = 0;
    for (const auto& bucket : histogram.buckets) sum += bucket.load();
    return sum;
}

// It leaves its worker once: each wait for a decision counts, what came before all of them once, and its start not at all.
void test_stages_of_one_that_leaves() {
    Table t;
    t.now += 100;
    RequestFacts facts = t.facts(4);
    facts.flags = message_preemptible;
    t.host->ready(facts);
    t.host->flush();
    t.now += 50;
    t.stage(1, t.decided(4));
    t.now += 30;
    CHECK_EQ(t.look(1), 1);
    t.now += 200;
    facts.worker = 1;
    t.host->left(facts, MessageType::request_preempt, 1, 200);
    t.host->count_asked();
    t.host->count_in_vain(3);
    t.host->flush();
    Decided again = t.decided(4);
    again.tseq = 2;
    t.now += 40;
    t.stage(1, again);
    t.now += 20;
    CHECK_EQ(t.look(1), 1);
    t.now += 100;
    t.host->ran(4, t.now - 300, t.now);
    t.now += 60;
    t.host->ended(4, true, false);
    const SeatNumbers& numbers = t.host->numbers();
    const auto counted = [&](SeatStage stage, std::uint64_t ns) { return numbers.stages[static_cast<std::size_t>(stage)].buckets[Histogram::bucket_of(ns)].load(); };
    CHECK_EQ(counted(SeatStage::message, 10), 1);
    CHECK(counted(SeatStage::decision, 50) == 1 && counted(SeatStage::decision, 40) == 1);
    CHECK(counted(SeatStage::commit, 30) == 1 && counted(SeatStage::commit, 20) == 1);
    CHECK(counted(SeatStage::run, 300) == 1 && counted(SeatStage::done, 60) == 1);
    const std::uint64_t counts[seat_stages] = {1, 2, 2, 0, 1, 1};
    for (std::size_t i = 0; i < seat_stages; ++i) CHECK_EQ(total(numbers.stages[i]), counts[i]);
    CHECK(numbers.preempted.load() == 1 && numbers.yielded.load() == 0 && numbers.asked.load() == 1 && numbers.asks_in_vain.load() == 3);
}

// Each refusal, and that the one that comes first in the order is the one that is given.
void test_refusals() {
    Table t;
    t.host->ready(t.facts(0));
    t.host->ready(t.facts(1));
    t.host->blocked(1);
    RequestFacts bound = t.facts(2);
    bound.worker = 3;
    t.host->left(bound, MessageType::request_preempt, 3, 0);
    t.host->ready(t.facts(5));
    t.stage(2, t.decided(5));
    CHECK_EQ(t.look(2), 1);
    t.host->flush();
    t.messages();
    const Decided good = t.decided(0);
    const auto refused = [&](std::uint32_t worker, const Decided& d, Outcome why) {
        const std::uint32_t serial = t.stage(worker, d);
        const std::uint64_t before = t.host->numbers().outcomes[static_cast<std::size_t>(why)].load();
        CHECK_EQ(t.look(worker), 0);
        CHECK_EQ(t.outcome(worker, serial), why);
        CHECK_EQ(t.host->numbers().outcomes[static_cast<std::size_t>(why)].load(), before + 1);
        const auto told = t.messages();
        if (!CHECK_EQ(told.size(), 1)) return;
        CHECK_EQ(type_of(told[0]), MessageType::latch_failure);
        CHECK_EQ(told[0].object, d.object);
        CHECK_EQ(told[0].worker, worker);
        CHECK_EQ(told[0].latch.serial, serial);
        CHECK_EQ(told[0].latch.why, static_cast<std::uint8_t>(why));
    };
    Decided d = good;
    // stage() writes the version itself: a wrong one is written over it, as a liar would.
    {
        const std::uint32_t serial = t.stage(0, d);
        Transaction& slot = t.agent->map().worker_desk(0).slots[serial % stage_depth];
        slot.version = agent_protocol + 1;
        slot.commit_flags = 0xff;
        CHECK_EQ(t.look(0), 0);
        CHECK_EQ(t.outcome(0, serial), Outcome::unsupported_version);
        t.messages();
    }
    d = good;
    d.commit_flags = 0x80;
    d.object = 99;
    refused(0, d, Outcome::invalid_flags);
    d = good;
    d.run_flags = 0x40;
    refused(0, d, Outcome::invalid_flags);
    d = good;
    d.group = 1;  // without the flag
    refused(0, d, Outcome::invalid_flags);
    d = good;
    d.object = t.host->records();
    refused(0, d, Outcome::invalid_target);
    d.object = no_object;
    refused(0, d, Outcome::invalid_target);
    d.run_flags = run_local_default;
    d.object = 0;
    refused(0, d, Outcome::invalid_flags);
    d = good;
    ++d.generation;
    ++d.tseq;
    refused(0, d, Outcome::not_found);
    d = good;
    d.object = 9;  // never told of
    refused(0, d, Outcome::not_found);
    d = t.decided(1);
    --d.tseq;
    refused(0, d, Outcome::target_stale);
    refused(0, t.decided(1), Outcome::not_runnable);
    refused(0, t.decided(5), Outcome::already_running);
    refused(0, t.decided(2), Outcome::not_permitted);
    d = t.decided(0);
    d.commit_flags = commit_idle_only;
    refused(2, d, Outcome::worker_unavailable);
    d = good;
    d.commit_flags = commit_check_agent;
    --d.aseq;
    refused(0, d, Outcome::agent_stale);
    d = good;
    d.expires_ns = t.now - 1;
    refused(0, d, Outcome::timeout);
    for (const Outcome outcome : {Outcome::invalid_flags, Outcome::invalid_target, Outcome::not_permitted, Outcome::unsupported_version}) CHECK(!is_expected(outcome));
    for (const Outcome outcome : {Outcome::target_stale, Outcome::not_found, Outcome::already_running, Outcome::timeout, Outcome::poisoned}) CHECK(is_expected(outcome));
    // After all this the request runs where it is decided to, in time, on the state of things.
    d = t.decided(0);
    d.commit_flags = commit_check_agent | commit_idle_only;
    d.aseq = t.agent->aseq();
    d.expires_ns = t.now;
    t.stage(0, d);
    CHECK_EQ(t.look(0), 1);
    // Said again, with a doubt: no refusal, and nothing to run.
    d = t.decided(0);
    d.commit_flags = commit_idempotent;
    const std::uint32_t again = t.stage(0, d);
    CHECK_EQ(t.look(0), 0);
    CHECK_EQ(t.outcome(0, again), Outcome::complete);
    CHECK(t.messages().empty());
    // Elsewhere that is a refusal all the same.
    refused(1, d, Outcome::already_running);
    // What is bound to a worker runs there.
    t.stage(3, t.decided(2));
    CHECK_EQ(t.look(3), 1);
    // Off its place, a worker takes nothing; what is staged is void, and what is staged later is refused.
    t.host->ready(t.facts(6));
    t.host->flush();
    t.messages();
    const std::uint32_t staged = t.stage(1, t.decided(6));
    t.host->worker_gone(1);
    CHECK_EQ(t.outcome(1, staged), Outcome::worker_offline);
    t.host->flush();
    CHECK_EQ(type_of(t.messages().at(0)), MessageType::worker_gone);
    refused(1, t.decided(6), Outcome::worker_offline);
}

void test_withdraw_and_room() {
    Table t;
    for (std::uint32_t i = 0; i < 8; ++i) t.host->ready(t.facts(i));
    std::vector<std::uint32_t> serials;
    for (std::uint32_t i = 0; i < stage_depth; ++i) serials.push_back(t.stage(0, t.decided(i)));
    CHECK_EQ(t.agent->room(0), 0);
    CHECK(!t.agent->stage(0, t.decided(5)).ok);
    CHECK(t.agent->withdraw(0, serials[1]));
    CHECK(!t.agent->withdraw(0, serials[1]));
    CHECK_EQ(t.agent->room(0), 0);  // it lies there until its worker has looked
    CHECK_EQ(t.look(0), 1);
    CHECK_EQ(t.claims[0].decided.object, 0);
    CHECK(!t.agent->withdraw(0, serials[0]));
    CHECK_EQ(t.agent->room(0), 1);
    t.host->ended(0, true, false);
    CHECK_EQ(t.look(0), 1);  // the withdrawn one is passed by
    CHECK_EQ(t.claims[0].decided.object, 2);
    CHECK(t.agent->room(0) >= 1);
    CHECK_EQ(t.agent->settled(0), serials[3]);
    CHECK_EQ(t.host->numbers().outcomes[static_cast<std::size_t>(Outcome::aborted)].load(), 1);
    // A seat that is put off takes back what is ready.
    t.host->deactivate(Outcome::no_agent);
    CHECK_EQ(t.outcome(0, serials[3]), Outcome::no_agent);
    const std::uint32_t late = t.stage(0, t.decided(3));
    CHECK_EQ(t.look(0), 0);
    CHECK_EQ(t.outcome(0, late), Outcome::no_agent);
}

// A worker and the agent want the same slot, many times: one has it.
void test_withdraw_race() {
    Table t(1);
    constexpr int rounds = 20'000;
    std::atomic<int> started{0};
    std::atomic<int> finished{0};
    std::atomic<int> ran{0};
    t.host->ready(t.facts(0));
    std::thread worker([&] {
        Claim claims[max_group];
        for (int i = 1; i <= rounds; ++i) {
            while (started.load(std::memory_order_acquire) < i) cpu_relax();
            for (;;) {
                if (t.host->claim(0, claims) == 1) {
                    t.host->commit(claims[0], Outcome::complete);
                    ran.fetch_add(1);
                    t.host->ended(0, true, false);
                    t.host->ready(t.facts(0, claims[0].decided.generation + 1));
                    break;
                }
                // Withdrawn: claim() has passed it by.
                if (t.agent->settled(0) == static_cast<std::uint32_t>(i) + 1) break;
                cpu_relax();
            }
            finished.store(i, std::memory_order_release);
        }
    });
    int withdrawn = 0;
    for (int i = 1; i <= rounds; ++i) {
        const std::uint32_t serial = t.stage(0, t.decided(0));
        started.store(i, std::memory_order_release);
        for (int spin = 0; spin < i % 64; ++spin) cpu_relax();
        withdrawn += t.agent->withdraw(0, serial) ? 1 : 0;
        while (finished.load(std::memory_order_acquire) < i) cpu_relax();
        t.messages();
    }
    worker.join();
    CHECK_EQ(ran.load() + withdrawn, rounds);
    CHECK(ran.load() > 0);
}

Decided of_group(Decided d, std::uint32_t group, std::uint32_t members) {
    d.commit_flags |= commit_group;
    d.group = group;
    d.members = members;
    return d;
}

void test_groups() {
    Table t;
    for (std::uint32_t i = 0; i < 8; ++i) t.host->ready(t.facts(i));
    // All or none: not before all are there.
    t.stage(0, of_group(t.decided(0), 1, 3));
    t.stage(1, of_group(t.decided(1), 1, 3));
    CHECK_EQ(t.look(0), 0);
    t.stage(2, of_group(t.decided(2), 1, 3));
    CHECK_EQ(t.look(1), 3);
    CHECK_EQ(t.claims[0].worker, 1);  // the one that looked comes first
    CHECK_EQ(t.claims[0].decided.object, 1);
    CHECK_EQ(t.host->numbers().groups.load(), 1);
    for (std::uint32_t i = 0; i < 3; ++i) t.host->ended(i, true, false);
    t.host->flush();
    t.messages();
    // One is stale: the others are poisoned, and all can be staged anew.
    Decided stale = t.decided(4);
    --stale.tseq;
    const std::uint32_t a = t.stage(0, of_group(t.decided(3), 2, 2));
    const std::uint32_t b = t.stage(1, of_group(stale, 2, 2));
    CHECK_EQ(t.look(0), 0);
    CHECK_EQ(t.outcome(0, a), Outcome::poisoned);
    CHECK_EQ(t.outcome(1, b), Outcome::target_stale);
    CHECK_EQ(t.messages().size(), 2);
    // A worker that is busy makes it fail.
    t.stage(3, t.decided(5));
    CHECK_EQ(t.look(3), 1);
    const std::uint32_t c = t.stage(3, of_group(t.decided(4), 3, 2));
    const std::uint32_t d = t.stage(0, of_group(t.decided(3), 3, 2));
    CHECK_EQ(t.look(0), 0);
    CHECK_EQ(t.outcome(3, c), Outcome::worker_unavailable);
    CHECK_EQ(t.outcome(0, d), Outcome::poisoned);
    // The same request twice, another number of members, none.
    const std::uint32_t e = t.stage(0, of_group(t.decided(3), 4, 2));
    const std::uint32_t f = t.stage(1, of_group(t.decided(3), 4, 2));
    CHECK_EQ(t.look(0), 0);
    CHECK_EQ(t.outcome(1, f), Outcome::invalid_target);
    CHECK_EQ(t.outcome(0, e), Outcome::poisoned);
    const std::uint32_t g = t.stage(0, of_group(t.decided(3), 5, 2));
    const std::uint32_t h = t.stage(1, of_group(t.decided(4), 5, 3));
    CHECK_EQ(t.look(0), 0);
    CHECK_EQ(t.outcome(1, h), Outcome::invalid_flags);
    CHECK_EQ(t.outcome(0, g), Outcome::poisoned);
    const std::uint32_t k = t.stage(0, of_group(t.decided(3), 6, 0));
    CHECK_EQ(t.look(0), 0);
    CHECK_EQ(t.outcome(0, k), Outcome::invalid_flags);
    // One that never becomes complete does not stand in the way for ever.
    Decided waits = of_group(t.decided(3), 7, 4);
    waits.expires_ns = t.now + 5;
    const std::uint32_t m = t.stage(0, waits);
    CHECK_EQ(t.look(0), 0);
    t.now += 6;
    CHECK_EQ(t.look(0), 0);
    CHECK_EQ(t.outcome(0, m), Outcome::timeout);
    CHECK_EQ(t.host->numbers().groups_refused.load(), 5);
    t.stage(0, t.decided(3));
    CHECK_EQ(t.look(0), 1);
}

void test_overflow_and_words() {
    Table t(2, 4);
    t.messages();
    for (std::uint32_t i = 0; i < 10; ++i) t.host->ready(t.facts(i));
    t.host->flush();
    CHECK_EQ(t.messages().size(), 4);
    CHECK(t.agent->lost());
    CHECK(!t.agent->lost());
    for (std::uint32_t i = 0; i < 10; ++i) {
        RequestWord word{};
        CHECK(t.agent->request(i, word));
        CHECK_EQ(word.flags, request_in_use | request_is_runnable);
    }
    CHECK_EQ(t.host->numbers().lost.load(), 6);
    t.host->ready(t.facts(11));
    t.host->flush();
    CHECK_EQ(t.messages().size(), 1);  // there is room again
    // A tail that makes no sense costs the agent messages, and nobody else anything.
    for (const std::uint32_t tail : {0U, 1U << 31, UINT32_MAX, 12345U}) {
        t.host->map().desk_header().tail.store(tail);
        for (std::uint32_t i = 0; i < 20; ++i) t.host->priority(3, static_cast<std::int32_t>(i));
        t.host->flush();
    }
    RequestWord word{};
    CHECK(t.agent->request(3, word));
    CHECK_EQ(word.priority, 19);
}

// Whoever had the role has died over a claim: the next one makes it all good again.
void test_death_over_a_claim() {
    Table t;
    t.host->ready(t.facts(0));
    t.host->ready(t.facts(1));
    const std::uint32_t serial = t.stage(0, t.decided(0));
    t.stage(0, t.decided(1));
    CHECK_EQ(t.host->claim(0, t.claims), 1);  // … and no more
    StatusWord& torn = t.host->map().request_word(1);
    torn.count.store(torn.count.load() | 1);  // in the middle of writing
    RequestWord word{};
    CHECK(!t.agent->request(1, word));
    CHECK(t.agent->lost() || true);
    t.host->begin_restating();
    t.host->restate(t.facts(0), request_is_runnable);
    t.host->restate(t.facts(1), request_is_runnable);
    for (std::uint32_t i = 2; i < 32; ++i) t.host->restate_free(i);
    for (std::uint32_t i = 0; i < 4; ++i) t.host->restate_worker(i, worker_online | worker_of_seat, no_object, 0);
    t.host->end_restating();
    t.host->flush();
    CHECK_EQ(t.outcome(0, serial), Outcome::aborted);
    CHECK(t.agent->lost());
    CHECK(t.agent->request(1, word));
    CHECK_EQ(word.flags, request_in_use | request_is_runnable);
    CHECK_EQ(t.look(0), 0);  // what was decided before is stale
    t.stage(0, t.decided(0));
    CHECK_EQ(t.look(0), 1);
}

// Slots in states that no agent makes.
void test_forged_words() {
    Table t;
    t.host->ready(t.facts(0));
    std::uint32_t serial = 1;
    const auto scribble = [&](std::uint64_t word) { t.host->map().worker_desk(0).slots[serial % stage_depth].word.store(word); };
    scribble(transaction_word(serial, TransactionState::claimed));
    CHECK_EQ(t.look(0), 0);
    CHECK_EQ(t.host->numbers().forged.load(), 1);
    ++serial;
    scribble(transaction_word(serial, static_cast<TransactionState>(200)));
    CHECK_EQ(t.look(0), 0);
    CHECK_EQ(t.host->numbers().forged.load(), 2);
    ++serial;
    scribble(transaction_word(serial + 1, TransactionState::ready));  // not the one that comes next
    CHECK_EQ(t.look(0), 0);
    CHECK(!t.host->staged(0));
    scribble(UINT64_MAX);
    CHECK_EQ(t.look(0), 0);
    CHECK_EQ(t.host->numbers().forged.load(), 2);
}

// Serials and sequence numbers go round.
void test_wrap() {
    Table t;
    t.host->map().seat_worker(0).next_serial.store(UINT32_MAX - 2);
    t.host->map().view_header().aseq.store(UINT32_MAX - 3);
    t.agent = AgentSeat::beside(*t.host);
    for (std::uint32_t i = 0; i < 12; ++i) {
        t.host->ready(t.facts(0, i));
        t.host->flush();
        CHECK_EQ(t.messages().size(), 1);
        t.stage(0, t.decided(0));
        CHECK_EQ(t.look(0), 1);
        t.host->ended(0, true, false);
        t.host->flush();
        CHECK_EQ(t.messages().size(), 1);
    }
    CHECK_EQ(t.agent->settled(0), 9);
}

// Nobody sleeps through what it waits for: each side sleeps before each step of the other.
void test_wake_ups() {
    Table t(1);
    t.agent = AgentSeat::attach(t.host->agent_view_fd(), ::dup(t.host->desk_fd()));
    constexpr std::uint32_t rounds = 3000;
    const auto far = [] { return static_cast<std::uint64_t>(monotonic_ns()) + 20'000'000'000; };
    std::thread agent([&] {
        for (std::uint32_t i = 0; i < rounds; ++i) {
            Message m;
            for (;;) {
                bool found = false;
                while (!found && t.agent->poll(m)) found = type_of(m) == MessageType::request_new;
                if (found) break;
                t.agent->lost();
                t.agent->sleep(far());
            }
            t.stage(0, t.decided(m.object));
            t.agent->ring();
        }
    });
    std::uint32_t taken = 0;
    for (std::uint32_t i = 0; i < rounds; ++i) {
        t.host->ready(t.facts(0, i));
        t.host->flush();
        for (;;) {
            const std::uint32_t bell = t.host->bell(0)->load(std::memory_order_seq_cst);
            t.host->set_asleep(0, true);
            if (!t.host->staged(0)) futex_wait(t.host->bell(0), bell, far());
            t.host->set_asleep(0, false);
            if (t.look(0) == 1) break;
        }
        ++taken;
        t.host->ended(0, true, false);
        t.host->flush();
    }
    agent.join();
    CHECK_EQ(taken, rounds);
    // wake() ends a sleep, also one that has not begun yet.
    std::atomic<bool> told{false};
    std::thread other([&] {
        told.store(true, std::memory_order_seq_cst);
        t.agent->wake();
    });
    t.messages();
    t.agent->sleep(far(), [&] { return told.load(std::memory_order_seq_cst); });
    other.join();
}

// A writer that died between a message and the head: the agent may be reading that message, so the next one takes another slot.
void test_death_over_a_message() {
    Table t;
    t.messages();
    std::atomic<std::uint32_t>& head = t.host->map().view_header().head;
    t.host->ready(t.facts(3));
    head.fetch_sub(1);  // it did not come to this
    t.host->begin_restating();
    for (std::uint32_t i = 0; i < 32; ++i) t.host->restate_free(i);
    t.host->end_restating();
    const std::vector<Message> all = t.messages();
    CHECK_EQ(all.size(), 2);
    CHECK_EQ(all.front().type, static_cast<std::uint16_t>(MessageType::request_new));
    CHECK_EQ(all.back().type, static_cast<std::uint16_t>(MessageType::agent_rescan));
    const std::uint32_t before = head.load();
    t.host->begin_restating();  // no death: nothing is left out
    CHECK_EQ(head.load(), before);
    t.host->end_restating();
    CHECK_EQ(t.messages().size(), 1);
}

}  // namespace

int main() {
    test_layout();
    test_attach();
    test_one_request();
    test_stages_of_one_that_leaves();
    test_refusals();
    test_withdraw_and_room();
    test_withdraw_race();
    test_groups();
    test_overflow_and_words();
    test_death_over_a_claim();
    test_death_over_a_message();
    test_forged_words();
    test_wrap();
    test_wake_ups();
    return teal::check::summary();
}
