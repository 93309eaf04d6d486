// Tests of slots over given places: calls on blocks and on other slots' tensors, what is refused, who keeps what until when.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "tests/check.hpp"
#include "tests/gated_pool.hpp"

namespace {

using namespace teal::tests;
using teal::Block;
using teal::ClientSession;
using teal::ClientSlot;
using teal::Code;
using teal::Dtype;
using teal::Hold;
using teal::Reason;
using teal::SlotHome;
using teal::State;
using teal::TensorPlan;

template <class Body>
std::string refusal(Code code, Body&& body) {
    try {
        body();
    } catch (const teal::Error& error) {
        return error.code() == code ? error.what() : "(another code) " + std::string(error.what());
    }
    return "(nothing)";
}
bool says(const std::string& text, const char* part) {
    const bool found = text.find(part) != std::string::npos;
    if (!found) std::fprintf(stderr, "    said: %s\n", text.c_str());
    return found;
}

std::shared_ptr<Block> block_of(const Client& client, std::int64_t value, std::uint64_t size = 8) {
    auto block = client.session->allocate(size, 256);
    std::memcpy(block->memory->base() + block->offset, &value, 8);
    return block;
}
std::int64_t value_of(const Block& block) {
    std::int64_t value = 0;
    std::memcpy(&value, block.memory->base() + block.offset, 8);
    return value;
}
TensorPlan at(const Block& block) {
    TensorPlan plan = scalar;
    plan.place = {block.region, block.offset};
    return plan;
}
std::shared_ptr<SlotHome> home_of(const Client& client, const TensorPlan& in, const TensorPlan& out) {
    return std::make_shared<SlotHome>(client.session, std::vector{in}, std::vector{out}, 4, false);
}
std::vector<Hold> holds(const std::shared_ptr<Block>& in, const std::shared_ptr<Block>& out) {
    return {in ? teal::hold_on(in) : Hold{}, out ? teal::hold_on(out) : Hold{}};
}

void test_calls_in_place() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open();
    const auto in = block_of(client, 41);
    const auto out = block_of(client, 0);
    const auto home = home_of(client, at(*in), at(*out));
    std::uint32_t stamp = 0;
    for (int round = 0; round < 3; ++round) {
        const auto slot = home->loan(holds(in, out));
        if (round > 0) CHECK_EQ(slot->stamp, stamp);  // the same slot, its binding with it
        stamp = slot->stamp;
        CHECK(call(*client.session, *slot, log_model));
        CHECK_EQ(value_of(*out), 42);
        CHECK(slot->address(0, true) == out->memory->base() + out->offset);
        CHECK_EQ(in.use_count(), 2);
        ClientSession::let_go_of_places(*slot);
        CHECK_EQ(in.use_count(), 1);
    }
    {
        const std::lock_guard lock(scene.log_mutex);
        CHECK_EQ(scene.log.size(), 3);
    }
    CHECK_EQ(scene.pool->memory().versions[1].bindings.load() + scene.pool->memory().versions[2].bindings.load(), 1);
    // One tensor given, the other the slot's own.
    const auto half = home_of(client, scalar, at(*out));
    const auto slot = half->loan(holds(nullptr, out));
    input(*slot) = 7;
    CHECK(call(*client.session, *slot, identity_model));
    CHECK_EQ(value_of(*out), 7);
    scene.check_all_free();
}

void test_refused_plans() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open();
    const auto block = block_of(client, 1, 64);
    const auto refused = [&](TensorPlan in, TensorPlan out) {
        return refusal(Code::invalid_argument, [&] { (void)client.session->make_slot({std::move(in)}, {std::move(out)}); });
    };
    TensorPlan elsewhere = at(*block);
    elsewhere.place->region = 9;
    CHECK(says(refused(elsewhere, scalar), "$.inputs[0]: 9 is not a region of this session"));
    elsewhere.place = {0, UINT64_MAX - 7};
    CHECK(says(refused(scalar, elsewhere), "$.outputs[0]: "));
    elsewhere.place = {0, block->memory->size() - 4};
    CHECK(says(refused(scalar, elsewhere), "bytes leave region 0"));
    elsewhere.place = {0, 64};  // the region's header
    CHECK(says(refused(scalar, elsewhere), "bytes leave region 0"));
    elsewhere.place = {0, block->offset + 4};
    CHECK(says(refused(elsewhere, scalar), "is not aligned for its dtype"));
    elsewhere.place = {0, block->offset};
    elsewhere.shape = {3};
    CHECK(says(refused(at(*block), elsewhere), "$.outputs[0]: overlaps $.inputs[0]"));
    CHECK(says(refusal(Code::invalid_argument, [&] { (void)client.session->make_slot({scalar}, {at(*block), elsewhere}); }),
               "$.outputs[1]: overlaps $.outputs[0]"));
    CHECK_EQ(client.session->slots_out(), 0);
    scene.check_all_free();
}

void test_readers_and_writers() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open();
    const auto in = block_of(client, 5);
    const auto out = block_of(client, 0);
    const auto other = block_of(client, 0);
    const auto loan = [&](const std::shared_ptr<Block>& from, const std::shared_ptr<Block>& to) {
        return home_of(client, at(*from), at(*to))->loan(holds(from, to));
    };
    const auto first = loan(in, out);
    client.session->submit(*first, pure_gate_model, 0, 0, 0);
    until([&] { return scene.in_gate.load() == 1; });
    const auto busy = [&](const std::shared_ptr<ClientSlot>& slot) {
        return refusal(Code::busy, [&] { client.session->submit(*slot, log_model, 0, 0, 0); });
    };
    CHECK(says(busy(loan(other, out)), "$.outputs[0]: a request that is still out uses this memory"));
    CHECK(says(busy(loan(other, in)), "$.outputs[0]: a request that is still out uses this memory"));
    CHECK(says(busy(loan(out, other)), "$.inputs[0]: a request that is still out writes this memory"));
    const auto reader = loan(in, other);  // two readers: fine
    client.session->submit(*reader, log_model, 0, 0, 0);
    CHECK(client.session->cancel(*first, State::cancelled, Reason::client_cancelled));
    CHECK(says(busy(loan(in, out)), "$.outputs[0]"));  // cancelled, but the kernel still runs on it
    scene.open_gate = true;
    until([&] { return ClientSession::let_go(*first); });
    client.session->wait(*reader, 0, 0);
    CHECK_EQ(value_of(*other), 6);
    CHECK(call(*client.session, *loan(in, out), log_model));
    CHECK_EQ(value_of(*out), 6);
    scene.check_all_free();
}

// A slot's own tensors as places: its requests and the others' see each other.
void test_lender() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open();
    const auto native = home_of(client, scalar, scalar);
    const std::shared_ptr<ClientSlot> lender = native->loan();
    const Hold hold{lender->memory, lender, nullptr, lender.get()};
    TensorPlan input_of_lender = scalar;
    input_of_lender.place = {lender->inputs[0].region, lender->inputs[0].offset};
    TensorPlan output_of_lender = scalar;
    output_of_lender.place = {lender->outputs[0].region, lender->outputs[0].offset};
    input(*lender) = 3;
    client.session->submit(*lender, pure_gate_model, 0, 0, 0);
    until([&] { return scene.in_gate.load() == 1; });
    const auto writer = home_of(client, scalar, input_of_lender)->loan({Hold{}, hold});
    const auto reader = home_of(client, output_of_lender, scalar)->loan({hold, Hold{}});
    const auto same = home_of(client, input_of_lender, scalar)->loan({hold, Hold{}});
    CHECK(says(refusal(Code::busy, [&] { client.session->submit(*writer, log_model, 0, 0, 0); }), "$.outputs[0]"));
    CHECK(says(refusal(Code::busy, [&] { client.session->submit(*reader, log_model, 0, 0, 0); }), "$.inputs[0]"));
    client.session->submit(*same, log_model, 0, 0, 0);
    scene.open_gate = true;
    client.session->wait(*lender, 0, 0);
    client.session->wait(*same, 0, 0);
    CHECK_EQ(output(*same), 4);
    scene.open_gate = false;
    input(*writer) = 8;
    client.session->submit(*writer, pure_gate_model, 0, 0, 0);
    until([&] { return scene.in_gate.load() == 2; });
    CHECK(says(refusal(Code::busy, [&] { client.session->submit(*lender, log_model, 0, 0, 0); }), "$.inputs[0]"));
    scene.open_gate = true;
    client.session->wait(*writer, 0, 0);
    until([&] { return ClientSession::let_go(*writer); });
    CHECK(call(*client.session, *lender, log_model));
    CHECK_EQ(output(*lender), 9);
    scene.check_all_free();
}

// Whoever lets go of everything while the kernel runs: the memory is not given out again before the worker is through.
void test_limbo() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open();
    auto in = block_of(client, 1);
    auto out = block_of(client, 2);
    const std::uint64_t place = out->offset;
    auto home = home_of(client, at(*in), at(*out));
    auto slot = home->loan(holds(in, out));
    client.session->submit(*slot, pure_gate_model, 0, 0, 0);
    until([&] { return scene.in_gate.load() == 1; });
    CHECK(client.session->cancel(*slot, State::cancelled, Reason::client_cancelled));
    CHECK(!home->deserted());
    slot.reset();
    in.reset();
    out.reset();
    CHECK(!home->deserted());
    for (int i = 0; i < 3; ++i) CHECK(block_of(client, 0)->offset != place);
    CHECK(client.session->take_empty_regions(0).empty());
    scene.open_gate = true;
    until([&] {
        (void)client.session->allocate(1, 256);
        return home->deserted();
    });
    home.reset();
    CHECK_EQ(client.session->slots_out(), 0);
    CHECK_EQ(client.session->bytes_used(), 0);
    scene.check_all_free();
}

// Each call on the output of the one before, in homes of their own: only the end of the chain keeps memory.
void test_chain() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open();
    std::shared_ptr<ClientSlot> slot = home_of(client, scalar, scalar)->loan();
    input(*slot) = 0;
    CHECK(call(*client.session, *slot, log_model));
    std::uint64_t most = 0;
    for (int i = 0; i < 50; ++i) {
        TensorPlan in = scalar;
        in.place = {slot->outputs[0].region, slot->outputs[0].offset};
        const auto next = home_of(client, in, scalar)->loan({Hold{slot->memory, slot, slot->views, slot.get()}, Hold{}});
        CHECK(call(*client.session, *next, log_model));
        ClientSession::let_go_of_places(*next);
        slot = next;
        if (i == 2) most = client.session->bytes_used();
    }
    CHECK_EQ(output(*slot), 51);
    CHECK_EQ(client.session->bytes_used(), most);
    slot.reset();
    CHECK_EQ(client.session->slots_out(), 0);
    scene.check_all_free();
}

void test_close_with_slots_out() {
    GatedPool scene;
    scene.add_worker();
    Client client = scene.open();
    std::weak_ptr<ClientSession> session = client.session;
    for (const bool before : {true, false}) {
        auto in = block_of(client, 1);
        auto slot = home_of(client, at(*in), scalar)->loan(holds(in, nullptr));
        if (!before) client.session->close();
        if (before) client.session->submit(*slot, gate_model, 0, 0, 0);
        else slot->submitted = true;  // as if it had been sent just before
        slot.reset();
    }
    scene.open_gate = true;
    scene.stop();
    scene.clients.clear();
    client.session.reset();
    CHECK(session.expired());  // nothing that was out keeps it
}

// A request that waits for another may use its memory: the other is done with it by then. So may one that waits for that one.
void test_memory_handed_on() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open();
    const auto a = block_of(client, 1);
    const auto b = block_of(client, 0);
    const auto c = block_of(client, 0);
    const auto first = home_of(client, at(*a), at(*b))->loan(holds(a, b));
    const auto second = home_of(client, at(*b), at(*c))->loan(holds(b, c));
    const auto third = home_of(client, at(*c), at(*a))->loan(holds(c, a));  // writes what the first one reads
    const auto event = client.session->make_event();
    client.session->submit(*first, log_model, 0, 0, 0, {event});
    CHECK(says(refusal(Code::busy, [&] { client.session->submit(*second, log_model, 0, 0, 0); }), "$.inputs[0]"));
    CHECK(says(refusal(Code::busy, [&] { client.session->submit(*second, log_model, 0, 0, 0, {event}); }), "$.inputs[0]"));
    client.session->submit(*second, log_model, 0, 0, 0, {first});
    client.session->submit(*third, log_model, 0, 0, 0, {second});
    client.session->signal(*event);
    client.session->wait(*third, 0, 0);
    ended_as(*third, State::done, Reason::none);
    CHECK_EQ(value_of(*b), 2);
    CHECK_EQ(value_of(*c), 3);
    CHECK_EQ(value_of(*a), 4);
    CHECK(call(*client.session, *first, log_model));
    scene.check_all_free();
}

// A request that is with a device kernel is out like any other.
void test_direct_is_out() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open();
    const auto a = block_of(client, 1);
    const auto b = block_of(client, 0);
    const auto slot = home_of(client, at(*a), at(*b))->loan(holds(a, b));
    const auto other = home_of(client, at(*b), at(*a))->loan(holds(b, a));
    CHECK(call(*client.session, *slot, log_model));
    teal::ReplyLine& reply = slot->device->reply;
    reply.stamp = slot->stamp;
    reply.owner = 1;
    reply.state = static_cast<std::uint32_t>(teal::LineState::resident);
    CHECK(client.session->submit_direct(*slot));
    CHECK(says(refusal(Code::busy, [&] { client.session->submit(*other, log_model, 0, 0, 0); }), "writes"));
    reply.generation = slot->device->request.generation.load();  // what the kernel would store
    CHECK(client.session->wait_direct(*slot, 1'000'000'000, 0) == teal::Answer::done);
    CHECK(call(*client.session, *other, log_model));
}

}  // namespace

int main() {
    test_calls_in_place();
    test_refused_plans();
    test_readers_and_writers();
    test_lender();
    test_limbo();
    test_chain();
    test_close_with_slots_out();
    test_memory_handed_on();
    test_direct_is_out();
    return teal::check::summary();
}
