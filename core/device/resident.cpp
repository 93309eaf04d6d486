// A prelude for C++, then the kernels. What OpenCL C calls by these names is defined here for a CPU thread.
#include "device/resident.hpp"

#include <atomic>

#include "device/fence.hpp"
#include "queue/wait.hpp"

namespace teal {
namespace {

using uchar = std::uint8_t;
using uint = std::uint32_t;
using ulong = std::uint64_t;

// The task of the kernel that runs on this thread: kernels.h calls teal_task by its name.
thread_local DeviceTask current_task = nullptr;

inline void teal_task(const uchar* weights, const uchar* in, uchar* out0, uchar* out1, uint batch, uint worker, uint workers, uchar* scratch) {
    current_task(weights, in, out0, out1, batch, worker, workers, scratch);
}

inline std::atomic<uint>& word(uchar* address) noexcept { return *reinterpret_cast<std::atomic<uint>*>(address); }

// A word that somebody else may write at any moment: atomic, where the other dialects say volatile.
template <typename T>
struct Shared {
    uchar* address;
    operator T() const noexcept { return reinterpret_cast<std::atomic<T>*>(address)->load(std::memory_order_acquire); }
    void operator=(T value) const noexcept { reinterpret_cast<std::atomic<T>*>(address)->store(value, std::memory_order_relaxed); }
};

#define TEAL_U32(p, byte) (Shared<uint>{(p) + (byte)})
#define TEAL_U64(p, byte) (Shared<ulong>{(p) + (byte)})
#define TEAL_KERNEL [[maybe_unused]] static
#define TEAL_DEVICE
#define TEAL_GLOBAL
#define TEAL_LOCAL
#define TEAL_SHARED
#define TEAL_ALIGNED
#define TEAL_GROUP 0u
#define TEAL_WORKER 0u
#define TEAL_WORKERS 1u
#define TEAL_BARRIER() ((void)0)
// SYNC: PEEK pairs with ask()'s release of request.generation, STORE with the acquires of await() and submit_direct(). The acquire is
// on the load, where the thread sanitizer understands it.
#define TEAL_PEEK(p) word(p).load(std::memory_order_acquire)
#define TEAL_ACQUIRE() ((void)0)
#define TEAL_STORE(p, v) word(p).store(v, std::memory_order_release)
#define TEAL_FENCE() full_fence()
#define TEAL_CLOCK(polls) static_cast<ulong>(monotonic_ns())
#define TEAL_RELAX(n) \
    for (uint teal_i = 0; teal_i < (n); ++teal_i) cpu_relax()
#define TEAL_SCRATCH_BYTES 32768
static_assert(TEAL_SCRATCH_BYTES == scratch_bytes);

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"  // a dialect with no casts of C++
#include "kernels.h"
#pragma GCC diagnostic pop

static_assert(TEAL_REGIONS == directory_regions && TEAL_CAPACITY == directory_capacity);

}  // namespace

void run_resident(DeviceTask task, Directory& directory, std::uint8_t* const (&regions)[directory_regions]) noexcept {
    current_task = task;
#define TEAL_GIVE(i) , regions[i]
    teal_resident(reinterpret_cast<uchar*>(&directory) TEAL_EACH_REGION(TEAL_GIVE));
#undef TEAL_GIVE
}

void run_probe(std::uint8_t* region, std::uint64_t at) noexcept { teal_probe(region, at); }

}  // namespace teal
