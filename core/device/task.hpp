// Tasks in C++, for the cpu device: the same signature as a task in OpenCL C, found by name.
#pragma once

#include <cstdint>
#include <string_view>

namespace teal {

// Worker `worker` of `workers` does its part of `batch` items; on a CPU there is one worker, and scratch is scratch_bytes long.
using DeviceTask = void (*)(const std::uint8_t* weights, const std::uint8_t* in, std::uint8_t* out0, std::uint8_t* out1, std::uint32_t batch,
                            std::uint32_t worker, std::uint32_t workers, std::uint8_t* scratch);

// "identity" (batch bytes) or "scale" (batch floats, weights[0] the factor); nullptr for other names.
DeviceTask find_task(std::string_view name) noexcept;

}  // namespace teal
