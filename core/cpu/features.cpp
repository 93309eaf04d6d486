// Reads CPUID, XCR0 and the AMX permission; see features.hpp for the theory of operation.
#include "cpu/features.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace teal {
namespace {

constexpr std::array<std::string_view, feature_count> feature_names = {
#if defined(__aarch64__)
    "armv8-a",
#else
    "x86-64-v2",
#endif
    "avx2", "avx512", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8"};

constexpr std::array<std::string_view, 4> isa_names = {
#if defined(__aarch64__)
    "armv8",
#else
    "v2",
#endif
    "avx2", "avx512", "amx"};

constexpr bool bit(std::uint64_t word, unsigned index) noexcept { return (word >> index & 1U) != 0; }

constexpr bool all(std::uint64_t word, std::uint64_t mask) noexcept { return (word & mask) == mask; }

constexpr std::uint32_t bits(std::initializer_list<unsigned> indices) noexcept {
    std::uint32_t mask = 0;
    for (const unsigned index : indices) {
        mask |= 1U << index;
    }
    return mask;
}

// Register state components in XCR0 (Intel SDM vol. 1, 13.1).
constexpr std::uint64_t xcr0_avx = bits({1, 2});              // SSE, upper halves of YMM
constexpr std::uint64_t xcr0_avx512 = bits({1, 2, 5, 6, 7});  // + mask registers, upper halves of ZMM0-15, ZMM16-31
constexpr std::uint64_t xcr0_amx = bits({17, 18});            // tile configuration, tile data

// The psABI micro-architecture levels, word by word.
constexpr std::uint32_t v2_leaf1_ecx = bits({0, 9, 13, 19, 20, 23});  // SSE3 SSSE3 CMPXCHG16B SSE4.1 SSE4.2 POPCNT
constexpr std::uint32_t v3_leaf1_ecx = bits({12, 22, 28, 29});        // FMA MOVBE AVX F16C
constexpr std::uint32_t v3_leaf7_ebx = bits({3, 5, 8});               // BMI1 AVX2 BMI2
constexpr std::uint32_t v3_extended1_ecx = bits({5});                 // LZCNT
constexpr std::uint32_t v4_leaf7_ebx = bits({16, 17, 28, 30, 31});    // AVX512 F DQ CD BW VL
constexpr std::uint32_t v2_extended1_ecx = bits({0});                 // LAHF in 64-bit mode

#if defined(__x86_64__)

// XGETBV by hand: the intrinsic would need -mxsave for this whole file. Faults unless CPUID says OSXSAVE.
std::uint64_t xgetbv0() noexcept {
    std::uint32_t low = 0;
    std::uint32_t high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<std::uint64_t>(high) << 32 | low;
}

struct Registers {
    std::uint32_t eax = 0;
    std::uint32_t ebx = 0;
    std::uint32_t ecx = 0;
    std::uint32_t edx = 0;
};

// All zero when the CPU does not know the leaf.
Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) noexcept {
    Registers r;
    __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
    return r;
}

void read_names(CpuidWords& words) noexcept {
    const Registers r = cpuid(0);
    std::memcpy(words.vendor.data(), &r.ebx, 4);
    std::memcpy(words.vendor.data() + 4, &r.edx, 4);
    std::memcpy(words.vendor.data() + 8, &r.ecx, 4);
    for (std::uint32_t part = 0; part < 3; ++part) {
        const Registers text = cpuid(0x80000002U + part);
        static_assert(sizeof text == 16);
        std::memcpy(words.brand.data() + 16 * part, &text, sizeof text);
    }
}

#endif

}  // namespace

std::string_view isa_name(Isa isa) noexcept { return isa_names[static_cast<std::size_t>(isa)]; }

std::string_view feature_name(Feature feature) noexcept { return feature_names[static_cast<std::size_t>(feature)]; }

std::string_view architecture_name() noexcept {
#if defined(__aarch64__)
    return "aarch64";
#else
    return "x86_64";
#endif
}

CpuidWords read_cpuid() noexcept {
    CpuidWords words;
#if defined(__x86_64__)
    words.leaf1_ecx = cpuid(1).ecx;
    const Registers leaf7 = cpuid(7);
    words.leaf7_ebx = leaf7.ebx;
    words.leaf7_ecx = leaf7.ecx;
    words.leaf7_edx = leaf7.edx;
    if (leaf7.eax >= 1) {  // the highest subleaf; beyond it some CPUs repeat the last one
        words.leaf7_1_eax = cpuid(7, 1).eax;
    }
    words.extended1_ecx = cpuid(0x80000001U).ecx;
    words.extended7_edx = cpuid(0x80000007U).edx;
    if (bit(words.leaf1_ecx, 27)) {  // OSXSAVE
        words.xcr0 = xgetbv0();
    }
    read_names(words);
#endif
    return words;
}

CpuFeatures decode(const CpuidWords& words) noexcept {
    CpuFeatures features;
    features.xcr0 = words.xcr0;
    features.vendor = words.vendor;
    features.brand = words.brand;
    features.invariant_tsc = bit(words.extended7_edx, 8);

    const auto set = [&features](Feature feature, bool offered, bool os_saves_state) {
        const auto index = static_cast<std::size_t>(feature);
        features.offered[index] = offered;
        features.enabled[index] = offered && os_saves_state;
    };
#if defined(__aarch64__)
    set(Feature::baseline, true, true);  // NEON is part of armv8-a: there is nothing to ask
#else
    const bool v2 = all(words.leaf1_ecx, v2_leaf1_ecx) && all(words.extended1_ecx, v2_extended1_ecx);
    const bool v3 = v2 && all(words.leaf1_ecx, v3_leaf1_ecx) && all(words.leaf7_ebx, v3_leaf7_ebx) &&
                    all(words.extended1_ecx, v3_extended1_ecx);
    const bool v4 = v3 && all(words.leaf7_ebx, v4_leaf7_ebx);
    const bool tile = v4 && bit(words.leaf7_edx, 24);
    const bool avx_state = all(words.xcr0, xcr0_avx);
    const bool avx512_state = all(words.xcr0, xcr0_avx512);
    const bool amx_state = avx512_state && all(words.xcr0, xcr0_amx);

    set(Feature::baseline, v2, true);
    set(Feature::avx2, v3, avx_state);
    set(Feature::avx512, v4, avx512_state);
    set(Feature::avx512_bf16, v4 && bit(words.leaf7_1_eax, 5), avx512_state);
    set(Feature::avx512_vnni, v4 && bit(words.leaf7_ecx, 11), avx512_state);
    set(Feature::amx_bf16, tile && bit(words.leaf7_edx, 22), amx_state);
    set(Feature::amx_int8, tile && bit(words.leaf7_edx, 25), amx_state);
#endif
    return features;
}

Isa widest_isa(const CpuFeatures& features) noexcept {
    if (features.is_enabled(Feature::amx_bf16) || features.is_enabled(Feature::amx_int8)) {
        return Isa::amx;
    }
    if (features.is_enabled(Feature::avx512)) {
        return Isa::avx512;
    }
    return features.is_enabled(Feature::avx2) ? Isa::avx2 : Isa::baseline;
}

IsaChoice resolve_isa(Isa widest, const char* requested) {
    if (requested == nullptr) {
        return {widest, {}};
    }
    std::string available;
    for (std::size_t rung = 0; rung <= static_cast<std::size_t>(widest); ++rung) {
        if (requested == isa_names[rung]) {
            return {static_cast<Isa>(rung), {}};
        }
        available += (rung == 0 ? "" : ", ") + std::string(isa_names[rung]);
    }
    // A long or binary value must not flood the log: show its start, printable characters only.
    std::string shown(requested, ::strnlen(requested, 32));
    for (char& c : shown) {
        c = (c >= ' ' && c <= '~') ? c : '?';
    }
    return {Isa::baseline, "TEAL_ISA='" + shown + "' cannot be honoured: on this machine it may be one of " + available +
                               "; set one of these or unset TEAL_ISA (until then the narrowest code runs)"};
}

const CpuFeatures& cpu_features() noexcept {
    static const CpuFeatures features = decode(read_cpuid());
    return features;
}

namespace {

const IsaChoice& choice() noexcept {
    static const IsaChoice chosen = resolve_isa(widest_isa(cpu_features()), std::getenv("TEAL_ISA"));
    return chosen;
}

int ask_amx_permission() noexcept {
    const CpuFeatures& features = cpu_features();
    if (!features.is_enabled(Feature::amx_bf16) && !features.is_enabled(Feature::amx_int8)) {
        return ENOTSUP;
    }
#if defined(__x86_64__)
    constexpr long request_component_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM, Linux 5.16
    constexpr long tile_data_component = 18;               // XFEATURE_XTILEDATA
    if (::syscall(SYS_arch_prctl, request_component_permission, tile_data_component) != 0) {
        return errno;
    }
#endif
    return 0;
}

}  // namespace

Isa isa() noexcept { return choice().isa; }

const std::string& isa_error() noexcept { return choice().error; }

int amx_permission() noexcept {
    static const int refusal = ask_amx_permission();
    return refusal;
}

bool has(Feature feature) noexcept {
    if (!cpu_features().is_enabled(feature)) {
        return false;
    }
    switch (feature) {
        case Feature::baseline:
            return true;
        case Feature::avx2:
            return isa() >= Isa::avx2;
        case Feature::avx512:
        case Feature::avx512_bf16:
        case Feature::avx512_vnni:
            return isa() >= Isa::avx512;
        case Feature::amx_bf16:
        case Feature::amx_int8:
            return isa() >= Isa::amx && amx_permission() == 0;
    }
    return false;
}

}  // namespace teal
