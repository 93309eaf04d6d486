// The dispatch role: a robust, process-shared mutex.
//
// Theory of operation: whoever holds it may move requests from client rings to the run queue and pick
// from it. The kernel tells the next one when a holder died (EOWNERDEAD): it repairs what the dead one may
// have left half done, says so to the mutex, and goes on. A holder that is alive but stuck is the
// host's business: lock_until() gives up at a time, and the host then kills the holder.
#pragma once

#include <cstdint>
#include <pthread.h>

namespace teal {

class Role {
public:
    enum class Taken : std::uint8_t { no, yes, after_death };

    void init();  // in zeroed shared memory, once, by the host
    Taken try_lock() noexcept;
    Taken lock_until(std::uint64_t until_ns) noexcept;  // CLOCK_MONOTONIC
    void repaired() noexcept;                           // after_death: the state is consistent again
    void unlock() noexcept { pthread_mutex_unlock(&mutex_); }
    // Thread that holds it now, or 0: free, its holder is dead, or this C library does not say.
    [[nodiscard]] std::uint32_t holder() const noexcept;

private:
    static Taken taken(int result) noexcept;
    pthread_mutex_t mutex_;
};
static_assert(sizeof(Role) <= 64);

}  // namespace teal
