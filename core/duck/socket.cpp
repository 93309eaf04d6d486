#include "duck/socket.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <unistd.h>

#include "base/error.hpp"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace teal::duck {
namespace {

constexpr int wanted_buffer = 8 << 20;
constexpr std::uint64_t most_window = 2 << 20;
constexpr std::size_t most_segments = 64, most_segmented = 65000;

void set(int fd, int level, int name, int value) noexcept { ::setsockopt(fd, level, name, &value, sizeof value); }

[[noreturn]] void refuse(const std::string& what, int error) {
    const Code code = error == EADDRINUSE ? Code::busy : Code::invalid_argument;
    throw Error(code, "duck: " + system_message(what.c_str(), error));
}

}  // namespace

Address Address::parse(const std::string& text, bool passive) {
    const std::size_t colon = text.rfind(':');
    const auto bad = [&](const std::string& why) { return Error(Code::invalid_argument, "duck: address \"" + text + "\": " + why + ", expected host:port or [address]:port"); };
    if (colon == std::string::npos) throw bad("no port");
    std::string host = text.substr(0, colon);
    const std::string port = text.substr(colon + 1);
    if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos || std::stoul(port) > 65535) throw bad("no port number");
    if (host.size() > 1 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    else if (host.find(':') != std::string::npos) throw bad("an IPv6 address without brackets");
    addrinfo hints{};
    hints.ai_socktype = SOCK_DGRAM;
    hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
    addrinfo* found = nullptr;
    const int error = ::getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &found);
    if (error != 0) throw bad(::gai_strerror(error));
    Address address;
    address.bytes = found->ai_addrlen;
    std::memcpy(&address.raw, found->ai_addr, found->ai_addrlen);
    ::freeaddrinfo(found);
    return address;
}

std::string Address::text() const {
    char host[INET6_ADDRSTRLEN] = "?";
    if (raw.ss_family == AF_INET6) {
        ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(raw).sin6_addr, host, sizeof host);
        return "[" + std::string(host) + "]:" + std::to_string(port());
    }
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(raw).sin_addr, host, sizeof host);
    return std::string(host) + ":" + std::to_string(port());
}

bool Address::loopback() const noexcept {
    if (raw.ss_family == AF_INET) return (ntohl(reinterpret_cast<const sockaddr_in&>(raw).sin_addr.s_addr) >> 24) == 127;
    if (raw.ss_family != AF_INET6) return false;
    const in6_addr& host = reinterpret_cast<const sockaddr_in6&>(raw).sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&host) || (IN6_IS_ADDR_V4MAPPED(&host) && host.s6_addr[12] == 127);
}

bool Address::multicast() const noexcept { return raw.ss_family == AF_INET && (ntohl(reinterpret_cast<const sockaddr_in&>(raw).sin_addr.s_addr) >> 28) == 14; }

std::uint16_t Address::port() const noexcept {
    return ntohs(raw.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(raw).sin6_port : reinterpret_cast<const sockaddr_in&>(raw).sin_port);
}

std::vector<std::byte> Address::key() const {
    std::vector<std::byte> out;
    const auto add = [&](const void* at, std::size_t n) { out.insert(out.end(), static_cast<const std::byte*>(at), static_cast<const std::byte*>(at) + n); };
    const std::uint16_t number = port();
    add(&number, sizeof number);
    if (raw.ss_family == AF_INET6) add(&reinterpret_cast<const sockaddr_in6&>(raw).sin6_addr, sizeof(in6_addr));
    else add(&reinterpret_cast<const sockaddr_in&>(raw).sin_addr, sizeof(in_addr));
    return out;
}

UdpSocket::~UdpSocket() {
    if (fd_ >= 0) ::close(fd_);
}

void UdpSocket::open(int family) {
    fd_ = ::socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd_ < 0) refuse("socket", errno);
    for (const int name : {SO_RCVBUF, SO_SNDBUF}) set(fd_, SOL_SOCKET, name, wanted_buffer);
    for (const int name : {SO_RCVBUFFORCE, SO_SNDBUFFORCE}) set(fd_, SOL_SOCKET, name, wanted_buffer);  // where we may
    if (family == AF_INET6) set(fd_, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
    else set(fd_, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);  // never fragments: probes find out how long packets may be
    set(fd_, IPPROTO_UDP, UDP_GRO, 1);
    int buffer = 0;
    socklen_t size = sizeof buffer;
    ::getsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &buffer, &size);
    // Half: the kernel counts its own book-keeping too. Not more than a fast link needs: calls queue behind what is in flight.
    window_ = std::min<std::uint64_t>(static_cast<std::uint64_t>(buffer) / 2, most_window);
}

void UdpSocket::listen(const Address& address) {
    open(address.raw.ss_family);
    if (::bind(fd_, reinterpret_cast<const sockaddr*>(&address.raw), address.bytes) != 0) refuse("UDP " + address.text(), errno);
}

void UdpSocket::connect(const Address& address) {
    open(address.raw.ss_family);
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address.raw), address.bytes) != 0) refuse("UDP " + address.text(), errno);
}

namespace {

in_addr host_of(const Address& address) {
    if (address.raw.ss_family != AF_INET) throw Error(Code::invalid_argument, "duck: " + address.text() + ": a multicast group has an IPv4 address here");
    return reinterpret_cast<const sockaddr_in&>(address.raw).sin_addr;
}

}  // namespace

void UdpSocket::join(const Address& group, const Address& interface) {
    const ip_mreq request{host_of(group), host_of(interface)};
    open(AF_INET);
    set(fd_, SOL_SOCKET, SO_REUSEADDR, 1);  // several ducks of a machine
    if (::bind(fd_, reinterpret_cast<const sockaddr*>(&group.raw), group.bytes) != 0) refuse("UDP group " + group.text(), errno);
    if (::setsockopt(fd_, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request) != 0) refuse("joining UDP group " + group.text(), errno);
}

void UdpSocket::speak(const Address& group, const Address& interface) {
    const in_addr from = host_of(interface);
    open(AF_INET);
    set(fd_, IPPROTO_IP, IP_MULTICAST_TTL, 1);  // this link only
    set(fd_, IPPROTO_IP, IP_MULTICAST_LOOP, 1);
    if (::setsockopt(fd_, IPPROTO_IP, IP_MULTICAST_IF, &from, sizeof from) != 0 ||
        ::connect(fd_, reinterpret_cast<const sockaddr*>(&group.raw), group.bytes) != 0)
        refuse("UDP group " + group.text(), errno);
}

Address UdpSocket::local() const {
    Address address;
    address.bytes = sizeof address.raw;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address.raw), &address.bytes);
    return address;
}

std::ptrdiff_t UdpSocket::receive(std::span<std::byte> into, Address& from) noexcept {
    from.bytes = sizeof from.raw;
    const ssize_t n = ::recvfrom(fd_, into.data(), into.size(), MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&from.raw), &from.bytes);
    if (n >= 0) return n;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

std::ptrdiff_t UdpSocket::receive(std::span<std::byte> into) noexcept {
    const ssize_t n = ::recv(fd_, into.data(), into.size(), MSG_DONTWAIT);
    if (n >= 0) return n;
    if (errno == ECONNREFUSED) ++refused_;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

Sent UdpSocket::one(std::span<const std::byte> packet, const Address* to) noexcept {
    const ssize_t n = to != nullptr ? ::sendto(fd_, packet.data(), packet.size(), MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&to->raw), to->bytes)
                                    : ::send(fd_, packet.data(), packet.size(), MSG_DONTWAIT);
    if (n >= 0) return Sent::all;
    switch (errno) {
        case EAGAIN:
        case ENOBUFS: return Sent::full;
        case EMSGSIZE: return Sent::too_long;
        case ECONNREFUSED: ++refused_; return Sent::gone;
        default: return Sent::failed;
    }
}

Sent UdpSocket::send(std::span<const std::byte> packets, std::size_t each, const Address* to) noexcept {
    if (packets.size() <= each) return one(packets, to);
    if (segments_) {
        alignas(cmsghdr) char control[CMSG_SPACE(sizeof(std::uint16_t))] = {};
        iovec part{const_cast<std::byte*>(packets.data()), packets.size()};
        msghdr message{};
        if (to != nullptr) {
            message.msg_name = const_cast<sockaddr_storage*>(&to->raw);
            message.msg_namelen = to->bytes;
        }
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        cmsghdr* head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = IPPROTO_UDP;
        head->cmsg_type = UDP_SEGMENT;
        head->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
        const auto size = static_cast<std::uint16_t>(each);
        std::memcpy(CMSG_DATA(head), &size, sizeof size);
        if (::sendmsg(fd_, &message, MSG_DONTWAIT) >= 0) return Sent::all;
        if (errno == EAGAIN || errno == ENOBUFS) return Sent::full;
        if (errno == ECONNREFUSED) {
            ++refused_;
            return Sent::gone;
        }
        if (errno == EIO || errno == EINVAL || errno == EOPNOTSUPP) segments_ = false;  // not with this kernel, or this device
        else if (errno == EMSGSIZE) return Sent::too_long;
        else return Sent::failed;
    }
    Sent worst = Sent::all;
    for (std::size_t at = 0; at < packets.size(); at += each) {
        const Sent result = one(packets.subspan(at, std::min(each, packets.size() - at)), to);
        if (result != Sent::all) worst = result;  // what did not leave is found lost
    }
    return worst == Sent::full ? Sent::all : worst;
}

Stream::Stream(int fd) : fd_(fd) {
    in_.resize(256 << 10);
    ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) | O_NONBLOCK);
    set(fd_, IPPROTO_TCP, TCP_NODELAY, 1);
}

Stream::~Stream() { ::close(fd_); }

int Stream::connect(const Address& address, std::uint64_t timeout_ns) {
    const int fd = ::socket(address.raw.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) refuse("socket", errno);
    int error = 0;
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address.raw), address.bytes) != 0) {
        error = errno;
        pollfd wait{fd, POLLOUT, 0};
        socklen_t size = sizeof error;
        if (error == EINPROGRESS) {
            if (::poll(&wait, 1, static_cast<int>(timeout_ns / 1'000'000)) <= 0) error = ETIMEDOUT;
            else ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
        }
    }
    if (error == 0) return fd;
    ::close(fd);
    throw Error(Code::not_found, "duck " + address.text() + ": no answer: " + system_message("TCP", error));
}

bool Stream::fill() noexcept {
    if (in_first_ != 0 && in_first_ == in_end_) in_first_ = in_end_ = 0;
    if (in_.size() - in_end_ < most_packet) {
        std::memmove(in_.data(), in_.data() + in_first_, in_end_ - in_first_);
        in_end_ -= in_first_;
        in_first_ = 0;
    }
    if (in_end_ == in_.size()) return !broken_;  // full of whole packets that nobody took
    const ssize_t n = ::recv(fd_, in_.data() + in_end_, in_.size() - in_end_, MSG_DONTWAIT);
    if (n > 0) in_end_ += static_cast<std::size_t>(n);
    return !broken_ && (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)));
}

std::span<std::byte> Stream::next() noexcept {
    PacketStart start;
    const std::span<std::byte> rest(in_.data() + in_first_, in_end_ - in_first_);
    if (broken_ || !load(std::span<const std::byte>(rest), start)) return {};
    if (start.bytes < sizeof start || start.bytes > most_packet) {
        broken_ = true;  // no frame can be found any more
        return {};
    }
    if (rest.size() < start.bytes) return {};
    in_first_ += start.bytes;
    return rest.first(start.bytes);
}

void Stream::put(std::span<const std::byte> packet) {
    if (out_first_ == out_.size()) {  // nothing waits: straight out, and only the rest of it is kept
        const ssize_t n = ::send(fd_, packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) packet = packet.subspan(static_cast<std::size_t>(n));
        if (packet.empty()) return;  // an error is seen again by flush()
    }
    if (out_first_ == out_.size()) {
        out_.clear();
        out_first_ = 0;
    }
    out_.insert(out_.end(), packet.begin(), packet.end());
}

bool Stream::flush() noexcept {
    while (out_first_ != out_.size()) {
        const ssize_t n = ::send(fd_, out_.data() + out_first_, out_.size() - out_first_, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        out_first_ += static_cast<std::size_t>(n);
    }
    return true;
}

int tcp_listener(const Address& address) {
    const int fd = ::socket(address.raw.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) refuse("socket", errno);
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);  // a duck that was killed can be started again at once
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&address.raw), address.bytes) != 0 || ::listen(fd, 64) != 0) {
        const int error = errno;
        ::close(fd);
        refuse("TCP " + address.text(), error);
    }
    return fd;
}

}  // namespace teal::duck
