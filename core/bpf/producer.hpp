// The client's side of a BPF session: hands prepared slots to BPF programs, and reads what the programs count.
//
// Theory of operation: slots are made, and called once each, by the client's ordinary code (host/client.hpp), so that descriptor
// blocks are written, checked and bound before an event ever comes. From hand_over() on only programs use the ring and the slots.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "host/bpf_session.hpp"
#include "host/client.hpp"

namespace teal {

// Client: gives prepared, quiescent slots to the programs, and the ring with them. They must be all slots of the session.
void hand_over(ClientSession& session, std::span<ClientSlot* const> slots);

struct ProducerCounts {
    std::uint32_t sent;  // since hand_over(), modulo 2^32
    std::uint64_t full, shut, bells, left, failed;
    std::uint32_t out;   // slots that are not free
};
ProducerCounts producer_counts(const SessionMap& map, std::uint32_t first) noexcept;

// What the loader patches into a program: the bytes of its teal_bpf_layout.
std::string layout_bytes(const SessionMap& map, std::uint32_t model, std::uint32_t version, std::int32_t priority);

}  // namespace teal
