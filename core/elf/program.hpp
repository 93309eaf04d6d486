// A static ELF file, read and checked: what a program is before it is mapped anywhere.
//
// Theory of operation. read_program() looks at nothing but the bytes it is given, with overflow-safe arithmetic, and refuses what it does not
// understand, saying which header, which field, what it holds and what was expected. What it returns is in terms of pages: ranges that do not
// overlap, in the order of their addresses, each with one protection (never writable and executable at once). A range begins with pages that have
// bytes of the file, which are in the program's image, and ends with pages of zeros, which are nowhere: a program with gigabytes of .bss costs what
// its file costs. Nothing behind read_program() has to look at the file's headers again.
//
// Segments that share a page (ld and lld make none such with a maximum page size of 4096; other tools may): the page gets what both ask for,
// unless that makes it writable and executable, which is refused. PT_GNU_RELRO is left to the program: a libc protects it, and a program
// without one keeps it writable.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace teal::elf {

inline constexpr std::uint64_t page_bytes = 4096;

enum class Machine : std::uint8_t { x86_64, i386, aarch64 };
enum class Kind : std::uint8_t { fixed /* ET_EXEC */, position_independent /* static ET_DYN: relocates itself */ };

[[nodiscard]] const char* name_of(Machine machine) noexcept;  // "x86-64", "i386", "aarch64"

enum Protection : std::uint8_t { readable = 1, writable = 2, executable = 4 };

// Whole pages of the program with one protection.
struct Range {
    std::uint64_t address;      // page-aligned; relative to the load bias
    std::uint64_t pages;        // in all
    std::uint64_t file_pages;   // the first of them, which have bytes of the file; the rest is zeros
    std::uint64_t offset;       // of the file pages in Program::image, in bytes
    std::uint8_t protection;    // of Protection
    bool operator==(const Range&) const = default;
};

struct Program {
    Machine machine;
    Kind kind;
    bool duckinfo;              // was read by the rules for DuckInfo programs
    bool wants_duckinfo;        // was linked with duckinfo.h's start-up code (note "Teal", type 2)
    bool executable_stack;      // PT_GNU_STACK asks for one; nobody gets one
    std::uint32_t resident_abi; // linked with duck.h's start-up code (note "Teal", type 1): its DUCK_ABI; 0: it was not
    std::uint64_t entry;        // relative to the bias, like all addresses here
    std::uint64_t low, high;    // page-rounded extent of all ranges
    std::uint64_t header_address;   // of the program headers in memory; 0: in no segment
    std::uint64_t header_offset;    // of the program headers in the file
    std::uint16_t header_count, header_entry_bytes;
    std::uint64_t tls_address, tls_file_bytes, tls_bytes, tls_align;  // PT_TLS; 0 bytes: there is none
    std::vector<Range> ranges;
    std::vector<std::byte> image;   // the file pages of all ranges, one range after the other
    std::vector<std::byte> header_page;  // the first bytes of the file, a page at most
    std::array<std::uint8_t, 32> digest; // SHA-256 of the file

    [[nodiscard]] bool resident() const noexcept { return resident_abi != 0; }
    [[nodiscard]] bool is_64() const noexcept { return machine != Machine::i386; }
    [[nodiscard]] std::uint64_t memory_pages() const noexcept;  // of all ranges together
    [[nodiscard]] bool executable_at(std::uint64_t address) const noexcept;
};

// Which machines' programs may be read: those that this one can run, unless somebody says otherwise.
inline constexpr unsigned bit_of(Machine machine) noexcept { return 1U << static_cast<unsigned>(machine); }
inline constexpr unsigned any_machine = 7;
[[nodiscard]] unsigned native_machines() noexcept;

struct Rules {
    unsigned machines = native_machines();
    std::uint64_t most_bytes = std::uint64_t{1} << 36;  // of memory, .bss included
    bool duckinfo = false;  // ET_EXEC, x86-64 or i386, PT_LOAD aligned to 4 KiB or 2 MiB, lowest address 0x400000 or 0x8048000
    const std::array<std::uint8_t, 32>* digest = nullptr;  // of the file, from somebody who has just made or checked it: not made again
};

// Throws invalid_argument, and version_mismatch for a resident program of another DUCK_ABI. `name` is what messages call the file.
std::shared_ptr<const Program> read_program(std::span<const std::byte> file, const char* name, const Rules& rules = {});

}  // namespace teal::elf
