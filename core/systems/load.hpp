// The machine-learning-for-systems loads: names, tensors and shapes, exactly.
//
//   linnos     31 digits → 256 ReLU → 2, argmax             will this read be slow?
//   linnos+1   one more 256 → 256 ReLU in between
//   linnos+2   two more
//   mllb       15 → 10 ReLU → 1, > 0.5                      should this task migrate?
//   kml        5, normalised → 15 → 5 → 4 linear, argmax    which readahead suits these accesses?
//   kleio      6 pages of 621 → LSTM 256 → LSTM 256 → 621 softmax, argmax   which page comes next?
//
// One input `x` (batch, columns), outputs `scores` (batch, classes) and `verdict` (batch). The same table is the layout of a model
// file (systems/file.hpp) and of a device's weights: the tensors lie one after the other, in this order, nothing between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "memory/dtype.hpp"

namespace teal::systems {

enum class LoadId : std::uint8_t { linnos, linnos1, linnos2, mllb, kml, kleio };

struct TensorShape {
    std::string_view name;
    std::uint32_t rows;
    std::uint32_t columns;  // 0: a vector of `rows`

    [[nodiscard]] constexpr std::uint64_t count() const noexcept { return std::uint64_t{rows} * (columns == 0 ? 1 : columns); }
};

struct Load {
    LoadId id;
    std::string_view name;                  // what "teal.load" says in a file's metadata
    Dtype weights;                          // of every tensor
    std::span<const TensorShape> tensors;   // in the order of their names, as the safetensors package writes them
    Dtype input;
    std::uint32_t columns;                  // of x
    std::uint32_t classes;                  // of scores, whose dtype is that of the weights

    [[nodiscard]] constexpr std::uint64_t weight_count() const noexcept {
        std::uint64_t count = 0;
        for (const TensorShape& tensor : tensors) count += tensor.count();
        return count;
    }
    [[nodiscard]] std::uint64_t weight_bytes() const noexcept { return weight_count() * dtype_info(weights).size; }
};

inline constexpr std::size_t most_tensors = 8;
inline constexpr std::uint32_t linnos_inputs = 31;
inline constexpr std::uint32_t linnos_hidden = 256;
inline constexpr std::uint32_t kleio_steps = 6;
inline constexpr std::uint32_t kleio_pages = 621;
inline constexpr std::uint32_t kleio_units = 256;

std::span<const Load> loads() noexcept;
const Load* find_load(std::string_view name) noexcept;  // null: there is none of that name

}  // namespace teal::systems
