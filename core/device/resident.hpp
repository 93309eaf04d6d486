// The resident kernel on a CPU thread, from the very source that OpenCL and CUDA compile (src/teal/device/source/kernels.h).
#pragma once

#include <cstdint>

#include "device/line.hpp"
#include "device/task.hpp"

namespace teal {

inline constexpr std::uint32_t scratch_bytes = 32768;

// Serves the lines of a directory until it parks or is told to quit; returns then. regions[i] is nullptr where there is none.
// The kernel's clock counts nanoseconds. One kernel a directory at a time.
void run_resident(DeviceTask task, Directory& directory, std::uint8_t* const (&regions)[directory_regions]) noexcept;

// Eight words at `at` are answered by their complement 32 bytes further on.
void run_probe(std::uint8_t* region, std::uint64_t at) noexcept;

}  // namespace teal
