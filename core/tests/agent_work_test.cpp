// What a pool does anyway, under an agent: company, limits of a name, requests that wait for others, deadlines, groups, slices, asks to leave, the
// pool's own order where an agent leaves it to that, and workers without the agent's regions.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <unistd.h>
#include <vector>

#include "agents/agent_seat.hpp"
#include "host/words.hpp"
#include "kernel/preemptor.hpp"
#include "tests/gated_pool.hpp"

namespace {

using namespace teal;
using namespace teal::tests;

constexpr std::uint32_t spin_model = 4;

// The test is the agent: it reads what it is told and stages by hand.
struct ByHand : GatedPool {
    Client client;
    Sweeper::Seated seated;
    std::shared_ptr<AgentSeat> agent;
    std::shared_ptr<HostSeat> host;

    explicit ByHand(unsigned workers_wanted = 1) : client(open(32, 64)), seated(sweeper.attach_seat(0, 1024)) {
        agent = AgentSeat::attach(seated.agent_view_fd, ::dup(seated.desk_fd));
        host = sweeper.seat(0, seated.incarnation);
        for (unsigned i = 0; i < workers_wanted; ++i) add_worker();
        sweeper.activate_seat(0, seated.incarnation);
        CHECK(agent->lost());
        for (std::uint32_t i = 0; i < workers_wanted; ++i) until([&] { return online(i); });
        Message m;
        while (agent->poll(m)) {}
    }
    bool online(std::uint32_t worker) const {
        WorkerWord word{};
        return agent->worker(worker, word) && (word.flags & worker_idle) != 0;
    }
    // Waits for a message of that type, and passes all others by.
    Message expect(MessageType type) {
        Message m{};
        until([&] {
            while (agent->poll(m))
                if (static_cast<MessageType>(m.type) == type) return true;
            return false;
        });
        return m;
    }
    std::unique_ptr<ClientSlot> send(std::uint32_t model, std::int64_t value = 0, std::uint64_t deadline = 0) {
        auto slot = client.slot();
        input(*slot) = value;
        client.session->submit(*slot, model, 0, 0, deadline);
        return slot;
    }
    Decided decided(std::uint32_t object) const {
        RequestWord word{};
        CHECK(agent->request(object, word));
        Decided d{};
        d.object = object;
        d.generation = word.generation;
        d.tseq = word.tseq;
        d.priority = word.priority;
        return d;
    }
    std::uint32_t stage(std::uint32_t worker, const Decided& d) {
        AgentSeat::Staged staged{};
        until([&] {
            staged = agent->stage(worker, d);
            return staged.ok;
        });
        agent->ring();
        return staged.serial;
    }
    Outcome outcome(std::uint32_t worker, std::uint32_t serial) const {
        std::uint64_t word = 0;
        until([&] {
            word = agent->state(worker, serial);
            return serial_of(word) == serial && transaction_state_of(word) == TransactionState::committed;
        });
        return outcome_of(word);
    }
    void done(ClientSlot& slot) {
        client.session->wait(slot, 0, 0);
        CHECK_EQ(state_of(slot), State::done);
    }
    void end() {
        open_gate = true;
        sweeper.deactivate_seat(0, "over");
        check_all_free();
    }
};

void test_own_order() {
    ByHand p;
    auto gate = p.send(gate_model);
    p.stage(0, p.decided(p.expect(MessageType::request_new).object));
    until([&] { return p.in_gate.load() == 1; });
    std::vector<std::unique_ptr<ClientSlot>> slots;
    for (std::int64_t i = 0; i < 3; ++i) {
        slots.push_back(p.client.slot());
        input(*slots.back()) = i;
        p.client.session->submit(*slots.back(), log_model, 0, static_cast<std::int32_t>(i), 0);
    }
    Decided any{};
    any.object = no_object;
    any.run_flags = run_local_default;
    for (int i = 0; i < 3; ++i) p.stage(0, any);
    p.open_gate = true;
    for (auto& slot : slots) p.done(*slot);
    CHECK(p.log == (std::vector<std::int64_t>{2, 1, 0}));
    // Nothing there: no refusal that runs something, and none that waits.
    CHECK_EQ(p.outcome(0, p.stage(0, any)), Outcome::not_found);
    CHECK_EQ(p.host->numbers().local.load(), 3);
    p.end();
}

void test_deadline_and_cancel() {
    ByHand p;
    auto late = p.send(identity_model, 1, now_ns() + 2'000'000);
    const std::uint32_t record = p.expect(MessageType::request_new).object;
    p.sweeper.start();
    CHECK_EQ(p.expect(MessageType::request_departed).object, record);
    p.client.session->wait(*late, 0, 0);
    CHECK_EQ(state_of(*late), State::expired);
    auto given_up = p.send(identity_model, 2);
    const std::uint32_t other = p.expect(MessageType::request_new).object;
    CHECK(p.client.session->cancel(*given_up, State::cancelled, Reason::client_cancelled));
    const std::uint32_t serial = p.stage(0, p.decided(other));
    CHECK_EQ(p.outcome(0, serial), Outcome::not_found);
    const Message refused = p.expect(MessageType::latch_failure);
    CHECK_EQ(refused.latch.why, static_cast<std::uint8_t>(Outcome::not_found));
    p.end();
}

void test_limits_of_a_name() {
    ByHand p(2);
    p.sweeper.limit_running(gate_model, 1);
    auto one = p.send(gate_model);
    const std::uint32_t first = p.expect(MessageType::request_new).object;
    auto two = p.send(gate_model);
    const std::uint32_t second = p.expect(MessageType::request_new).object;
    p.stage(0, p.decided(first));
    until([&] { return p.in_gate.load() == 1; });
    CHECK_EQ(p.outcome(1, p.stage(1, p.decided(second))), Outcome::not_runnable);
    CHECK_EQ(p.expect(MessageType::request_blocked).object, second);
    p.open_gate = true;
    CHECK_EQ(p.expect(MessageType::request_runnable).object, second);
    p.stage(1, p.decided(second));
    p.done(*one);
    p.done(*two);
    p.end();
}

void test_company() {
    ByHand p;
    struct Rows final : Kernel {
        std::atomic<std::int64_t> most{0};
        std::unique_ptr<Binding> bind(const Run&, std::string&) override {
            struct One final : Binding {
                Rows* owner = nullptr;
                bool run(Run& r) noexcept override {
                    const TensorDesc& in = r.descriptor->inputs[0];
                    std::memcpy(r.address(r.descriptor->outputs[0]), r.address(in), in.nbytes);
                    owner->most = std::max(owner->most.load(), in.shape[0]);
                    return true;
                }
            };
            auto one = std::make_unique<One>();
            one->owner = this;
            return one;
        }
    };
    const auto rows = std::make_shared<Rows>();
    p.load(5, 1, rows, kernel_pure | kernel_idempotent | kernel_batches);
    p.sweeper.set_batching(8, 0);
    std::vector<std::unique_ptr<ClientSlot>> slots;
    std::vector<std::uint32_t> records;
    for (int i = 0; i < 4; ++i) {
        slots.push_back(p.client.session->make_slot({plan(Dtype::i64, {1, 2})}, {plan(Dtype::i64, {1, 2})}));
        p.client.session->submit(*slots.back(), 5, 0, 0, 0);
        records.push_back(p.expect(MessageType::request_new).object);
    }
    p.stage(0, p.decided(records[2]));
    for (int i = 0; i < 3; ++i) CHECK_EQ(p.expect(MessageType::request_blocked).flags & message_taken, message_taken);
    for (auto& slot : slots) p.done(*slot);
    for (int i = 0; i < 4; ++i) p.expect(MessageType::request_done);
    CHECK_EQ(rows->most.load(), 4);
    p.end();
}

void test_waits_for_an_event() {
    ByHand p;
    const auto event = p.client.session->make_event();
    auto slot = p.client.slot();
    p.client.session->submit(*slot, identity_model, 0, 0, 0, {event});
    until([&] { return p.sweeper.session_in_flight(p.client.index) == 1; });
    Message m;
    while (p.agent->poll(m)) CHECK(static_cast<MessageType>(m.type) != MessageType::request_new);  // nothing to decide about yet
    CHECK(p.client.session->signal(*event, State::done));
    p.stage(0, p.decided(p.expect(MessageType::request_new).object));
    p.done(*slot);
    p.end();
}

// Members of a group begin together, also on workers that sleep; one that cannot leaves all where they were.
void test_groups() {
    ByHand p(3);
    const auto group = [&](std::uint32_t number, std::vector<std::uint32_t> records) {
        std::vector<std::uint32_t> serials;
        for (std::uint32_t i = 0; i < records.size(); ++i) {
            Decided d = p.decided(records[i]);
            d.commit_flags = commit_group;
            d.group = number;
            d.members = static_cast<std::uint32_t>(records.size());
            serials.push_back(p.stage(i, d));
        }
        return serials;
    };
    std::vector<std::unique_ptr<ClientSlot>> slots;
    for (int i = 0; i < 3; ++i) slots.push_back(p.client.slot());
    for (std::uint32_t round = 1; round <= 50; ++round) {
        std::vector<std::uint32_t> records;
        for (auto& slot : slots) {
            p.client.session->submit(*slot, identity_model, 0, 0, 0);
            records.push_back(p.expect(MessageType::request_new).object);
        }
        for (std::uint32_t i = 0; i < 3; ++i) until([&] { return p.online(i); });
        const auto serials = group(round, records);
        for (std::uint32_t i = 0; i < 3; ++i) CHECK_EQ(p.outcome(i, serials[i]), Outcome::complete);
        for (auto& slot : slots) p.done(*slot);
        for (int i = 0; i < 3; ++i) p.expect(MessageType::request_done);
    }
    CHECK_EQ(p.host->numbers().groups.load(), 50);
    // A name that may run once at a time, twice in a group.
    p.sweeper.limit_running(identity_model, 1);
    auto a = p.send(identity_model);
    const std::uint32_t first = p.expect(MessageType::request_new).object;
    auto b = p.send(identity_model);
    const std::uint32_t second = p.expect(MessageType::request_new).object;
    for (std::uint32_t i = 0; i < 2; ++i) until([&] { return p.online(i); });
    const auto serials = group(99, {first, second});
    for (std::uint32_t i = 0; i < 2; ++i) CHECK_EQ(p.outcome(i, serials[i]), Outcome::not_runnable);
    p.stage(0, p.decided(first));
    p.done(*a);
    p.expect(MessageType::request_done);  // before that its name still runs
    p.stage(1, p.decided(second));
    p.done(*b);
    p.end();
}

bool can_preempt() {
    Preemptor one;
    std::string why;
    return one.open(why);
}

// A slice that is over, with another one waiting; an ask without a slice. Both go on on their worker, and end right.
void test_leaves_and_goes_on() {
    if (!can_preempt()) return;
    ByHand p(2);
    p.load(spin_model, "spin", kernel_pure | kernel_idempotent | kernel_preemptible);
    auto gate = p.send(gate_model);  // worker 1 has its hands full
    p.stage(1, p.decided(p.expect(MessageType::request_new).object));
    until([&] { return p.in_gate.load() == 1; });
    for (const bool asked : {false, true}) {
        auto spin = p.send(spin_model, 30'000);
        const Message told = p.expect(MessageType::request_new);
        CHECK(told.flags == message_preemptible);
        Decided d = p.decided(told.object);
        d.slice_us = asked ? 0 : 50;
        p.stage(0, d);
        auto other = p.send(identity_model, 7);
        p.sweeper.start();  // it sees the ring while both workers are busy
        const std::uint32_t waits = p.expect(MessageType::request_new).object;
        p.stage(0, p.decided(waits));
        if (asked) {
            RequestWord word{};
            until([&] { return p.agent->request(told.object, word) && (word.flags & request_on_worker) != 0; });
            p.agent->ask_preempt(0, told.object, told.generation);
        }
        const Message left = p.expect(MessageType::request_preempt);
        CHECK_EQ(left.object, told.object);
        CHECK_EQ(left.worker, 0);
        p.done(*other);
        CHECK(state_of(*spin) != State::done);
        p.sweeper.stop();
        // Elsewhere it cannot go on.
        p.stage(0, p.decided(told.object));
        p.done(*spin);
    }
    p.end();
}

// What cannot be left runs to its end, and who asked finds that in its numbers.
void test_asks_refused() {
    ByHand p;
    const SeatNumbers& numbers = p.host->numbers();
    auto slot = p.send(gate_model);
    const Message told = p.expect(MessageType::request_new);
    CHECK_EQ(told.flags & message_preemptible, 0);
    p.stage(0, p.decided(told.object));
    until([&] { return p.in_gate.load() == 1; });
    p.agent->ask_preempt(0, told.object, told.generation);
    p.open_gate = true;
    p.done(*slot);
    until([&] { return numbers.asks_refused.load() == 1; });
    CHECK_EQ(numbers.asks_in_vain.load(), 0);
    CHECK_EQ(numbers.asked.load(), 0);
    // The same word again names what does not run: nobody is counted twice.
    auto next = p.send(identity_model, 7);
    const Message second = p.expect(MessageType::request_new);
    p.agent->ask_preempt(0, told.object, told.generation);
    p.stage(0, p.decided(second.object));
    p.done(*next);
    CHECK_EQ(numbers.asks_refused.load(), 1);
    p.end();
}

// What has left goes on without an agent as well.
void test_left_and_the_agent_gone() {
    if (!can_preempt()) return;
    ByHand p;
    p.load(spin_model, "spin", kernel_pure | kernel_idempotent | kernel_preemptible);
    auto spin = p.send(spin_model, 30'000);
    Decided d = p.decided(p.expect(MessageType::request_new).object);
    d.slice_us = 50;
    p.stage(0, d);
    auto other = p.send(identity_model, 7);
    p.sweeper.start();
    p.expect(MessageType::request_preempt);
    CHECK(p.sweeper.deactivate_seat(0, "for the test"));
    p.done(*spin);
    p.done(*other);
    p.check_all_free();
}

void test_unmapped_worker() {
    ByHand p;
    // As a process that has not got the regions: it tells nothing, and the host sees to it.
    const std::uint32_t before = p.dropped.load();
    p.workers[0]->drop_seat(0, p.seated.incarnation);
    until([&] { return p.dropped.load() == before + 1; });
    auto slot = p.send(identity_model, 3);
    until([&] { return p.sweeper.session_in_flight(p.client.index) == 1; });
    Message m;
    while (p.agent->poll(m)) CHECK(static_cast<MessageType>(m.type) != MessageType::request_new);
    p.workers[0]->add_seat(::dup(p.seated.view_fd), ::dup(p.seated.desk_fd));
    until([&] {
        p.sweeper.tick();
        return p.agent->lost();
    });
    RequestWord word{};
    std::uint32_t found = no_object;
    for (std::uint32_t i = 0; i < record_count; ++i)
        if (p.agent->request(i, word) && (word.flags & request_in_use) != 0) found = i;
    if (!CHECK(found != no_object)) return;
    p.stage(0, p.decided(found));
    p.done(*slot);
    p.end();
}

void test_priorities() {
    ByHand p;
    auto slot = p.send(identity_model, 3);
    const std::uint32_t record = p.expect(MessageType::request_new).object;
    CHECK(p.sweeper.change_priority(p.client.index, slot->index, slot->generation, 9));
    CHECK(!p.sweeper.change_priority(p.client.index, slot->index, slot->generation + 1, 9));
    const Message m = p.expect(MessageType::request_priority);
    CHECK_EQ(m.object, record);
    CHECK_EQ(m.request.priority, 9);
    p.sweeper.wake_agent(0, true);
    p.expect(MessageType::agent_wakeup);
    CHECK_EQ(p.agent->settings(), 1);
    p.stage(0, p.decided(record));
    p.done(*slot);
    p.end();
}

// Seats of their own for a name and a worker.
void test_two_seats() {
    ByHand p(2);
    const Sweeper::Seated other = p.sweeper.attach_seat(1, 256);
    const auto second = AgentSeat::attach(other.agent_view_fd, ::dup(other.desk_fd));
    p.sweeper.activate_seat(1, other.incarnation);
    p.sweeper.seat_worker(1, 1);
    p.sweeper.seat_model(log_model, 1);
    CHECK(second->lost());
    CHECK_EQ(p.expect(MessageType::worker_gone).object, 1);
    auto mine = p.send(identity_model, 1);
    auto its = p.send(log_model, 2);
    const std::uint32_t record = p.expect(MessageType::request_new).object;
    Message m{};
    until([&] {
        while (second->poll(m))
            if (static_cast<MessageType>(m.type) == MessageType::request_new) return true;
        return false;
    });
    // Neither decides about what is the other's.
    Decided wrong = p.decided(record);
    wrong.object = m.object;
    CHECK_EQ(p.outcome(0, p.stage(0, wrong)), Outcome::not_found);
    RequestWord word{};
    CHECK(second->request(m.object, word));
    Decided d{};
    d.object = m.object;
    d.generation = word.generation;
    d.tseq = word.tseq;
    CHECK(second->stage(1, d).ok);
    second->ring();
    p.done(*its);
    // One of the two goes: its part of the pool goes on by itself, the other's as decided.
    p.sweeper.deactivate_seat(1, "for the test");
    auto again = p.send(log_model, 5);
    p.done(*again);
    p.stage(0, p.decided(record));
    p.done(*mine);
    p.end();
}

// Requests are dealt to two seats; what waits at one whose worker is busy is taken over by the other.
void test_dealt() {
    ByHand p(2);
    const Sweeper::Seated other = p.sweeper.attach_seat(1, 256);
    const std::shared_ptr<AgentSeat> agents[] = {p.agent, AgentSeat::attach(other.agent_view_fd, ::dup(other.desk_fd))};
    p.sweeper.seat_worker(1, 1);
    p.sweeper.deal_seats(3);
    p.sweeper.activate_seat(1, other.incarnation);
    p.sweeper.start();
    // Does what its agent would: stages for its worker whatever may run. How much that was.
    const auto serve = [&](std::uint32_t at) {
        AgentSeat& seat = *agents[at];
        unsigned count = 0;
        Message m{};
        while (seat.poll(m)) {
            const auto type = static_cast<MessageType>(m.type);
            RequestWord word{};
            if ((type != MessageType::request_new && type != MessageType::request_runnable) || !seat.request(m.object, word)) continue;
            Decided d{};
            d.object = m.object;
            d.generation = word.generation;
            d.tseq = word.tseq;
            CHECK(seat.stage(at, d).ok);
            ++count;
        }
        seat.ring();
        return count;
    };
    unsigned served[2] = {0, 0};
    const auto all = [&](std::vector<std::unique_ptr<ClientSlot>>& slots, std::span<const std::uint32_t> by) {
        until([&] {
            for (const std::uint32_t at : by) served[at] += serve(at);
            return std::all_of(slots.begin(), slots.end(), [&](const auto& slot) { return p.client.session->wait(*slot, tests::now_ns() + 100'000, 0); });
        });
        for (const auto& slot : slots) p.done(*slot);
    };
    constexpr std::uint32_t both[] = {0, 1};
    std::vector<std::unique_ptr<ClientSlot>> slots;
    for (int k = 0; k < 6; ++k) slots.push_back(p.client.slot());
    const auto send_all = [&] {
        for (auto& slot : slots) p.client.session->submit(*slot, identity_model, 0, 0, 0);
    };
    for (int i = 0; i < 10; ++i) {
        send_all();
        all(slots, both);
    }
    CHECK(served[0] > 0 && served[1] > 0 && served[0] + served[1] >= 60);
    auto gate = p.send(gate_model);
    std::uint32_t busy = 2;
    until([&] {
        for (const std::uint32_t at : both)
            if (serve(at) > 0) busy = at;
        return p.in_gate.load() == 1;
    });
    send_all();
    const std::uint32_t free_one[] = {1 - busy};
    all(slots, free_one);
    p.open_gate = true;
    p.done(*gate);
    // An agent that goes: its part waits in the pool's own order, and both workers see to that.
    p.sweeper.deactivate_seat(busy, "for the test");
    send_all();
    all(slots, free_one);
    p.sweeper.stop();
    p.sweeper.deactivate_seat(1 - busy, "for the test");
    p.sweeper.deal_seats(0);
    p.check_all_free();
}

}  // namespace

int main() {
    test_own_order();
    test_deadline_and_cancel();
    test_limits_of_a_name();
    test_company();
    test_waits_for_an_event();
    test_groups();
    test_leaves_and_goes_on();
    test_asks_refused();
    test_left_and_the_agent_gone();
    test_unmapped_worker();
    test_priorities();
    test_two_seats();
    test_dealt();
    return teal::check::summary();
}
