// The worker's way with one request: begun, run, ended (host/worker.hpp).
#include <algorithm>
#include <cstring>

#include "cpu/clock.hpp"
#include "host/bpf_session.hpp"
#include "host/hot.hpp"
#include "host/worker.hpp"

namespace teal {
namespace {

std::uint64_t cold_after_ticks() noexcept {
    static const std::uint64_t value = ns_to_ticks(100'000);
    return value;
}

}  // namespace

// The answer to a plain success, as soon as the kernel is done. What it needs is at hand: after a long kernel everything else is out of the
// caches.
TEAL_HOT bool Worker::Begun::answer() {
    ending.started = run.started;
    ending.ended = ticks();
    told = end_request(*line, generation, ending);
    if (ending.ended - ending.started > cold_after_ticks()) worker->fetch_path(record, ending);
    return true;
}

TEAL_HOT void Worker::execute(std::uint32_t index) {
    show_core();
    if (pool_->memory().records[index].suspended == index_ + 1) [[unlikely]] {
        go_on(index);
        return;
    }
    Begun begun;
    if (!begin(begun, index)) return;
    if (begun.slot != nullptr) {
        if (begun.slot->binding->preemption != Preemption::none && may_leave(*begun.slot->binding, index)) [[unlikely]] {
            run_leaving(std::make_unique<Begun>(std::move(begun)));
            return;
        }
        run_through(begun);
    }
    settle(begun);
    count_overrun(begun);
}

// False: nobody is there to be told of it.
TEAL_HOT bool Worker::begin(Begun& begun, std::uint32_t index) {
    Record& record = pool_->memory().records[index];
    line_.record.store(index, std::memory_order_relaxed);
    serving_ = record.session;
    begun.run.record = begun.record = index;
    begun.run.record_generation = record.state.load(std::memory_order_relaxed) >> 8;
    begun.session = session_of(record);
    if (begun.session == nullptr) {
        abandon(index);
        return false;
    }
    begun.worker = this;
    begun.version_line = record.version_line;
    begun.slot_index = record.entry.slot;
    begun.generation = record.entry.generation;
    begun.submitted = join(record.entry.submitted_low, record.entry.submitted_high);
    begun.slot = prepared(*begun.session, record, after_of(index), begun.run, begun.ending);
    begun.line = &begun.session->map->lines()[begun.slot_index];
    const VersionLine& version = pool_->memory().versions[begun.version_line];
    if (begun.slot == nullptr) return true;
    if ((version.flags & kernel_pure) == 0 && !claim_request(*begun.line, begun.generation)) {
        begun.ending.state = State::cancelled;
        begun.ending.reason = Reason::client_cancelled;
        begun.slot = nullptr;
        return true;
    }
    begun.ending.version = version.number;
    return true;
}

// From its beginning to its end, on this very stack.
TEAL_HOT void Worker::run_through(Begun& begun) {
    Run& run = begun.run;
    if (preemptor_) {
        preemptor_->disarm();  // what is not asked to leave is not disturbed either
        preemptor_->name(Preemptor::name_of(begun.record, run.record_generation));
    }
    if (seat_ != nullptr) seat_->prefetch_ahead(index_);
    run.started = ticks();
    line_.run_started.store(run.started, std::memory_order_relaxed);
    run.answer_context = &begun;
    run.answer = [](Run& r) { return static_cast<Begun*>(r.answer_context)->answer(); };
    begun.ok = begun.slot->binding->run(run);
}

// Should it have left before it ended, and could not? Whoever asked for that is told by the numbers of its seat.
TEAL_HOT void Worker::count_overrun(const Begun& begun) noexcept {
    const std::uint64_t slice = slice_ns(begun.record);
    const bool over = slice != 0 && begun.ending.ended - begun.ending.started > ns_to_ticks(static_cast<std::int64_t>(slice));
    const bool asked = seat_ != nullptr && seat_->count_unobeyed(index_, begun.record, begun.run.record_generation);
    if (over || asked || (preemptor_ && preemptor_->request_pending())) [[unlikely]]
        pool_->memory().versions[begun.version_line].cannot_preempt.fetch_add(1, std::memory_order_relaxed);
    if (preemptor_) tell_asks();
}

// It has run, or cannot.
TEAL_HOT void Worker::settle(Begun& begun) {
    Run& run = begun.run;
    Ending& ending = begun.ending;
    Slot& slot = begun.session->slots[begun.slot_index];
    if (begun.slot != nullptr) {
        run.path = slot.binding->path;
        if (begun.ok && !run.handed_over && !run.answered) run.done();
        if (!run.answered) {
            ending.started = run.started;
            ending.ended = ticks();
        }
        line_.run_started.store(0, std::memory_order_relaxed);
        if (!begun.ok) {
            ending.state = State::failed;
            ending.reason = Reason::kernel;
        }
        slot.begun = false;
    }
    // The memory of a spill goes with the request that needed it.
    const bool lent = slot.chain.spilled() && !slot.begun;
    if (run.handed_over) {  // the host may have given the record to another request by now
        if (lent) slot = Slot{};
        account(begun.version_line, begun.submitted, begun.session->map->bpf_stages, run, ending);
        line_.record.store(nobody, std::memory_order_relaxed);
        line_.requests.store(line_.requests.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        serving_ = nobody;
        return;
    }
    finish(begun.record, begun.session, run, ending, begun.told);
    if (lent) slot = Slot{};
    // Not before the client has its answer.
    if (wait_began_ != 0 && ending.started != 0) spin_.learn(static_cast<std::uint64_t>(ticks_to_ns(ending.started - wait_began_)));
    wait_began_ = 0;
}

TEAL_HOT void Worker::finish(std::uint32_t index, Session* session, Run& run, Ending ending, bool told, std::uint64_t share) {
    Record& record = pool_->memory().records[index];
    if (!run.answered) told = tell(record, session, run, ending);
    if (!told) {  // the client cancelled it or its deadline passed; when the host saw to that, the record says so too
        ending.state = State::cancelled;
        if (session != nullptr) ending.state = state_seen(session->map->lines()[record.entry.slot], record.entry.generation, ending.state);
    }
    VersionLine& version = pool_->memory().versions[record.version_line];
    if (pool_->end_record(index, ending.state)) Pool::count_end(version, ending.state);
    if (pool_->seated()) [[unlikely]] pool_->note_run(index, ending.started, ending.ended, seat_.get());
    if (Trace* trace = pool_->trace(); trace != nullptr && ending.started != 0) [[unlikely]] {
        trace->add(TraceKind::run, ending.ended, piece_began_ != 0 ? piece_began_ : ending.started, index_, index,
                   static_cast<std::uint32_t>(ending.state == State::done ? TraceEnd::done : TraceEnd::failed), record.version_line);
    }
    // What its session is charged: preparing a new slot may take longer than the run.
    std::uint64_t spent = run.prepare_ticks;
    if (ending.started != 0) spent += (ending.ended - ending.started) / share;
    const std::uint64_t ran = piece_began_ != 0 ? 0 : static_cast<std::uint64_t>(ticks_to_ns(spent));
    const auto ran_ns = static_cast<std::uint32_t>(std::min<std::uint64_t>(ran, UINT32_MAX));
    piece_began_ = 0;
    BpfStages* bpf_stages = session != nullptr ? session->map->bpf_stages : nullptr;
    account(record.version_line, join(record.entry.submitted_low, record.entry.submitted_high), bpf_stages, run, ending, share);
    serving_ = nobody;
    line_.record.store(nobody, std::memory_order_relaxed);
    line_.requests.store(line_.requests.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    finished_.push_back(index);
    ran_ns_.push_back(ran_ns);
}

// The client first: it is the one who waits, and should we die before the record ends, the host finds that it has its answer.
bool Worker::tell(const Record& record, Session* session, const Run& run, Ending& ending) {
    ending.version = pool_->memory().versions[record.version_line].number;
    ending.copied_in = run.bytes_in;
    ending.copied_out = run.bytes_out;
    if (run.reshaped) ending.flags |= word_reshaped;
    const Descriptor* descriptor = run.descriptor;
    if (!run.message.empty() && descriptor != nullptr && descriptor->block != nullptr && descriptor->message_capacity > 0) {
        const std::size_t size = std::min<std::size_t>(run.message.size(), descriptor->message_capacity);
        std::memcpy(descriptor->block + descriptor->message_offset, run.message.data(), size);
        const auto stored = static_cast<std::uint32_t>(size);
        std::memcpy(descriptor->block + offsetof(DescriptorHeader, message_size), &stored, sizeof stored);
        ending.flags |= word_message;
    }
    return session != nullptr && end_request(session->map->lines()[record.entry.slot], record.entry.generation, ending);
}

TEAL_HOT void Worker::account(std::uint32_t version_line, std::uint64_t submitted, BpfStages* bpf_stages, const Run& run, const Ending& ending,
                     std::uint64_t share) noexcept {
    PoolMemory& memory = pool_->memory();
    VersionLine& version = memory.versions[version_line];
    if (run.copies_in > 0) version.copies_in.fetch_add(run.copies_in, std::memory_order_relaxed);
    if (run.copies_out > 0) version.copies_out.fetch_add(run.copies_out, std::memory_order_relaxed);
    if (run.bytes_in + run.bytes_out > 0) version.bytes_copied.fetch_add(run.bytes_in + run.bytes_out, std::memory_order_relaxed);
    if (run.path != Path::none) version.paths[static_cast<std::size_t>(run.path) - 1].fetch_add(1, std::memory_order_relaxed);
    if (run.chained) version.chained.fetch_add(1, std::memory_order_relaxed);
    if (run.fallback) version.fallbacks.fetch_add(1, std::memory_order_relaxed);
    if (ending.started == 0) return;
    Histogram* stages = memory.histograms[version_line].stages;
    const auto ns = [](std::uint64_t interval) { return static_cast<std::uint64_t>(ticks_to_ns(interval)); };
    const std::uint64_t queue_ns = ending.started > submitted ? ns(ending.started - submitted) : 0;
    const std::uint64_t run_ns = ns(ending.ended - ending.started);
    stages[static_cast<std::size_t>(Stage::queue)].add(queue_ns);
    if (bpf_stages != nullptr) {
        bpf_stages->queue.add(queue_ns);
        bpf_stages->run.add(run_ns);
    }
    stages[static_cast<std::size_t>(Stage::run)].add(run_ns);
    if (run.copy_ticks > 0) stages[static_cast<std::size_t>(Stage::copy)].add(ns(run.copy_ticks));
    const std::uint64_t average = version.run_ns.load(std::memory_order_relaxed);
    const std::uint64_t next = average == 0 ? run_ns / share : (average * 7 + run_ns / share) / 8;
    version.run_ns.store(static_cast<std::uint32_t>(std::min<std::uint64_t>(next, UINT32_MAX)), std::memory_order_relaxed);
}

}  // namespace teal
