// Programs for guests, a few instructions each: position-independent, from label to label.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include <sys/mman.h>
#include <unistd.h>

#include "box/judge.hpp"

// CODE(name, "instructions") defines std::span<const std::byte> name().
#define GUEST_CODE(name, text)                                                                             \
    extern "C" const std::byte name##_begin[], name##_end[];                                               \
    __asm__(".pushsection .rodata\n" #name "_begin:\n" text "\n" #name "_end:\n.popsection\n");            \
    inline std::span<const std::byte> name() { return {name##_begin, static_cast<std::size_t>(name##_end - name##_begin)}; }

#if defined(__x86_64__)

GUEST_CODE(exits_with_42, "mov $42, %edi; mov $60, %eax; syscall")
GUEST_CODE(says_hello, R"(
    mov $1, %edi; lea text(%rip), %rsi; mov $6, %edx; mov $1, %eax; syscall
    mov %eax, %edi; mov $60, %eax; syscall
    text: .ascii "hello\n")")
GUEST_CODE(copies_input, R"(
    again: xor %edi, %edi; mov $0x401ff0, %rsi; mov $4096, %edx; xor %eax, %eax; syscall
    test %rax, %rax; jle over
    mov %rax, %rdx; mov $1, %edi; mov $1, %eax; syscall; jmp again
    over: mov $0, %edi; mov $60, %eax; syscall)")
GUEST_CODE(divides_by_zero, "xor %ecx, %ecx; mov $1, %eax; cltd; nop; div %ecx")
GUEST_CODE(no_instruction, "nop; ud2")
GUEST_CODE(reads_nowhere, "mov $0x123000, %ebx; mov (%rbx), %al")
GUEST_CODE(reads_null, "xor %ebx, %ebx; mov (%rbx), %al")
GUEST_CODE(writes_its_code, "lea (%rip), %rbx; movb $0, (%rbx)")
GUEST_CODE(runs_its_data, "mov $0x401000, %eax; movb $0xc3, (%rax); call *%rax")
GUEST_CODE(reads_the_trap_page, "mov $0x1000, %ebx; mov (%rbx), %al")
GUEST_CODE(writes_the_trap_page, "mov $0x6000, %ebx; mov %al, (%rbx)")
GUEST_CODE(halts, "hlt")
GUEST_CODE(speaks_to_a_port, "mov $0xfe, %al; out %al, $0xfe")
GUEST_CODE(loads_a_root, "xor %eax, %eax; mov %rax, %cr3")
GUEST_CODE(bad_stack, "mov $0x10, %esp; push %rax")
GUEST_CODE(not_canonical, "mov $1, %eax; shl $63, %rax; shr $1, %rax; mov (%rax), %al")
GUEST_CODE(single_steps, "pushf; orl $0x100, (%rsp); popf; nop; nop")
GUEST_CODE(loops, "1: jmp 1b")
GUEST_CODE(loops_in_calls, "1: mov $24, %eax; syscall; jmp 1b")
GUEST_CODE(aborts, "mov $1234, %edi; mov $6, %esi; mov $200, %eax; syscall")
GUEST_CODE(asks_for_a_file, "mov $2, %eax; syscall; neg %eax; mov %eax, %edi; mov $60, %eax; syscall")
GUEST_CODE(asks_for_the_unknown, "mov $999, %eax; syscall; neg %eax; mov %eax, %edi; mov $60, %eax; syscall")
// 3 pages written, a fourth read; the status is what the first byte of data was before.
GUEST_CODE(counts_itself, R"(
    mov $0x401000, %ebx; movzbl (%rbx), %edi
    incb (%rbx); incb 0x1000(%rbx); incb 0x2000(%rbx); mov 0x5000(%rbx), %al
    mov $60, %eax; syscall)")
// Every register but the stack pointer is zero; so is the vector state. Then both are spoiled.
GUEST_CODE(looks_for_leftovers, R"(
    or %rbx, %rax; or %rdx, %rax; or %rsi, %rax; or %rdi, %rax; or %rbp, %rax; or %r8, %rax; or %r9, %rax
    or %r10, %rax; or %r12, %rax; or %r13, %rax; or %r14, %rax; or %r15, %rax
    movq %xmm0, %rcx; or %rcx, %rax; movq %xmm15, %rcx; or %rcx, %rax
    xor %edi, %edi; test %rax, %rax; setnz %dil
    mov $-1, %rbx; mov %rbx, %r15; movq %rbx, %xmm0; movq %rbx, %xmm15; fld1; fld1
    mov $60, %eax; syscall)")
GUEST_CODE(takes_memory, R"(
    xor %edi, %edi; mov $0x40000, %esi; mov $3, %edx; mov $0x22, %r10d; mov $9, %eax; syscall; mov %rax, %r12
    xor %edi, %edi; mov $0x80000, %esi; mov $3, %edx; mov $0x22, %r10d; mov $9, %eax; syscall
    movb $1, (%rax); movb $1, 0x7ffff(%rax)
    xor %edi, %edi; mov $0x80000, %esi; mov $3, %edx; mov $0x22, %r10d; mov $9, %eax; syscall
    mov %eax, %edi; neg %edi; mov $60, %eax; syscall)")
// From its data to the end of its heap, which lies behind, one word a page and more.
GUEST_CODE(scribbles, "mov $0x401000, %ebx; 1: mov %rbx, (%rbx); mov %rbx, 0x7f8(%rbx); add $0x1000, %rbx; jmp 1b")
GUEST_CODE(looks_through_memory, R"(
    mov $0x401000, %ebx; xor %edi, %edi
    1: or (%rbx), %rdi; or 0x7f8(%rbx), %rdi; add $0x1000, %rbx; cmp $0x541000, %rbx; jb 1b
    test %rdi, %rdi; mov $0, %edi; setnz %dil; mov $60, %eax; syscall)")
GUEST_CODE(doubles_input, "mov 0x1000000, %rdi; add %rdi, %rdi; mov %rdi, 0x2000000; mov $60, %eax; syscall")
GUEST_CODE(writes_its_input, "mov $0x1000000, %ebx; mov %al, (%rbx)")
GUEST_CODE(exits_narrowly, ".code32; mov $1, %eax; mov $9, %ebx; int $0x80; .code64")

#endif

namespace teal::guest_code {

inline constexpr std::uint64_t code_at = 0x40'0000, data_at = 0x40'1000, data_bytes = 64 * 4096, stack_end = 0x80'0000;

inline int memory_file(std::span<const std::byte> bytes, std::uint64_t size) {
    const int fd = ::memfd_create("teal-test", MFD_CLOEXEC);
    if (::ftruncate(fd, static_cast<off_t>(size)) != 0) return -1;
    void* at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!bytes.empty()) std::memcpy(at, bytes.data(), bytes.size());
    ::munmap(at, size);
    return fd;
}

// A page of code and some zeros to write to; the caller closes image.fd.
inline box::RunOrder order_for(std::span<const std::byte> code, box::Abi abi = box::Abi::linux_static) {
    box::RunOrder order;
    order.image.fd = memory_file(code, 4096);
    order.image.steps = {{elf::Step::What::map, elf::readable | elf::executable, code_at, 4096, 0},
                         {elf::Step::What::zeros, elf::readable | elf::writable, data_at, data_bytes, 0}};
    order.image.entry = code_at;
    order.image.stack.resize(64);
    order.image.stack_end = stack_end;
    order.stack_bytes = 64 << 10;
    order.memory_bytes = 1 << 20;
    order.abi = abi;
    return order;
}

}  // namespace teal::guest_code
