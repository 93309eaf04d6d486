// The benches' own seam: round trips timed in the core, one by one.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.hpp"
#include "bindings/slot.hpp"
#include "cpu/clock.hpp"
#include "host/measure.hpp"

namespace teal {
namespace {

// A callable with the time it took inside, as a worker measures a kernel's: so that what a caller sees beyond it can be compared.
struct Timed {
    nb::object callable;
    std::int64_t last_ns = 0;

    nb::object call() {
        const std::uint64_t start = ticks();
        PyObject* result = PyObject_CallNoArgs(callable.ptr());
        last_ns = ticks_to_ns(ticks() - start);
        if (result == nullptr) nb::raise_python_error();
        return nb::steal(result);
    }
};

}  // namespace

void bind_measure(nb::module_& m) {
    m.def("measure_echo", [](std::uint64_t nbytes, std::uint32_t n, int core_a, int core_b) {
        const nb::gil_scoped_release release;
        return measure_echo(nbytes, n, core_a, core_b);
    }, nb::arg("nbytes"), nb::arg("n"), nb::arg("core_a"), nb::arg("core_b"), "Nanoseconds of each bare round trip between two cores: the floor.");
    m.def("measure_call", [](const Slot& slot, std::uint32_t n) {
        const nb::gil_scoped_release release;
        return measure_call(*slot.session, *slot.slot, slot.model, slot.version, n);
    }, nb::arg("slot"), nb::arg("n"), "Nanoseconds of each of n identity calls on this slot, timed in the core.");
    nb::class_<Timed>(m, "Timed", "Calls a callable and keeps how long it took inside, measured as a worker measures its kernels.")
        .def("__init__", [](Timed* self, nb::object callable) { new (self) Timed{std::move(callable)}; }, nb::arg("callable"))
        .def("__call__", &Timed::call, nb::sig("def __call__(self) -> typing.Any"))
        .def_prop_ro("last_run_ns", [](const Timed& t) { return t.last_ns; }, "Nanoseconds of the last call.");
}

}  // namespace teal
