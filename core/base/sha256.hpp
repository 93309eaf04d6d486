// SHA-256 (FIPS 180-4), for naming a file by what is in it. Not on the path of a call.
//
// Theory of operation. Plain code, and the same with the CPU's own instructions (SHA-NI) where there are any: picked once, by a look at the
// CPU. Nothing secret is hashed here, so nothing is made to run in constant time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace teal {

class Sha256 {
public:
    using Digest = std::array<std::uint8_t, 32>;

    void add(std::span<const std::byte> bytes) noexcept;
    [[nodiscard]] Digest finish() noexcept;  // ends it
    [[nodiscard]] std::string hex();         // 64 digits; ends it

    // For tests: without the CPU's own instructions from now on.
    static void use_plain_code() noexcept;

private:
    std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<std::byte, 64> rest_{};
    std::size_t held_ = 0;
    std::uint64_t total_ = 0;
};

[[nodiscard]] std::string hex_of(std::span<const std::uint8_t> bytes);

}  // namespace teal
