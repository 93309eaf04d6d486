// The benches' own seam: round trips timed in the core, one by one.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.hpp"
#include "bindings/slot.hpp"
#include "host/measure.hpp"

namespace teal {

void bind_measure(nb::module_& m) {
    m.def("measure_echo", [](std::uint64_t nbytes, std::uint32_t n, int core_a, int core_b) {
        const nb::gil_scoped_release release;
        return measure_echo(nbytes, n, core_a, core_b);
    }, nb::arg("nbytes"), nb::arg("n"), nb::arg("core_a"), nb::arg("core_b"), "Nanoseconds of each bare round trip between two cores: the floor.");
    m.def("measure_call", [](const Slot& slot, std::uint32_t n) {
        const nb::gil_scoped_release release;
        return measure_call(*slot.session, *slot.slot, slot.model, slot.version, n);
    }, nb::arg("slot"), nb::arg("n"), "Nanoseconds of each of n identity calls on this slot, timed in the core.");
}

}  // namespace teal
