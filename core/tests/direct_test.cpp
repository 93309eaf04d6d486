// Tests of calls that a client makes to a resident device kernel without a worker in between.
#include <atomic>
#include <cstdint>
#include <thread>

#include "base/error.hpp"
#include "tests/check.hpp"
#include "tests/gated_pool.hpp"

namespace {

using namespace teal::tests;
using teal::Answer;
using teal::Code;
using teal::LineState;
using teal::State;

// A resident kernel of one line: adds 100 to the slot's number. It never reads back what it stored in the reply line.
class Resident {
public:
    Resident(teal::ClientSlot& slot, std::uint32_t worker) : slot_(slot) {
        teal::ReplyLine& reply = slot.device->reply;
        reply.stamp = slot.stamp;
        reply.owner = worker + 1;
        reply.generation = slot.device->request.generation.load();
        reply.state = static_cast<std::uint32_t>(LineState::resident);
        thread_ = std::thread([this] { loop(); });
    }
    ~Resident() { leave(LineState::parked); }
    void leave(LineState state) {
        quit_ = true;
        if (thread_.joinable()) thread_.join();
        slot_.device->reply.state = static_cast<std::uint32_t>(state);
    }
    std::atomic<bool> deaf{false};
    std::atomic<std::uint32_t> status{0};
    std::atomic<int> runs{0};

private:
    void loop() {
        std::uint32_t done = slot_.device->reply.generation.load();
        while (!quit_) {
            const std::uint32_t asked = slot_.device->request.generation.load(std::memory_order_acquire);
            if (asked == done || deaf) continue;
            output(slot_) = input(slot_) + 100;
            ++runs;
            done = asked;
            slot_.device->reply.status.store(status, std::memory_order_relaxed);
            slot_.device->reply.generation.store(done, std::memory_order_release);
        }
    }
    teal::ClientSlot& slot_;
    std::atomic<bool> quit_{false};
    std::thread thread_;
};

constexpr std::uint64_t long_ns = 20'000'000'000;

void test_answers() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open();
    const auto slot = client.slot();
    CHECK(!client.session->submit_direct(*slot));  // nothing serves it
    input(*slot) = 1;
    CHECK(call(*client.session, *slot, log_model));
    CHECK(!client.session->submit_direct(*slot));
    Resident kernel(*slot, 0);
    for (std::int64_t i = 0; i < 1000; ++i) {
        input(*slot) = i;
        if (!CHECK(client.session->submit_direct(*slot))) return;
        CHECK(client.session->wait_direct(*slot, long_ns, 1'000'000) == Answer::done);
        CHECK_EQ(output(*slot), i + 100);
        CHECK(teal::ClientSession::quiescent(*slot));
    }
    {
        const std::lock_guard lock(scene.log_mutex);
        CHECK_EQ(scene.log.size(), 1);
    }
    slot->stamp = client.session->next_stamp();  // other tensors
    CHECK(!client.session->submit_direct(*slot));
    kernel.leave(LineState::parked);
    scene.check_all_free();
}

void test_out_means_out() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open();
    const auto slot = client.slot();
    CHECK(call(*client.session, *slot, log_model));
    Resident kernel(*slot, 0);
    kernel.deaf = true;
    CHECK(client.session->submit_direct(*slot));
    CHECK(!teal::ClientSession::quiescent(*slot));
    CHECK(client.session->wait_direct(*slot, 10'000, 0) == Answer::late);
    const auto code = [&](auto&& run) {
        try {
            run();
        } catch (const teal::Error& error) {
            return static_cast<int>(error.code());
        }
        return -1;
    };
    CHECK_EQ(code([&] { (void)client.session->submit_direct(*slot); }), static_cast<int>(Code::busy));
    CHECK_EQ(code([&] { client.session->submit(*slot, log_model, 0, 0, 0); }), static_cast<int>(Code::busy));
    kernel.deaf = false;
    CHECK(client.session->wait_direct(*slot, long_ns, 0) == Answer::done);
    CHECK(teal::ClientSession::quiescent(*slot));
    kernel.leave(LineState::parked);
    scene.check_all_free();
}

// What ends otherwise goes on through the ring.
void test_other_ends() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open();
    const auto slot = client.slot();
    CHECK(call(*client.session, *slot, log_model));
    {
        Resident kernel(*slot, 0);
        kernel.deaf = true;
        CHECK(client.session->submit_direct(*slot));
        kernel.leave(LineState::parked);
        CHECK(client.session->wait_direct(*slot, long_ns, 0) == Answer::parked);
    }
    CHECK(call(*client.session, *slot, log_model));
    {
        Resident kernel(*slot, 0);
        kernel.status = static_cast<std::uint32_t>(teal::LineStatus::failed);
        CHECK(client.session->submit_direct(*slot));
        CHECK(client.session->wait_direct(*slot, long_ns, 0) == Answer::failed);
    }
    CHECK(call(*client.session, *slot, log_model));
    Resident kernel(*slot, 0);
    CHECK(!call(*client.session, *slot, 99));             // no such model
    CHECK(!client.session->submit_direct(*slot));         // what the word says would not be true of it
    kernel.leave(LineState::parked);
    scene.check_all_free();
}

// The worker that kept the kernel dies: the host says so in the line.
void test_lost() {
    GatedPool scene;
    scene.add_worker();
    const Client client = scene.open();
    const auto slot = client.slot();
    CHECK(call(*client.session, *slot, log_model));
    Resident kernel(*slot, 5);
    kernel.deaf = true;
    CHECK(client.session->submit_direct(*slot));
    std::thread waiter([&] { CHECK(client.session->wait_direct(*slot, long_ns, 1000) == Answer::lost); });
    scene.sweeper.bury_worker(4, 9);
    CHECK_EQ(slot->device->reply.state.load(), static_cast<std::uint32_t>(LineState::resident));  // another's
    scene.sweeper.bury_worker(5, 9);
    waiter.join();
    CHECK(teal::ClientSession::quiescent(*slot));
    CHECK(!client.session->submit_direct(*slot));
    CHECK(call(*client.session, *slot, log_model));
    kernel.leave(LineState::lost);
    scene.check_all_free();
}

}  // namespace

int main() {
    test_answers();
    test_out_means_out();
    test_other_ends();
    test_lost();
    return teal::check::summary();
}
