#include "host/batch.hpp"

#include <algorithm>
#include <cstring>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "memory/arena.hpp"

namespace teal {
namespace {

constexpr std::uint64_t most_bytes = 64 << 20;       // of one kind of requests: a client says how large a row is
constexpr std::uint64_t most_bytes_kept = 256 << 20;
constexpr std::size_t most_kinds = 64;

bool counts_rows(const TensorDesc& tensor, std::int64_t& rows) noexcept {
    if ((tensor.flags & tensor_absent) != 0) return true;
    if (tensor.flags != 0 || tensor.rank == 0 || static_cast<Dtype>(tensor.dtype) == Dtype::bytes || tensor.shape[0] <= 0) return false;
    if (rows == 0) rows = tensor.shape[0];
    return tensor.shape[0] == rows;
}

bool alike(const TensorDesc& a, const TensorDesc& b) noexcept {
    if (a.flags != b.flags) return false;
    if ((a.flags & tensor_absent) != 0) return true;
    return a.dtype == b.dtype && a.rank == b.rank && std::equal(a.shape + 1, a.shape + a.rank, b.shape + 1);
}

bool all_alike(const std::vector<TensorDesc>& a, const std::vector<TensorDesc>& b) noexcept {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), alike);
}

std::uint64_t row_bytes(const TensorDesc& tensor) noexcept {
    return (tensor.flags & tensor_absent) != 0 ? 0 : tensor.nbytes / static_cast<std::uint64_t>(tensor.shape[0]);
}

}  // namespace

std::int64_t rows_of(const Descriptor& request) noexcept {
    std::int64_t rows = 0;
    for (const auto* list : {&request.inputs, &request.outputs})
        for (const TensorDesc& tensor : *list)
            if (!counts_rows(tensor, rows)) return 0;
    return rows;
}

bool go_together(const Descriptor& a, const Descriptor& b) noexcept { return all_alike(a.inputs, b.inputs) && all_alike(a.outputs, b.outputs); }

std::unique_ptr<Together> Together::make(const Descriptor& like, std::uint32_t most_rows) {
    auto made = std::make_unique<Together>();
    made->like_.inputs = like.inputs;
    made->like_.outputs = like.outputs;
    made->most_rows_ = most_rows;
    std::uint64_t total = page_bytes;
    for (auto* list : {&made->like_.inputs, &made->like_.outputs})
        for (TensorDesc& tensor : *list) {
            std::uint64_t bytes = 0;
            if (!checked_mul(row_bytes(tensor), std::uint64_t{most_rows}, bytes) || bytes > most_bytes) return nullptr;
            tensor.nbytes = row_bytes(tensor);
            tensor.shape[0] = 1;
            made->offsets_.push_back(total);
            total += round_up(bytes, tensor_align);
            if (total > most_bytes) return nullptr;
        }
    try {
        auto region = Region::create(RegionKind::tensor, total, 0, Pages::small);
        region->close_fd();
        made->views_.push_back({region->base(), region->size()});
        made->owners_.push_back(std::move(region));
    } catch (const Error&) {
        return nullptr;
    }
    return made;
}

Together::Bound* Together::bind(Kernel& kernel, std::int64_t rows, std::string& error) {
    const auto found = bound_.find(rows);
    if (found != bound_.end()) return &found->second;
    Bound bound;
    bound.descriptor.inputs = like_.inputs;
    bound.descriptor.outputs = like_.outputs;
    bound.block.resize(descriptor_bytes(like_.inputs.size(), like_.outputs.size(), 0));
    bound.descriptor.block = bound.block.data();
    std::size_t at = 0;
    for (auto* list : {&bound.descriptor.inputs, &bound.descriptor.outputs})
        for (TensorDesc& tensor : *list) {
            tensor.region = 0;
            tensor.offset = offsets_[at++];
            tensor.shape[0] = rows;
            tensor.nbytes *= static_cast<std::uint64_t>(rows);
            tensor.capacity = tensor.nbytes;
        }
    Run run;
    attach(run, bound);
    const SlotPlace nowhere;
    run.place = &nowhere;
    bound.binding = kernel.bind(run, error);
    if (!bound.binding) return nullptr;
    return &bound_.emplace(rows, std::move(bound)).first->second;  // what the descriptor's vectors and the block point to moves along
}

void Together::attach(Run& run, const Bound& bound) const noexcept {
    run.regions = &views_;
    run.owners = &owners_;
    run.descriptor = &bound.descriptor;
}

std::uint64_t Together::gather(const Run& from, std::int64_t at, std::uint32_t& copies) const noexcept {
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < like_.inputs.size(); ++i) {
        const TensorDesc& tensor = from.descriptor->inputs[i];
        if ((tensor.flags & tensor_absent) != 0) continue;
        if (tensor.nbytes > 0) std::memcpy(views_[0].base + offsets_[i] + like_.inputs[i].nbytes * static_cast<std::uint64_t>(at), from.address(tensor), tensor.nbytes);
        total += tensor.nbytes;
        ++copies;
    }
    return total;
}

std::uint64_t Together::scatter(const Run& to, std::int64_t at, std::uint32_t& copies) const noexcept {
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < like_.outputs.size(); ++i) {
        const TensorDesc& tensor = to.descriptor->outputs[i];
        if ((tensor.flags & tensor_absent) != 0) continue;
        const std::uint64_t offset = offsets_[like_.inputs.size() + i] + like_.outputs[i].nbytes * static_cast<std::uint64_t>(at);
        // A client may have laid its outputs over anything of its own.
        if (tensor.nbytes > 0) std::memcpy(to.address(tensor), views_[0].base + offset, tensor.nbytes);
        total += tensor.nbytes;
        ++copies;
    }
    return total;
}

Together* Gatherings::find(std::uint32_t version_line, std::uint32_t generation, const Descriptor& like, std::uint32_t most_rows) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
        const Entry& entry = entries_[i];
        if (entry.version_line != version_line || entry.generation != generation || entry.together->most_rows() != most_rows) continue;
        if (!go_together(entry.together->like(), like)) continue;
        std::rotate(entries_.begin() + static_cast<std::ptrdiff_t>(i), entries_.begin() + static_cast<std::ptrdiff_t>(i) + 1, entries_.end());
        return entries_.back().together.get();
    }
    auto made = Together::make(like, most_rows);
    if (!made) return nullptr;
    std::uint64_t kept = made->bytes();
    for (const Entry& entry : entries_) kept += entry.together->bytes();
    while (!entries_.empty() && (entries_.size() >= most_kinds || kept > most_bytes_kept)) {
        kept -= entries_.front().together->bytes();
        entries_.erase(entries_.begin());
    }
    entries_.push_back({version_line, generation, std::move(made)});
    return entries_.back().together.get();
}

void Gatherings::drop(std::uint32_t version_line) noexcept {
    std::erase_if(entries_, [version_line](const Entry& entry) { return entry.version_line == version_line; });
}

}  // namespace teal
