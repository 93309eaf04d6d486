// A status word table: many readers, one writer per entry, no locks (a seqcount per entry).
//
// Theory of operation: the writer makes the count odd, writes, makes it even. A reader that saw the
// same even count before and after its copy has a consistent copy. Entries are read-only to their
// readers (map them so where the reader is not trusted). The payload is read and written as relaxed
// 64-bit atomics, which is what keeps the race between a torn read and a write defined.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace teal {

template <std::size_t Words>
struct StatusEntry {
    std::atomic<std::uint32_t> count;  // odd while being written
    std::uint32_t pad;
    std::atomic<std::uint64_t> words[Words];

    template <class T>
    void write(const T& value) noexcept {
        static_assert(sizeof(T) == Words * 8);
        std::uint64_t copy[Words];
        std::memcpy(copy, &value, sizeof copy);
        const std::uint32_t before = count.load(std::memory_order_relaxed);
        count.store(before | 1, std::memory_order_relaxed);
        // SYNC: the release stores below pair with the acquire loads in read(): whoever sees a new word
        // also sees the odd count stored above.
        for (std::size_t i = 0; i < Words; ++i) words[i].store(copy[i], std::memory_order_release);
        // SYNC: release pairs with the first acquire load of count in read().
        count.store((before | 1) + 1, std::memory_order_release);
    }

    // The writer's own look at what it wrote: no count to compare. After a death in the middle: whatever was written by then.
    template <class T>
    void copy_own(T& out) const noexcept {
        static_assert(sizeof(T) == Words * 8);
        std::uint64_t copy[Words];
        for (std::size_t i = 0; i < Words; ++i) copy[i] = words[i].load(std::memory_order_relaxed);
        std::memcpy(&out, copy, sizeof copy);
    }

    // One attempt; false when a writer was in the way (or died in the middle: the count stays odd).
    template <class T>
    [[nodiscard]] bool read(T& out) const noexcept {
        static_assert(sizeof(T) == Words * 8);
        std::uint64_t copy[Words];
        // SYNC: acquire pairs with the final release store of count in write().
        const std::uint32_t before = count.load(std::memory_order_acquire);
        if ((before & 1) != 0) return false;
        for (std::size_t i = 0; i < Words; ++i) copy[i] = words[i].load(std::memory_order_acquire);
        // The acquire loads above keep this load behind them.
        if (count.load(std::memory_order_relaxed) != before) return false;
        std::memcpy(&out, copy, sizeof copy);
        return true;
    }
};
static_assert(sizeof(StatusEntry<7>) == 64);

}  // namespace teal
