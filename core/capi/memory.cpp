#include "capi/memory.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <sys/uio.h>
#include <unistd.h>

#include "base/checked.hpp"
#include "memory/arena.hpp"

extern "C" {
// There when the program is built with AddressSanitizer: then its own report of a bad copy is better than ours.
__attribute__((weak)) void* __asan_region_is_poisoned(void*, std::size_t);
}

namespace teal::capi {
namespace {

constexpr std::uint64_t first_region = 256 * 1024;
constexpr std::uint64_t largest_step = 64u << 20;
constexpr std::uint64_t slack = 8192;                // header page, alignment
constexpr std::uint32_t most_regions = 1u << 20;     // pool.py: ids of a session ever given out

std::string hex(const void* pointer) {
    char text[32];
    std::snprintf(text, sizeof text, "%p", pointer);
    return text;
}

}  // namespace

// ---- Memory --------------------------------------------------------------------------------------------------------

void Memory::grow(std::uint64_t bytes) {
    std::uint64_t padded = 0;
    if (!checked_add(bytes, slack + page_bytes, padded) || padded > std::uint64_t{1} << 46)
        throw Failure(LAIKA_ERR_QUOTA, std::to_string(bytes) + " bytes of shared memory: expected at most 2^46");
    const std::uint64_t exact = (padded - 1) & ~std::uint64_t{page_bytes - 1};
    const std::lock_guard lock(growing_);
    const auto ask = [&](std::uint64_t nbytes) {
        return control_.ask([&](Writer& out) {
            out.map(4);
            out.text("t"); out.text("make_region");
            out.text("session"); out.number(index_);
            out.text("nbytes"); out.number(nbytes);
            out.text("pool"); out.text(pool_);
        });
    };
    const std::uint64_t wanted = std::max({exact, first_region, std::min(session_->region_bytes(), largest_step)}) & ~std::uint64_t{page_bytes - 1};
    Answer answer;
    try {
        answer = ask(wanted);
    } catch (const Failure& failure) {
        if (failure.status() != LAIKA_ERR_QUOTA || wanted == exact) throw;
        answer = ask(exact);
    }
    Reader reader = answer.body();
    std::uint64_t region = UINT64_MAX;
    std::uint32_t entries = 0;
    bool good = reader.map(entries);
    for (; good && entries > 0; --entries) {
        std::string_view key;
        good = reader.text(key) && (key == "region" ? reader.number(region) : reader.skip());
    }
    const auto number = static_cast<std::uint32_t>(region);
    const std::lock_guard ranges(ranges_mutex_);
    if (!good || region >= most_regions || std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& r) { return r.region == number; }))
        throw Failure(LAIKA_ERR_INTERNAL, "the host describes a region in a way that is not understood");
    session_->add_region(number, answer.take_fd().take());
    const Region& added = *session_->map().owned[number];  // changed only by us, under growing_
    const auto begin = reinterpret_cast<std::uintptr_t>(added.base());
    ranges_.push_back({number, begin, begin + added.size()});
}

bool Memory::touches(const void* data, std::uint64_t bytes) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    const std::lock_guard lock(ranges_mutex_);
    return std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& r) { return begin < r.end && (begin >= r.begin || bytes > r.begin - begin); });
}

void Memory::shrink(std::uint64_t keep) {
    const std::lock_guard lock(growing_);
    const std::vector<std::uint32_t> empty = session_->take_empty_regions(keep);
    {
        const std::lock_guard ranges(ranges_mutex_);
        for (const std::uint32_t region : empty) std::erase_if(ranges_, [&](const Range& r) { return r.region == region; });
    }
    for (const std::uint32_t region : empty)
        control_.ask([&](Writer& out) {
            out.map(4);
            out.text("t"); out.text("free_region");
            out.text("session"); out.number(index_);
            out.text("region"); out.number(region);
            out.text("pool"); out.text(pool_);
        });
}

std::shared_ptr<Block> Memory::take(std::uint64_t bytes, std::uint64_t align) {
    for (int attempt = 0; attempt < 64; ++attempt) {  // another thread may be faster and take the room
        if (auto block = session_->allocate(bytes, align)) return block;
        grow(bytes + align);
    }
    throw Failure(LAIKA_ERR_QUOTA, "no room for " + std::to_string(bytes) + " bytes of shared memory");
}

// ---- Blocks --------------------------------------------------------------------------------------------------------

Shm& Blocks::add(std::uint64_t id, PoolSession& pool, std::shared_ptr<Block> block, std::uint64_t size, unsigned flags) {
    auto shm = std::make_unique<Shm>();
    shm->id = id;
    shm->pool = &pool;
    shm->base = block->memory->base() + block->offset;
    shm->block = std::move(block);
    shm->size = size;
    shm->flags = flags;
    Shm& added = *shm;
    places_.emplace(reinterpret_cast<std::uintptr_t>(added.base), &added);
    ids_.emplace(id, std::move(shm));
    return added;
}

Shm* Blocks::by_id(std::uint64_t id) noexcept {
    const auto found = ids_.find(id);
    return found == ids_.end() ? nullptr : found->second.get();
}

void Blocks::erase(std::uint64_t id) {
    const auto found = ids_.find(id);
    if (found == ids_.end()) return;
    places_.erase(reinterpret_cast<std::uintptr_t>(found->second->base));
    ids_.erase(found);
}

Shm* Blocks::find(const void* data, std::uint64_t bytes, const std::string& path) {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    auto next = places_.upper_bound(address);
    if (next != places_.begin()) {
        Shm* shm = std::prev(next)->second;
        const std::uint64_t offset = address - reinterpret_cast<std::uintptr_t>(shm->base);
        if (offset < shm->size || (offset == 0 && bytes == 0)) {
            if (shm->maps == 0) throw Failure(LAIKA_ERR_POINTER, path + ".data: " + hex(data) + " lies in shared memory that was unmapped; laika_shm_map it first");
            if (!within(offset, bytes, shm->size))
                throw Failure(LAIKA_ERR_POINTER, path + ".data: " + std::to_string(bytes) + " bytes from byte " + std::to_string(offset) +
                              " on leave a shared memory of " + std::to_string(shm->size) + " bytes; expected a smaller shape or more memory");
            return shm;
        }
    }
    return nullptr;
}

void Blocks::refuse(const void* data, const std::string& path) {
    throw Failure(LAIKA_ERR_POINTER, path + ".data: " + hex(data) + " lies in shared memory that was freed, or was never given out");
}

// ---- copies --------------------------------------------------------------------------------------------------------

namespace {

constexpr unsigned remembered = 64;
std::atomic<bool> by_kernel{true};  // relaxed: a hint, learned once

// Pages that were there when this thread last copied from (0) or to (1) them.
thread_local std::uintptr_t seen_pages[2][remembered];  // plus 1; 0: none

bool seen(std::uintptr_t page, bool write) noexcept { return seen_pages[write][page % remembered] == page + 1; }

// Copies `bytes` of the caller's by system call: true when it is done, false when memcpy has to do it.
bool copied_by_kernel(const Transfer& transfer, bool write, const std::string& what) {
    const iovec ours{transfer.ours, transfer.bytes};
    const iovec callers{transfer.callers, transfer.bytes};
    ssize_t done;
    do { done = write ? ::process_vm_writev(::getpid(), &ours, 1, &callers, 1, 0) : ::process_vm_readv(::getpid(), &ours, 1, &callers, 1, 0);
    } while (done < 0 && errno == EINTR);
    if (done < 0 && errno != EFAULT) {
        by_kernel.store(false, std::memory_order_relaxed);
        return false;
    }
    if (done >= 0 && static_cast<std::uint64_t>(done) == transfer.bytes) return true;
    // At most 2 GiB are copied at once: the rest is behind memory that is there.
    if (done >= 0x7ffff000) return false;
    throw Failure(LAIKA_ERR_POINTER, what + ".data: " + hex(transfer.callers) + " is not memory that can be " + (write ? "written" : "read") + " for " +
                  std::to_string(transfer.bytes) + " bytes (dtype and shape say so); freed, or never yours?");
}

void transfer_one(const Transfer& transfer, bool write, const char* list, std::size_t index) {
    if (transfer.bytes == 0) return;
    const auto begin = reinterpret_cast<std::uintptr_t>(transfer.callers);
    const std::uintptr_t first = begin / page_bytes;
    const std::uintptr_t last = (begin + (transfer.bytes - 1)) / page_bytes;
    const bool known = (seen(first, write) && seen(last, write)) || __asan_region_is_poisoned != nullptr || !by_kernel.load(std::memory_order_relaxed);
    if (!known) {
        const bool done = copied_by_kernel(transfer, write, std::string(list) + "[" + std::to_string(index) + "]");
        seen_pages[write][first % remembered] = first + 1;
        seen_pages[write][last % remembered] = last + 1;
        if (done && !write) return;
    }
    // After the kernel's copy too: valgrind does not know of that one, and would call the caller's memory uninitialised.
    if (write) std::memcpy(transfer.callers, transfer.ours, transfer.bytes);
    else std::memcpy(transfer.ours, transfer.callers, transfer.bytes);
}

}  // namespace

void read_callers(const Transfer& transfer, std::size_t index) { transfer_one(transfer, false, "inputs", index); }
void write_callers(const Transfer& transfer, std::size_t index) { transfer_one(transfer, true, "outputs", index); }

}  // namespace teal::capi
