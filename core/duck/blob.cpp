#include "duck/blob.hpp"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

#include "base/error.hpp"
#include "memory/region.hpp"

namespace teal::duck {

Blob::Blob(const BlobDigest& digest, std::uint64_t bytes) : digest_(digest), bytes_(bytes), hash_(std::make_unique<Sha256>()) {
    if (bytes > available_memory()) throw Error(Code::quota_exceeded, "duck: a blob of " + std::to_string(bytes) + " bytes, more than this machine has free");
    fd_ = ::memfd_create("teal-blob", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd_ < 0) throw Error(Code::quota_exceeded, "duck: " + system_message("memfd_create", errno));
    void* base = MAP_FAILED;
    if (::ftruncate(fd_, static_cast<off_t>(bytes)) == 0) base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (base == MAP_FAILED) {
        const int error = errno;
        ::close(std::exchange(fd_, -1));
        throw Error(Code::quota_exceeded, "duck: " + system_message("memory for a blob", error));
    }
    base_ = static_cast<std::byte*>(base);
}

Blob::~Blob() {
    if (base_ != nullptr) ::munmap(base_, bytes_);
    if (fd_ >= 0) ::close(fd_);
}

void Blob::swap(Blob& other) noexcept {
    std::swap(digest_, other.digest_);
    std::swap(bytes_, other.bytes_);
    std::swap(hashed_, other.hashed_);
    std::swap(base_, other.base_);
    std::swap(fd_, other.fd_);
    std::swap(hash_, other.hash_);
    std::swap(there, other.there);
    std::swap(since, other.since);
}

void Blob::hash_to(std::uint64_t prefix) {
    if (prefix <= hashed_) return;
    hash_->add({base_ + hashed_, prefix - hashed_});
    hashed_ = prefix;
}

bool Blob::finish() {
    hash_to(bytes_);
    if (hash_->finish() != digest_) return false;
    ::munmap(std::exchange(base_, nullptr), bytes_);
    return ::fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) == 0;
}

bool Blobs::begin(const BlobDigest& digest, std::uint64_t bytes, Blob& out) {
    if (const auto found = stopped_.find(digest); found != stopped_.end()) {
        if (found->second.bytes() == bytes) {
            out = std::move(found->second);
            stopped_.erase(found);
            return true;
        }
        ended(found->second.bytes());  // one of the two sizes is a lie: begin anew
        stopped_.erase(found);
    }
    if (bytes == 0 || bytes > most_ || bytes > budget_ - unfinished_) return false;
    try {
        out = Blob(digest, bytes);
    } catch (const Error&) {
        return false;
    }
    unfinished_ += bytes;
    return true;
}

void Blobs::stopped(Blob&& blob, std::uint64_t now) {
    blob.since = now;
    const auto [place, fresh] = stopped_.try_emplace(blob.digest(), std::move(blob));
    if (!fresh) ended(blob.bytes());
}

void Blobs::expire(std::uint64_t now) {
    for (auto at = stopped_.begin(); at != stopped_.end();) {
        if (now < at->second.since + resume_ns_) {
            ++at;
            continue;
        }
        ended(at->second.bytes());
        at = stopped_.erase(at);
    }
}

}  // namespace teal::duck
