#include "systems/linnos_layer.hpp"

#include <algorithm>

namespace teal::systems {
namespace {

bool fits(const LinnosLayer& layer, std::uint64_t largest_piece) noexcept {
    for (std::uint32_t j = 0; j < layer.units; ++j) {
        std::uint64_t total = 0;
        for (std::uint32_t k = 0; k < layer.inputs; ++k) {
            const std::int64_t weight = layer.weights[std::size_t{k} * layer.units + j];
            if (weight < -INT16_MAX || weight > INT16_MAX) return false;
            total += static_cast<std::uint64_t>(weight < 0 ? -weight : weight);
        }
        if (total * largest_piece > INT32_MAX) return false;  // at most 256·32767·32767: no overflow
    }
    return true;
}

void pack(LinnosLayer& layer, std::size_t lanes) {
    const std::size_t pairs = layer.pairs();
    layer.packed.assign(2 * pairs * layer.units, 0);
    for (std::size_t k = 0; k < layer.inputs; ++k) {
        for (std::size_t j = 0; j < layer.units; ++j) {
            const std::size_t panel = j / lanes;
            const std::size_t at = layer.units == 2 ? j * layer.inputs + k : ((panel * pairs + k / 2) * lanes + j % lanes) * 2 + k % 2;
            layer.packed[at] = static_cast<std::int16_t>(layer.weights[k * layer.units + j]);
        }
    }
}

}  // namespace

LinnosLayer prepare_layer(const std::int64_t* weights, const std::int64_t* bias, std::uint32_t inputs, std::uint32_t units, std::uint64_t largest,
                          std::uint64_t largest_sum, std::size_t lanes) {
    LinnosLayer layer;
    layer.inputs = inputs;
    layer.units = units;
    layer.weights = weights;
    layer.bias = bias;
    if (!fits(layer, std::min<std::uint64_t>(largest, piece_mask))) return layer;
    layer.pieces = 1;
    while (layer.pieces < 5 && largest >> (piece_bits * layer.pieces) != 0) ++layer.pieces;
    layer.small = layer.pieces == 1 && largest_sum <= INT32_MAX;
    if (layer.small) layer.bias32.assign(bias, bias + units);
    pack(layer, lanes);
    return layer;
}

}  // namespace teal::systems
