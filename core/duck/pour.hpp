// A connection's packets into a UDP socket: equally long ones together, what the socket does not take kept for later.
#pragma once

#include <vector>

#include "duck/connection.hpp"
#include "duck/socket.hpp"

namespace teal::duck {

struct HeldPackets {
    std::vector<std::byte> bytes;
    std::size_t each = 0;
};

// False: the socket is full; come back in a moment. `space` holds pour_space bytes. `to`: null for a connected socket.
inline constexpr std::size_t pour_space = 64 << 10;
bool pour(Connection& connection, Above& above, std::uint64_t now, UdpSocket& socket, const Address* to, std::span<std::byte> space, HeldPackets& held);

}  // namespace teal::duck
