#include "host/session.hpp"

#include <sched.h>
#include <bit>
#include <climits>
#include <string>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "host/hot.hpp"
#include "queue/wait.hpp"

namespace teal {

SessionLayout session_layout(std::uint32_t slots, std::uint32_t stages) noexcept {
    SessionLayout layout{};
    layout.slots = slots;
    // A slot is reused only after the worker side let go of it, so at most one entry a slot is in the ring; two more for an
    // entry that was answered or recorded and is not retired yet (its dispatcher is about to, or died just there).
    layout.ring_capacity = std::bit_ceil(slots + 2);
    layout.ring = page_bytes + sizeof(SessionHeader);
    layout.lines = layout.ring + ring_bytes(layout.ring_capacity);
    layout.afters = layout.lines + std::uint64_t{slots} * sizeof(CompletionLine);
    layout.devices = layout.afters + std::uint64_t{slots} * sizeof(AfterLine);
    layout.stages = layout.devices + std::uint64_t{slots} * sizeof(DeviceLine);
    layout.stage_count = stages;
    layout.size = round_up(layout.stages + stages * sizeof(ClientStages), page_bytes);
    return layout;
}

void SessionMap::set_region(std::uint32_t id, std::shared_ptr<Region> region) {
    if (id >= owned.size()) {
        owned.resize(id + 1);
        views.resize(id + 1);
    }
    views[id] = region ? RegionView{region->base(), region->size()} : RegionView{};
    owned[id] = std::move(region);
}

std::uint8_t core_mark() noexcept {
    const int core = ::sched_getcpu();
    return core < 0 ? std::uint8_t{0} : static_cast<std::uint8_t>(core % 255 + 1);
}

std::shared_ptr<Region> create_session_region(std::uint32_t slots, std::uint32_t index, std::uint32_t epoch) {
    if (slots == 0 || slots > 65536)
        throw Error(Code::invalid_argument, "session of " + std::to_string(slots) + " slots: expected 1 to 65536");
    const SessionLayout layout = session_layout(slots);
    auto region = Region::create(RegionKind::session, layout.size, std::uint64_t{epoch} << 32 | index, Pages::small);
    format_session(*region, layout, index, epoch);
    return region;
}

void format_session(Region& region, const SessionLayout& layout, std::uint32_t index, std::uint32_t epoch) noexcept {
    auto* header = reinterpret_cast<SessionHeader*>(region.base() + page_bytes);
    header->magic = session_magic;
    header->abi = abi_version;
    header->slots = layout.slots;
    header->ring_capacity = layout.ring_capacity;
    header->index = index;
    header->epoch = epoch;
    ring_format(reinterpret_cast<RingHeader*>(region.base() + layout.ring), layout.ring_capacity);
}

std::unique_ptr<SessionMap> map_session(int fd, std::uint32_t index, std::uint32_t epoch, std::uint32_t slots, Header header) {
    auto region = Region::adopt(fd, RegionKind::session, true, header);
    const SessionLayout layout = session_layout(slots);
    if (slots == 0 || slots > 65536 || region->size() < layout.size)
        throw Error(Code::invalid_argument, "session region of " + std::to_string(region->size()) + " bytes, expected " +
                    std::to_string(layout.size) + " for " + std::to_string(slots) + " slots");
    region->close_fd();
    auto map = std::make_unique<SessionMap>();
    map->index = index;
    map->epoch = epoch;
    map->layout = layout;
    map->session = std::move(region);
    return map;
}

bool claim_request(CompletionLine& line, std::uint32_t generation) noexcept {
    std::uint64_t seen = line.word.load(std::memory_order_acquire);
    for (int attempt = 0; attempt < 4 && !is_past(seen, generation); ++attempt)
        // SYNC: acq_rel pairs with the client's cancelling compare-and-swap: one of the two wins.
        if (line.word.compare_exchange_strong(seen, make_word(generation, State::running), std::memory_order_acq_rel)) return true;
    return false;
}

void release_slot(CompletionLine& line, std::uint32_t generation) noexcept {
    std::uint32_t seen = line.released.load(std::memory_order_acquire);
    // Again when somebody released an older generation meanwhile; bounded, since a scribbling client could go on for ever.
    for (int attempt = 0; attempt < 4; ++attempt) {
        // SYNC: acquire pairs with the compare-and-swap that ended the word: the client submits a later generation only after
        // it has seen this one released, and a release of that later one, which we must not undo, fails the exchange below.
        if (is_later(generation_of(line.word.load(std::memory_order_acquire)), generation)) return;
        // SYNC: release pairs with the client's acquire load in ClientSession::quiescent(): the worker side's last
        // access to the slot's memory comes before.
        if (line.released.compare_exchange_strong(seen, generation & generation_mask, std::memory_order_release, std::memory_order_acquire)) return;
    }
}

namespace {

template <class T>
void store_if_new(std::atomic<T>& field, T value) noexcept {
    if (field.load(std::memory_order_relaxed) != value) field.store(value, std::memory_order_relaxed);
}

}  // namespace

TEAL_HOT bool end_request(CompletionLine& line, std::uint32_t generation, const Ending& ending) noexcept {
    const std::uint64_t word = make_word(generation, ending.state, ending.reason, ending.flags);
    // SYNC: acquire pairs with the client's cancelling compare-and-swap.
    std::uint64_t seen = line.word.load(std::memory_order_acquire);
    std::uint64_t seen_times = line.times.load(std::memory_order_relaxed);
    bool won = false;
    // An honest client changes the word at most once per generation; a scribbling one only keeps itself
    // from getting its answer, so the loop is bounded.
    for (int attempt = 0; attempt < 4 && !won && !is_past(seen, generation); ++attempt) {
        store_if_new(line.version, ending.version);
        store_if_new(line.detail, ending.detail);
        store_if_new(line.copied_in, ending.copied_in);
        store_if_new(line.copied_out, ending.copied_out);
        // SYNC: release (seq_cst) pairs with the client's acquire load of the word: outputs, shapes, message and
        // the fields above are visible with it. seq_cst orders it before the load of `waiting` below.
        won = exchange_end(line, seen, seen_times, word, make_times(ending.started, ending.ended));
    }
    if (!won && (ending.flags & word_released) != 0) release_slot(line, generation);
    // SYNC: seq_cst load pairs with the client's seq_cst counting up of `waiting` before it looks at the word a last time.
    if (line.waiting.load(std::memory_order_seq_cst) != 0) futex_wake(low_word(&line.word), INT_MAX);
    return won;
}

}  // namespace teal
