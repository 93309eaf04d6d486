// The input buffers that a box has mapped, and which of them its program sees.
#pragma once

#include <cstdint>

#include "box/message.hpp"

namespace teal::box {

int map_ib(const OrderMessage& order, int fd) noexcept;       // 0 or an errno; `fd` -1: it is there already
std::int64_t use_ib(std::uint64_t bytes) noexcept;            // by a caller's ask: the id is in its arguments
void unmap_ib() noexcept;                                     // the program sees none
int forget_ib(std::uint64_t id) noexcept;
void forget_ibs() noexcept;
void touch_ibs() noexcept;                                    // writes to a page that will be written to

}  // namespace teal::box
