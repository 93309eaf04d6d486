// A layer of linnos, prepared for the vector unit: exact narrowing of int64.
//
// Theory of operation. Inputs of a layer are never negative (bytes, or what a ReLU leaves), and systems/file.hpp knows the largest
// value each can take. Such a value is split into pieces of 15 bits, and each piece is a row of a product in int16 × int16 → int32,
// which every vector unit since SSE2 does two at a time: x = Σ piece·2^15p, so xW = Σ (piece W)·2^15p. A layer is narrow when
// that is exact: every weight fits int16, and for every unit Σ|w|·(largest piece) fits int32, so that no partial sum, in
// whatever order, leaves it. The weights are then packed once, in pairs of inputs, in panels as wide as a vector. A layer that is
// not narrow runs in int64 on the weights as they lie in the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace teal::systems {

inline constexpr unsigned piece_bits = 15;
inline constexpr std::int32_t piece_mask = (1 << piece_bits) - 1;

struct LinnosLayer {
    std::uint32_t inputs = 0;             // 31 or 256
    std::uint32_t units = 0;              // 256 or 2
    unsigned pieces = 0;                  // of an input; 0: not narrow
    bool small = false;                   // the whole sum fits int32
    const std::int64_t* weights = nullptr;  // (inputs, units), in the file
    const std::int64_t* bias = nullptr;
    std::vector<std::int32_t> bias32;     // when small
    std::vector<std::int16_t> packed;     // 256 units: [panel][pair of inputs][lane][2]; 2 units: [unit][input]

    [[nodiscard]] bool narrow() const noexcept { return pieces > 0; }
    [[nodiscard]] std::uint32_t pairs() const noexcept { return (inputs + 1) / 2; }
};

// `largest`: of the inputs; `largest_sum`: of any unit before the ReLU. `lanes`: int32 in a vector.
LinnosLayer prepare_layer(const std::int64_t* weights, const std::int64_t* bias, std::uint32_t inputs, std::uint32_t units, std::uint64_t largest,
                          std::uint64_t largest_sum, std::size_t lanes);

}  // namespace teal::systems
