// An owned descriptor, and records with descriptors over a UNIX socket.
#pragma once

#include <span>
#include <sys/uio.h>
#include <unistd.h>
#include <utility>

#include <cstddef>
#include <cstdint>

namespace teal::box {

class Descriptor {
public:
    Descriptor() noexcept = default;
    explicit Descriptor(int fd) noexcept : fd_(fd) {}
    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        if (this != &other) reset(std::exchange(other.fd_, -1));
        return *this;
    }
    ~Descriptor() { reset(); }
    void reset(int fd = -1) noexcept {
        if (fd_ >= 0) ::close(fd_);
        fd_ = fd;
    }
    [[nodiscard]] int get() const noexcept { return fd_; }
    explicit operator bool() const noexcept { return fd_ >= 0; }

private:
    int fd_ = -1;
};

// SIGKILL. `pid` is for where pidfd_send_signal() is filtered; 0: not known. Only for a process that is not reaped yet.
void kill_process(int pidfd, std::uint32_t pid) noexcept;

// 0, or an errno. Never blocks, never raises SIGPIPE.
int send_record(int socket, std::span<const iovec> parts, std::span<const int> fds) noexcept;
// Bytes; 0: the other side is gone; negative: -errno (EAGAIN: nothing there). `count` is how many of `fds` came; more than fit are closed.
long receive_record(int socket, void* bytes, std::size_t size, std::span<Descriptor> fds, std::size_t& count) noexcept;

}  // namespace teal::box
