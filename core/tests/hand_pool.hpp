// A small pool in which the test itself is the worker: it takes the steps one by one and stops where a worker would have died.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/small_pool.hpp"

namespace teal::tests {

constexpr std::uint32_t plain_model = 0;
constexpr std::uint32_t again_model = 1;  // idempotent

struct HandPool : SmallPool {
    Client client;
    std::vector<SessionMap*> maps = std::vector<SessionMap*>(max_sessions, nullptr);
    std::vector<SessionMap*> live;
    std::vector<std::unique_ptr<ClientSlot>> slots;
    PoolMemory& memory = pool->memory();

    HandPool() : client(open(32, 32)) {
        load(plain_model, "identity");
        load(again_model, "identity", kernel_idempotent);
        maps[client.index] = &client.session->map();
        live.push_back(maps[client.index]);
    }
    ClientSlot& submit(std::uint32_t model = plain_model, std::int32_t priority = 0, std::uint64_t deadline = 0) {
        slots.push_back(client.slot());
        input(*slots.back()) = static_cast<std::int64_t>(slots.size()) * 11;
        client.session->submit(*slots.back(), model, 0, priority, deadline);
        return *slots.back();
    }
    void enter() { CHECK(pool->enter(1'000'000'000)); }
    std::uint32_t drain() {
        enter();
        const unsigned moved = pool->drain(live);
        pool->leave();
        return moved;
    }
    // Drains and picks for worker `hand`, as Worker::take() does.
    std::uint32_t pick(std::uint32_t hand) {
        enter();
        pool->drain(live);
        const std::uint32_t record = pool->pick(hand, maps);
        pool->leave();
        return record;
    }
    // The holder of the role has died: the next one repairs, and finds everything consistent.
    void die() {
        enter();
        pool->repair();
        pool->leave();
        check_consistent();
    }
    // Every request so far is answered by a real worker, once.
    void finish() {
        const std::uint32_t worker = add_worker();
        for (const auto& slot : slots) client.session->wait(*slot, 0, 0);
        until([&] { return std::all_of(slots.begin(), slots.end(), [](const auto& slot) { return ClientSession::quiescent(*slot); }); });
        quit(worker);
        check_all_free();
    }
    void check_done(std::initializer_list<std::size_t> which) {
        for (const std::size_t i : which) {
            CHECK_EQ(state_of(*slots[i]), State::done);
            CHECK_EQ(output(*slots[i]), static_cast<std::int64_t>(i + 1) * 11);
        }
    }

    // What is derived from the records' words agrees with them.
    void check_consistent() {
        std::uint32_t active = 0;
        std::uint32_t waiting = 0;
        for (const Record& record : memory.records) {
            const auto state = static_cast<State>(record.state.load() & 0xff);
            active += state != State::free ? 1 : 0;
            waiting += state == State::queued ? 1 : 0;
            if (state == State::queued) CHECK_EQ(record.worker, nobody);
        }
        CHECK_EQ(memory.header.active, active);
        CHECK_EQ(memory.header.heap_size, waiting);
        CHECK_EQ(memory.sessions[client.index].in_flight, active);
        CHECK_EQ(memory.versions[0].in_flight + memory.versions[1].in_flight, active);
        std::vector<std::uint32_t> seen(record_count, 0);
        for (std::uint32_t i = 0; i < memory.header.heap_size; ++i) ++seen[memory.heap[i]];
        std::uint32_t listed = 0;
        for (std::uint32_t at = memory.header.free_head; at != 0 && listed <= record_count; at = memory.records[at - 1].next_free) {
            ++seen[at - 1];
            ++listed;
        }
        CHECK_EQ(listed, record_count - active);
        CHECK(std::all_of(seen.begin(), seen.end(), [](std::uint32_t count) { return count <= 1; }));
    }
};

}  // namespace teal::tests
