// What a guest has instead of a kernel: descriptor tables and one instruction for each trap.
//
// Theory of operation. The first 64 KiB of a guest's memory belong to ring 0, at the same virtual as physical address, and a program never
// sees them. Trap number n lands on `out %al, $n`, which leaves the guest at once: all registers are still the program's, and what the CPU
// pushed lies on the core's small stack. So no code of ring 0 does anything, which matters where ring 0 is emulated (about 1 µs an
// instruction).
// The syscall instruction lands on stub 254. Where KVM is paravirtual it lands there still in ring 3, which may not execute that page: then
// it shows as a page fault *at the stub*, and is told by that address.
#pragma once

#include <cstddef>
#include <cstdint>

namespace teal::kvm {

inline constexpr std::uint64_t system_bytes = 0x10000;
inline constexpr std::uint64_t interrupt_table = 0x1000;
inline constexpr std::uint64_t stubs = 0x2000;            // 16 bytes each, 256 of them
inline constexpr std::uint64_t segment_table = 0x3000;    // 8 entries, then two for each core
inline constexpr std::uint64_t task_states = 0x4000;      // 128 bytes a core
inline constexpr std::uint64_t trap_stacks = 0x6000;      // 256 bytes a core
inline constexpr unsigned most_guest_cores = 64;
inline constexpr std::uint8_t syscall_port = 254, int80_port = 0x80;

inline constexpr std::uint16_t code64_selector = 0x2b, data_selector = 0x23, code32_selector = 0x1b;

[[nodiscard]] constexpr std::uint64_t stub(unsigned number) noexcept { return stubs + std::uint64_t{number} * 16; }
[[nodiscard]] constexpr std::uint64_t task_state(unsigned core) noexcept { return task_states + std::uint64_t{core} * 128; }
[[nodiscard]] constexpr std::uint64_t trap_stack_top(unsigned core) noexcept { return trap_stacks + (std::uint64_t{core} + 1) * 256; }
[[nodiscard]] constexpr std::uint16_t task_selector(unsigned core) noexcept { return static_cast<std::uint16_t>(64 + core * 16); }
// The CPU pushes an error code for these.
[[nodiscard]] constexpr bool has_error_code(unsigned trap) noexcept {
    return trap == 8 || (trap >= 10 && trap <= 14) || trap == 17 || trap == 21 || trap == 29 || trap == 30;
}

// Fills system_bytes of memory that becomes the guest's address 0.
void write_trap_page(std::byte* memory, unsigned cores) noexcept;

}  // namespace teal::kvm
