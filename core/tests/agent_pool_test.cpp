// A pool whose workers do what an agent decides: the way of a request, fallback, upgrade, death, limits and company.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <unistd.h>
#include <vector>

#include "agents/agent.hpp"
#include "tests/fifo_policy.hpp"
#include "tests/small_pool.hpp"

namespace {

using namespace teal;
using namespace teal::tests;

// An agent in a thread of its own, with mappings of its own, at a seat of a SmallPool.
struct Agent {
    Sweeper::Seated seated;
    std::shared_ptr<Fifo> policy = std::make_shared<Fifo>();
    std::unique_ptr<AgentLoop> loop;
    std::thread thread;

    explicit Agent(SmallPool& pool, std::uint32_t ring = 1024, std::uint64_t idle_ns = 20'000) : seated(pool.sweeper.attach_seat(0, ring)) {
        AgentSpec spec;
        spec.idle_ns = idle_ns;
        loop = std::make_unique<AgentLoop>(AgentSeat::attach(seated.agent_view_fd, ::dup(seated.desk_fd)), policy, spec);
        thread = std::thread([this] { loop->run(); });
    }
    ~Agent() { leave(); }
    void leave() {
        loop->stop();
        if (thread.joinable()) thread.join();
    }
};

void test_calls_are_decided() {
    SmallPool pool;
    Client client = pool.open();
    pool.load(0, "identity");
    pool.add_worker();
    Agent agent(pool);
    pool.sweeper.activate_seat(0, agent.seated.incarnation);
    auto slot = client.slot();
    for (std::int64_t i = 0; i < 2000; ++i) {
        input(*slot) = i;
        if (!CHECK(call(*client.session, *slot, 0)) || !CHECK_EQ(output(*slot), i)) break;
    }
    const SeatNumbers& numbers = pool.sweeper.seat(0, agent.seated.incarnation)->numbers();
    CHECK_EQ(numbers.outcomes[0].load(), 2000);
    CHECK_EQ(numbers.local.load(), 0);
    CHECK_EQ(numbers.lost.load(), 0);
    pool.stop();
    agent.leave();
    CHECK_EQ(agent.loop->figures().errors, 0);
    CHECK_EQ(agent.policy->done, 2000);
    pool.check_all_free();
}

// Many in flight, two workers, two clients: each is answered once.
void test_load() {
    SmallPool pool;
    Client one = pool.open(32, 64);
    Client two = pool.open(32, 64);
    pool.load(0, "identity");
    pool.add_worker();
    pool.add_worker();
    Agent agent(pool, 64);  // a small ring: messages are lost, and found again
    pool.sweeper.start();
    pool.sweeper.activate_seat(0, agent.seated.incarnation);
    const auto drive = [](Client& client) {
        std::vector<std::unique_ptr<ClientSlot>> slots;
        for (int i = 0; i < 32; ++i) slots.push_back(client.slot());
        for (std::int64_t round = 0; round < 200; ++round) {
            for (std::size_t i = 0; i < slots.size(); ++i) {
                input(*slots[i]) = round * 100 + static_cast<std::int64_t>(i);
                client.session->submit(*slots[i], 0, 0, 0, 0);
            }
            for (std::size_t i = 0; i < slots.size(); ++i) {
                client.session->wait(*slots[i], 0, 0);
                CHECK_EQ(state_of(*slots[i]), State::done);
                CHECK_EQ(output(*slots[i]), round * 100 + static_cast<std::int64_t>(i));
            }
        }
    };
    std::thread other([&] { drive(two); });
    drive(one);
    other.join();
    CHECK(pool.sweeper.take_seat_events().empty());
    pool.stop();
    agent.leave();
    CHECK_EQ(agent.loop->figures().errors, 0);
    pool.check_all_free();
}

// The agent stops in the middle: the sweeper puts it off, and what waits is served in the default order.
void test_fallback() {
    SmallPool pool;
    Client client = pool.open();
    pool.load(0, "identity");
    pool.add_worker();
    auto agent = std::make_unique<Agent>(pool);
    pool.sweeper.start();
    pool.sweeper.activate_seat(0, agent->seated.incarnation);
    auto slot = client.slot();
    CHECK(call(*client.session, *slot, 0));
    agent->leave();  // says that it leaves; the calls go on
    for (int i = 0; i < 100; ++i) CHECK(call(*client.session, *slot, 0));
    until([&] { return pool.sweeper.active_seat(0) == 0; });
    const auto events = pool.sweeper.take_seat_events();
    if (CHECK_EQ(events.size(), 1)) CHECK_EQ(events[0].reason, "left");
    for (int i = 0; i < 100; ++i) CHECK(call(*client.session, *slot, 0));
    // Another one comes.
    Agent next(pool);
    pool.sweeper.activate_seat(0, next.seated.incarnation);
    for (int i = 0; i < 100; ++i) CHECK(call(*client.session, *slot, 0));
    pool.stop();
    next.leave();
    CHECK_EQ(next.policy->done, next.policy->news);
    pool.check_all_free();
}

// An agent that is there, and does nothing: no heartbeat.
void test_frozen_agent() {
    SmallPool pool;
    Client client = pool.open();
    pool.load(0, "identity");
    pool.add_worker();
    const Sweeper::Seated seated = pool.sweeper.attach_seat(0, 1024);
    auto seat = AgentSeat::attach(seated.agent_view_fd, ::dup(seated.desk_fd));
    pool.sweeper.set_seat_limits(0, 20'000'000, 0);
    pool.sweeper.start();
    pool.sweeper.activate_seat(0, seated.incarnation);
    auto slot = client.slot();
    CHECK(call(*client.session, *slot, 0));
    const auto events = pool.sweeper.take_seat_events();
    if (CHECK_EQ(events.size(), 1)) {
        CHECK(events[0].reason.starts_with("no heartbeat"));
        CHECK_EQ(events[0].kind, Sweeper::SeatEventKind::frozen);
    }
    pool.check_all_free();
}

// With nothing to do its heart may stand still. One that froze over a request is told of once it beats again, and can be taken back.
void test_frozen_agent_comes_back() {
    SmallPool pool;
    Client client = pool.open();
    pool.load(0, "identity");
    pool.add_worker();
    const Sweeper::Seated seated = pool.sweeper.attach_seat(0, 1024);
    const auto policy = std::make_shared<Fifo>();
    AgentLoop loop(AgentSeat::attach(seated.agent_view_fd, ::dup(seated.desk_fd)), policy);
    pool.sweeper.set_seat_limits(0, 20'000'000, 0);
    pool.sweeper.start();
    pool.sweeper.activate_seat(0, seated.incarnation);
    loop.step(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    CHECK(pool.sweeper.take_seat_events().empty());
    CHECK_EQ(pool.sweeper.active_seat(0), seated.incarnation);
    auto slot = client.slot();
    CHECK(call(*client.session, *slot, 0));  // in the default order, once the heart was missed
    CHECK_EQ(pool.sweeper.active_seat(0), 0);
    CHECK_EQ(pool.sweeper.take_seat_events().size(), 1);
    loop.step(2);
    std::vector<Sweeper::SeatEvent> events;
    until([&] { return !(events = pool.sweeper.take_seat_events()).empty(); });
    CHECK_EQ(events[0].kind, Sweeper::SeatEventKind::beats);
    CHECK_EQ(events[0].incarnation, seated.incarnation);
    pool.sweeper.activate_seat(0, seated.incarnation);
    std::thread agent([&] { loop.run(); });
    for (int i = 0; i < 100; ++i) CHECK(call(*client.session, *slot, 0));
    CHECK_EQ(pool.sweeper.seat(0, seated.incarnation)->numbers().outcomes[0].load(), 100);
    pool.stop();
    loop.stop();
    agent.join();
    CHECK_EQ(loop.figures().errors, 0);
    pool.check_all_free();
}

// Its last beat came right after a look of the host, and the next look is far: it stands still since that beat, and not since that look.
void test_a_beat_counts_from_when_it_was() {
    SmallPool pool;
    Client client = pool.open();
    pool.load(0, "identity");
    pool.add_worker();
    const Sweeper::Seated seated = pool.sweeper.attach_seat(0, 1024);
    AgentLoop loop(AgentSeat::attach(seated.agent_view_fd, ::dup(seated.desk_fd)), std::make_shared<Fifo>());
    pool.sweeper.set_seat_limits(0, 3'600'000'000'000, 0);
    pool.sweeper.activate_seat(0, seated.incarnation);
    auto slot = client.slot();
    client.session->submit(*slot, 0, 0, 0, 0);
    until([&] {
        pool.sweeper.tick();
        return pool.sweeper.seat_figures(0, seated.incarnation).offered == 1;
    });
    const std::int64_t beat = monotonic_ns();
    loop.seat().beat(static_cast<std::uint64_t>(beat));
    while (monotonic_ns() - beat < 12'000'000) relax();
    pool.sweeper.tick();
    CHECK(pool.sweeper.seat_figures(0, seated.incarnation).beat_age_ns >= 9'000'000);
    std::thread agent([&] { loop.run(); });
    client.session->wait(*slot, 0, 0);
    CHECK_EQ(state_of(*slot), State::done);
    pool.stop();
    loop.stop();
    agent.join();
    pool.check_all_free();
}

// It is alive, and leaves a request waiting.
void test_lazy_agent() {
    SmallPool pool;
    Client client = pool.open();
    pool.load(0, "identity");
    pool.add_worker();
    const Sweeper::Seated seated = pool.sweeper.attach_seat(0, 1024);
    auto seat = AgentSeat::attach(seated.agent_view_fd, ::dup(seated.desk_fd));
    std::atomic<bool> over{false};
    std::thread heart([&] {
        for (std::uint64_t i = 1; !over; ++i) seat->beat(i);
    });
    pool.sweeper.set_seat_limits(0, 50'000'000, 5'000'000);
    pool.sweeper.start();
    pool.sweeper.activate_seat(0, seated.incarnation);
    auto slot = client.slot();
    CHECK(call(*client.session, *slot, 0));
    const auto events = pool.sweeper.take_seat_events();
    if (CHECK_EQ(events.size(), 1)) CHECK(events[0].reason.starts_with("a request has waited"));
    over = true;
    heart.join();
    pool.check_all_free();
}

// A new agent takes over under load: nothing is lost, nothing fails.
void test_upgrade() {
    SmallPool pool;
    Client client = pool.open(32, 64);
    pool.load(0, "identity");
    pool.add_worker();
    pool.sweeper.start();
    std::vector<std::unique_ptr<Agent>> agents;
    agents.push_back(std::make_unique<Agent>(pool));
    pool.sweeper.activate_seat(0, agents[0]->seated.incarnation);
    std::atomic<bool> over{false};
    std::thread load([&] {
        std::vector<std::unique_ptr<ClientSlot>> slots;
        for (int i = 0; i < 16; ++i) slots.push_back(client.slot());
        while (!over) {
            for (auto& slot : slots) client.session->submit(*slot, 0, 0, 0, 0);
            for (auto& slot : slots) {
                client.session->wait(*slot, 0, 0);
                CHECK_EQ(state_of(*slot), State::done);
            }
        }
    });
    for (int i = 0; i < 20; ++i) {
        agents.push_back(std::make_unique<Agent>(pool));
        pool.sweeper.activate_seat(0, agents.back()->seated.incarnation);
        Agent& old = *agents[agents.size() - 2];
        old.leave();
        pool.sweeper.detach_seat(0, old.seated.incarnation);
    }
    over = true;
    load.join();
    CHECK(pool.sweeper.take_seat_events().empty());
    pool.stop();
    pool.check_all_free();
}

}  // namespace

int main() {
    test_calls_are_decided();
    test_load();
    test_fallback();
    test_frozen_agent();
    test_frozen_agent_comes_back();
    test_a_beat_counts_from_when_it_was();
    test_lazy_agent();
    test_upgrade();
    return teal::check::summary();
}
