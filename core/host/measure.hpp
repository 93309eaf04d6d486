// What a call costs between two cores, and what the hardware would charge for the same bytes.
//
// Theory of operation: both functions time every single round trip on the caller's thread, from before the first byte of the
// payload is written until its echo has been read. measure_echo() is the floor: two pinned threads, two flag lines, the payload
// copied by the other side, and nothing else. measure_call() is the same trip through Teal. Their difference is what Teal adds.
#pragma once

#include <cstdint>
#include <vector>

#include "host/client.hpp"

namespace teal {

// `n` round trips of `nbytes` (1 to 2^30) between a thread on core_a (the caller, moved there and back) and one on core_b, in
// nanoseconds each, after a warm-up of a few milliseconds. Throws invalid_argument when a core does not exist or may not be used.
std::vector<std::uint32_t> measure_echo(std::uint64_t nbytes, std::uint32_t n, int core_a, int core_b);

// `n` calls of an identity model on `slot`, in nanoseconds each: up to 64 bytes of input 0 are written, the request is submitted,
// its end awaited spinning, and the same bytes of output 0 are read. No warm-up: the caller's first calls are among the figures.
// Throws kernel_failed when a call does not succeed or answers other bytes, peer_died when none comes within 10 s.
std::vector<std::uint32_t> measure_call(ClientSession& session, ClientSlot& slot, std::uint32_t model, std::uint32_t version, std::uint32_t n);

}  // namespace teal
