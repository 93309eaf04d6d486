// What a run made, on its way into the caller's outputs, where the plan could not say it beforehand.
//
// Theory of operation: whether it came in the slot of the call or in a region of its own (a spill), everything is looked at before
// anything is written: an output that does not fit leaves all of them as they were, with shapes that say what would be needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "capi/prepared.hpp"
#include "memory/descriptor.hpp"

namespace teal::capi {

struct MadeOutput {
    Dtype dtype = Dtype::none;
    std::size_t rank = 0;
    std::int64_t shape[max_rank] = {};
    const std::byte* bytes = nullptr;  // null: they are where they belong
    std::uint64_t nbytes = 0;
};

struct Moved { std::uint64_t tensors = 0; std::uint64_t bytes = 0; };  // copied

// The outputs as they stand in the slot after the run. Throws Failure(internal) for a description that makes no sense: the worker is
// trusted, but these bytes lie in memory that bugs of ours could spoil.
std::vector<MadeOutput> outputs_in_slot(const Prepared& prepared);

// Throws Failure: too_small, invalid (strings where there should be numbers, or the other way round), pointer, internal.
Moved deliver(const Prepared& prepared, const std::vector<MadeOutput>& made, const std::string& model, laika_tensor_t* outputs);

void tell_shape(laika_tensor_t& tensor, std::uint8_t dtype, std::size_t rank, const std::int64_t* shape) noexcept;

}  // namespace teal::capi
