// A pool in one process for tests: host side, workers in threads, clients with one tensor region each.
//
// Everything goes the way it goes between processes: descriptors are duplicated where a socket would carry them, every side
// has mappings of its own.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <source_location>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "agents/agent.hpp"
#include "cpu/clock.hpp"
#include "host/slot_home.hpp"
#include "host/sweeper.hpp"
#include "host/worker.hpp"
#include "kernel/builtin.hpp"
#include "tests/check.hpp"
#include "tests/fifo_policy.hpp"
#include "tests/meeting.hpp"

namespace teal::tests {

// A kernel made of one function of one int64.
class Lambda final : public Kernel {
public:
    using Body = std::function<bool(const std::int64_t& in, std::int64_t& out, Run& run)>;
    explicit Lambda(Body body) : body_(std::move(body)) {}
    std::unique_ptr<Binding> bind(const Run& run, std::string& error) override {
        const Descriptor& d = *run.descriptor;
        const auto fits = [](const std::vector<TensorDesc>& list) {
            return list.size() == 1 && list[0].flags == 0 && static_cast<Dtype>(list[0].dtype) == Dtype::i64 && list[0].nbytes == 8;
        };
        if (!fits(d.inputs) || !fits(d.outputs)) {
            error = "$.inputs: expected one int64 in and one out";
            return nullptr;
        }
        struct One final : Binding {
            Body body;
            const std::int64_t* in = nullptr;
            std::int64_t* out = nullptr;
            bool run(Run& r) noexcept override { return body(*in, *out, r); }
        };
        auto one = std::make_unique<One>();
        one->body = body_;
        one->in = reinterpret_cast<const std::int64_t*>(run.address(d.inputs[0]));
        one->out = reinterpret_cast<std::int64_t*>(run.address(d.outputs[0]));
        return one;
    }

private:
    Body body_;
};

inline TensorPlan plan(Dtype dtype, std::vector<std::int64_t> shape, std::uint16_t flags = 0, std::uint64_t capacity = 0) {
    return TensorPlan{dtype, flags, std::move(shape), capacity};
}
inline const TensorPlan scalar = plan(Dtype::i64, {});

struct Client {
    std::uint32_t index = 0;
    std::uint32_t epoch = 0;
    std::uint32_t slots = 0;
    int session_fd = -1;
    std::shared_ptr<Region> region;
    std::shared_ptr<ClientSession> session;

    // A slot with one int64 in and one out.
    [[nodiscard]] std::unique_ptr<ClientSlot> slot() const { return session->make_slot({scalar}, {scalar}); }
};

inline std::int64_t& input(ClientSlot& slot, std::size_t i = 0) { return *reinterpret_cast<std::int64_t*>(slot.base + slot.inputs[i].offset); }
inline std::int64_t& output(ClientSlot& slot, std::size_t i = 0) { return *reinterpret_cast<std::int64_t*>(slot.base + slot.outputs[i].offset); }
inline std::uint64_t word_of(const ClientSlot& slot) { return slot.line->word.load(std::memory_order_acquire); }
inline State state_of(const ClientSlot& slot) { return teal::state_of(word_of(slot)); }
inline Reason reason_of(const ClientSlot& slot) { return teal::reason_of(word_of(slot)); }

inline std::uint64_t now_ns() { return static_cast<std::uint64_t>(monotonic_ns()); }

// Ends the program, by name, if it does not come to that.
template <class Condition>
void until(Condition&& condition, std::source_location where = std::source_location::current()) {
    constexpr std::uint64_t patience_ns = scaled(60'000'000'000u, 300'000'000'000u);
    const std::uint64_t end = now_ns() + patience_ns;
    while (!condition()) {
        relax();
        if (now_ns() < end) continue;
        std::fprintf(stderr, "%s:%u: it did not come to that within %u s\n", where.file_name(), static_cast<unsigned>(where.line()),
                     static_cast<unsigned>(patience_ns / 1'000'000'000));
        std::_Exit(1);
    }
}

class SmallPool {
public:
    // With TEAL_TEST_AGENT set in the environment an agent decides about everything: what a test says holds then as well.
    explicit SmallPool(std::uint64_t idle_ns = 20'000) : pool(Pool::create(idle_ns)), sweeper(pool), idle_ns_(idle_ns) {
        if (std::getenv("TEAL_TEST_AGENT") != nullptr) seat_agent();
    }
    ~SmallPool() { stop(); }

    // A worker that knows all sessions and versions so far. Its loop runs in a thread of its own, unless `by_hand`.
    std::uint32_t add_worker(bool by_hand = false) {
        const auto index = static_cast<std::uint32_t>(workers.size());
        workers.push_back(std::make_unique<Worker>(pool, index));
        for (const Client& client : clients) tell(*workers.back(), client);
        for (const auto& [line, kernel] : kernels_) workers.back()->set_kernel(line, generation(line), kernel);
        workers.back()->on_dropped = [this](const char*, std::uint32_t, std::uint32_t) { dropped.fetch_add(1, std::memory_order_acq_rel); };
        threads_.emplace_back();
        if (!by_hand) threads_.back() = std::thread([worker = workers.back().get()] { worker->run(); });
        return index;
    }

    Client open(std::uint32_t slots = 16, std::uint32_t limit = 64, std::uint64_t bytes = 1 << 20) {
        const Sweeper::Opened opened = sweeper.open_session(slots, limit);
        Client client{opened.index, opened.epoch, slots, opened.fd, Region::create(RegionKind::tensor, bytes, 1, Pages::small), nullptr};
        for (auto& worker : workers) tell(*worker, client);
        sweeper.grant_region(client.index, 1);
        client.session = std::make_shared<ClientSession>(map_session(::dup(opened.fd), opened.index, opened.epoch, slots), idle_ns_, -1);
        client.session->add_region(0, ::dup(client.region->fd()));
        clients.push_back(client);
        return client;
    }

    // Loads a version everywhere and makes it current. Returns its line.
    std::uint32_t load(std::uint32_t model, std::uint32_t number, std::shared_ptr<Kernel> kernel, std::uint32_t flags = 0) {
        const std::uint32_t line = sweeper.open_version(model, number, flags, 0);
        for (auto& worker : workers) worker->set_kernel(line, generation(line), kernel);
        kernels_.emplace_back(line, std::move(kernel));
        sweeper.publish_version(line, true);
        return line;
    }
    std::uint32_t load(std::uint32_t model, const char* builtin, std::uint32_t flags = 0) {
        return load(model, 1, std::shared_ptr<Kernel>(make_builtin(builtin)), flags);
    }
    // As the host does it: not current, drained, dropped everywhere, freed.
    void unload(std::uint32_t line) {
        sweeper.retire_version(line);
        until([&] { return sweeper.version_in_flight(line) == 0; });
        const std::uint32_t before = dropped.load(std::memory_order_acquire);
        for (auto& worker : workers) worker->drop_kernel(line, generation(line));
        until([&] { return dropped.load(std::memory_order_acquire) == before + workers.size(); });
        std::erase_if(kernels_, [line](const auto& kernel) { return kernel.first == line; });
        sweeper.free_version(line);
    }
    // As the host does it; workers in threads only.
    void close(const Client& client, Reason reason) {
        sweeper.close_session(client.index, reason);
        const std::uint32_t before = dropped.load(std::memory_order_acquire);
        for (auto& worker : workers) worker->drop_session(client.index, client.epoch);
        until([&] { return dropped.load(std::memory_order_acquire) == before + workers.size(); });
        until([&] { return sweeper.session_in_flight(client.index) == 0; });
        sweeper.free_session(client.index);
        std::erase_if(clients, [&](const Client& other) { return other.index == client.index; });
    }
    void quit(std::uint32_t worker) {
        workers[worker]->quit();
        if (threads_[worker].joinable()) threads_[worker].join();
    }
    void seat_agent() {
        const Sweeper::Seated seated = sweeper.attach_seat(0, 256);
        agent_ = std::make_unique<AgentLoop>(AgentSeat::attach(seated.agent_view_fd, ::dup(seated.desk_fd)), std::make_shared<ByPriority>());
        sweeper.set_seat_limits(0, 60'000'000'000, 0);
        agent_thread_ = std::thread([this] { agent_->run(); });
        sweeper.activate_seat(0, seated.incarnation);
    }
    void stop() {
        for (std::uint32_t i = 0; i < workers.size(); ++i) quit(i);
        sweeper.stop();
        if (agent_thread_.joinable()) {
            agent_->stop();
            agent_thread_.join();
        }
    }
    [[nodiscard]] std::uint32_t generation(std::uint32_t line) const { return pool->memory().versions[line].generation; }

    // With all workers gone: every record is free, the free list holds each once, nothing is counted.
    void check_all_free() {
        stop();
        CHECK_EQ(sweeper.active(), 0);
        CHECK_EQ(pool->queued() + pool->offered(), 0);
        const PoolMemory& memory = pool->memory();
        std::vector<bool> seen(record_count, false);
        std::uint32_t listed = 0;
        for (std::uint32_t at = memory.header.free_head; at != 0 && listed <= record_count; at = memory.records[at - 1].next_free) {
            if (!CHECK(at <= record_count && !seen[at - 1])) return;
            seen[at - 1] = true;
            ++listed;
        }
        CHECK_EQ(listed, record_count);
        for (const Record& record : memory.records) CHECK_EQ(record.state.load() & 0xff, 0);
        for (const SessionLine& line : memory.sessions) CHECK_EQ(line.in_flight, 0);
        for (const VersionLine& line : memory.versions) CHECK_EQ(line.in_flight, 0);
    }

    std::shared_ptr<Pool> pool;
    Sweeper sweeper;
    std::vector<std::unique_ptr<Worker>> workers;
    std::vector<Client> clients;
    std::atomic<std::uint32_t> dropped{0};

private:
    static void tell(Worker& worker, const Client& client) {
        worker.add_session(::dup(client.session_fd), client.index, client.epoch, client.slots);
        worker.add_region(client.index, client.epoch, 0, ::dup(client.region->fd()));
    }

    std::uint64_t idle_ns_;
    std::unique_ptr<AgentLoop> agent_;
    std::thread agent_thread_;
    std::vector<std::pair<std::uint32_t, std::shared_ptr<Kernel>>> kernels_;
    std::vector<std::thread> threads_;
};

// Submits and waits; true when it ended as done.
inline bool call(ClientSession& session, ClientSlot& slot, std::uint32_t model, std::uint32_t version = 0) {
    session.submit(slot, model, version, 0, 0);
    session.wait(slot, 0, 0);
    return state_of(slot) == State::done;
}

}  // namespace teal::tests
