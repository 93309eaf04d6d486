#include "duck/direct.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sched.h>
#include <string_view>
#include <unistd.h>

#include "base/error.hpp"

namespace teal::duck {
namespace {

constexpr std::uint64_t least_resend_ns = 2'000'000, most_resend_ns = 1'000'000'000, slack_ns = 1'000'000;
constexpr std::uint64_t first_probe_ns = 5'000'000, most_probe_ns = 1'000'000'000;
constexpr unsigned most_resends = 3, most_misses = 3, packets_a_look = 16;
constexpr std::string_view label = "teal duck 1 direct";

}  // namespace

DirectKeys direct_keys(const Bytes32& exporter, std::uint64_t id) {
    const auto text = std::as_bytes(std::span(label.data(), label.size()));
    std::vector<std::byte> info(text.begin(), text.end());
    const auto number = std::as_bytes(std::span(&id, 1));
    info.insert(info.end(), number.begin(), number.end());
    DirectKeys keys{};
    hkdf_sha256(exporter, {}, info, keys);
    return keys;
}

int direct_socket_at(const Address& local) {
    Address at = local;
    if (at.raw.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6&>(at.raw).sin6_port = 0;
    else reinterpret_cast<sockaddr_in&>(at.raw).sin_port = 0;
    const int fd = ::socket(at.raw.ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) throw Error(Code::quota_exceeded, system_message("a socket for direct calls", errno));
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&at.raw), at.bytes) != 0) {
        const int error = errno;
        ::close(fd);
        throw Error(Code::invalid_argument, system_message("binding a socket for direct calls", error));
    }
    return fd;
}

DirectPath::DirectPath(const Address& local) : fd_(direct_socket_at(local)) {}
DirectPath::~DirectPath() { ::close(fd_); }

std::uint16_t DirectPath::port() const {
    Address address;
    address.bytes = sizeof address.raw;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address.raw), &address.bytes);
    return address.port();
}

void DirectPath::reach(const Address& box, std::uint64_t id, Cipher cipher, const DirectKeys& keys) {
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&box.raw), box.bytes) != 0)
        throw Error(Code::invalid_argument, system_message(("direct calls to " + box.text()).c_str(), errno));
    id_ = id;
    near_ = box.loopback();
    const std::span<const std::byte, 88> both(keys);
    if (cipher != Cipher::none) {
        seal_.emplace(cipher, true, both.subspan<0, 32>(), both.subspan<32, 12>());
        open_.emplace(cipher, false, both.subspan<44, 32>(), both.subspan<76, 12>());
    }
    reached_ = true;
    probe_each_ = first_probe_ns;
}

std::size_t DirectPath::make(std::byte* packet, std::uint64_t number, const DirectAsk& ask, std::span<const std::byte> args) noexcept {
    const std::size_t text = sizeof ask + args.size(), bytes = sizeof(DirectHead) + text + (seal_ ? direct_tag_bytes : 0);
    const DirectHead head{direct_ask, direct_version, 0, static_cast<std::uint32_t>(bytes), id_, number};
    std::memcpy(packet, &head, sizeof head);
    std::memcpy(packet + sizeof head, &ask, sizeof ask);
    if (!args.empty()) std::memcpy(packet + sizeof head + sizeof ask, args.data(), args.size());
    if (seal_) seal_->seal(number, {packet, sizeof head}, packet + sizeof head, text);
    return bytes;
}

bool DirectPath::send(const std::byte* packet, std::size_t bytes) noexcept { return ::send(fd_, packet, bytes, MSG_DONTWAIT) >= 0 || errno != ECONNREFUSED; }

void DirectPath::probe(std::uint64_t now) noexcept {
    if (!reached_ || ready_ || now < probe_at_) return;
    std::byte packet[sizeof(DirectHead) + sizeof(DirectAsk) + direct_tag_bytes];
    (void)send(packet, make(packet, 0, {0, 0, 0}, {}));   // always the same text: its number seals nothing else
    probe_at_ = now + probe_each_;
    probe_each_ = std::min(probe_each_ * 2, most_probe_ns);
}

void DirectPath::ask(std::span<const std::byte> args, std::uint64_t now) noexcept {
    const int cpu = near_ ? ::sched_getcpu() : -1;
    number_ = ++last_;
    packet_bytes_ = make(packet_, number_, {1, static_cast<std::uint16_t>(cpu + 1), 0}, args);
    args_bytes_ = args.size();
    sent_at_ = now;
    resends_ = 0;
    resend_each_ = std::clamp(srtt_ + 4 * rttvar_ + slack_ns, least_resend_ns, most_resend_ns);
    // A port that nobody has is told by what was sent before: once more then, so that look() hears of this one.
    if (!send(packet_, packet_bytes_)) (void)send(packet_, packet_bytes_);
    resend_at_ = now + resend_each_;
    if (!args.empty()) std::memcpy(args_, args.data(), args.size());   // for move(); while the packet is on its way
}

bool DirectPath::ask_again(std::uint64_t now) noexcept {
    if (now < resend_at_) return true;
    if (resends_ == most_resends) return false;
    ++resends_;
    ++figures_.again;
    resend_each_ *= 2;
    resend_at_ = now + resend_each_;
    return send(packet_, packet_bytes_);
}

// A packet of the box that was sealed for this session: then it is there.
bool DirectPath::open(std::size_t bytes) noexcept {
    DirectHead head;
    const std::size_t tag = open_ ? direct_tag_bytes : 0;
    if (bytes < sizeof head + sizeof(DirectAnswer) + tag || bytes > most_direct_packet) return false;
    std::memcpy(&head, in_, sizeof head);
    if (head.kind != direct_answer || head.version != direct_version || head.zero != 0 || head.bytes != bytes || head.id != id_ || head.number > last_) return false;
    return !open_ || open_->open(head.number, {in_, sizeof head}, in_ + sizeof head, bytes - sizeof head - tag);
}

DirectPath::Look DirectPath::look(std::uint64_t now, DirectAnswer& answer, std::span<const std::byte>& bytes) noexcept {
    for (unsigned i = 0; i < packets_a_look; ++i) {
        const ssize_t got = ::recv(fd_, in_, sizeof in_, MSG_DONTWAIT);
        if (got < 0) return errno == ECONNREFUSED && out() ? Look::refused : Look::nothing;
        if (!open(static_cast<std::size_t>(got))) {
            ++figures_.dropped;
            continue;
        }
        ready_ = true;
        misses_ = 0;
        DirectHead head;
        std::memcpy(&head, in_, sizeof head);
        if (head.number == 0 || head.number != number_) continue;   // said twice, or moved
        std::memcpy(&answer, in_ + sizeof head, sizeof answer);
        const std::size_t at = sizeof head + sizeof answer;
        bytes = {in_ + at, static_cast<std::size_t>(got) - at - (open_ ? direct_tag_bytes : 0)};
        if (resends_ == 0) learn(now > sent_at_ ? now - sent_at_ : 0, answer.took_ns);
        number_ = 0;
        return Look::answered;
    }
    return Look::nothing;
}

void DirectPath::missed() noexcept {
    if (++misses_ < most_misses) return;
    ready_ = false;
    misses_ = 0;
    probe_at_ = 0;
    probe_each_ = first_probe_ns;
}

// What the program took, as it says itself, is no part of the way: at most all of it.
void DirectPath::learn(std::uint64_t taken, std::uint64_t took) noexcept {
    const std::uint64_t sample = taken > took ? taken - took : 0;
    if (srtt_ == 0) {
        srtt_ = sample;
        rttvar_ = sample / 2;
        return;
    }
    rttvar_ = (3 * rttvar_ + (srtt_ > sample ? srtt_ - sample : sample - srtt_)) / 4;
    srtt_ = (7 * srtt_ + sample) / 8;
}

}  // namespace teal::duck
