#include "box/inside/gate.hpp"

#include <sys/mman.h>

#include <cstring>

// The gate's code is data here: it is executed in the page that it is copied to, and nowhere else.
#if defined(__x86_64__)
__asm__(R"(
    .pushsection .rodata
    .balign 16
    .globl teal_gate_code
    .hidden teal_gate_code
teal_gate_code:
    mov %rdi, %rax
    mov %rsi, %rdi
    mov %rdx, %rsi
    mov %rcx, %rdx
    mov %r8, %r10
    mov %r9, %r8
    mov 8(%rsp), %r9
    syscall
    ret
    .globl teal_gate_thread_code
    .hidden teal_gate_thread_code
teal_gate_thread_code:
    sub $16, %rsi
    mov %rcx, (%rsi)
    mov %r8, 8(%rsi)
    mov %rdx, %r8
    xor %edx, %edx
    xor %r10d, %r10d
    mov $56, %eax
    syscall
    test %rax, %rax
    jnz 1f
    xor %ebp, %ebp
    pop %rax
    pop %rdi
    pushq $0
    jmp *%rax
1:  ret
    .globl teal_gate_end
    .hidden teal_gate_end
teal_gate_end:
    .popsection

    .pushsection .text
    .globl teal_enter
    .hidden teal_enter
    .type teal_enter, @function
teal_enter:
    mov %rsi, %rsp
    test %rdx, %rdx
    jnz 2f
    mov %rdi, %rcx
    xor %eax, %eax
    xor %ebx, %ebx
    xor %edx, %edx
    xor %esi, %esi
    xor %edi, %edi
    xor %ebp, %ebp
    xor %r8d, %r8d
    xor %r9d, %r9d
    xor %r10d, %r10d
    xor %r11d, %r11d
    xor %r12d, %r12d
    xor %r13d, %r13d
    xor %r14d, %r14d
    xor %r15d, %r15d
    jmp *%rcx
2:  mov $0x2b, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %edi, -8(%rsp)
    movl $0x23, -4(%rsp)
    xor %eax, %eax
    xor %ebx, %ebx
    xor %ecx, %ecx
    xor %edx, %edx
    xor %esi, %esi
    xor %edi, %edi
    xor %ebp, %ebp
    ljmp *-8(%rsp)
    .popsection
)");
#elif defined(__aarch64__)
__asm__(R"(
    .pushsection .rodata
    .balign 16
    .globl teal_gate_code
    .hidden teal_gate_code
teal_gate_code:
    mov x8, x0
    mov x0, x1
    mov x1, x2
    mov x2, x3
    mov x3, x4
    mov x4, x5
    mov x5, x6
    svc 0
    ret
    .globl teal_gate_thread_code
    .hidden teal_gate_thread_code
teal_gate_thread_code:
    stp x3, x4, [x1, #-16]!
    mov x3, x2
    mov x2, xzr
    mov x4, xzr
    mov x8, #220
    svc 0
    cbnz x0, 1f
    mov x29, xzr
    mov x30, xzr
    ldp x1, x0, [sp], #16
    br x1
1:  ret
    .globl teal_gate_end
    .hidden teal_gate_end
teal_gate_end:
    .popsection

    .pushsection .text
    .globl teal_enter
    .hidden teal_enter
    .type teal_enter, %function
teal_enter:
    mov sp, x1
    mov x29, xzr
    mov x30, xzr
    br x0
    .popsection
)");
#else
#error "boxes: x86-64 or aarch64"
#endif

extern "C" const char teal_gate_code[], teal_gate_thread_code[], teal_gate_end[];

namespace teal::box {

std::uint64_t gate_page = 0;

bool make_gate() noexcept {
    void* page = mmap(nullptr, gate_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return false;
    std::memcpy(page, teal_gate_code, static_cast<std::size_t>(teal_gate_end - teal_gate_code));
    if (mprotect(page, gate_bytes, PROT_READ | PROT_EXEC) != 0) return false;
    gate_page = reinterpret_cast<std::uint64_t>(page);
    return true;
}

long gate_thread(unsigned long flags, void* stack, void* tls, void (*function)(void*), void* argument) noexcept {
    using Call = long (*)(unsigned long, void*, void*, void (*)(void*), void*);
    return reinterpret_cast<Call>(gate_page + static_cast<std::uint64_t>(teal_gate_thread_code - teal_gate_code))(flags, stack, tls, function, argument);
}

}  // namespace teal::box
