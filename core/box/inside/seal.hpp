// Sealing and opening packets in a box. See seal.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "duck/direct_packet.hpp"

namespace teal::box {

// In the zygote, before it locks itself up: 0, ENOSYS (built without), ENOENT (no libcrypto.so.3 that has what is needed).
int load_seals() noexcept;
// In a box, before its program runs: 0 or EINVAL. Cipher 0: nothing is sealed.
int prepare_seals(std::uint32_t cipher, const duck::DirectKeys& keys) noexcept;
// Tag bytes of a packet: 16, or 0 without a key.
std::size_t seal_bytes() noexcept;
// Both in place, with the program's thread pointer set and back: what follows `head` are `bytes` of text, then the tag.
void seal(std::uint64_t number, std::byte* packet, std::size_t head, std::size_t bytes) noexcept;
bool unseal(std::uint64_t number, std::byte* packet, std::size_t head, std::size_t bytes) noexcept;

}  // namespace teal::box
