#include "agents/trace.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"

namespace teal {
namespace {

constexpr std::uint64_t size_for(std::uint32_t events) noexcept {
    const std::uint64_t bytes = page_bytes + sizeof(TraceHeader) + std::uint64_t{events} * sizeof(TraceEvent);
    return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

}  // namespace

std::shared_ptr<Trace> Trace::create(std::uint32_t events) {
    if (events < 1 || events > most_trace_events) {
        throw Error(Code::invalid_argument, std::to_string(events) + " events, expected 1 to " + std::to_string(most_trace_events));
    }
    auto region = Region::create(RegionKind::trace, size_for(events), 0, Pages::small);
    auto trace = std::shared_ptr<Trace>(new Trace(std::move(region), events));
    trace->header().magic = trace_magic;
    trace->header().version = trace_version;
    trace->header().capacity = events;
    return trace;
}

std::shared_ptr<Trace> Trace::attach(int fd) {
    auto region = Region::adopt(fd, RegionKind::trace, true);
    if (region->size() < page_bytes + sizeof(TraceHeader)) throw Error(Code::invalid_argument, "trace region: too small for its header");
    const auto& header = *reinterpret_cast<const TraceHeader*>(region->base() + page_bytes);
    const std::uint32_t capacity = header.capacity;
    if (header.magic != trace_magic || header.version != trace_version) throw Error(Code::version_mismatch, "trace region: of another version of Teal");
    if (capacity < 1 || capacity > most_trace_events || size_for(capacity) != region->size()) {
        throw Error(Code::invalid_argument, "trace region: its size is not that of its events");
    }
    return std::shared_ptr<Trace>(new Trace(std::move(region), capacity));
}

bool Trace::read(std::uint32_t i, Seen& seen) const noexcept {
    if (i >= capacity_) return false;
    const TraceEvent& event = events()[i];
    // SYNC: acquire pairs with the release store of `kind` in add().
    const auto kind = static_cast<TraceKind>(event.kind.load(std::memory_order_acquire));
    if (kind == TraceKind::none) return false;
    seen = {kind, event.at, event.begin, event.record, event.more, event.worker, event.why};
    return true;
}

std::uint32_t Trace::size() const noexcept {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(header().next.load(std::memory_order_relaxed), capacity_));
}

std::uint64_t Trace::left_out() const noexcept {
    const std::uint64_t next = header().next.load(std::memory_order_relaxed);
    return next > capacity_ ? next - capacity_ : 0;
}

}  // namespace teal
