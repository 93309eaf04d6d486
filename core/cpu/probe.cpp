// The probes of probe.hpp.
#include "cpu/probe.hpp"

#include <fcntl.h>
#include <linux/memfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace teal {
namespace {

// Newer than the headers we must build with.
constexpr long futex_waitv_number = 449;
constexpr long pidfd_open_number = 434;
constexpr std::uint32_t futex_32 = 2;

class Descriptor {
public:
    explicit Descriptor(int value) noexcept : value_(value) {}
    ~Descriptor() {
        if (value_ >= 0) {
            ::close(value_);
        }
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;

    int get() const noexcept { return value_; }
    bool is_open() const noexcept { return value_ >= 0; }

private:
    int value_;
};

class Mapping {
public:
    Mapping(int descriptor, std::size_t size) noexcept
        : size_(size), address_(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)) {}
    ~Mapping() {
        if (is_mapped()) {
            ::munmap(address_, size_);
        }
    }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    void* address() const noexcept { return address_; }
    bool is_mapped() const noexcept { return address_ != MAP_FAILED; }

private:
    std::size_t size_;
    void* address_;
};

int sealed_region(unsigned flags, std::size_t size) noexcept {
    const Descriptor region(::memfd_create("teal-probe", flags | MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const auto length = static_cast<off_t>(size);
    if (!region.is_open() || ::ftruncate(region.get(), length) != 0 || ::fallocate(region.get(), 0, 0, length) != 0) {
        return errno;
    }
    const Mapping mapping(region.get(), size);
    if (!mapping.is_mapped() || ::fcntl(region.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return errno;
    }
    std::memset(mapping.address(), 1, 4096);
    if (::ftruncate(region.get(), 0) == 0) {
        return EPROTO;  // accepted the seal and does not keep it
    }
    return errno == EPERM ? 0 : errno;
}

void* lock_and_exit(void* mutex) {
    return ::pthread_mutex_lock(static_cast<pthread_mutex_t*>(mutex)) == 0 ? mutex : nullptr;
}

int lock_of_the_dead(pthread_mutex_t* mutex) noexcept {
    pthread_mutexattr_t attributes;
    ::pthread_mutexattr_init(&attributes);
    ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    const int initialised = ::pthread_mutex_init(mutex, &attributes);
    ::pthread_mutexattr_destroy(&attributes);
    if (initialised != 0) {
        return initialised;
    }
    pthread_t holder{};
    const int started = ::pthread_create(&holder, nullptr, lock_and_exit, mutex);
    if (started != 0) {
        return started;
    }
    void* locked = nullptr;
    ::pthread_join(holder, &locked);
    if (locked == nullptr) {
        return EPROTO;
    }
    const int answer = ::pthread_mutex_trylock(mutex);  // never blocks, even where the kernel forgot the robust list
    if (answer != EOWNERDEAD) {
        return answer == 0 ? EPROTO : answer;
    }
    ::pthread_mutex_consistent(mutex);
    ::pthread_mutex_unlock(mutex);
    ::pthread_mutex_destroy(mutex);
    return 0;
}

struct SocketPair {
    SocketPair() noexcept {
        if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
            error = errno;
        }
    }
    ~SocketPair() {
        for (const int end : ends) {
            if (end >= 0) {
                ::close(end);
            }
        }
    }
    SocketPair(const SocketPair&) = delete;
    SocketPair& operator=(const SocketPair&) = delete;

    int ends[2] = {-1, -1};
    int error = 0;
};

union Control {  // the alignment that CMSG_FIRSTHDR expects
    cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

}  // namespace

int probe_memfd_seals() noexcept { return sealed_region(0, 4096); }

int probe_memfd_huge() noexcept { return sealed_region(MFD_HUGETLB | MFD_HUGE_2MB, std::size_t{2} << 20); }

int probe_futex_waitv() noexcept {
    struct Waiter {  // struct futex_waitv of the kernel
        std::uint64_t value;
        std::uint64_t address;
        std::uint32_t flags;
        std::uint32_t reserved;
    };
    std::uint32_t word = 1;
    const Waiter waiter{0, reinterpret_cast<std::uintptr_t>(&word), futex_32, 0};
    // The word differs from the value, so a kernel that has the call returns at once with EAGAIN.
    if (::syscall(futex_waitv_number, &waiter, 1, 0, nullptr, 0) >= 0) {
        return EPROTO;
    }
    return errno == EAGAIN ? 0 : errno;
}

int probe_pidfd() noexcept {
    const Descriptor self(static_cast<int>(::syscall(pidfd_open_number, ::getpid(), 0)));
    if (!self.is_open()) {
        return errno;
    }
    pollfd waiting{self.get(), POLLIN, 0};
    const int ready = ::poll(&waiting, 1, 0);
    if (ready < 0) {
        return errno;
    }
    return ready == 0 ? 0 : EPROTO;  // we are alive, so it must not be readable
}

int probe_robust_futex() noexcept {
    const Descriptor region(::memfd_create("teal-probe", MFD_CLOEXEC));
    if (!region.is_open() || ::ftruncate(region.get(), 4096) != 0) {
        return errno;
    }
    const Mapping mapping(region.get(), 4096);
    return mapping.is_mapped() ? lock_of_the_dead(static_cast<pthread_mutex_t*>(mapping.address())) : errno;
}

int probe_fd_passing() noexcept {
    const SocketPair pair;
    if (pair.error != 0) {
        return pair.error;
    }
    char payload = 'x';
    iovec data{&payload, 1};
    Control control{};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    cmsghdr* item = CMSG_FIRSTHDR(&message);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(item), &pair.ends[0], sizeof(int));
    if (::sendmsg(pair.ends[0], &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        return errno;
    }
    control = {};
    message.msg_controllen = sizeof control;
    if (::recvmsg(pair.ends[1], &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0) {
        return errno;
    }
    item = CMSG_FIRSTHDR(&message);
    if (item == nullptr || item->cmsg_type != SCM_RIGHTS) {
        return EPROTO;
    }
    int received = -1;
    std::memcpy(&received, CMSG_DATA(item), sizeof received);
    const Descriptor arrived(received);
    return arrived.is_open() ? 0 : EPROTO;
}

int probe_peer_identity() noexcept {
    const SocketPair pair;
    if (pair.error != 0) {
        return pair.error;
    }
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(pair.ends[0], SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        return errno;
    }
    return peer.pid == ::getpid() && peer.uid == ::geteuid() ? 0 : EPROTO;
}

}  // namespace teal
