#include "capi/strings.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <unordered_set>

#include "base/checked.hpp"
#include "capi/failure.hpp"
#include "capi/memory.hpp"
#include "capi/signature.hpp"
#include "memory/descriptor.hpp"

namespace teal::capi {
namespace {

static_assert(sizeof(laika_bytes_t) == 16);
constexpr std::uint64_t smallest_room = 256;
constexpr std::uint64_t most_bytes = std::uint64_t{1} << 46;  // as of any memory

std::mutex out_mutex;                        // guards the set below
std::unordered_set<const void*>& out() {     // blocks that callers have; never destroyed, as they may be freed late
    static auto& blocks = *new std::unordered_set<const void*>;
    return blocks;
}

std::string path_of(const char* list, std::size_t index) { return std::string(list) + "[" + std::to_string(index) + "]"; }

std::uint64_t table_bytes(std::uint64_t count) noexcept { return (count + 1) * sizeof(std::uint64_t); }

// The caller's elements, copied: what another thread does to them meanwhile does not matter then.
std::vector<laika_bytes_t> elements_of(const laika_tensor_t& tensor, std::size_t index) {
    const std::uint64_t count = count_of(tensor);
    if (count > most_bytes / sizeof(laika_bytes_t)) throw Failure(LAIKA_ERR_QUOTA, path_of("inputs", index) + ".shape: " + std::to_string(count) + " strings, more than 2^42");
    if (count > 0 && tensor.data == nullptr)
        throw Failure(LAIKA_ERR_POINTER, path_of("inputs", index) + ".data: NULL, expected an array of " + std::to_string(count) + " laika_bytes_t");
    std::vector<laika_bytes_t> elements(count);
    read_callers({tensor.data, reinterpret_cast<std::byte*>(elements.data()), count * sizeof(laika_bytes_t)}, index);
    return elements;
}

std::uint64_t sum_of(const std::vector<laika_bytes_t>& elements, std::size_t index) {
    std::uint64_t total = table_bytes(elements.size());
    for (std::size_t i = 0; i < elements.size(); ++i) {
        if (elements[i].data == nullptr && elements[i].size > 0)
            throw Failure(LAIKA_ERR_POINTER, path_of("inputs", index) + ": string " + std::to_string(i) + " is NULL, expected " + std::to_string(elements[i].size) + " bytes");
        if (!checked_add(total, elements[i].size, total) || total > most_bytes)
            throw Failure(LAIKA_ERR_QUOTA, path_of("inputs", index) + ": more than 2^46 bytes of strings");
    }
    return total;
}

}  // namespace

std::uint64_t count_of(const laika_tensor_t& tensor) noexcept {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    return tensor_bytes(Dtype::bytes, tensor.shape, static_cast<std::size_t>(tensor.ndim), count, bytes) ? count : 0;
}

std::uint64_t room_for(std::uint64_t bytes) noexcept { return std::bit_ceil(std::max(bytes, smallest_room)); }

std::uint64_t packed_bytes(const laika_tensor_t& tensor, std::size_t index) { return sum_of(elements_of(tensor, index), index); }

std::uint64_t pack(const laika_tensor_t& tensor, std::size_t index, std::byte* place, std::uint64_t room) {
    const std::vector<laika_bytes_t> elements = elements_of(tensor, index);
    const std::uint64_t total = sum_of(elements, index);
    if (total > room) throw Failure(LAIKA_ERR_INVALID, path_of("inputs", index) + ": its strings grew while the call was prepared");
    std::uint64_t at = 0;
    std::byte* bytes = place + table_bytes(elements.size());
    std::memcpy(place, &at, sizeof at);
    for (std::size_t i = 0; i < elements.size(); ++i) {
        read_callers({const_cast<void*>(elements[i].data), bytes + at, elements[i].size}, index);
        at += elements[i].size;
        std::memcpy(place + (i + 1) * sizeof at, &at, sizeof at);
    }
    return total;
}

// ---- outputs -------------------------------------------------------------------------------------------------------------

void Strings::Free::operator()(std::byte* block) const noexcept { std::free(block); }

Strings::Strings(std::span<const std::byte> packed, std::uint64_t count, std::size_t index) {
    const auto refuse = [&](const std::string& why) { throw Failure(LAIKA_ERR_INTERNAL, path_of("outputs", index) + ": the worker packed strings in a way that is not understood: " + why); };
    if (count >= packed.size() / sizeof(std::uint64_t)) refuse("their offsets do not fit");
    if (count == 0) return;
    std::vector<std::uint64_t> offsets(count + 1);
    std::memcpy(offsets.data(), packed.data(), table_bytes(count));
    std::string error;
    if (!check_bytes_table(offsets.data(), count, packed.size(), error)) refuse(error);
    block_.reset(static_cast<std::byte*>(std::malloc(offsets[count] + count)));  // below twice the packed bytes
    if (!block_) throw std::bad_alloc();
    elements_.resize(count);
    const std::byte* from = packed.data() + table_bytes(count);
    std::byte* to = block_.get();
    for (std::uint64_t i = 0; i < count; ++i) {
        const std::uint64_t size = offsets[i + 1] - offsets[i];
        std::memcpy(to, from + offsets[i], size);
        elements_[i] = {to, size};
        to += size;
        *to++ = std::byte{0};
    }
}

void Strings::deliver(void* elements, std::size_t index) {
    if (!block_) return;
    {
        const std::lock_guard lock(out_mutex);
        out().insert(block_.get());
    }
    try {
        write_callers({elements, reinterpret_cast<std::byte*>(elements_.data()), elements_.size() * sizeof(laika_bytes_t)}, index);
    } catch (...) {
        const std::lock_guard lock(out_mutex);
        out().erase(block_.get());
        throw;
    }
    static_cast<void>(block_.release());
}

void give_back_strings(laika_tensor_t* tensor) {
    if (tensor == nullptr) throw Failure(LAIKA_ERR_POINTER, "tensor: NULL, expected a tensor of strings");
    if (!is_strings(*tensor)) throw Failure(LAIKA_ERR_INVALID, "tensor.dtype: " + std::to_string(tensor->dtype) + ", expected LAIKA_BYTES");
    checked_bytes(*tensor, "tensor");
    const std::uint64_t count = count_of(*tensor);
    if (count == 0) return;
    if (tensor->data == nullptr) throw Failure(LAIKA_ERR_POINTER, "tensor.data: NULL, expected an array of " + std::to_string(count) + " laika_bytes_t");
    auto* elements = static_cast<laika_bytes_t*>(tensor->data);
    const void* block = elements[0].data;
    if (block == nullptr) return;  // given back already, or never filled
    {
        const std::lock_guard lock(out_mutex);
        if (out().erase(block) == 0)
            throw Failure(LAIKA_ERR_POINTER, "tensor: its strings are not those of a call, or were given back; pass the tensor as the call left it");
    }
    std::free(const_cast<void*>(block));
    std::fill_n(elements, count, laika_bytes_t{nullptr, 0});
}

void lock_strings() noexcept { out_mutex.lock(); }
void unlock_strings() noexcept { out_mutex.unlock(); }

}  // namespace teal::capi
