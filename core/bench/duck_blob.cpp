// Blobs: bytes per second to a duck, beside bare sockets that carry the same bytes over the same link.
//
// What "bare" is: one thread that sends, one that receives, each on its core, and the same kernel calls that a careful C program makes (TCP:
// 256 KiB a call; UDP: datagrams as long as the link takes, many of them a call where it is narrow, a byte count back now and then so
// that the sender does not drown the receiver, nothing sent again). The bytes end in memory that the receiver has only just got from the
// system, as with a blob: pages of 4 KiB, as a plain program's are. Beside that, for comparison, the same into memory with huge pages, which
// files in memory (and so blobs) cannot have where the system does not offer them, and into one small buffer that is written over and over.
#include <algorithm>
#include <arpa/inet.h>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netinet/udp.h>
#include <poll.h>
#include <string>
#include <sys/mman.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include "base/error.hpp"
#include "bench/duck_echo.hpp"
#include "bench/namespace.hpp"
#include "bench/on_core.hpp"
#include "cpu/clock.hpp"
#include "duck/net.hpp"
#include "duck/packet.hpp"
#include "duck/remote.hpp"

namespace teal {
namespace {

using namespace duck;

constexpr std::uint64_t patience_ns = 60'000'000'000;
constexpr int buffer_bytes = 8 << 20;
constexpr std::size_t small_buffer = 256 << 10, narrow = 1452;

double rate(std::size_t bytes, std::uint64_t start) { return static_cast<double>(bytes) * 1e9 / static_cast<double>(ticks_to_ns(ticks() - start)); }

void settle() { ::usleep(4000); }  // the loop that was busy goes to sleep

class Descriptor {
public:
    explicit Descriptor(int fd) : fd_(fd) {
        if (fd < 0) throw Error(Code::invalid_argument, system_message("a socket for a bare transfer", errno));
    }
    ~Descriptor() { ::close(fd_); }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    operator int() const noexcept { return fd_; }

private:
    int fd_;
};

enum class Memory : std::uint8_t { fresh, huge, small };

// Where a bare receiver puts what comes.
class Ground {
public:
    Ground(std::size_t bytes, Memory memory) : bytes_(memory == Memory::small ? small_buffer : bytes + (64 << 10)), fresh_(memory != Memory::small) {
        void* at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (fresh_ ? 0 : MAP_POPULATE), -1, 0);
        if (at == MAP_FAILED) throw Error(Code::quota_exceeded, system_message("memory for a bare transfer", errno));
        base_ = static_cast<std::byte*>(at);
        if (memory == Memory::huge) (void)::madvise(at, bytes_, MADV_HUGEPAGE);
    }
    ~Ground() { ::munmap(base_, bytes_); }
    Ground(const Ground&) = delete;
    Ground& operator=(const Ground&) = delete;
    [[nodiscard]] std::byte* at(std::size_t got) const noexcept { return fresh_ ? base_ + got : base_; }
    [[nodiscard]] std::size_t room(std::size_t got) const noexcept { return fresh_ ? std::min(small_buffer, bytes_ - got) : bytes_; }

private:
    std::byte* base_;
    std::size_t bytes_;
    bool fresh_;
};

struct Bare {
    const DuckBlobSpec& spec;
    const std::vector<std::byte>& data;

    double run(bool tcp, Memory memory) const {
        sockaddr_in here{};
        here.sin_family = AF_INET;
        if (::inet_pton(AF_INET, spec.host.c_str(), &here.sin_addr) != 1) throw Error(Code::invalid_argument, "duck blob: \"" + spec.host + "\" is no IPv4 address");
        socklen_t size = sizeof here;
        const auto address = [&] { return reinterpret_cast<sockaddr*>(&here); };
        const int type = (tcp ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC;
        const Descriptor listener(made(spec.far, type)), client(made(spec.near, type));
        if (::bind(listener, address(), size) != 0 || ::getsockname(listener, address(), &size) != 0) throw Error(Code::invalid_argument, system_message("bind", errno));
        if (tcp) ::listen(listener, 1);
        if (::connect(client, address(), size) != 0) throw Error(Code::invalid_argument, system_message("connect", errno));
        if (tcp) return transfer(client, Descriptor(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)), true, memory);
        ::getsockname(client, address(), &size);
        if (::connect(listener, address(), size) != 0) throw Error(Code::invalid_argument, system_message("connect", errno));
        return transfer(client, listener, false, memory);
    }

    [[nodiscard]] bool loopback() const noexcept { return spec.host.starts_with("127."); }

    int made(const std::string& where, int type) const {
        const InNamespace there(where);
        const int fd = ::socket(AF_INET, type, 0);
        if (fd < 0 || (type & SOCK_STREAM) != 0) return fd;
        for (const int name : {SO_RCVBUF, SO_RCVBUFFORCE, SO_SNDBUF, SO_SNDBUFFORCE}) ::setsockopt(fd, SOL_SOCKET, name, &buffer_bytes, sizeof buffer_bytes);
        const int each = static_cast<int>(narrow), on = 1;
        if (!loopback()) {
            ::setsockopt(fd, IPPROTO_UDP, 103 /* UDP_SEGMENT */, &each, sizeof each);
            ::setsockopt(fd, IPPROTO_UDP, 104 /* UDP_GRO */, &on, sizeof on);
        }
        return fd;
    }

    double transfer(int client, int server, bool tcp, Memory memory) const {
        const std::size_t piece = tcp ? std::size_t{1} << 18 : loopback() ? most_packet : narrow * 44, window = tcp ? ~std::size_t{0} : 16 * most_packet;
        const Ground ground(data.size(), memory);
        std::atomic<bool> failed{false};
        std::thread other([&] {
            try {
                const OnCore there(spec.duck_core);
                failed.store(!receive(server, tcp, window, ground));
            } catch (const Error&) {
                failed.store(true);
            }
        });
        const std::uint64_t start = ticks();
        std::size_t told = 0;
        for (std::size_t at = 0; at < data.size() && !failed.load(std::memory_order_relaxed);) {
            while (at - told > window && !failed.load(std::memory_order_relaxed)) ::recv(client, &told, sizeof told, MSG_DONTWAIT);
            const ssize_t n = ::send(client, data.data() + at, std::min(piece, data.size() - at), MSG_NOSIGNAL);
            if (n < 0) break;
            at += static_cast<std::size_t>(n);
        }
        if (tcp) {
            char done = 0;
            ::recv(client, &done, 1, 0);
        }
        other.join();
        const double found = rate(data.size(), start);
        if (failed.load()) throw Error(Code::peer_died, "bare transfer: bytes were lost on the way");
        return found;
    }

    bool receive(int server, bool tcp, std::size_t window, const Ground& ground) const {
        const std::uint64_t end = ticks() + ns_to_ticks(10'000'000'000);
        std::size_t got = 0, told = 0;
        while (got < data.size() && ticks() < end) {
            const ssize_t n = ::recv(server, ground.at(got), ground.room(got), MSG_DONTWAIT);
            if (n > 0) got += static_cast<std::size_t>(n);
            if (!tcp && (got - told >= window / 4 || got == data.size())) {
                told = got;
                ::send(server, &told, sizeof told, 0);
            }
        }
        if (tcp) ::send(server, "", 1, MSG_NOSIGNAL);
        return got >= data.size();
    }
};

// A duck that takes blobs and throws them away.
class Taker {
public:
    Taker(const DuckBlobSpec& spec, bool keyed, bool tcp) {
        NetOptions options;
        options.udp = tcp ? "" : spec.host + ":0";
        options.tcp = tcp ? spec.host + ":0" : "";
        options.core = spec.duck_core;
        options.idle_ns = 2'000'000;
        if (keyed) options.key.assign(32, std::byte{42});
        {
            const InNamespace there(spec.far);
            net_ = std::make_unique<Net>(options);
        }
        net_->start();
        RemoteOptions ours;
        ours.key = options.key;
        ours.tcp = tcp;
        ours.dead_after_ns = patience_ns;
        const InNamespace there(spec.near);
        remote_ = Remote::connect(spec.host + ":" + std::to_string(tcp ? net_->tcp_port() : net_->udp_port()), ours);
    }
    // Until the duck says that all of it is there, and until its SHA-256 has been compared.
    void put(const BlobDigest& digest, const std::vector<std::byte>& data, std::vector<double>& there, std::vector<double>& checked) {
        const std::uint64_t start = ticks();
        (void)remote_->put(digest, data, patience_ns);
        there.push_back(rate(data.size(), start));
        for (bool known = false; !known;) {
            NetEvent event;
            if (!net_->next_event(event)) {
                pollfd wait{net_->event_fd(), POLLIN, 0};
                if (::poll(&wait, 1, 60'000) == 0) throw Error(Code::deadline_exceeded, "duck blob: a blob of " + std::to_string(data.size()) + " bytes is not checked after a minute");
                continue;
            }
            if (event.fd >= 0) ::close(event.fd);
            known = event.kind == NetEventKind::checked;
        }
        checked.push_back(rate(data.size(), start));
        net_->forget(digest);
    }

private:
    std::unique_ptr<Net> net_;
    std::shared_ptr<Remote> remote_;
};

}  // namespace

DuckBlobRates measure_duck_blob(const DuckBlobSpec& spec) {
    if (spec.bytes < 1 << 20 || spec.bytes > 1ULL << 33 || spec.times == 0 || spec.times > 1000)
        throw Error(Code::invalid_argument, "duck blob: " + std::to_string(spec.times) + " times " + std::to_string(spec.bytes) + " bytes, expected up to 1000 times 1 MiB to 8 GiB");
    const OnCore here(spec.client_core);
    std::vector<std::byte> data(spec.bytes);
    for (std::size_t i = 0; i < data.size(); i += 8) {
        const std::uint64_t word = (i + 1) * 0x9e3779b97f4a7c15;
        std::memcpy(data.data() + i, &word, std::min<std::size_t>(8, data.size() - i));
    }
    const BlobDigest digest = sha256(data);
    const Bare bare{spec, data};
    std::unique_ptr<Taker> udp, tcp;  // without a key nobody listens beyond the loopback
    if (bare.loopback()) {
        udp = std::make_unique<Taker>(spec, false, false);
        tcp = std::make_unique<Taker>(spec, false, true);
    }
    Taker udp_sealed(spec, true, false), tcp_sealed(spec, true, true);
    DuckBlobRates rates;
    for (std::uint32_t i = 0; i < spec.times; ++i) {
        const auto each = [&](Taker* taker, BlobRates& into) {
            if (taker != nullptr) taker->put(digest, data, into.there, into.checked);
            settle();
        };
        rates.bare_udp.push_back(bare.run(false, Memory::fresh));
        each(udp.get(), rates.udp);
        rates.bare_tcp.push_back(bare.run(true, Memory::fresh));
        each(tcp.get(), rates.tcp);
        rates.bare_udp_huge.push_back(bare.run(false, Memory::huge));
        rates.bare_tcp_huge.push_back(bare.run(true, Memory::huge));
        each(&udp_sealed, rates.udp_sealed);
        rates.bare_udp_small.push_back(bare.run(false, Memory::small));
        rates.bare_tcp_small.push_back(bare.run(true, Memory::small));
        each(&tcp_sealed, rates.tcp_sealed);
    }
    return rates;
}

}  // namespace teal
