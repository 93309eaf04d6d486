// What this CPU can do, and what the operating system lets us use of it.
//
// Theory of operation. A CPU that offers wide registers is not enough: the kernel must also save them on a context switch,
// else they are silently clobbered or fault. So every feature has two answers:
//   offered  the CPU lists it (CPUID);
//   enabled  offered, *and* the OS has switched on the register state it needs (XGETBV, XCR0).
// AMX has a third: the kernel hands out its 8 KiB of tile state per process, on request (arch_prctl). Asking enlarges every
// signal frame of the process, so it is asked on first need and not before.
//
// Code picks its variant from a ladder of four rungs (Isa). The environment variable TEAL_ISA=v2|avx2|avx512|amx lowers the
// rung (to test narrow code on a wide machine, or to avoid a licence-based clock drop); it cannot raise it. A value we cannot
// honour is never ignored: the rung falls to the baseline, which every machine runs, and isa_error() says why.
//
// decode() and resolve_isa() are pure, so that tests describe machines that are not at hand.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace teal {

// The rungs, narrow to wide: each includes those before it. On aarch64 only the baseline exists (armv8-a, NEON).
enum class Isa : std::uint8_t { baseline, avx2, avx512, amx };

// avx2 and avx512 stand for the whole of x86-64-v3 and x86-64-v4: nothing sold has half of one.
enum class Feature : std::uint8_t { baseline, avx2, avx512, avx512_bf16, avx512_vnni, amx_bf16, amx_int8 };

inline constexpr std::size_t feature_count = 7;

std::string_view isa_name(Isa isa) noexcept;              // "v2" ("armv8" on aarch64), "avx2", "avx512", "amx"
std::string_view feature_name(Feature feature) noexcept;  // "x86-64-v2" ("armv8-a"), "avx2", "avx512", "avx512_bf16", ...
std::string_view architecture_name() noexcept;            // "x86_64" or "aarch64"

// The CPUID and XGETBV words that decode() looks at, as read from the CPU; all zero elsewhere than on x86-64.
struct CpuidWords {
    std::uint32_t leaf1_ecx = 0;
    std::uint32_t leaf7_ebx = 0;
    std::uint32_t leaf7_ecx = 0;
    std::uint32_t leaf7_edx = 0;
    std::uint32_t leaf7_1_eax = 0;
    std::uint32_t extended1_ecx = 0;  // leaf 0x80000001
    std::uint32_t extended7_edx = 0;  // leaf 0x80000007
    std::uint64_t xcr0 = 0;           // 0 when the OS has not switched XSAVE on
    std::array<char, 13> vendor{};
    std::array<char, 49> brand{};
};

struct CpuFeatures {
    std::array<bool, feature_count> offered{};
    std::array<bool, feature_count> enabled{};
    std::uint64_t xcr0 = 0;
    bool invariant_tsc = false;  // ticks at one rate in every power state, and does not stop
    std::array<char, 13> vendor{};
    std::array<char, 49> brand{};

    bool is_offered(Feature feature) const noexcept { return offered[static_cast<std::size_t>(feature)]; }
    bool is_enabled(Feature feature) const noexcept { return enabled[static_cast<std::size_t>(feature)]; }
};

CpuidWords read_cpuid() noexcept;
CpuFeatures decode(const CpuidWords& words) noexcept;
Isa widest_isa(const CpuFeatures& features) noexcept;

struct IsaChoice {
    Isa isa = Isa::baseline;
    std::string error;  // empty, or what was wrong with the request, what was expected, and what to do
};

// requested: the text of TEAL_ISA, or nullptr when it is not set (then the widest rung is chosen).
IsaChoice resolve_isa(Isa widest, const char* requested);

// The rest answers for this process; each is worked out once and safe to call from any thread.
const CpuFeatures& cpu_features() noexcept;
// After TEAL_ISA as it was at the first call. Amx still needs amx_permission() == 0 before the first tile instruction.
Isa isa() noexcept;
const std::string& isa_error() noexcept;

// Asks the kernel once for the AMX tile state, for this process and its later threads and forks. 0, or the errno of the refusal:
// ENOTSUP when CPU or OS offer no AMX, ENOSPC when some thread's alternate signal stack is too small for the larger frame.
int amx_permission() noexcept;

// May this process execute the feature now? Enabled, not above isa(), and for AMX permitted (asks on first use).
bool has(Feature feature) noexcept;

}  // namespace teal
