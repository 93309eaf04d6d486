// Are the tensors of a list still what they were? Asked before every call of a graph that PyTorch compiled.
//
// Theory of operation: nothing here knows torch. A tensor is an object with `_version` and `data_ptr()`; what is remembered of it is
// its identity, its version and its address. Whoever makes a Watch sees to it that the objects it remembers are not freed unseen.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "memory/private_pages.hpp"

namespace teal {
namespace {

struct Watched {
    Py_ssize_t position;     // in the list
    std::uint64_t identity;  // id() of the object
    std::int64_t version;    // negative: it has none
    std::uint64_t address;
};

struct Watch {
    std::vector<Watched> tensors;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;  // of private mappings that nobody may have written to
};

PyObject* interned(const char* name) {
    PyObject* made = PyUnicode_InternFromString(name);
    if (made == nullptr) nb::raise_python_error();
    return made;
}

// A number that an attribute or a method without arguments gives.
bool says(PyObject* given, std::uint64_t expected) {
    const nb::object value = nb::steal(given);
    if (!value.is_valid()) nb::raise_python_error();
    const unsigned long long number = PyLong_AsUnsignedLongLong(value.ptr());
    if (number == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr) nb::raise_python_error();
    return number == expected;
}

bool unchanged(const Watch& watch, nb::list arguments) {
    static PyObject* const version = interned("_version");
    static PyObject* const data_ptr = interned("data_ptr");
    const Py_ssize_t count = PyList_GET_SIZE(arguments.ptr());
    for (const Watched& one : watch.tensors) {
        if (one.position < 0 || one.position >= count) return false;
        PyObject* tensor = PyList_GET_ITEM(arguments.ptr(), one.position);
        if (reinterpret_cast<std::uint64_t>(tensor) != one.identity) return false;
        if (one.version >= 0 && !says(PyObject_GetAttr(tensor, version), static_cast<std::uint64_t>(one.version))) return false;
        if (!says(PyObject_CallMethodNoArgs(tensor, data_ptr), one.address)) return false;
    }
    for (const auto& [start, end] : watch.ranges)
        if (written_privately(start, end) == Written::yes) return false;
    return true;
}

Watch made(nb::list tensors, nb::list ranges) {
    Watch watch;
    for (nb::handle item : tensors) {
        const auto one = nb::cast<nb::tuple>(item);
        watch.tensors.push_back({nb::cast<Py_ssize_t>(one[0]), nb::cast<std::uint64_t>(one[1]), nb::cast<std::int64_t>(one[2]),
                                 nb::cast<std::uint64_t>(one[3])});
    }
    for (nb::handle item : ranges) {
        const auto range = nb::cast<nb::tuple>(item);
        watch.ranges.emplace_back(nb::cast<std::uint64_t>(range[0]), nb::cast<std::uint64_t>(range[1]));
    }
    return watch;
}

}  // namespace

void bind_watch(nb::module_& m) {
    nb::class_<Watch>(m, "Watch", "What is remembered of tensors in a list: identity, version and address, and ranges of private mappings.")
        .def("__init__", [](Watch* self, nb::list tensors, nb::list ranges) { new (self) Watch(made(std::move(tensors), std::move(ranges))); },
             nb::arg("tensors"), nb::arg("ranges"),
             nb::sig("def __init__(self, tensors: list[tuple[int, int, int, int]], ranges: list[tuple[int, int]]) -> None"),
             "tensors: (position, id, version or -1, address). ranges: (start, end).")
        .def("unchanged", &unchanged, nb::sig("def unchanged(self, arguments: list[typing.Any], /) -> bool"),
             "Are they all in the list still, and as they were?");
}

}  // namespace teal
