// The fence of a Dekker handshake: what this thread stored is visible before it looks at anything else.
#pragma once

#include <atomic>

namespace teal {

inline void full_fence() noexcept {
#ifdef __SANITIZE_THREAD__
    // gcc's thread sanitizer knows no fences; it does know a locked operation, which orders as much here.
    static std::atomic<int> anything{0};
    anything.fetch_add(1, std::memory_order_seq_cst);
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace teal
