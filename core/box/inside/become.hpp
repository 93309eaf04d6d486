// From a box that waits to a program that runs.
#pragma once

#include "box/message.hpp"
#include "elf/place.hpp"

namespace teal::box {

// Waits for the yard's message, does what it says, and jumps into the program.
[[noreturn]] void become(BoxKind kind) noexcept;

}  // namespace teal::box
