// The part of <linux/kvm.h> that C++ cannot take as it stands.
//
// Theory of operation. The header's lists (CPUID leaves, model-specific registers, vector state) end in an array of no length, wrapped in a
// struct with an empty member: nothing in C, one byte in C++, so both the offset of the list and the number of the ioctl come out wrong.
// The layouts here are the ones the kernel means.
#pragma once

#if defined(__x86_64__)

#include <array>
#include <cstddef>
#include <cstdint>

#include <linux/kvm.h>
#include <sys/ioctl.h>

namespace teal::kvm {

struct CpuidList {
    std::uint32_t count = 0;
    std::uint32_t padding = 0;
    std::array<kvm_cpuid_entry2, 256> entries{};
};
static_assert(offsetof(CpuidList, entries) == 8);

struct MsrList {
    std::uint32_t count = 0;
    std::uint32_t padding = 0;
    std::array<kvm_msr_entry, 8> entries{};
};
static_assert(offsetof(MsrList, entries) == 8);

struct XsaveArea {
    std::array<std::byte, 4096> bytes{};
};

inline constexpr unsigned long set_xsave = _IOC(_IOC_WRITE, KVMIO, 0xa5, 4096);
inline constexpr unsigned long get_supported_cpuid = _IOC(_IOC_READ | _IOC_WRITE, KVMIO, 0x05, 8);
inline constexpr unsigned long set_cpuid2 = _IOC(_IOC_WRITE, KVMIO, 0x90, 8);
inline constexpr unsigned long get_msrs = _IOC(_IOC_READ | _IOC_WRITE, KVMIO, 0x88, 8);
inline constexpr unsigned long set_msrs = _IOC(_IOC_WRITE, KVMIO, 0x89, 8);

}  // namespace teal::kvm

#endif
