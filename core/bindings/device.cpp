// The Python face of core/device: the client's side of a control line.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "device/line.hpp"

namespace teal {
namespace {

constexpr std::uint64_t default_spin_ns = 1'000'000;
constexpr std::uint64_t with_gil_ns = 20'000;  // giving the GIL back and taking it again costs as much as a short run

// A DeviceLine in somebody's writable memory, which stays pinned while this lives.
class LineHandle {
public:
    LineHandle(const nb::object& memory, std::uint64_t offset) {
        if (PyObject_GetBuffer(memory.ptr(), &view_, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
        const auto size = static_cast<std::uint64_t>(view_.len);
        const auto address = reinterpret_cast<std::uintptr_t>(view_.buf) + offset;
        if (size < sizeof(DeviceLine) || offset > size - sizeof(DeviceLine) || address % alignof(DeviceLine) != 0) {
            PyBuffer_Release(&view_);
            throw Error(Code::invalid_argument, "device line: offset " + std::to_string(offset) + " in " + std::to_string(size) +
                                                    " bytes, expected 128 bytes there and an address that is a multiple of 64");
        }
        line_ = reinterpret_cast<DeviceLine*>(address);
    }
    ~LineHandle() { PyBuffer_Release(&view_); }
    LineHandle(const LineHandle&) = delete;
    LineHandle& operator=(const LineHandle&) = delete;

    [[nodiscard]] DeviceLine& line() const noexcept { return *line_; }

    [[nodiscard]] std::uint32_t wait(std::uint32_t generation, std::uint64_t timeout_ns, std::uint64_t spin_ns) const {
        const std::uint64_t short_ns = std::min({with_gil_ns, timeout_ns, spin_ns});
        const Answer answer = await(*line_, generation, short_ns, short_ns);
        if (answer != Answer::late || timeout_ns == short_ns) return static_cast<std::uint32_t>(answer);
        const nb::gil_scoped_release release;
        return static_cast<std::uint32_t>(await(*line_, generation, timeout_ns - short_ns, spin_ns - short_ns));
    }

private:
    Py_buffer view_{};
    DeviceLine* line_ = nullptr;
};

}  // namespace

void bind_device(nb::module_& m) {
    nb::class_<LineHandle>(m, "DeviceLine", "The client's side of a control line of a resident kernel. One thread a line.")
        .def(nb::init<nb::object, std::uint64_t>(), nb::arg("memory"), nb::arg("offset") = 0,
             nb::sig("def __init__(self, memory: object, offset: int = 0) -> None"))
        .def("ask", [](const LineHandle& h) { return ask(h.line()); }, "Asks for a run; the generation to wait for.")
        .def("wait", &LineHandle::wait, nb::arg("generation"), nb::arg("timeout_ns"), nb::arg("spin_ns") = default_spin_ns,
             "0 done, 1 invalid, 2 failed, 3 parked (ask the worker, then wait again), 4 lost, 5 late.")
        .def("run", [](const LineHandle& h, std::uint64_t timeout_ns, std::uint64_t spin_ns) {
            return h.wait(ask(h.line()), timeout_ns, spin_ns);
        }, nb::arg("timeout_ns") = 1'000'000'000, nb::arg("spin_ns") = default_spin_ns, "ask() and wait().")
        .def_prop_ro("asked", [](const LineHandle& h) { return h.line().request.generation.load(std::memory_order_relaxed); })
        .def_prop_ro("done", [](const LineHandle& h) { return h.line().reply.generation.load(std::memory_order_acquire); })
        .def_prop_ro("state", [](const LineHandle& h) { return h.line().reply.state.load(std::memory_order_acquire); })
        .def_prop_ro("epoch", [](const LineHandle& h) { return h.line().reply.epoch.load(std::memory_order_relaxed); });
}

}  // namespace teal
