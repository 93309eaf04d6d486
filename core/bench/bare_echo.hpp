// The plain C program that calls over a network are compared with, and how both are timed.
#pragma once

#include <arpa/inet.h>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "base/error.hpp"
#include "bench/namespace.hpp"
#include "bench/on_core.hpp"
#include "cpu/clock.hpp"

namespace teal {

inline constexpr std::uint64_t patience_ns = 10'000'000'000;

// A thread that polls a socket and sends back what came.
class BareEcho {
public:
    explicit BareEcho(int core, const std::string& host = "127.0.0.1", const std::string& near = {}, const std::string& far = {}) {
        fd_ = made(far);
        client_ = made(near);
        sockaddr_in here{};
        here.sin_family = AF_INET;
        if (::inet_pton(AF_INET, host.c_str(), &here.sin_addr) != 1) throw Error(Code::invalid_argument, "duck echo: \"" + host + "\" is no IPv4 address");
        socklen_t size = sizeof here;
        if (fd_ < 0 || client_ < 0 || ::bind(fd_, reinterpret_cast<sockaddr*>(&here), sizeof here) != 0 ||
            ::getsockname(fd_, reinterpret_cast<sockaddr*>(&here), &size) != 0 || ::connect(client_, reinterpret_cast<sockaddr*>(&here), sizeof here) != 0)
            throw Error(Code::invalid_argument, system_message("a socket for a bare echo", errno));
        thread_ = std::thread([this, core] { serve(core); });
    }
    ~BareEcho() {
        stop_.store(true, std::memory_order_relaxed);
        rest(false);
        thread_.join();
        ::close(fd_);
        ::close(client_);
    }
    BareEcho(const BareEcho&) = delete;
    BareEcho& operator=(const BareEcho&) = delete;
    void rest(bool resting) noexcept {
        resting_.store(resting, std::memory_order_relaxed);
        resting_.notify_all();
    }
    // One round trip; the answer has `down` bytes.
    void turn(std::size_t up, std::size_t down) {
        std::byte buffer[4096] = {};
        const auto back = static_cast<std::uint32_t>(down);
        std::memcpy(buffer, &back, sizeof back);
        if (::send(client_, buffer, up, 0) < 0) throw Error(Code::peer_died, system_message("bare echo", errno));
        const std::uint64_t end = ticks() + ns_to_ticks(static_cast<std::int64_t>(patience_ns));
        while (::recv(client_, buffer, sizeof buffer, MSG_DONTWAIT) < 0)
            if (ticks() > end) throw Error(Code::peer_died, "bare echo: nothing for 10 s");
    }

private:
    static int made(const std::string& where) {
        const InNamespace there(where);
        return ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    }
    void serve(int core) noexcept {
        try {
            const OnCore here(core);
            std::byte buffer[4096];
            sockaddr_in from{};
            while (!stop_.load(std::memory_order_relaxed)) {
                resting_.wait(true, std::memory_order_relaxed);  // asleep: a nap now and then would disturb what is measured beside it
                socklen_t size = sizeof from;
                if (::recvfrom(fd_, buffer, sizeof buffer, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&from), &size) <= 0) continue;
                std::uint32_t back = 0;
                std::memcpy(&back, buffer, sizeof back);
                ::sendto(fd_, buffer, back, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&from), size);
            }
        } catch (const Error&) {
            return;  // the caller finds out by its own patience
        }
    }
    int fd_ = -1, client_ = -1;
    std::atomic<bool> stop_{false}, resting_{true};  // relaxed: a hint, read between two packets
    std::thread thread_;
};

template <class Turn> void measure(std::vector<std::uint32_t>& into, std::uint32_t count, Turn&& turn) {
    for (int i = 0; i < 50; ++i) turn();  // whoever slept is awake
    for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint64_t start = ticks();
        turn();
        into.push_back(static_cast<std::uint32_t>(ticks_to_ns(ticks() - start)));
    }
}

inline void settle() { ::usleep(5000); }  // the loop that was busy goes to sleep

}  // namespace teal
