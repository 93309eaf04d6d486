// HostSeat: an agent comes or goes, and all words are written anew.
//
// Theory of operation: after a death under the role, when messages were lost and before an agent decides for the first time, who holds the role says for
// each record and worker what is, between begin_restating() and end_restating(). Each tseq rises, so what was decided before is stale; `overflow`
// rises, so the agent reads all of it.
#include "agents/host_seat.hpp"

namespace teal {

void HostSeat::activate() noexcept { view_header().active.store(1, std::memory_order_seq_cst); }

void HostSeat::deactivate(Outcome why) noexcept {
    view_header().active.store(0, std::memory_order_seq_cst);
    for (std::uint32_t i = 0; i < map_.layout.workers; ++i) void_desk(i, why);
}

void HostSeat::begin_restating() noexcept {
    pending_.clear();
    pending_ends_ = 0;
    // Its writer died between the two stores at the end of push(): the agent may be reading it, so it is not to be written over.
    ViewHeader& header = view_header();
    const std::uint32_t head = header.head.load(std::memory_order_relaxed);
    if (map_.ring_slot(head).sequence.load(std::memory_order_relaxed) == head + 1) header.head.store(head + 1, std::memory_order_relaxed);
    for (std::uint32_t i = 0; i < map_.layout.workers; ++i) {
        // Its claimer has died: the request is as its record says.
        for (Transaction& slot : map_.worker_desk(i).slots) {
            const std::uint64_t word = slot.word.load(std::memory_order_acquire);
            if (transaction_state_of(word) != TransactionState::claimed) continue;
            if (serial_of(word) == map_.seat_worker(i).next_serial.load(std::memory_order_relaxed)) settle(i, serial_of(word), Outcome::aborted);
            else slot.word.store(transaction_word(serial_of(word), TransactionState::committed, Outcome::aborted), std::memory_order_release);
        }
    }
}

void HostSeat::restate(const RequestFacts& facts, std::uint32_t flags) noexcept {
    StatusWord& entry = map_.request_word(facts.index);
    RequestWord word;
    entry.copy_own(word);
    fill(word, facts);
    word.flags = (word.flags & ~request_is_runnable) | flags;
    ++word.tseq;
    entry.write(word);
    RequestTimes& times = map_.times(facts.index);
    times.decided = 0;
    if ((flags & request_suspended) != 0 && times.left == 0) times.left = 1;
    if (times.told == 0 || (flags & request_on_worker) == 0) times.told = clock_.ticks();
}

void HostSeat::restate_free(std::uint32_t record) noexcept {
    StatusWord& entry = map_.request_word(record);
    RequestWord word;
    entry.copy_own(word);
    if (word.flags == 0 && (entry.count.load(std::memory_order_relaxed) & 1) == 0) return;
    word.flags = 0;
    word.worker = no_object;
    ++word.tseq;
    entry.write(word);
}

void HostSeat::restate_worker(std::uint32_t worker, std::uint32_t flags, std::uint32_t running, std::uint32_t generation) noexcept {
    SeatWorker& line = map_.seat_worker(worker);
    line.flags = flags & (worker_online | worker_preemptible | worker_of_seat);
    line.running = running;
    line.generation = generation;
    line.told = running == no_object ? 1 : 0;  // the word says it
    line.since = clock_.ticks();
    write_worker(worker);
}

void HostSeat::end_restating() noexcept { lose(); }

void HostSeat::lose() noexcept {
    ViewHeader& header = view_header();
    // SYNC: release pairs with the acquire in AgentSeat::lost().
    header.overflow.store(header.overflow.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    Message m = message(MessageType::agent_rescan, no_object);
    send(m);
}

}  // namespace teal
