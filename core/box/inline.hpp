// Programs in the process of whoever opens them, without any sandbox: for tests, and for programs that are trusted like one's own code.
//
// Theory of operation. The program, its stack, its thread area and the session's region are mapped where a box would have them, in this process; a
// thread of ours takes on the program's thread pointer and stack and runs the same loop as a box (inside/serve.cpp). Callers, orders and the
// fate page are those of any session. What a box is for is missing: a program that crashes or exits takes this process with it, one
// that loops keeps its thread for ever (kill() ends the session, not the program), and no limit holds. There is room for one at a time.
#pragma once

#include <memory>

#include "box/yard.hpp"

namespace teal::box {

// Throws busy (another one runs here, or is left in a call), invalid_argument (several cores, 32-bit code, addresses that this process uses),
// kernel_failed (its init() refused), deadline_exceeded. The order's limits of memory and of a call's time are not kept.
std::shared_ptr<Session> open_inline(const SessionOrder& order);

}  // namespace teal::box
