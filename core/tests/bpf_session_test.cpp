// The memory of a BPF session, without BPF: a memfd stands for the map, and this file for the programs.
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "base/error.hpp"
#include "bpf/producer.hpp"
#include "memory/bpf_map.hpp"
#include "tests/check.hpp"

using namespace teal;

namespace {

int memory_of(std::uint64_t bytes) {
    const int fd = ::memfd_create("map", MFD_CLOEXEC);
    CHECK(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) == 0);
    return fd;
}

template <class Body>
bool throws(Code code, Body&& body) {
    try {
        body();
    } catch (const Error& error) {
        return error.code() == code;
    }
    return false;
}

void test_span() {
    for (std::uint32_t slots = 1; slots <= 1024; slots *= 2) {
        const BpfSpan span = bpf_span(slots);
        CHECK(span.producer >= session_layout(slots, 1).size && span.producer % page_bytes == 0);
        CHECK(span.slots == span.producer + sizeof(teal_bpf_producer));
        CHECK(span.stages == span.slots + slots * sizeof(teal_bpf_slot) && span.stages % alignof(BpfStages) == 0);
        CHECK(span.tensors >= span.stages + sizeof(BpfStages) && span.tensors % page_bytes == 0);
    }
    for (const std::uint32_t slots : {0U, 3U, 2048U, 0x80000000U, 0xffffffffU}) CHECK(throws(Code::invalid_argument, [&] { bpf_span(slots); }));
}

void test_too_small() {
    const std::uint64_t needed = bpf_span(4).tensors + 2 * page_bytes;
    CHECK(throws(Code::invalid_argument, [&] { map_bpf_session(memory_of(needed), 0, 1, 4, needed - page_bytes); }));
    CHECK(map_bpf_session(memory_of(needed), 0, 1, 4, needed)->views.at(0).size == 2 * page_bytes);
}

void test_what_is_no_map() {
    const int fd = memory_of(65536);
    CHECK(throws(Code::invalid_argument, [&] { map_facts(fd); }));
    CHECK(throws(Code::invalid_argument, [&] { memory_map_bytes(fd); }));
    ::close(fd);
    CHECK(throws(Code::invalid_argument, [] { map_facts(-1); }));
}

void test_hand_over() {
    constexpr std::uint32_t slots = 4;
    const std::uint64_t bytes = bpf_span(slots).tensors + 16 * page_bytes;
    auto map = map_bpf_session(memory_of(bytes), 7, 3, slots, bytes);
    CHECK(map->no_futex && map->owned.size() == 1);
    std::memset(map->session->base(), 0xff, bytes);  // whatever its maker left there
    format_bpf_session(*map);
    CHECK(map->header()->magic == session_magic && map->header()->index == 7 && map->header()->epoch == 3);
    CHECK(map->header()->need_wake.load() == 0 && producer_of(*map)->state == 0);
    auto session = std::make_shared<ClientSession>(std::move(map), 0, -1);
    TensorPlan in;
    in.dtype = Dtype::i64;
    in.shape = {3};
    TensorPlan out = in;
    out.shape = {};
    std::vector<std::unique_ptr<ClientSlot>> made;
    std::vector<ClientSlot*> raw;
    for (std::uint32_t i = 0; i < slots; ++i) {
        made.push_back(session->make_slot({in}, {out}));
        CHECK(made.back() != nullptr);
        raw.push_back(made.back().get());
    }
    CHECK(throws(Code::internal_error, [&] { hand_over(*session, std::span(raw).first(3)); }));
    hand_over(*session, raw);
    const SessionMap& memory = session->map();
    CHECK(producer_of(memory)->state == TEAL_BPF_OPEN && producer_of(memory)->head == session->ring_position());
    for (const ClientSlot* slot : raw) {
        const teal_bpf_slot& shown = slots_of(memory)[slot->index];
        CHECK(shown.word == (slot->generation << 8 | TEAL_BPF_SLOT_FREE) && shown.stamp == slot->stamp && shown.region == 0);
        CHECK(shown.tensors[0].bytes == 24 && shown.tensors[1].bytes == 8 && shown.tensors[2].bytes == 0);
        CHECK(memory.session->base() + shown.tensors[0].offset == slot->base + slot->inputs[0].offset);
        CHECK(memory.session->base() + shown.tensors[1].offset == slot->base + slot->outputs[0].offset);
        CHECK(shown.tensors[0].offset % 64 == 0 && shown.tensors[1].offset % 64 == 0);
    }
    producer_of(memory)->head += 5;
    slots_of(memory)[2].word |= TEAL_BPF_SLOT_SENT;
    const ProducerCounts counts = producer_counts(memory, session->ring_position());
    CHECK(counts.sent == 5 && counts.out == 1 && counts.full == 0);
    shut_producer(memory);
    CHECK(producer_of(memory)->state == TEAL_BPF_SHUT);
    for (auto& slot : made) session->destroy_slot(std::move(slot));
}

void test_layout() {
    const std::uint64_t bytes = bpf_span(8).tensors + 4 * page_bytes;
    auto map = map_bpf_session(memory_of(bytes), 0, 1, 8, bytes);
    format_bpf_session(*map);
    const std::string text = layout_bytes(*map, 5, 2, -3);
    teal_bpf_layout layout;
    CHECK(text.size() == sizeof layout);
    std::memcpy(&layout, text.data(), sizeof layout);
    CHECK(layout.bytes == bytes && layout.slot_mask == 7 && layout.model == 5 && layout.version == 2 && layout.priority == -3);
    CHECK(reinterpret_cast<std::byte*>(ring_slots(map->ring())) == map->session->base() + layout.ring_at);
    CHECK(reinterpret_cast<std::byte*>(map->lines()) == map->session->base() + layout.lines_at);
    CHECK(reinterpret_cast<std::byte*>(&map->header()->need_wake) == map->session->base() + layout.need_wake_at);
    // A slot that is out has one entry in the ring; two more may be answered and not yet retired (session_layout()).
    CHECK(layout.ring_mask + 1 >= 8 + 2);
}

}  // namespace

int main() {
    test_span();
    test_too_small();
    test_what_is_no_map();
    test_hand_over();
    test_layout();
    return teal::check::summary();
}
