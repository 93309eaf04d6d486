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
