// Requests that leave their worker in the middle: others run meanwhile, they go on and end right, and whatever ends them earlier leaves
// nothing behind.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "host/words.hpp"
#include "kernel/preemptor.hpp"
#include "tests/gated_pool.hpp"
#include "tests/hand_pool.hpp"

namespace {

using namespace teal;
using namespace teal::tests;

constexpr std::uint32_t spin_model = 4;
constexpr std::uint32_t yield_model = 5;
constexpr std::uint32_t sum_model = 6;
constexpr std::uint32_t sleep_model = 7;

bool can_preempt() {
    Preemptor one;
    std::string why;
    return one.open(why);
}

// Counts to its input, and looks at each step whether it should leave. An output of one more than the steps it took.
struct Steps final : Kernel {
    std::atomic<int> dropped{0};
    std::atomic<int> running{0};
    std::atomic<bool> hold{true};  // the last step waits for that

    struct Counting final : Binding {
        Steps* all = nullptr;
        const std::int64_t* in = nullptr;
        std::int64_t* out = nullptr;
        std::int64_t step = 0;

        bool run(Run& r) noexcept override {
            all->running.fetch_add(1);
            for (; step < *in || all->hold; step += step < *in ? 1 : 0) {
                step < *in ? cpu_relax() : relax();  // a thread that waits for the test lets it run
                if (r.leave == nullptr || !r.leave(r)) continue;
                r.left = true;
                all->running.fetch_sub(1);
                return true;
            }
            *out = step + 1;
            step = 0;
            all->running.fetch_sub(1);
            return true;
        }
        void drop() noexcept override {
            step = 0;
            all->dropped.fetch_add(1);
        }
    };
    std::unique_ptr<Binding> bind(const Run& run, std::string&) override {
        auto one = std::make_unique<Counting>();
        one->all = this;
        one->in = reinterpret_cast<const std::int64_t*>(run.address(run.descriptor->inputs[0]));
        one->out = reinterpret_cast<std::int64_t*>(run.address(run.descriptor->outputs[0]));
        one->preemption = Preemption::yields;
        return one;
    }
    Preemption preemption() const noexcept override { return Preemption::yields; }
};

struct PreemptPool : GatedPool {
    std::shared_ptr<Steps> steps = std::make_shared<Steps>();
    std::uint32_t spin_line;
    std::uint32_t steps_line;

    explicit PreemptPool(std::uint64_t quantum_ns = 0) {
        spin_line = load(spin_model, "spin", kernel_pure | kernel_idempotent | kernel_preemptible);
        steps_line = load(yield_model, 1, steps, kernel_pure | kernel_preemptible | kernel_yields);
        load(sum_model, "sum", kernel_pure | kernel_preemptible);
        load(sleep_model, "sleep", kernel_pure | kernel_preemptible);
        sweeper.set_quantum(quantum_ns);
    }
    VersionLine& line(std::uint32_t index) { return pool->memory().versions[index]; }

    // One that begins, leaves for a request that sits in the gate, and is away until the gate opens.
    struct Away {
        std::unique_ptr<ClientSlot> slot;
        std::unique_ptr<ClientSlot> gate;
    };
    Away away(const Client& client, std::uint32_t model, std::int64_t value, std::uint64_t deadline = 0) {
        Away one{client.slot(), client.slot()};
        input(*one.slot) = value;
        client.session->submit(*one.slot, model, 0, 0, deadline);
        until([&] { return begun(*one.slot); });
        const int before = in_gate.load();
        client.session->submit(*one.gate, pure_gate_model, 0, 1, 0);
        until([&] { return in_gate.load() > before; });
        CHECK(suspended() > 0);
        return one;
    }
    bool begun(const ClientSlot& slot) {
        for (const Record& record : pool->memory().records)
            if (state_of_record(record) == State::running && record.entry.generation == slot.generation && record.entry.slot == slot.index &&
                pool->memory().workers[0].run_started.load() != 0)
                return true;
        return false;
    }
    unsigned suspended() {
        unsigned count = 0;
        for (const Record& record : pool->memory().records) count += is_suspended(record) ? 1 : 0;
        return count;
    }
    void let_go() { open_gate = true; }
};

// ---- turns -------------------------------------------------------------------------------------------------------------------------

void a_short_one_passes_a_long_one() {
    PreemptPool p(20'000);
    const Client client = p.open();
    p.add_worker();
    auto slow = client.slot();
    auto quick = client.slot();
    input(*slow) = 200'000;
    client.session->submit(*slow, spin_model, 0, 0, 0);
    until([&] { return p.begun(*slow); });
    input(*quick) = 10;
    CHECK(call(*client.session, *quick, spin_model));
    CHECK(!has_ended(word_of(*slow), slow->generation));
    client.session->wait(*slow, 0, 0);
    CHECK_EQ(state_of(*slow), State::done);
    CHECK(output(*slow) >= 200'000'000);  // on the core
    CHECK(output(*quick) >= 10'000);
    CHECK(p.line(p.spin_line).preemptions > 0);
    p.stop();
    CHECK_EQ(p.line(p.spin_line).resumed, p.line(p.spin_line).preemptions.load());
    CHECK_EQ(p.line(p.spin_line).dropped.load(), 0);
    p.check_all_free();
}

// Equally urgent ones take turns, and each has its time on the core.
void they_take_turns() {
    PreemptPool p(50'000);
    const Client client = p.open();
    const Client other = p.open();
    p.add_worker();
    std::vector<std::pair<const Client*, std::unique_ptr<ClientSlot>>> slots;
    for (int i = 0; i < 8; ++i) {
        const Client* one = i % 2 == 0 ? &client : &other;
        slots.emplace_back(one, one->slot());
        input(*slots.back().second) = 5'000;
        one->session->submit(*slots.back().second, spin_model, 0, 0, 0);
    }
    for (const auto& [one, slot] : slots) {
        one->session->wait(*slot, 0, 0);
        CHECK_EQ(state_of(*slot), State::done);
        CHECK(output(*slot) >= 5'000'000);
    }
    CHECK(p.line(p.spin_line).preemptions >= 8);
    p.check_all_free();
}

void a_lone_one_is_not_disturbed() {
    PreemptPool p(20'000);
    const Client client = p.open();
    p.add_worker();
    auto slot = client.slot();
    input(*slot) = 20'000;
    CHECK(call(*client.session, *slot, spin_model));
    CHECK_EQ(p.line(p.spin_line).preemptions.load(), 0);
    p.check_all_free();
}

void less_urgent_ones_wait() {
    PreemptPool p(20'000);
    const Client client = p.open();
    p.add_worker();
    auto slot = client.slot();
    input(*slot) = 20'000;
    client.session->submit(*slot, spin_model, 0, 1, 0);
    until([&] { return p.begun(*slot); });
    const auto noted = p.note(client, 7, 0);
    client.session->wait(*slot, 0, 0);
    client.session->wait(*noted, 0, 0);
    CHECK_EQ(p.line(p.spin_line).preemptions.load(), 0);
    CHECK_EQ(state_of(*noted), State::done);
    p.check_all_free();
}

// What is computed is what would have been computed without.
void sums_are_right() {
    PreemptPool p(20'000);
    const Client a = p.open(16, 64, 8 << 20);
    const Client b = p.open(16, 64, 8 << 20);
    p.add_worker();
    constexpr std::int64_t count = 1 << 20;
    struct One {
        const Client* client;
        std::unique_ptr<ClientSlot> slot;
        double expected = 0;
    };
    std::vector<One> all;
    for (const Client* client : {&a, &b}) {
        all.push_back({client, client->session->make_slot({plan(Dtype::f32, {count})}, {plan(Dtype::f64, {})})});
        auto* values = reinterpret_cast<float*>(all.back().slot->base + all.back().slot->inputs[0].offset);
        for (std::int64_t i = 0; i < count; ++i) values[i] = static_cast<float>((i * 7919 + static_cast<std::int64_t>(all.size())) % 1000);
        for (std::int64_t i = 0; i < count; ++i) all.back().expected += static_cast<double>(values[i]);
    }
    const std::uint32_t line = 6;  // the seventh version that was loaded
    for (int round = 0; round < scaled(100, 5); ++round) {
        for (One& one : all) one.client->session->submit(*one.slot, sum_model, 0, 0, 0);
        for (One& one : all) {
            one.client->session->wait(*one.slot, 0, 0);
            CHECK_EQ(state_of(*one.slot), State::done);
            double got = 0;
            std::memcpy(&got, one.slot->base + one.slot->outputs[0].offset, sizeof got);
            CHECK_EQ(got, one.expected);
        }
    }
    std::printf("sums: %llu preemptions\n", static_cast<unsigned long long>(p.line(line).preemptions.load()));
    p.check_all_free();
}

void a_sleep_gives_way() {
    PreemptPool p(20'000);
    const Client client = p.open();
    p.add_worker();
    auto slot = client.slot();
    input(*slot) = 100'000;
    const std::uint64_t start = tests::now_ns();
    client.session->submit(*slot, sleep_model, 0, 0, 0);
    until([&] { return p.begun(*slot); });
    auto quick = client.slot();
    for (int i = 0; i < 20; ++i) CHECK(call(*client.session, *quick, identity_model));
    client.session->wait(*slot, 0, 0);
    CHECK_EQ(output(*slot), 100'000);
    CHECK(tests::now_ns() - start >= 100'000'000);
    p.check_all_free();
}

// ---- yields ------------------------------------------------------------------------------------------------------------------------

void it_yields_to_what_is_more_urgent() {
    PreemptPool p;
    const Client client = p.open();
    p.add_worker();
    auto one = p.away(client, yield_model, 1000);
    CHECK_EQ(p.steps->running.load(), 0);
    CHECK_EQ(p.line(p.steps_line).yields.load(), 1);
    p.let_go();
    p.steps->hold = false;
    client.session->wait(*one.slot, 0, 0);
    CHECK_EQ(state_of(*one.slot), State::done);
    CHECK_EQ(output(*one.slot), 1001);
    p.stop();
    CHECK_EQ(p.line(p.steps_line).resumed.load(), 1);
    CHECK_EQ(p.line(p.steps_line).dropped.load(), 0);
    p.check_all_free();
}

void it_does_not_yield_to_equals_without_a_quantum() {
    PreemptPool p;
    const Client client = p.open();
    p.add_worker();
    auto slot = client.slot();
    input(*slot) = 10;
    client.session->submit(*slot, yield_model, 0, 0, 0);
    until([&] { return p.steps->running == 1; });
    const auto noted = p.note(client, 3);
    p.taken(1);  // it has been seen
    p.steps->hold = false;
    client.session->wait(*slot, 0, 0);
    client.session->wait(*noted, 0, 0);
    CHECK_EQ(p.line(p.steps_line).yields.load(), 0);
    p.check_all_free();
}

// With one, several share the worker; they end in whatever order.
void yielding_ones_share_by_quantum() {
    PreemptPool p(20'000);
    p.steps->hold = false;
    const Client client = p.open();
    p.add_worker();
    std::vector<std::unique_ptr<ClientSlot>> slots;
    for (int i = 0; i < 6; ++i) {
        slots.push_back(client.slot());
        input(*slots.back()) = 100'000;
        client.session->submit(*slots.back(), yield_model, 0, 0, 0);
    }
    for (const auto& slot : slots) {
        client.session->wait(*slot, 0, 0);
        CHECK_EQ(output(*slot), 100'001);
    }
    CHECK(p.line(p.steps_line).yields > 6);
    p.check_all_free();
}

// ---- ended while away --------------------------------------------------------------------------------------------------------------

void released(const ClientSlot& slot) {
    until([&] { return ClientSession::quiescent(slot); });
}

void cancelled_while_away(std::uint32_t model, std::uint64_t quantum) {
    PreemptPool p(quantum);
    const Client client = p.open();
    p.add_worker();
    auto one = p.away(client, model, 10'000'000);
    CHECK(client.session->cancel(*one.slot, State::cancelled, Reason::client_cancelled));
    CHECK(!ClientSession::quiescent(*one.slot));  // the worker may still touch it
    p.let_go();
    released(*one.slot);
    ended_as(*one.slot, State::cancelled, Reason::client_cancelled);
    const std::uint32_t line = model == spin_model ? p.spin_line : p.steps_line;
    CHECK_EQ(p.line(line).dropped.load(), 1);
    CHECK_EQ(p.steps->dropped.load(), model == yield_model ? 1 : 0);
    p.stop();
    CHECK_EQ(p.line(line).cancelled.load(), 1);
    p.check_all_free();
}

void expired_while_away(std::uint32_t model, std::uint64_t quantum) {
    PreemptPool p(quantum);
    const Client client = p.open();
    p.add_worker();
    p.sweeper.start();
    auto one = p.away(client, model, 10'000'000, tests::now_ns() + 300'000'000);
    until([&] { return has_ended(word_of(*one.slot), one.slot->generation); });
    ended_as(*one.slot, State::expired, Reason::deadline);
    p.let_go();
    released(*one.slot);
    p.stop();
    const std::uint32_t line = model == spin_model ? p.spin_line : p.steps_line;
    CHECK_EQ(p.line(line).dropped.load(), 1);
    CHECK_EQ(p.line(line).expired.load(), 1);
    p.check_all_free();
}

void session_closed_while_away(std::uint32_t model, std::uint64_t quantum) {
    PreemptPool p(quantum);
    const Client client = p.open();
    const Client other = p.open();
    p.add_worker();
    auto one = p.away(client, model, 10'000'000);
    p.sweeper.close_session(client.index, Reason::client_gone);
    p.let_go();
    p.close(client, Reason::client_gone);
    const std::uint32_t line = model == spin_model ? p.spin_line : p.steps_line;
    CHECK_EQ(p.line(line).dropped.load(), 1);
    auto quick = other.slot();
    input(*quick) = 5;
    CHECK(call(*other.session, *quick, identity_model));
    p.check_all_free();
}

void unloaded_while_away(std::uint32_t model, std::uint64_t quantum, bool force) {
    PreemptPool p(quantum);
    const Client client = p.open();
    p.add_worker();
    auto one = p.away(client, model, force ? 10'000'000 : 1000);
    const std::uint32_t line = model == spin_model ? p.spin_line : p.steps_line;
    CHECK_EQ(p.sweeper.version_running(line), 1);
    CHECK_EQ(p.sweeper.version_waiting(line), 0);
    if (force) p.sweeper.cancel_version(line);
    p.steps->hold = false;
    p.let_go();
    p.unload(line);
    if (force) ended_as(*one.slot, State::cancelled, Reason::unloaded);
    else CHECK_EQ(state_of(*one.slot), State::done);
    CHECK_EQ(p.line(line).dropped.load(), force ? 1 : 0);
    p.check_all_free();
}

void the_worker_quits_meanwhile(std::uint32_t model, std::uint64_t quantum) {
    PreemptPool p(quantum);
    const Client client = p.open();
    p.add_worker();
    auto one = p.away(client, model, 10'000'000);
    p.workers[0]->quit();
    p.let_go();
    p.quit(0);
    released(*one.slot);
    ended_as(*one.slot, State::cancelled, Reason::host_stopping);
    p.check_all_free();
}

// A region or the bindings of what is away are given up once it has ended, and not before.
void its_memory_stays() {
    PreemptPool p;
    const Client client = p.open();
    p.add_worker();
    auto one = p.away(client, yield_model, 1000);
    const std::uint32_t before = p.dropped;
    p.workers[0]->unbind(p.steps_line, p.generation(p.steps_line));
    p.workers[0]->drop_region(client.index, client.epoch, 0);
    p.let_go();
    client.session->wait(*one.gate, 0, 0);
    until([&] { return p.steps->running == 1; });  // it goes on, with what it had
    p.steps->hold = false;
    client.session->wait(*one.slot, 0, 0);
    CHECK_EQ(state_of(*one.slot), State::done);
    CHECK_EQ(output(*one.slot), 1001);
    until([&] { return p.dropped == before + 2; });
    p.check_all_free();
}

// A client that submits a slot again which a worker still holds hears that this makes no sense; what is away is not disturbed.
void its_slot_is_taken() {
    PreemptPool p;
    const Client client = p.open();
    p.add_worker();
    auto one = p.away(client, yield_model, 1000);
    ClientSlot twin = *one.slot;
    twin.submitted = false;  // nothing but good manners keeps a client from that
    client.session->submit(twin, yield_model, 0, 5, 0);
    p.let_go();
    client.session->wait(twin, 0, 0);
    ended_as(twin, State::failed, Reason::invalid);
    until([&] { return p.line(p.steps_line).dropped == 1; });  // its client has no ears for the first any more
    p.steps->hold = false;
    auto other = client.slot();
    input(*other) = 3;
    CHECK(call(*client.session, *other, yield_model));
    CHECK_EQ(output(*other), 4);
    p.check_all_free();
}

// ---- limits and deaths -------------------------------------------------------------------------------------------------------------

// A name that runs in as many workers as it may: one that is away counts.
void concurrency_counts_what_is_away() {
    PreemptPool p;
    const Client client = p.open();
    p.sweeper.limit_running(yield_model, 1);
    p.add_worker();
    auto one = p.away(client, yield_model, 1000);
    auto second = client.slot();
    input(*second) = 5;
    client.session->submit(*second, yield_model, 0, 2, 0);
    p.let_go();
    client.session->wait(*one.gate, 0, 0);
    until([&] { return p.steps->running == 1; });
    CHECK(!has_ended(word_of(*second), second->generation));
    p.steps->hold = false;
    client.session->wait(*second, 0, 0);
    client.session->wait(*one.slot, 0, 0);
    CHECK_EQ(output(*one.slot), 1001);
    CHECK_EQ(output(*second), 6);
    CHECK_EQ(p.line(p.steps_line).held.load() > 0, true);
    p.check_all_free();
}

// A worker that dies with one away: it fails, or begins anew where that is allowed.
void its_worker_dies() {
    HandPool p;
    const auto suspend = [&](std::uint32_t record) {
        p.enter();
        CHECK(p.pool->suspend(record, 0, 5'000));
        p.pool->leave();
    };
    p.submit(plain_model);
    p.submit(again_model);
    const std::uint32_t plain = p.pick(0);
    suspend(plain);
    const std::uint32_t again = p.pick(0);
    suspend(again);
    CHECK_EQ(p.pick(0), nobody);  // only its worker has a list of them …
    CHECK_EQ(p.pick(1), nobody);
    p.enter();
    p.pool->repair();
    p.pool->leave();
    CHECK_EQ(p.memory.header.heap_size, 0);  // … which repair() keeps to
    CHECK_EQ(p.memory.header.active.load(), 2);
    CHECK_EQ(p.memory.records[plain].suspended, 1);
    CHECK_EQ(p.memory.records[plain].worker, 0);
    const Sweeper::Buried buried = p.sweeper.bury_worker(0, 9);
    CHECK_EQ(buried.failed, 1);
    CHECK_EQ(buried.again, 1);
    ended_as(*p.slots[0], State::failed, Reason::worker_died);
    CHECK_EQ(p.memory.header.heap_size, 1);
    CHECK_EQ(p.memory.records[again].suspended, 0);
    p.finish();
    p.check_done({1});
}

// Picked again by its own worker, in its turn: behind those that waited when it left.
void its_turn() {
    HandPool p;
    p.submit(plain_model);
    const std::uint32_t first = p.pick(0);
    p.submit(plain_model);
    p.submit(plain_model);
    p.drain();
    const std::uint32_t list[] = {first};
    const auto pick = [&] {
        p.enter();
        const std::uint32_t record = p.pool->pick(0, p.maps, list);
        p.pool->leave();
        return record;
    };
    p.enter();
    CHECK(p.pool->would_wait(first, {}, true));
    CHECK(!p.pool->would_wait(first, {}, false));
    CHECK(p.pool->suspend(first, 0, 50'000));
    p.pool->leave();
    const std::uint32_t second = pick();
    const std::uint32_t third = pick();
    CHECK(second != first && third != first && second != third);
    CHECK_EQ(pick(), first);
    CHECK_EQ(p.memory.records[first].attempts, 1);
    // Ended while away: not picked.
    p.enter();
    CHECK(p.pool->suspend(first, 0, 60'000));
    CHECK(p.pool->end_record(first, State::cancelled));
    p.pool->leave();
    CHECK_EQ(pick(), nobody);
    p.enter();
    CHECK(!p.pool->suspend(first, 0, 60'000));
    const std::uint32_t all[] = {first, second, third};
    p.pool->end_record(second, State::cancelled);
    p.pool->end_record(third, State::cancelled);
    p.pool->give_back(all);
    p.pool->leave();
    p.check_all_free();
}

// The hook hears of it under the role, with the record queued again.
void the_hook_hears() {
    PreemptPool p;
    const Client client = p.open();
    p.add_worker(true);
    std::atomic<int> heard{0};
    p.workers[0]->on_left = [&](std::uint32_t record, Worker::Left how, std::uint64_t) {
        CHECK(how == Worker::Left::yielded);
        CHECK(is_suspended(p.pool->memory().records[record]));
        CHECK(p.pool->memory().header.role.holder() != 0);
        ++heard;
    };
    std::thread loop([&] { p.workers[0]->run(); });
    auto one = p.away(client, yield_model, 10);
    p.let_go();
    p.steps->hold = false;
    client.session->wait(*one.slot, 0, 0);
    CHECK_EQ(heard.load(), 1);
    p.workers[0]->quit();
    loop.join();
    p.check_all_free();
}

// A slice that is over for a kernel that cannot be preempted is counted.
void what_cannot_is_counted() {
    PreemptPool p(20'000);
    const Client client = p.open();
    p.add_worker();
    auto one = p.occupy(client);
    const std::uint64_t start = tests::now_ns();
    until([&] { return tests::now_ns() - start > 1'000'000; });
    p.open_gate = true;
    client.session->wait(*one, 0, 0);
    p.stop();
    CHECK_EQ(p.line(0).cannot_preempt.load(), 1);
    p.check_all_free();
}

}  // namespace

int main() {
    it_yields_to_what_is_more_urgent();
    it_does_not_yield_to_equals_without_a_quantum();
    yielding_ones_share_by_quantum();
    cancelled_while_away(yield_model, 0);
    expired_while_away(yield_model, 0);
    session_closed_while_away(yield_model, 0);
    unloaded_while_away(yield_model, 0, false);
    unloaded_while_away(yield_model, 0, true);
    the_worker_quits_meanwhile(yield_model, 0);
    its_memory_stays();
    its_slot_is_taken();
    concurrency_counts_what_is_away();
    its_worker_dies();
    its_turn();
    the_hook_hears();
    what_cannot_is_counted();
    if (can_preempt()) {
        a_short_one_passes_a_long_one();
        they_take_turns();
        a_lone_one_is_not_disturbed();
        less_urgent_ones_wait();
        sums_are_right();
        a_sleep_gives_way();
        cancelled_while_away(spin_model, 20'000);
        expired_while_away(spin_model, 20'000);
        session_closed_while_away(spin_model, 20'000);
        unloaded_while_away(spin_model, 20'000, true);
        the_worker_quits_meanwhile(spin_model, 20'000);
    }
    return teal::check::summary();
}
