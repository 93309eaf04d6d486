#include "box/inside/gate.hpp"

// The section is a page of its own: the page is unmapped before the program starts.
#if defined(__x86_64__)
__asm__(R"(
    .pushsection .teal_gate, "ax", @progbits
    .balign 4096
    .globl teal_gate_page
    .hidden teal_gate_page
teal_gate_page:
    .globl teal_gate
    .hidden teal_gate
    .type teal_gate, @function
teal_gate:
    mov %rdi, %rax
    mov %rsi, %rdi
    mov %rdx, %rsi
    mov %rcx, %rdx
    mov %r8, %r10
    mov %r9, %r8
    mov 8(%rsp), %r9
    syscall
    ret
    .globl teal_gate_thread
    .hidden teal_gate_thread
    .type teal_gate_thread, @function
teal_gate_thread:
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
    jmp teal_thread_begins
1:  ret
    .balign 4096
    .popsection

    .pushsection .text
    .type teal_thread_begins, @function
teal_thread_begins:
    xor %ebp, %ebp
    pop %rax
    pop %rdi
    call *%rax
    hlt
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
    .pushsection .teal_gate, "ax", %progbits
    .balign 4096
    .globl teal_gate_page
    .hidden teal_gate_page
teal_gate_page:
    .globl teal_gate
    .hidden teal_gate
    .type teal_gate, %function
teal_gate:
    mov x8, x0
    mov x0, x1
    mov x1, x2
    mov x2, x3
    mov x3, x4
    mov x4, x5
    mov x5, x6
    svc 0
    ret
    .globl teal_gate_thread
    .hidden teal_gate_thread
    .type teal_gate_thread, %function
teal_gate_thread:
    stp x3, x4, [x1, #-16]!
    mov x3, x2
    mov x2, xzr
    mov x4, xzr
    mov x8, #220
    svc 0
    cbnz x0, 1f
    b teal_thread_begins
1:  ret
    .balign 4096
    .popsection

    .pushsection .text
    .type teal_thread_begins, %function
teal_thread_begins:
    mov x29, xzr
    ldp x1, x0, [sp], #16
    blr x1
    brk #1
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
