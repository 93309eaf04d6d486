// Reading a fate page.
#pragma once

#include "box/box.hpp"

namespace teal::box {

inline constexpr std::uint64_t fate_magic = 0x4c54'4554'4146'5831ULL;

inline Ending read_fate(const FatePage& page) noexcept {
    const std::uint32_t fate = page.fate.load(std::memory_order_acquire);   // SYNC: pairs with the release in SessionState::finish()
    return {static_cast<Fate>(fate), fate == 0 ? 0 : page.detail};
}

}  // namespace teal::box
