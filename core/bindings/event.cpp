// The seam for events: what requests wait for that is no request.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include <memory>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "bindings/slot.hpp"
#include "cpu/clock.hpp"

namespace teal {
namespace {

bool wait(Event& event, std::uint64_t until_ns) {
    check_not_forked(event.forks);
    if (event.session->spin(*event.line, held_spin_ns)) return true;
    for (;;) {
        // In slices, so that Ctrl-C and other Python signal handlers get their turn.
        const std::uint64_t slice = static_cast<std::uint64_t>(monotonic_ns()) + signal_slice_ns;
        const bool last = until_ns != 0 && until_ns <= slice;
        bool done = false;
        {
            const nb::gil_scoped_release release;
            done = event.session->wait(*event.line, last ? until_ns : slice, 0);
        }
        if (done || last) return done;
        if (PyErr_CheckSignals() != 0) nb::raise_python_error();
    }
}

}  // namespace

void bind_event(nb::module_& m) {
    nb::class_<Event>(m, "Event", "A completion line without a request.")
        .def("__init__", [](Event* self, std::shared_ptr<ClientSession> session) { new (self) Event(std::move(session)); }, nb::arg("session"))
        .def("signal", [](Event& e) { check_not_forked(e.forks); return e.session->signal(*e.line); }, "False when it had ended already.")
        .def("cancel", [](Event& e) { check_not_forked(e.forks); return e.session->signal(*e.line, State::cancelled); },
             "What waits for it is cancelled. False when it had ended already.")
        .def("rearm", [](Event& e) { check_not_forked(e.forks); e.session->rearm(*e.line); }, "It has not come yet. Raises Busy when it has not ended.")
        .def("wait", &wait, nb::arg("until_ns"), "True when it has ended; False when CLOCK_MONOTONIC until_ns (0: none) passed first.")
        .def("ended", [](const Event& e) { return ClientSession::ended(*e.line); })
        .def("came", [](const Event& e) { return state_seen(*e.line->line, e.line->generation, State::free) == State::done; }, "Has it ended, and well?")
        .def_prop_ro("index", [](const Event& e) { return e.line->index; }, "Of its completion line in the session.")
        .def_prop_ro("generation", [](const Event& e) { return e.line->generation; })
        .def_prop_ro("session", [](const Event& e) { return e.session; });
}

}  // namespace teal
