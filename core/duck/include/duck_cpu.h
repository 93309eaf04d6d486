/* duck_cpu.h: which vectors this CPU *and* its system let a program use, without any libc.
 *
 * Theory of operation. A program is compiled for x86-64-v2, which every duck has. Wider code lies in functions of its own, each with a target
 * attribute, and is chosen by duck_isa() when the program starts: the CPU has to offer the instructions (CPUID), and the system has to keep
 * their registers (XGETBV). So no instruction can be illegal wherever the program is sent. examples/duck/gemv.c shows how.
 */
#ifndef TEAL_DUCK_CPU_H
#define TEAL_DUCK_CPU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum duck_isa {
    DUCK_BASE = 0,   /* x86-64-v2; on aarch64 its own 128-bit vectors */
    DUCK_AVX2 = 1,   /* x86-64-v3: AVX2, FMA, F16C, BMI */
    DUCK_AVX512 = 2, /* x86-64-v4: AVX-512 F, BW, CD, DQ, VL */
} duck_isa_t;

#if defined(__x86_64__) || defined(__i386__)
#define DUCK_TARGET_AVX2 __attribute__((target("avx2,fma,f16c,bmi,bmi2,lzcnt,movbe")))
#define DUCK_TARGET_AVX512 __attribute__((target("avx2,fma,f16c,bmi,bmi2,lzcnt,movbe,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")))

static inline void duck_cpuid_(uint32_t leaf, uint32_t *a, uint32_t *b, uint32_t *c, uint32_t *d) {
    __asm__ volatile("cpuid" : "=a"(*a), "=b"(*b), "=c"(*c), "=d"(*d) : "a"(leaf), "c"(0u));
}

static inline duck_isa_t duck_isa(void) {
    /* CPUID 1, ecx: FMA 12, MOVBE 22, OSXSAVE 27, AVX 28, F16C 29; 7, ebx: BMI 3, AVX2 5, BMI2 8, AVX-512 F 16, DQ 17, CD 28, BW 30, VL 31. */
    const uint32_t wanted_1 = 1u << 12 | 1u << 22 | 1u << 27 | 1u << 28 | 1u << 29;
    const uint32_t avx2_7 = 1u << 3 | 1u << 5 | 1u << 8, avx512_7 = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;
    uint32_t a, b, c, d, most, kept, high;
    duck_cpuid_(0, &most, &b, &c, &d);
    if (most < 7) return DUCK_BASE;
    duck_cpuid_(1, &a, &b, &c, &d);
    if ((c & wanted_1) != wanted_1) return DUCK_BASE;
    __asm__ volatile("xgetbv" : "=a"(kept), "=d"(high) : "c"(0u));
    duck_cpuid_(0x80000001u, &a, &b, &c, &d); /* LZCNT: ecx 5 */
    if ((kept & 0x06u) != 0x06u || (c & 1u << 5) == 0) return DUCK_BASE;
    duck_cpuid_(7, &a, &b, &c, &d);
    if ((b & avx2_7) != avx2_7) return DUCK_BASE;
    if ((kept & 0xe6u) != 0xe6u || (b & avx512_7) != avx512_7) return DUCK_AVX2;
    return DUCK_AVX512;
}
#else
#define DUCK_TARGET_AVX2
#define DUCK_TARGET_AVX512
static inline duck_isa_t duck_isa(void) { return DUCK_BASE; }
#endif

#ifdef __cplusplus
}
#endif

#endif
