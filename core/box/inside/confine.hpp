// What the zygote locks up once, for itself and every box that it forks; and what each box does for itself.
#pragma once

#include "box/message.hpp"

namespace teal::box {

// Namespaces; forks when there is a process namespace, and returns in its init process (the other one waits for it and never returns).
// `use_namespaces` false: says EOPNOTSUPP and goes on.
void enter_namespaces(HelloMessage& hello, bool use_namespaces) noexcept;
// An empty root directory, no new privileges, Landlock with no rule at all, limits that are the same for all boxes.
void confine_zygote(HelloMessage& hello) noexcept;
// In a box, before its filter: a user of its own where we are root.
int confine_box(const HelloMessage& hello, std::uint32_t number) noexcept;

}  // namespace teal::box
