// Events: completion lines that the client ends itself (host/client.hpp).
#include <string>

#include "base/error.hpp"
#include "cpu/clock.hpp"
#include "host/client.hpp"

namespace teal {

std::shared_ptr<ClientSlot> ClientSession::make_event() {
    destroy_retired();
    auto slot = std::make_unique<ClientSlot>();
    {
        const std::lock_guard lock(memory_mutex_);
        if (free_lines_.empty())
            throw Error(Code::quota_exceeded, "all " + std::to_string(map_->layout.slots) + " slots of this session are on loan; an event takes one: release some, or raise Limits.slots");
        slot->index = free_lines_.back();
        free_lines_.pop_back();
        slot->generation = next_generation(generations_[slot->index]);
    }
    slot->region = UINT32_MAX;  // no memory
    slot->line = &map_->lines()[slot->index];
    slot->submitted = true;
    slot->submitted_ticks = ticks();
    return {slot.release(), [session = shared_from_this()](ClientSlot* raw) {
        session->signal(*raw, State::cancelled);
        session->destroy_slot(std::unique_ptr<ClientSlot>(raw));
    }};
}

bool ClientSession::signal(ClientSlot& event, State to) noexcept {
    if (!cancel(event, to, Reason::none)) return false;
    // A leader that spins sees the line itself; one that sleeps is woken, and nobody else costs a syscall.
    ring_doorbell();
    return true;
}

void ClientSession::rearm(ClientSlot& event) {
    if (!ended(event)) throw Error(Code::busy, "this event has not come yet; signal() it first");
    event.generation = next_generation(event.generation);
    event.submitted_ticks = ticks();
}

}  // namespace teal
