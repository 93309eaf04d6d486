// A small pool whose workers can be held busy, for tests of what happens meanwhile.
//
// The worker sits in a kernel that waits for a gate; the test opens it when it has seen enough. So nothing depends on how fast
// anything is.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/small_pool.hpp"

namespace teal::tests {

// Models of every test here.
constexpr std::uint32_t gate_model = 0;      // waits until the gate opens; its effects can be noticed
constexpr std::uint32_t log_model = 1;       // notes its input
constexpr std::uint32_t identity_model = 2;
constexpr std::uint32_t pure_gate_model = 3;

struct GatedPool : SmallPool {
    std::atomic<bool> open_gate{false};
    std::atomic<int> in_gate{0};
    std::mutex log_mutex;  // guards log
    std::vector<std::int64_t> log;

    explicit GatedPool(std::uint64_t idle_ns = 20'000) : SmallPool(idle_ns) {
        const auto gate = std::make_shared<Lambda>([this](const std::int64_t& in, std::int64_t& out, Run&) {
            in_gate.fetch_add(1);
            until([this] { return open_gate.load(); });
            out = in;
            return true;
        });
        load(gate_model, 1, gate);
        load(pure_gate_model, 1, gate, kernel_pure);
        load(log_model, 1, std::make_shared<Lambda>([this](const std::int64_t& in, std::int64_t& out, Run&) {
            const std::lock_guard lock(log_mutex);
            log.push_back(in);
            out = in + 1;
            return true;
        }));
        load(identity_model, "identity", kernel_pure);
    }
    ~GatedPool() {
        open_gate = true;
        stop();
    }

    // Occupies the one worker; returns once it is in the gate.
    std::unique_ptr<ClientSlot> occupy(const Client& client, std::uint32_t model = gate_model, std::uint64_t deadline = 0) {
        auto slot = client.slot();
        const int before = in_gate.load();
        client.session->submit(*slot, model, 0, 0, deadline);
        until([&] { return in_gate.load() > before; });
        return slot;
    }
    // The worker is busy: the sweeper takes what lies in the rings until this many wait.
    void taken(unsigned waiting) {
        until([&] {
            sweeper.tick();
            return pool->queued() + pool->offered() == waiting;
        });
    }
    std::unique_ptr<ClientSlot> note(const Client& client, std::int64_t value, std::int32_t priority = 0, std::uint64_t deadline = 0) {
        auto slot = client.slot();
        input(*slot) = value;
        client.session->submit(*slot, log_model, 0, priority, deadline);
        return slot;
    }
};

inline void ended_as(const ClientSlot& slot, State state, Reason reason) {
    CHECK_EQ(state_of(slot), state);
    CHECK_EQ(reason_of(slot), reason);
}

}  // namespace teal::tests
