// Events of C programs: lines of the session that the program ends itself (host/client.hpp).
//
// Theory of operation: a handle leads to a shared line. A call that waits for an event keeps the line, so that a handle may end
// while calls wait: they are cancelled then, and learn why.
#include <algorithm>
#include <string>
#include <utility>

#include "capi/failure.hpp"
#include "capi/library.hpp"
#include "capi/pin.hpp"
#include "cpu/clock.hpp"

namespace teal::capi {

std::shared_ptr<ClientSlot> Library::event_of(laika_event_t event) {
    const std::lock_guard lock(events_);
    const auto found = known_events_.find(event.id);
    if (found == known_events_.end()) throw Failure(LAIKA_ERR_HANDLE, "event: not an event of this process; it was destroyed, or never was");
    return found->second;
}

Library::Events Library::events_of(const laika_event_t* events, std::size_t count) {
    if (count > max_after) throw Failure(LAIKA_ERR_INVALID, "after: " + std::to_string(count) + " events, expected at most 7");
    if (count > 0 && events == nullptr) throw Failure(LAIKA_ERR_POINTER, "after: NULL, expected " + std::to_string(count) + " events");
    const Stay stay(*this);
    Events lines;
    for (std::size_t i = 0; i < count; ++i) lines.push_back(event_of(events[i]));
    return lines;
}

laika_status_t Library::event_create(laika_event_t* event) {
    if (event == nullptr) throw Failure(LAIKA_ERR_POINTER, "event: NULL, expected where to put the handle");
    event->id = 0;
    const Stay stay(*this);
    check_host();
    std::shared_ptr<ClientSlot> line = session_->make_event();
    const std::lock_guard lock(events_);
    const std::uint64_t id = new_id();
    known_events_.emplace(id, std::move(line));
    event->id = id;
    return LAIKA_OK;
}

laika_status_t Library::event_signal(laika_event_t event) {
    const Stay stay(*this);
    session_->signal(*event_of(event));
    return LAIKA_OK;
}

laika_status_t Library::event_wait(laika_event_t event, std::int64_t timeout_ns) {
    const Stay stay(*this);
    const std::shared_ptr<ClientSlot> line = event_of(event);
    const auto now = static_cast<std::uint64_t>(monotonic_ns());
    const bool ended = ClientSession::ended(*line) || (timeout_ns != 0 && session_->wait(*line, timeout_ns < 0 ? 0 : now + static_cast<std::uint64_t>(timeout_ns), 0));
    if (!ended) return remember(LAIKA_ERR_TIMEOUT, "laika_event_wait", "not come within " + std::to_string(timeout_ns) + " ns; wait again, or signal it");
    if (state_seen(*line->line, line->generation, State::free) != State::done)
        throw Failure(LAIKA_ERR_CANCELLED, "event: it was destroyed before it came");
    return LAIKA_OK;
}

laika_status_t Library::event_destroy(laika_event_t event) {
    const Stay stay(*this);
    const std::shared_ptr<ClientSlot> line = event_of(event);
    {
        const std::lock_guard lock(events_);
        known_events_.erase(event.id);
    }
    session_->signal(*line, State::cancelled);  // calls that wait still hold the line
    return LAIKA_OK;
}

}  // namespace teal::capi
