// The worker's seam: kernels written in Python behind the core's Kernel and Binding.
//
// Theory of operation: the loop runs without the GIL. For a Python kernel it takes the GIL, calls what kernel.bind(slot) returned
// (prepared once per slot, so usually a C-level callable), and gives the GIL back. The callable returns None when every output was
// written in place, or a list with an array (or None) for each output.
//
// Of a kernel whose preemption is "yields" it returns a generator instead, which returns that. What it yields means nothing but that it may leave
// here: then the generator waits for the next run of the binding, or is closed.
//
// Python code may fork. What its child does is its own affair until it comes back here: then it ends, since there is one worker.
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <pthread.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "bindings/raised.hpp"
#include "bindings/spill.hpp"
#include "bindings/tensor.hpp"
#include "cpu/clock.hpp"
#include "host/worker.hpp"
#include "kernel/builtin.hpp"
#include "systems/kernel.hpp"

namespace teal {
namespace {

// A region as a kernel sees it that makes it known to a device: address, size, and the pages while this lives.
struct WorkerRegion {
    std::shared_ptr<Region> region;
    std::uint32_t session = 0;
    std::int64_t id = 0;  // of a tensor region; -1: the session's own
};

// All pages of a sealed file, read-only, as a buffer of whole pages: what lies behind its end in the last one is zero.
struct SealedPages {
    systems::Mapping mapping;
    explicit SealedPages(int fd) : mapping(fd) {}
};

// What a Python kernel is given to bind to. Tensors hold the pages they lie in; views of inputs are read-only.
struct WorkerSlot {
    nb::list inputs;
    nb::list outputs;   // None where the shape is not known before the run, or the output is not wanted
    nb::list rooms;     // (address, bytes) for those whose shape is not known, else None
    nb::list wanted;    // bool for each output
    Run* run = nullptr; // while it runs
    // Of a device model.
    SlotPlace place;
    Descriptor descriptor;
    std::vector<std::shared_ptr<Region>> owners;
    std::unique_ptr<Binding> native;  // the same kernel on the CPU
    Path path = Path::none;           // of the next run
    bool fallback = false;
    nb::object at_end;                // called once, before the tensors' memory may go to anybody else

    bool run_native() {
        Run alone;
        if (run == nullptr) alone.descriptor = &descriptor;
        return native->run(run != nullptr ? *run : alone);
    }
};

const char* const path_names[] = {"none", "cpu", "apk", "pl"};

Path path_of(const std::string& name) {
    for (std::size_t i = 1; i < std::size(path_names); ++i)
        if (name == path_names[i]) return static_cast<Path>(i);
    throw Error(Code::invalid_argument, "path '" + name + "', expected cpu, apk or pl");
}

const char* const preemption_names[] = {"none", "yields", "anywhere"};

// Of a Python kernel: one that can be left anywhere is none of Python's.
Preemption preemption_of(const std::string& name) {
    if (name == "none") return Preemption::none;
    if (name == "yields") return Preemption::yields;
    throw Error(Code::invalid_argument, "preemption '" + name + "' of a kernel, expected none or yields");
}

nb::object region_object(std::shared_ptr<Region> region, std::uint32_t session, std::int64_t id) {
    return nb::cast(new WorkerRegion{std::move(region), session, id}, nb::rv_policy::take_ownership);
}

// (region, offset, bytes) of a tensor.
nb::object tensor_place(const WorkerSlot& s, const std::vector<TensorDesc>& list, std::size_t index) {
    if (index >= list.size()) throw Error(Code::invalid_argument, "tensor index out of range");
    const TensorDesc& tensor = list[index];
    if ((tensor.flags & (tensor_absent | tensor_unplanned)) != 0) return nb::none();
    return nb::make_tuple(region_object(s.owners[tensor.region], s.place.session, tensor.region), tensor.offset, tensor.nbytes);
}

int region_buffer(PyObject* self, Py_buffer* view, int flags) {
    const WorkerRegion& r = *nb::inst_ptr<WorkerRegion>(nb::handle(self));
    return PyBuffer_FillInfo(view, self, r.region->base(), static_cast<Py_ssize_t>(r.region->size()), 0, flags);
}

int sealed_buffer(PyObject* self, Py_buffer* view, int flags) {
    const SealedPages& s = *nb::inst_ptr<SealedPages>(nb::handle(self));
    const auto bytes = s.mapping.bytes();
    const std::size_t whole = (bytes.size() + page_bytes - 1) / page_bytes * page_bytes;
    return PyBuffer_FillInfo(view, self, const_cast<std::byte*>(bytes.data()), static_cast<Py_ssize_t>(whole), 1, flags);
}

PyType_Slot region_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(region_buffer)}, {0, nullptr}};
PyType_Slot sealed_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(sealed_buffer)}, {0, nullptr}};

bool forked = false;  // in a child of a worker

// A child that went on with the loop would take requests as its parent does, and could not be told of versions or of the end.
void end_if_forked(nb::handle callable) noexcept {
    if (!forked) return;
    const bool raised = PyErr_Occurred() != nullptr;
    if (raised) PyErr_WriteUnraisable(callable.ptr());
    _exit(raised ? 1 : 0);
}

class PythonBinding final : public Binding {
public:
    PythonBinding(nb::object callable, nb::object slot, nb::object spill, Preemption how)
        : callable_(std::move(callable)), slot_(std::move(slot)), spill_(std::move(spill)), worker_slot_(nb::cast<WorkerSlot*>(slot_)) {
        preemption = how;
    }

    ~PythonBinding() override {
        const nb::gil_scoped_acquire gil;
        close_generator();
        if (worker_slot_->at_end.is_valid()) {
            const nb::object at_end = std::move(worker_slot_->at_end);
            worker_slot_->at_end = nb::object();
            PyObject* result = PyObject_CallNoArgs(at_end.ptr());
            if (result == nullptr) PyErr_WriteUnraisable(at_end.ptr());
            Py_XDECREF(result);
        }
        callable_.reset();
        slot_.reset();
        spill_.reset();
    }

    bool run(Run& run) noexcept override {
        path = worker_slot_->path;
        run.fallback = std::exchange(worker_slot_->fallback, false);
        if (callable_.is_none()) return worker_slot_->native->run(run);
        const nb::gil_scoped_acquire gil;
        worker_slot_->run = &run;
        PyObject* result = preemption == Preemption::yields ? go_on(run) : begin(run);
        end_if_forked(callable_);
        if (result == Py_None) run.done();  // before the GIL is given back
        worker_slot_->run = nullptr;
        if (run.left) return true;
        path = worker_slot_->path;
        run.fallback = run.fallback || std::exchange(worker_slot_->fallback, false);
        if (result == nullptr) {
            run.message = failure();
            return false;
        }
        if (result == Py_None) {
            Py_DECREF(result);
            return true;
        }
        try {
            return deliver(run, nb::steal(result));
        } catch (nb::python_error& error) {
            run.message = text_of(error);
        } catch (const std::exception& error) {
            run.message = error.what();
        }
        return false;
    }

    void drop() noexcept override {
        const nb::gil_scoped_acquire gil;
        close_generator();
    }

private:
    PyObject* begin(Run& run) noexcept {
        run.started = ticks();
        return PyObject_CallNoArgs(callable_.ptr());
    }

    // The generator, until it returns, raises or leaves: its answer, or null with an exception, or with run.left.
    PyObject* go_on(Run& run) noexcept {
        if (!generator_.is_valid()) {
            PyObject* made = begin(run);
            if (made == nullptr || !PyGen_Check(made)) return made;
            generator_ = nb::steal(made);
        }
        for (;;) {
            PyObject* value = nullptr;
            const PySendResult sent = PyIter_Send(generator_.ptr(), Py_None, &value);
            if (sent == PYGEN_NEXT) {
                Py_DECREF(value);
                if (run.leave == nullptr || !run.leave(run)) continue;
                run.left = true;
                return nullptr;
            }
            generator_.reset();
            return sent == PYGEN_RETURN ? value : nullptr;
        }
    }

    // Its finally blocks run; what they raise has nobody to hear it.
    void close_generator() noexcept {
        if (!generator_.is_valid()) return;
        PyObject* result = PyObject_CallMethod(generator_.ptr(), "close", nullptr);
        end_if_forked(callable_);
        if (result == nullptr) PyErr_WriteUnraisable(generator_.ptr());
        Py_XDECREF(result);
        generator_.reset();
    }

    static std::string failure() noexcept {
        try {
            return text_of(nb::python_error());  // takes the pending exception
        } catch (const std::exception& error) {
            return error.what();
        }
    }

    // Stores the outputs that the kernel returned; those that do not fit go to the host together (a spill).
    bool deliver(Run& run, nb::object result) {
        const auto list = nb::cast<nb::sequence>(result);
        const std::size_t count = nb::len(list);
        if (count != run.descriptor->outputs.size()) {
            run.message = "kernel returned " + std::to_string(count) + " outputs, expected " + std::to_string(run.descriptor->outputs.size());
            return false;
        }
        bool fits = true;
        for (std::size_t i = 0; i < count; ++i) {
            const TensorDesc& planned = run.descriptor->outputs[i];
            const nb::object item = list[i];
            if (item.is_none() || (planned.flags & tensor_absent) != 0) continue;
            if (!store(run, i, item)) fits = false;
            if (!run.message.empty()) return false;
        }
        if (fits) return true;
        if (run.record == nobody) {  // of several requests: nobody could tell whose it is
            run.message = "outputs of another size than planned";
            return false;
        }
        count_spilled(run, list, count);
        spill_(run.record, run.record_generation, result);
        run.handed_over = true;
        return true;
    }

    // A spill is a copy of every output, those that would have fitted among them.
    static void count_spilled(Run& run, const nb::sequence& list, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            const nb::object item = list[i];
            if (item.is_none()) continue;
            ++run.copies_out;
            run.bytes_out += nb::isinstance<nb::tuple>(item) ? nb::len(nb::object(item[1])) : source_of(item).nbytes;
        }
    }

    static bool store(Run& run, std::size_t i, nb::handle item) {
        const TensorDesc& planned = run.descriptor->outputs[i];
        if (nb::isinstance<nb::tuple>(item)) {  // BYTES: (shape, packed)
            if ((planned.flags & tensor_unplanned) == 0) {
                run.message = "$.outputs[" + std::to_string(i) + "].dtype: kernel returned strings, its signature says " +
                              std::string(dtype_info(static_cast<Dtype>(planned.dtype)).name);
                return false;
            }
            const auto shape = nb::cast<nb::tuple>(item[0]);
            const auto packed = nb::cast<nb::bytes>(item[1]);
            std::int64_t extents[max_rank]{};
            const std::size_t rank = nb::len(shape);
            for (std::size_t d = 0; d < rank && d < max_rank; ++d) extents[d] = nb::cast<std::int64_t>(shape[d]);
            return rank <= max_rank && emit(run, i, Dtype::bytes, extents, rank, packed.data(), packed.size());
        }
        const Source source = source_of(item);
        if ((planned.flags & tensor_unplanned) != 0) {
            if (!source.contiguous) throw nb::value_error("kernel returned a non-contiguous output");
            return emit(run, i, source.dtype, source.shape.data(), source.shape.size(), source.data, source.nbytes);
        }
        if (static_cast<std::uint8_t>(source.dtype) != planned.dtype) {
            run.message = "$.outputs[" + std::to_string(i) + "].dtype: kernel returned " + std::string(dtype_info(source.dtype).name) +
                          ", its signature says " + std::string(dtype_info(static_cast<Dtype>(planned.dtype)).name);
            return false;
        }
        if (source.nbytes != planned.nbytes || source.shape.size() != planned.rank ||
            !std::equal(source.shape.begin(), source.shape.end(), planned.shape)) {
            // The signature promised another shape. The answer is what the kernel returned.
            if (!source.contiguous) throw nb::value_error("kernel returned a non-contiguous output");
            return emit(run, i, source.dtype, source.shape.data(), source.shape.size(), source.data, source.nbytes);
        }
        const std::uint64_t start = ticks();
        copy_source(source, run.address(planned));
        run.copy_ticks += ticks() - start;
        ++run.copies_out;
        run.bytes_out += source.nbytes;
        return true;
    }

    nb::object callable_;
    nb::object slot_;
    nb::object spill_;
    nb::object generator_;  // of a run that has begun
    WorkerSlot* worker_slot_;
};

class PythonKernel final : public Kernel {
public:
    // `native`: the same on the CPU, for slots to which bind() gives None and kernels that ask for it.
    PythonKernel(nb::object kernel, nb::object spill, std::shared_ptr<Kernel> native = nullptr)
        : kernel_(std::move(kernel)), spill_(std::move(spill)), native_(std::move(native)),
          preemption_(preemption_of(nb::cast<std::string>(nb::getattr(kernel_, "preemption", nb::str("none"))))) {}

    ~PythonKernel() override {
        const nb::gil_scoped_acquire gil;
        kernel_.reset();
        spill_.reset();
    }

    [[nodiscard]] Preemption preemption() const noexcept override { return preemption_; }

    // `owners`: who holds the pages of each region.
    std::unique_ptr<Binding> bind(const Run& run, std::string& error) override {
        const nb::gil_scoped_acquire gil;
        try {
            auto* slot = new WorkerSlot;
            nb::object object = nb::cast(slot, nb::rv_policy::take_ownership);
            for (const TensorDesc& tensor : run.descriptor->inputs)
                slot->inputs.append((tensor.flags & tensor_absent) != 0 ? nb::none() : tensor_of(run, tensor, true));
            for (const TensorDesc& tensor : run.descriptor->outputs) {
                slot->outputs.append((tensor.flags & (tensor_absent | tensor_unplanned)) != 0 ? nb::none() : tensor_of(run, tensor, false));
                slot->wanted.append((tensor.flags & tensor_absent) == 0);
                const bool free = (tensor.flags & (tensor_absent | tensor_unplanned)) == tensor_unplanned;
                slot->rooms.append(free ? nb::object(nb::make_tuple(reinterpret_cast<std::uintptr_t>(run.address(tensor)), tensor.capacity)) : nb::none());
            }
            if (native_) {
                slot->native = native_->bind(run, error);
                if (!slot->native) return nullptr;
                slot->place = *run.place;
                slot->descriptor = *run.descriptor;
                slot->owners = *run.owners;
                slot->path = Path::cpu;
            }
            nb::object callable = kernel_.attr("bind")(object);
            slot->owners.clear();  // only what the kernel took of them stays
            if (callable.is_none() && !slot->native) {
                error = "bind() returned None, expected a callable";
                return nullptr;
            }
            return std::make_unique<PythonBinding>(std::move(callable), std::move(object), spill_, preemption_);
        } catch (nb::python_error& raised) {
            error = text_of(raised.value());
        } catch (const std::exception& raised) {
            error = raised.what();
        }
        return nullptr;
    }

private:
    static nb::object tensor_of(const Run& run, const TensorDesc& tensor, bool readonly) {
        const auto& owner = (*run.owners)[tensor.region];
        return make_tensor(tensor, owner->base(), owner, nullptr, readonly);
    }

    nb::object kernel_;
    nb::object spill_;
    std::shared_ptr<Kernel> native_;
    Preemption preemption_;
};

// A Python object for a std::function, which may go in any thread.
std::shared_ptr<nb::object> held(nb::object object) {
    return {new nb::object(std::move(object)), [](nb::object* one) {
                const nb::gil_scoped_acquire gil;
                delete one;
            }};
}

std::shared_ptr<Worker> make_worker(int pool_fd, std::uint32_t index, int lender_fd, int loans_fd, std::uint32_t its_worker) {
    std::optional<Worker::Lender> lender;
    if (lender_fd >= 0) lender = Worker::Lender{Pool::attach(lender_fd, false), Loans::attach(loans_fd), its_worker % max_workers};
    return std::make_shared<Worker>(Pool::attach(pool_fd), index, std::move(lender));
}

}  // namespace

void bind_worker(nb::module_& m) {
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
    nb::class_<WorkerRegion>(m, "WorkerRegion", nb::type_slots(region_slots), "A region of a client, as a buffer over all of it.")
        .def_ro("session", &WorkerRegion::session)
        .def_ro("id", &WorkerRegion::id, "-1: the session's own.");
    nb::class_<SealedPages>(m, "SealedPages", nb::type_slots(sealed_slots), "The whole pages of a sealed file, read-only, as a buffer.")
        .def(nb::init<int>(), nb::arg("fd"));
    nb::class_<WorkerSlot>(m, "WorkerSlot", "The tensors of one slot, as a kernel sees them.")
        .def_ro("inputs", &WorkerSlot::inputs, nb::sig("def inputs(self) -> list[Tensor | None]"))
        .def_ro("outputs", &WorkerSlot::outputs, nb::sig("def outputs(self) -> list[Tensor | None]"))
        .def_ro("rooms", &WorkerSlot::rooms, nb::sig("def rooms(self) -> list[tuple[int, int] | None]"),
                "Address and bytes of the memory for outputs whose shape only the run can tell; None for all others. Valid as long as the binding.")
        .def_ro("wanted", &WorkerSlot::wanted, nb::sig("def wanted(self) -> list[bool]"))
        .def("count_copy_in", [](WorkerSlot& s, std::uint64_t bytes) {
            if (s.run == nullptr) return;
            ++s.run->copies_in;
            s.run->bytes_in += bytes;
        }, nb::arg("nbytes"), "A kernel that had to copy an input says so here.")
        .def("count_copy_out", [](WorkerSlot& s, std::uint64_t bytes) {
            if (s.run == nullptr) return;
            ++s.run->copies_out;
            s.run->bytes_out += bytes;
        }, nb::arg("nbytes"))
        .def_prop_ro("session", [](const WorkerSlot& s) { return s.place.session; })
        .def_prop_ro("session_region", [](const WorkerSlot& s) { return region_object(s.place.region, s.place.session, -1); },
                     nb::sig("def session_region(self) -> WorkerRegion"))
        .def_prop_ro("line", [](const WorkerSlot& s) { return s.place.line; }, "Offset of the slot's device line in the session's region.")
        .def_prop_ro("stamp", [](const WorkerSlot& s) { return s.place.stamp; })
        .def_prop_ro("owner", [](const WorkerSlot& s) { return s.place.owner; })
        .def_prop_ro("current", [](const WorkerSlot& s) { return s.place.current; },
                     "New requests of this slot go to the version that is being bound; else its device line must not be served.")
        .def("input_place", [](const WorkerSlot& s, std::size_t index) { return tensor_place(s, s.descriptor.inputs, index); }, nb::arg("index"),
             nb::sig("def input_place(self, index: int) -> tuple[WorkerRegion, int, int] | None"), "Region, offset and bytes.")
        .def("output_place", [](const WorkerSlot& s, std::size_t index) { return tensor_place(s, s.descriptor.outputs, index); }, nb::arg("index"),
             nb::sig("def output_place(self, index: int) -> tuple[WorkerRegion, int, int] | None"))
        .def("run_native", &WorkerSlot::run_native, nb::call_guard<nb::gil_scoped_release>(), "The same on the CPU. False: it failed.")
        .def_prop_rw("path", [](const WorkerSlot& s) { return path_names[static_cast<std::size_t>(s.path)]; },
                     [](WorkerSlot& s, const std::string& name) { s.path = path_of(name); }, "Where the next run takes place: cpu, apk or pl.")
        .def_rw("fallback", &WorkerSlot::fallback, "Set when the slot goes to another path than was asked for: the next run counts it.")
        .def("at_end", [](WorkerSlot& s, nb::object callback) { s.at_end = std::move(callback); }, nb::arg("callback"),
             nb::sig("def at_end(self, callback: typing.Callable[[], None]) -> None"),
             "To be called once, before the memory of the tensors may go to anybody else.");
    nb::class_<Worker>(m, "Worker", "The loop that runs kernels.")
        .def(nb::new_(&make_worker), nb::arg("pool_fd"), nb::arg("index"), nb::arg("lender_fd") = -1, nb::arg("loans_fd") = -1, nb::arg("its_worker") = 0)
        .def("add_session", &Worker::add_session, nb::arg("fd"), nb::arg("index"), nb::arg("epoch"), nb::arg("slots"),
             nb::arg("granted"))
        .def("add_region", &Worker::add_region, nb::arg("session"), nb::arg("epoch"), nb::arg("id"), nb::arg("fd"))
        .def("drop_region", &Worker::drop_region, nb::arg("session"), nb::arg("epoch"), nb::arg("id"))
        .def("add_bpf_session", &Worker::add_bpf_session, nb::arg("fd"), nb::arg("index"), nb::arg("epoch"), nb::arg("slots"), nb::arg("nbytes"))
        .def("drop_session", &Worker::drop_session, nb::arg("session"), nb::arg("epoch"))
        .def("set_kernel", [](Worker& w, std::uint32_t line, std::uint32_t generation, nb::object kernel, nb::object spill) {
            w.set_kernel(line, generation, std::make_shared<PythonKernel>(std::move(kernel), std::move(spill)));
        }, nb::arg("line"), nb::arg("generation"), nb::arg("kernel"), nb::arg("spill"))
        .def("set_builtin", [](Worker& w, std::uint32_t line, std::uint32_t generation, const std::string& name) {
            std::shared_ptr<Kernel> kernel = make_builtin(name);
            if (!kernel) throw Error(Code::not_found, "builtin kernel '" + name + "': expected identity, sum, sleep or spin");
            const char* preemption = preemption_names[static_cast<std::size_t>(kernel->preemption())];
            w.set_kernel(line, generation, std::move(kernel));
            return preemption;
        }, nb::arg("line"), nb::arg("generation"), nb::arg("name"), "How its requests can be preempted: none, yields or anywhere.")
        .def("set_systems", [](Worker& w, std::uint32_t line, std::uint32_t generation, int fd) {
            auto kernel = std::make_shared<systems::SystemsKernel>(fd, isa());
            const std::string load(kernel->load().name);
            w.set_kernel(line, generation, std::move(kernel));
            return load;
        }, nb::arg("line"), nb::arg("generation"), nb::arg("fd"), "Name of the load that the sealed file holds. Raises InvalidArgument.")
        .def("set_device", [](Worker& w, std::uint32_t line, std::uint32_t generation, int fd, nb::object kernel, nb::object spill) {
            auto native = std::make_shared<systems::SystemsKernel>(fd, isa());
            w.set_kernel(line, generation, std::make_shared<PythonKernel>(std::move(kernel), std::move(spill), std::move(native)));
        }, nb::arg("line"), nb::arg("generation"), nb::arg("fd"), nb::arg("kernel"), nb::arg("spill"),
             "A systems load whose bindings may run on a device: kernel.bind(slot) returns a callable, or None for the CPU.")
        .def("drop_kernel", &Worker::drop_kernel, nb::arg("line"), nb::arg("generation"))
        .def("unbind", &Worker::unbind, nb::arg("line"), nb::arg("generation"))
        .def("on_dropped", [](Worker& w, nb::object callback) {
            w.on_dropped = [call = held(std::move(callback))](const char* what, std::uint32_t index, std::uint32_t epoch) {
                const nb::gil_scoped_acquire gil;
                try {
                    (*call)(what, index, epoch);
                } catch (nb::python_error& error) {
                    error.discard_as_unraisable("teal worker: on_dropped");
                }
            };
        }, nb::arg("callback"), nb::sig("def on_dropped(self, callback: typing.Callable[[str, int, int], None]) -> None"))
        .def("on_fetch", [](Worker& w, nb::object callback) {
            w.fetch_spill = [ask = held(std::move(callback))](std::uint32_t session, std::uint32_t epoch, std::uint32_t id, SpilledOutputs& out) {
                return fetch_spill(*ask, session, epoch, id, out);
            };
        }, nb::arg("callback"),
             nb::sig("def on_fetch(self, callback: typing.Callable[[int, int, int], tuple[int, typing.Sequence[tuple[int, str, typing.Sequence[int], int, int]]] | None]) -> None"),
             "Called with session, epoch and number for a spill that a request reads: (descriptor, layout), or None.")
        .def("run", &Worker::run, nb::call_guard<nb::gil_scoped_release>(), "Until quit().")
        .def("quit", &Worker::quit);
}

}  // namespace teal
