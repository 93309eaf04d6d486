// From a box that waits to a program that runs.
#pragma once

#include "box/message.hpp"
#include "elf/place.hpp"

namespace teal::box {

// Opens what boxes need beside their socket, as the descriptors after it, while the zygote still can. How many.
int open_devices() noexcept;
// Waits for the yard's message, does what it says, and jumps into the program.
[[noreturn]] void become(BoxKind kind) noexcept;

}  // namespace teal::box
