// linnos: 31 digits → 256 ReLU (→ 256 ReLU, up to twice) → 2, argmax, in int64. Will this read be slow?
//
// Theory of operation: systems/linnos_layer.hpp says how int64 becomes int16 × int16 without losing a bit. The batch is taken in
// blocks of 16 items, whose pieces are the rows of one matrix product with the packed weights: 4 rows × 4 vectors at a time.
// The limit is 2 × 32 multiply-adds a cycle: linnos+0 takes 8,192 a piece and layer, 130 cycles; each further layer 65,536,
// 1,024 cycles a piece, mostly two. Batches below 4 are bound by reading the weights (16 KiB, then 128 KiB a layer).
#include <cstddef>
#include <cstdint>
#include <memory>

#include "systems/linnos_layer.hpp"
#include "systems/network.hpp"

namespace teal::systems {
namespace {

constexpr std::size_t linnos_block = 16;
constexpr std::size_t most_pieces = 5;

struct LinnosLayers {
    LinnosLayer layer[4];
    std::size_t count = 0;
};

struct alignas(64) LinnosScratch {
    std::int16_t pieces[linnos_block * most_pieces * linnos_hidden];
    std::int32_t sums[linnos_block * most_pieces * linnos_hidden];
    std::int64_t values[linnos_block * linnos_hidden];
    std::int64_t wide[linnos_hidden];
};

}  // namespace
}  // namespace teal::systems

#define TEAL_BODY "systems/linnos.inl"
#include "systems/each_isa.inl"

namespace teal::systems {
namespace {

class Linnos final : public Network {
public:
    Linnos(const ModelFile& file, Isa isa) : scratch_(std::make_unique<LinnosScratch>()), run_(TEAL_PICK(isa, run)) {
        std::uint64_t largest[4] = {UINT8_MAX};
        std::string error;
        linnos_bounds(file, largest + 1, error);  // true: the file was let through
        const std::span<const TensorShape> tensors = file.load->tensors;
        layers_.count = tensors.size() / 2;
        for (std::size_t l = 0; l < layers_.count; ++l) {
            const TensorShape& shape = tensors[layers_.count + l];
            const std::uint64_t largest_sum = l + 1 < layers_.count ? largest[l + 1] : UINT64_MAX;
            layers_.layer[l] = prepare_layer(file.tensor<std::int64_t>(shape.name), file.tensor<std::int64_t>(tensors[l].name), shape.rows, shape.columns,
                                             largest[l], largest_sum, TEAL_PICK(isa, lanes));
        }
    }

    void run(const std::byte* x, std::byte* scores, std::int32_t* verdict, std::uint64_t batch) noexcept override {
        run_(layers_, *scratch_, reinterpret_cast<const std::uint8_t*>(x), reinterpret_cast<std::int64_t*>(scores), verdict, batch);
    }

private:
    LinnosLayers layers_;
    std::unique_ptr<LinnosScratch> scratch_;
    decltype(&baseline::run) run_;
};

}  // namespace

std::unique_ptr<Network> make_linnos(const ModelFile& file, Isa isa) { return std::make_unique<Linnos>(file, isa); }

}  // namespace teal::systems
