// Sockets of the duck's network: addresses, UDP with segmentation offload, TCP with a packet's own length as its frame.
//
// Theory of operation. Both carry the packets of packet.hpp, which tell their own length: so a datagram that the kernel has put together from several
// (UDP GRO) is taken apart without asking the kernel how, and a TCP stream needs no other frame. UDP sends runs of equally long
// packets with one call (UDP_SEGMENT) where the kernel offers it, one call a packet where it does not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <netinet/in.h>
#include <span>
#include <string>
#include <sys/socket.h>
#include <vector>

#include "duck/packet.hpp"

namespace teal::duck {

struct Address {
    sockaddr_storage raw{};
    socklen_t bytes = 0;

    // "host:port", "[::1]:port"; a name is looked up. Throws invalid_argument.
    static Address parse(const std::string& text, bool passive);
    [[nodiscard]] std::string text() const;
    [[nodiscard]] bool loopback() const noexcept;
    [[nodiscard]] bool multicast() const noexcept;  // IPv4
    [[nodiscard]] std::uint16_t port() const noexcept;
    // Family, port and host: what a cookie is bound to.
    [[nodiscard]] std::vector<std::byte> key() const;
    [[nodiscard]] bool operator==(const Address& other) const noexcept { return bytes == other.bytes && std::memcmp(&raw, &other.raw, bytes) == 0; }
};

enum class Sent : std::uint8_t { all, full /* later */, too_long, gone /* nobody there */, failed };

class UdpSocket {
public:
    UdpSocket() = default;
    ~UdpSocket();
    UdpSocket(const UdpSocket&) = delete;
    UdpSocket& operator=(const UdpSocket&) = delete;

    void listen(const Address& address);   // throws busy, invalid_argument
    void connect(const Address& address);
    // IPv4 groups; `interface`: address of the interface on which to listen, or by which to send. Throw invalid_argument.
    void join(const Address& group, const Address& interface);
    void speak(const Address& group, const Address& interface);
    // Bytes, 0: nothing there, -1: an error that is not one (a refused port is reported by gone()).
    [[nodiscard]] std::ptrdiff_t receive(std::span<std::byte> into, Address& from) noexcept;
    [[nodiscard]] std::ptrdiff_t receive(std::span<std::byte> into) noexcept;
    // `packets`: one after the other, `each` bytes long, the last one perhaps shorter. `to`: null when connected.
    Sent send(std::span<const std::byte> packets, std::size_t each, const Address* to) noexcept;
    [[nodiscard]] int fd() const noexcept { return fd_; }
    [[nodiscard]] std::uint64_t window() const noexcept { return window_; }
    [[nodiscard]] std::uint64_t refused() const noexcept { return refused_; }  // times that nobody listened there
    [[nodiscard]] Address local() const;

private:
    void open(int family);
    Sent one(std::span<const std::byte> packet, const Address* to) noexcept;
    int fd_ = -1;
    bool segments_ = true;
    std::uint64_t window_ = 0, refused_ = 0;
};

inline constexpr std::size_t datagram_buffer = 65536;

// A TCP connection as a stream of packets. Not blocking.
class Stream {
public:
    explicit Stream(int fd);  // takes it
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    static int connect(const Address& address, std::uint64_t timeout_ns);  // throws not_found

    // Takes what is there; then next() gives whole packets, valid until the next fill(). False: the stream has ended or is no stream of packets.
    bool fill() noexcept;
    [[nodiscard]] std::span<std::byte> next() noexcept;
    void put(std::span<const std::byte> packet);
    bool flush() noexcept;    // false: ended
    [[nodiscard]] bool blocked() const noexcept { return out_first_ != out_.size(); }
    [[nodiscard]] int fd() const noexcept { return fd_; }
    static constexpr std::uint64_t window = 4 << 20;

private:
    int fd_;
    bool broken_ = false;
    std::vector<std::byte> in_, out_;
    std::size_t in_first_ = 0, in_end_ = 0, out_first_ = 0;
};

int tcp_listener(const Address& address);  // throws

}  // namespace teal::duck
