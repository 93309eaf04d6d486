// An allocator of slices inside one region.
//
// Theory of operation: only the client that owns a region allocates in it, so all bookkeeping is in
// this process's private memory: nothing that another process can write steers the allocator. Free
// blocks are kept by offset (to merge neighbours) and picked best-fit by size. Sizes are rounded up to 64 B.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

namespace teal {

inline constexpr std::uint64_t line_bytes = 64;      // control lines: one flag a line
inline constexpr std::uint64_t tensor_align = 256;   // tensors
inline constexpr std::uint64_t device_align = 4096;  // whatever a device may import

class Arena {
public:
    Arena(std::uint64_t begin, std::uint64_t end);

    // Offset of a slice of at least `size` bytes, or nothing when no hole is large enough.
    std::optional<std::uint64_t> allocate(std::uint64_t size, std::uint64_t align);
    void release(std::uint64_t offset);  // exactly what allocate() returned; throws internal_error otherwise

    [[nodiscard]] std::uint64_t used() const;
    [[nodiscard]] std::uint64_t blocks() const;
    [[nodiscard]] std::uint64_t largest_hole() const;

private:
    void add_hole(std::uint64_t offset, std::uint64_t size);
    void remove_hole(std::map<std::uint64_t, std::uint64_t>::iterator hole);

    mutable std::mutex mutex_;  // guards everything below
    std::map<std::uint64_t, std::uint64_t> holes_;                      // offset → size
    std::set<std::pair<std::uint64_t, std::uint64_t>> holes_by_size_;   // (size, offset)
    std::map<std::uint64_t, std::uint64_t> taken_;                      // offset → size
    std::uint64_t used_ = 0;
};

}  // namespace teal
