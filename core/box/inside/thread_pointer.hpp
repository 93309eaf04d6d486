#pragma once

#include <sys/syscall.h>

#include <cstdint>

#include "box/inside/gate.hpp"

namespace teal::box {

// The calling thread's pointer to what libc keeps for it: %fs on x86-64, tpidr_el0 on AArch64. A program in a box has its own or none,
// so whoever changes it uses no libc until it is back. `quick`: the CPU has instructions for it, and Linux allows them (x86-64, HWCAP2_FSGSBASE).
[[gnu::always_inline]] inline std::uint64_t thread_pointer([[maybe_unused]] bool quick = false) noexcept {
    std::uint64_t pointer = 0;
#if defined(__x86_64__)
    if (quick) {
        __asm__ volatile("rdfsbase %0" : "=r"(pointer));
    } else {
        raw(SYS_arch_prctl, 0x1003 /* ARCH_GET_FS */, reinterpret_cast<long>(&pointer));
    }
#else
    __asm__ volatile("mrs %0, tpidr_el0" : "=r"(pointer));
#endif
    return pointer;
}

[[gnu::always_inline]] inline void set_thread_pointer(std::uint64_t pointer, [[maybe_unused]] bool quick = false) noexcept {
#if defined(__x86_64__)
    if (quick) {
        __asm__ volatile("wrfsbase %0" ::"r"(pointer) : "memory");
    } else {
        raw(SYS_arch_prctl, 0x1002 /* ARCH_SET_FS */, static_cast<long>(pointer));
    }
#else
    __asm__ volatile("msr tpidr_el0, %0" ::"r"(pointer) : "memory");
#endif
}

}  // namespace teal::box
