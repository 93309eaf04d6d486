// What lies on a program's stack when it starts: argc, argv, the environment and the auxiliary vector.
//
// Theory of operation. The bytes are made by whoever prepares the box, for addresses that are decided beforehand, and are put at the end of the
// stack's memory; the box only sets the stack pointer. There are two kinds of programs:
//
// Linux (and resident) programs get what the kernel would give them, but fixed: the same random bytes each time, user 1000, no vDSO (so that
// clocks are system calls, which the box may count or refuse), and for a resident program the address of its duck_t (AT_TEAL).
//
// DuckInfo programs (version 0.04, 40) get the layout that the interface prescribes: the program's region at a fixed address, its stack at the end of
// the region, behind it stdin, stdout, stderr, IB, OB, a read-only copy of the file's first page, and a page that begins with random bytes. That is a
// function from sizes to addresses (layout_of) and one page of bytes at the end of the region (duckinfo_stack). The DuckInfo lies at the page's end.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "elf/program.hpp"

namespace teal::elf {

inline constexpr std::uint64_t at_teal = 0x6c61'6574;  // "teal"; duck.h
inline constexpr std::uint64_t at_duck = 0x6b63'7564;  // "duck"; duckinfo.h
inline constexpr std::uint64_t duckinfo_version = 40;
inline constexpr std::array<std::uint8_t, 16> fixed_random = {0x00, 0x8a, 0x3d, 0x5c, 0xe1, 0x96, 0x27, 0xf4, 0x4b, 0xb8, 0x71, 0x0e, 0xd3, 0x6a, 0x95, 0x2f};

struct Auxiliary {
    std::uint64_t tag, value;
};

// What the CPU has, as programs are told by AT_HWCAP, AT_HWCAP2 and AT_MINSIGSTKSZ (0: the kernel does not say).
struct Capabilities {
    std::uint64_t hwcap = 0, hwcap2 = 0, signal_stack_bytes = 0;
};
[[nodiscard]] Capabilities host_capabilities() noexcept;  // of this machine, from its kernel

// The end of a stack's memory.
struct Stack {
    std::uint64_t pointer;          // of the stack when the program starts; aligned to 16
    std::uint64_t address;          // of the first byte, page-aligned
    std::vector<std::byte> bytes;   // whole pages, up to the top
};

struct StackWish {
    std::uint64_t top = 0;      // first address behind the stack, page-aligned
    std::uint64_t room = 0;     // how many bytes below it may be used for what lies there
    std::vector<std::string> arguments, environment;
    std::array<std::uint8_t, 16> random = fixed_random;
    Capabilities capabilities;
    std::vector<Auxiliary> more;    // AT_TEAL of a resident program
};

// Throws invalid_argument: a top that is no page's or is beyond the program's addresses, a string with a zero in it, no room for all of it.
Stack linux_stack(const Program& program, std::uint64_t bias, const StackWish& wish);

struct DuckInfoSizes {
    std::uint64_t region;       // the program's memory with its stack: the memory limit; rounded up to pages
    std::uint64_t stdin_bytes, stdout_bytes, stderr_bytes, ib_bytes, ob_bytes;
};

// Addresses; each part begins on a page of its own and takes whole pages. A part of 0 bytes has an address and no pages.
struct Layout {
    std::uint64_t base, region_bytes;
    std::uint64_t stack_page;   // the last page of the region
    std::uint64_t stdin_at, stdout_at, stderr_at, ib_at, ob_at;
    std::uint64_t header_page;  // read-only: Program::header_page
    std::uint64_t random_page;  // read-only: fixed_random, then zeros
    std::uint64_t end;          // first address behind all of it
    DuckInfoSizes sizes;
};

// Throws quota_exceeded: a region smaller than the program and one page of stack, or more than its address space has.
Layout layout_of(const Program& program, const DuckInfoSizes& sizes);

// The region's last page when the program starts.
Stack duckinfo_stack(const Program& program, const Layout& layout, std::uint64_t tsc_hz, std::uint64_t hwcap);

// What the program left in that page: how much it says it has written, and how much of that there is room for.
struct DuckInfoOutputs {
    std::uint64_t stdout_bytes, stderr_bytes;           // at most the limits
    bool stdout_cut, stderr_cut;                        // it said more
};
[[nodiscard]] DuckInfoOutputs duckinfo_outputs(const Program& program, const Layout& layout, std::span<const std::byte, page_bytes> page) noexcept;

}  // namespace teal::elf
