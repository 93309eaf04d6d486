// Tests of requests that run together, and of those that wait for company or for a worker that runs their name.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "host/batch.hpp"
#include "tests/check.hpp"
#include "tests/gated_pool.hpp"

namespace {

using namespace teal::tests;
using teal::Dtype;
using teal::Reason;
using teal::State;
using teal::TensorDesc;
using Slots = std::vector<std::unique_ptr<teal::ClientSlot>>;

constexpr std::uint32_t rows_model = 5;   // each row of int64: 1 more; fails at a negative number

class Rows final : public teal::Kernel {
public:
    std::unique_ptr<teal::Binding> bind(const teal::Run& run, std::string&) override {
        (void)run;
        struct One final : teal::Binding {
            Rows* owner = nullptr;
            bool run(teal::Run& r) noexcept override {
                const TensorDesc& in = r.descriptor->inputs[0];
                const TensorDesc& out = r.descriptor->outputs[0];
                {
                    const std::lock_guard lock(owner->mutex);
                    owner->runs.push_back(in.shape[0]);
                }
                for (std::uint64_t i = 0; i < in.nbytes / 8; ++i) {
                    std::int64_t value = 0;
                    std::memcpy(&value, r.address(in) + i * 8, sizeof value);
                    if (value < 0) {
                        r.message = "a negative number";
                        return false;
                    }
                    ++value;
                    std::memcpy(r.address(out) + i * 8, &value, sizeof value);
                }
                return true;
            }
        };
        auto one = std::make_unique<One>();
        one->owner = this;
        return one;
    }
    std::vector<std::int64_t> ran() {
        const std::lock_guard lock(mutex);
        return runs;
    }
    std::mutex mutex;  // guards runs
    std::vector<std::int64_t> runs;
};

struct Scene : GatedPool {
    std::shared_ptr<Rows> rows = std::make_shared<Rows>();
    std::uint32_t line;
    explicit Scene(std::uint32_t batch, std::uint64_t delay_ns = 0) {
        line = load(rows_model, 1, rows, teal::kernel_pure | teal::kernel_idempotent | teal::kernel_batches);
        sweeper.set_batching(batch, delay_ns);
    }
    teal::VersionLine& version() { return pool->memory().versions[line]; }
};

std::unique_ptr<teal::ClientSlot> rows_of(const Client& client, std::int64_t rows, std::int64_t columns, std::int64_t value) {
    auto slot = client.session->make_slot({plan(Dtype::i64, {rows, columns})}, {plan(Dtype::i64, {rows, columns})});
    std::fill_n(&input(*slot), rows * columns, value);
    return slot;
}

void send(const Client& client, teal::ClientSlot& slot, std::int32_t priority = 0, std::uint64_t deadline = 0) {
    client.session->submit(slot, rows_model, 0, priority, deadline);
}

void answered(const Client& client, teal::ClientSlot& slot, std::int64_t expected) {
    client.session->wait(slot, 0, 0);
    ended_as(slot, State::done, Reason::none);
    const std::int64_t* first = &output(slot);
    CHECK(std::all_of(first, first + slot.outputs[0].nbytes / 8, [expected](std::int64_t value) { return value == expected; }));
}

// What waits while the worker is busy runs together, up to the size, each with its own answer; a size of 1 changes nothing.
void test_what_waits() {
    for (const std::uint32_t batch : {1U, 4U, 100U}) {
        Scene scene(batch);
        scene.add_worker();
        const Client client = scene.open(64, 64);
        const auto busy = scene.occupy(client);
        Slots slots;
        for (int i = 0; i < 12; ++i) {
            slots.push_back(rows_of(client, 1, 3, 10 * i));
            send(client, *slots.back());
        }
        scene.taken(12);
        scene.open_gate = true;
        for (int i = 0; i < 12; ++i) answered(client, *slots[static_cast<std::size_t>(i)], 10 * i + 1);
        const auto ran = scene.rows->ran();
        CHECK_EQ(ran.size(), batch == 1 ? 12 : batch == 4 ? 3 : 1);
        CHECK_EQ(scene.version().batches.load(), batch == 1 ? 0 : ran.size());
        CHECK_EQ(scene.version().batched.load(), batch == 1 ? 0 : 12);
        until([&] { return scene.version().requests.load() == 12; });
        until([&] { return scene.version().copies_in.load() == (batch == 1 ? 0U : 12U); });
        slots.clear();
        scene.check_all_free();
    }
}

// Other columns, more rows than fit, a bad one, one that was cancelled, one that is late: each has its own end.
void test_mixed() {
    Scene scene(8);
    scene.add_worker();
    const Client client = scene.open(64, 64);
    const auto busy = scene.occupy(client);
    const auto narrow = rows_of(client, 2, 1, 1);
    const auto wide = rows_of(client, 2, 5, 2);
    const auto narrow_too = rows_of(client, 3, 1, 3);
    const auto wide_too = rows_of(client, 6, 5, 4);
    const auto huge = rows_of(client, 500, 5, 5);
    const auto nothing = rows_of(client, 0, 5, 6);
    const auto cancelled = rows_of(client, 1, 1, 7);
    const auto late = rows_of(client, 1, 1, 8);
    for (auto* slot : {narrow.get(), wide.get(), narrow_too.get(), wide_too.get(), huge.get(), nothing.get(), cancelled.get()}) send(client, *slot);
    scene.taken(7);
    send(client, *late, 0, now_ns() + 1'000'000);
    client.session->cancel(*cancelled, State::cancelled, Reason::client_cancelled);
    until([] { static const std::uint64_t end = now_ns() + 2'000'000; return now_ns() > end; });
    scene.open_gate = true;
    answered(client, *narrow, 2);
    answered(client, *wide, 3);
    answered(client, *narrow_too, 4);
    answered(client, *wide_too, 5);
    answered(client, *huge, 6);
    client.session->wait(*nothing, 0, 0);
    ended_as(*nothing, State::done, Reason::none);
    until([&] { return teal::ClientSession::quiescent(*cancelled) && teal::ClientSession::quiescent(*late); });
    ended_as(*late, State::expired, Reason::deadline);
    auto ran = scene.rows->ran();
    std::sort(ran.begin(), ran.end());
    CHECK((ran == std::vector<std::int64_t>{0, 5, 8, 500}));
    scene.check_all_free();
}

// A request that the kernel cannot stand fails alone.
void test_one_bad() {
    Scene scene(8);
    scene.add_worker();
    const Client client = scene.open(64, 64);
    const Client other = scene.open(64, 64);
    const auto busy = scene.occupy(client);
    Slots slots;
    for (int i = 0; i < 6; ++i) {
        slots.push_back(rows_of(i % 2 == 0 ? client : other, 1, 2, i == 3 ? -1 : i));
        send(i % 2 == 0 ? client : other, *slots.back());
    }
    scene.taken(6);
    scene.open_gate = true;
    for (int i = 0; i < 6; ++i) {
        const Client& owner = i % 2 == 0 ? client : other;
        if (i != 3) answered(owner, *slots[static_cast<std::size_t>(i)], i + 1);
    }
    other.session->wait(*slots[3], 0, 0);
    ended_as(*slots[3], State::failed, Reason::kernel);
    CHECK_EQ(scene.version().batches.load(), 0);
    CHECK((scene.rows->ran() == std::vector<std::int64_t>{6, 1, 1, 1, 1, 1, 1}));
    scene.check_all_free();
}

// The first waits for others, no longer than the delay, and not at all when there are enough; others pass meanwhile.
void test_delay() {
    constexpr std::uint64_t delay = 20'000'000;
    Scene scene(3, delay);
    scene.add_worker();
    const Client client = scene.open(256, 256);
    const auto lone = rows_of(client, 1, 1, 1);
    const std::uint64_t start = now_ns();
    send(client, *lone);
    const auto passing = scene.note(client, 5);
    client.session->wait(*passing, 0, 0);
    CHECK(!teal::ClientSession::ended(*lone) || now_ns() - start >= delay);
    answered(client, *lone, 2);
    CHECK(now_ns() - start >= delay);
    CHECK((scene.rows->ran() == std::vector<std::int64_t>{1}));
    // A deadline that comes soon shortens the wait.
    const auto urgent = rows_of(client, 1, 1, 9);
    send(client, *urgent, 0, now_ns() + 3'600'000'000'000);
    answered(client, *urgent, 10);
    const auto hasty = rows_of(client, 1, 1, 9);
    const std::uint64_t again = now_ns();
    send(client, *hasty, 0, again + delay);
    client.session->wait(*hasty, 0, 0);
    CHECK(state_of(*hasty) == State::done || now_ns() - again >= delay);  // a machine may be late
    scene.check_all_free();
}

// As many as go together do not wait for an hour to pass.
void test_enough() {
    Scene scene(3, 3'600'000'000'000);
    scene.add_worker();
    const Client client = scene.open(256, 256);
    Slots slots;
    for (int round = 0; round < 20; ++round) {
        for (int i = 0; i < 3; ++i) {
            slots.push_back(rows_of(client, 1, 1, i));
            send(client, *slots.back());
        }
        for (int i = 0; i < 3; ++i) answered(client, *slots[static_cast<std::size_t>(i)], i + 1);
        slots.clear();
    }
    CHECK_EQ(scene.version().batches.load(), 20);
    scene.check_all_free();
}

// A dispatcher dies while some wait for company: they are found again.
void test_repair() {
    Scene scene(8, 3'600'000'000'000);
    const Client client = scene.open(64, 64);
    Slots slots;
    for (int i = 0; i < 3; ++i) {
        slots.push_back(rows_of(client, 1, 1, i));
        send(client, *slots.back());
    }
    scene.sweeper.tick();  // takes them: there is no leader
    CHECK_EQ(scene.pool->queued(), 0);
    CHECK_EQ(scene.pool->waiting(), 3);
    CHECK_EQ(scene.version().company, 3);
    scene.pool->repair();
    CHECK_EQ(scene.pool->queued(), 3);
    CHECK_EQ(scene.version().company, 0);
    scene.add_worker();
    for (int i = 0; i < 3; ++i) answered(client, *slots[static_cast<std::size_t>(i)], i + 1);
    CHECK((scene.rows->ran() == std::vector<std::int64_t>{3}));
    // What waits goes with its client.
    const Client leaves = scene.open(64, 64);
    const auto left = rows_of(leaves, 1, 1, 1);
    send(leaves, *left);
    until([&] { return scene.pool->waiting() == 1; });
    scene.close(leaves, Reason::client_gone);
    ended_as(*left, State::cancelled, Reason::client_gone);
    CHECK_EQ(scene.pool->waiting(), 0);
    scene.check_all_free();
}

// A name that may run in one worker leaves the others to others, and nobody idles while there is work.
void test_concurrency() {
    for (const std::uint32_t most : {1U, 2U, 0U}) {
        Scene scene(1);
        for (int i = 0; i < 3; ++i) scene.add_worker();
        scene.sweeper.limit_running(gate_model, most);
        const Client client = scene.open(64, 64);
        Slots gates;
        for (int i = 0; i < 6; ++i) {
            gates.push_back(client.slot());
            client.session->submit(*gates.back(), gate_model, 0, 0, 0);
        }
        const int expected = most == 0 ? 3 : static_cast<int>(most);
        until([&] { return scene.in_gate.load() == expected; });
        if (most != 0) {
            const auto passing = scene.note(client, 5, -3);  // less urgent, and behind six others
            client.session->wait(*passing, 0, 0);
            CHECK_EQ(scene.in_gate.load(), expected);
            CHECK(scene.pool->memory().versions[0].held.load() > 0);
        }
        scene.open_gate = true;
        for (auto& gate : gates) {
            client.session->wait(*gate, 0, 0);
            ended_as(*gate, State::done, Reason::none);
        }
        CHECK_EQ(scene.in_gate.load(), 6);
        gates.clear();
        scene.check_all_free();
        CHECK_EQ(scene.pool->memory().models[gate_model].running, 0);
    }
}

// The limit is set and lifted while requests are out; one that waits is cancelled.
void test_concurrency_changes() {
    Scene scene(1);
    for (int i = 0; i < 2; ++i) scene.add_worker();
    const Client client = scene.open(64, 64);
    Slots gates;
    const auto gate = [&] {
        gates.push_back(client.slot());
        client.session->submit(*gates.back(), gate_model, 0, 0, 0);
    };
    gate();
    until([&] { return scene.in_gate.load() == 1; });
    scene.sweeper.limit_running(gate_model, 1);
    CHECK_EQ(scene.pool->memory().models[gate_model].running, 1);
    gate();
    gate();
    until([&] { return scene.pool->waiting() == 2 && scene.pool->queued() == 0; });
    client.session->cancel(*gates[1], State::cancelled, Reason::client_cancelled);
    CHECK(scene.pool->enter(1'000'000'000));
    scene.pool->repair();
    CHECK_EQ(scene.pool->memory().models[gate_model].running, 1);
    scene.pool->leave();
    scene.sweeper.limit_running(gate_model, 0);
    until([&] { return scene.in_gate.load() == 2; });
    scene.open_gate = true;
    for (auto& one : gates) until([&] { return teal::ClientSession::quiescent(*one); });
    CHECK_EQ(scene.in_gate.load(), 2);
    gates.clear();
    scene.check_all_free();
}

// What was next is cancelled, or late: the one after it is not forgotten.
void test_next_is_gone() {
    Scene scene(1);
    for (int i = 0; i < 2; ++i) scene.add_worker();
    scene.sweeper.limit_running(gate_model, 1);
    const Client client = scene.open(64, 64);
    Slots gates;
    const auto gate = [&](std::uint64_t deadline = 0) {
        gates.push_back(client.slot());
        client.session->submit(*gates.back(), gate_model, 0, 0, deadline);
    };
    gate();
    until([&] { return scene.in_gate.load() == 1; });
    gate();
    gate(now_ns() + 50'000'000);
    gate();
    until([&] { return scene.pool->waiting() >= 2 && scene.pool->queued() == 0; });
    client.session->cancel(*gates[1], State::cancelled, Reason::client_cancelled);
    until([&] {
        scene.sweeper.tick();
        return teal::ClientSession::ended(*gates[2]);
    });
    scene.open_gate = true;
    client.session->wait(*gates[3], 0, 0);
    ended_as(*gates[3], State::done, Reason::none);
    CHECK_EQ(scene.in_gate.load(), 2);
    for (auto& one : gates) until([&] { return teal::ClientSession::quiescent(*one); });
    gates.clear();
    scene.check_all_free();
}

// No worker idles while work waits: as many run as there are workers, whoever submits.
void test_nobody_idles() {
    Scene scene(1);
    for (int i = 0; i < 4; ++i) scene.add_worker();
    const Client client = scene.open(256, 256);
    for (int round = 0; round < 30; ++round) {
        scene.open_gate = false;
        scene.in_gate = 0;
        Slots gates;
        for (int i = 0; i < 8; ++i) {
            gates.push_back(client.slot());
            client.session->submit(*gates.back(), i % 2 == 0 ? gate_model : pure_gate_model, 0, 0, 0);
        }
        until([&] { return scene.in_gate.load() == 4; });
        scene.open_gate = true;
        for (auto& one : gates) client.session->wait(*one, 0, 0);
        for (auto& one : gates) until([&] { return teal::ClientSession::quiescent(*one); });
    }
    scene.check_all_free();
}

}  // namespace

int main() {
    test_what_waits();
    test_mixed();
    test_one_bad();
    test_delay();
    test_enough();
    test_repair();
    test_concurrency();
    test_concurrency_changes();
    test_next_is_gone();
    test_nobody_idles();
    return teal::check::summary();
}
