// The builtin kernels: for tests, for measuring the path around the maths, and as the shortest example.
//
//   identity  y[i] = x[i], any number of tensors, any dtype
//   sum       x: float32, any shape → float64 scalar (cpu/sum.hpp)
//   sleep     x: int64 scalar, microseconds: gives up the core for so long → x
//   spin      x: int64 scalar, microseconds: keeps the core for so long → nanoseconds it took
//
// All of them can be left at any instruction; identity and sum when they are large enough to be worth it. A spin that was left goes on until
// it has had its time on the core, a sleep until its time has come.
#pragma once

#include <memory>
#include <string_view>

#include "kernel/kernel.hpp"

namespace teal {

// Null for an unknown name.
std::unique_ptr<Kernel> make_builtin(std::string_view name);

}  // namespace teal
