// What the kernel says of a box that is being judged: stops, registers, pages.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "box/judge.hpp"

namespace teal::box {

struct Registers {
    std::uint64_t ip = 0, call = 0 /* the system call that it was in; ~0: none */, first = 0 /* its first argument */, stack = 0;
};
bool read_registers(std::int32_t pid, Registers& out) noexcept;

// The program is about to ask what one of its three files is, by a call that takes a path as well: newfstatat() or statx(). With no path it is
// answered as fstat() would be, from `files`; with one it gets ENOSYS. No path is ever looked up.
void describe_files(std::int32_t pid, const std::array<int, 3>& files) noexcept;

// The reference's trap number for a signal. `code` is siginfo's.
std::uint32_t trap_of(int signal, int code) noexcept;

struct PageCount {
    std::uint64_t written = 0, accessed = 0;
    bool known = false;
};
// Pages of a process outside of `before`, by its page table. `shared` are ranges whose pages count as written when they are there.
PageCount count_pages(int pagemap, const std::vector<std::pair<std::uint64_t, std::uint64_t>>& before, std::span<const RunOrder::Buffer> shared) noexcept;

// 0, or an errno.
int read_memory_of(std::int32_t pid, std::uint64_t address, std::span<std::byte> out) noexcept;

}  // namespace teal::box
