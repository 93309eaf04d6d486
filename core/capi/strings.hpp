// Tensors of strings (LAIKA_BYTES): the caller's array of laika_bytes_t, and the packed form in shared memory.
//
// Theory of operation: packed is u64 offsets[count + 1], then the bytes (memory/descriptor.hpp). Inputs are packed into the slot of their
// call, whose room is a power of two, so that few prepared calls serve many lengths. An output is copied into one block of the
// heap that the caller gives back (laika_bytes_free); which blocks are out is kept, so that a pointer that is none of them is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "capi/include/laika.h"

namespace teal::capi {

inline bool is_strings(const laika_tensor_t& tensor) noexcept { return tensor.dtype == LAIKA_BYTES; }

// Elements of a tensor of strings whose shape was checked.
std::uint64_t count_of(const laika_tensor_t& tensor) noexcept;

// Room for that many packed bytes: the next power of two.
std::uint64_t room_for(std::uint64_t bytes) noexcept;

// Bytes that input `index` takes when it is packed. Throws Failure: pointer, quota.
std::uint64_t packed_bytes(const laika_tensor_t& tensor, std::size_t index);

// Packs input `index` and returns the bytes it took. Throws Failure: pointer, invalid (it has grown since packed_bytes()).
std::uint64_t pack(const laika_tensor_t& tensor, std::size_t index, std::byte* place, std::uint64_t room);

// One output on its way to the caller: its bytes in a block of the heap, each element followed by a zero.
class Strings {
public:
    // Copies what a worker packed, then checks the copy. Throws Failure: internal.
    Strings(std::span<const std::byte> packed, std::uint64_t count, std::size_t index);
    // Writes the caller's elements; from then on the block is the caller's. Throws Failure: pointer.
    void deliver(void* elements, std::size_t index);

private:
    struct Free { void operator()(std::byte* block) const noexcept; };
    std::unique_ptr<std::byte, Free> block_;
    std::vector<laika_bytes_t> elements_;
};

// The block that a call gave out with these elements goes, and they are emptied. Throws Failure: pointer, invalid.
void give_back_strings(laika_tensor_t* tensor);

// Around fork(): in the child no other thread may be in the middle of something here.
void lock_strings() noexcept;
void unlock_strings() noexcept;

}  // namespace teal::capi
