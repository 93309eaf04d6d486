#include "bindings/place.hpp"

#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace teal {
namespace {

constexpr int longest_chain = 16;  // NumPy shortens chains of views itself

bool is_ndarray(nb::handle object) {
    static PyObject* type = nb::object(nb::module_::import_("numpy").attr("ndarray")).release().ptr();
    return PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(type)) != 0;
}

// The Tensor that an array or memoryview is a view of; null: of something else.
const Tensor* viewed(nb::handle object) {
    nb::object at = nb::borrow(object);
    for (int step = 0; step < longest_chain; ++step) {
        if (nb::isinstance<Tensor>(at)) return nb::inst_ptr<Tensor>(at);  // whoever views it keeps it
        if (PyMemoryView_Check(at.ptr())) {
            PyObject* exporter = PyMemoryView_GET_BUFFER(at.ptr())->obj;
            if (exporter == nullptr) return nullptr;
            at = nb::borrow(exporter);
        } else if (is_ndarray(at)) {
            at = at.attr("base");
        } else {
            return nullptr;
        }
    }
    return nullptr;
}

bool is_readonly(nb::handle view) {
    if (PyMemoryView_Check(view.ptr())) return PyMemoryView_GET_BUFFER(view.ptr())->readonly != 0;
    return !nb::cast<bool>(view.attr("flags").attr("writeable"));
}

nb::object made(const Tensor& tensor, Dtype dtype, const std::vector<std::int64_t>& shape, std::uint64_t nbytes, std::uint64_t at, bool readonly) {
    auto* place = new GivenPlace;
    nb::object object = nb::cast(place, nb::rv_policy::take_ownership);
    place->hold = {tensor.memory, tensor.loan, tensor.view, tensor.lender};
    place->dtype = nb::str(dtype_info(dtype).name.data(), dtype_info(dtype).name.size());
    nb::object extents = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
    for (std::size_t i = 0; i < shape.size(); ++i)
        PyTuple_SET_ITEM(extents.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(shape[i]));
    place->shape = std::move(extents);
    place->nbytes = nbytes;
    place->region = tensor.region;
    place->offset = tensor.offset + at;
    place->readonly = readonly;
    std::uint64_t key[4 + max_rank] = {place->region, place->offset, nbytes, static_cast<std::uint64_t>(dtype)};
    for (std::size_t i = 0; i < shape.size(); ++i) key[4 + i] = static_cast<std::uint64_t>(shape[i]);
    place->key = nb::bytes(reinterpret_cast<const char*>(key), (4 + shape.size()) * sizeof key[0]);
    return object;
}

}  // namespace

nb::object place_of(const ClientSession& session, nb::handle array) {
    if (nb::isinstance<Tensor>(array)) {
        const Tensor& tensor = *nb::inst_ptr<Tensor>(array);
        tensor.check_usable();
        if (tensor.session != &session) return nb::none();
        return made(tensor, tensor.dtype, tensor.shape, tensor.nbytes, 0, tensor.readonly);
    }
    const Tensor* tensor = viewed(array);
    if (tensor == nullptr || tensor->session != &session || tensor->dtype == Dtype::bytes) return nb::none();
    Source source;
    try {
        source = source_of(array);
    } catch (const nb::builtin_exception&) {  // no dtype of ours: the caller hears of it where it is copied
        return nb::none();
    } catch (const Error&) {  // too many dimensions: the same
        return nb::none();
    }
    if (!source.contiguous || source.data < tensor->data) return nb::none();
    const auto at = static_cast<std::uint64_t>(source.data - tensor->data);
    if (!within(at, source.nbytes, tensor->nbytes) || (tensor->offset + at) % dtype_info(source.dtype).size != 0) return nb::none();
    return made(*tensor, source.dtype, source.shape, source.nbytes, at, tensor->readonly || is_readonly(array));
}

nb::object place_to_come(const std::shared_ptr<ClientSlot>& slot, const std::shared_ptr<ClientSlot>& elder, std::size_t index, std::uint32_t awaited) {
    const TensorDesc& output = slot->outputs.at(index);
    struct Both {
        std::shared_ptr<void> memory;
        std::shared_ptr<void> view;
    };
    auto* place = new GivenPlace;
    nb::object object = nb::cast(place, nb::rv_policy::take_ownership);
    if (const Hold* hold = slot->hold_of(index, true)) {
        place->hold = *hold;
        place->hold.view = std::make_shared<Both>(Both{hold->view, slot->views});
    } else {
        // An output in place lies where the inputs are: with the elder of a sibling.
        const std::shared_ptr<ClientSlot>& lender = slot->in_place[index] >= 0 && elder ? elder : slot;
        place->hold = {slot->memory, lender, slot->views, lender.get()};
    }
    place->hold.chained = true;
    const bool planned = (output.flags & tensor_unplanned) == 0;
    place->dtype = nb::str(dtype_info(static_cast<Dtype>(output.dtype)).name.data(), dtype_info(static_cast<Dtype>(output.dtype)).name.size());
    if (planned) {
        nb::object extents = nb::steal(PyTuple_New(output.rank));
        for (std::size_t i = 0; i < output.rank; ++i) PyTuple_SET_ITEM(extents.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(output.shape[i]));
        place->shape = std::move(extents);
    } else {
        place->shape = nb::none();
    }
    place->nbytes = output.capacity;
    place->region = output.region;
    place->offset = output.offset;
    place->readonly = true;
    place->link = nb::make_tuple(awaited, index, slot->region, slot->offset);
    std::uint64_t key[9 + max_rank] = {place->region, place->offset, output.capacity, output.dtype, planned ? output.rank : max_rank + 1u,
                                       awaited, index, slot->region, slot->offset};
    for (std::size_t i = 0; planned && i < output.rank; ++i) key[9 + i] = static_cast<std::uint64_t>(output.shape[i]);
    place->key = nb::bytes(reinterpret_cast<const char*>(key), sizeof key);
    return object;
}

std::vector<Hold> holds_of(const nb::list& places) {
    std::vector<Hold> holds;
    holds.reserve(nb::len(places));
    for (nb::handle place : places) {
        if (place.is_none()) holds.emplace_back();
        else holds.push_back(nb::cast<GivenPlace&>(place).hold);
    }
    return holds;
}

void bind_place(nb::module_& m) {
    nb::class_<GivenPlace>(m, "Place", "Memory of a session that a call may use where it is, kept while this is held.")
        .def_ro("dtype", &GivenPlace::dtype, nb::sig("def dtype(self) -> str"))
        .def_ro("shape", &GivenPlace::shape, nb::sig("def shape(self) -> tuple[int, ...] | None"), "None: an output to come, whose shape only its run can tell.")
        .def_ro("key", &GivenPlace::key, nb::sig("def key(self) -> bytes"), "Equal for equal places, bytes, dtypes and shapes.")
        .def_ro("nbytes", &GivenPlace::nbytes)
        .def_ro("region", &GivenPlace::region)
        .def_ro("offset", &GivenPlace::offset)
        .def_ro("readonly", &GivenPlace::readonly)
        .def_prop_ro("link", [](const GivenPlace& p) { return p.link.is_valid() ? p.link : nb::none(); }, nb::sig("def link(self) -> tuple[int, int, int, int] | None"),
                     "Of an output to come: which of those that the request waits for, output, region and offset of its descriptor block.");
}

}  // namespace teal
