// Random numbers that are the same on every machine, for a seed: xoshiro256**, seeded by SplitMix64.
#pragma once

#include <cmath>
#include <cstdint>

namespace teal {

class Random {
public:
    explicit Random(std::uint64_t seed) noexcept {
        for (std::uint64_t& word : state_) {
            seed += 0x9e3779b97f4a7c15;
            std::uint64_t z = (seed ^ seed >> 30) * 0xbf58476d1ce4e5b9;
            z = (z ^ z >> 27) * 0x94d049bb133111eb;
            word = z ^ z >> 31;
        }
    }
    std::uint64_t next() noexcept {
        const auto rotated = [](std::uint64_t x, int by) { return x << by | x >> (64 - by); };
        const std::uint64_t result = rotated(state_[1] * 5, 7) * 9, t = state_[1] << 17;
        state_[2] ^= state_[0];
        state_[3] ^= state_[1];
        state_[1] ^= state_[2];
        state_[0] ^= state_[3];
        state_[2] ^= t;
        state_[3] = rotated(state_[3], 45);
        return result;
    }
    std::uint64_t below(std::uint64_t n) noexcept { return static_cast<std::uint64_t>(static_cast<unsigned __int128>(next()) * n >> 64); }
    double unit() noexcept { return static_cast<double>(next() >> 11) * 0x1.0p-53; }  // [0, 1)
    bool chance(double probability) noexcept { return unit() < probability; }
    double exponential(double mean) noexcept { return -std::log(1.0 - unit()) * mean; }
    double normal() noexcept { return std::sqrt(-2.0 * std::log(1.0 - unit())) * std::cos(6.283185307179586 * unit()); }

private:
    std::uint64_t state_[4];
};

}  // namespace teal
