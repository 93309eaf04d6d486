// Blobs: bytes per second to a duck on the loopback, beside bare sockets that carry the same bytes.
#include <algorithm>
#include <arpa/inet.h>
#include <atomic>
#include <cerrno>
#include <memory>
#include <poll.h>
#include <sched.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include "base/error.hpp"
#include "bench/duck_echo.hpp"
#include "cpu/clock.hpp"
#include "duck/net.hpp"
#include "duck/packet.hpp"
#include "duck/remote.hpp"

namespace teal {
namespace {

using namespace duck;

constexpr std::uint64_t patience_ns = 60'000'000'000;
constexpr int buffer_bytes = 8 << 20;

void pin(int core) {
    cpu_set_t one;
    CPU_ZERO(&one);
    if (core >= 0 && core < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(core), &one);
    if (::sched_setaffinity(0, sizeof one, &one) != 0) throw Error(Code::invalid_argument, "core " + std::to_string(core) + ": " + system_message("sched_setaffinity", errno));
}

struct Restore {
    cpu_set_t before{};
    Restore() { ::sched_getaffinity(0, sizeof before, &before); }
    ~Restore() { ::sched_setaffinity(0, sizeof before, &before); }
    Restore(const Restore&) = delete;
    Restore& operator=(const Restore&) = delete;
};

class Descriptor {
public:
    explicit Descriptor(int fd) : fd_(fd) {
        if (fd < 0) throw Error(Code::invalid_argument, system_message("a socket of the loopback", errno));
    }
    ~Descriptor() { ::close(fd_); }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    operator int() const noexcept { return fd_; }

private:
    int fd_;
};

// Sends everything through `client`, which `server` receives into one buffer in a thread of the other core. UDP: a byte back for each
// quarter of what the receiver's buffer holds keeps the sender from drowning it; nothing is sent again.
double bare(const std::vector<std::byte>& data, int core, int client, int server, bool tcp) {
    std::atomic<bool> failed{false};
    constexpr std::size_t piece = most_packet;
    const std::size_t window = tcp ? ~std::size_t{0} : 16 * piece;
    std::thread other([&] {
        try {
            pin(core);
            std::vector<std::byte> buffer(1 << 18);
            const std::uint64_t end = ticks() + ns_to_ticks(10'000'000'000);
            std::size_t got = 0, told = 0;
            while (got < data.size() && ticks() < end) {
                const ssize_t n = ::recv(server, buffer.data(), buffer.size(), MSG_DONTWAIT);
                if (n > 0) got += static_cast<std::size_t>(n);
                if (!tcp && (got - told >= window / 4 || got == data.size())) {
                    told = got;
                    ::send(server, &told, sizeof told, 0);
                }
            }
            if (tcp) ::send(server, "", 1, 0);
            failed.store(got < data.size());
        } catch (const Error&) {
            failed.store(true);
        }
    });
    const std::uint64_t start = ticks();
    std::size_t told = 0;
    for (std::size_t at = 0; at < data.size() && !failed.load(std::memory_order_relaxed);) {
        while (at - told > window && !failed.load(std::memory_order_relaxed)) ::recv(client, &told, sizeof told, MSG_DONTWAIT);
        const ssize_t n = ::send(client, data.data() + at, std::min(tcp ? std::size_t{1} << 18 : piece, data.size() - at), 0);
        if (n < 0) break;
        at += static_cast<std::size_t>(n);
    }
    if (tcp) {
        char done = 0;
        ::recv(client, &done, 1, 0);
    }
    other.join();
    const double seconds = static_cast<double>(ticks_to_ns(ticks() - start)) / 1e9;
    if (failed.load()) throw Error(Code::peer_died, "bare transfer: bytes were lost on the loopback");
    return static_cast<double>(data.size()) / seconds;
}

double bare_socket(const std::vector<std::byte>& data, int core, bool tcp) {
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof here;
    const auto address = [&] { return reinterpret_cast<sockaddr*>(&here); };
    const int type = (tcp ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC;
    const Descriptor listener(::socket(AF_INET, type, 0)), client(::socket(AF_INET, type, 0));
    for (const int fd : {static_cast<int>(listener), static_cast<int>(client)})
        for (const int name : {SO_RCVBUF, SO_RCVBUFFORCE})
            if (!tcp) ::setsockopt(fd, SOL_SOCKET, name, &buffer_bytes, sizeof buffer_bytes);
    if (::bind(listener, address(), size) != 0 || ::getsockname(listener, address(), &size) != 0) throw Error(Code::invalid_argument, system_message("bind", errno));
    if (tcp) ::listen(listener, 1);
    if (::connect(client, address(), size) != 0) throw Error(Code::invalid_argument, system_message("connect", errno));
    if (tcp) return bare(data, core, client, Descriptor(::accept(listener, nullptr, nullptr)), true);
    ::getsockname(client, address(), &size);
    if (::connect(listener, address(), size) != 0) throw Error(Code::invalid_argument, system_message("connect", errno));
    return bare(data, core, client, listener, false);
}

// A duck that takes blobs and throws them away.
class Taker {
public:
    Taker(int core, bool keyed, bool tcp) {
        NetOptions options;
        options.udp = tcp ? "" : "127.0.0.1:0";
        options.tcp = tcp ? "127.0.0.1:0" : "";
        options.core = core;
        options.idle_ns = 2'000'000;
        if (keyed) options.key.assign(32, std::byte{42});
        net_ = std::make_unique<Net>(options);
        net_->start();
        RemoteOptions ours;
        ours.key = options.key;
        ours.tcp = tcp;
        ours.dead_after_ns = patience_ns;
        remote_ = Remote::connect("127.0.0.1:" + std::to_string(tcp ? net_->tcp_port() : net_->udp_port()), ours);
    }
    double put(const BlobDigest& digest, const std::vector<std::byte>& data) {
        const std::uint64_t start = ticks();
        (void)remote_->put(digest, data, patience_ns);
        const double seconds = static_cast<double>(ticks_to_ns(ticks() - start)) / 1e9;
        for (NetEvent event; net_->next_event(event);)
            if (event.fd >= 0) ::close(event.fd);
        net_->forget(digest);
        return static_cast<double>(data.size()) / seconds;
    }

private:
    std::unique_ptr<Net> net_;
    std::shared_ptr<Remote> remote_;
};

}  // namespace

DuckBlobRates measure_duck_blob(const DuckBlobSpec& spec) {
    if (spec.bytes < 1 << 20 || spec.bytes > 1ULL << 33 || spec.times == 0 || spec.times > 1000)
        throw Error(Code::invalid_argument, "duck blob: " + std::to_string(spec.times) + " times " + std::to_string(spec.bytes) + " bytes, expected up to 1000 times 1 MiB to 8 GiB");
    const Restore restore;
    pin(spec.client_core);
    std::vector<std::byte> data(spec.bytes);
    for (std::size_t i = 0; i < data.size(); i += 8) {
        const std::uint64_t word = (i + 1) * 0x9e3779b97f4a7c15;
        std::memcpy(data.data() + i, &word, std::min<std::size_t>(8, data.size() - i));
    }
    const BlobDigest digest = sha256(data);
    Taker plain(spec.duck_core, false, false), sealed(spec.duck_core, true, false), stream(spec.duck_core, true, true);
    DuckBlobRates rates;
    for (std::uint32_t i = 0; i < spec.times; ++i) {
        rates.bare_udp.push_back(bare_socket(data, spec.duck_core, false));
        rates.bare_tcp.push_back(bare_socket(data, spec.duck_core, true));
        rates.udp.push_back(plain.put(digest, data));
        rates.udp_sealed.push_back(sealed.put(digest, data));
        rates.tcp.push_back(stream.put(digest, data));
    }
    return rates;
}

}  // namespace teal
