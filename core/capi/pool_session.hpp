// This process's session with one pool of the host: where requests go, and the memory they use.
//
// Theory of operation: the pool that laika_init names has one from the start, another gets one when a model or memory of it is first
// asked for. They form a list that only grows until laika_finalize, so that anybody may walk it without a lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "capi/control.hpp"
#include "capi/memory.hpp"
#include "host/client.hpp"

namespace teal::capi {

struct PoolSession {
    std::string pool;
    std::uint32_t index = 0;
    std::shared_ptr<ClientSession> session;
    std::unique_ptr<Memory> memory;
    PoolSession* next = nullptr;  // changed only before it is in the list
};

// Asks the host for a session. Throws Failure: not_found (no such pool), quota, internal (an answer that is not understood).
std::unique_ptr<PoolSession> open_session(Control& control, const std::string& pool);

}  // namespace teal::capi
