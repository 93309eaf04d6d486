// Library: begin and end, fork, shared memory, statistics.
#include "capi/library.hpp"

#include <algorithm>
#include <cstring>
#include <pthread.h>

#include "base/error.hpp"
#include "capi/pin.hpp"
#include "capi/strings.hpp"
#include "cpu/clock.hpp"

#ifndef TEAL_VERSION
#define TEAL_VERSION "unknown"
#endif

namespace teal::capi {
namespace {

std::mutex beginning;  // init, finalize and fork: one at a time

constexpr std::uint64_t given_back_at_once = 1u << 20;  // a freed block from this size on
constexpr std::uint64_t kept = 4u << 20;                // bytes of empty regions that stay

void before_fork() noexcept {
    beginning.lock();
    lock_strings();
}
void after_fork_in_parent() noexcept {
    unlock_strings();
    beginning.unlock();
}

}  // namespace

std::atomic<Library*> Library::current{nullptr};

void Library::after_fork_in_child() noexcept {
    Library* library = current.load(std::memory_order_relaxed);
    if (library != nullptr && library->phase_.load(std::memory_order_relaxed) != Phase::closed) {
        library->phase_.store(Phase::forked, std::memory_order_relaxed);
        if (library->control_) library->control_->forget();
    }
    unlock_strings();
    beginning.unlock();
}

Library& Library::get() {
    // SYNC: acquire pairs with init(): the library is constructed.
    Library* library = current.load(std::memory_order_acquire);
    if (library == nullptr) throw Failure(LAIKA_ERR_NOT_INITIALIZED, "call laika_init first");
    return *library;
}

void Library::refuse() const {
    switch (phase_.load(std::memory_order_acquire)) {
        case Phase::forked: throw Failure(LAIKA_ERR_FORKED, "initialised before fork(): call laika_init in the child");
        case Phase::closing: throw Failure(LAIKA_ERR_NOT_INITIALIZED, "laika_finalize is being called");
        default: throw Failure(LAIKA_ERR_NOT_INITIALIZED, "laika_finalize was called; call laika_init again first");
    }
}

void Library::check_host() const {
    if (host_gone_.load(std::memory_order_relaxed))
        throw Failure(LAIKA_ERR_HOST_GONE, "the host's process is gone; laika_finalize, start it again (`teal serve`), then laika_init");
}

// The pool that a caller names, or empty.
std::string Library::pool_named(const laika_options_t* options) {
    if (options == nullptr) return {};
    if (options->size != sizeof(laika_options_t))
        throw Failure(LAIKA_ERR_INVALID, "options.size: " + std::to_string(options->size) + ", expected sizeof(laika_options_t) = " + std::to_string(sizeof(laika_options_t)) + " of this library");
    if (options->pool == nullptr) return {};
    const std::string pool(options->pool, ::strnlen(options->pool, LAIKA_MAX_NAME + 1));
    if (pool.empty() || pool.size() > LAIKA_MAX_NAME) throw Failure(LAIKA_ERR_INVALID, "options.pool: " + std::to_string(pool.size()) + " bytes or more, expected 1 to 128");
    return pool;
}

laika_status_t Library::init(const char* address, unsigned flags, const laika_options_t* options) {
    const std::string pool = pool_named(options);
    if (flags != LAIKA_INIT_DEFAULT) throw Failure(LAIKA_ERR_INVALID, "flags: " + std::to_string(flags) + ", expected LAIKA_INIT_DEFAULT");
    static std::once_flag watched;
    std::call_once(watched, [] { ::pthread_atfork(&before_fork, &after_fork_in_parent, &Library::after_fork_in_child); });
    const std::lock_guard lock(beginning);
    Library* library = current.load(std::memory_order_acquire);
    if (library == nullptr || library->phase_.load(std::memory_order_acquire) == Phase::forked) {
        // A forked child leaves its parent's as it is: nobody can tell what state its locks are in. Never destroyed: threads may come late.
        static std::vector<Library*>& all = *new std::vector<Library*>;
        library = new Library;
        library->next_id_.store((ticks() & 0xffffff) + 1, std::memory_order_relaxed);  // so that a made-up number is hardly ever a handle
        all.push_back(library);
        // SYNC: release pairs with get().
        current.store(library, std::memory_order_release);
    }
    if (library->phase_.load(std::memory_order_acquire) == Phase::open)
        throw Failure(LAIKA_ERR_INITIALIZED, "connected to " + library->control_->address() + " already; laika_finalize first to connect elsewhere");
    library->connect(address, pool.empty() ? std::string("default") : pool);
    return LAIKA_OK;
}

void Library::connect(const char* address, const std::string& pool) {
    const std::unique_lock alone(life_);
    control_ = std::make_unique<Control>(address, "liblaika " TEAL_VERSION);
    try {
        home_ = open_session(*control_, pool).release();
        pools_.store(home_, std::memory_order_release);
        control_->relax();
    } catch (...) {
        end_sessions();
        control_.reset();
        throw;
    }
    for (std::atomic<std::uint64_t>* counter : {&counters_.calls, &counters_.failed, &counters_.prepared, &counters_.copies_in, &counters_.bytes_in,
                                                &counters_.copies_out, &counters_.bytes_out})
        counter->store(0, std::memory_order_relaxed);
    host_gone_.store(false, std::memory_order_relaxed);
    // SYNC: release pairs with the loads in Stay; a Pin needs a model, which comes after.
    phase_.store(Phase::open, std::memory_order_release);
}

laika_status_t Library::finalize() {
    if (phase_.load(std::memory_order_acquire) == Phase::forked) refuse();
    const std::lock_guard lock(beginning);
    Phase open = Phase::open;
    if (!phase_.compare_exchange_strong(open, Phase::closing, std::memory_order_acq_rel)) refuse();
    // Everybody who waits is told: for a request within a nap, for the host at once.
    for (PoolSession* each = pools_.load(std::memory_order_acquire); each != nullptr; each = each->next) each->session->close();
    control_->hang_up();
    disconnect();
    phase_.store(Phase::closed, std::memory_order_release);
    return LAIKA_OK;
}

void Library::disconnect() noexcept {
    const std::unique_lock alone(life_);
    std::vector<std::shared_ptr<Model>> models;
    for (std::uint32_t i = 0; i < most_models; ++i)
        if (entries_[i].id.exchange(0, std::memory_order_seq_cst) != 0) models.push_back(leave_entry(entries_[i]));
    held_.clear();
    {
        const std::lock_guard lock(calls_);
        for (auto& [id, call] : in_flight_) {
            call.model->shelf.remove(call.prepared);
            dispose(call.prepared);
        }
        in_flight_.clear();
    }
    for (const auto& model : models) clear_shelf(*model);
    {
        const std::lock_guard lock(events_);
        known_events_.clear();
    }
    const std::lock_guard lock(memory_);
    sweep_limbo();
    blocks_ = Blocks();
    end_sessions();
    control_.reset();
}

// Nobody is inside.
void Library::end_sessions() noexcept {
    for (PoolSession* each = pools_.exchange(nullptr, std::memory_order_acq_rel); each != nullptr;) {
        const std::unique_ptr<PoolSession> owned(each);
        each = each->next;
    }
    home_ = nullptr;
}

// ---- pools ---------------------------------------------------------------------------------------------------------------

PoolSession& Library::pool_session(const std::string& pool) {
    if (pool.empty()) return *home_;
    const std::lock_guard lock(opening_);
    PoolSession* first = pools_.load(std::memory_order_acquire);
    for (PoolSession* each = first; each != nullptr; each = each->next)
        if (each->pool == pool) return *each;
    std::unique_ptr<PoolSession> made = open_session(*control_, pool);
    // finalize() closes the sessions that it sees in the list, and may have been there already.
    if (phase_.load(std::memory_order_acquire) != Phase::open) made->session->close();
    made->next = first;
    // SYNC: release pairs with the acquire loads of pools_: the session is complete.
    pools_.store(made.get(), std::memory_order_release);
    return *made.release();
}

bool Library::touches(const void* data, std::uint64_t bytes) const noexcept {
    for (PoolSession* each = pools_.load(std::memory_order_acquire); each != nullptr; each = each->next)
        if (each->memory->touches(data, bytes)) return true;
    return false;
}

// ---- shared memory -----------------------------------------------------------------------------------------------------

Shm& Library::shm_of(laika_shm_t shm) {
    Shm* found = blocks_.by_id(shm.id);
    if (found == nullptr) throw Failure(LAIKA_ERR_HANDLE, shm.id == 0 ? "shm: a zero handle; was laika_shm_alloc successful?" : "shm: not a shared memory of this process, or freed already");
    return *found;
}

laika_status_t Library::shm_alloc(std::size_t bytes, unsigned flags, const laika_options_t* options, laika_shm_t* shm) {
    if (shm == nullptr) throw Failure(LAIKA_ERR_POINTER, "shm: NULL, expected where to put the handle");
    shm->id = 0;
    const std::string pool_name = pool_named(options);
    const Stay stay(*this);
    check_host();
    if (flags == 0 || (flags & ~(LAIKA_SHM_INPUT | LAIKA_SHM_OUTPUT)) != 0)
        throw Failure(LAIKA_ERR_INVALID, "flags: " + std::to_string(flags) + ", expected LAIKA_SHM_INPUT, LAIKA_SHM_OUTPUT or both");
    if (bytes == 0) throw Failure(LAIKA_ERR_INVALID, "bytes: 0, expected 1 or more");
    if (bytes > std::uint64_t{1} << 46) throw Failure(LAIKA_ERR_QUOTA, "bytes: " + std::to_string(bytes) + ", expected at most 2^46");
    PoolSession& pool = pool_session(pool_name);
    std::shared_ptr<Block> block = pool.memory->take(bytes, bytes >= device_align ? device_align : tensor_align);
    std::memset(block->memory->base() + block->offset, 0, bytes);
    const std::lock_guard lock(memory_);
    shm->id = blocks_.add(new_id(), pool, std::move(block), bytes, flags).id;
    return LAIKA_OK;
}

laika_status_t Library::shm_map(laika_shm_t shm, void** data) {
    if (data == nullptr) throw Failure(LAIKA_ERR_POINTER, "data: NULL, expected where to put the address");
    *data = nullptr;
    const Stay stay(*this);
    const std::lock_guard lock(memory_);
    Shm& found = shm_of(shm);
    if (found.maps == UINT32_MAX) throw Failure(LAIKA_ERR_QUOTA, "mapped 2^32 - 1 times");
    ++found.maps;
    *data = found.base;
    return LAIKA_OK;
}

// Takes the prepared calls over a block off their shelves. Throws busy when one is in use, by a thread or by a worker.
void Library::clear_users(Shm& shm) {
    sweep_limbo();
    const std::vector<Prepared*> users(shm.users.begin(), shm.users.end());
    for (Prepared* prepared : users) {
        if (prepared->shelf == nullptr || !prepared->shelf->take_this(prepared))
            throw Failure(LAIKA_ERR_BUSY, "a request still uses this memory; wait for it (laika_wait), or until the worker has let go of a cancelled one");
        prepared->shelf->remove(prepared);
        dispose_locked(prepared);
    }
    if (!shm.users.empty()) throw Failure(LAIKA_ERR_BUSY, "a worker still uses this memory; try again");
}

laika_status_t Library::shm_unmap(laika_shm_t shm) {
    const Stay stay(*this);
    const std::lock_guard lock(memory_);
    Shm& found = shm_of(shm);
    if (found.maps == 0) throw Failure(LAIKA_ERR_INVALID, "shm: is not mapped");
    if (found.maps == 1) clear_users(found);
    --found.maps;
    return LAIKA_OK;
}

laika_status_t Library::shm_free(laika_shm_t shm) {
    const Stay stay(*this);
    std::uint64_t size = 0;
    PoolSession* pool = nullptr;
    {
        const std::lock_guard lock(memory_);
        Shm& found = shm_of(shm);
        clear_users(found);
        size = found.size;
        pool = found.pool;
        blocks_.erase(shm.id);
    }
    if (size >= given_back_at_once && !host_gone_.load(std::memory_order_relaxed)) pool->memory->shrink(kept);
    return LAIKA_OK;
}

laika_status_t Library::statistics(laika_statistics_t* statistics, std::size_t size) {
    if (statistics == nullptr) throw Failure(LAIKA_ERR_POINTER, "statistics: NULL, expected where to put them");
    if (size != sizeof(laika_statistics_t))
        throw Failure(LAIKA_ERR_INVALID, "size: " + std::to_string(size) + ", expected sizeof(laika_statistics_t) = " + std::to_string(sizeof(laika_statistics_t)) + " of this library");
    const Stay stay(*this);
    std::uint64_t shm_bytes = 0;
    for (PoolSession* each = pools_.load(std::memory_order_acquire); each != nullptr; each = each->next) shm_bytes += each->session->region_bytes();
    const auto get = [](const std::atomic<std::uint64_t>& counter) { return counter.load(std::memory_order_relaxed); };
    *statistics = {get(counters_.calls),     get(counters_.failed),     get(counters_.prepared),  get(counters_.copies_in),
                   get(counters_.bytes_in),  get(counters_.copies_out), get(counters_.bytes_out), shm_bytes};
    return LAIKA_OK;
}

}  // namespace teal::capi
