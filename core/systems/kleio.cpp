// kleio: the last 6 of 621 pages → LSTM 256 → LSTM 256 → 621, softmax, argmax. Which page comes next?
//
// Theory of operation: a one-hot input times w0 is a row of w0, and the first step has no hidden state yet. What is left are 16
// products of 256 × 1024 and one of 256 × 621, 4.35 million multiply-adds an item: 32 µs at two 16-wide ones a cycle of 4.3 GHz.
// Products are blocked 6 rows × 4 vectors over items; the weights, 1 MiB each, are read in place and once a block of 64 items, so
// that they need not come from memory faster than they are used. A small batch is bound by reading them: 11 MiB for one item,
// because the second layer's inputs of all steps are one product then.
//
// Sigmoid and tanh come from one exp, which is right to 2e-7.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "systems/network.hpp"

namespace teal::systems {
namespace {

constexpr std::size_t kleio_gates = 4 * kleio_units;
constexpr std::size_t kleio_block = 64;
constexpr std::size_t kleio_together = 8;
constexpr std::size_t kleio_row = 624;  // of logits: whole vectors

struct KleioWeights {
    const float* b0;
    const float* b1;
    const float* b2;
    const float* u0;
    const float* u1;
    const float* w0;
    const float* w1;
    const float* w2;
};

struct alignas(64) KleioScratch {
    float gates[kleio_block * kleio_gates];  // the largest use: 64 × 1024 or 8 × 6 × 1024
    float first[kleio_block * kleio_steps * kleio_units];
    float second[kleio_block * kleio_units];
    float cell[kleio_block * kleio_units];
};
static_assert(kleio_together * kleio_steps <= kleio_block && kleio_row % 16 == 0 && kleio_row <= kleio_gates);

// out = start + a·w, w of 256 × columns; strides in floats.
struct Product {
    const float* a;
    std::size_t a_stride;
    const float* w;
    std::size_t columns;
    const float* start;
    std::size_t start_stride;
    float* out;
    std::size_t out_stride;
};

}  // namespace
}  // namespace teal::systems

#define TEAL_BODY "systems/kleio.inl"
#include "systems/each_isa.inl"

namespace teal::systems {
namespace {

class Kleio final : public Network {
public:
    Kleio(const ModelFile& file, Isa isa)
        : weights_{file.tensor<float>("b0"), file.tensor<float>("b1"), file.tensor<float>("b2"), file.tensor<float>("u0"),
                   file.tensor<float>("u1"), file.tensor<float>("w0"), file.tensor<float>("w1"), file.tensor<float>("w2")},
          scratch_(std::make_unique<KleioScratch>()), run_(TEAL_PICK(isa, run)) {}

    void run(const std::byte* x, std::byte* scores, std::int32_t* verdict, std::uint64_t batch) noexcept override {
        run_(weights_, *scratch_, reinterpret_cast<const std::int32_t*>(x), reinterpret_cast<float*>(scores), verdict, batch);
    }

private:
    KleioWeights weights_;
    std::unique_ptr<KleioScratch> scratch_;
    decltype(&baseline::run) run_;
};

}  // namespace

std::unique_ptr<Network> make_kleio(const ModelFile& file, Isa isa) { return std::make_unique<Kleio>(file, isa); }

}  // namespace teal::systems
