// Requests that could run and do not yet (host/pool.hpp): they wait for company, or for their name to end elsewhere.
//
// Theory of operation: both lie in `held`, apart from the run queue, so that nobody who looks for work finds them. What waits for company
// has a time (due_ns) from which it waits no longer; the leader wakes for the first of these, and drain() moves them to the run queue. Company
// is found when one is picked: it takes along what of its version waits here or there. What waits because its name already runs in as
// many workers as it may comes back one by one, the best first, each time one of these ends.
#include <algorithm>
#include <vector>

#include "cpu/clock.hpp"
#include "host/batch.hpp"
#include "host/hot.hpp"
#include "host/pool.hpp"
#include "host/words.hpp"

namespace teal {
namespace {

constexpr std::uint32_t longest_scan = 1024;     // of the run queue, for company

std::uint64_t now_ns() noexcept { return static_cast<std::uint64_t>(monotonic_ns()); }

bool is_queued(const Record& record) noexcept {
    return state_of_record(record) == State::queued;
}

}  // namespace

bool Pool::due() const noexcept {
    const std::uint64_t next = next_due_ns();
    return next != 0 && now_ns() >= next;
}

void Pool::enqueue(std::uint32_t index) noexcept {
    const PoolHeader& header = memory_->header;
    Record& record = memory_->records[index];
    const VersionLine& version = memory_->versions[record.version_line];
    if (header.batch <= 1 || header.delay_ns == 0 || (version.flags & kernel_batches) == 0 || version.company + 1 >= header.batch) {
        offer(index);
        return;
    }
    const std::uint64_t now = now_ns();
    std::uint64_t due = now + header.delay_ns;
    const std::uint64_t deadline = join(record.entry.deadline_low, record.entry.deadline_high);
    if (deadline != 0) {  // half of the time it has beyond its run
        const std::uint64_t from = now + version.run_ns.load(std::memory_order_relaxed);
        due = std::min(due, deadline > from ? now + (deadline - from) / 2 : 0);
    }
    if (due <= now) {
        offer(index);
        return;
    }
    record.due_ns = due;
    hold(index);
}

void Pool::hold(std::uint32_t index) noexcept {
    PoolHeader& header = memory_->header;
    const Record& record = memory_->records[index];
    memory_->held[header.held_size] = index;
    poke(header.held_size, header.held_size + 1);
    if (record.due_ns == 0) return;
    ++memory_->versions[record.version_line].company;
    if (header.next_due_ns == 0 || record.due_ns < header.next_due_ns) poke(header.next_due_ns, record.due_ns);
}

void Pool::unhold(std::uint32_t at) noexcept {
    PoolHeader& header = memory_->header;
    Record& record = memory_->records[memory_->held[at]];
    VersionLine& version = memory_->versions[record.version_line];
    if (record.due_ns != 0 && version.company > 0) --version.company;
    record.due_ns = 0;
    memory_->held[at] = memory_->held[header.held_size - 1];
    poke(header.held_size, header.held_size - 1);
}

void Pool::prune_held() noexcept {
    for (std::uint32_t i = 0; i < memory_->header.held_size;) {
        const std::uint32_t index = memory_->held[i];
        if (is_queued(memory_->records[index])) {
            ++i;
            continue;
        }
        unhold(i);
        free_record(index);
    }
    // Of those that went, some may have been what others of their name were held for.
    for (std::uint32_t i = 0; i < memory_->header.held_size;) {
        const std::uint32_t index = memory_->held[i];
        const Record& record = memory_->records[index];
        const ModelLine& model = memory_->models[memory_->versions[record.version_line].model];
        if (record.due_ns != 0 || model.running >= model.most) {
            ++i;
            continue;
        }
        unhold(i);
        offer(index);
    }
}

void Pool::release_due() noexcept {
    PoolHeader& header = memory_->header;
    const std::uint64_t now = now_ns();
    if (now < header.next_due_ns) return;
    std::uint64_t next = 0;
    for (std::uint32_t i = 0; i < header.held_size;) {
        const std::uint32_t index = memory_->held[i];
        const std::uint64_t due = memory_->records[index].due_ns;
        if (due == 0 || due > now) {
            if (due != 0 && (next == 0 || due < next)) next = due;
            ++i;
            continue;
        }
        unhold(i);
        offer(index);
    }
    poke(header.next_due_ns, next);
}

void Pool::release_held(std::uint32_t model) noexcept {
    std::uint32_t best = nobody;
    for (std::uint32_t i = 0; i < memory_->header.held_size; ++i) {
        const std::uint32_t index = memory_->held[i];
        const Record& record = memory_->records[index];
        if (record.due_ns != 0 || memory_->versions[record.version_line].model != model) continue;
        if (best == nobody || before(index, memory_->held[best])) best = i;
    }
    if (best == nobody) return;
    const std::uint32_t index = memory_->held[best];
    unhold(best);
    offer(index);
}

TEAL_HOT void Pool::uncount(Record& record) noexcept {
    if (record.counted == 0) return;
    record.counted = 0;
    ModelLine& model = memory_->models[memory_->versions[record.version_line].model];
    if (model.running > 0) --model.running;
}

// The record is gone: the best of its name may come to the run queue for it.
TEAL_HOT void Pool::let_next(const Record& record) noexcept {
    if (memory_->header.held_size == 0) return;
    const std::uint32_t index = memory_->versions[record.version_line].model;
    const ModelLine& model = memory_->models[index];
    if (model.most != 0 && model.running < model.most) release_held(index);
}

void Pool::limit_running(std::uint32_t index, std::uint32_t most) noexcept {
    ModelLine& model = memory_->models[index];
    if (model.most == 0 && most != 0)  // nobody has counted so far
        for (Record& record : memory_->records) {
            const bool begun = state_of_record(record) == State::running || is_suspended(record);
            if (!begun || record.worker == nobody || memory_->versions[record.version_line].model != index) continue;
            record.counted = 1;
            ++model.running;
        }
    model.most = most;
    for (std::uint32_t i = 0; i < memory_->header.held_size;) {  // whatever the limit is now, pick() sees to it
        const std::uint32_t held = memory_->held[i];
        const Record& record = memory_->records[held];
        if (record.due_ns != 0 || memory_->versions[record.version_line].model != index) {
            ++i;
            continue;
        }
        unhold(i);
        offer(held);
    }
}

// Has a queued record nothing to run for any more? Then it has ended now, and its client knows.
bool Pool::ended_early(std::uint32_t index, SessionMap* map) noexcept {
    const Record& record = memory_->records[index];
    const std::uint64_t deadline = join(record.entry.deadline_low, record.entry.deadline_high);
    if (deadline != 0 && now_ns() > deadline) {
        // The client first: should we die in between, the record is still queued and its end is told once more, in vain.
        end_queued(index, map, State::expired, Reason::deadline);
        end_record(index, State::expired);
        return true;
    }
    if (map != nullptr && map->epoch == record.epoch &&
        is_past(map->lines()[record.entry.slot].word.load(std::memory_order_relaxed), record.entry.generation)) {
        // The client cancelled it (or its own clock expired it): it must not run any more.
        end_queued(index, map, State::cancelled, Reason::client_cancelled);
        end_record(index, State::cancelled);
        return true;
    }
    return false;
}

// Queued → running. False: it has ended meanwhile.
TEAL_HOT bool Pool::begin(std::uint32_t index, std::uint32_t worker, std::uint32_t slice_us) noexcept {
    Record& record = memory_->records[index];
    poke(memory_->slices[index], slice_us);
    record.worker = worker;
    std::uint32_t expected = low_half(record.state.load(std::memory_order_relaxed) >> 8, State::queued);
    // SYNC: acq_rel pairs with end_record() of the sweeper: queued → running happens once.
    if (!record.state.compare_exchange_strong(expected, low_half(expected >> 8, State::running), std::memory_order_acq_rel)) return false;
    ++record.attempts;
    return true;
}

void Pool::gather(std::uint32_t first, std::span<SessionMap* const> maps, std::vector<std::uint32_t>& company) noexcept {
    PoolHeader& header = memory_->header;
    const Record& picked = memory_->records[first];
    company.clear();
    // One that ran before ended its worker, perhaps: alone it ends nobody else's request.
    if (header.batch <= 1 || (memory_->versions[picked.version_line].flags & kernel_batches) == 0 || picked.attempts > 1 || picked.suspended != 0) return;
    const auto suits = [&](std::uint32_t index) {
        const Record& record = memory_->records[index];
        const SessionMap* map = record.session < maps.size() ? maps[record.session] : nullptr;
        return record.version_line == picked.version_line && record.attempts == 0 && is_queued(record) && map != nullptr && map->epoch == record.epoch;
    };
    std::uint32_t found[2 * longest_scan + most_batch];
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < header.held_size && count < most_batch; ++i)
        if (memory_->records[memory_->held[i]].due_ns != 0 && suits(memory_->held[i])) found[count++] = memory_->held[i];
    for (std::uint32_t i = 0; i < header.heap_size && i < longest_scan; ++i)
        if (suits(memory_->heap[i])) found[count++] = memory_->heap[i];
    for (std::uint32_t i = 0; i < header.offered_size && i < longest_scan; ++i)
        if (suits(memory_->offered[i]) && memory_->records[memory_->offered[i]].suspended == 0) found[count++] = memory_->offered[i];
    const std::uint32_t wanted = std::min(count, std::min(header.batch, most_batch) - 1);
    std::partial_sort(found, found + wanted, found + count, [this](std::uint32_t a, std::uint32_t b) { return before(a, b); });
    for (std::uint32_t i = 0; i < wanted; ++i) {
        const std::uint32_t index = found[i];
        const bool offered = memory_->records[index].offered != 0;
        if (offered) retract(index);
        const std::uint32_t* held = std::find(memory_->held, memory_->held + header.held_size, index);
        if (held != memory_->held + header.held_size) unhold(static_cast<std::uint32_t>(held - memory_->held));
        else if (!offered) heap_remove(static_cast<std::uint32_t>(std::find(memory_->heap, memory_->heap + header.heap_size, index) - memory_->heap));
        if (!ended_early(index, maps[memory_->records[index].session]) && begin(index, picked.worker)) company.push_back(index);
        else give_back({&index, 1});
        if (seated() && !company.empty() && company.back() == index) [[unlikely]] tell_taken(index, picked.worker, true);
    }
}

}  // namespace teal
