// The seam of recordings.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include "agents/trace.hpp"
#include "bindings/bindings.hpp"

namespace teal {
namespace {

constexpr const char* kinds[] = {"none", "run", "message", "decision", "agent"};

// (kind, at ns, begin ns, worker, record, why, more); times since the first event's.
nb::list events_list(const Trace& trace) {
    nb::list list;
    std::uint64_t first = UINT64_MAX;
    Trace::Seen seen;
    for (std::uint32_t i = 0; i < trace.size(); ++i) {
        if (!trace.read(i, seen)) continue;
        if (seen.at < first) first = seen.at;
        if (seen.begin != 0 && seen.begin < first) first = seen.begin;
    }
    const auto since = [first](std::uint64_t at) { return at < first ? 0 : ticks_to_ns(at - first); };
    for (std::uint32_t i = 0; i < trace.size(); ++i) {
        if (!trace.read(i, seen)) continue;
        const auto kind = static_cast<std::uint32_t>(seen.kind);
        list.append(nb::make_tuple(kinds[kind < 5 ? kind : 0], since(seen.at), since(seen.begin != 0 ? seen.begin : seen.at), seen.worker, seen.record,
                                   seen.why, seen.more));
    }
    return list;
}

}  // namespace

void bind_trace(nb::module_& m) {
    nb::class_<Trace>(m, "Trace", "A recording of what happens in a pool: core/agents/trace.hpp.")
        .def(nb::new_([](std::uint32_t events) { return Trace::create(events); }), nb::arg("events"))
        .def_prop_ro("fd", &Trace::fd)
        .def_prop_ro("left_out", &Trace::left_out)
        .def_prop_ro("capacity", &Trace::capacity)
        .def("__len__", &Trace::size)
        .def("add", [](Trace& t, std::uint32_t kind, std::uint64_t at, std::uint64_t begin, std::uint32_t worker, std::uint32_t record, std::uint32_t why,
                       std::uint32_t more) { t.add(static_cast<TraceKind>(kind), at, begin, worker, record, why, more); },
             nb::arg("kind"), nb::arg("at"), nb::arg("begin"), nb::arg("worker"), nb::arg("record"), nb::arg("why"), nb::arg("more"), "For tests.")
        .def("events", &events_list, nb::sig("def events(self) -> list[tuple[str, int, int, int, int, int, int]]"),
             "(kind, at, begin, worker, record, why, more); times in nanoseconds since the first.");
}

}  // namespace teal
