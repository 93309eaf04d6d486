// Work that keeps every register busy: churn() mixes all of them for a while, so whoever loses or changes one on the way ends up elsewhere.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/features.hpp"

namespace teal::tests {

struct Churn {
    std::uint64_t general[16];      // 13 are used
    std::uint64_t vectors[32][8];
    std::uint64_t masks[8];

    bool operator==(const Churn& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
    void fill(std::uint64_t seed) {
        auto* words = reinterpret_cast<std::uint64_t*>(this);
        for (std::size_t i = 0; i < sizeof *this / 8; ++i) {
            seed = seed * 6364136223846793005U + 1442695040888963407U;
            words[i] = seed ^ seed >> 29;
        }
    }
};
static_assert(sizeof(Churn) == 128 + 2048 + 64);

#if defined(__x86_64__)
extern "C" void teal_churn_sse(Churn* state, std::uint64_t rounds) noexcept;
extern "C" void teal_churn_avx2(Churn* state, std::uint64_t rounds) noexcept;
extern "C" void teal_churn_avx512(Churn* state, std::uint64_t rounds) noexcept;

// The general registers are the same in all three; `state` lies on the stack while its own register is churned.
asm(R"(
    .macro teal_churn_begin name
    .text
    .globl \name
    .hidden \name
    .type \name, @function
\name:
    .irp reg, rbx, rbp, r12, r13, r14, r15
    pushq %\reg
    .endr
    pushq %rdi
    movq 0(%rdi), %rax
    movq 8(%rdi), %rbx
    movq 16(%rdi), %rcx
    movq 24(%rdi), %rdx
    movq 32(%rdi), %rbp
    movq 40(%rdi), %r8
    movq 48(%rdi), %r9
    movq 56(%rdi), %r10
    movq 64(%rdi), %r11
    movq 72(%rdi), %r12
    movq 80(%rdi), %r13
    movq 88(%rdi), %r14
    movq 96(%rdi), %r15
    .endm

    .macro teal_churn_general
    addq %rbx, %rax
    rolq $7, %rax
    xorq %rcx, %rbx
    addq %rdx, %rcx
    rolq $11, %rcx
    xorq %rbp, %rdx
    addq %r8, %rbp
    xorq %r9, %r8
    addq %r10, %r9
    rolq $3, %r10
    addq %r11, %r10
    xorq %r12, %r11
    addq %r13, %r12
    xorq %r14, %r13
    addq %r15, %r14
    addq %rax, %r15
    addq %r9, %rdi
    .endm

    .macro teal_churn_end name
    movq %rax, 0(%rdi)
    movq %rbx, 8(%rdi)
    movq %rcx, 16(%rdi)
    movq %rdx, 24(%rdi)
    movq %rbp, 32(%rdi)
    movq %r8, 40(%rdi)
    movq %r9, 48(%rdi)
    movq %r10, 56(%rdi)
    movq %r11, 64(%rdi)
    movq %r12, 72(%rdi)
    movq %r13, 80(%rdi)
    movq %r14, 88(%rdi)
    movq %r15, 96(%rdi)
    popq %rax
    .irp reg, r15, r14, r13, r12, rbp, rbx
    popq %\reg
    .endr
    ret
    .size \name, .-\name
    .endm

    teal_churn_begin teal_churn_sse
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movdqu (128 + 64 * \i)(%rdi), %xmm\i
    .endr
    xorl %edi, %edi
1:
    teal_churn_general
    .irp i, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    paddq %xmm\i, %xmm0
    .endr
    paddq %xmm0, %xmm15
    pxor %xmm3, %xmm7
    decq %rsi
    jnz 1b
    addq %rdi, %rax
    movq (%rsp), %rdi
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movdqu %xmm\i, (128 + 64 * \i)(%rdi)
    .endr
    teal_churn_end teal_churn_sse

    teal_churn_begin teal_churn_avx2
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    vmovdqu (128 + 64 * \i)(%rdi), %ymm\i
    .endr
    xorl %edi, %edi
1:
    teal_churn_general
    .irp i, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    vpaddq %ymm\i, %ymm0, %ymm0
    .endr
    vpaddq %ymm0, %ymm15, %ymm15
    vpxor %ymm3, %ymm7, %ymm7
    decq %rsi
    jnz 1b
    addq %rdi, %rax
    movq (%rsp), %rdi
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    vmovdqu %ymm\i, (128 + 64 * \i)(%rdi)
    .endr
    vzeroupper
    teal_churn_end teal_churn_avx2

    teal_churn_begin teal_churn_avx512
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    vmovdqu64 (128 + 64 * \i)(%rdi), %zmm\i
    .endr
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7
    kmovw (2176 + 8 * \i)(%rdi), %k\i
    .endr
    xorl %edi, %edi
1:
    teal_churn_general
    .irp i, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    vpaddq %zmm\i, %zmm0, %zmm0
    .endr
    vpaddq %zmm0, %zmm31, %zmm31{%k1}
    vpxorq %zmm3, %zmm17, %zmm17
    kxorw %k2, %k1, %k1
    kxorw %k3, %k7, %k2
    kxorw %k4, %k5, %k3
    kxorw %k6, %k1, %k6
    decq %rsi
    jnz 1b
    addq %rdi, %rax
    movq (%rsp), %rdi
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    vmovdqu64 %zmm\i, (128 + 64 * \i)(%rdi)
    .endr
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7
    kmovw %k\i, (2176 + 8 * \i)(%rdi)
    .endr
    vzeroupper
    teal_churn_end teal_churn_avx512
)");

inline void churn(Isa isa, Churn& state, std::uint64_t rounds) noexcept {
    if (isa >= Isa::avx512) teal_churn_avx512(&state, rounds);
    else if (isa == Isa::avx2) teal_churn_avx2(&state, rounds);
    else teal_churn_sse(&state, rounds);
}
#else
// As many values at once as there are registers, for the compiler to keep there.
inline void churn(Isa, Churn& state, std::uint64_t rounds) noexcept {
    std::uint64_t a[13];
    double v[24];
    for (int i = 0; i < 13; ++i) a[i] = state.general[i];
    for (int i = 0; i < 24; ++i) v[i] = static_cast<double>(state.vectors[i][0] >> 40);
    for (std::uint64_t round = 0; round < rounds; ++round) {
        for (int i = 0; i < 13; ++i) a[i] += a[(i + 1) % 13] << 3 | a[(i + 5) % 13] >> 61;
        for (int i = 0; i < 24; ++i) v[i] = v[i] * 0.5 + v[(i + 1) % 24];
    }
    for (int i = 0; i < 13; ++i) state.general[i] = a[i];
    for (int i = 0; i < 24; ++i) std::memcpy(&state.vectors[i][0], &v[i], 8);
}
#endif

}  // namespace teal::tests
