// A judged run in a box of a yard whose boxes are guests (teal-kvm-box).
#pragma once

#include "box/judge.hpp"
#include "box/yard.hpp"

namespace teal::kvm {

// As Yard::judge(), which calls it. Throws Error for what is our fault.
box::RunRecord judge_in_guest(box::Yard::State& yard, const box::RunOrder& order);

}  // namespace teal::kvm
