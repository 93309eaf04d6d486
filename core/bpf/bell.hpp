// The bell of a BPF session: wakes a sleeping worker on behalf of programs that cannot.
//
// Theory of operation: a BPF program that finds `need_wake` up puts an item on a BPF ring buffer; a thread of the process that
// opened the session waits for it with epoll, throws the item away, and rings the doorbell of that process's ordinary session with
// the pool, a futex that the leader sleeps on as well. While the worker spins, nothing of this happens. Without this thread (stopped,
// killed) the host's sweeper finds the request within 50 ms. The thread also sees the host hang up, and shuts the producer then.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "host/client.hpp"

namespace teal {

class Bell {
public:
    // `map`: the ring buffer, which stays the caller's; `socket`: the control socket, only watched. Throws quota_exceeded.
    Bell(int map, std::shared_ptr<ClientSession> bpf, std::shared_ptr<ClientSession> ordinary, int socket);
    ~Bell();
    Bell(const Bell&) = delete;
    Bell& operator=(const Bell&) = delete;

    void stop() noexcept;  // joins the thread; again is fine
    [[nodiscard]] std::uint64_t rung() const noexcept { return rung_.load(std::memory_order_relaxed); }

private:
    void loop() noexcept;
    void empty() noexcept;

    std::shared_ptr<ClientSession> bpf_;
    std::shared_ptr<ClientSession> ordinary_;
    int epoll_ = -1;
    int quit_ = -1;
    std::uint64_t* consumed_ = nullptr;        // the ring buffer's first page
    const std::uint64_t* produced_ = nullptr;  // its second
    std::size_t page_ = 0;
    std::atomic<std::uint64_t> rung_{0};
    std::thread thread_;
};

}  // namespace teal
