// Pool: what follows from the records' words, derived anew after a death under the role, and what ended while it waited.
#include <algorithm>

#include "host/pool.hpp"
#include "host/words.hpp"

namespace teal {

void Pool::repair() noexcept {
    ++memory_->header.repairs;
    rebuild();
    if (seated()) restate();
}

// Everything that follows from the records' words: run queue, free list, counts.
void Pool::rebuild() noexcept {
    PoolHeader& header = memory_->header;
    poke(header.heap_size, 0U);
    poke(header.blocked_size, 0U);
    poke(header.held_size, 0U);
    poke(header.offered_size, 0U);
    poke(header.next_due_ns, std::uint64_t{0});
    header.free_head = 0;
    std::uint32_t active = 0;
    for (SessionLine& line : memory_->sessions) {
        poke(line.in_flight, 0U);
        poke(line.blocked, std::uint16_t{0});
    }
    for (VersionLine& version : memory_->versions) {
        poke(version.in_flight, 0U);
        version.company = 0;
    }
    for (ModelLine& model : memory_->models) model.running = 0;
    for (std::uint32_t i = record_count; i-- > 0;) {
        Record& record = memory_->records[i];
        const State state = state_of_record(record);
        const bool forgotten = is_terminal(state) && record.worker == nobody;  // ended while it waited in the run queue
        if (state == State::free || forgotten) {
            if (forgotten) store_state(record, State::free);
            record.next_free = header.free_head;
            header.free_head = i + 1;
            continue;
        }
        ++active;
        if (record.sequence >= header.next_sequence) header.next_sequence = record.sequence + 1;
        VersionLine& version = memory_->versions[record.version_line];
        poke(version.in_flight, version.in_flight + 1);
        SessionLine& line = memory_->sessions[record.session];
        if (line.epoch == record.epoch) {
            poke(line.in_flight, line.in_flight + 1);
            // Its holder died between making the record and retiring the entry.
            if (record.ring_position == line.head) poke(line.head, line.head + 1);
        }
        poke(record.offered, std::uint16_t{0});
        const bool suspended = record.suspended != 0;  // its worker's, until that gives it back or is buried
        if (record.counted != 0 && (state != State::queued || suspended)) ++memory_->models[version.model].running;
        if (state == State::queued && !suspended) {
            record.counted = 0;
            record.due_ns = 0;  // it has waited long enough
            record.worker = nobody;  // its holder died between choosing it and saying so
            // The one that had been unblocked is so again at the next look.
            if ((record.entry.flags & entry_after) != 0) {
                record.tag = 0;  // its clock may have been started: its turn is as soon as it can run
                block(i);
            } else {
                heap_push(i);
            }
        }
    }
    // Those that wait are in the order in which they came.
    std::uint32_t* blocked = memory_->blocked;
    std::sort(blocked, blocked + header.blocked_size, [&](std::uint32_t a, std::uint32_t b) { return memory_->records[a].sequence < memory_->records[b].sequence; });
    header.active.store(active, std::memory_order_relaxed);
}

void Pool::prune() noexcept {
    std::uint32_t* heap = memory_->heap;
    const std::uint32_t size = memory_->header.heap_size;
    std::uint32_t kept = 0;
    for (std::uint32_t i = 0; i < size; ++i) {
        const std::uint32_t index = heap[i];
        if (state_of_record(memory_->records[index]) == State::queued) heap[kept++] = index;
        else free_record(index);
    }
    poke(memory_->header.heap_size, kept);
    heapify();
    prune_offered();
    kept = 0;
    for (std::uint32_t i = 0; i < memory_->header.blocked_size; ++i) {
        const std::uint32_t index = memory_->blocked[i];
        if (state_of_record(memory_->records[index]) == State::queued) {
            poke(memory_->blocked[kept++], index);
            continue;
        }
        uncount_blocked(memory_->records[index]);
        free_record(index);
    }
    poke(memory_->header.blocked_size, kept);
    prune_held();
}

}  // namespace teal
