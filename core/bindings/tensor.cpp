#include "bindings/tensor.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_set>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "bindings/dlpack.hpp"
#include "cpu/clock.hpp"

namespace teal {

std::atomic<std::uint32_t> fork_generation{0};

namespace {

constexpr std::uint64_t release_gil_bytes = 1 << 20;  // copies this large let other Python threads run

std::unordered_set<const Tensor*>& live_tensors() {  // under the GIL
    static auto* set = new std::unordered_set<const Tensor*>;
    return *set;
}

PyObject* tracer = nullptr;  // what says where a loan is taken, while loans are traced; under the GIL

void trace(Tensor& tensor) {
    tensor.taken_ns = monotonic_ns();
    nb::object place = nb::handle(tracer)();
    tensor.taken_by = nb::cast<std::string>(place);
}

nb::tuple shape_tuple(const std::vector<std::int64_t>& shape) {
    nb::list list;
    for (const std::int64_t extent : shape) list.append(extent);
    return nb::tuple(list);
}

Dtype dtype_from_format(const char* format, Py_ssize_t itemsize) {
    if (format == nullptr) return Dtype::u8;
    if (*format == '<' || *format == '=' || *format == '@') ++format;
    const auto pick = [&](Dtype a, Dtype b) { return itemsize == 4 ? a : b; };  // 'l' is 4 or 8 bytes wide
    if (std::strcmp(format, "Zf") == 0) return Dtype::c64;
    if (std::strcmp(format, "Zd") == 0) return Dtype::c128;
    if (format[0] == '\0' || format[1] != '\0') return Dtype::none;
    switch (*format) {
        case '?': return Dtype::boolean;
        case 'B': case 'c': return Dtype::u8;
        case 'b': return Dtype::i8;
        case 'H': return Dtype::u16;
        case 'h': return Dtype::i16;
        case 'I': return Dtype::u32;
        case 'i': return Dtype::i32;
        case 'L': return pick(Dtype::u32, Dtype::u64);
        case 'l': return pick(Dtype::i32, Dtype::i64);
        case 'Q': case 'N': return Dtype::u64;
        case 'q': case 'n': return Dtype::i64;
        case 'e': return Dtype::f16;
        case 'f': return Dtype::f32;
        case 'd': return Dtype::f64;
        default: return Dtype::none;
    }
}

// ---- buffer protocol -------------------------------------------------------------------------------------------

struct Shapes {  // what a Py_buffer points at while it is out
    std::vector<Py_ssize_t> shape;
    std::vector<Py_ssize_t> strides;
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
    Tensor* tensor = nb::inst_ptr<Tensor>(self);
    const bool raw = tensor->raw_export;
    tensor->raw_export = false;
    const DtypeInfo& info = dtype_info(tensor->dtype);
    view->obj = nullptr;
    if (tensor->released) {
        PyErr_SetString(PyExc_BufferError, "tensor is released");
        return -1;
    }
    if (!raw && info.format == nullptr) {
        PyErr_Format(PyExc_BufferError, "%s has no buffer format in Python; use .numpy() (ml_dtypes) or DLPack", info.name.data());
        return -1;
    }
    if ((flags & PyBUF_WRITABLE) != 0 && tensor->readonly) {
        PyErr_SetString(PyExc_BufferError, "tensor is read-only");
        return -1;
    }
    if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && tensor->shape.size() > 1) {
        PyErr_SetString(PyExc_BufferError, "tensors lie in C order, not in Fortran order");
        return -1;
    }
    auto* shapes = new Shapes;
    if (raw) {
        shapes->shape = {static_cast<Py_ssize_t>(tensor->nbytes)};
        shapes->strides = {1};
    } else {
        const auto strides = packed_strides(tensor->shape, info.size);
        shapes->shape.assign(tensor->shape.begin(), tensor->shape.end());
        shapes->strides.assign(strides.begin(), strides.end());
    }
    view->buf = tensor->data;
    view->len = static_cast<Py_ssize_t>(tensor->nbytes);
    view->readonly = tensor->readonly ? 1 : 0;
    view->itemsize = raw ? 1 : info.size;
    view->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>(raw ? "B" : info.format) : nullptr;
    view->ndim = static_cast<int>(shapes->shape.size());
    view->shape = (flags & PyBUF_ND) != 0 ? shapes->shape.data() : nullptr;
    view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? shapes->strides.data() : nullptr;
    view->suboffsets = nullptr;
    view->internal = shapes;
    view->obj = Py_NewRef(self);
    ++tensor->exports;
    return 0;
}

void release_buffer(PyObject* self, Py_buffer* view) {
    delete static_cast<Shapes*>(view->internal);
    --nb::inst_ptr<Tensor>(self)->exports;
}

PyType_Slot tensor_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
    {0, nullptr},
};

// ---- NumPy -----------------------------------------------------------------------------------------------------

nb::object dtype_object(Dtype dtype) {
    const std::string name(dtype_info(dtype).name);
    switch (dtype) {
        case Dtype::bf16: case Dtype::f8_e4m3: case Dtype::f8_e5m2:
            return nb::module_::import_("numpy").attr("dtype")(nb::module_::import_("ml_dtypes").attr(name.c_str()));
        case Dtype::bytes:
            return nb::module_::import_("numpy").attr("dtype")("O");
        default:
            return nb::module_::import_("numpy").attr("dtype")(name.c_str());
    }
}

nb::object raw_memoryview(nb::handle self) {
    nb::inst_ptr<Tensor>(self)->raw_export = true;
    PyObject* view = PyMemoryView_FromObject(self.ptr());
    if (view == nullptr) nb::raise_python_error();
    return nb::steal(view);
}

// BYTES: an object array of Python bytes (a copy: Python strings own their bytes).
nb::object bytes_array(const Tensor& tensor) {
    std::vector<std::uint64_t> offsets(tensor.count + 1);
    std::memcpy(offsets.data(), tensor.data, offsets.size() * sizeof(std::uint64_t));
    std::string error;
    if (!check_bytes_table(offsets.data(), tensor.count, tensor.nbytes, error)) throw Error(Code::invalid_argument, error);
    const char* text = reinterpret_cast<const char*>(tensor.data) + offsets.size() * sizeof(std::uint64_t);
    nb::list items;
    for (std::uint64_t i = 0; i < tensor.count; ++i) items.append(nb::bytes(text + offsets[i], offsets[i + 1] - offsets[i]));
    nb::object array = nb::module_::import_("numpy").attr("empty")(tensor.count, "O");
    if (tensor.count > 0) array[nb::slice(nb::none(), nb::none(), nb::none())] = items;
    return array.attr("reshape")(shape_tuple(tensor.shape));
}

nb::object to_numpy(nb::handle self) {
    const Tensor& tensor = *nb::inst_ptr<Tensor>(self);
    tensor.check_usable();
    if (tensor.dtype == Dtype::bytes) return bytes_array(tensor);
    nb::object numpy = nb::module_::import_("numpy");
    if (dtype_info(tensor.dtype).format != nullptr) return numpy.attr("asarray")(self);
    nb::object raw = numpy.attr("frombuffer")(raw_memoryview(self), "uint8");
    return raw.attr("view")(dtype_object(tensor.dtype)).attr("reshape")(shape_tuple(tensor.shape));
}

nb::object array_protocol(nb::handle self, nb::object dtype, nb::object copy) {
    nb::object array = to_numpy(self);
    if (!dtype.is_none() && !array.attr("dtype").equal(dtype)) {
        if (copy.is(nb::bool_(false))) throw nb::value_error("a conversion of dtype needs a copy");
        return array.attr("astype")(dtype);
    }
    return copy.is(nb::bool_(true)) ? array.attr("copy")() : array;
}

// ---- DLPack ----------------------------------------------------------------------------------------------------

nb::object to_dlpack(nb::handle self, nb::object max_version, nb::object device, nb::object copy) {
    Tensor& tensor = *nb::inst_ptr<Tensor>(self);
    tensor.check_usable();
    if (!device.is_none() && nb::cast<int>(device[0]) != 1) throw nb::buffer_error("teal tensors are in CPU memory (DLPack device 1)");
    if (copy.is(nb::bool_(true))) throw nb::buffer_error("copy=True is not offered; copy the result");
    const bool versioned = !max_version.is_none() && nb::cast<int>(max_version[0]) >= 1;
    return export_dlpack(tensor, self, versioned);
}

// ---- sources ---------------------------------------------------------------------------------------------------

bool packed(const Source& source) {
    std::int64_t expected = dtype_info(source.dtype).size;
    for (std::size_t i = source.shape.size(); i-- > 0;) {
        if (source.shape[i] == 0) return true;
        if (source.shape[i] > 1 && source.strides[i] != expected) return false;  // size-1 dimensions may have any stride
        expected *= source.shape[i];
    }
    return true;
}

void complete(Source& source) {
    if (source.shape.size() > max_rank) throw Error(Code::invalid_argument, "rank " + std::to_string(source.shape.size()) + ", expected at most 8");
    if (!tensor_bytes(source.dtype, source.shape.data(), source.shape.size(), source.count, source.nbytes))
        throw Error(Code::invalid_argument, "array of more than 2^63 bytes");
    source.contiguous = packed(source);
}

struct Buffer {
    Py_buffer view{};
    ~Buffer() {
        const nb::gil_scoped_acquire gil;
        PyBuffer_Release(&view);
    }
};

bool source_from_buffer(nb::handle object, Source& source) {
    auto buffer = std::make_unique<Buffer>();
    if (PyObject_GetBuffer(object.ptr(), &buffer->view, PyBUF_FULL_RO) != 0) {
        PyErr_Clear();
        buffer->view.obj = nullptr;
        return false;
    }
    const Py_buffer& view = buffer->view;
    source.dtype = dtype_from_format(view.format, view.itemsize);
    if (source.dtype == Dtype::none || view.itemsize != dtype_info(source.dtype).size || view.suboffsets != nullptr) return false;
    source.data = static_cast<const std::byte*>(view.buf);
    if (view.shape != nullptr) source.shape.assign(view.shape, view.shape + view.ndim);
    else if (view.ndim > 0) source.shape = {view.len / view.itemsize};
    if (view.strides != nullptr) source.strides.assign(view.strides, view.strides + view.ndim);
    else source.strides = packed_strides(source.shape, view.itemsize);  // ctypes leaves them out, though they were asked for
    source.hold = std::shared_ptr<void>(std::move(buffer));
    return true;
}

// NumPy arrays of ml_dtypes' types: NumPy has neither a buffer format nor a DLPack form for them, so their bits are read.
bool source_from_ml_dtypes(nb::handle object, Source& source) {
    if (!nb::hasattr(object, "dtype") || !nb::hasattr(object, "view")) return false;
    const nb::object type = object.attr("dtype");
    const Dtype dtype = dtype_from_name(nb::str(nb::handle(type)).c_str());
    if (dtype == Dtype::none || dtype == Dtype::bytes || dtype_info(dtype).format != nullptr) return false;
    const nb::object bits = object.attr("view")(dtype_info(dtype).size == 1 ? "uint8" : "uint16");
    if (!source_from_buffer(bits, source)) return false;
    source.dtype = dtype;
    return true;
}

// torch conjugates and negates lazily, by a bit that DLPack has no place for: the memory alone would be other numbers.
nb::object resolved(nb::handle object) {
    nb::object whole = nb::borrow(object);
    for (const auto& [bit, resolve] : {std::pair{"is_conj", "resolve_conj"}, std::pair{"is_neg", "resolve_neg"}}) {
        if (nb::hasattr(whole, bit) && nb::hasattr(whole, resolve) && nb::bool_(whole.attr(bit)()))
            whole = whole.attr(resolve)();
    }
    return whole;
}

bool source_from_dlpack(nb::handle object, Source& source) {
    if (!nb::hasattr(object, "__dlpack__")) return false;
    const nb::object whole = resolved(object);
    nb::ndarray<nb::ro> array;
    if (!nb::try_cast(whole, array) || array.device_type() != nb::device::cpu::value) return false;
    const auto type = array.dtype();
    if (type.lanes != 1) return false;
    for (std::uint8_t i = 1; i < dtype_count; ++i)
        if (dtype_table[i].dlpack_code == static_cast<signed char>(type.code) && dtype_table[i].size * 8 == type.bits) source.dtype = static_cast<Dtype>(i);
    if (source.dtype == Dtype::none) return false;
    source.data = static_cast<const std::byte*>(array.data());
    for (std::size_t i = 0; i < array.ndim(); ++i) {
        source.shape.push_back(static_cast<std::int64_t>(array.shape(i)));
        source.strides.push_back(array.stride(i) * dtype_info(source.dtype).size);
    }
    source.hold = std::shared_ptr<void>(new nb::ndarray<nb::ro>(array), [](void* raw) {
        const nb::gil_scoped_acquire gil;
        delete static_cast<nb::ndarray<nb::ro>*>(raw);
    });
    return true;
}

template <std::size_t size>
void copy_row(const std::byte* from, std::int64_t stride, std::int64_t count, std::byte* to) {
    for (std::int64_t i = 0; i < count; ++i) std::memcpy(to + i * size, from + i * stride, size);  // one move each
}

void copy_row(std::size_t size, const std::byte* from, std::int64_t stride, std::int64_t count, std::byte* to) {
    switch (size) {
        case 1: return copy_row<1>(from, stride, count, to);
        case 2: return copy_row<2>(from, stride, count, to);
        case 4: return copy_row<4>(from, stride, count, to);
        case 8: return copy_row<8>(from, stride, count, to);
        default: return copy_row<16>(from, stride, count, to);
    }
}

// Walks the outer dimensions; those from `inner` on lie packed and are `run` bytes in one piece.
void copy_strided(const Source& source, std::size_t axis, std::size_t inner, std::size_t run, const std::byte* from, std::byte*& to) {
    if (axis == inner) {
        std::memcpy(to, from, run);
        to += run;
    } else if (axis + 1 == source.shape.size()) {
        copy_row(run, from, source.strides[axis], source.shape[axis], to);
        to += run * static_cast<std::size_t>(source.shape[axis]);
    } else {
        for (std::int64_t i = 0; i < source.shape[axis]; ++i) copy_strided(source, axis + 1, inner, run, from + i * source.strides[axis], to);
    }
}

void copy_strided(const Source& source, std::byte* to) {
    std::size_t inner = source.shape.size();
    std::int64_t run = dtype_info(source.dtype).size;
    while (inner > 0 && (source.shape[inner - 1] == 1 || source.strides[inner - 1] == run)) run *= source.shape[--inner];
    copy_strided(source, 0, inner, static_cast<std::size_t>(run), source.data, to);
}

void fork_child() { fork_generation.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

Tensor::Tensor() : forks(fork_generation.load(std::memory_order_relaxed)) { live_tensors().insert(this); }
Tensor::~Tensor() {
    live_tensors().erase(this);
    // A child's copy of the loan must not tell the parent's allocator anything: it is only forgotten.
    if (forks != fork_generation.load(std::memory_order_relaxed)) new std::shared_ptr<void>(std::move(loan));
}

std::vector<std::int64_t> packed_strides(const std::vector<std::int64_t>& shape, std::int64_t size) {
    std::vector<std::int64_t> strides(shape.size());
    auto stride = static_cast<std::uint64_t>(size);  // of an empty tensor with huge extents it may wrap round
    for (std::size_t i = shape.size(); i-- > 0;) {
        strides[i] = static_cast<std::int64_t>(stride);
        stride *= static_cast<std::uint64_t>(std::max<std::int64_t>(shape[i], 1));
    }
    return strides;
}

void check_not_forked(std::uint32_t made_under) {
    if (made_under != fork_generation.load(std::memory_order_relaxed))
        throw Error(Code::closed, "made before fork(): reopen after fork with teal.connect()");
}

void Tensor::check_usable() const {
    if (released) throw Error(Code::closed, "tensor is released");
}

nb::object make_tensor(const TensorDesc& desc, std::byte* base, std::shared_ptr<Region> memory, std::shared_ptr<void> loan, bool readonly) {
    auto* tensor = new Tensor;
    tensor->loan = std::move(loan);
    tensor->memory = std::move(memory);
    tensor->data = base + desc.offset;
    tensor->dtype = static_cast<Dtype>(desc.dtype);
    tensor->readonly = readonly;
    tensor->shape.assign(desc.shape, desc.shape + desc.rank);
    tensor->nbytes = desc.nbytes;
    tensor->capacity = desc.capacity;
    std::uint64_t bytes = 0;
    if (!tensor_bytes(tensor->dtype, tensor->shape.data(), tensor->shape.size(), tensor->count, bytes)) tensor->count = 0;
    nb::object object = nb::cast(tensor, nb::rv_policy::take_ownership);
    if (tracer != nullptr) trace(*tensor);
    return object;
}

nb::object make_tensor(const TensorDesc& desc, Hold hold, const ClientSession& session) {
    std::byte* base = hold.memory->base();
    nb::object object = make_tensor(desc, base, std::move(hold.memory), std::move(hold.loan), false);
    Tensor& tensor = *nb::inst_ptr<Tensor>(object);
    tensor.session = &session;
    tensor.lender = hold.lender;
    tensor.view = std::move(hold.view);
    tensor.region = desc.region;
    tensor.offset = desc.offset;
    return object;
}

const Tensor* live_tensor_at(const void* session, const std::byte* data, std::uint64_t nbytes) {
    for (const Tensor* tensor : live_tensors()) {
        if (tensor->session != session || tensor->released || data < tensor->data) continue;
        if (within(static_cast<std::uint64_t>(data - tensor->data), nbytes, tensor->nbytes)) return tensor;
    }
    return nullptr;
}

Source source_of(nb::handle object) {
    Source source;
    if (nb::isinstance<Tensor>(object)) {
        const Tensor& tensor = *nb::inst_ptr<Tensor>(object);
        tensor.check_usable();
        source.data = tensor.data;
        source.dtype = tensor.dtype;
        source.shape = tensor.shape;
        source.count = tensor.count;
        source.nbytes = tensor.nbytes;
        source.strides = packed_strides(source.shape, dtype_info(source.dtype).size);
        return source;
    }
    if (!source_from_buffer(object, source) && !source_from_ml_dtypes(object, source) && !source_from_dlpack(object, source))
        throw nb::type_error("not an array in CPU memory (NumPy array, torch CPU tensor, buffer or DLPack producer of a known dtype)");
    complete(source);
    return source;
}

void copy_source(const Source& source, std::byte* to) {
    if (source.nbytes == 0) return;
    const auto work = [&] {
        if (source.contiguous) std::memcpy(to, source.data, source.nbytes);
        else copy_strided(source, to);
    };
    if (source.nbytes < release_gil_bytes) {
        work();
    } else {
        const nb::gil_scoped_release release;
        work();
    }
}

void bind_tensor(nb::module_& m) {
    static std::once_flag once;
    std::call_once(once, [] { ::pthread_atfork(nullptr, nullptr, fork_child); });
    nb::class_<Tensor>(m, "Tensor", nb::type_slots(tensor_slots), nb::is_weak_referenceable(),
                       "A dtype, a shape and a place in shared memory. NumPy, torch and DLPack consumers see it without a copy;\n"
                       "the memory stays on loan until the Tensor and every view of it are gone. Source: docs/ownership.md.")
        .def_prop_ro("shape", [](const Tensor& t) { return shape_tuple(t.shape); }, nb::sig("def shape(self) -> tuple[int, ...]"), "Extents, outermost first.")
        .def_prop_ro("dtype", [](const Tensor& t) { return std::string(dtype_info(t.dtype).name); }, "Name of the element type: 'float32', 'bfloat16', 'BYTES', …")
        .def_prop_ro("nbytes", [](const Tensor& t) { return t.nbytes; }, "Bytes in use.")
        .def_prop_ro("size", [](const Tensor& t) { return t.count; }, "Number of elements.")
        .def_prop_ro("ndim", [](const Tensor& t) { return t.shape.size(); }, "Number of dimensions.")
        .def_prop_ro("readonly", [](const Tensor& t) { return t.readonly; }, "True when no view of it can be written through.")
        .def_prop_ro("released", [](const Tensor& t) { return t.released; }, "True after release().")
        .def_prop_ro("address", [](const Tensor& t) { t.check_usable(); return reinterpret_cast<std::uint64_t>(t.data); }, "Address of the first byte in this process.")
        .def_prop_ro("exports", [](const Tensor& t) { return t.exports; }, "Buffers and capsules of it that are still out.")
        .def("numpy", [](nb::handle self) { return to_numpy(self); }, nb::sig("def numpy(self) -> NDArray[typing.Any]"),
             "A NumPy view, no copy (BYTES: a copy, an object array of bytes). Raises Closed after release().")
        .def("__array__", &array_protocol, nb::arg("dtype") = nb::none(), nb::kw_only(), nb::arg("copy") = nb::none(),
             nb::sig("def __array__(self, dtype: typing.Any = None, *, copy: bool | None = None) -> NDArray[typing.Any]"))
        .def("__dlpack__",
             [](nb::handle self, nb::object, nb::object max_version, nb::object device, nb::object copy) { return to_dlpack(self, max_version, device, copy); },
             nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(), nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none(),
             nb::sig("def __dlpack__(self, *, stream: typing.Any = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, "
                     "copy: bool | None = None) -> typing.Any"),
             "DLPack capsule, no copy. Raises BufferError for BYTES, and for a read-only tensor when the consumer speaks DLPack < 1.0.")
        .def("__dlpack_device__", [](const Tensor&) { return nb::make_tuple(1, 0); }, nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
        .def("release",
             [](Tensor& t) {
                 if (t.exports > 0) throw Error(Code::busy, std::to_string(t.exports) + " views of this tensor are still in use; drop them first");
                 check_not_forked(t.forks);
                 t.released = true;
                 t.session = nullptr;
                 t.lender = nullptr;
                 t.loan.reset();
                 t.view.reset();
                 t.slot.reset();
                 t.memory.reset();
                 t.data = nullptr;
             },
             "Gives the loan back now instead of when the Tensor is collected. Raises Busy while views of it exist.")
        .def("__len__", [](const Tensor& t) {
            if (t.shape.empty()) throw nb::type_error("len() of a scalar tensor");
            return t.shape[0];
        })
        .def("__getitem__", [](nb::handle self, nb::object key) { return to_numpy(self)[key].operator nb::object(); },
             nb::sig("def __getitem__(self, key: typing.Any, /) -> typing.Any"), "Indexes the NumPy view.")
        .def("__setitem__", [](nb::handle self, nb::object key, nb::object value) { to_numpy(self)[key] = value; },
             nb::sig("def __setitem__(self, key: typing.Any, value: typing.Any, /) -> None"), "Assigns through the NumPy view.")
        .def("__reduce__",
             [](const Tensor&) { throw nb::type_error("a teal.Tensor is memory on loan to this process; give others .numpy(), which is copied on its way"); },
             nb::sig("def __reduce__(self) -> typing.NoReturn"))
        .def("__repr__", [](const Tensor& t) {
            std::string text = "teal.Tensor(shape=(";
            for (std::size_t i = 0; i < t.shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(t.shape[i]);
            text += std::string("), dtype=") + std::string(dtype_info(t.dtype).name);
            return text + (t.readonly ? ", readonly" : "") + (t.released ? ", released)" : ")");
        });
    m.def("live_tensors", [] {
        nb::list list;
        for (const Tensor* tensor : live_tensors())
            if (!tensor->released) list.append(nb::make_tuple(nb::find(tensor), tensor->taken_by, tensor->taken_ns));
        return list;
    }, nb::sig("def live_tensors() -> list[tuple[Tensor, str, int]]"), "Every tensor that holds a loan now; who took it and when, if loans are traced.");
    m.def("trace_loans", [](nb::object where) {
        Py_XDECREF(tracer);
        tracer = where.is_none() ? nullptr : where.release().ptr();
    }, nb::arg("where").none(), nb::sig("def trace_loans(where: typing.Callable[[], str] | None) -> None"),
          "From now on `where()` is asked for each new tensor who takes it. None: no longer.");
    m.def("describe", [](nb::handle object) {
        const Source source = source_of(object);
        return nb::make_tuple(std::string(dtype_info(source.dtype).name), shape_tuple(source.shape), source.contiguous);
    }, nb::sig("def describe(array: typing.Any, /) -> tuple[str, tuple[int, ...], bool]"), "dtype name, shape, contiguous: of an array in CPU memory.");
    m.def("dtype_size", [](const std::string& name) {
        const Dtype dtype = dtype_from_name(name);
        if (dtype == Dtype::none) throw Error(Code::invalid_argument, "dtype '" + name + "' is not one of Teal's");
        return dtype_info(dtype).size;
    }, "Bytes an element.");
    m.def("dtype_names", [] {
        nb::list names;
        for (std::uint8_t i = 1; i < dtype_count; ++i) names.append(std::string(dtype_table[i].name));
        return names;
    }, nb::sig("def dtype_names() -> list[str]"));
}

}  // namespace teal
