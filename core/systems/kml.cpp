// kml: 5 features, normalised → 15 → 5 → 4, all linear, argmax. Which readahead suits these accesses?
//
// Theory of operation: as mllb, an item a lane. The limit is 170 multiply-adds and 5 divisions an item, 7 cycles, beside 40 bytes
// in and out. The running mean and deviation stand in the file: a change is a new version.
#include <cstddef>
#include <cstdint>

#include "systems/network.hpp"

namespace teal::systems {
namespace {

struct KmlWeights {
    const float* b0;
    const float* b1;
    const float* b2;
    const float* mean;
    const float* deviation;
    const float* w0;
    const float* w1;
    const float* w2;
};

}  // namespace
}  // namespace teal::systems

#define TEAL_BODY "systems/kml.inl"
#include "systems/each_isa.inl"

namespace teal::systems {
namespace {

class Kml final : public Network {
public:
    Kml(const ModelFile& file, Isa isa)
        : weights_{file.tensor<float>("b0"),   file.tensor<float>("b1"),  file.tensor<float>("b2"), file.tensor<float>("mean"),
                   file.tensor<float>("std"), file.tensor<float>("w0"), file.tensor<float>("w1"), file.tensor<float>("w2")},
          run_(TEAL_PICK(isa, run)) {}

    void run(const std::byte* x, std::byte* scores, std::int32_t* verdict, std::uint64_t batch) noexcept override {
        run_(weights_, reinterpret_cast<const float*>(x), reinterpret_cast<float*>(scores), verdict, batch);
    }

private:
    KmlWeights weights_;
    decltype(&baseline::run) run_;
};

}  // namespace

std::unique_ptr<Network> make_kml(const ModelFile& file, Isa isa) { return std::make_unique<Kml>(file, isa); }

}  // namespace teal::systems
