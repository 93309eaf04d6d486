// The worker's path between two requests, fetched at once.
#include <algorithm>
#include <cstdint>
#include <span>

#include "cpu/clock.hpp"
#include "host/hot.hpp"
#include "host/worker.hpp"

namespace teal {

// A long kernel has pushed everything else out of the caches. What the end of this request and the start of the next one touch
// is fetched at once, instead of one miss after the other.
TEAL_HOT void Worker::fetch_path(std::uint32_t index, const Ending& ending) const noexcept {
    const auto fetch = [](const void* at, std::size_t bytes) {
        const auto first = reinterpret_cast<std::uintptr_t>(at) & ~std::uintptr_t{63};
        for (std::uintptr_t line = first; line < reinterpret_cast<std::uintptr_t>(at) + bytes; line += 64)
            __builtin_prefetch(reinterpret_cast<const void*>(line), 1);
    };
    for (const char* code = __start_teal_hot; code < __stop_teal_hot; code += 64) __builtin_prefetch(code, 0, 2);
    PoolMemory& memory = pool_->memory();
    const Record& record = memory.records[index];
    fetch(&record, sizeof record);
    fetch(&line_, sizeof line_);
    fetch(&memory.header, sizeof memory.header);
    fetch(&memory.versions[record.version_line], sizeof(VersionLine));
    fetch(&memory.sessions[record.session], sizeof(SessionLine));
    fetch(memory.heap, 64);
    fetch(memory.blocked, 64);
    const Histogram* stages = memory.histograms[record.version_line].stages;
    fetch(&stages[static_cast<std::size_t>(Stage::run)].buckets[Histogram::bucket_of(static_cast<std::uint64_t>(ticks_to_ns(ending.ended - ending.started)))], 4);
    fetch(&stages[static_cast<std::size_t>(Stage::queue)].buckets[Histogram::bucket_of(2000)], 4);
    fetch(this, sizeof *this);
    fetch(finished_.data(), 4);
    fetch(live_.data(), 8);
    for (const SessionMap* map : std::span(live_).first(std::min<std::size_t>(live_.size(), 8))) {
        fetch(map, sizeof *map);
        const std::uint32_t head = __atomic_load_n(&memory.sessions[map->index].head, __ATOMIC_RELAXED);
        const RingConsumer ring(map->ring(), map->layout.ring_capacity, head);
        fetch(map->ring(), sizeof(RingHeader));
        fetch(ring.next_line(), 64);
    }
    if (const Session* session = sessions_[record.session].get()) {
        const Slot& slot = session->slots[record.entry.slot];
        fetch(&slot, sizeof slot);
        fetch(slot.binding.get(), 64);
    }
    fetch(&memory.models[record.entry.model], 8);
    fetch(&kernels_[record.version_line], 16);
}

}  // namespace teal
