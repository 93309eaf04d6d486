#include "bench/flush.hpp"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace teal {

bool flush_lines(const std::byte* base, std::uint64_t bytes) noexcept {
#if defined(__x86_64__)
    constexpr std::uint64_t line = 64;
    for (std::uint64_t at = 0; at < bytes; at += line) _mm_clflush(base + at);
    _mm_mfence();
    return true;
#else
    static_cast<void>(base);
    static_cast<void>(bytes);
    return false;
#endif
}

}  // namespace teal
