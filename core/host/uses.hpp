// Which requests that are out use memory at given places, so that nobody writes what another one reads or writes.
//
// Theory of operation: any number of requests may read the same memory; a request that writes some is alone with it. Nobody
// tells us when a request ends, so the slots that went out are kept in a list, and those that came back are dropped
// from it whenever the next one is let in. Slots without places have memory of their own and are looked at only while
// there is something in the list, or when one of their tensors was lent as a place (Hold::lender). Lending across threads is
// the caller's to order: in Python the GIL does.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "host/slot.hpp"

namespace teal {

class Uses {
public:
    // Must requests of this slot be let in here?
    [[nodiscard]] bool concerns(const ClientSlot& slot) const noexcept { return slot.placed || count_.load(std::memory_order_relaxed) != 0; }
    // The slot goes out: with its next generation, or (`direct`, which it says of itself by then) to a device kernel. Throws busy, naming
    // the tensor, when memory of it is in use elsewhere.
    void admit(ClientSlot& slot);
    void retract(ClientSlot& slot) noexcept;         // it did not go out after all
    void forget(const ClientSlot& slot) noexcept;    // it is about to go, or to be used again

private:
    std::mutex mutex_;                               // guards out_ and `submitted`, `generation` of what is in it
    std::vector<const ClientSlot*> out_;
    std::atomic<std::uint32_t> count_{0};            // entries of out_
};

// Do two of a call's tensors share bytes?
[[nodiscard]] bool overlap(const TensorDesc& a, const TensorDesc& b) noexcept;

}  // namespace teal
