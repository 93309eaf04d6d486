// What can be resident in a worker: the two small interfaces every kernel implements.
//
// Theory of operation: a Kernel is one loaded model version in one worker. For each slot that calls it, it
// makes a Binding once: everything that can be prepared for these addresses and shapes. A request then
// only runs the binding. Both live in one thread, the worker's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "memory/descriptor.hpp"
#include "memory/region.hpp"

namespace teal {

// Where a run of a device model took place; `none` for models without a device.
enum class Path : std::uint8_t { none = 0, cpu, resident, launch };

// The slot that a binding is made for, beyond its tensors: what a kernel needs that serves the slot's device line.
struct SlotPlace {
    std::shared_ptr<Region> region;              // the session's
    std::uint32_t session = 0;
    std::uint32_t stamp = 0;                     // of the descriptor block
    std::uint32_t owner = 0;                     // worker + 1
    std::uint64_t line = 0;                      // offset of the DeviceLine in the region
    // New requests of this slot go to the version that is being bound. Otherwise its line must not be served: the client would go on
    // with a version that has been replaced.
    bool current = false;
};

// One call, seen from a kernel.
struct Run {
    const Descriptor* descriptor = nullptr;      // checked private copy
    const std::vector<RegionView>* regions = nullptr;
    const std::vector<std::shared_ptr<Region>>* owners = nullptr;  // who holds the pages of each
    const SlotPlace* place = nullptr;            // only while a binding is made
    std::uint32_t record = 0;                    // with its generation: names the request towards the host (spills)
    std::uint32_t record_generation = 0;
    std::string message;                         // why it failed
    std::uint32_t copies_in = 0;                 // copies the kernel made of tensor contents
    std::uint32_t copies_out = 0;
    std::uint64_t bytes_in = 0;
    std::uint64_t bytes_out = 0;
    std::uint64_t copy_ticks = 0;                // time spent copying
    bool reshaped = false;                       // shapes of unplanned outputs were written for the client
    Path path = Path::none;                      // where it ran
    bool fallback = false;                       // the first run on another path than was asked for
    bool chained = false;                        // some inputs are outputs of requests that ended before
    bool handed_over = false;                    // the host ends this request (a spill)

    // A binding with work of its own around the kernel says when the kernel itself begins and is done. done() answers the client at
    // once if every output was written in place: whatever comes after it is off the caller's path, and may not touch the tensors.
    std::uint64_t started = 0;                   // ticks
    bool answered = false;
    bool (*answer)(Run&) = nullptr;              // set by the worker
    void* answer_context = nullptr;
    void done() {
        if (answer != nullptr && !reshaped && bytes_in + bytes_out == 0) answered = answer(*this);
    }

    [[nodiscard]] std::byte* address(const TensorDesc& tensor) const noexcept { return (*regions)[tensor.region].base + tensor.offset; }
};

// Stores an unplanned output (copied: counted) and its shape. False when it does not fit its capacity.
bool emit(Run& run, std::size_t output, Dtype dtype, const std::int64_t* shape, std::size_t rank, const void* data, std::uint64_t nbytes) noexcept;

class Binding {
public:
    Path path = Path::none;                   // of the last run
    virtual ~Binding() = default;
    virtual bool run(Run& run) noexcept = 0;  // false: failed, run.message says why
};

class Kernel {
public:
    virtual ~Kernel() = default;
    // Null when the tensors do not suit the kernel; `error` then says what, where and what was expected.
    virtual std::unique_ptr<Binding> bind(const Run& run, std::string& error) = 0;
};

}  // namespace teal
