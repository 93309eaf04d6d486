// Blobs on their way in: memory that nobody else sees until the SHA-256 is right, and sealed from then on.
//
// Theory of operation. A blob is a memfd, mapped while it fills. Its hash follows the bytes that are there without a gap, so that little is
// left to do when the last one comes. One that stops half way (its peer is gone) waits here under its digest, with the map of what has
// arrived, until it is asked for again or its time is over.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "duck/crypto.hpp"
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
    Blob() = default;
    Blob(const BlobDigest& digest, std::uint64_t bytes);   // throws quota_exceeded
    ~Blob();
    Blob(Blob&& other) noexcept { swap(other); }
    Blob& operator=(Blob&& other) noexcept {
        swap(other);
        return *this;
    }
    [[nodiscard]] std::span<std::byte> place() const noexcept { return {base_, bytes_}; }
    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] const BlobDigest& digest() const noexcept { return digest_; }
    void hash_to(std::uint64_t prefix);
    // All is there: true when it is what it is called; then sealed, and take_fd() is the receiver's.
    [[nodiscard]] bool finish();
    [[nodiscard]] int take_fd() noexcept { return std::exchange(fd_, -1); }
    Ranges there;                // while nobody sends it
    std::uint64_t since = 0;     // when that began

private:
    void swap(Blob& other) noexcept;
    BlobDigest digest_{};
    std::uint64_t bytes_ = 0, hashed_ = 0;
    std::byte* base_ = nullptr;
    int fd_ = -1;
    std::unique_ptr<Sha256> hash_;
};

// What is held above, what stopped half way, and the bounds.
class Blobs {
public:
    Blobs(std::uint64_t most, std::uint64_t budget, std::uint64_t resume_ns) : most_(most), budget_(budget), resume_ns_(resume_ns) {}
    [[nodiscard]] bool held(const BlobDigest& digest) const { return held_.contains(digest); }
    void hold(const BlobDigest& digest) { held_.insert(digest); }
    void forget(const BlobDigest& digest) { held_.erase(digest); }
    // A place for it: the one that stopped half way, or a new one. False: no room.
    [[nodiscard]] bool begin(const BlobDigest& digest, std::uint64_t bytes, Blob& out);
    void stopped(Blob&& blob, std::uint64_t now);
    void ended(std::uint64_t bytes) noexcept { unfinished_ -= bytes; }
    void expire(std::uint64_t now);

private:
    std::uint64_t most_, budget_, resume_ns_;
    std::uint64_t unfinished_ = 0;  // bytes, those that stopped included
    std::unordered_set<BlobDigest, DigestHash> held_;
    std::unordered_map<BlobDigest, Blob, DigestHash> stopped_;
};

}  // namespace teal::duck
