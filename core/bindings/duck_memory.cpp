// Memory that a client shares with ducks on its machine, as tensors.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "bindings/tensor.hpp"
#include "memory/dtype.hpp"

namespace teal {
namespace {

// A whole memfd, mapped for writing; says when the last tensor in it is gone.
struct Segment {
    std::byte* base = nullptr;
    std::uint64_t bytes = 0;
    nb::object on_gone;

    Segment(int fd, nb::object callback) : on_gone(std::move(callback)) {
        struct stat status {};
        if (::fstat(fd, &status) != 0 || status.st_size <= 0) throw Error(Code::invalid_argument, system_message("looking at shared memory", errno));
        bytes = static_cast<std::uint64_t>(status.st_size);
        void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED) throw Error(Code::quota_exceeded, system_message("mapping shared memory", errno));
        base = static_cast<std::byte*>(at);
    }
    ~Segment() {
        if (base != nullptr) ::munmap(base, bytes);
        if (!nb::is_alive()) {
            on_gone.release();
            return;
        }
        const nb::gil_scoped_acquire gil;
        try {
            on_gone();
        } catch (nb::python_error& error) {
            error.discard_as_unraisable("teal shared memory");
        }
        on_gone.reset();
    }
    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;
};

TensorDesc described(const std::string& dtype, const std::vector<std::int64_t>& shape) {
    TensorDesc desc{};
    desc.dtype = static_cast<std::uint8_t>(dtype_from_name(dtype));
    if (desc.dtype == 0 || static_cast<Dtype>(desc.dtype) == Dtype::bytes) throw Error(Code::invalid_argument, "dtype '" + dtype + "' cannot be allocated");
    if (shape.size() > max_rank) throw Error(Code::invalid_argument, "rank " + std::to_string(shape.size()) + ", expected at most 8");
    std::uint64_t count = 0;
    if (!tensor_bytes(static_cast<Dtype>(desc.dtype), shape.data(), shape.size(), count, desc.nbytes))
        throw Error(Code::invalid_argument, "shape: a negative extent, or more than 2^63 bytes");
    desc.rank = static_cast<std::uint8_t>(shape.size());
    std::copy(shape.begin(), shape.end(), desc.shape);
    desc.capacity = desc.nbytes;
    return desc;
}

}  // namespace

void bind_duck_memory(nb::module_& m) {
    m.def("tensor_bytes", [](const std::string& dtype, const std::vector<std::int64_t>& shape) { return described(dtype, shape).nbytes; },
          nb::arg("dtype"), nb::arg("shape"), nb::sig("def tensor_bytes(dtype: str, shape: typing.Sequence[int]) -> int"), "Bytes of a packed tensor.");
    m.def("map_tensor", [](int fd, const std::string& dtype, const std::vector<std::int64_t>& shape, nb::object on_gone) {
        const TensorDesc desc = described(dtype, shape);
        auto segment = std::make_shared<Segment>(fd, std::move(on_gone));
        if (desc.nbytes > segment->bytes) throw Error(Code::invalid_argument, "a tensor of " + std::to_string(desc.nbytes) + " bytes in a file of " + std::to_string(segment->bytes));
        const auto address = reinterpret_cast<std::uint64_t>(segment->base);
        std::byte* base = segment->base;
        return nb::make_tuple(make_tensor(desc, base, nullptr, std::move(segment), false), address);
    }, nb::arg("fd"), nb::arg("dtype"), nb::arg("shape"), nb::arg("on_gone"),
       nb::sig("def map_tensor(fd: int, dtype: str, shape: typing.Sequence[int], on_gone: typing.Callable[[], typing.Any]) -> tuple[Tensor, int]"),
       "(tensor at the start of a memfd, its address); on_gone is called when nobody sees the memory any more.");
    m.def("memory_of", [](nb::handle array) -> nb::object {
        Py_buffer view{};
        if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_C_CONTIGUOUS) != 0) {
            PyErr_Clear();
            return nb::none();
        }
        nb::object found = nb::make_tuple(reinterpret_cast<std::uint64_t>(view.buf), static_cast<std::uint64_t>(view.len));
        PyBuffer_Release(&view);
        return found;
    }, nb::arg("array"), nb::sig("def memory_of(array: typing.Any) -> tuple[int, int] | None"), "(address, bytes) of packed elements in CPU memory, or None.");
}

}  // namespace teal
