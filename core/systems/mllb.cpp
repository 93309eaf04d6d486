// mllb: 15 → 10 ReLU → 1, > 0.5. Should this task move to the other run queue?
//
// Theory of operation: an item takes a lane, the weights are broadcast out of the file. The rows of x are turned into columns by
// shuffles, 4 each 16 × 16. The limit is 160 multiply-adds an item, 5 cycles at two 16-wide ones a cycle, beside 64 bytes in and out.
#include <cstddef>
#include <cstdint>

#include "systems/network.hpp"

namespace teal::systems {
namespace {

struct MllbWeights {
    const float* b0;
    const float* b1;
    const float* w0;
    const float* w1;
};

}  // namespace
}  // namespace teal::systems

#define TEAL_BODY "systems/mllb.inl"
#include "systems/each_isa.inl"

namespace teal::systems {
namespace {

class Mllb final : public Network {
public:
    Mllb(const ModelFile& file, Isa isa)
        : weights_{file.tensor<float>("b0"), file.tensor<float>("b1"), file.tensor<float>("w0"), file.tensor<float>("w1")}, run_(TEAL_PICK(isa, run)) {}

    void run(const std::byte* x, std::byte* scores, std::int32_t* verdict, std::uint64_t batch) noexcept override {
        run_(weights_, reinterpret_cast<const float*>(x), reinterpret_cast<float*>(scores), verdict, batch);
    }

private:
    MllbWeights weights_;
    decltype(&baseline::run) run_;
};

}  // namespace

std::unique_ptr<Network> make_mllb(const ModelFile& file, Isa isa) { return std::make_unique<Mllb>(file, isa); }

}  // namespace teal::systems
