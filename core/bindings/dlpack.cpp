#include "bindings/dlpack.hpp"

#include <cstdint>
#include <vector>

namespace teal {
namespace {

// The DLPack ABI: field order and widths are the protocol.
struct DLDevice { std::int32_t type; std::int32_t id; };
struct DLType { std::uint8_t code; std::uint8_t bits; std::uint16_t lanes; };
struct DLTensor {
    void* data;
    DLDevice device;
    std::int32_t ndim;
    DLType dtype;
    std::int64_t* shape;
    std::int64_t* strides;
    std::uint64_t byte_offset;
};
static_assert(sizeof(DLTensor) == 48);
struct DLManaged {
    DLTensor tensor;
    void* context;
    void (*deleter)(DLManaged*);
};
struct DLManagedVersioned {
    std::uint32_t major;
    std::uint32_t minor;
    void* context;
    void (*deleter)(DLManagedVersioned*);
    std::uint64_t flags;  // bit 0: read-only
    DLTensor tensor;
};

template <class Managed>
struct Export {
    Managed managed{};
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;
    PyObject* owner = nullptr;
};

template <class Managed>
void finish(Managed* managed) {
    if (!Py_IsInitialized()) return;  // the interpreter is gone, and the memory with it
    const nb::gil_scoped_acquire gil;
    auto* exported = static_cast<Export<Managed>*>(managed->context);
    --nb::inst_ptr<Tensor>(exported->owner)->exports;
    Py_DECREF(exported->owner);
    delete exported;
}

template <class Managed>
nb::object capsule(Tensor& tensor, nb::handle self, const char* name, PyCapsule_Destructor destructor) {
    auto exported = std::make_unique<Export<Managed>>();
    exported->shape = tensor.shape;
    exported->strides = packed_strides(tensor.shape, 1);
    const DtypeInfo& info = dtype_info(tensor.dtype);
    DLTensor& dl = exported->managed.tensor;
    dl.data = tensor.data;
    dl.device = {1, 0};
    dl.ndim = static_cast<std::int32_t>(tensor.shape.size());
    dl.dtype = {static_cast<std::uint8_t>(info.dlpack_code), static_cast<std::uint8_t>(info.size * 8), 1};
    dl.shape = exported->shape.data();
    dl.strides = exported->strides.data();
    exported->managed.context = exported.get();
    exported->managed.deleter = finish<Managed>;
    exported->owner = self.ptr();
    PyObject* made = PyCapsule_New(&exported->managed, name, destructor);
    if (made == nullptr) nb::raise_python_error();
    Py_INCREF(self.ptr());
    ++tensor.exports;
    exported.release();
    return nb::steal(made);
}

// A capsule that nobody consumed still has its first name.
template <class Managed>
void drop(PyObject* object, const char* name) {
    if (PyCapsule_IsValid(object, name) == 0) return;
    auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(object, name));
    managed->deleter(managed);
}

}  // namespace

nb::object export_dlpack(Tensor& tensor, nb::handle self, bool versioned) {
    if (dtype_info(tensor.dtype).dlpack_code < 0) throw nb::buffer_error("BYTES tensors have no DLPack form");
    if (!versioned) {
        if (tensor.readonly) throw nb::buffer_error("tensor is read-only, which DLPack before 1.0 cannot say; use .numpy()");
        return capsule<DLManaged>(tensor, self, "dltensor", [](PyObject* o) { drop<DLManaged>(o, "dltensor"); });
    }
    nb::object made = capsule<DLManagedVersioned>(tensor, self, "dltensor_versioned", [](PyObject* o) { drop<DLManagedVersioned>(o, "dltensor_versioned"); });
    auto* managed = static_cast<DLManagedVersioned*>(PyCapsule_GetPointer(made.ptr(), "dltensor_versioned"));
    managed->major = 1;
    managed->minor = 0;
    managed->flags = tensor.readonly ? 1 : 0;
    return made;
}

}  // namespace teal
