// Sum of float32 values in float64: the arithmetic of the builtin:sum kernel.
//
// Theory of operation. Blocks of 4,096 values are added in several independent accumulators, and the blocks pairwise, so the
// error grows with the logarithm of the length: below 1e-12 of the sum of magnitudes at any length that fits in memory. The
// variants differ in how many values they take at a time and therefore in the last bits. NaN and infinities come out as IEEE 754
// says; the sum of nothing is +0.
#pragma once

#include <cstddef>

#include "cpu/features.hpp"

namespace teal {

// `values` needs no more than the alignment of float and may be null when count is 0. Uses the widest variant of isa().
double sum_f32(const float* values, std::size_t count) noexcept;

// The same with a stated variant, for tests and benchmarks. The caller makes sure that the machine runs it
// (isa <= widest_isa(cpu_features())); amx has no variant of its own and takes avx512.
double sum_f32_with(Isa isa, const float* values, std::size_t count) noexcept;

}  // namespace teal
