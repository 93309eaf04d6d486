// The gate: the one page from which a box may make system calls that only start-up needs.
//
// Theory of operation. A box is locked up before it knows what it will run, so that locking up costs a start nothing. Its filter lets the calls of
// start-up (map executable pages, make threads, take descriptors, set limits) through only when the instruction that makes them lies in
// this page. Before the program starts, the page is unmapped, by an ordinary call. Nothing can come back to its address and be executed:
// executable mappings could be made through the gate alone, mremap() may not move, and a program's own pages lie elsewhere.
#pragma once

#include <cstdint>

extern "C" {
// All registers zero, stack pointer set, jump. `narrow`: into 32-bit code. From a page that stays.
[[noreturn]] void teal_enter(std::uint64_t entry, std::uint64_t stack, std::uint64_t narrow) noexcept;
}

namespace teal::box {

inline constexpr std::uint64_t gate_bytes = 4096;
extern std::uint64_t gate_page;     // a mapping by itself: quicker to take away than a part of one
bool make_gate() noexcept;          // in the zygote

// A system call through the gate: the result, or -errno.
template <class... Args>
inline long gate(long number, Args... args) noexcept {
    using Call = long (*)(long, long, long, long, long, long, long);
    long value[6] = {};
    int i = 0;
    ((value[i++] = (long)args), ...);
    return reinterpret_cast<Call>(gate_page)(number, value[0], value[1], value[2], value[3], value[4], value[5]);
}
// clone() of a thread that runs function(argument) on `stack` with `tls`; the function never returns.
long gate_thread(unsigned long flags, void* stack, void* tls, void (*function)(void*), void* argument) noexcept;

// A raw system call from where the code is: no errno, which would be the program's once it runs.
inline long raw(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) noexcept {
#if defined(__x86_64__)
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
#endif
}

}  // namespace teal::box
