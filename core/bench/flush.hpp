// Drives memory out of the caches: what a judge did on every way back, to be compared with not doing it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace teal {

// Writes back and drops every line of it; on a CPU that has no such instruction for programs, nothing (false).
bool flush_lines(const std::byte* base, std::uint64_t bytes) noexcept;

}  // namespace teal
