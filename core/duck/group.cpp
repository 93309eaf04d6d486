#include "duck/group.hpp"

#include <algorithm>
#include <optional>
#include <time.h>

#include "base/error.hpp"
#include "cpu/clock.hpp"
#include "duck/packet.hpp"
#include "duck/socket.hpp"

namespace teal::duck {
namespace {

constexpr std::size_t packets_a_run = 32;

void nap(std::uint64_t ns) noexcept {
    const timespec wait{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    ::nanosleep(&wait, nullptr);
}

// All of it once, no faster than told.
void speak(UdpSocket& socket, const GroupAsk& ask, std::span<const std::byte> bytes, const GroupOptions& options) {
    std::optional<Aead> seal;
    const std::span<const std::byte, 48> key(ask.key);
    if (static_cast<Cipher>(ask.cipher) != Cipher::none) seal.emplace(static_cast<Cipher>(ask.cipher), true, key.first<32>(), key.subspan<32, 12>());
    const std::size_t extra = sizeof(GroupHead) + sizeof(std::uint64_t) + (seal ? tag_bytes : 0), room = options.datagram_bytes - extra;
    std::vector<std::byte> run(packets_a_run * options.datagram_bytes);
    std::uint64_t number = 0;
    const std::int64_t start = monotonic_ns();
    for (std::uint64_t at = 0; at < bytes.size();) {
        std::size_t filled = 0;
        for (std::size_t i = 0; i < packets_a_run && at < bytes.size(); ++i) {
            const std::size_t piece = std::min<std::uint64_t>(room, bytes.size() - at);
            std::byte* to = run.data() + filled;
            const GroupHead head{{static_cast<std::uint8_t>(PacketKind::group), static_cast<std::uint8_t>(highest_version), 0, static_cast<std::uint32_t>(piece + extra)},
                                 ask.group, ++number};
            std::memcpy(to, &head, sizeof head);
            std::memcpy(to + sizeof head, &at, sizeof at);
            std::memcpy(to + sizeof head + sizeof at, bytes.data() + at, piece);
            if (seal) seal->seal(number, {to, sizeof head}, to + sizeof head, sizeof at + piece);
            if (!options.lost || !options.lost(number)) filled += piece + extra;
            at += piece;
        }
        (void)socket.send(std::span(run).first(filled), options.datagram_bytes, nullptr);  // what does not leave is repaired
        const auto due = static_cast<std::int64_t>(static_cast<double>(at) * 1e9 / static_cast<double>(options.bytes_per_second));
        const std::int64_t early = start + due - monotonic_ns();
        if (early > 50'000) nap(static_cast<std::uint64_t>(early));
    }
}

}  // namespace

GroupPut put_group(std::span<const std::shared_ptr<Remote>> ducks, const BlobDigest& digest, std::span<const std::byte> bytes, const GroupOptions& options) {
    if (options.datagram_bytes < least_packet || options.datagram_bytes > 8952 || options.bytes_per_second == 0)
        throw Error(Code::invalid_argument, "duck: group datagrams of " + std::to_string(options.datagram_bytes) + " bytes, expected 1200 to 8952, and a rate above 0");
    const Address group = Address::parse(options.group, true);
    if (!group.multicast()) throw Error(Code::invalid_argument, "duck: " + options.group + " is no multicast group: expected 224.0.0.0 to 239.255.255.255 and a port");
    UdpSocket socket;
    socket.speak(group, Address::parse(options.interface + ":0", true));
    GroupAsk ask{};
    ask.blob.digest = digest;
    ask.blob.bytes = bytes.size();
    random_bytes(std::as_writable_bytes(std::span(&ask.group, 1)));
    ask.address = reinterpret_cast<const sockaddr_in&>(group.raw).sin_addr.s_addr;
    ask.port = group.port();
    GroupPut result;
    bool listening = false;
    if (!ducks.empty() && ducks[0]->keyed()) {
        ask.cipher = static_cast<std::uint32_t>(has_fast_aes() ? Cipher::aes_256_gcm : Cipher::chacha20_poly1305);
        random_bytes(std::span(ask.key).first(44));
    }
    for (const auto& duck : ducks) {
        if (duck->keyed() != ducks[0]->keyed()) throw Error(Code::invalid_argument, "duck: connections with and without a key cannot share a group");
        bool had = false;
        listening = (duck->offer_group(ask, options.timeout_ns, had) && !had) || listening;
    }
    if (listening) {
        speak(socket, ask, bytes, options);
        result.group_bytes = bytes.size();
    }
    for (const auto& duck : ducks) result.ducks.push_back(duck->put(digest, bytes, options.timeout_ns));
    return result;
}

}  // namespace teal::duck
