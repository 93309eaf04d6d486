// The client's seam for BPF sessions: maps, the session in one, slots handed to programs, the bell.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <vector>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "bindings/slot.hpp"
#include "bpf/bell.hpp"
#include "bpf/producer.hpp"
#include "memory/bpf_map.hpp"

namespace teal {
namespace {

std::shared_ptr<ClientSession> open_bpf_session(int fd, std::uint32_t index, std::uint32_t epoch, std::uint32_t slots, std::uint64_t bytes, std::uint64_t idle_ns, int socket) {
    auto map = map_bpf_session(fd, index, epoch, slots, bytes);
    map->session->close_fd();
    return std::make_shared<ClientSession>(std::move(map), idle_ns, socket);
}

void give_slots(ClientSession& session, const std::vector<const Slot*>& slots) {
    std::vector<ClientSlot*> raw;
    for (const Slot* slot : slots) raw.push_back(slot->slot.get());
    hand_over(session, raw);
}

nb::dict counts_dict(ClientSession& session) {
    const ProducerCounts counts = producer_counts(session.map(), session.ring_position());
    nb::dict d;
    d["sent"] = counts.sent;
    d["full"] = counts.full;
    d["shut"] = counts.shut;
    d["bells"] = counts.bells;
    d["left"] = counts.left;
    d["failed"] = counts.failed;
    d["out"] = counts.out;
    return d;
}

}  // namespace

void bind_bpf(nb::module_& m) {
    m.def("bpf_create_memory", &create_memory_map, nb::arg("nbytes"), "A memory-mappable BPF array of one value; raises NotFound where bpf(2) is not permitted.");
    m.def("bpf_create_bell", &create_bell_map, "A BPF ring buffer of one page.");
    m.def("bpf_memory_bytes", &memory_map_bytes, nb::arg("fd"), "Raises InvalidArgument when this is no map that can hold a session.");
    m.def("bpf_tensors_at", [](std::uint32_t slots) { return bpf_span(slots).tensors; }, nb::arg("slots"), "Where the tensors begin in the map of a session with so many slots.");
    m.def("bpf_session", &open_bpf_session, nb::arg("fd"), nb::arg("index"), nb::arg("epoch"), nb::arg("slots"), nb::arg("nbytes"), nb::arg("idle_ns"), nb::arg("socket"));
    m.def("bpf_hand_over", &give_slots, nb::arg("session"), nb::arg("slots"), "From here on only BPF programs use the session.");
    m.def("bpf_counts", &counts_dict, nb::arg("session"), nb::sig("def bpf_counts(session: Session) -> dict[str, int]"));
    m.def("bpf_shut", [](ClientSession& session) { shut_producer(session.map()); }, nb::arg("session"));
    m.def("bpf_layout", [](ClientSession& session, std::uint32_t model, std::uint32_t version, std::int32_t priority) {
        const std::string bytes = layout_bytes(session.map(), model, version, priority);
        return nb::bytes(bytes.data(), bytes.size());
    }, nb::arg("session"), nb::arg("model"), nb::arg("version"), nb::arg("priority"));
    nb::class_<Bell>(m, "Bell", "Wakes a sleeping worker on behalf of BPF programs; a thread that needs no GIL.")
        .def(nb::init<int, std::shared_ptr<ClientSession>, std::shared_ptr<ClientSession>, int>(), nb::arg("map"), nb::arg("bpf"), nb::arg("ordinary"), nb::arg("socket"))
        .def("stop", &Bell::stop, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("rung", &Bell::rung);
}

}  // namespace teal
