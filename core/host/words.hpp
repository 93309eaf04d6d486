// Words of a pool that are written under the role and read by others at any time, and the state word of a record.
#pragma once

#include <atomic>

#include "host/pool.hpp"

namespace teal {

template <class T>
T peek_at(const T& word) noexcept { return __atomic_load_n(&word, __ATOMIC_RELAXED); }
template <class T>
void poke(T& word, T value) noexcept { __atomic_store_n(&word, value, __ATOMIC_RELAXED); }

inline State state_of_record(const Record& record) noexcept {
    // SYNC: acquire pairs with the release of whoever moved the record to this state.
    return static_cast<State>(record.state.load(std::memory_order_acquire) & 0xff);
}

// Has it begun, left its worker, and not gone on or ended?
inline bool is_suspended(const Record& record) noexcept { return record.suspended != 0 && state_of_record(record) == State::queued; }

inline void store_state(Record& record, State state) noexcept {
    const std::uint32_t generation = record.state.load(std::memory_order_relaxed) >> 8;
    // SYNC: release pairs with the acquire in state_of_record(): the record's fields are complete.
    record.state.store(low_half(generation, state), std::memory_order_release);
}

}  // namespace teal
