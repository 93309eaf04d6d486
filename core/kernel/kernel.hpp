// What can be resident in a worker: the two small interfaces every kernel implements.
//
// Theory of operation: a Kernel is one loaded model version in one worker. For each slot that calls it, it
// makes a Binding once: everything that can be prepared for these addresses and shapes. A request then
// only runs the binding. Both live in one thread, the worker's.
//
// A binding that can be preempted says how (docs/preemption.md). `yields`: it looks from time to time whether it should leave, returns with
// run.left set, and goes on when it is run again. `anywhere`: it is run on a stack of its own, and while it holds a Preemptible it may be
// left at any instruction, gone on with later, or never. There it takes no lock and no memory, calls nothing that does, owns nothing, and
// uses no memory that another run of the kernel uses too. Loads and stores to its tensors, and arithmetic, are all that is left.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "memory/descriptor.hpp"
#include "memory/region.hpp"

namespace teal {

// Where a run of a device model took place; `none` for models without a device.
enum class Path : std::uint8_t { none = 0, cpu, resident, launch };

enum class Preemption : std::uint8_t { none = 0, yields, anywhere };

// What stands between a kernel and being left at any instruction. One thread's: its kernels, and its signal handler.
class Gate {
public:
    void open() noexcept {
        inside_.store(true, std::memory_order_relaxed);
        // SYNC: signal fences pair with those in the handler: it sees the gate open, or we see its note.
        std::atomic_signal_fence(std::memory_order_seq_cst);
        if (noted_.load(std::memory_order_relaxed)) [[unlikely]] opened();
    }
    void shut() noexcept {
        std::atomic_signal_fence(std::memory_order_seq_cst);
        inside_.store(false, std::memory_order_relaxed);
    }

protected:
    ~Gate() = default;
    virtual void opened() noexcept = 0;  // with a note pending
    std::atomic<bool> inside_{false};
    std::atomic<bool> noted_{false};
};

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
    std::uint64_t prepare_ticks = 0;             // time it took to read and bind its slot, where that was new
    bool reshaped = false;                       // shapes of unplanned outputs were written for the client
    Path path = Path::none;                      // where it ran
    bool fallback = false;                       // the first run on another path than was asked for
    bool chained = false;                        // some inputs are outputs of requests that ended before
    bool handed_over = false;                    // the host ends this request (a spill)

    // Preemption, set by the worker; all null for a run that is not to be left.
    Gate* gate = nullptr;                        // `anywhere`: see Preemptible
    bool (*leave)(Run&) = nullptr;               // `yields`: should it leave now? It then returns true from run(), with `left` set
    void* leave_context = nullptr;
    bool left = false;                           // not at its end: run() goes on with it
    std::uint64_t away = 0;                      // ticks that it spent off the thread so far; changes while it is left
    [[nodiscard]] std::uint64_t away_now() const noexcept { return __atomic_load_n(&away, __ATOMIC_RELAXED); }

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

// While it lives, the kernel may be left at any instruction: see above. It may be made again and again.
class Preemptible {
public:
    explicit Preemptible(const Run& run) noexcept : gate_(run.gate) {
        if (gate_ != nullptr) gate_->open();
    }
    ~Preemptible() {
        if (gate_ != nullptr) gate_->shut();
    }
    Preemptible(const Preemptible&) = delete;
    Preemptible& operator=(const Preemptible&) = delete;

private:
    Gate* gate_;
};

class Binding {
public:
    Path path = Path::none;                   // of the last run
    Preemption preemption = Preemption::none; // fixed when it is made
    virtual ~Binding() = default;
    virtual bool run(Run& run) noexcept = 0;  // false: failed, run.message says why
    virtual void drop() noexcept {}           // a run that has left never goes on
};

class Kernel {
public:
    virtual ~Kernel() = default;
    // Null when the tensors do not suit the kernel; `error` then says what, where and what was expected.
    virtual std::unique_ptr<Binding> bind(const Run& run, std::string& error) = 0;
    // The most that its bindings can.
    [[nodiscard]] virtual Preemption preemption() const noexcept { return Preemption::none; }
};

}  // namespace teal
