// HostSeat: transactions, from the desk to their outcome (docs/protocol.md gives the order of the checks).
//
// Theory of operation: serial n of a worker lies in slot n % stage_depth; SeatWorker.next_serial is the one that comes next, and moves on only
// when its slot is committed, which is also when the agent may use the slot again. So a slot that somebody died over is found by
// its state: claimed, and next. The desk is the agent's to scribble on at any time: nothing is read from it twice, and a word that
// makes no sense is settled as such and passed by.
#include "agents/host_seat.hpp"

#include <algorithm>
#include <cstring>

namespace teal {
namespace {

constexpr std::uint8_t known_commit_flags = commit_check_agent | commit_idle_only | commit_idempotent | commit_group;
constexpr std::uint8_t known_run_flags = run_may_not_preempt | run_local_default;

void add(std::atomic<std::uint64_t>& counter) noexcept { counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }

// A field that the agent may be changing.
template <class T>
T glance(const T& field) noexcept { return __atomic_load_n(&field, __ATOMIC_RELAXED); }

}  // namespace

bool HostSeat::staged(std::uint32_t worker) noexcept {
    const std::uint32_t serial = map_.seat_worker(worker).next_serial.load(std::memory_order_relaxed);
    const Transaction& slot = map_.worker_desk(worker).slots[serial % stage_depth];
    // SYNC: seq_cst pairs with AgentSeat::ring(), for a worker that is about to sleep; on x86 a plain load.
    const std::uint64_t word = slot.word.load(std::memory_order_seq_cst);
    if (link_ != nullptr) return visible(worker, serial, slot);
    return serial_of(word) == serial && transaction_state_of(word) != TransactionState::empty;
}

// Over a link: pays for a look at the slot, unless the last one showed this transaction.
bool HostSeat::visible(std::uint32_t worker, std::uint32_t serial, const Transaction& slot) noexcept {
    for (;;) {
        const bool ahead = link_->is_ahead(worker, serial);  // what comes may be too old to show it: look again then
        if (seen_at_ == 0 || seen_serial_ != serial) seen_at_ = read_slot(link_.get(), worker, serial);
        seen_serial_ = serial;
        // SYNC: acquire pairs with the release of AgentSeat::stage().
        const std::uint64_t word = slot.word.load(std::memory_order_acquire);
        const bool there = serial_of(word) == serial && transaction_state_of(word) != TransactionState::empty;
        if (there && is_visible(link_.get(), glance(slot.staged), seen_at_)) return true;
        seen_at_ = 0;
        if (!ahead) return false;
    }
}

void HostSeat::woken(std::uint32_t worker) noexcept {
    set_asleep(worker, false);
    if (link_ == nullptr) return;
    const std::uint32_t serial = map_.seat_worker(worker).next_serial.load(std::memory_order_relaxed);
    const Transaction& slot = map_.worker_desk(worker).slots[serial % stage_depth];
    const std::uint64_t word = slot.word.load(std::memory_order_acquire);
    // Was it the agent's kick? It was sent with the decision.
    if (serial_of(word) == serial && transaction_state_of(word) == TransactionState::ready) receive_kick(link_.get(), glance(slot.staged));
}

void HostSeat::settle(std::uint32_t worker, std::uint32_t serial, Outcome outcome) noexcept {
    // SYNC: release pairs with the acquire in AgentSeat::outcome(): what was done about it is done.
    map_.worker_desk(worker).slots[serial % stage_depth].word.store(transaction_word(serial, TransactionState::committed, outcome), std::memory_order_release);
    // SYNC: release pairs with the acquire in AgentSeat::room(): only now may the slot be written again.
    map_.seat_worker(worker).next_serial.store(serial + 1, std::memory_order_release);
    add(numbers().outcomes[static_cast<std::size_t>(outcome)]);
    seen_at_ = 0;
    if (link_ == nullptr) return;
    ++settled_;
    if (!batches(link_.get())) flush(true);
}

// All that lies ready is refused; what was withdrawn is passed by.
void HostSeat::void_desk(std::uint32_t worker, Outcome why) noexcept {
    for (std::uint32_t turn = 0; turn < stage_depth; ++turn) {
        const std::uint32_t serial = map_.seat_worker(worker).next_serial.load(std::memory_order_relaxed);
        Transaction& slot = map_.worker_desk(worker).slots[serial % stage_depth];
        std::uint64_t word = slot.word.load(std::memory_order_acquire);
        if (serial_of(word) != serial || transaction_state_of(word) == TransactionState::empty) return;
        const bool ready = transaction_state_of(word) == TransactionState::ready;
        // SYNC: acq_rel: against AgentSeat::withdraw(); one of the two has it.
        const bool ours = ready && slot.word.compare_exchange_strong(word, transaction_word(serial, TransactionState::claimed), std::memory_order_acq_rel);
        settle(worker, serial, ours || transaction_state_of(word) == TransactionState::claimed ? why : Outcome::aborted);
    }
}

// The next transaction of a worker's desk. settled: it was passed by, look again.
HostSeat::Next HostSeat::take_up(std::uint32_t worker, Claim& claim) noexcept {
    const std::uint32_t serial = map_.seat_worker(worker).next_serial.load(std::memory_order_relaxed);
    Transaction& slot = map_.worker_desk(worker).slots[serial % stage_depth];
    if (link_ != nullptr && !visible(worker, serial, slot)) return Next::none;
    // SYNC: acquire pairs with the release of AgentSeat::stage(): the rest of the slot is complete.
    std::uint64_t word = slot.word.load(std::memory_order_acquire);
    if (serial_of(word) != serial) return Next::none;
    switch (transaction_state_of(word)) {
        case TransactionState::empty: return Next::none;
        case TransactionState::ready: break;
        case TransactionState::committed:  // withdrawn
            settle(worker, serial, Outcome::aborted);
            return Next::settled;
        default:
            add(numbers().forged);
            settle(worker, serial, Outcome::aborted);
            return Next::settled;
    }
    // SYNC: acq_rel: against AgentSeat::withdraw(); one of the two has it.
    if (!slot.word.compare_exchange_strong(word, transaction_word(serial, TransactionState::claimed), std::memory_order_acq_rel)) {
        settle(worker, serial, Outcome::aborted);
        return Next::settled;
    }
    charge_rest_of_slot(link_.get());
    claim.worker = worker;
    claim.serial = serial;
    std::memcpy(&claim.decided, reinterpret_cast<const std::byte*>(&slot) + sizeof slot.word, sizeof claim.decided);  // the one copy
    return Next::taken;
}

Outcome HostSeat::check_flags(const Decided& d) const noexcept {
    if ((d.commit_flags & ~known_commit_flags) != 0 || (d.run_flags & ~known_run_flags) != 0) return Outcome::invalid_flags;
    const bool group = (d.commit_flags & commit_group) != 0;
    if (group ? d.group == 0 || d.members == 0 || d.members > max_group : d.group != 0) return Outcome::invalid_flags;
    if ((d.run_flags & run_local_default) != 0 && (d.object != no_object || group)) return Outcome::invalid_flags;
    return Outcome::complete;
}

// The order is part of the protocol: ghOSt's, with what a request has beyond a thread at the end.
Outcome HostSeat::check(const Claim& claim) noexcept {
    const Decided& d = claim.decided;
    const SeatWorker& line = map_.seat_worker(claim.worker);
    if (d.version != agent_protocol) return Outcome::unsupported_version;
    if (const Outcome flags = check_flags(d); flags != Outcome::complete) return flags;
    if ((line.flags & worker_online) == 0) return Outcome::worker_offline;
    if (d.object == no_object) {
        if ((d.run_flags & run_local_default) == 0) return Outcome::invalid_target;
    } else {
        if (d.object >= map_.layout.records) return Outcome::invalid_target;
        RequestWord word;
        map_.request_word(d.object).copy_own(word);
        if ((word.flags & request_in_use) == 0 || word.generation != d.generation) return Outcome::not_found;
        if (word.tseq != d.tseq) return Outcome::target_stale;
        if ((word.flags & request_is_runnable) == 0) return Outcome::not_runnable;
        if ((word.flags & request_on_worker) != 0) return Outcome::already_running;
        if (!is_active()) return Outcome::no_agent;
        if (word.seat != seat_ || (word.worker != no_object && word.worker != claim.worker)) return Outcome::not_permitted;
    }
    if (!is_active()) return Outcome::no_agent;
    if ((line.flags & worker_of_seat) == 0) return Outcome::worker_unavailable;
    if ((d.commit_flags & commit_idle_only) != 0 && line.running != no_object) return Outcome::worker_unavailable;
    if ((d.commit_flags & commit_check_agent) != 0 && d.aseq != view_header().aseq.load(std::memory_order_relaxed)) return Outcome::agent_stale;
    if (d.expires_ns != 0 && clock_.now_ns() > d.expires_ns) return Outcome::timeout;
    return Outcome::complete;
}

void HostSeat::commit(const Claim& claim, Outcome outcome) noexcept {
    const Decided& d = claim.decided;
    settle(claim.worker, claim.serial, outcome);
    if (trace_ != nullptr) [[unlikely]] {
        const std::uint64_t at = clock_.ticks();
        trace_->add(TraceKind::decision, at, std::min(d.staged, at), claim.worker, d.object, static_cast<std::uint32_t>(outcome), d.slice_us);
    }
    if (outcome != Outcome::complete) {
        Message m = message(MessageType::latch_failure, d.object);
        m.generation = d.generation;
        m.tseq = d.tseq;
        m.worker = claim.worker;
        m.flags = message_latched;
        m.latch.serial = claim.serial;
        m.latch.why = static_cast<std::uint8_t>(outcome);
        send(m);
        return;
    }
    add(numbers().hits);
    ++map_.seat_worker(claim.worker).hits;
    const std::uint64_t now = clock_.ticks();
    const std::uint64_t staged = std::min(d.staged, now);
    Histogram& age = numbers().age;
    std::atomic<std::uint32_t>& bucket = age.buckets[Histogram::bucket_of(clock_.to_ns(now - staged))];
    bucket.store(bucket.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (d.object == no_object) return;  // the caller says what it took: taken()
    StatusWord& entry = map_.request_word(d.object);
    RequestWord word;
    entry.copy_own(word);
    word.flags = (word.flags | request_on_worker) & ~request_suspended;
    word.worker = claim.worker;
    word.priority = d.priority;
    entry.write(word);
    RequestTimes& times = map_.times(d.object);
    times.decided = std::max(staged, times.told);
    times.committed = now;
    times.started.store(0, std::memory_order_relaxed);
    times.ended.store(0, std::memory_order_relaxed);
    enter_worker(claim.worker, d.object, d.generation);
}

// Are all members where they have to be: each the next of its worker?
bool HostSeat::group_complete(const Transaction& first) noexcept {
    const std::uint32_t group = glance(first.group);
    const std::uint32_t members = glance(first.members);
    if (group == 0 || members == 0 || members > max_group) return true;  // refused when it is looked at closely
    const std::uint64_t expires = glance(first.expires_ns);
    if (expires != 0 && clock_.now_ns() > expires) return true;
    std::uint32_t found = 0;
    for (std::uint32_t i = 0; i < map_.layout.workers && found < members; ++i) {
        const std::uint32_t serial = map_.seat_worker(i).next_serial.load(std::memory_order_relaxed);
        const Transaction& slot = map_.worker_desk(i).slots[serial % stage_depth];
        // SYNC: acquire pairs with the release of AgentSeat::stage().
        const std::uint64_t word = slot.word.load(std::memory_order_acquire);
        if (serial_of(word) == serial && transaction_state_of(word) == TransactionState::ready && glance(slot.group) == group &&
            (glance(slot.commit_flags) & commit_group) != 0 && (link_ == nullptr || link_->is_visible(glance(slot.staged), link_->now())))
            ++found;
    }
    return found == members;
}

// `first` is claimed. All members pass, or all are settled: the refused ones as they deserve, the others poisoned. Returns how many passed.
unsigned HostSeat::claim_group(const Claim& first, std::span<Claim> out) noexcept {
    const std::uint32_t members = std::min<std::uint32_t>(first.decided.members, static_cast<std::uint32_t>(out.size()));
    Outcome outcomes[max_group];
    unsigned count = 0;
    out[count++] = first;
    for (std::uint32_t i = 0; i < map_.layout.workers && count < members; ++i) {
        if (i == first.worker) continue;
        const std::uint32_t serial = map_.seat_worker(i).next_serial.load(std::memory_order_relaxed);
        const Transaction& slot = map_.worker_desk(i).slots[serial % stage_depth];
        const std::uint64_t word = slot.word.load(std::memory_order_acquire);
        if (serial_of(word) != serial || transaction_state_of(word) != TransactionState::ready || glance(slot.group) != first.decided.group) continue;
        if (take_up(i, out[count]) == Next::taken) ++count;
    }
    bool all = count == first.decided.members;
    for (unsigned i = 0; i < count; ++i) {
        const Decided& d = out[i].decided;
        outcomes[i] = check(out[i]);
        if (outcomes[i] == Outcome::complete && (d.group != first.decided.group || d.members != first.decided.members || (d.commit_flags & commit_group) == 0))
            outcomes[i] = Outcome::invalid_flags;  // changed under our hands
        if (outcomes[i] == Outcome::complete && map_.seat_worker(out[i].worker).running != no_object) outcomes[i] = Outcome::worker_unavailable;
        for (unsigned j = 0; j < i && outcomes[i] == Outcome::complete; ++j)
            if (out[j].decided.object == d.object) outcomes[i] = Outcome::invalid_target;
        all = all && outcomes[i] == Outcome::complete;
    }
    if (all) {
        add(numbers().groups);
        return count;
    }
    add(numbers().groups_refused);
    for (unsigned i = 0; i < count; ++i) commit(out[i], outcomes[i] == Outcome::complete ? Outcome::poisoned : outcomes[i]);
    return 0;
}

unsigned HostSeat::claim(std::uint32_t worker, std::span<Claim> out) noexcept {
    if (worker >= map_.layout.workers) return 0;
    // An agent that stages as fast as it is refused holds nobody up: the worker comes back for the rest.
    for (std::uint32_t turn = 0; turn < 2 * stage_depth; ++turn) {
        const std::uint32_t serial = map_.seat_worker(worker).next_serial.load(std::memory_order_relaxed);
        const Transaction& slot = map_.worker_desk(worker).slots[serial % stage_depth];
        if ((glance(slot.commit_flags) & commit_group) != 0) [[unlikely]] {
            const std::uint64_t word = slot.word.load(std::memory_order_acquire);
            if (serial_of(word) == serial && transaction_state_of(word) == TransactionState::ready && !group_complete(slot)) return 0;
        }
        const Next next = take_up(worker, out[0]);
        if (next == Next::none) return 0;
        if (next == Next::settled) continue;
        if ((out[0].decided.commit_flags & commit_group) != 0 && check_flags(out[0].decided) == Outcome::complete) [[unlikely]] {
            const Claim first = out[0];
            if (const unsigned count = claim_group(first, out); count > 0) return count;
            continue;
        }
        const Outcome outcome = check(out[0]);
        if (outcome == Outcome::complete) return 1;
        RequestWord running{};
        if (outcome == Outcome::already_running) map_.request_word(out[0].decided.object).copy_own(running);
        // Said twice, and true: no refusal, and nothing to do.
        if (outcome == Outcome::already_running && (out[0].decided.commit_flags & commit_idempotent) != 0 && running.worker == worker)
            settle(worker, out[0].serial, Outcome::complete);
        else commit(out[0], outcome);
    }
    return 0;
}

}  // namespace teal
