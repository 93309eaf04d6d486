// teal-box: the zygote, and the boxes that it forks.
//
//     teal-box zygote [--no-namespaces]     started by a yard, with its socket as descriptor 3
//
// Theory of operation. The zygote locks itself up as far as all boxes have it in common (confine.hpp), says hello, and from then on only forks boxes on
// request and says how they ended. A box is a copy of it: a page table of some hundred entries, so that a fork takes about 0.1 ms. A
// box locks itself up the rest of the way and waits in become() (become.cpp). When the yard is gone, the socket ends, and
// so does the zygote, after killing its boxes.
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <vector>

#include "box/inside/become.hpp"
#include "box/inside/confine.hpp"
#include "box/inside/filter.hpp"
#include "box/inside/gate.hpp"
#include "box/inside/seal.hpp"
#include "box/message.hpp"

namespace teal::box {
namespace {

constexpr int yard_socket = 3;

std::uint64_t now_ns() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

std::uint64_t ns_of(const timeval& time) noexcept {
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(time.tv_usec) * 1000u;
}

class Zygote {
public:
    Zygote(const HelloMessage& hello, int devices) noexcept : hello_(hello), devices_(devices) {}

    int run() {
        sigset_t child;
        sigemptyset(&child);
        sigaddset(&child, SIGCHLD);
        sigprocmask(SIG_BLOCK, &child, nullptr);
        const int ended = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
        if (ended < 0) return 70;
        if (!say(&hello_, sizeof hello_)) return 70;
        pollfd both[2] = {{yard_socket, POLLIN, 0}, {ended, POLLIN, 0}};
        for (;;) {
            if (::poll(both, 2, -1) < 0 && errno != EINTR) break;
            if ((both[1].revents & POLLIN) != 0) {
                signalfd_siginfo info;
                while (read(ended, &info, sizeof info) > 0) {
                }
                reap();
            }
            if (both[0].revents != 0 && !serve()) break;
        }
        for (const pid_t pid : boxes_) kill(pid, SIGKILL);
        while (wait4(-1, nullptr, __WALL, nullptr) > 0 || errno == EINTR) {
        }
        return 0;
    }

private:
    bool say(const void* bytes, std::size_t size) noexcept { return send(yard_socket, bytes, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size); }

    bool serve() {
        SpawnMessage message{};
        const ssize_t got = recv(yard_socket, &message, sizeof message, 0);
        if (got < 0 && errno == EINTR) return true;
        if (got != sizeof message || message.magic != message_magic || message.version != message_version) return false;
        if (static_cast<std::uint32_t>(message.kind) >= box_kinds) return false;
        return spawn(message.kind);
    }

    bool spawn(BoxKind kind) {
        const std::uint64_t start = now_ns();
        ZygoteMessage answer{message_magic, message_version, ZygoteWord::not_made, kind, 0, 0, 0, 0, 0, 0};
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
            answer.status = errno;
            return say(&answer, sizeof answer);
        }
        int pidfd = -1;
        ++number_;
        // The old call, not clone3(): containers' filters, which cannot look behind its pointer, do without that one.
        const long pid = syscall(SYS_clone, CLONE_PIDFD | SIGCHLD, 0, &pidfd, 0, 0);
        if (pid == 0) be_box(kind, pair[1]);
        const int error = errno;
        close(pair[1]);
        bool told = false;
        if (pid < 0) {
            answer.status = error;
            told = say(&answer, sizeof answer);
        } else {
            boxes_.push_back(static_cast<pid_t>(pid));
            answer.word = ZygoteWord::made;
            answer.pid = static_cast<std::int32_t>(pid);
            answer.ns = now_ns() - start;
            told = say_with(answer, pidfd, pair[0]);
            close(pidfd);
        }
        close(pair[0]);
        return told;
    }

    static bool say_with(const ZygoteMessage& message, int first, int second) noexcept {
        iovec part{const_cast<ZygoteMessage*>(&message), sizeof message};
        alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
        msghdr header{};
        header.msg_iov = &part;
        header.msg_iovlen = 1;
        header.msg_control = control;
        header.msg_controllen = sizeof control;
        cmsghdr* item = CMSG_FIRSTHDR(&header);
        item->cmsg_level = SOL_SOCKET;
        item->cmsg_type = SCM_RIGHTS;
        item->cmsg_len = CMSG_LEN(2 * sizeof(int));
        const int fds[2] = {first, second};
        std::memcpy(CMSG_DATA(item), fds, sizeof fds);
        return sendmsg(yard_socket, &header, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof message);
    }

    void reap() {
        for (;;) {
            int status = 0;
            rusage used{};
            const pid_t pid = wait4(-1, &status, WNOHANG | __WALL, &used);
            if (pid <= 0) return;
            boxes_.erase(std::remove(boxes_.begin(), boxes_.end(), pid), boxes_.end());
            ZygoteMessage ended{message_magic, message_version, ZygoteWord::ended, BoxKind::resident, pid, status, 0, ns_of(used.ru_utime),
                                ns_of(used.ru_stime), static_cast<std::uint64_t>(used.ru_maxrss)};
            say(&ended, sizeof ended);
        }
    }

    [[noreturn]] void be_box(BoxKind kind, int socket) noexcept {
        if (dup2(socket, box_socket) < 0) _exit(70);
        close_range(static_cast<unsigned>(box_socket + 1 + devices_), ~0u, 0);
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, nullptr);
        if (confine_box(hello_, number_) != 0) _exit(71);
        if (hello_.seccomp == 0 && hello_.no_new_privileges == 0 && install_filter(kind) != 0) _exit(72);
        become(kind);
    }

    HelloMessage hello_;
    int devices_;                 // descriptors that boxes keep beside their socket
    std::uint32_t number_ = 0;
    std::vector<pid_t> boxes_;
};

int zygote_main(bool use_namespaces) {
    close_range(yard_socket + 1, ~0u, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "teal-zygote");
    for (int fd = 0; fd < 3; ++fd) {   // boxes have these three, and a libc writes to them
        const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (nothing >= 0 && nothing != fd) {
            dup2(nothing, fd);
            close(nothing);
        }
    }
    HelloMessage hello{};
    hello.magic = message_magic;
    hello.version = message_version;
    hello.word = ZygoteWord::hello;
    const int devices = open_devices();
    hello.guests = devices;
    hello.seals = load_seals();
    enter_namespaces(hello, use_namespaces);
    prctl(PR_SET_NAME, "teal-zygote");
    hello.pid = static_cast<std::uint32_t>(getpid());
    confine_zygote(hello);
    if (!make_gate()) return 70;
    return Zygote(hello, devices).run();
}

}  // namespace
}  // namespace teal::box

int main(int count, char** words) {
    bool use_namespaces = true;
    if (count < 2 || std::strcmp(words[1], "zygote") != 0) {
        std::fprintf(stderr, "teal-box runs native programs for Teal, which starts it itself. To run one: teal duck run prog.elf\n");
        return 64;
    }
    for (int i = 2; i < count; ++i) {
        if (std::strcmp(words[i], "--no-namespaces") == 0) {
            use_namespaces = false;
        } else {
            std::fprintf(stderr, "teal-box: unknown word %s\n", words[i]);
            return 64;
        }
    }
    return teal::box::zygote_main(use_namespaces);
}
