// SHA-256 (FIPS 180-4), for naming a model file by what is in it. Not on the path of a call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace teal::capi {

class Digest {
public:
    void add(std::span<const std::byte> bytes) noexcept;
    [[nodiscard]] std::string hex();  // 64 digits; ends it

private:
    void block(const std::byte* at) noexcept;

    std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<std::byte, 64> rest_{};
    std::size_t held_ = 0;
    std::uint64_t total_ = 0;
};

}  // namespace teal::capi
