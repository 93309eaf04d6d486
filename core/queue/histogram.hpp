// A latency histogram in shared memory: log-linear, 16 buckets an octave (6 % wide), 16 ns to 18 minutes.
//
// Writers add with one relaxed atomic increment; readers copy the buckets whenever they like. A count is
// never lost; a copy taken during writes may miss the newest few.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

namespace teal {

struct Histogram {
    static constexpr unsigned octaves = 36;
    static constexpr unsigned bucket_count = (octaves + 1) * 16;
    std::atomic<std::uint32_t> buckets[bucket_count];

    static constexpr unsigned bucket_of(std::uint64_t ns) noexcept {
        if (ns < 16) return static_cast<unsigned>(ns);
        const unsigned top = static_cast<unsigned>(std::bit_width(ns)) - 1;  // >= 4
        const unsigned index = (top - 3) * 16 + static_cast<unsigned>(ns >> (top - 4) & 15);
        return index < bucket_count ? index : bucket_count - 1;
    }
    // The smallest value of a bucket; bucket_floor(i + 1) is its end.
    static constexpr std::uint64_t bucket_floor(unsigned index) noexcept {
        if (index < 16) return index;
        const unsigned top = index / 16 + 3;
        return std::uint64_t{16 + index % 16} << (top - 4);
    }
    void add(std::uint64_t ns) noexcept { buckets[bucket_of(ns)].fetch_add(1, std::memory_order_relaxed); }
};
static_assert(Histogram::bucket_of(15) == 15 && Histogram::bucket_of(16) == 16 && Histogram::bucket_of(31) == 31);
static_assert(Histogram::bucket_floor(Histogram::bucket_of(1'000'000)) <= 1'000'000);
static_assert(sizeof(Histogram) == 37 * 16 * 4);

}  // namespace teal
