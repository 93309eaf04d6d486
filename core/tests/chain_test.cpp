// Tests of requests that take the outputs of others: pipelines in the worker.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "host/words.hpp"
#include "tests/check.hpp"
#include "tests/gated_pool.hpp"

namespace {

using namespace teal::tests;
using teal::Dtype;
using teal::ChainLink;
using teal::Reason;
using teal::State;
using teal::TensorDesc;
using Shared = std::shared_ptr<teal::ClientSlot>;

constexpr std::uint32_t count_model = 5;  // n → 0 … n-1, of a size that only the run can tell; more than fits: handed over
constexpr std::uint32_t total_model = 6;  // any number of int64 → their sum
constexpr std::uint64_t room = 512;       // bytes planned for what count_model makes

class Count final : public teal::Kernel {
public:
    std::unique_ptr<teal::Binding> bind(const teal::Run& run, std::string& error) override {
        if (run.descriptor->inputs.size() != 1 || run.descriptor->outputs.size() != 1 || run.descriptor->inputs[0].nbytes != 8) {
            error = "$.inputs[0].shape: expected one int64";
            return nullptr;
        }
        struct One final : teal::Binding {
            Count* owner = nullptr;
            bool run(teal::Run& r) noexcept override {
                const TensorDesc& in = r.descriptor->inputs[0];
                std::int64_t n = 0;
                std::memcpy(&n, r.address(in), sizeof n);
                std::vector<std::int64_t> numbers(static_cast<std::size_t>(n));
                for (std::int64_t i = 0; i < n; ++i) numbers[static_cast<std::size_t>(i)] = i;
                if (teal::emit(r, 0, Dtype::i64, &n, 1, numbers.data(), numbers.size() * 8)) return true;
                owner->spilled = std::move(numbers);
                owner->record_generation = r.record_generation;
                owner->record.store(r.record, std::memory_order_release);
                r.handed_over = true;
                return true;
            }
        };
        auto one = std::make_unique<One>();
        one->owner = this;
        return one;
    }
    std::vector<std::int64_t> spilled;
    std::uint32_t record_generation = 0;
    std::atomic<std::uint32_t> record{teal::nobody};
};

class Total final : public teal::Kernel {
public:
    std::unique_ptr<teal::Binding> bind(const teal::Run& run, std::string& error) override {
        const auto& inputs = run.descriptor->inputs;
        for (std::size_t i = 0; i < inputs.size(); ++i)
            if (static_cast<Dtype>(inputs[i].dtype) != Dtype::i64) {
                error = "$.inputs[" + std::to_string(i) + "].dtype: expected int64";
                return nullptr;
            }
        struct One final : teal::Binding {
            bool run(teal::Run& r) noexcept override {
                std::int64_t sum = 0;
                for (const TensorDesc& in : r.descriptor->inputs)
                    for (std::uint64_t i = 0; i < in.nbytes / 8; ++i) {
                        std::int64_t value = 0;
                        std::memcpy(&value, r.address(in) + i * 8, sizeof value);
                        sum += value;
                    }
                std::memcpy(r.address(r.descriptor->outputs[0]), &sum, sizeof sum);
                return true;
            }
        };
        return std::make_unique<One>();
    }
};

struct Scene : GatedPool {
    std::shared_ptr<Count> count = std::make_shared<Count>();
    std::uint32_t total_line;
    Scene() {
        load(count_model, 1, count);
        total_line = load(total_model, 1, std::make_shared<Total>());
    }
};

Shared shared(const Client& client, std::unique_ptr<teal::ClientSlot> slot) {
    return {slot.release(), [session = client.session](teal::ClientSlot* raw) { session->destroy_slot(std::unique_ptr<teal::ClientSlot>(raw)); }};
}

Shared source(const Client& client, std::int64_t value = 0) {
    Shared slot = shared(client, client.slot());
    input(*slot) = value;
    return slot;
}

Shared counting(const Client& client, std::int64_t n) {
    Shared slot = shared(client, client.session->make_slot({scalar}, {plan(Dtype::i64, {}, teal::tensor_unplanned, room)}));
    input(*slot) = n;
    return slot;
}

// A slot whose inputs are outputs of these.
Shared taking(const Client& client, const std::vector<Shared>& from) {
    std::vector<teal::TensorPlan> inputs;
    std::vector<teal::Hold> holds;
    for (std::uint32_t i = 0; i < from.size(); ++i) {
        const TensorDesc& output = from[i]->outputs[0];
        teal::TensorPlan one = plan(Dtype::i64, {}, 0, output.capacity);
        one.place = teal::Place{output.region, output.offset};
        one.link = ChainLink{i, 0, from[i]->region, from[i]->offset};
        inputs.push_back(one);
        holds.push_back({from[i]->memory, from[i], from[i]->views, from[i].get(), true});
    }
    holds.emplace_back();
    Shared slot = shared(client, client.session->make_slot(inputs, {scalar}));
    slot->holds = std::move(holds);
    return slot;
}

void send(const Client& client, const Shared& slot, std::uint32_t model, std::vector<Shared> after = {}) {
    client.session->submit(*slot, model, 0, 0, 0, std::move(after));
}

std::int64_t answer(const Client& client, const Shared& slot) {
    client.session->wait(*slot, 0, 0);
    ended_as(*slot, State::done, Reason::none);
    return output(*slot);
}

std::string message(const teal::ClientSlot& slot) {
    teal::DescriptorHeader head;
    std::memcpy(&head, slot.base + slot.offset, sizeof head);
    const std::size_t at = sizeof head + (slot.inputs.size() + slot.outputs.size()) * sizeof(TensorDesc);
    return {reinterpret_cast<const char*>(slot.base + slot.offset + at), head.message_size};
}

// Stages of planned size, one after the other; the same slots again and again.
void test_stages() {
    for (const int workers : {1, 3}) {
        Scene scene;
        for (int i = 0; i < workers; ++i) scene.add_worker();
        const Client client = scene.open(64, 64);
        std::vector<Shared> stages{source(client)};
        for (int i = 1; i < 9; ++i) stages.push_back(taking(client, {stages.back()}));
        for (std::int64_t round = 0; round < 200; ++round) {
            input(*stages[0]) = round;
            send(client, stages[0], log_model);  // adds one
            for (std::size_t i = 1; i < stages.size(); ++i) send(client, stages[i], log_model, {stages[i - 1]});
            CHECK_EQ(answer(client, stages.back()), round + 9);
            for (const Shared& stage : stages) until([&] { return teal::ClientSession::quiescent(*stage); });
        }
        // Each worker binds each stage at most once.
        CHECK(scene.pool->memory().versions[2].bindings.load() <= static_cast<unsigned>(9 * workers));
        until([&] { return scene.pool->memory().versions[2].chained.load() == 8 * 200; });
        stages.clear();
        scene.check_all_free();
    }
}

void test_sizes_only_the_run_can_tell() {
    Scene scene;
    scene.add_worker();
    scene.add_worker();
    const Client client = scene.open(64, 64);
    const Shared a = counting(client, 0);
    const Shared b = counting(client, 0);
    const Shared both = taking(client, {a, b});
    for (std::int64_t n = 0; n <= 32; ++n) {
        input(*a) = n;
        input(*b) = 32 - n;
        send(client, a, count_model);
        send(client, b, count_model);
        send(client, both, total_model, {a, b});
        CHECK_EQ(answer(client, both), n * (n - 1) / 2 + (32 - n) * (31 - n) / 2);
        for (const Shared& slot : {a, b, both}) until([&] { return teal::ClientSession::quiescent(*slot); });
    }
    scene.check_all_free();
}

// One that did not fit is fetched from the host, and let go of after the run.
void test_spilled() {
    Scene scene;
    scene.add_worker();
    std::weak_ptr<teal::Region> fetched;
    std::atomic<std::uint32_t> asked{0};
    scene.workers[0]->fetch_spill = [&](std::uint32_t, std::uint32_t, std::uint32_t id, teal::SpilledOutputs& out) {
        if (id != 7) {
            ++asked;
            return false;
        }
        const std::size_t bytes = scene.count->spilled.size() * 8;
        out.region = teal::Region::create(teal::RegionKind::spill, teal::page_bytes + bytes, 0, teal::Pages::small);
        std::memcpy(out.region->base() + teal::page_bytes, scene.count->spilled.data(), bytes);
        TensorDesc tensor{};
        tensor.dtype = static_cast<std::uint8_t>(Dtype::i64);
        tensor.rank = 1;
        tensor.shape[0] = static_cast<std::int64_t>(scene.count->spilled.size());
        tensor.offset = teal::page_bytes;
        tensor.nbytes = tensor.capacity = bytes;
        out.tensors.emplace_back(0, tensor);
        fetched = out.region;
        ++asked;  // SYNC: pairs with the loads below: `fetched` is this thread's until then
        return true;
    };
    const Client client = scene.open(64, 64);
    const Shared large = counting(client, 100);
    const Shared next = taking(client, {large});
    const Shared again = taking(client, {large});
    send(client, large, count_model);
    send(client, next, total_model, {large});
    send(client, again, total_model, {large});
    until([&] { return scene.count->record.load(std::memory_order_acquire) != teal::nobody; });
    scene.sweeper.end_handed_over(scene.count->record.load(), scene.count->record_generation, true, 7, Reason::none);
    CHECK_EQ(answer(client, next), 4950);
    CHECK_EQ(answer(client, again), 4950);
    ended_as(*large, State::done, Reason::output_spilled);
    const Shared other = source(client);
    send(client, other, log_model);
    client.session->wait(*other, 0, 0);  // the worker is past what it did for the one before
    CHECK_EQ(asked.load(), 2);
    CHECK(fetched.expired());
    // One that its client has taken meanwhile.
    const Shared late = taking(client, {large});
    large->line->detail.store(8);
    send(client, late, total_model, {large});
    client.session->wait(*late, 0, 0);
    ended_as(*late, State::failed, Reason::invalid);
    CHECK(message(*late).find("larger than planned, and has been taken") != std::string::npos);
    scene.check_all_free();
}

void test_does_not_suit() {
    Scene scene;
    scene.add_worker();
    const Client client = scene.open(64, 64);
    const Shared three = counting(client, 3);
    const Shared next = taking(client, {three});
    send(client, three, count_model);
    send(client, next, count_model, {three});  // takes one number
    client.session->wait(*next, 0, 0);
    ended_as(*next, State::failed, Reason::invalid);
    CHECK_EQ(message(*next), "$.inputs[0].shape: expected one int64");
    // A stage that ends otherwise ends those that take its output, and theirs.
    const Shared broken = source(client);
    const Shared second = taking(client, {broken});
    const Shared third = taking(client, {second});
    send(client, broken, 99);
    send(client, second, log_model, {broken});
    send(client, third, log_model, {second});
    client.session->wait(*third, 0, 0);
    ended_as(*second, State::cancelled, Reason::dependency);
    ended_as(*third, State::cancelled, Reason::dependency);
    CHECK_EQ(third->line->detail.load(), second->index);
    scene.check_all_free();
}

// While a stage waits, an idle worker binds the next one.
void test_prepared_ahead() {
    Scene scene;
    scene.add_worker();
    const Client client = scene.open(64, 64);
    const auto event = client.session->make_event();
    const Shared first = source(client, 4);
    const Shared next = taking(client, {first});
    const Shared unknown = counting(client, 5);
    const Shared last = taking(client, {unknown});
    send(client, first, log_model, {event});
    send(client, unknown, count_model, {event});
    send(client, last, total_model, {unknown});
    send(client, next, log_model, {first});
    until([&] { return scene.pool->memory().versions[2].bindings.load() == 2; });
    CHECK(!teal::ClientSession::ended(*first));
    client.session->signal(*event);
    CHECK_EQ(answer(client, next), 6);
    CHECK_EQ(answer(client, last), 10);
    CHECK_EQ(scene.pool->memory().versions[2].bindings.load(), 2);
    CHECK_EQ(scene.pool->memory().versions[scene.total_line].bindings.load(), 1);
    scene.check_all_free();
}

// A client that lies about what it takes. Without a worker nobody reads it before the change.
void test_lies() {
    Scene scene;
    const Client client = scene.open(64, 64);
    const Shared done = source(client, 1);
    const Shared other = source(client);
    std::vector<std::pair<Shared, std::string>> liars;
    const auto lie = [&](const std::string& expected, auto&& change) {
        Shared slot = taking(client, {done});
        send(client, slot, total_model, {done});
        auto* tensor = reinterpret_cast<TensorDesc*>(slot->base + slot->offset + sizeof(teal::DescriptorHeader));
        change(*tensor, *slot);
        liars.emplace_back(slot, expected);
    };
    send(client, done, log_model);
    lie("and there are 1", [](TensorDesc& t, auto&) { t.shape[0] = 1; });
    lie("no output 1", [](TensorDesc& t, auto&) { t.shape[1] = 1; });
    lie("not a link", [](TensorDesc& t, auto&) { t.shape[1] = -1; });
    lie("not a link", [](TensorDesc& t, auto&) { t.shape[3] = INT64_MIN; });
    lie("not a region", [](TensorDesc& t, auto&) { t.shape[2] = 9; });
    lie("not a 64-byte line", [](TensorDesc& t, auto&) { t.shape[3] = INT64_MAX; });
    lie("not a descriptor block", [](TensorDesc& t, auto& slot) { t.shape[3] = static_cast<std::int64_t>(slot.outputs[0].offset + 64); });
    lie("lies elsewhere", [&](TensorDesc& t, auto&) { t.shape[3] = static_cast<std::int64_t>(other->offset); });
    lie("lies elsewhere", [](TensorDesc& t, auto&) { t.offset += 64; });
    lie("leave region", [](TensorDesc& t, auto&) { t.capacity = UINT64_MAX; });
    lie("an input cannot be unplanned", [](TensorDesc& t, auto&) { t.flags |= teal::tensor_unplanned; });
    lie("used again", [&](auto&, auto& slot) { --client.session->map().afters()[slot.index].on[0].generation; });
    scene.sweeper.tick();  // copies whom they wait for
    scene.add_worker();
    client.session->wait(*done, 0, 0);
    Shared bare = taking(client, {done});
    client.session->submit(*bare, total_model, 0, 0, 0);  // waits for nobody
    liars.emplace_back(bare, "and there are 0");
    for (auto& [slot, expected] : liars) {
        client.session->wait(*slot, 0, 0);
        ended_as(*slot, State::failed, Reason::invalid);
        if (!CHECK(message(*slot).find(expected) != std::string::npos)) std::fprintf(stderr, "  said: %s\n", message(*slot).c_str());
    }
    scene.check_all_free();
}

// Requests that wait for each other: the one that closes the circle is refused, which ends the others.
void test_circle() {
    Scene scene;
    const Client client = scene.open(64, 64);
    const Shared a = source(client);
    const Shared b = source(client);
    const Shared c = source(client);
    send(client, a, log_model, {client.session->make_event()});
    send(client, b, log_model, {a});
    send(client, c, log_model, {b});
    client.session->map().afters()[a->index].on[0] = {c->index, c->generation};
    scene.sweeper.tick();
    ended_as(*c, State::failed, Reason::invalid);
    scene.add_worker();
    for (const Shared& one : {a, b}) {
        client.session->wait(*one, 0, 0);
        ended_as(*one, State::cancelled, Reason::dependency);
    }
    scene.check_all_free();
}

// A client leaves in the middle: nothing stays behind.
void test_client_leaves() {
    Scene scene;
    scene.add_worker();
    const Client stays = scene.open();
    {
        const Client leaves = scene.open();
        const auto event = leaves.session->make_event();
        const Shared first = source(leaves);
        const Shared next = taking(leaves, {first});
        send(leaves, first, log_model, {event});
        send(leaves, next, log_model, {first});
        until([&] { return teal::peek_at(scene.pool->memory().header.blocked_size) == 2; });
        scene.close(leaves, Reason::client_gone);
        ended_as(*next, State::cancelled, Reason::client_gone);
    }
    const Shared other = source(stays, 5);
    send(stays, other, log_model);
    CHECK_EQ(answer(stays, other), 6);
    scene.check_all_free();
}

}  // namespace

int main() {
    test_stages();
    test_sizes_only_the_run_can_tell();
    test_spilled();
    test_does_not_suit();
    test_prepared_ahead();
    test_lies();
    test_circle();
    test_client_leaves();
    return teal::check::summary();
}
