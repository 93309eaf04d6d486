// Recordings: nothing is lost but what found no room, whoever writes at once.
#include "agents/trace.hpp"

#include <thread>
#include <unistd.h>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"

using namespace teal;

namespace {

void what_is_written_is_read() {
    const auto trace = Trace::create(8);
    Trace::Seen seen{};
    CHECK(trace->size() == 0 && !trace->read(0, seen));
    trace->add(TraceKind::run, 20, 10, 3, 77, 2, 5);
    CHECK(trace->size() == 1 && trace->read(0, seen));
    CHECK(seen.kind == TraceKind::run && seen.at == 20 && seen.begin == 10 && seen.worker == 3 && seen.record == 77 && seen.why == 2 && seen.more == 5);
    CHECK(!trace->read(1, seen) && !trace->read(8, seen) && trace->left_out() == 0);
    for (int i = 0; i < 10; ++i) trace->add(TraceKind::message, 30, 30, UINT32_MAX, UINT32_MAX, 0, 0);
    CHECK(trace->size() == 8 && trace->left_out() == 3 && trace->read(7, seen) && seen.worker == UINT16_MAX);
}

void another_process_maps_it() {
    const auto trace = Trace::create(100);
    const auto other = Trace::attach(::dup(trace->fd()));
    other->add(TraceKind::decision, 5, 4, 1, 2, 3, 4);
    Trace::Seen seen{};
    CHECK(other->capacity() == 100 && trace->read(0, seen) && seen.kind == TraceKind::decision);
}

void what_is_no_trace_is_refused() {
    for (const std::uint32_t events : {0u, most_trace_events + 1}) {
        bool refused = false;
        try {
            Trace::create(events);
        } catch (const Error& error) {
            refused = error.code() == Code::invalid_argument;
        }
        CHECK(refused);
    }
    const auto region = Region::create(RegionKind::trace, 4 * page_bytes, 0, Pages::small);
    bool refused = false;
    try {
        Trace::attach(::dup(region->fd()));
    } catch (const Error& error) {
        refused = error.code() == Code::version_mismatch;
    }
    CHECK(refused);
}

void many_write_at_once() {
    constexpr std::uint32_t each = 20'000, threads = 4;
    const auto trace = Trace::create(each * threads - 100);
    std::vector<std::thread> writers;
    for (std::uint32_t t = 0; t < threads; ++t) {
        writers.emplace_back([&trace, t] {
            for (std::uint32_t i = 0; i < each; ++i) trace->add(TraceKind::message, i, i, t, i, 0, i * 7);
        });
    }
    for (std::thread& writer : writers) writer.join();
    CHECK(trace->size() == each * threads - 100 && trace->left_out() == 100);
    std::uint64_t last[threads] = {};
    bool whole = true, ordered = true;
    Trace::Seen seen{};
    for (std::uint32_t i = 0; i < trace->size(); ++i) {
        if (!trace->read(i, seen) || seen.worker >= threads) whole = false;
        else whole = whole && seen.more == static_cast<std::uint32_t>(seen.at) * 7, ordered = ordered && seen.at >= last[seen.worker], last[seen.worker] = seen.at;
    }
    CHECK(whole);
    CHECK(ordered);
}

}  // namespace

int main() {
    what_is_written_is_read();
    another_process_maps_it();
    what_is_no_trace_is_refused();
    many_write_at_once();
    return teal::check::summary();
}
