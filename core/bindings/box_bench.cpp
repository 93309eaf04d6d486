// The benches of boxes, for `teal bench duck`. Each runs in a thread of its own, so that the caller stays on the CPUs that it may use.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <optional>
#include <thread>
#include <vector>

#include "bench/box_costs.hpp"
#include "bench/flush.hpp"
#include "bench/on_core.hpp"
#include "bindings/bindings.hpp"
#include "bindings/duck_image.hpp"
#include "box/image.hpp"

namespace teal {
namespace {

using Times = std::vector<std::uint32_t>;

template <class Work>
void on_cpu(int cpu, Work&& work) {
    std::exception_ptr failed;
    std::thread([&] {
        try {
            std::optional<OnCore> there;
            if (cpu >= 0) there.emplace(cpu);
            work();
        } catch (...) {
            failed = std::current_exception();
        }
    }).join();
    if (failed) std::rethrow_exception(failed);
}

Times calls(const std::shared_ptr<box::Session>& session, int cpu, std::uint64_t bytes, std::uint32_t tries, std::uint64_t pause_ns) {
    Times times;
    const std::vector<std::byte> args(bytes, std::byte{7});
    on_cpu(cpu, [&] {
        box::Caller caller(session->control_fd(), session->fate_fd(), session->facts());
        times = box::time_calls(caller, args.data(), args.size(), tries, pause_ns);
    });
    return times;
}

nb::tuple runs(box::Yard& yard, const DuckProgram& program, const std::string& file, int cpu, std::uint32_t tries, std::uint64_t pause_ns) {
    box::RunCosts costs;
    {
        const nb::gil_scoped_release release;
        box::RunOrder order;
        order.image = box::linux_image(*program.place, {file}, {});
        on_cpu(cpu, [&] { costs = box::time_runs(yard, order, file, tries, pause_ns); });
    }
    return nb::make_tuple(nb::cast(costs.judged), nb::cast(costs.spawned), nb::cast(costs.judged_time));
}

nb::tuple series(box::Yard& yard, const DuckProgram& program, const std::string& file, int cpu, std::uint32_t tries) {
    box::SeriesCosts costs;
    {
        const nb::gil_scoped_release release;
        box::RunOrder order;
        order.image = box::linux_image(*program.place, {file}, {});
        on_cpu(cpu, [&] { costs = box::time_series(yard, order, file, tries); });
    }
    return nb::make_tuple(costs.judged, costs.spawned, nb::cast(costs.judged_time));
}

bool flush(nb::handle what) {
    Py_buffer view;
    if (PyObject_GetBuffer(what.ptr(), &view, PyBUF_SIMPLE) != 0) nb::raise_python_error();
    const bool done = flush_lines(static_cast<const std::byte*>(view.buf), static_cast<std::uint64_t>(view.len));
    PyBuffer_Release(&view);
    return done;
}

}  // namespace

void bind_box_bench(nb::module_& m) {
    m.def("measure_box_calls", &calls, nb::arg("box"), nb::arg("cpu"), nb::arg("bytes"), nb::arg("tries"), nb::arg("pause_ns") = 0,
          nb::call_guard<nb::gil_scoped_release>(), "Calls of a session from C++, on that CPU; ns each.");
    m.def("measure_line_echo", [](int here, int there, std::uint32_t tries) {
        Times times;
        on_cpu(here, [&] { times = box::time_echo(here, there, tries); });
        return times;
    }, nb::arg("here"), nb::arg("there"), nb::arg("tries"), nb::call_guard<nb::gil_scoped_release>(), "One line of memory there and back; ns each.");
    m.def("measure_box_runs", &runs, nb::arg("yard"), nb::arg("program"), nb::arg("file"), nb::arg("cpu"), nb::arg("tries"), nb::arg("pause_ns") = 0,
          nb::sig("def measure_box_runs(yard: DuckYard, program: DuckProgram, file: str, cpu: int, tries: int, pause_ns: int = 0) -> tuple[list[int], list[int], list[int]]"),
          "Judged runs of an ordinary static program, and vfork + execve + wait of its file, in turn; ns each, and the CPU time that the judge saw.");
    m.def("measure_box_series", &series, nb::arg("yard"), nb::arg("program"), nb::arg("file"), nb::arg("cpu"), nb::arg("tries"),
          nb::sig("def measure_box_series(yard: DuckYard, program: DuckProgram, file: str, cpu: int, tries: int) -> tuple[int, int, list[int]]"),
          "So many judged runs one after the other until all is as before, then as many vfork + execve + wait; ns of each series, and the CPU time in each record.");
    m.def("flush_lines", &flush, nb::arg("what"), nb::sig("def flush_lines(what: typing.Any) -> bool"), "Drives a packed buffer out of the CPU's caches.");
}

}  // namespace teal
