// Loans slots of one signature: one model, one set of shapes, one set of given places.
//
// Theory of operation: loaning is taking a slot off a list; when the last holder of a loan is gone the slot goes back, at once if
// the worker side has let go of it, else (cancelled, expired) as soon as it has. A home whose plans have places keeps its
// slots without the memory at these places: who loans one brings the holds. So the same tensors, or others at the same
// places, find the slot, its stamp and the worker's binding again, and a home keeps nothing alive but its own blocks.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "host/client.hpp"

namespace teal {

class SlotHome : public std::enable_shared_from_this<SlotHome> {
public:
    // may_spin: the engine leaves a core for a waiter that spins across the expected end of a long call.
    SlotHome(std::shared_ptr<ClientSession> session, std::vector<TensorPlan> inputs, std::vector<TensorPlan> outputs, std::size_t keep, bool may_spin);
    ~SlotHome();
    // A quiescent slot that goes back to this home when the last copy of the pointer is gone. Null: no room.
    // holds: with given places one for each input, then for each output; empty ones for tensors without a place.
    std::shared_ptr<ClientSlot> loan(std::vector<Hold> holds = {});
    void forget_idle();  // gives the memory of slots that nobody holds back to the arenas
    // Is some of the memory that the last loan was made over gone?
    [[nodiscard]] bool deserted();
    [[nodiscard]] ClientSession& session() noexcept { return *session_; }
    [[nodiscard]] const std::shared_ptr<ClientSession>& session_pointer() const noexcept { return session_; }

private:
    void take_back(std::unique_ptr<ClientSlot> slot) noexcept;

    std::shared_ptr<ClientSession> session_;
    std::vector<TensorPlan> inputs_;
    std::vector<TensorPlan> outputs_;
    std::shared_ptr<Expectation> expected_;           // null: waiters do not spin on a guess
    std::size_t keep_;                                // idle slots beyond this are destroyed
    std::mutex mutex_;                                // guards the lists
    std::vector<std::unique_ptr<ClientSlot>> idle_;   // quiescent
    std::vector<std::unique_ptr<ClientSlot>> limbo_;  // ended for the client, not yet released by the worker side
    std::vector<std::weak_ptr<void>> seen_;           // the memory of the last loan
};

}  // namespace teal
