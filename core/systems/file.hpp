// A model file of a systems load: safetensors with metadata {"teal.load": a name of systems/load.hpp, "teal.version": "1"}.
//
// Theory of operation: the file's bytes are the weights: they are used where they lie, in a read-only mapping. So the layout is
// fixed: the tensors of the load, all of them and no others, in the order of their names, starting at a multiple of 8 (what the
// safetensors package writes by itself). What is let through is safe to run on any input:
//   floats    every one is finite, `std` of kml is above zero, and no sum in kleio can leave the range of float32;
//   integers  for any 31 bytes of input, no sum of linnos, in whatever order it is added up, leaves the range of int64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "systems/load.hpp"

namespace teal::systems {

struct ModelFile {
    const Load* load = nullptr;
    std::uint64_t data = 0;           // where the weights begin in the file
    const std::byte* weights = nullptr;

    // The tensor of that name, which the load must have.
    template <typename T>
    [[nodiscard]] const T* tensor(std::string_view name) const noexcept {
        const std::byte* at = weights;
        for (const TensorShape& shape : load->tensors) {
            if (shape.name == name) return reinterpret_cast<const T*>(at);
            at += shape.count() * dtype_info(load->weights).size;
        }
        return nullptr;
    }
};

// `file` must begin at a multiple of 8 and outlive `out`. False, and why in `error`.
bool read_model(std::span<const std::byte> file, ModelFile& out, std::string& error);

// Largest value of each hidden layer's units, for any input; false when some sum might not fit int64. `bounds` has a place for
// each hidden layer of linnos+2.
bool linnos_bounds(const ModelFile& file, std::uint64_t bounds[3], std::string& error);

}  // namespace teal::systems
