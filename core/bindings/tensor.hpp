// teal.Tensor: dtype + shape + place in a region, and the ways Python may look at it.
//
// Theory of operation: a Tensor holds its pages (`memory`) and its loan (`loan`: a slot or a block). Every view that
// leaves it (buffer, NumPy array, DLPack capsule) holds the Tensor and counts as an export; release() is refused while there are
// exports, and after release() every use raises Closed. What a forked child may do: read existing views, nothing else.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host/slot.hpp"
#include "memory/descriptor.hpp"
#include "memory/dtype.hpp"
#include "memory/region.hpp"

namespace teal {

namespace nb = nanobind;

// Bumped in the child of every fork; objects remember the value they were made under.
extern std::atomic<std::uint32_t> fork_generation;
void check_not_forked(std::uint32_t made_under);

struct Tensor {
    std::shared_ptr<void> loan;
    std::shared_ptr<Region> memory;
    std::byte* data = nullptr;
    Dtype dtype = Dtype::none;
    bool readonly = false;
    bool released = false;
    bool raw_export = false;             // the next buffer request is our own: hand out bytes whatever the dtype
    std::uint32_t exports = 0;           // under the GIL
    std::uint32_t forks = 0;
    std::vector<std::int64_t> shape;
    std::uint64_t nbytes = 0;
    std::uint64_t capacity = 0;
    std::uint64_t count = 0;
    const void* session = nullptr;       // the ClientSession in whose regions it lies, alive while `loan` is; null: in no region of a session
    const ClientSlot* lender = nullptr;  // the slot whose tensor it is; null for a block
    std::uint32_t region = 0;            // its place, with a session
    std::uint64_t offset = 0;
    nb::object slot;                     // an input's Slot, else null
    std::uint32_t position = 0;          // which input of that slot
    std::shared_ptr<void> view;          // an output's mark that somebody looks at it
    std::string taken_by;                // "file:line" that took the loan; filled while loans are traced
    std::int64_t taken_ns = 0;           // CLOCK_MONOTONIC; filled while loans are traced

    void check_usable() const;
    ~Tensor();
    Tensor();
    Tensor(const Tensor&) = delete;
    Tensor& operator=(const Tensor&) = delete;
};

// Strides of a packed array whose elements take `size`: bytes, or 1 to count in elements.
std::vector<std::int64_t> packed_strides(const std::vector<std::int64_t>& shape, std::int64_t size);

nb::object make_tensor(const TensorDesc& desc, std::byte* base, std::shared_ptr<Region> memory, std::shared_ptr<void> loan, bool readonly);
// The same for memory of a client's session, where calls may use it in place.
nb::object make_tensor(const TensorDesc& desc, Hold hold, const ClientSession& session);

// A tensor of this session that somebody holds and that has all of these bytes; null: none has. Under the GIL.
const Tensor* live_tensor_at(const void* session, const std::byte* data, std::uint64_t nbytes);

// Where an array-like's elements are. Holds what has to be held while `data` is used.
struct Source {
    const std::byte* data = nullptr;
    Dtype dtype = Dtype::none;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;   // bytes
    std::uint64_t count = 0;
    std::uint64_t nbytes = 0;            // of the packed elements
    bool contiguous = true;
    std::shared_ptr<void> hold;
};
// Tensors, buffers (NumPy), DLPack producers (torch). Throws nb::type_error for what has no elements in CPU memory.
Source source_of(nb::handle object);
// Packs the source at `to`, which has room for source.nbytes.
void copy_source(const Source& source, std::byte* to);

void bind_tensor(nb::module_& m);

}  // namespace teal
