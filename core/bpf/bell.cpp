#include "bpf/bell.hpp"

#include <cerrno>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.hpp"
#include "bpf/producer.hpp"

namespace teal {
namespace {

enum Source : std::uint32_t { source_quit, source_bell, source_host };

bool watch(int epoll, int fd, std::uint32_t events, Source source) noexcept {
    epoll_event event{};
    event.events = events;
    event.data.u32 = source;
    return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

Bell::Bell(int map, std::shared_ptr<ClientSession> bpf, std::shared_ptr<ClientSession> ordinary, int socket)
    : bpf_(std::move(bpf)), ordinary_(std::move(ordinary)), page_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))) {
    void* consumer = ::mmap(nullptr, page_, PROT_READ | PROT_WRITE, MAP_SHARED, map, 0);
    void* producer = ::mmap(nullptr, page_, PROT_READ, MAP_SHARED, map, static_cast<off_t>(page_));
    if (consumer != MAP_FAILED) consumed_ = static_cast<std::uint64_t*>(consumer);
    if (producer != MAP_FAILED) produced_ = static_cast<const std::uint64_t*>(producer);
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    quit_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    const bool watching = consumed_ != nullptr && produced_ != nullptr && epoll_ >= 0 && quit_ >= 0 && watch(epoll_, quit_, EPOLLIN, source_quit) &&
                          watch(epoll_, map, EPOLLIN, source_bell) && watch(epoll_, socket, EPOLLRDHUP, source_host);
    if (!watching) {
        const int error = errno;
        stop();
        throw Error(Code::quota_exceeded, system_message("waiting for the bell of a BPF session", error));
    }
    thread_ = std::thread([this] { loop(); });
}

Bell::~Bell() { stop(); }

void Bell::stop() noexcept {
    const std::uint64_t one = 1;
    if (thread_.joinable()) {
        while (::write(quit_, &one, sizeof one) < 0 && errno == EINTR) {}
        thread_.join();
    }
    if (consumed_ != nullptr) ::munmap(consumed_, page_);
    if (produced_ != nullptr) ::munmap(const_cast<std::uint64_t*>(produced_), page_);
    if (epoll_ >= 0) ::close(epoll_);
    if (quit_ >= 0) ::close(quit_);
    consumed_ = nullptr;
    produced_ = nullptr;
    epoll_ = quit_ = -1;
}

// The items carry nothing. One that is only reserved yet is passed by as well: who reserved it has published its request.
void Bell::empty() noexcept {
    // SYNC: acquire pairs with the kernel's release of the producer position; release with its acquire of the consumer's.
    const std::uint64_t produced = __atomic_load_n(produced_, __ATOMIC_ACQUIRE);
    __atomic_store_n(consumed_, produced, __ATOMIC_RELEASE);
}

void Bell::loop() noexcept {
    for (;;) {
        epoll_event events[3];
        const int count = ::epoll_wait(epoll_, events, 3, -1);
        if (count < 0 && errno != EINTR) return;
        for (int i = 0; i < count; ++i) {
            switch (events[i].data.u32) {
                case source_quit: return;
                case source_bell:
                    empty();  // before the worker is woken: what comes after it wakes us again
                    ordinary_->rouse();
                    rung_.fetch_add(1, std::memory_order_relaxed);
                    break;
                default:  // the host is gone, or has hung up
                    shut_producer(bpf_->map());
                    return;
            }
        }
    }
}

}  // namespace teal
