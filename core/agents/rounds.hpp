// Several agents' loops in one thread: the seats of one process, at several pools.
//
// Theory of operation: the loops take turns, a step each, so that one that is idle keeps nobody waiting; when none has had anything to do for
// as long as it would look by itself, all sleep together, each on its seat's bell. With one loop it is that loop.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "agents/agent.hpp"

namespace teal {

class Rounds {
public:
    void add(std::shared_ptr<AgentLoop> loop);
    void remove(const AgentLoop& loop) noexcept;
    // Until `until_ns` (CLOCK_MONOTONIC), or a sleep that brought no message, which may be longer, or until the host calls. Returns at once
    // without loops.
    void run(std::uint64_t until_ns);

private:
    bool turn(std::uint64_t now);   // True: somebody had something to do, or may have soon
    bool rest(std::uint64_t now);

    std::vector<std::shared_ptr<AgentLoop>> loops_;
    std::vector<AgentSeat*> seats_;
    std::uint64_t quiet_since_ = 0;
};

}  // namespace teal
