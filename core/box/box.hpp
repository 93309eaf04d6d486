// A box: the process in which one program runs. What it is told, and where things lie in it.
//
// Theory of operation. A box is made by the zygote (inside/zygote.cpp) before anybody needs it, and waits, already locked up, for one message from
// the yard: what to map (steps of a place), the session's control region and fate page, limits, cores. It maps them, gives up the last
// system calls that only start-up needs, and jumps to the program's entry. Our own mappings lie at addresses fixed here, between
// the highest address that a program may have and the libraries of the box, so that whoever builds the initial stack knows
// them without asking.
#pragma once

#include <cstdint>
#include <vector>

#include "box/control.hpp"
#include "duck/direct_packet.hpp"
#include "elf/place.hpp"

namespace teal::box {

// Where things lie in a box. A program's own addresses stay within [lowest_program, highest_program).
namespace layout {
inline constexpr std::uint64_t lowest_program = 0x1'0000;
inline constexpr std::uint64_t highest_program = 0x4000'0000'0000;
inline constexpr std::uint64_t bias = 0x1000'0000'0000;          // of position-independent programs
inline constexpr std::uint64_t control = 0x6000'0000'0000;       // the control region, output buffer included
inline constexpr std::uint64_t stacks = 0x6e00'0000'0000;        // core i: the top is stack_top(i)
inline constexpr std::uint64_t stack_stride = std::uint64_t{1} << 32;
inline constexpr std::uint64_t tls = 0x6f00'0000'0000;           // the thread areas that the box makes
inline constexpr std::uint64_t duck = 0x6fff'0000'0000;          // duck_t (duck.h): what AT_TEAL says
inline constexpr std::uint64_t low_top = 0xc000'0000;            // the top of the stack of a 32-bit program

constexpr std::uint64_t stack_top(std::uint32_t core) noexcept { return stacks + (core + 1) * stack_stride - 65536; }
}  // namespace layout

// A program, ready to be mapped into a box. Pure data: who makes one keeps the descriptor open until the box has been opened.
struct Image {
    int fd = -1;                        // of the place's memory
    std::vector<elf::Step> steps;       // in their order, into an address space that has nothing of it
    std::uint64_t entry = 0;            // bias added
    bool narrow = false;                // 32-bit code
    // The initial stack: these bytes end at `stack_end`, the stack pointer is where they begin (16-aligned).
    std::vector<std::byte> stack;
    std::uint64_t stack_end = 0;        // 0: layout::stack_top(0)
    // PT_TLS, bias added; 0 bytes if there is none
    std::uint64_t tls_address = 0, tls_file_bytes = 0, tls_bytes = 0, tls_align = 1;
};

// Calls that come from a client elsewhere straight to the box, beside those over the control region. See core/duck/direct.hpp.
struct DirectOrder {
    int fd = -1;                        // a UDP socket, connected to that client; -1: no direct calls
    std::uint64_t id = 0;               // not 0
    std::uint32_t cipher = 0;           // duck::Cipher; 0: in the clear (loopback)
    duck::DirectKeys keys{};
};

struct SessionOrder {
    Image image;
    std::uint32_t cores = 1;
    std::vector<std::int32_t> pin;              // core i runs on this CPU; empty: wherever
    std::uint64_t args_bytes = shortest_args;   // capacity for arguments
    std::uint64_t ob_bytes = 1 << 20;
    std::uint64_t log_bytes = 64 << 10;         // a power of two, at least a page; 0: no log
    std::uint64_t memory_bytes = 256 << 20;     // what the program may have beside its image, stack and buffers
    std::uint64_t input_bytes = std::uint64_t{64} << 30;    // address space for input buffers, all that are mapped at once
    std::uint64_t stack_bytes = 8 << 20;        // a core
    std::uint64_t idle_ns = 10'000'000;         // how long an idle box polls before it sleeps
    std::uint64_t start_limit_ns = 10'000'000'000;  // loading and init()
    std::uint64_t call_limit_ns = 60'000'000'000;   // one call; who is over it is ended. 0: no bound
    DirectOrder direct;                         // Yard::refuses_direct() says whether its boxes can
};

// What a caller has to know of a session, from the yard and never from the region.
struct SessionFacts {
    std::uint64_t id = 0;
    std::uint32_t cores = 1;
    std::uint32_t box_pid = 0;
    std::uint64_t region_bytes = 0;
    std::uint64_t args_bytes = 0;
    std::uint64_t log_offset = 0, log_bytes = 0;
    std::uint64_t ob_offset = 0, ob_bytes = 0;
    std::uint64_t call_limit_ns = 0;
};

// The sizes of a session's region for an order. Throws invalid_argument.
SessionFacts plan_region(const SessionOrder& order);

struct Ending {
    Fate fate = Fate::running;
    std::int32_t detail = 0;
};
// "killed by signal 11 (Segmentation fault)", "a call took longer than 100 ms", …
const char* fate_name(Fate fate) noexcept;

}  // namespace teal::box
