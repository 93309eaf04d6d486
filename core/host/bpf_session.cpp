#include "host/bpf_session.hpp"

#include <bit>
#include <cstddef>
#include <cstring>
#include <string>
#include <unistd.h>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace teal {
namespace {

// What programs write and what the worker reads is one and the same.
static_assert(sizeof(teal_bpf_entry) == sizeof(RingSlot) && offsetof(teal_bpf_entry, sequence) == offsetof(RingSlot, sequence));
constexpr std::size_t in_entry = offsetof(RingSlot, payload);
static_assert(offsetof(teal_bpf_entry, op) == in_entry + offsetof(RequestEntry, op));
static_assert(offsetof(teal_bpf_entry, slot) == in_entry + offsetof(RequestEntry, slot));
static_assert(offsetof(teal_bpf_entry, generation) == in_entry + offsetof(RequestEntry, generation));
static_assert(offsetof(teal_bpf_entry, model) == in_entry + offsetof(RequestEntry, model));
static_assert(offsetof(teal_bpf_entry, version) == in_entry + offsetof(RequestEntry, version));
static_assert(offsetof(teal_bpf_entry, priority) == in_entry + offsetof(RequestEntry, priority));
static_assert(offsetof(teal_bpf_entry, stamp) == in_entry + offsetof(RequestEntry, stamp));
static_assert(offsetof(teal_bpf_entry, region) == in_entry + offsetof(RequestEntry, region));
static_assert(offsetof(teal_bpf_entry, offset_low) == in_entry + offsetof(RequestEntry, offset_low));
static_assert(offsetof(teal_bpf_entry, offset_high) == in_entry + offsetof(RequestEntry, offset_high));
static_assert(offsetof(teal_bpf_entry, deadline_low) == in_entry + offsetof(RequestEntry, deadline_low));
static_assert(offsetof(teal_bpf_entry, deadline_high) == in_entry + offsetof(RequestEntry, deadline_high));
static_assert(offsetof(teal_bpf_entry, submitted_low) == in_entry + offsetof(RequestEntry, submitted_low));
static_assert(offsetof(teal_bpf_entry, submitted_high) == in_entry + offsetof(RequestEntry, submitted_high));
static_assert(sizeof(teal_bpf_line) == sizeof(CompletionLine) && offsetof(teal_bpf_line, word) == offsetof(CompletionLine, word));
static_assert(offsetof(teal_bpf_line, released) == offsetof(CompletionLine, released));
static_assert(static_cast<int>(State::done) == TEAL_BPF_DONE && static_cast<int>(State::failed) == TEAL_BPF_FAILED);
static_assert(static_cast<int>(State::cancelled) == TEAL_BPF_CANCELLED && static_cast<int>(State::expired) == TEAL_BPF_EXPIRED);
static_assert(make_word(5, State::cancelled, Reason::client_cancelled) == (6ULL << 32 | 5U << 8 | TEAL_BPF_CANCELLED));
static_assert(word_released == 1);
static_assert(sizeof(BpfStages) == 2 * sizeof(Histogram) && alignof(BpfStages) <= sizeof(teal_bpf_slot));
static_assert(sizeof(teal_bpf_slot) == 128 && sizeof(teal_bpf_producer) == 320 && sizeof(teal_bpf_layout) == 48);

constexpr std::uint32_t bpf_client_stages = 1;  // of the calls made from user space before the programs have the slots

}  // namespace

BpfSpan bpf_span(std::uint32_t slots) {
    if (!std::has_single_bit(slots) || slots > TEAL_BPF_MOST_SLOTS)
        throw Error(Code::invalid_argument, "BPF session of " + std::to_string(slots) + " slots: expected a power of two, 1 to 1024");
    BpfSpan span{};
    span.producer = session_layout(slots, bpf_client_stages).size;
    span.slots = span.producer + sizeof(teal_bpf_producer);
    span.stages = span.slots + std::uint64_t{slots} * sizeof(teal_bpf_slot);
    span.tensors = round_up(span.stages + sizeof(BpfStages), page_bytes);
    return span;
}

std::unique_ptr<SessionMap> map_bpf_session(int fd, std::uint32_t index, std::uint32_t epoch, std::uint32_t slots, std::uint64_t bytes) {
    auto whole = Region::adopt_map(fd, bytes);
    const BpfSpan span = bpf_span(slots);
    if (bytes < span.tensors + 2 * page_bytes)
        throw Error(Code::invalid_argument, "BPF map of " + std::to_string(bytes) + " bytes, expected at least " +
                    std::to_string(span.tensors + 2 * page_bytes) + " for " + std::to_string(slots) + " slots");
    auto map = std::make_unique<SessionMap>();
    map->index = index;
    map->epoch = epoch;
    map->layout = session_layout(slots, bpf_client_stages);
    map->no_futex = true;
    map->bpf_stages = reinterpret_cast<BpfStages*>(whole->base() + span.stages);
    map->set_region(0, Region::part(whole, span.tensors, bytes - span.tensors));
    map->session = std::move(whole);
    return map;
}

teal_bpf_producer* producer_of(const SessionMap& map) noexcept {
    return reinterpret_cast<teal_bpf_producer*>(map.session->base() + bpf_span(map.layout.slots).producer);
}

teal_bpf_slot* slots_of(const SessionMap& map) noexcept {
    return reinterpret_cast<teal_bpf_slot*>(map.session->base() + bpf_span(map.layout.slots).slots);
}

void format_bpf_session(SessionMap& map) {
    std::memset(map.session->base(), 0, bpf_span(map.layout.slots).tensors);
    auto* header = reinterpret_cast<RegionHeader*>(map.session->base());
    header->magic = region_magic;
    header->abi = abi_version;
    header->header_bytes = sizeof(RegionHeader);
    header->size = map.session->size();
    header->kind = RegionKind::session;
    header->owner_pid = static_cast<std::uint32_t>(::getpid());
    header->owner_uid = ::getuid();
    header->page_shift = 12;
    header->id = std::uint64_t{map.epoch} << 32 | map.index;
    format_session(*map.session, map.layout, map.index, map.epoch);
    teal_bpf_producer* producer = producer_of(map);
    producer->magic = TEAL_BPF_MAGIC;
    producer->abi = TEAL_BPF_ABI;
    producer->slots = map.layout.slots;
}

void shut_producer(const SessionMap& map) noexcept { __atomic_store_n(&producer_of(map)->state, static_cast<__u32>(TEAL_BPF_SHUT), __ATOMIC_RELEASE); }

}  // namespace teal
