// Overflow-safe arithmetic for numbers that a client, a peer or a file chose.
#pragma once

#include <cstdint>

namespace teal {

// Each returns false when the true result does not fit; `out` is then unspecified.
[[nodiscard]] inline bool checked_add(std::uint64_t a, std::uint64_t b, std::uint64_t& out) noexcept {
    return !__builtin_add_overflow(a, b, &out);
}
[[nodiscard]] inline bool checked_mul(std::uint64_t a, std::uint64_t b, std::uint64_t& out) noexcept {
    return !__builtin_mul_overflow(a, b, &out);
}
// [offset, offset + size) lies within [0, limit)
[[nodiscard]] inline bool within(std::uint64_t offset, std::uint64_t size, std::uint64_t limit) noexcept {
    return offset <= limit && size <= limit - offset;
}
// `align` is a power of two; the caller has made sure that value + align does not wrap.
[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t align) noexcept {
    return (value + align - 1) & ~(align - 1);
}

}  // namespace teal
