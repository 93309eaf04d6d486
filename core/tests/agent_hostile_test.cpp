// Agents that die, stand still, lie and scribble: the pool goes on, every call is answered once and right.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "agents/agent.hpp"
#include "tests/fifo_policy.hpp"
#include "tests/small_pool.hpp"

namespace {

using namespace teal;
using namespace teal::tests;

// An agent in a process of its own, forked before there are threads.
struct Child {
    pid_t pid = -1;

    template <class Body>
    explicit Child(Body&& body) {
        pid = ::fork();
        if (pid != 0) return;
        body();
        ::_exit(0);
    }
    void kill(int signal) const { CHECK_EQ(::kill(pid, signal), 0); }
    void reap() {
        if (pid <= 0) return;
        ::kill(pid, SIGKILL);
        ::waitpid(pid, nullptr, 0);
        pid = -1;
    }
    ~Child() { reap(); }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;
};

void serve(const Sweeper::Seated& seated) {
    AgentLoop loop(AgentSeat::attach(seated.agent_view_fd, ::dup(seated.desk_fd)), std::make_shared<Fifo>());
    loop.run();
}

// Clients that call all the time, each answer checked.
class Load {
public:
    Load(SmallPool& pool, unsigned clients) {
        for (unsigned i = 0; i < clients; ++i) clients_.push_back(pool.open(16, 32));
    }
    ~Load() { stop(); }
    void start() {
        for (Client& client : clients_) threads_.emplace_back([this, &client] { drive(client); });
    }
    // Until so many more were answered.
    void pass(std::uint64_t calls) const {
        const std::uint64_t goal = calls_.load() + calls;
        until([&] { return calls_.load() >= goal; });
    }
    void stop() {
        over_ = true;
        for (std::thread& thread : threads_) thread.join();
        threads_.clear();
    }

private:
    void drive(Client& client) {
        std::vector<std::unique_ptr<ClientSlot>> slots;
        for (int i = 0; i < 8; ++i) slots.push_back(client.slot());
        for (std::int64_t round = 0; !over_; ++round) {
            for (std::size_t i = 0; i < slots.size(); ++i) {
                input(*slots[i]) = round * 8 + static_cast<std::int64_t>(i);
                client.session->submit(*slots[i], 0, 0, 0, 0);
            }
            for (std::size_t i = 0; i < slots.size(); ++i) {
                client.session->wait(*slots[i], 0, 0);
                if (!CHECK_EQ(state_of(*slots[i]), State::done) || !CHECK_EQ(output(*slots[i]), round * 8 + static_cast<std::int64_t>(i))) over_ = true;
                calls_.fetch_add(1);
            }
        }
    }

    std::vector<Client> clients_;
    std::vector<std::thread> threads_;
    std::atomic<bool> over_{false};
    std::atomic<std::uint64_t> calls_{0};
};

// Killed at any moment, again and again.
void test_killed_agents() {
    SmallPool pool;
    pool.load(0, "identity");
    Load load(pool, 2);
    constexpr int agents = 6;
    std::vector<Sweeper::Seated> seated;
    std::vector<std::unique_ptr<Child>> children;
    for (int i = 0; i < agents; ++i) seated.push_back(pool.sweeper.attach_seat(0, 256));
    for (const Sweeper::Seated& one : seated) children.push_back(std::make_unique<Child>([&] { serve(one); }));
    for (const Sweeper::Seated& one : seated) ::close(one.agent_view_fd);
    pool.add_worker();
    pool.add_worker();
    pool.sweeper.start();
    load.start();
    for (int i = 0; i < agents; ++i) {
        const std::shared_ptr<HostSeat> seat = pool.sweeper.seat(0, seated[static_cast<std::size_t>(i)].incarnation);
        until([&] { return seat->agent_state() == AgentState::ready; });
        pool.sweeper.activate_seat(0, seat->incarnation());
        load.pass(500);
        children[static_cast<std::size_t>(i)]->kill(i % 2 == 0 ? SIGKILL : SIGSTOP);
        load.pass(100);  // the calls that it left behind wait for the watch
        until([&] { return pool.sweeper.active_seat(0) == 0; });
        load.pass(100);
        children[static_cast<std::size_t>(i)]->reap();
        CHECK(seat->numbers().outcomes[0].load() > 0);
    }
    const auto events = pool.sweeper.take_seat_events();
    CHECK_EQ(events.size(), agents);
    for (const Sweeper::SeatEvent& event : events) CHECK(event.reason.starts_with("no heartbeat"));
    load.stop();
    pool.check_all_free();
}

// What a liar says is taken from what is true, and changed here and there.
void lie(AgentSeat& seat, std::mt19937_64& random) {
    const std::uint32_t worker = static_cast<std::uint32_t>(random() % 3);
    Decided d{};
    RequestWord word{};
    d.object = static_cast<std::uint32_t>(random() % 64);
    if (seat.request(d.object, word)) {
        d.generation = word.generation;
        d.tseq = word.tseq;
    }
    d.aseq = seat.aseq();
    switch (random() % 12) {
        case 0: d.generation += static_cast<std::uint32_t>(random() % 3) - 1; break;
        case 1: d.tseq += static_cast<std::uint32_t>(random() % 3) - 1; break;
        case 2: d.object = static_cast<std::uint32_t>(random()); break;
        case 3: d.commit_flags = static_cast<std::uint8_t>(random()); break;
        case 4: d.run_flags = static_cast<std::uint8_t>(random()); break;
        case 5:
            d.commit_flags = commit_group;
            d.group = static_cast<std::uint32_t>(random() % 3);
            d.members = static_cast<std::uint32_t>(random() % 70);
            d.expires_ns = static_cast<std::uint64_t>(monotonic_ns()) + random() % 100'000;
            break;
        case 6: d.expires_ns = random(); break;
        case 7: d.slice_us = static_cast<std::uint32_t>(random()); break;
        case 8:
            d.object = no_object;
            d.run_flags = run_local_default;
            break;
        default: break;
    }
    const AgentSeat::Staged staged = seat.stage(worker, d);
    if (staged.ok && random() % 4 == 0) seat.withdraw(worker, staged.serial);
    if (random() % 8 == 0) seat.ask_preempt(worker, static_cast<std::uint32_t>(random() % 64), static_cast<std::uint32_t>(random() % 64));
    seat.ring();
    seat.beat(random());
}

void test_liar() {
    SmallPool pool;
    pool.load(0, "identity");
    Load load(pool, 2);
    const Sweeper::Seated seated = pool.sweeper.attach_seat(0, 64);
    auto seat = AgentSeat::attach(seated.agent_view_fd, ::dup(seated.desk_fd));
    pool.add_worker();
    pool.add_worker();
    std::atomic<bool> over{false};
    std::thread liar([&] {
        std::mt19937_64 random(7);
        Message m;
        while (!over) {
            while (seat->poll(m)) {}
            lie(*seat, random);
        }
    });
    pool.sweeper.set_seat_limits(0, 50'000'000, 30'000'000);
    pool.sweeper.start();
    load.start();
    for (int round = 0; round < 20; ++round) {
        pool.sweeper.activate_seat(0, seated.incarnation);
        load.pass(300);  // by what is right among the lies, or because it was put off its seat
    }
    load.stop();
    over = true;
    liar.join();
    const SeatNumbers& numbers = pool.sweeper.seat(0, seated.incarnation)->numbers();
    CHECK(numbers.outcomes[static_cast<std::size_t>(Outcome::not_found)].load() > 0);
    pool.stop();
    pool.check_all_free();
}

// Random bytes all over the desk, all the time.
void test_scribbler() {
    SmallPool pool;
    pool.load(0, "identity");
    Load load(pool, 2);
    const Sweeper::Seated seated = pool.sweeper.attach_seat(0, 64);
    Child scribbler([&] {
        const auto desk = Region::adopt(::dup(seated.desk_fd), RegionKind::desk, true, Header::ignored);
        std::mt19937_64 random(3);
        for (;;) {
            const std::uint64_t words = desk->size() / 8;
            const std::uint64_t at = random() % words;
            auto* word = reinterpret_cast<std::atomic<std::uint64_t>*>(desk->base()) + at;
            // Often what almost makes sense: a serial near the next one, in any state.
            const std::uint64_t value = random() % 2 == 0 ? random() : (random() % 4096) | (random() % 5) << 32;
            word->store(value, std::memory_order_relaxed);
        }
    });
    ::close(seated.agent_view_fd);
    pool.add_worker();
    pool.add_worker();
    pool.sweeper.set_seat_limits(0, 50'000'000, 20'000'000);
    pool.sweeper.start();
    load.start();
    for (int round = 0; round < 10; ++round) {
        pool.sweeper.activate_seat(0, seated.incarnation);
        load.pass(50);
    }
    load.stop();
    scribbler.reap();
    pool.stop();
    pool.check_all_free();
}

// Workers die under an agent, in the middle of what it has decided; the agent finds the others, and the new one.
void test_workers_die() {
    SmallPool pool;
    Client client = pool.open(16, 32);
    pool.load(0, "identity", kernel_idempotent);
    const Sweeper::Seated seated = pool.sweeper.attach_seat(0, 256);
    auto policy = std::make_shared<Fifo>();
    AgentLoop loop(AgentSeat::attach(seated.agent_view_fd, ::dup(seated.desk_fd)), policy);
    std::thread agent([&] { loop.run(); });
    std::vector<SessionMap*> maps(max_sessions, nullptr);
    maps[client.index] = &client.session->map();
    std::vector<SessionMap*> live{maps[client.index]};
    pool.sweeper.start();
    pool.sweeper.activate_seat(0, seated.incarnation);
    std::vector<std::unique_ptr<ClientSlot>> slots;
    for (int i = 0; i < 16; ++i) slots.push_back(client.slot());
    // Workers by hand that stop at each step: with something staged, claimed and begun, or done and not given back.
    for (int round = 0; round < 12; ++round) {
        const std::uint32_t hand = pool.add_worker(true);
        WorkerLine& line = pool.pool->memory().workers[hand];
        line.state.store(static_cast<std::uint32_t>(WorkerState::idle));
        for (auto& slot : slots) {
            input(*slot) = round;
            client.session->submit(*slot, 0, 0, 0, 0);
        }
        std::uint32_t taken = nobody;
        until([&] {
            CHECK(pool.pool->enter(1'000'000'000));
            pool.pool->drain(live);
            if (taken == nobody) taken = pool.pool->pick(hand, maps);
            pool.pool->leave();
            return taken != nobody;
        });
        if (round % 3 == 1) until([&] { return pool.sweeper.seat(0, seated.incarnation)->staged(hand); });
        if (round % 3 == 2) {
            // It dies holding the role, in the middle of another claim.
            CHECK(pool.pool->enter(1'000'000'000));
            pool.pool->repair();
            pool.pool->leave();
        }
        pool.sweeper.bury_worker(hand, SIGKILL);
        const std::uint32_t worker = pool.add_worker();
        for (auto& slot : slots) {
            client.session->wait(*slot, 0, 0);
            CHECK_EQ(state_of(*slot), State::done);
            CHECK_EQ(output(*slot), round);
        }
        pool.quit(worker);
    }
    CHECK(pool.sweeper.take_seat_events().empty());
    pool.stop();
    loop.stop();
    agent.join();
    CHECK_EQ(loop.figures().errors, 0);
    pool.check_all_free();
}

}  // namespace

int main() {
    test_killed_agents();
    test_liar();
    test_scribbler();
    test_workers_die();
    return teal::check::summary();
}
