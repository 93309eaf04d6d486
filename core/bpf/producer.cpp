#include "bpf/producer.hpp"

#include <cstddef>

#include "base/error.hpp"

namespace teal {
namespace {

std::uint64_t peek(const __u64& word) noexcept { return __atomic_load_n(&word, __ATOMIC_RELAXED); }

}  // namespace

void hand_over(ClientSession& session, std::span<ClientSlot* const> slots) {
    const SessionMap& map = session.map();
    if (slots.size() != map.layout.slots) throw Error(Code::internal_error, "a BPF session is handed over with all its slots");
    const std::uint64_t tensors_at = bpf_span(map.layout.slots).tensors;
    for (ClientSlot* slot : slots) {
        if (!ClientSession::quiescent(*slot)) throw Error(Code::busy, "a slot of this BPF session is still in use");
        teal_bpf_slot& to = slots_of(map)[slot->index];
        to.word = slot->generation << 8 | TEAL_BPF_SLOT_FREE;
        to.stamp = slot->stamp;
        to.region = slot->region;
        to.block_low = static_cast<std::uint32_t>(slot->offset);
        to.block_high = static_cast<std::uint32_t>(slot->offset >> 32);
        std::size_t at = 0;
        for (const auto* list : {&slot->inputs, &slot->outputs})
            for (const TensorDesc& tensor : *list) {
                if (at == TEAL_BPF_TENSORS)
                    throw Error(Code::invalid_argument, "a BPF session takes models with at most 12 inputs and outputs together");
                to.tensors[at].offset = static_cast<std::uint32_t>(tensors_at + tensor.offset);
                to.tensors[at].bytes = (tensor.flags & tensor_absent) != 0 ? 0 : static_cast<std::uint32_t>(tensor.nbytes);
                ++at;
            }
    }
    teal_bpf_producer* producer = producer_of(map);
    producer->head = session.ring_position();
    // SYNC: release: a program sees the slots with it; it was loaded after this in any case.
    __atomic_store_n(&producer->state, static_cast<__u32>(TEAL_BPF_OPEN), __ATOMIC_RELEASE);
}

ProducerCounts producer_counts(const SessionMap& map, std::uint32_t first) noexcept {
    const teal_bpf_producer* producer = producer_of(map);
    ProducerCounts counts{};
    counts.sent = __atomic_load_n(&producer->head, __ATOMIC_RELAXED) - first;
    counts.full = peek(producer->full);
    counts.shut = peek(producer->shut);
    counts.bells = peek(producer->bells);
    counts.left = peek(producer->left);
    counts.failed = peek(producer->failed);
    for (std::uint32_t i = 0; i < map.layout.slots; ++i)
        counts.out += (__atomic_load_n(&slots_of(map)[i].word, __ATOMIC_RELAXED) & 0xff) != TEAL_BPF_SLOT_FREE ? 1 : 0;
    return counts;
}

std::string layout_bytes(const SessionMap& map, std::uint32_t model, std::uint32_t version, std::int32_t priority) {
    const BpfSpan span = bpf_span(map.layout.slots);
    teal_bpf_layout layout{};
    layout.abi = TEAL_BPF_ABI;
    layout.bytes = static_cast<std::uint32_t>(map.session->size());
    layout.slot_mask = map.layout.slots - 1;
    layout.ring_mask = map.layout.ring_capacity - 1;
    layout.ring_at = static_cast<std::uint32_t>(map.layout.ring + sizeof(RingHeader));
    layout.lines_at = static_cast<std::uint32_t>(map.layout.lines);
    layout.producer_at = static_cast<std::uint32_t>(span.producer);
    layout.slots_at = static_cast<std::uint32_t>(span.slots);
    layout.need_wake_at = static_cast<std::uint32_t>(page_bytes + offsetof(SessionHeader, need_wake));
    layout.model = model;
    layout.version = version;
    layout.priority = priority;
    return {reinterpret_cast<const char*>(&layout), sizeof layout};
}

}  // namespace teal
