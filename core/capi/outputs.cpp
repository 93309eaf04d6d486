#include "capi/outputs.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>

#include "capi/failure.hpp"
#include "capi/memory.hpp"
#include "capi/strings.hpp"

namespace teal::capi {
namespace {

std::string path_of(std::size_t i) { return "outputs[" + std::to_string(i) + "]"; }

std::uint64_t elements_of(const MadeOutput& made) noexcept {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    return tensor_bytes(made.dtype, made.shape, made.rank, count, bytes) ? count : 0;
}

// What does not fit, for the message; empty: it does.
std::string too_small(const Prepared& prepared, const MadeOutput& made, std::size_t i, const std::string& model) {
    if (made.dtype == Dtype::bytes) {
        const std::uint64_t room = count_of(prepared.tensors[prepared.n_in + i]);
        const std::uint64_t count = elements_of(made);
        return count <= room ? "" : path_of(i) + ": room for " + std::to_string(room) + " strings, model '" + model + "' made " + std::to_string(count);
    }
    const std::uint64_t room = prepared.slot->outputs[i].capacity;
    return made.nbytes <= room ? "" : path_of(i) + ": " + std::to_string(room) + " bytes, model '" + model + "' made " + std::to_string(made.nbytes);
}

void check_kinds(const Prepared& prepared, const std::vector<MadeOutput>& made, const std::string& model) {
    for (std::size_t i = 0; i < made.size(); ++i) {
        const bool wanted = is_strings(prepared.tensors[prepared.n_in + i]);
        if (wanted == (made[i].dtype == Dtype::bytes)) continue;
        throw Failure(LAIKA_ERR_INVALID, path_of(i) + ".dtype: " + (wanted ? "LAIKA_BYTES" : "not LAIKA_BYTES") + ", model '" + model + "' made " + std::string(dtype_info(made[i].dtype).name));
    }
}

void check_room(const Prepared& prepared, const std::vector<MadeOutput>& made, const std::string& model, laika_tensor_t* outputs) {
    std::string said;
    for (std::size_t i = 0; i < made.size(); ++i)
        if (const std::string one = too_small(prepared, made[i], i, model); !one.empty()) said += (said.empty() ? "" : "; ") + one;
    if (said.empty()) return;
    for (std::size_t i = 0; i < made.size(); ++i) tell_shape(outputs[i], static_cast<std::uint8_t>(made[i].dtype), made[i].rank, made[i].shape);
    throw Failure(LAIKA_ERR_TOO_SMALL, said + "; their shapes now say how many: give that much room and call again");
}

}  // namespace

void tell_shape(laika_tensor_t& tensor, std::uint8_t dtype, std::size_t rank, const std::int64_t* shape) noexcept {
    tensor.dtype = static_cast<std::int32_t>(dtype);
    tensor.ndim = static_cast<std::int32_t>(rank);
    std::copy(shape, shape + rank, tensor.shape);
}

std::vector<MadeOutput> outputs_in_slot(const Prepared& prepared) {
    const ClientSlot& slot = *prepared.slot;
    const std::byte* descriptors = slot.base + slot.offset + sizeof(DescriptorHeader) + slot.inputs.size() * sizeof(TensorDesc);
    std::vector<MadeOutput> made(slot.outputs.size());
    for (std::size_t i = 0; i < made.size(); ++i) {
        TensorDesc seen;
        std::memcpy(&seen, descriptors + i * sizeof seen, sizeof seen);
        std::uint64_t count = 0;
        std::uint64_t bytes = 0;
        const bool sensible = dtype_known(seen.dtype) && seen.rank <= max_rank && tensor_bytes(static_cast<Dtype>(seen.dtype), seen.shape, seen.rank, count, bytes);
        const bool varies = static_cast<Dtype>(seen.dtype) == Dtype::bytes;
        if (!sensible || seen.nbytes > slot.outputs[i].capacity || (varies ? seen.nbytes < bytes : seen.nbytes != bytes))
            throw Failure(LAIKA_ERR_INTERNAL, "the worker's description of " + path_of(i) + " makes no sense");
        made[i].dtype = static_cast<Dtype>(seen.dtype);
        made[i].rank = seen.rank;
        std::copy(seen.shape, seen.shape + seen.rank, made[i].shape);
        made[i].nbytes = seen.nbytes;
    }
    for (const Prepared::Copy& copy : prepared.out) made[copy.tensor].bytes = copy.place;
    return made;
}

Moved deliver(const Prepared& prepared, const std::vector<MadeOutput>& made, const std::string& model, laika_tensor_t* outputs) {
    check_kinds(prepared, made, model);
    check_room(prepared, made, model, outputs);
    std::vector<Strings> strings;
    for (std::size_t i = 0; i < made.size(); ++i)
        if (made[i].dtype == Dtype::bytes) strings.emplace_back(std::span(made[i].bytes, made[i].nbytes), elements_of(made[i]), i);
    Moved moved;
    auto next = strings.begin();
    for (std::size_t i = 0; i < made.size(); ++i) {
        if (made[i].dtype == Dtype::bytes) (next++)->deliver(outputs[i].data, i);
        else if (made[i].bytes != nullptr) write_callers({outputs[i].data, const_cast<std::byte*>(made[i].bytes), made[i].nbytes}, i);
        tell_shape(outputs[i], static_cast<std::uint8_t>(made[i].dtype), made[i].rank, made[i].shape);
        if (made[i].bytes == nullptr) continue;
        ++moved.tensors;
        moved.bytes += made[i].nbytes;
    }
    return moved;
}

}  // namespace teal::capi
