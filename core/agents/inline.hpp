// A policy in the worker itself, on the host's core: no agent, no messages, no decisions in advance.
//
// Theory of operation: what off-loading is measured against. The worker that takes the role calls the policy for what has happened and asks it
// what to run next, there and then; requests and times are known as exactly as they can be. One worker a pool, since a policy's memory
// is its process's own. Under the pool's role, all of it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "agents/host_seat.hpp"
#include "agents/policy.hpp"

namespace teal {

class InlinePolicy {
public:
    InlinePolicy(std::shared_ptr<Policy> policy, std::uint32_t records, std::uint32_t worker);

    void ready(const RequestFacts& facts);                                           // it may run
    void left(const RequestFacts& facts, MessageType why);                           // it left the worker and may run again
    void blocked(std::uint32_t record);
    void ran(std::uint32_t record, std::uint64_t started, std::uint64_t ended) noexcept;  // ticks
    void ended(std::uint32_t record, bool answered);
    struct Picked { std::uint32_t record = no_object; std::uint32_t generation = 0; std::uint64_t slice_ns = 0; };
    // What the worker runs next; no_object: nothing.
    Picked pick();
    // That did not run after all: it is gone, or waits for something.
    void refused(std::uint32_t record);

private:
    [[nodiscard]] std::uint64_t now() const noexcept;
    [[nodiscard]] std::uint64_t ns_of(std::uint64_t at) const noexcept;
    void learn(PolicyRequest& request, const RequestFacts& facts) const noexcept;

    std::shared_ptr<Policy> policy_;
    std::vector<PolicyRequest> requests_;   // by record; index no_object: not known
    PolicyWorker worker_;
    std::uint64_t start_ticks_;             // the same moment on both clocks: ticks() is the one that is quick to read
    std::uint64_t start_ns_;
};

}  // namespace teal
