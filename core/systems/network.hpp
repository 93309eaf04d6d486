// A network that is ready to run: one model file, one width of the vector unit.
//
// Theory of operation. Every load has one body, written over vectors of a width that is a parameter, and compiled three times
// (systems/each_isa.inl): 128 bits for every CPU, AVX2 with FMA, AVX-512. Which one runs is chosen when the network is made.
// The body takes the batch in blocks that fill the vector unit and stay in the first-level cache.
//
// Inputs lie in memory that a client may write to meanwhile: each is read once, and no value of any input leads out of bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cpu/features.hpp"
#include "systems/file.hpp"

namespace teal::systems {

class Network {
public:
    virtual ~Network() = default;

    // x: batch × columns, scores: batch × classes, verdict: batch, packed, in the dtypes of the load. `scores` and `verdict` may
    // be null: not wanted. One thread at a time.
    virtual void run(const std::byte* x, std::byte* scores, std::int32_t* verdict, std::uint64_t batch) noexcept = 0;
};

// The file's bytes must outlive the network. The caller makes sure that the machine runs `isa`; amx takes avx512.
std::unique_ptr<Network> make_network(const ModelFile& file, Isa isa);

std::unique_ptr<Network> make_mllb(const ModelFile& file, Isa isa);
std::unique_ptr<Network> make_kml(const ModelFile& file, Isa isa);
std::unique_ptr<Network> make_linnos(const ModelFile& file, Isa isa);
std::unique_ptr<Network> make_kleio(const ModelFile& file, Isa isa);

}  // namespace teal::systems
