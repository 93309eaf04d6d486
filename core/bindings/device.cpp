// The Python face of core/device: the client's side of a control line, and the kernels of the cpu device.
#include <nanobind/nanobind.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <sched.h>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "device/fence.hpp"
#include "device/line.hpp"
#include "device/resident.hpp"
#include "device/task.hpp"
#include "queue/wait.hpp"

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

// A resident kernel on a thread of its own, which outlives this when nobody waits for it: a lost kernel cannot be joined.
class CpuRun {
public:
    CpuRun(DeviceTask task, std::uint64_t directory, const std::vector<std::uint64_t>& regions, const std::set<int>& cores)
        : running_(std::make_shared<std::atomic<bool>>(true)) {
        std::thread([task, directory, regions, cores, running = running_] {
            cpu_set_t set;
            CPU_ZERO(&set);
            for (const int core : cores)
                if (core >= 0 && core < CPU_SETSIZE) CPU_SET(static_cast<unsigned>(core), &set);
            if (!cores.empty()) ::sched_setaffinity(0, sizeof(set), &set);
            std::uint8_t* array[directory_regions] = {};
            for (std::size_t i = 0; i < std::min<std::size_t>(regions.size(), directory_regions); ++i)
                array[i] = reinterpret_cast<std::uint8_t*>(regions[i]);
            run_resident(task, *reinterpret_cast<Directory*>(directory), array);
            // SYNC: pairs with the acquire of done(): whoever sees it may free what the kernel used.
            running->store(false, std::memory_order_release);
        }).detach();
    }
    [[nodiscard]] bool done() const noexcept { return !running_->load(std::memory_order_acquire); }
    void wait() const {
        const nb::gil_scoped_release release;
        while (!done()) give_way();
    }

private:
    std::shared_ptr<std::atomic<bool>> running_;
};

// A task of the core by its name. Addresses are those of regions that the caller keeps mapped (teal.device.cpu does).
class CpuKernel {
public:
    explicit CpuKernel(const std::string& name) : task_(find_task(name)) {
        if (task_ == nullptr) throw Error(Code::not_found, "cpu task '" + name + "', expected identity or scale");
    }
    void launch(const std::vector<std::uint64_t>& parts, std::uint32_t batch) const {
        if (parts.size() != 4) throw Error(Code::invalid_argument, "cpu task: expected the addresses of weights, input, out0, out1");
        const nb::gil_scoped_release release;
        alignas(64) std::uint8_t scratch[scratch_bytes];
        const auto at = [&](int i) { return reinterpret_cast<std::uint8_t*>(parts[static_cast<std::size_t>(i)]); };
        task_(at(0), at(1), at(2), at(3), batch, 0, 1, scratch);
    }
    [[nodiscard]] std::shared_ptr<CpuRun> start(std::uint64_t directory, const std::vector<std::uint64_t>& regions, const std::set<int>& cores) const {
        return std::make_shared<CpuRun>(task_, directory, regions, cores);
    }

private:
    DeviceTask task_;
};

}  // namespace

// Where the words of a line lie, in bytes from its start, and what a directory may hold: for numpy, which has no structs of ours.
void export_layout(nb::module_& m) {
    constexpr std::size_t reply = offsetof(DeviceLine, reply);
    m.attr("LINE_BYTES") = sizeof(DeviceLine);
    m.attr("LINE_ASKED") = offsetof(DeviceLine, request) + offsetof(RequestLine, generation);
    m.attr("LINE_DONE") = reply + offsetof(ReplyLine, generation);
    m.attr("LINE_STATUS") = reply + offsetof(ReplyLine, status);
    m.attr("LINE_STATE") = reply + offsetof(ReplyLine, state);
    m.attr("LINE_STAMP") = reply + offsetof(ReplyLine, stamp);
    m.attr("LINE_OWNER") = reply + offsetof(ReplyLine, owner);
    m.attr("LINE_LIMIT") = reply + offsetof(ReplyLine, limit_ns);
    m.attr("DIRECTORY_BYTES") = sizeof(Directory);
    m.attr("DIRECTORY_MAGIC") = directory_magic;
    m.attr("DIRECTORY_LAYOUT") = directory_layout;
    m.attr("DIRECTORY_CAPACITY") = directory_capacity;
    m.attr("DIRECTORY_REGIONS") = directory_regions;
}

void bind_device(nb::module_& m) {
    export_layout(m);
    m.def("fence", &full_fence, "What this thread stored is visible, to other threads and to devices, before what it stores or reads from now on.");
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
    nb::class_<CpuRun>(m, "CpuRun", "A resident kernel on a thread.")
        .def("done", &CpuRun::done)
        .def("wait", &CpuRun::wait);
    nb::class_<CpuKernel>(m, "CpuKernel", "A task of the core, for the cpu device.")
        .def(nb::init<std::string>(), nb::arg("name"))
        .def("launch", &CpuKernel::launch, nb::arg("parts"), nb::arg("batch"), nb::sig("def launch(self, parts: list[int], batch: int) -> None"))
        .def("start", &CpuKernel::start, nb::arg("directory"), nb::arg("regions"), nb::arg("cores"),
             nb::sig("def start(self, directory: int, regions: list[int], cores: set[int]) -> CpuRun"));
}

}  // namespace teal
