// Shared memory of this process: blocks that callers allocate, and where a pointer lies.
//
// Theory of operation: a block is a piece of one of the session's tensor regions. The regions stay mapped while anything in them is
// in use; map and unmap of a block only say whether the caller means to use it. Every address a caller gives is looked up: inside
// a mapped block (used in place), inside a region but in no such block (freed, unmapped: refused), or not ours (copied). Which
// prepared calls describe a block is kept with it, so that freeing one that a worker may still use is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "capi/control.hpp"
#include "capi/prepared.hpp"
#include "host/client.hpp"

namespace teal::capi {

struct PoolSession;

struct Shm {
    std::uint64_t id = 0;
    PoolSession* pool = nullptr;    // whose memory it is
    std::shared_ptr<Block> block;
    std::byte* base = nullptr;
    std::uint64_t size = 0;         // as asked for
    unsigned flags = 0;
    unsigned maps = 0;
    std::unordered_set<Prepared*> users;
};

// The memory of a session with a pool, and how to get more of it from the host.
class Memory {
public:
    Memory(std::shared_ptr<ClientSession> session, Control& control, std::uint32_t session_index, std::string pool)
        : session_(std::move(session)), control_(control), index_(session_index), pool_(std::move(pool)) {}

    // Room for `bytes` more. Throws Failure(quota) and the like.
    void grow(std::uint64_t bytes);
    // Regions that hold nothing go back to the host, except `keep` bytes.
    void shrink(std::uint64_t keep);
    [[nodiscard]] std::shared_ptr<Block> take(std::uint64_t bytes, std::uint64_t align);
    // Does any byte of [data, data + bytes) lie in memory of this session?
    [[nodiscard]] bool touches(const void* data, std::uint64_t bytes) const;

private:
    struct Range { std::uint32_t region; std::uintptr_t begin; std::uintptr_t end; };

    std::shared_ptr<ClientSession> session_;
    Control& control_;
    std::uint32_t index_;
    std::string pool_;
    std::mutex growing_;             // one at a time asks
    mutable std::mutex ranges_mutex_;  // guards ranges_
    std::vector<Range> ranges_;
};

// The blocks, by handle and by address. Whoever calls holds the Library's memory mutex.
class Blocks {
public:
    Shm& add(std::uint64_t id, PoolSession& pool, std::shared_ptr<Block> block, std::uint64_t size, unsigned flags);
    Shm* by_id(std::uint64_t id) noexcept;
    void erase(std::uint64_t id);
    // The mapped block that holds [data, data + bytes); null when `data` lies in no block. Throws Failure(pointer) for one that is not
    // mapped, or that the bytes leave.
    Shm* find(const void* data, std::uint64_t bytes, const std::string& path);
    // For memory of a session that is in no block.
    [[noreturn]] static void refuse(const void* data, const std::string& path);

private:
    std::unordered_map<std::uint64_t, std::unique_ptr<Shm>> ids_;
    std::map<std::uintptr_t, Shm*> places_;  // by address
};

// Copies between the caller's memory and ours without believing that the caller's is there. Throws Failure(pointer).
// Theory of operation: the kernel can copy and say that an address is not mapped, which takes most of a microsecond; so it is asked
// only for pages that this thread has not copied from (to) lately, and memcpy does the rest. Under AddressSanitizer, whose own
// report is better, and where the system call is not allowed, it is memcpy alone.
struct Transfer { void* callers; std::byte* ours; std::uint64_t bytes; };
// `index` is that of the input (output), for the message.
void read_callers(const Transfer& transfer, std::size_t index);
void write_callers(const Transfer& transfer, std::size_t index);

}  // namespace teal::capi
