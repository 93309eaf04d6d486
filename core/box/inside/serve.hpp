// The loop of a resident box: what duck->serve() is.
#pragma once

#include "box/control.hpp"
#include "box/message.hpp"

namespace teal::box {

// Before the program starts: fills the duck_t at layout::duck.
void prepare_duck(const BecomeMessage& message) noexcept;
// Writes to a page that the loop will write to.
void touch_duck() noexcept;
// What threads of cores 1 and up do: wait for the program, and for its calls.
void serve_core(void* core) noexcept;
// How many of them have come there.
std::uint32_t cores_waiting() noexcept;

// Of a program that runs in its duck's own process (core/box/inline.cpp), one at a time. serve() ends in `left` there, and never returns.
void begin_inline(void (*left)(int), int socket) noexcept;
void stop_inline() noexcept;    // when it next looks whether there is something to do
void end_inline() noexcept;     // after `left`, with libc's thread pointer

}  // namespace teal::box
