#include "agents/rounds.hpp"

#include <algorithm>

#include "cpu/clock.hpp"

namespace teal {

void Rounds::add(std::shared_ptr<AgentLoop> loop) {
    seats_.push_back(&loop->seat());
    loops_.push_back(std::move(loop));
}

void Rounds::remove(const AgentLoop& loop) noexcept {
    for (std::size_t i = 0; i < loops_.size(); ++i) {
        if (loops_[i].get() != &loop) continue;
        loops_.erase(loops_.begin() + static_cast<std::ptrdiff_t>(i));
        seats_.erase(seats_.begin() + static_cast<std::ptrdiff_t>(i));
        return;
    }
}

bool Rounds::turn(std::uint64_t now) {
    bool lively = false;
    for (const auto& loop : loops_) {
        if (loop->news_.load(std::memory_order_relaxed)) loop->apply_inbox();
        const unsigned done = loop->step(now);
        const auto after = static_cast<std::uint64_t>(monotonic_ns());
        if (done > 0) loop->figures_.busy_ns += after - now;
        if (done > 0) loop->woke(now, false);
        else if (loop->quiet_since_ == 0) loop->quiet_since_ = now;
        now = after;
        lively = lively || done > 0 || !loop->preemptible_.empty() || loop->seat_->has_to_ring();
        if ((++loop->looked_ & 63) == 0) loop->show();
    }
    return lively;
}

// False: nothing came.
bool Rounds::rest(std::uint64_t now) {
    std::uint64_t until = UINT64_MAX;
    for (const auto& loop : loops_) {
        loop->show();
        until = std::min(until, loop->nap_until(now));
    }
    const auto has_orders = [this] {
        return std::any_of(loops_.begin(), loops_.end(), [](const auto& loop) { return loop->news_.load(std::memory_order_seq_cst); });
    };
    AgentSeat::sleep_at_all(seats_, until, has_orders);
    const auto has_message = [](const AgentSeat* seat) { return seat->has_message(); };
    return std::any_of(seats_.begin(), seats_.end(), has_message) || has_orders();
}

void Rounds::run(std::uint64_t until_ns) {
    if (loops_.size() == 1) return loops_[0]->run(until_ns);
    if (loops_.empty()) return;
    for (auto now = static_cast<std::uint64_t>(monotonic_ns()); now < until_ns; now = static_cast<std::uint64_t>(monotonic_ns())) {
        if (turn(now)) quiet_since_ = 0;
        else if (quiet_since_ == 0) quiet_since_ = now;
        bool called = false;
        std::uint64_t patience = 0;
        for (const auto& loop : loops_) {
            called = loop->seat_->called() || called;
            patience = std::max(patience, loop->patience_ns());
        }
        if (called) break;
        if (quiet_since_ == 0) continue;
        if (patience == UINT64_MAX || now - quiet_since_ < patience) cpu_relax();
        else if (!rest(now)) break;
    }
    for (const auto& loop : loops_) loop->show();
}

}  // namespace teal
