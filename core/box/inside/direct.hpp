// Direct calls: a client elsewhere and this box, over a socket that is connected to that client. See direct.cpp.
#pragma once

#include <cstdint>

#include "box/message.hpp"

namespace teal::box {

using RunCall = std::int64_t (*)(const void* args, std::uint64_t bytes) noexcept;

// With libc's thread pointer, before the program runs; `socket` has become direct_socket by then. 0 or an errno.
int prepare_direct(const BecomeMessage& message) noexcept;
bool has_direct() noexcept;
// One packet off the socket, and what it asks for. False: there was none.
bool take_direct(RunCall run) noexcept;
// Where the client of the last packet polls plus one; 0: elsewhere.
std::uint32_t direct_cpu() noexcept;
// A call that came over the connection although it was sent directly before: run, unless it has been.
std::int64_t run_once(std::uint64_t number, const void* args, std::uint64_t bytes, RunCall run) noexcept;
// Sleeps until a packet or an order comes, ten seconds at most.
void sleep_direct() noexcept;

}  // namespace teal::box
