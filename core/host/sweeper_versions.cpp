// Sweeper: versions of models in a pool's table: opened while they load, published, parked and brought back, retired, freed.
//
// Theory of operation: a line of the table is a version's from open_version() until free_version(), which comes when nobody holds it any more. What
// pick() looks at (its state, and which version a name means) changes under the role; all else is the host's own.
#include "host/sweeper.hpp"

#include <string>

#include "base/error.hpp"
#include "host/words.hpp"

namespace teal {

std::uint32_t Sweeper::open_version(std::uint32_t model, std::uint32_t number, std::uint32_t flags, std::uint32_t native_op) {
    const std::lock_guard lock(mutex_);
    if (model >= max_models) throw Error(Code::quota_exceeded, "this pool has seen 1024 model names, the most it keeps; restart the host");
    PoolMemory& memory = pool_->memory();
    for (std::uint32_t i = 0; i < max_versions; ++i) {
        VersionLine& version = memory.versions[i];
        if (static_cast<VersionState>(version.state.load(std::memory_order_relaxed)) != VersionState::empty) continue;
        enter();
        ++version.generation;
        version.model = model;
        version.number = number;
        version.flags = flags;
        version.native_op = native_op;
        __atomic_store_n(&version.in_flight, 0, __ATOMIC_RELAXED);
        version.run_ns.store(0, std::memory_order_relaxed);
        for (auto* counter : {&version.requests, &version.failed, &version.cancelled, &version.expired, &version.copies_in, &version.copies_out,
                              &version.bytes_copied, &version.bindings, &version.paths[0], &version.paths[1], &version.paths[2], &version.fallbacks, &version.chained, &version.batches, &version.batched, &version.held,
                              &version.preemptions, &version.yields, &version.resumed, &version.cannot_preempt, &version.dropped})
            counter->store(0, std::memory_order_relaxed);
        for (Histogram& stage : memory.histograms[i].stages)
            for (auto& bucket : stage.buckets) bucket.store(0, std::memory_order_relaxed);
        version.state.store(static_cast<std::uint32_t>(VersionState::loading), std::memory_order_release);
        pool_->leave();
        return i;
    }
    throw Error(Code::quota_exceeded, "this pool holds 256 model versions, the most it can; unload some");
}

void Sweeper::publish_version(std::uint32_t line, bool make_current) {
    const std::lock_guard lock(mutex_);
    enter();
    VersionLine& version = pool_->memory().versions[line];
    version.state.store(static_cast<std::uint32_t>(VersionState::ready), std::memory_order_release);
    if (make_current) pool_->memory().models[version.model].current.store(line + 1, std::memory_order_release);
    pool_->leave();
}

void Sweeper::retire_version(std::uint32_t line) {
    const std::lock_guard lock(mutex_);
    enter();
    pool_->drain(live_);  // what was submitted until now is in flight, and finishes
    VersionLine& version = pool_->memory().versions[line];
    version.state.store(static_cast<std::uint32_t>(VersionState::retiring), std::memory_order_release);
    ModelLine& model = pool_->memory().models[version.model];
    if (model.current.load(std::memory_order_relaxed) == line + 1) model.current.store(0, std::memory_order_release);
    pool_->leave();
    rouse();
}

std::uint32_t Sweeper::version_in_flight(std::uint32_t line) {
    return __atomic_load_n(&pool_->memory().versions[line].in_flight, __ATOMIC_RELAXED);
}

void Sweeper::cancel_version(std::uint32_t line) {
    const std::lock_guard lock(mutex_);
    enter();
    for (std::uint32_t i = 0; i < record_count; ++i) {
        Record& record = pool_->memory().records[i];
        if (record.version_line != line || state_of_record(record) != State::queued) continue;
        end_waiting(i, Reason::unloaded);
    }
    pool_->prune();
    pool_->leave();
    rouse();
}

bool Sweeper::park_version(std::uint32_t line) {
    const std::lock_guard lock(mutex_);
    enter();
    std::atomic<std::uint32_t>& state = pool_->memory().versions[line].state;
    const bool ready = static_cast<VersionState>(state.load(std::memory_order_relaxed)) == VersionState::ready;
    if (ready) state.store(static_cast<std::uint32_t>(VersionState::parked), std::memory_order_release);
    pool_->leave();
    return ready;
}

void Sweeper::unpark_version(std::uint32_t line) {
    const std::lock_guard lock(mutex_);
    enter();
    std::atomic<std::uint32_t>& state = pool_->memory().versions[line].state;
    if (static_cast<VersionState>(state.load(std::memory_order_relaxed)) == VersionState::parked)
        state.store(static_cast<std::uint32_t>(VersionState::ready), std::memory_order_release);
    pool_->leave();
    rouse();
}

std::uint32_t Sweeper::version_running(std::uint32_t line) {
    const std::lock_guard lock(mutex_);
    enter();
    std::uint32_t count = 0;
    for (const Record& record : pool_->memory().records)
        if (record.version_line == line && (state_of_record(record) == State::running || is_suspended(record))) ++count;
    pool_->leave();
    return count;
}

std::uint32_t Sweeper::version_waiting(std::uint32_t line) {
    const std::lock_guard lock(mutex_);
    enter();
    std::uint32_t count = 0;
    for (const Record& record : pool_->memory().records)
        if (record.version_line == line && state_of_record(record) == State::queued && record.suspended == 0) ++count;
    pool_->leave();
    return count;
}

void Sweeper::free_version(std::uint32_t line) {
    const std::lock_guard lock(mutex_);
    pool_->memory().versions[line].state.store(static_cast<std::uint32_t>(VersionState::empty), std::memory_order_release);
}

void Sweeper::set_version_flags(std::uint32_t line, std::uint32_t flags) {
    const std::lock_guard lock(mutex_);
    pool_->memory().versions[line].flags = flags;
}

}  // namespace teal
