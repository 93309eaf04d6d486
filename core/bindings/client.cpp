// The client's seam for connections: Session, Notifier, spilled outputs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "bindings/place.hpp"
#include "bindings/slot.hpp"
#include "bindings/spill.hpp"
#include "host/client.hpp"
#include "host/notifier.hpp"

namespace teal {
namespace {

// A Python callable as the notifier's thread calls it.
std::function<void()> called_once(nb::object callback) {
    auto held = std::shared_ptr<nb::object>(new nb::object(std::move(callback)), [](nb::object* object) {
        const nb::gil_scoped_acquire gil;
        delete object;
    });
    return [held] {
        const nb::gil_scoped_acquire gil;
        try {
            (*held)();
        } catch (nb::python_error& error) {
            error.discard_as_unraisable("teal notifier");
        }
    };
}

// A Python object as the loan of tensors, which may go in any thread.
std::shared_ptr<void> held_by_tensors(nb::object hold) {
    return {new nb::object(std::move(hold)), [](nb::object* held) {
                if (!nb::is_alive()) return;  // the process ends, and its descriptors with it
                const nb::gil_scoped_acquire gil;
                delete held;
            }};
}

}  // namespace

void bind_client(nb::module_& m) {
    bind_place(m);
    nb::class_<ClientSession>(m, "Session", "One client's connection to one pool, as memory.")
        .def(nb::new_([](int fd, std::uint32_t index, std::uint32_t epoch, std::uint32_t slots, std::uint64_t idle_ns, int socket) {
                 return std::make_shared<ClientSession>(map_session(fd, index, epoch, slots), idle_ns, socket);
             }),
             nb::arg("fd"), nb::arg("index"), nb::arg("epoch"), nb::arg("slots"), nb::arg("idle_ns"), nb::arg("socket"))
        .def("add_region", &ClientSession::add_region, nb::arg("id"), nb::arg("fd"))
        .def("take_empty_regions", &ClientSession::take_empty_regions, nb::arg("keep_bytes"))
        .def("allocate", [](ClientSession& s, const std::string& dtype, const std::vector<std::int64_t>& shape, std::uint64_t align) -> nb::object {
            TensorDesc desc{};
            desc.dtype = static_cast<std::uint8_t>(dtype_from_name(dtype));
            if (desc.dtype == 0 || static_cast<Dtype>(desc.dtype) == Dtype::bytes) throw Error(Code::invalid_argument, "dtype '" + dtype + "' cannot be allocated");
            if (shape.size() > max_rank) throw Error(Code::invalid_argument, "rank " + std::to_string(shape.size()) + ", expected at most 8");
            std::uint64_t count = 0;
            if (!tensor_bytes(static_cast<Dtype>(desc.dtype), shape.data(), shape.size(), count, desc.nbytes))
                throw Error(Code::invalid_argument, "shape: a negative extent, or more than 2^63 bytes");
            auto block = s.allocate(desc.nbytes, std::max<std::uint64_t>(align, tensor_align));
            if (!block) return nb::none();
            desc.rank = static_cast<std::uint8_t>(shape.size());
            std::copy(shape.begin(), shape.end(), desc.shape);
            desc.region = block->region;
            desc.offset = block->offset;
            desc.capacity = desc.nbytes;
            std::memset(block->memory->base() + block->offset, 0, desc.nbytes);
            return make_tensor(desc, hold_on(block), s);
        }, nb::arg("dtype"), nb::arg("shape"), nb::arg("align") = 256, nb::sig("def allocate(self, dtype: str, shape: typing.Sequence[int], align: int = 256) -> Tensor | None"))
        .def("place_of", &place_of, nb::arg("array"), nb::sig("def place_of(self, array: typing.Any, /) -> Place | None"),
             "Where a Tensor of this session, or a packed NumPy array or memoryview of one, lies; None: it has to be copied. Raises Closed after release().")
        .def("tensor_at", [](const ClientSession& s, std::uint64_t address, std::uint64_t nbytes) -> nb::object {
            const Tensor* tensor = live_tensor_at(&s, reinterpret_cast<const std::byte*>(address), nbytes);
            return tensor == nullptr ? nb::none() : nb::borrow(nb::find(tensor));
        }, nb::arg("address"), nb::arg("nbytes"), nb::sig("def tensor_at(self, address: int, nbytes: int) -> Tensor | None"),
             "A tensor of this session that somebody holds and that has all of these bytes. The caller keeps what shows them.")
        .def("peer_gone", &ClientSession::peer_gone)
        .def("close", &ClientSession::close)
        .def("rouse", &ClientSession::rouse, "Wakes the pool's leader to look at all rings.")
        .def("count_relayed", [](ClientSession& s, std::uint32_t model) { s.stages_of(model)->relayed.fetch_add(1, std::memory_order_relaxed); }, nb::arg("model"),
             "An input of a request came from another session, through this process.")
        .def("raise_idle", &ClientSession::raise_idle, nb::arg("ns"), "Callers may spin for so long, if that is longer than before.")
        .def_prop_ro("bytes_used", &ClientSession::bytes_used)
        .def_prop_ro("region_bytes", &ClientSession::region_bytes)
        .def_prop_ro("slots_out", &ClientSession::slots_out)
        .def_prop_ro("page_bytes", [](const ClientSession& s) { return std::uint64_t{1} << s.largest_page_shift(); })
        .def_prop_ro("spin_ns", &ClientSession::spin_budget_ns);
    bind_slot(m);
    bind_event(m);
    nb::class_<Notifier>(m, "Notifier", "Calls back when requests have ended; one thread, started by the first add().")
        .def(nb::init<std::shared_ptr<ClientSession>>(), nb::arg("session"))
        .def("add", [](Notifier& n, const Slot& s, nb::object callback) {
            check_not_forked(s.forks);
            n.add(s.slot, s.deadline_ns, called_once(std::move(callback)));
        }, nb::arg("slot"), nb::arg("callback"), nb::sig("def add(self, slot: Slot, callback: typing.Callable[[], typing.Any]) -> None"))
        .def("add_event", [](Notifier& n, const Event& e, nb::object callback) {
            check_not_forked(e.forks);
            n.add(e.line, 0, called_once(std::move(callback)));
        }, nb::arg("event"), nb::arg("callback"), nb::sig("def add_event(self, event: Event, callback: typing.Callable[[], typing.Any]) -> None"))
        .def("stop", &Notifier::stop, nb::call_guard<nb::gil_scoped_release>());
    // Outputs that were too large for their slot come in a region of their own.
    // `hold` is kept as long as anybody looks at one of them.
    m.def("spilled_tensors", [](int fd, const std::vector<nb::tuple>& layout, nb::object hold) {
        const auto loan = held_by_tensors(std::move(hold));
        auto region = Region::adopt(fd, RegionKind::spill, true);
        region->close_fd();
        nb::list tensors;
        for (const nb::tuple& item : layout) {  // (dtype, shape, offset, nbytes)
            const TensorDesc desc = spilled_tensor(item, *region);
            tensors.append(make_tensor(desc, region->base(), region, loan, false));
        }
        return tensors;
    }, nb::arg("fd"), nb::arg("layout"), nb::arg("hold").none() = nb::none(),
       nb::sig("def spilled_tensors(fd: int, layout: list[tuple[str, tuple[int, ...], int, int]], hold: object = None) -> list[Tensor]"));
}

}  // namespace teal
