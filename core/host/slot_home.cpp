#include "host/slot_home.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace teal {

SlotHome::SlotHome(std::shared_ptr<ClientSession> session, std::vector<TensorPlan> inputs, std::vector<TensorPlan> outputs, std::size_t keep, bool may_spin)
    : session_(std::move(session)), inputs_(std::move(inputs)), outputs_(std::move(outputs)),
      expected_(may_spin ? std::make_shared<Expectation>() : nullptr), keep_(keep) {}

SlotHome::~SlotHome() {
    for (auto& slot : idle_) session_->destroy_slot(std::move(slot));
    // The worker side may still write to slots in limbo: the session keeps them until it does not.
    for (auto& slot : limbo_) session_->retire_slot(std::move(slot));
}

std::shared_ptr<ClientSlot> SlotHome::loan(std::vector<Hold> holds) {
    std::unique_ptr<ClientSlot> slot;
    std::vector<std::shared_ptr<ClientSlot>> awaited;  // may come home here as well: not under the lock
    {
        const std::lock_guard lock(mutex_);
        for (std::size_t i = 0; i < limbo_.size();) {
            if (!ClientSession::quiescent(*limbo_[i])) { ++i; continue; }
            std::move(limbo_[i]->awaited.begin(), limbo_[i]->awaited.end(), std::back_inserter(awaited));
            limbo_[i]->awaited.clear();
            idle_.push_back(std::move(limbo_[i]));
            limbo_[i] = std::move(limbo_.back());
            limbo_.pop_back();
        }
        if (!idle_.empty()) {
            slot = std::move(idle_.back());
            idle_.pop_back();
        }
        if (!holds.empty()) {
            seen_.clear();
            for (const Hold& hold : holds)
                if (hold.loan && !hold.chained) seen_.emplace_back(hold.loan);
        }
    }
    let_go_of(std::move(awaited));
    if (!slot) slot = session_->make_slot(inputs_, outputs_);
    if (!slot) return nullptr;
    slot->tried = slot->tried || slot->submitted;
    slot->submitted = false;
    slot->kept = false;
    slot->expected = expected_;
    slot->holds = std::move(holds);
    return {slot.release(), [home = shared_from_this()](ClientSlot* raw) mutable {
        const auto last = std::move(home);  // a weak pointer to the loan, in seen_ of another home, keeps what is captured here
        last->take_back(std::unique_ptr<ClientSlot>(raw));
    }};
}

void SlotHome::take_back(std::unique_ptr<ClientSlot> slot) noexcept {
    const bool quiet = ClientSession::quiescent(*slot);
    // A request that nobody waits for any more still runs (its kernel may have effects); its slot rests in limbo. With holds it
    // rests with the session: they may keep slots of other homes, and those this one.
    if (slot->placed && !quiet) return session_->retire_slot(std::move(slot));
    if (slot->placed) session_->left(*slot);
    // After the lock: letting go of these may lead to other homes, or back here.
    std::vector<Hold> dropped = std::exchange(slot->holds, {});
    std::vector<std::shared_ptr<ClientSlot>> awaited;
    if (quiet) awaited.swap(slot->awaited);
    {
        const std::lock_guard lock(mutex_);
        if (!quiet) limbo_.push_back(std::move(slot));
        else if (idle_.size() < keep_) idle_.push_back(std::move(slot));
        else session_->destroy_slot(std::move(slot));
    }
    for (Hold& hold : dropped) let_go_of(std::move(hold));
    let_go_of(std::move(awaited));
}

void SlotHome::forget_idle() {
    const std::lock_guard lock(mutex_);
    for (auto& slot : idle_) session_->destroy_slot(std::move(slot));
    idle_.clear();
}

bool SlotHome::deserted() {
    const std::lock_guard lock(mutex_);
    return std::any_of(seen_.begin(), seen_.end(), [](const std::weak_ptr<void>& loan) { return loan.expired(); });
}

}  // namespace teal
