// The descriptor block: how a client tells a worker where the tensors of a slot are.
//
// Layout (in a tensor region, 64-byte aligned, little-endian):
//   DescriptorHeader | TensorDesc inputs[n_in] | TensorDesc outputs[n_out] | char message[message_capacity]
// Inputs and outputs stand in the model's order. The client writes all of it before it submits; the
// worker writes `shape`, `nbytes` of outputs whose shape the client could not know, and `message` when
// a request fails. BYTES tensors hold u64 offsets[count + 1] (offsets[0] == 0, ascending, relative to the
// end of the table), then the bytes.
//
// A chained input is the output of another request of the session, which ends before this one runs. The client says which (ChainLink);
// what it is (dtype, shape, size) is taken from that request's block once it has ended.
//
// Hostile by default: read_descriptor() copies the block out once and then checks the copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "memory/dtype.hpp"

namespace teal {

inline constexpr std::uint32_t descriptor_magic = 0x43534454;  // "TDSC"
inline constexpr std::size_t max_rank = 8;
inline constexpr std::size_t max_tensors = 1024;               // inputs + outputs of one model
inline constexpr std::uint32_t max_message = 4096;

enum TensorFlags : std::uint16_t {
    tensor_absent = 1,     // optional input that is not given, or output that is not wanted
    tensor_unplanned = 2,  // output: shape unknown to the client; `capacity` bytes may be used, worker writes shape and nbytes
    tensor_chained = 4,    // input: another request's output, planned to lie here; `shape` holds a ChainLink, rank is 0
};

// Where a chained input comes from.
struct ChainLink {
    std::uint32_t awaited = 0;  // which of those that the request waits for (AfterLine.on)
    std::uint32_t output = 0;   // of that request
    std::uint32_t region = 0;   // its descriptor block
    std::uint64_t block = 0;
};

struct TensorDesc {
    std::uint8_t dtype;      // Dtype
    std::uint8_t rank;       // 0..max_rank
    std::uint16_t flags;     // TensorFlags
    std::uint32_t region;    // index into the session's regions
    std::uint64_t offset;    // bytes from the region's start
    std::uint64_t capacity;  // bytes that may be used from offset on
    std::uint64_t nbytes;    // bytes in use
    std::int64_t shape[max_rank];
};
static_assert(sizeof(TensorDesc) == 96);

struct DescriptorHeader {
    std::uint32_t magic;  // descriptor_magic
    std::uint16_t n_in;
    std::uint16_t n_out;
    std::uint32_t message_capacity;  // bytes after the last TensorDesc
    std::uint32_t message_size;      // written by the worker
    std::uint8_t reserved[48];
};
static_assert(sizeof(DescriptorHeader) == 64);

struct RegionView {  // what the reader knows about a region from the host, not from the client
    std::byte* base = nullptr;
    std::uint64_t size = 0;
};

struct Descriptor {  // the checked private copy
    std::vector<TensorDesc> inputs;
    std::vector<TensorDesc> outputs;
    std::byte* block = nullptr;  // where the client's block is, for writing shapes and the message
    std::uint64_t message_offset = 0;
    std::uint32_t message_capacity = 0;
};

// Bytes of a tensor of `count` elements of this type; false on overflow or negative extents.
bool tensor_bytes(Dtype dtype, const std::int64_t* shape, std::size_t rank, std::uint64_t& count, std::uint64_t& bytes) noexcept;

// Bytes of a whole block.
std::uint64_t descriptor_bytes(std::size_t n_in, std::size_t n_out, std::uint32_t message_capacity) noexcept;

// Copies and checks the block at `region`:`offset`. On failure returns false and says why in `error`
// with a path such as "$.inputs[1].offset".
bool read_descriptor(const std::vector<RegionView>& regions, std::uint32_t region, std::uint64_t offset, Descriptor& out, std::string& error);

// A chained input's link, and the other way round. False: its numbers are none.
bool link_of(const TensorDesc& tensor, ChainLink& link) noexcept;
void set_link(TensorDesc& tensor, const ChainLink& link) noexcept;

// The output that a link leads to, as an input: copied once, then checked. `reshaped`: its worker wrote what it is; without that
// an unplanned one is not known (false, and `error` stays empty).
bool read_output(const std::vector<RegionView>& regions, const ChainLink& link, bool reshaped, TensorDesc& out, std::string& error);

// Checks a BYTES tensor's offset table (already copied to private memory) against the bytes that follow it.
bool check_bytes_table(const std::uint64_t* offsets, std::uint64_t count, std::uint64_t nbytes, std::string& error);

}  // namespace teal
