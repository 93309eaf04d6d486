#include "bindings/spill.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace teal {

TensorDesc spilled_tensor(const nb::tuple& item, const Region& region) {
    TensorDesc tensor{};
    const auto shape = nb::cast<std::vector<std::int64_t>>(item[1]);
    tensor.dtype = static_cast<std::uint8_t>(dtype_from_name(nb::cast<std::string>(item[0])));
    tensor.offset = nb::cast<std::uint64_t>(item[2]);
    tensor.nbytes = nb::cast<std::uint64_t>(item[3]);
    tensor.capacity = tensor.nbytes;
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    if (tensor.dtype == 0 || shape.size() > max_rank || !tensor_bytes(static_cast<Dtype>(tensor.dtype), shape.data(), shape.size(), count, bytes) ||
        bytes > tensor.nbytes || tensor.offset > region.size() || tensor.nbytes > region.size() - tensor.offset)
        throw Error(Code::internal_error, "spilled output: its layout does not fit its region");
    tensor.rank = static_cast<std::uint8_t>(shape.size());
    std::copy(shape.begin(), shape.end(), tensor.shape);
    return tensor;
}

bool fetch_spill(const nb::object& ask, std::uint32_t session, std::uint32_t epoch, std::uint32_t id, SpilledOutputs& out) noexcept {
    const nb::gil_scoped_acquire gil;
    try {
        const nb::object answer = ask(session, epoch, id);
        if (answer.is_none()) return false;
        out.region = Region::adopt(nb::cast<int>(answer[0]), RegionKind::spill, true);
        out.region->close_fd();
        for (nb::handle item : nb::cast<nb::sequence>(answer[1]))
            out.tensors.emplace_back(nb::cast<std::uint32_t>(item[0]), spilled_tensor(nb::make_tuple(item[1], item[2], item[3], item[4]), *out.region));
        return true;
    } catch (nb::python_error& error) {
        error.discard_as_unraisable("teal worker: a spilled output");
    } catch (const std::exception&) {
        // no address space for it, or its layout makes no sense: the request that needs it fails
    }
    out = {};
    return false;
}

}  // namespace teal
