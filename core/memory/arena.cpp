#include "memory/arena.hpp"

#include "base/checked.hpp"
#include "base/error.hpp"

namespace teal {

Arena::Arena(std::uint64_t begin, std::uint64_t end) {
    begin = round_up(begin, line_bytes);
    if (end > begin) add_hole(begin, end - begin);
}

std::optional<std::uint64_t> Arena::allocate(std::uint64_t size, std::uint64_t align) {
    if (align < line_bytes) align = line_bytes;
    if ((align & (align - 1)) != 0 || size > (std::uint64_t{1} << 46)) return std::nullopt;
    size = round_up(size == 0 ? 1 : size, line_bytes);
    const std::lock_guard lock(mutex_);
    for (auto it = holes_by_size_.lower_bound({size, 0}); it != holes_by_size_.end(); ++it) {
        const auto [hole_size, hole_offset] = *it;
        const std::uint64_t start = round_up(hole_offset, align);
        if (!within(start - hole_offset, size, hole_size)) continue;
        remove_hole(holes_.find(hole_offset));
        if (start > hole_offset) add_hole(hole_offset, start - hole_offset);
        const std::uint64_t tail = hole_offset + hole_size - (start + size);
        if (tail > 0) add_hole(start + size, tail);
        taken_.emplace(start, size);
        used_ += size;
        return start;
    }
    return std::nullopt;
}

void Arena::release(std::uint64_t offset) {
    const std::lock_guard lock(mutex_);
    const auto it = taken_.find(offset);
    if (it == taken_.end()) throw Error(Code::internal_error, "arena: release of a slice that is not taken");
    std::uint64_t start = it->first;
    std::uint64_t size = it->second;
    used_ -= size;
    taken_.erase(it);
    auto next = holes_.lower_bound(start);
    if (next != holes_.end() && start + size == next->first) {
        size += next->second;
        const auto merged = next++;
        remove_hole(merged);
    }
    if (next != holes_.begin()) {
        const auto previous = std::prev(next);
        if (previous->first + previous->second == start) {
            start = previous->first;
            size += previous->second;
            remove_hole(previous);
        }
    }
    add_hole(start, size);
}

void Arena::add_hole(std::uint64_t offset, std::uint64_t size) {
    holes_.emplace(offset, size);
    holes_by_size_.emplace(size, offset);
}

void Arena::remove_hole(std::map<std::uint64_t, std::uint64_t>::iterator hole) {
    holes_by_size_.erase({hole->second, hole->first});
    holes_.erase(hole);
}

std::uint64_t Arena::used() const {
    const std::lock_guard lock(mutex_);
    return used_;
}

std::uint64_t Arena::blocks() const {
    const std::lock_guard lock(mutex_);
    return taken_.size();
}

std::uint64_t Arena::largest_hole() const {
    const std::lock_guard lock(mutex_);
    return holes_by_size_.empty() ? 0 : holes_by_size_.rbegin()->first;
}

}  // namespace teal
