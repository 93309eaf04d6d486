// The packets of direct calls, byte by byte: a client and the box that runs its program, with nobody in between (docs/duck-protocol.md).
//
// Included by the box too (core/box/inside), so there is nothing here but layouts. Little-endian; copied, never cast in place.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace teal::duck {

inline constexpr std::uint8_t direct_ask = 0xD6, direct_answer = 0xD7;
inline constexpr std::uint8_t direct_version = 1;
inline constexpr std::size_t most_direct_packet = 1200;   // every path carries it
inline constexpr std::size_t direct_tag_bytes = 16;       // of a sealed one

// The additional data of the AEAD; begins as PacketStart does. A packet is sent again byte for byte, so that a number seals one text only.
struct DirectHead {
    std::uint8_t kind, version;
    std::uint16_t zero;
    std::uint32_t bytes;      // of the whole packet
    std::uint64_t id;         // of this session's direct calls: 64 random bits
    std::uint64_t number;     // of the call, from 1; 0: is the box there? Makes the nonce, in each direction with a key of its own
};
static_assert(sizeof(DirectHead) == 24);

struct DirectAsk {            // then the arguments
    std::uint32_t op;         // 1: call
    std::uint16_t cpu;        // where the client polls plus one, if it may be on this machine; 0: it does not say
    std::uint16_t zero;
};
static_assert(sizeof(DirectAsk) == 8);

inline constexpr std::uint32_t direct_long = 1;   // the result fits no packet: ask for it over the connection

struct DirectAnswer {         // then the first `result` bytes of the output buffer, unless it is long
    std::int64_t result;
    std::uint64_t took_ns;
    std::uint32_t flags, zero;
};
static_assert(sizeof(DirectAnswer) == 24);

inline constexpr std::size_t direct_args_room = most_direct_packet - sizeof(DirectHead) - sizeof(DirectAsk) - direct_tag_bytes;
inline constexpr std::size_t direct_result_room = most_direct_packet - sizeof(DirectHead) - sizeof(DirectAnswer) - direct_tag_bytes;

using DirectKeys = std::array<std::byte, 88>;     // key and IV client → box, then box → client

}  // namespace teal::duck
