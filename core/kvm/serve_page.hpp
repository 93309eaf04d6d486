// What the loop in a resident guest (inside/serve.cpp) and the process around it share.
//
// Theory of operation. The loop is code of ours that runs in ring 3 of the guest, in the program's address space: the same loop as that of
// a process box, so a call costs the same. It lies at `loop_code`, begins with a table of its entries, and keeps its state in pages at
// `loop_state`, which the process around it fills before the start. What it cannot do itself it asks for by system calls with numbers of
// our own, which no Linux call has. The program can write the state and make these calls too: then only its own session suffers. The
// process believes nothing of it.
#pragma once

#include <atomic>
#include <cstdint>

namespace teal::kvm {

inline constexpr std::uint64_t loop_code = 0x6fff'0010'0000;
inline constexpr std::uint64_t loop_state = 0x6fff'0020'0000;
inline constexpr std::uint64_t loop_magic = 0x5041'4d4c'4545'5401;

// The first bytes of the loop's code: where its functions are, from `loop_code`.
struct LoopTable {
    std::uint64_t magic;
    std::uint64_t serve, yield, log, core;
};

enum class LoopCall : std::uint64_t {
    base = 0x7ea1'0000,
    sleep_ask = base,   // rdi: the low half of the ask's number that it has seen
    sleep_go,           // the same for the calls that core 0 hands to the others
    wake_go,
    wake_answer,
    wake_state,
    take_orders,        // result: 1 when the session is to be closed
    yield,
    end,
};

// An input buffer that is mapped; written by the process around the loop.
struct LoopIb {
    std::uint64_t id, virt, bytes;   // virt 0: free
};

struct LoopState {
    // Written by the process around it, before the start.
    std::uint64_t idle_ticks, args_bytes, log_offset, log_bytes;
    std::uint64_t reserved[4];
    // The loop's own.
    struct alignas(64) {
        std::atomic<std::uint64_t> seq;
        const void* args;
        std::uint64_t bytes;
        std::atomic<std::uint32_t> sleepers;
    } go;
    struct alignas(64) {
        std::atomic<std::uint32_t> left;
    } back;
    struct alignas(64) {
        const void* program;
        std::uint64_t main_thread;
        std::uint64_t orders_seen;
        std::uint32_t served;
        std::atomic<std::uint32_t> log_lock;
    } rest;
    alignas(4096) LoopIb ibs[256];
};
static_assert(sizeof(LoopState) == 3 * 4096);

}  // namespace teal::kvm
