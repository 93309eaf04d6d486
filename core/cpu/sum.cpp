// Three widths of one sum, chosen at run time; see sum.hpp for the theory of operation.
//
// The wide variants are compiled by function attribute, not by file flags: everything inlined into them is wide too, and nothing
// wide can leak into code that every CPU runs.
#include "cpu/sum.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace teal {
namespace {

constexpr std::size_t block = 4096;

using BlockSum = double (*)(const float* values, std::size_t count) noexcept;

double tail(const float* values, std::size_t count) noexcept {
    double sum = 0.0;
    for (std::size_t i = 0; i < count; ++i) {
        sum += static_cast<double>(values[i]);
    }
    return sum;
}

#if defined(__x86_64__)

double block_sse2(const float* values, std::size_t count) noexcept {
    __m128d a = _mm_setzero_pd();
    __m128d b = _mm_setzero_pd();
    __m128d c = _mm_setzero_pd();
    __m128d d = _mm_setzero_pd();
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m128 low = _mm_loadu_ps(values + i);
        const __m128 high = _mm_loadu_ps(values + i + 4);
        a = _mm_add_pd(a, _mm_cvtps_pd(low));
        b = _mm_add_pd(b, _mm_cvtps_pd(_mm_movehl_ps(low, low)));
        c = _mm_add_pd(c, _mm_cvtps_pd(high));
        d = _mm_add_pd(d, _mm_cvtps_pd(_mm_movehl_ps(high, high)));
    }
    const __m128d sum = _mm_add_pd(_mm_add_pd(a, b), _mm_add_pd(c, d));
    return _mm_cvtsd_f64(sum) + _mm_cvtsd_f64(_mm_unpackhi_pd(sum, sum)) + tail(values + i, count - i);
}

__attribute__((target("avx2"))) double block_avx2(const float* values, std::size_t count) noexcept {
    __m256d a = _mm256_setzero_pd();
    __m256d b = _mm256_setzero_pd();
    __m256d c = _mm256_setzero_pd();
    __m256d d = _mm256_setzero_pd();
    std::size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        a = _mm256_add_pd(a, _mm256_cvtps_pd(_mm_loadu_ps(values + i)));
        b = _mm256_add_pd(b, _mm256_cvtps_pd(_mm_loadu_ps(values + i + 4)));
        c = _mm256_add_pd(c, _mm256_cvtps_pd(_mm_loadu_ps(values + i + 8)));
        d = _mm256_add_pd(d, _mm256_cvtps_pd(_mm_loadu_ps(values + i + 12)));
    }
    const __m256d four = _mm256_add_pd(_mm256_add_pd(a, b), _mm256_add_pd(c, d));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two)) + tail(values + i, count - i);
}

// The maskz form with a full mask, because gcc 12 warns about the plain one inside its own header (GCC bug 105593).
__attribute__((target("avx512f"))) inline __m512d widen(const float* values) noexcept {
    return _mm512_maskz_cvtps_pd(0xFF, _mm256_loadu_ps(values));
}

__attribute__((target("avx512f"))) double block_avx512(const float* values, std::size_t count) noexcept {
    __m512d a = _mm512_setzero_pd();
    __m512d b = _mm512_setzero_pd();
    __m512d c = _mm512_setzero_pd();
    __m512d d = _mm512_setzero_pd();
    std::size_t i = 0;
    for (; i + 32 <= count; i += 32) {
        a = _mm512_add_pd(a, widen(values + i));
        b = _mm512_add_pd(b, widen(values + i + 8));
        c = _mm512_add_pd(c, widen(values + i + 16));
        d = _mm512_add_pd(d, widen(values + i + 24));
    }
    alignas(64) double lanes[8];
    _mm512_store_pd(lanes, _mm512_add_pd(_mm512_add_pd(a, b), _mm512_add_pd(c, d)));
    const double sum = ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
    return sum + tail(values + i, count - i);
}

#else

// Four accumulators, which the compiler turns into NEON.
double block_baseline(const float* values, std::size_t count) noexcept {
    double sums[4] = {};
    std::size_t i = 0;
    for (; i + 4 <= count; i += 4) {
        for (std::size_t lane = 0; lane < 4; ++lane) {
            sums[lane] += static_cast<double>(values[i + lane]);
        }
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]) + tail(values + i, count - i);
}

#endif

BlockSum variant(Isa isa) noexcept {
#if defined(__x86_64__)
    if (isa >= Isa::avx512) {
        return block_avx512;
    }
    return isa == Isa::avx2 ? block_avx2 : block_sse2;
#else
    (void)isa;
    return block_baseline;
#endif
}

// Depth is the logarithm of the number of blocks: at most 52.
double pairwise(BlockSum sum, const float* values, std::size_t count) noexcept {
    if (count <= block) {
        return sum(values, count);
    }
    const std::size_t blocks = (count + block - 1) / block;
    const std::size_t left = (blocks / 2) * block;
    return pairwise(sum, values, left) + pairwise(sum, values + left, count - left);
}

}  // namespace

double sum_f32(const float* values, std::size_t count) noexcept {
    static const BlockSum chosen = variant(isa());
    return pairwise(chosen, values, count);
}

double sum_f32_with(Isa isa, const float* values, std::size_t count) noexcept {
    return pairwise(variant(isa), values, count);
}

}  // namespace teal
