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

}  // namespace teal::box
