// Compiles TEAL_BODY once for each width of the vector unit, in a namespace of its own.
//
// By function attribute and not by file flags, as in cpu/sum.cpp: nothing wide can leak into code that every CPU runs. Every
// function in the body says TEAL_FN (inlined into its caller) or TEAL_ENTRY (called through a pointer), which carry the attribute.
//
//   TEAL_BYTES    width of a vector          TEAL_RUNG   0 baseline, 1 AVX2 with FMA, 2 AVX-512 with VNNI where the CPU has it
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define TEAL_FN [[gnu::always_inline]] TEAL_TARGET static inline
#define TEAL_ENTRY TEAL_TARGET static

namespace teal::systems {
namespace {

namespace baseline {
#define TEAL_TARGET
#define TEAL_BYTES 16
#define TEAL_RUNG 0
#include "systems/simd.inl"
#include TEAL_BODY
#undef TEAL_TARGET
#undef TEAL_BYTES
#undef TEAL_RUNG
}  // namespace baseline

#if defined(__x86_64__)
namespace avx2 {
#define TEAL_TARGET __attribute__((target("avx2,fma")))
#define TEAL_BYTES 32
#define TEAL_RUNG 1
#include "systems/simd.inl"
#include TEAL_BODY
#undef TEAL_TARGET
#undef TEAL_BYTES
#undef TEAL_RUNG
}  // namespace avx2

namespace avx512 {
#define TEAL_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,prefer-vector-width=512")))
#define TEAL_BYTES 64
#define TEAL_RUNG 2
#include "systems/simd.inl"
#include TEAL_BODY
#undef TEAL_TARGET
#undef TEAL_BYTES
#undef TEAL_RUNG
}  // namespace avx512
#endif

// The entry of that width: TEAL_PICK(isa, run) is baseline::run, avx2::run or avx512::run.
#if defined(__x86_64__)
#define TEAL_PICK(isa, entry) ((isa) >= Isa::avx512 ? avx512::entry : (isa) == Isa::avx2 ? avx2::entry : baseline::entry)
#else
#define TEAL_PICK(isa, entry) (static_cast<void>(isa), baseline::entry)
#endif

}  // namespace
}  // namespace teal::systems

#undef TEAL_FN
#undef TEAL_ENTRY
