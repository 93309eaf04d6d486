#include "memory/descriptor.hpp"

#include <cstring>

#include "base/checked.hpp"

namespace teal {
namespace {

bool fail(std::string& error, std::string message) {
    error = std::move(message);
    return false;
}

std::string path_of(bool output, std::size_t index, const char* field) {
    return std::string(output ? "$.outputs[" : "$.inputs[") + std::to_string(index) + "]." + field;
}

bool check_tensor(const std::vector<RegionView>& regions, const TensorDesc& t, bool output, std::size_t i, std::string& error) {
    if ((t.flags & ~(tensor_absent | tensor_unplanned | tensor_chained)) != 0)
        return fail(error, path_of(output, i, "flags") + ": unknown flags " + std::to_string(t.flags));
    if ((t.flags & tensor_absent) != 0) return true;
    if (!dtype_known(t.dtype)) return fail(error, path_of(output, i, "dtype") + ": " + std::to_string(t.dtype) + " is not a dtype number");
    if (t.rank > max_rank) return fail(error, path_of(output, i, "rank") + ": " + std::to_string(t.rank) + ", expected at most 8");
    const bool unplanned = (t.flags & tensor_unplanned) != 0;
    if (unplanned && !output) return fail(error, path_of(output, i, "flags") + ": an input cannot be unplanned");
    if (t.region >= regions.size() || regions[t.region].base == nullptr)
        return fail(error, path_of(output, i, "region") + ": " + std::to_string(t.region) + " is not a region of this session");
    if (!within(t.offset, t.capacity, regions[t.region].size))
        return fail(error, path_of(output, i, "offset") + ": " + std::to_string(t.offset) + " + " + std::to_string(t.capacity) +
                    " bytes leave region " + std::to_string(t.region) + " of " + std::to_string(regions[t.region].size) + " bytes");
    if (t.offset % dtype_info(static_cast<Dtype>(t.dtype)).size != 0)
        return fail(error, path_of(output, i, "offset") + ": " + std::to_string(t.offset) + " is not aligned for its dtype");
    if ((t.flags & tensor_chained) != 0) {
        ChainLink link;
        if (output || t.flags != tensor_chained) return fail(error, path_of(output, i, "flags") + ": " + std::to_string(t.flags) + ", only an input can be chained");
        if (t.rank != 0 || !link_of(t, link)) return fail(error, path_of(output, i, "shape") + ": not a link to an output");
        return true;
    }
    if (unplanned) return true;
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    if (!tensor_bytes(static_cast<Dtype>(t.dtype), t.shape, t.rank, count, bytes))
        return fail(error, path_of(output, i, "shape") + ": negative extent or more than 2^63 bytes");
    const bool is_bytes = static_cast<Dtype>(t.dtype) == Dtype::bytes;
    if (is_bytes ? (output ? false : t.nbytes < bytes) : t.nbytes != bytes)
        return fail(error, path_of(output, i, "nbytes") + ": " + std::to_string(t.nbytes) + ", the shape needs " + std::to_string(bytes));
    if (t.nbytes > t.capacity)
        return fail(error, path_of(output, i, "nbytes") + ": " + std::to_string(t.nbytes) + " exceed the capacity " + std::to_string(t.capacity));
    return true;
}

}  // namespace

bool tensor_bytes(Dtype dtype, const std::int64_t* shape, std::size_t rank, std::uint64_t& count, std::uint64_t& bytes) noexcept {
    count = 1;
    bool empty = false;
    for (std::size_t i = 0; i < rank; ++i) {
        if (shape[i] < 0) return false;
        if (shape[i] == 0) { empty = true; continue; }  // 0 * huge is 0, but huge * huge must still be refused
        if (!checked_mul(count, static_cast<std::uint64_t>(shape[i]), count)) return false;
    }
    if (empty) count = 0;
    if (dtype == Dtype::bytes) {
        std::uint64_t entries = 0;
        return checked_add(count, 1, entries) && checked_mul(entries, sizeof(std::uint64_t), bytes) && bytes <= INT64_MAX;
    }
    return checked_mul(count, dtype_info(dtype).size, bytes) && bytes <= INT64_MAX;
}

std::uint64_t descriptor_bytes(std::size_t n_in, std::size_t n_out, std::uint32_t message_capacity) noexcept {
    return sizeof(DescriptorHeader) + (n_in + n_out) * sizeof(TensorDesc) + message_capacity;
}

bool read_descriptor(const std::vector<RegionView>& regions, std::uint32_t region, std::uint64_t offset, Descriptor& out, std::string& error) {
    if (region >= regions.size() || regions[region].base == nullptr)
        return fail(error, "$.descriptor.region: " + std::to_string(region) + " is not a region of this session");
    const RegionView view = regions[region];
    if (offset % 64 != 0 || !within(offset, sizeof(DescriptorHeader), view.size))
        return fail(error, "$.descriptor.offset: " + std::to_string(offset) + " is not a 64-byte line of region " + std::to_string(region));
    DescriptorHeader header;
    std::memcpy(&header, view.base + offset, sizeof header);
    if (header.magic != descriptor_magic) return fail(error, "$.descriptor.magic: not a descriptor block");
    const std::size_t tensors = std::size_t{header.n_in} + header.n_out;
    if (tensors > max_tensors) return fail(error, "$.descriptor: " + std::to_string(tensors) + " tensors, expected at most 1024");
    if (header.message_capacity > max_message) return fail(error, "$.descriptor.message_capacity: expected at most 4096");
    const std::uint64_t total = descriptor_bytes(header.n_in, header.n_out, header.message_capacity);
    if (!within(offset, total, view.size)) return fail(error, "$.descriptor: block leaves its region");
    const auto* tensor = view.base + offset + sizeof header;
    out.inputs.resize(header.n_in);
    out.outputs.resize(header.n_out);
    if (header.n_in > 0) std::memcpy(out.inputs.data(), tensor, header.n_in * sizeof(TensorDesc));
    if (header.n_out > 0) std::memcpy(out.outputs.data(), tensor + header.n_in * sizeof(TensorDesc), header.n_out * sizeof(TensorDesc));
    out.block = view.base + offset;
    out.message_offset = sizeof header + tensors * sizeof(TensorDesc);
    out.message_capacity = header.message_capacity;
    for (std::size_t i = 0; i < out.inputs.size(); ++i)
        if (!check_tensor(regions, out.inputs[i], false, i, error)) return false;
    for (std::size_t i = 0; i < out.outputs.size(); ++i)
        if (!check_tensor(regions, out.outputs[i], true, i, error)) return false;
    return true;
}

bool link_of(const TensorDesc& tensor, ChainLink& link) noexcept {
    for (std::size_t i = 0; i < 3; ++i)
        if (tensor.shape[i] < 0 || tensor.shape[i] >= INT64_C(0xffffffff)) return false;
    if (tensor.shape[3] < 0) return false;
    link.awaited = static_cast<std::uint32_t>(tensor.shape[0]);
    link.output = static_cast<std::uint32_t>(tensor.shape[1]);
    link.region = static_cast<std::uint32_t>(tensor.shape[2]);
    link.block = static_cast<std::uint64_t>(tensor.shape[3]);
    return true;
}

void set_link(TensorDesc& tensor, const ChainLink& link) noexcept {
    tensor.flags = tensor_chained;
    tensor.rank = 0;
    std::memset(tensor.shape, 0, sizeof tensor.shape);
    tensor.shape[0] = link.awaited;
    tensor.shape[1] = link.output;
    tensor.shape[2] = link.region;
    tensor.shape[3] = static_cast<std::int64_t>(link.block);
}

bool read_output(const std::vector<RegionView>& regions, const ChainLink& link, bool reshaped, TensorDesc& out, std::string& error) {
    if (link.region >= regions.size() || regions[link.region].base == nullptr)
        return fail(error, "its source's block: " + std::to_string(link.region) + " is not a region of this session");
    const RegionView view = regions[link.region];
    DescriptorHeader header;
    if (link.block % 64 != 0 || !within(link.block, sizeof header, view.size))
        return fail(error, "its source's block: " + std::to_string(link.block) + " is not a 64-byte line of region " + std::to_string(link.region));
    std::memcpy(&header, view.base + link.block, sizeof header);
    const std::size_t tensors = std::size_t{header.n_in} + header.n_out;
    if (header.magic != descriptor_magic || tensors > max_tensors || !within(link.block, descriptor_bytes(header.n_in, header.n_out, 0), view.size))
        return fail(error, "its source's block: not a descriptor block");
    if (link.output >= header.n_out)
        return fail(error, "its source has " + std::to_string(header.n_out) + " outputs, and no output " + std::to_string(link.output));
    std::memcpy(&out, view.base + link.block + sizeof header + (header.n_in + std::size_t{link.output}) * sizeof out, sizeof out);
    if ((out.flags & tensor_absent) != 0) return fail(error, "output " + std::to_string(link.output) + " of its source was not asked for");
    if ((out.flags & tensor_unplanned) != 0 && !reshaped) return false;
    out.flags &= static_cast<std::uint16_t>(~tensor_unplanned);
    if (out.flags != 0) return fail(error, "output " + std::to_string(link.output) + " of its source: unknown flags " + std::to_string(out.flags));
    return check_tensor(regions, out, false, link.output, error);
}

bool check_bytes_table(const std::uint64_t* offsets, std::uint64_t count, std::uint64_t nbytes, std::string& error) {
    if (count >= nbytes / sizeof(std::uint64_t)) return fail(error, "BYTES tensor: its offset table does not fit");
    if (offsets[0] != 0) return fail(error, "BYTES tensor: offsets[0] is " + std::to_string(offsets[0]) + ", expected 0");
    for (std::uint64_t i = 0; i < count; ++i)
        if (offsets[i + 1] < offsets[i])
            return fail(error, "BYTES tensor: offsets[" + std::to_string(i + 1) + "] goes back");
    const std::uint64_t table = (count + 1) * sizeof(std::uint64_t);
    if (offsets[count] > nbytes - table)
        return fail(error, "BYTES tensor: offsets[" + std::to_string(count) + "] = " + std::to_string(offsets[count]) + " leaves the tensor");
    return true;
}

}  // namespace teal
