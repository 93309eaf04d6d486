// Being inside the Library: Pin for blocking calls (one atomic add on the model's own line), Stay for everything else.
#pragma once

#include "capi/library.hpp"

namespace teal::capi {

class Library::Pin {
public:
    Pin(Library& library, laika_model_t model) : entry(library.entries_[model.id % most_models]), id_(model.id) {
        if (library.phase_.load(std::memory_order_relaxed) != Phase::open) library.refuse();
        // SYNC: seq_cst pairs with leave_entry(): it clears the id, then looks at the pins; we pin, then look at the id.
        entry.pins.fetch_add(1, std::memory_order_seq_cst);
        if (id_ != 0 && entry.id.load(std::memory_order_seq_cst) == id_) return;
        leave();
        if (library.phase_.load(std::memory_order_relaxed) != Phase::open) library.refuse();
        throw Failure(LAIKA_ERR_HANDLE, id_ == 0 ? "model: a zero handle; was laika_model_load successful?" : "model: not a loaded model of this process, or unloaded already");
    }
    ~Pin() { leave(); }
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

    ModelEntry& entry;

private:
    void leave() noexcept {
        // SYNC: seq_cst pairs with leave_entry(), which waits for the last pin after the id was cleared.
        entry.pins.fetch_sub(1, std::memory_order_seq_cst);
        if (entry.id.load(std::memory_order_seq_cst) != id_) entry.pins.notify_all();
    }
    std::uint64_t id_;
};

class Library::Stay {
public:
    explicit Stay(Library& library) {
        // A forked child must not touch the lock: who held it may not exist there.
        if (library.phase_.load(std::memory_order_acquire) == Phase::forked) library.refuse();
        lock_ = std::shared_lock(library.life_);
        if (library.phase_.load(std::memory_order_acquire) != Phase::open) library.refuse();
    }

private:
    std::shared_lock<std::shared_mutex> lock_;
};

}  // namespace teal::capi
