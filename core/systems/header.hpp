// The header of a safetensors file, read strictly.
//
// A file: u64 length (little-endian) | that many bytes of JSON | tensor data. The JSON is one object: name → {"dtype": "F32",
// "shape": [15, 10], "data_offsets": [begin, end]}, and optionally "__metadata__": an object of strings. Spaces may follow it, to
// align the data.
//
// Strictly: no unknown keys, no key twice, whole numbers only, nothing before or after but spaces, every tensor's bytes are what
// its shape says, and the tensors cover the data in the order of the file, without gaps or overlaps. JSON's escapes are understood
// except surrogate pairs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "memory/dtype.hpp"

namespace teal::systems {

inline constexpr std::uint64_t most_header_bytes = 64 * 1024;

struct HeaderEntry {
    std::string name;
    Dtype dtype = Dtype::none;
    std::vector<std::uint64_t> shape;
    std::uint64_t begin = 0;  // in the data
    std::uint64_t end = 0;
};

struct FileHeader {
    std::vector<std::pair<std::string, std::string>> metadata;
    std::vector<HeaderEntry> tensors;  // by place
    std::uint64_t data = 0;            // where the data begins in the file
};

// Text of a file as an error may quote it: at most 40 characters of printable ASCII, '?' for the others.
std::string shown(std::string_view text);

// False, and why in `error` ("header.w0.shape: …"), for what is no such file.
bool read_header(std::span<const std::byte> file, FileHeader& out, std::string& error);

}  // namespace teal::systems
