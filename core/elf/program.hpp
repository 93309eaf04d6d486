// A static ELF file, read and checked: what a program is before it is mapped anywhere.
//
// Theory of operation. read_program() looks at nothing but the bytes it is given, with overflow-safe arithmetic, and refuses what it does not
// understand, saying which header, which field, what it holds and what was expected. What it returns is in terms of pages: ranges that do not
// overlap, in the order of their addresses, each with one protection (never writable and executable at once), and for each page where its bytes
// come from. Nothing behind it has to look at the file's headers again.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace teal::elf {

enum class Machine : std::uint8_t { x86_64, i386, aarch64 };
enum class Kind : std::uint8_t { fixed /* ET_EXEC */, position_independent /* static ET_DYN: relocates itself */ };

enum Protection : std::uint8_t { readable = 1, writable = 2, executable = 4 };

// Whole pages of the program with one protection.
struct Range {
    std::uint64_t address;      // page-aligned; relative to the load bias
    std::uint64_t pages;
    std::uint8_t protection;    // of Protection
};

struct Program {
    Machine machine;
    Kind kind;
    bool resident;              // was linked with duck.h's start-up code (note "Teal", type 1, desc = DUCK_ABI)
    std::uint64_t entry;        // relative to the bias, like all addresses here
    std::uint64_t low, high;    // page-rounded extent of all ranges
    std::uint64_t header_address;   // of the program headers in memory; 0: in no segment
    std::uint16_t header_count, header_entry_bytes;
    std::vector<Range> ranges;
    // PT_TLS, 0 bytes if there is none
    std::uint64_t tls_address, tls_file_bytes, tls_bytes, tls_align;
    // The contents: (high - low) bytes as they are when the program starts, file bytes in place, all else zero; and which pages have any.
    std::vector<std::byte> image;         // low…high
    std::vector<std::uint64_t> page_hash; // one a page; 0 is reserved for "all zeros"
    std::uint8_t digest[32];              // SHA-256 of the file
};

struct Rules {
    std::uint64_t most_image_bytes = std::uint64_t{1} << 32;
    std::uint64_t fixed_base = 0;     // not 0: the lowest address must be this (DuckInfo programs: 0x400000, 0x8048000)
    bool duckinfo = false;            // the reference's rules for v40 programs: ET_EXEC, align 4 KiB or 2 MiB, …
};

// Throws invalid_argument. `name` is what messages call the file.
std::shared_ptr<const Program> read_program(std::span<const std::byte> file, const char* name, const Rules& rules = {});

}  // namespace teal::elf
