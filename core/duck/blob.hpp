// Blobs on their way in.
//
// Theory of operation. A blob is a memfd that pieces are written into with write(2): for it no page is zeroed or mapped, which costs twice as
// much, and a duck without memory is told so instead of dying of it. Short pieces are put together first. When all are there, no write is
// possible any more (arrived()), and whoever sent it may use it: its packets were sealed with his key, or come from this machine. Nobody else
// sees it before its SHA-256 is right, which is computed in a thread of its own, the *hasher*: while it comes, where there is a core to spare,
// else when it is there. One that stops half way (its peer is gone) waits here under its digest, with the map of what has arrived, until it
// is asked for again or its time is over.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/sha256.hpp"
#include "duck/net.hpp"
#include "duck/ranges.hpp"

namespace teal::duck {

struct DigestHash {
    std::size_t operator()(const BlobDigest& digest) const noexcept {
        std::size_t out = 0;
        std::memcpy(&out, digest.data(), sizeof out);
        return out;
    }
};

class Blob {
public:
    Blob(const BlobDigest& digest, std::uint64_t bytes);   // throws quota_exceeded
    ~Blob();
    Blob(const Blob&) = delete;
    Blob& operator=(const Blob&) = delete;
    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] const BlobDigest& digest() const noexcept { return digest_; }
    // The loop's thread. False: no memory.
    [[nodiscard]] bool write(std::uint64_t offset, std::span<const std::byte> bytes) noexcept;
    // The same; what was written is in the file, and can be hashed. False: no memory, now and for good.
    [[nodiscard]] bool flush() noexcept;
    // One thread at a time; reads what was written before `prefix` was told to it.
    void hash_to(std::uint64_t prefix);
    // All is there: nobody can change it from now on, and take_fd() is the receiver's, once. False: no descriptor left.
    [[nodiscard]] bool arrived() noexcept;
    [[nodiscard]] int take_fd() noexcept { return std::exchange(given_, -1); }
    // After that, and once: is it what it is called?
    [[nodiscard]] bool finish();
    Ranges there;                // while nobody sends it
    std::uint64_t since = 0;     // when that began
    bool of_a_group = false;     // some of it came with a key that others have too

private:
    friend class Hasher;
    BlobDigest digest_{};
    [[nodiscard]] bool write_now(std::uint64_t offset, std::span<const std::byte> bytes) noexcept;
    std::uint64_t bytes_ = 0, hashed_ = 0;
    const std::byte* base_ = nullptr;  // read-only, for the hash
    int fd_ = -1, given_ = -1;
    std::vector<std::byte> staged_;  // short pieces, one after the other, from staged_at_ on; not written yet
    std::uint64_t staged_at_ = 0;
    bool broken_ = false;
    Sha256 hash_;
    std::uint64_t told_ = 0;     // the loop's: up to here the hasher knows of it
};

// What is held above, what stopped half way, and the bounds.
class Blobs {
public:
    Blobs(std::uint64_t most, std::uint64_t budget, std::uint64_t resume_ns) : most_(most), budget_(budget), resume_ns_(resume_ns) {}
    [[nodiscard]] bool held(const BlobDigest& digest) const { return held_.contains(digest); }
    void hold(const BlobDigest& digest) { held_.insert(digest); }
    void forget(const BlobDigest& digest) { held_.erase(digest); }
    // A place for it: the one that stopped half way, or a new one. False: no room.
    [[nodiscard]] bool begin(const BlobDigest& digest, std::uint64_t bytes, std::shared_ptr<Blob>& out);
    void stopped(std::shared_ptr<Blob> blob, std::uint64_t now);
    void ended(std::uint64_t bytes) noexcept { unfinished_ -= bytes; }
    void expire(std::uint64_t now);

private:
    std::uint64_t most_, budget_, resume_ns_;
    std::uint64_t unfinished_ = 0;  // bytes, those that stopped included
    std::unordered_set<BlobDigest, DigestHash> held_;
    std::unordered_map<BlobDigest, std::shared_ptr<Blob>, DigestHash> stopped_;
};

// Hashes blobs in the order in which their pieces are told to it, in a thread that begins with the first.
class Hasher {
public:
    Hasher() = default;
    ~Hasher() { stop(); }
    Hasher(const Hasher&) = delete;
    Hasher& operator=(const Hasher&) = delete;
    void add(const std::shared_ptr<Blob>& blob, std::uint64_t prefix);       // a hint; small ones are not passed on
    void finish(std::shared_ptr<Blob> blob, std::function<void(bool good)> then);  // `then` runs in the hasher's thread
    void stop() noexcept;  // what is not hashed yet never is
    [[nodiscard]] bool busy() const noexcept { return undone_.load(std::memory_order_relaxed) != 0; }

private:
    struct Work {
        std::shared_ptr<Blob> blob;
        std::uint64_t prefix;
        std::function<void(bool)> then;  // empty: only up to `prefix`
    };
    void put(Work&& work);
    void run();
    std::mutex mutex_;  // guards the two below
    std::deque<Work> work_;
    bool stopping_ = false;
    std::condition_variable changed_;
    std::atomic<unsigned> undone_{0};  // relaxed: a hint
    std::optional<bool> follows_;        // the loop's: hints are taken
    std::thread thread_;
};

}  // namespace teal::duck
