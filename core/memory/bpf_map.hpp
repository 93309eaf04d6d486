// A BPF map as shared memory: what the kernel says of it, and making one.
//
// Theory of operation: the kernel itself says what a descriptor is, in /proc/self/fdinfo: nothing that the sender could
// dress up, and no call of bpf(2), which hosts need not be allowed. A memory-mappable array has all its pages from the start,
// cannot be resized and lives as long as anybody maps it: mapping it can never end in a SIGBUS, which is what a memfd's
// seals are for. Making one takes CAP_BPF; mapping and checking one takes nothing.
#pragma once

#include <cstdint>

namespace teal {

struct MapFacts {
    std::uint32_t type = 0;
    std::uint32_t key_bytes = 0;
    std::uint32_t value_bytes = 0;
    std::uint32_t entries = 0;
    std::uint32_t flags = 0;
};

// Throws invalid_argument when the descriptor is no BPF map.
MapFacts map_facts(int fd);

// Bytes of a BPF array of one value that can be mapped read-write and whole. Throws invalid_argument: says what is wrong.
std::uint64_t memory_map_bytes(int fd);

// A memory-mappable array of one value; a ring buffer of one page. Throw not_found where this process may not make maps.
int create_memory_map(std::uint64_t bytes);
int create_bell_map();

}  // namespace teal
