#include "duck/blob.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.hpp"
#include "memory/region.hpp"

namespace teal::duck {
namespace {

constexpr std::uint64_t told_each = 1 << 20;  // bytes: waking the hasher costs more than it would hash of less
constexpr std::size_t staged_bytes = 128 << 10, long_piece = 32 << 10;
constexpr int cores_to_spare = 3;             // with fewer, hashing while a blob comes takes the core that receives it, or the client's
constexpr int future_write = 0x10;            // F_SEAL_FUTURE_WRITE

}  // namespace

Blob::Blob(const BlobDigest& digest, std::uint64_t bytes) : digest_(digest), bytes_(bytes) {
    if (bytes > available_memory()) throw Error(Code::quota_exceeded, "duck: a blob of " + std::to_string(bytes) + " bytes, more than this machine has free");
    fd_ = ::memfd_create("teal-blob", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd_ < 0) throw Error(Code::quota_exceeded, "duck: " + system_message("memfd_create", errno));
    void* base = MAP_FAILED;
    if (::ftruncate(fd_, static_cast<off_t>(bytes)) == 0) base = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd_, 0);
    if (base == MAP_FAILED) {
        const int error = errno;
        ::close(std::exchange(fd_, -1));
        throw Error(Code::quota_exceeded, "duck: " + system_message("memory for a blob", error));
    }
    base_ = static_cast<const std::byte*>(base);
}

Blob::~Blob() {
    if (base_ != nullptr) ::munmap(const_cast<std::byte*>(base_), bytes_);
    for (const int fd : {fd_, given_})
        if (fd >= 0) ::close(fd);
}

bool Blob::write_now(std::uint64_t offset, std::span<const std::byte> bytes) noexcept {
    while (!bytes.empty()) {
        const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        bytes = bytes.subspan(static_cast<std::size_t>(n));
        offset += static_cast<std::uint64_t>(n);
    }
    return true;
}

bool Blob::flush() noexcept {
    if (!write_now(staged_at_, staged_)) broken_ = true;
    staged_.clear();
    return !broken_;
}

bool Blob::write(std::uint64_t offset, std::span<const std::byte> bytes) noexcept {
    if (broken_) return false;
    const bool follows = !staged_.empty() && offset == staged_at_ + staged_.size() && staged_.size() + bytes.size() <= staged_bytes;
    if (!staged_.empty() && !follows && !flush()) return false;
    if (bytes.size() >= long_piece && !follows) return write_now(offset, bytes);
    if (staged_.capacity() < staged_bytes) staged_.reserve(staged_bytes);
    if (staged_.empty()) staged_at_ = offset;
    staged_.insert(staged_.end(), bytes.begin(), bytes.end());
    return true;
}

void Blob::hash_to(std::uint64_t prefix) {
    if (prefix <= hashed_) return;
    hash_.add({base_ + hashed_, prefix - hashed_});
    hashed_ = prefix;
}

bool Blob::arrived() noexcept {
    if (!flush()) return false;
    staged_ = {};
    // F_SEAL_WRITE would look at every page, and wants this mapping gone.
    if (::fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | future_write) != 0) return false;
    given_ = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
    return given_ >= 0;
}

bool Blob::finish() {
    hash_to(bytes_);
    const Sha256::Digest found = hash_.finish();
    const bool good = std::memcmp(found.data(), digest_.data(), found.size()) == 0;
    ::munmap(const_cast<std::byte*>(std::exchange(base_, nullptr)), bytes_);
    (void)::fcntl(fd_, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL);  // for whoever asks; nobody could write any more anyway
    ::close(std::exchange(fd_, -1));
    return good;
}

bool Blobs::begin(const BlobDigest& digest, std::uint64_t bytes, std::shared_ptr<Blob>& out) {
    if (const auto found = stopped_.find(digest); found != stopped_.end()) {
        out = std::move(found->second);
        stopped_.erase(found);
        if (out->bytes() == bytes) return true;
        ended(out->bytes());  // one of the two sizes is a lie: begin anew
    }
    if (bytes == 0 || bytes > most_ || bytes > budget_ - unfinished_) return false;
    try {
        out = std::make_shared<Blob>(digest, bytes);
    } catch (const Error&) {
        return false;
    }
    unfinished_ += bytes;
    return true;
}

void Blobs::stopped(std::shared_ptr<Blob> blob, std::uint64_t now) {
    blob->since = now;
    const std::uint64_t bytes = blob->bytes();
    const auto [place, fresh] = stopped_.try_emplace(blob->digest(), std::move(blob));
    if (!fresh) ended(bytes);
}

void Blobs::expire(std::uint64_t now) {
    for (auto at = stopped_.begin(); at != stopped_.end();) {
        if (now < at->second->since + resume_ns_) {
            ++at;
            continue;
        }
        ended(at->second->bytes());
        at = stopped_.erase(at);
    }
}

void Hasher::stop() noexcept {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void Hasher::put(Work&& work) {
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    {
        const std::lock_guard lock(mutex_);
        work_.push_back(std::move(work));
    }
    undone_.fetch_add(1, std::memory_order_relaxed);
    changed_.notify_one();
}

void Hasher::add(const std::shared_ptr<Blob>& blob, std::uint64_t prefix) {
    if (!follows_) {
        cpu_set_t usable;
        follows_ = ::sched_getaffinity(0, sizeof usable, &usable) == 0 && CPU_COUNT(&usable) >= cores_to_spare;
    }
    if (!*follows_) return;
    if (prefix < blob->told_ + told_each || !blob->flush()) return;  // what cannot be written is found out by the next piece
    blob->told_ = prefix;
    put({blob, prefix, {}});
}

void Hasher::finish(std::shared_ptr<Blob> blob, std::function<void(bool)> then) { put({std::move(blob), 0, std::move(then)}); }

void Hasher::run() {
    ::pthread_setname_np(::pthread_self(), "teal-duck-hash");
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return stopping_ || !work_.empty(); });
        if (stopping_) return;
        Work work = std::move(work_.front());
        work_.pop_front();
        lock.unlock();
        if (work.then) work.then(work.blob->finish());
        else work.blob->hash_to(work.prefix);
        work.blob.reset();
        undone_.fetch_sub(1, std::memory_order_relaxed);
        lock.lock();
    }
}

}  // namespace teal::duck
