#include "bench/duck_echo.hpp"

#include "bench/namespace.hpp"
#include "bench/on_core.hpp"

#include <arpa/inet.h>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <sched.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include "base/error.hpp"
#include "cpu/clock.hpp"
#include "duck/net.hpp"
#include "duck/remote.hpp"

namespace teal {
namespace {

using namespace duck;

constexpr std::uint32_t most_calls = 10'000'000, a_turn = 500;
constexpr std::uint64_t patience_ns = 10'000'000'000;

// Answers with its arguments: the shortest program there is.
class Mirror final : public CallSink {
public:
    bool submit(const Ask& ask, Answer&) noexcept override {
        bytes_ = ask.args.size() < sizeof ob_ ? ask.args.size() : sizeof ob_;
        std::memcpy(ob_, ask.args.data(), bytes_);
        return true;
    }
    bool poll(Answer& answer) noexcept override {
        answer = {Outcome::ran, static_cast<std::int64_t>(bytes_), 0, {ob_, bytes_}};
        return true;
    }

private:
    std::byte ob_[2048];
    std::size_t bytes_ = 0;
};

// The plain C program that everything is compared with: a thread that polls a socket and sends back what came.
class BareEcho {
public:
    explicit BareEcho(const DuckEchoSpec& spec) {
        fd_ = made(spec.far);
        client_ = made(spec.near);
        sockaddr_in here{};
        here.sin_family = AF_INET;
        if (::inet_pton(AF_INET, spec.host.c_str(), &here.sin_addr) != 1) throw Error(Code::invalid_argument, "duck echo: \"" + spec.host + "\" is no IPv4 address");
        socklen_t size = sizeof here;
        if (fd_ < 0 || client_ < 0 || ::bind(fd_, reinterpret_cast<sockaddr*>(&here), sizeof here) != 0 ||
            ::getsockname(fd_, reinterpret_cast<sockaddr*>(&here), &size) != 0 || ::connect(client_, reinterpret_cast<sockaddr*>(&here), sizeof here) != 0)
            throw Error(Code::invalid_argument, system_message("a socket for a bare echo", errno));
        thread_ = std::thread([this, core = spec.duck_core] { serve(core); });
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

// A duck with its loop on a core, and a client of it.
class Pair {
public:
    Pair(const DuckEchoSpec& spec, bool keyed) {
        NetOptions options;
        options.udp = spec.host + ":0";
        options.core = spec.duck_core;
        options.idle_ns = 2'000'000;  // out of the way while others are measured
        if (keyed) options.key.assign(32, std::byte{42});
        {
            const InNamespace there(spec.far);
            net_ = std::make_unique<Net>(options);
        }
        net_->start();
        RemoteOptions ours;
        ours.key = options.key;
        ours.dead_after_ns = patience_ns;
        {
            const InNamespace there(spec.near);
            remote_ = Remote::connect(spec.host + ":" + std::to_string(net_->udp_port()), ours);
        }
        NetEvent opened;
        while (!net_->next_event(opened)) ::usleep(100);
        session_ = remote_->session(net_->attach(opened.connection, std::make_shared<Mirror>(), {}), ob_, nullptr);
    }
    ~Pair() {
        session_.reset();
        remote_->close();
    }
    Pair(const Pair&) = delete;
    Pair& operator=(const Pair&) = delete;
    void turn(std::span<const std::byte> args) { (void)session_->call(args, patience_ns); }
    Remote& remote() noexcept { return *remote_; }
    Net& net() noexcept { return *net_; }

private:
    std::unique_ptr<Net> net_;
    std::shared_ptr<Remote> remote_;
    std::unique_ptr<RemoteSession> session_;
    std::vector<std::byte> ob_ = std::vector<std::byte>(4096);
};

template <class Turn> void measure(std::vector<std::uint32_t>& into, std::uint32_t count, Turn&& turn) {
    for (int i = 0; i < 50; ++i) turn();  // whoever slept is awake
    for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint64_t start = ticks();
        turn();
        into.push_back(static_cast<std::uint32_t>(ticks_to_ns(ticks() - start)));
    }
}

void settle() { ::usleep(5000); }  // the loop that was busy goes to sleep

}  // namespace

DuckEchoTimes measure_duck_echo(const DuckEchoSpec& spec) {
    if (spec.calls == 0 || spec.calls > most_calls || spec.bytes < 4 || spec.bytes > 900)
        throw Error(Code::invalid_argument, "duck echo: " + std::to_string(spec.calls) + " calls of " + std::to_string(spec.bytes) + " bytes, expected 1 to 10000000 of 4 to 900");
    const OnCore here(spec.client_core);
    BareEcho echo(spec);
    Pair sealed(spec, true);
    std::optional<Pair> plain;  // without a key nobody listens beyond the loopback
    if (spec.host.starts_with("127.")) plain.emplace(spec, false);
    const std::vector<std::byte> args(spec.bytes, std::byte{1});
    DuckEchoTimes times;
    // The packets of a call: heads, an acknowledgement each way, arguments and result.
    const std::size_t up = 24 + 32 + 16 + spec.bytes, down = 24 + 32 + 8 + 32 + spec.bytes;
    for (std::uint32_t done = 0; done < spec.calls; done += a_turn) {
        const std::uint32_t count = spec.calls - done < a_turn ? spec.calls - done : a_turn;
        settle();
        echo.rest(false);
        measure(times.bare, count, [&] { echo.turn(up, down); });
        measure(times.bare_small, count, [&] { echo.turn(spec.bytes, spec.bytes); });
        echo.rest(true);
        settle();
        if (plain) {
            measure(times.call, count, [&] { plain->turn(args); });
            settle();
        }
        measure(times.sealed, count, [&] { sealed.turn(args); });
    }
    return times;
}

}  // namespace teal
