// teal._core: the seam between Python and the core. Internal: users import teal.
#include <nanobind/nanobind.h>

#include <string>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "memory/region.hpp"

namespace nb = nanobind;

namespace {

// Names of the classes in teal.errors, by Code.
constexpr const char* error_names[] = {
    "InvalidArgument", "NotFound", "QuotaExceeded", "WouldBlock", "DeadlineExceeded", "Cancelled",
    "PeerDied", "Closed", "Busy", "KernelFailed", "VersionMismatch", "InternalError",
};

void translate(const std::exception_ptr& pointer, void*) {
    try {
        std::rethrow_exception(pointer);
    } catch (const teal::Error& error) {
        const nb::object type = nb::module_::import_("teal.errors").attr("from_core");
        const nb::object made = type(error_names[static_cast<std::size_t>(error.code())], error.what());
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
    }
}

}  // namespace

NB_MODULE(_core, m) {
    // Whoever empties sys.modules and imports again (module reloaders do) gets the same types: there is one core a process.
    static PyObject* first = nullptr;
    if (first != nullptr) {
        if (PyDict_Merge(PyModule_GetDict(m.ptr()), PyModule_GetDict(first), 0) != 0) throw nb::python_error();
        return;
    }
    nb::set_leak_warnings(false);  // teal.memory.leaks() is the report that names loans; this one names types
    nb::register_exception_translator(translate);
    m.attr("ABI_VERSION") = teal::abi_version;
    teal::bind_cpu(m);
    teal::bind_confine(m);
    teal::bind_tensor(m);
    teal::bind_memory(m);
    teal::bind_watch(m);
    teal::bind_client(m);
    teal::bind_host(m);
    teal::bind_worker(m);
    teal::bind_bpf(m);
    teal::bind_trace(m);
    teal::bind_link(m);
    teal::bind_wave(m);
    teal::bind_measure(m);
    teal::bind_device(m);
    teal::bind_systems(m);
    teal::bind_policy(m);
    teal::bind_sim(m);

    teal::bind_elf(m);
    teal::bind_duck_line(m);
    teal::bind_duck_memory(m);
    teal::bind_duck_yard(m);
    teal::bind_kvm(m);
    teal::bind_duck_bench(m);
    teal::bind_box_bench(m);
    teal::bind_duck_net(m);
    teal::bind_seat(m);
    teal::bind_seat_numbers(m);
    first = m.inc_ref().ptr();
}
