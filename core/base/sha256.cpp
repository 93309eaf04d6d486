#include "base/sha256.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace teal {
namespace {

alignas(16) constexpr std::uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74,
    0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d,
    0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e,
    0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5,
    0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using Blocks = void (*)(std::uint32_t* state, const std::byte* at, std::size_t count) noexcept;

void plain_blocks(std::uint32_t* state, const std::byte* at, std::size_t count) noexcept {
    for (; count > 0; --count, at += 64) {
        std::uint32_t w[64];
        for (unsigned i = 0; i < 16; ++i) {
            w[i] = 0;
            for (unsigned j = 0; j < 4; ++j) w[i] = w[i] << 8 | std::to_integer<std::uint32_t>(at[i * 4 + j]);
        }
        for (unsigned i = 16; i < 64; ++i) {
            const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
            const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        std::uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
        for (unsigned i = 0; i < 64; ++i) {
            const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
            const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + constants[i] + w[i];
            const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
            const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
            h = g; g = f; f = e; e = d + t1; d = c; c = b; b = a; a = t1 + t2;
        }
        const std::uint32_t added[8] = {a, b, c, d, e, f, g, h};
        for (unsigned i = 0; i < 8; ++i) state[i] += added[i];
    }
}

#if defined(__x86_64__)
// The instruction works on the state as (ABEF, CDGH) and does two rounds; the schedule is four words wide.
__attribute__((target("sha,sse4.1"))) void sha_blocks(std::uint32_t* state, const std::byte* at, std::size_t count) noexcept {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const __m128i abcd = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state));
    const __m128i efgh = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4));
    const __m128i badc = _mm_shuffle_epi32(abcd, 0xb1);
    const __m128i hgfe = _mm_shuffle_epi32(efgh, 0x1b);
    __m128i abef = _mm_alignr_epi8(badc, hgfe, 8);
    __m128i cdgh = _mm_blend_epi16(hgfe, badc, 0xf0);
    for (; count > 0; --count, at += 64) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[4];
        for (unsigned i = 0; i < 4; ++i) w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at) + i), swap);
        for (unsigned i = 0; i < 16; ++i) {
            __m128i& now = w[i & 3];
            if (i >= 4) {  // w[t-16] + s0(w[t-15]) + w[t-7] + s1(w[t-2])
                const __m128i seventh = _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4);
                now = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(now, w[(i + 1) & 3]), seventh), w[(i + 3) & 3]);
            }
            const __m128i sum = _mm_add_epi32(now, _mm_load_si128(reinterpret_cast<const __m128i*>(constants) + i));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
    const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

bool has_sha() noexcept {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
    return (b & bit_SHA) != 0;  // the baseline has SSE 4.1
}
#endif

Blocks best_blocks() noexcept {
#if defined(__x86_64__)
    if (has_sha()) return sha_blocks;
#endif
    return plain_blocks;
}

std::atomic<Blocks> blocks{best_blocks()};

}  // namespace

void Sha256::use_plain_code() noexcept { blocks.store(plain_blocks, std::memory_order_relaxed); }

void Sha256::add(std::span<const std::byte> bytes) noexcept {
    const Blocks run = blocks.load(std::memory_order_relaxed);
    total_ += bytes.size();
    if (held_ > 0) {
        const std::size_t n = std::min(bytes.size(), 64 - held_);
        if (n > 0) std::memcpy(rest_.data() + held_, bytes.data(), n);
        held_ += n;
        bytes = bytes.subspan(n);
        if (held_ < 64) return;
        run(state_.data(), rest_.data(), 1);
        held_ = 0;
    }
    run(state_.data(), bytes.data(), bytes.size() / 64);
    bytes = bytes.subspan(bytes.size() / 64 * 64);
    if (!bytes.empty()) std::memcpy(rest_.data(), bytes.data(), bytes.size());
    held_ = bytes.size();
}

Sha256::Digest Sha256::finish() noexcept {
    const std::uint64_t bits = total_ * 8;
    std::byte tail[72] = {std::byte{0x80}};
    const std::size_t padding = (held_ < 56 ? 56 : 120) - held_;  // 0x80 and zeros, up to 8 bytes before a block's end
    for (unsigned i = 0; i < 8; ++i) tail[padding + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
    add({tail, padding + 8});
    Digest digest;
    for (unsigned i = 0; i < 32; ++i) digest[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    return digest;
}

std::string Sha256::hex() { return hex_of(finish()); }

std::string hex_of(std::span<const std::uint8_t> bytes) {
    std::string text;
    for (const std::uint8_t byte : bytes) {
        text += "0123456789abcdef"[byte >> 4];
        text += "0123456789abcdef"[byte & 15];
    }
    return text;
}

}  // namespace teal
