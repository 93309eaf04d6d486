// Events of C programs: lines of the session that the program ends itself (host/client.hpp).
//
// Theory of operation: a handle leads to a shared line. A call that waits for an event keeps the line, so that a handle may end
// while calls wait: they are cancelled then, and learn why. A worker sees the lines of one session only, so an event has another one
// in each session whose calls wait for it. A call that is waited for lends its own line: it is used for no other request before
// the waiting call has ended (Prepared::is_awaited).
#include <algorithm>
#include <string>
#include <utility>

#include "capi/failure.hpp"
#include "capi/library.hpp"
#include "capi/pin.hpp"
#include "cpu/clock.hpp"

namespace teal::capi {

Event& Library::event_of(laika_event_t event) {
    const auto found = known_events_.find(event.id);
    if (found == known_events_.end()) throw Failure(LAIKA_ERR_HANDLE, "event: not an event of this process; it was destroyed, or never was");
    return found->second;
}

std::shared_ptr<ClientSlot> Library::event_line(laika_event_t event) {
    const std::lock_guard lock(events_);
    return event_of(event).line;
}

namespace {

// The event as a line of that session. events_ is held, so it comes either before this or in all of its lines.
std::shared_ptr<ClientSlot> line_in(Event& event, const PoolSession& pool) {
    if (event.home == &pool) return event.line;
    for (const auto& [where, line] : event.elsewhere)
        if (where == &pool) return line;
    std::shared_ptr<ClientSlot> line = pool.session->make_event();
    if (ClientSession::ended(*event.line)) pool.session->signal(*line, state_seen(*event.line->line, event.line->generation, State::cancelled));
    event.elsewhere.emplace_back(const_cast<PoolSession*>(&pool), line);
    return line;
}

// Calls that wait still hold the lines.
void end_all(Event& event, State to) noexcept {
    event.home->session->signal(*event.line, to);
    for (const auto& [where, line] : event.elsewhere) where->session->signal(*line, to);
}

}  // namespace

Library::Lines Library::lines_of(const PoolSession& pool, const After& after) {
    if (after.n_events > max_after || after.n_calls > max_after - after.n_events)
        throw Failure(LAIKA_ERR_INVALID, "after: " + std::to_string(after.n_events) + " events and " + std::to_string(after.n_calls) + " calls, expected at most 7 in all");
    if (after.n_events > 0 && after.events == nullptr) throw Failure(LAIKA_ERR_POINTER, "after: NULL, expected " + std::to_string(after.n_events) + " events");
    if (after.n_calls > 0 && after.calls == nullptr) throw Failure(LAIKA_ERR_POINTER, "calls: NULL, expected " + std::to_string(after.n_calls) + " calls");
    Lines lines;
    if (after.n_events > 0) {
        const std::lock_guard lock(events_);
        for (std::size_t i = 0; i < after.n_events; ++i) lines.push_back(line_in(event_of(after.events[i]), pool));
    }
    if (after.n_calls > 0) {
        const std::lock_guard lock(calls_);
        for (std::size_t i = 0; i < after.n_calls; ++i) {
            const auto found = in_flight_.find(after.calls[i].id);
            if (found == in_flight_.end())
                throw Failure(LAIKA_ERR_HANDLE, "calls[" + std::to_string(i) + "]: not a call in flight of this process; it was waited for or cancelled, or never was");
            const CallInFlight& call = found->second;
            if (call.model->pool != &pool)
                throw Failure(LAIKA_ERR_INVALID, "calls[" + std::to_string(i) + "]: is in pool '" + call.model->pool->pool + "', and a call waits for calls of its own pool ('" +
                              pool.pool + "'); laika_wait for it first");
            lines.push_back(call.prepared->slot);
        }
    }
    return lines;
}

laika_status_t Library::event_create(laika_event_t* event) {
    if (event == nullptr) throw Failure(LAIKA_ERR_POINTER, "event: NULL, expected where to put the handle");
    event->id = 0;
    const Stay stay(*this);
    check_host();
    Event made{home_, home_->session->make_event(), {}};
    const std::lock_guard lock(events_);
    const std::uint64_t id = new_id();
    known_events_.emplace(id, std::move(made));
    event->id = id;
    return LAIKA_OK;
}

laika_status_t Library::event_signal(laika_event_t event) {
    const Stay stay(*this);
    const std::lock_guard lock(events_);
    end_all(event_of(event), State::done);
    return LAIKA_OK;
}

laika_status_t Library::event_wait(laika_event_t event, std::int64_t timeout_ns) {
    const Stay stay(*this);
    const std::shared_ptr<ClientSlot> line = event_line(event);
    const auto now = static_cast<std::uint64_t>(monotonic_ns());
    const bool ended = ClientSession::ended(*line) || (timeout_ns != 0 && home_->session->wait(*line, timeout_ns < 0 ? 0 : now + static_cast<std::uint64_t>(timeout_ns), 0));
    if (!ended) return remember(LAIKA_ERR_TIMEOUT, "laika_event_wait", "not come within " + std::to_string(timeout_ns) + " ns; wait again, or signal it");
    if (state_seen(*line->line, line->generation, State::free) != State::done)
        throw Failure(LAIKA_ERR_CANCELLED, "event: it was destroyed before it came");
    return LAIKA_OK;
}

laika_status_t Library::event_destroy(laika_event_t event) {
    const Stay stay(*this);
    Event gone;  // its lines go after the lock has
    const std::lock_guard lock(events_);
    end_all(event_of(event), State::cancelled);
    gone = std::move(event_of(event));
    known_events_.erase(event.id);
    return LAIKA_OK;
}

}  // namespace teal::capi
