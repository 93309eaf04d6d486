// Reading a fate page, and where a box polls.
#pragma once

#include <sched.h>

#include "box/box.hpp"

namespace teal::box {

inline constexpr std::uint64_t fate_magic = 0x4c54'4554'4146'5831ULL;

inline Ending read_fate(const FatePage& page) noexcept {
    const std::uint32_t fate = page.fate.load(std::memory_order_acquire);   // SYNC: pairs with the release in SessionState::finish()
    return {static_cast<Fate>(fate), fate == 0 ? 0 : page.detail};
}

// Whether the box would have to run on the CPU that this thread is on: then spinning keeps it away.
inline bool in_the_way_of(const ControlPage& page) noexcept {
    const std::uint32_t cpu = page.answer.cpu.load(std::memory_order_relaxed);
    return cpu != 0 && static_cast<int>(cpu) == ::sched_getcpu() + 1;
}

}  // namespace teal::box
