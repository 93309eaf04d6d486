#include "box/descriptor.hpp"

#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <csignal>
#include <cstring>

namespace teal::box {
namespace {
constexpr std::size_t most_fds = 16;
}

void kill_process(int pidfd, std::uint32_t pid) noexcept {
    if (::syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0) == 0 || errno == ESRCH) return;
    if (pid != 0) ::kill(static_cast<pid_t>(pid), SIGKILL);
}

int send_record(int socket, std::span<const iovec> parts, std::span<const int> fds) noexcept {
    if (fds.size() > most_fds) return EINVAL;
    alignas(cmsghdr) char control[CMSG_SPACE(most_fds * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = const_cast<iovec*>(parts.data());
    header.msg_iovlen = parts.size();
    if (!fds.empty()) {
        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(fds.size_bytes());
        cmsghdr* item = CMSG_FIRSTHDR(&header);
        item->cmsg_level = SOL_SOCKET;
        item->cmsg_type = SCM_RIGHTS;
        item->cmsg_len = CMSG_LEN(fds.size_bytes());
        std::memcpy(CMSG_DATA(item), fds.data(), fds.size_bytes());
    }
    for (;;) {
        if (::sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return 0;
        if (errno != EINTR) return errno;
    }
}

long receive_record(int socket, void* bytes, std::size_t size, std::span<Descriptor> fds, std::size_t& count) noexcept {
    count = 0;
    iovec part{bytes, size};
    alignas(cmsghdr) char control[CMSG_SPACE(most_fds * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    long got = 0;
    int resets = 0;   // ECONNRESET: it hung up with a message of ours unread; what it said before that comes after
    do {
        got = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (got < 0 && (errno == EINTR || (errno == ECONNRESET && resets++ == 0)));
    if (got < 0) return -errno;
    for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
        if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t there = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < there; ++i) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof fd);
            if (count < fds.size()) {
                fds[count++].reset(fd);
            } else {
                ::close(fd);
            }
        }
    }
    if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) return -EMSGSIZE;
    return got;
}

}  // namespace teal::box
