// Has this process written into a private mapping of a file?
//
// Theory of operation: a page of a MAP_PRIVATE mapping shows the file until it is written; from then on it is an anonymous page of
// the process's own. PAGEMAP_SCAN (Linux 6.7) walks the page table for the first one like that, some nanoseconds a page.
#pragma once

#include <cstdint>

namespace teal {

enum class Written { no, yes, unknown };

// Of whole pages that overlap [start, end). unknown: the kernel cannot tell.
Written written_privately(std::uint64_t start, std::uint64_t end) noexcept;

}  // namespace teal
