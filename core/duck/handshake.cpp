#include "duck/handshake.hpp"

#include <algorithm>
#include <string_view>

#include "base/error.hpp"

namespace teal::duck {
namespace {

std::span<const std::byte> text(std::string_view label) noexcept { return std::as_bytes(std::span(label.data(), label.size())); }

Bytes32 hello_key(std::span<const std::byte> key) {
    Bytes32 out{};
    hkdf_sha256(key, {}, text("teal duck 1 hello"), out);
    return out;
}

template <class T> std::span<const std::byte> without_mac(const T& packet) noexcept { return bytes_of(packet).first(offsetof(T, mac)); }

Bytes32 mac_of(std::span<const std::byte> key, const Hello& hello) {
    const std::span<const std::byte> parts[] = {text("client"), without_mac(hello)};
    return hmac_sha256(hello_key(key), parts);
}

Bytes32 mac_of(std::span<const std::byte> key, const Hello& hello, const Welcome& welcome) {
    const std::span<const std::byte> parts[] = {text("duck"), bytes_of(hello), without_mac(welcome)};
    return hmac_sha256(hello_key(key), parts);
}

PacketStart start_of(PacketKind kind, std::size_t bytes) noexcept {
    return {static_cast<std::uint8_t>(kind), static_cast<std::uint8_t>(highest_version), 0, static_cast<std::uint32_t>(bytes)};
}

Keys make_keys(std::span<const std::byte> key, const Bytes32& agreed, const Hello& hello, const Welcome& welcome, bool client) {
    std::vector<std::byte> secret(key.begin(), key.end());
    secret.insert(secret.end(), agreed.begin(), agreed.end());
    const std::span<const std::byte> transcript[] = {bytes_of(hello), bytes_of(welcome)};
    const Bytes32 digest = sha256_of(transcript);
    std::vector<std::byte> info(text("teal duck 1 keys").begin(), text("teal duck 1 keys").end());
    info.insert(info.end(), digest.begin(), digest.end());
    std::byte made[44 + 44 + 32];
    Bytes32 salt[2] = {hello.random, welcome.random};
    hkdf_sha256(secret, std::as_bytes(std::span(salt)), info, made);
    Keys keys;
    keys.cipher = static_cast<Cipher>(welcome.cipher);
    std::memcpy((client ? keys.out : keys.in).data(), made, 44);
    std::memcpy((client ? keys.in : keys.out).data(), made + 44, 44);
    std::memcpy(keys.exporter.data(), made + 88, 32);
    return keys;
}

bool read_hello(std::span<const std::byte> packet, Hello& hello) noexcept {
    return packet.size() >= least_packet && load(packet, hello) && static_cast<PacketKind>(hello.start.kind) == PacketKind::hello && hello.start.zero == 0 &&
           hello.start.bytes == packet.size() && packet.size() == least_packet && hello.client != 0 && hello.lowest <= hello.highest;
}

}  // namespace

void check_key(std::span<const std::byte> key) {
    if (key.empty()) return;
    if (key.size() < least_key_bytes)
        throw Error(Code::invalid_argument, "duck: a key of " + std::to_string(key.size()) + " bytes, expected 16 or more: make one with `teal duck key`");
    need_libcrypto("a key");
}

ClientHello::ClientHello(std::span<const std::byte> key, std::uint64_t dead_after_ns, std::uint64_t window) : key_(key.begin(), key.end()) {
    check_key(key);
    hello_.start = start_of(PacketKind::hello, least_packet);
    do random_bytes(std::as_writable_bytes(std::span(&hello_.client, 1)));
    while (hello_.client == 0);
    hello_.lowest = lowest_version;
    hello_.highest = highest_version;
    hello_.flags = (key.empty() ? 0 : flag_keyed) | (has_fast_aes() ? flag_fast_aes : 0);
    random_bytes(hello_.random);
    hello_.dead_after_ns = dead_after_ns;
    hello_.window = window;
    if (!key.empty()) hello_.share = share_.emplace().share();
}

void ClientHello::write(std::span<std::byte> out) {
    ++writes_;
    if (!key_.empty()) hello_.mac = mac_of(key_, hello_);
    std::memset(out.data(), 0, least_packet);
    std::memcpy(out.data(), &hello_, sizeof hello_);
}

ClientHello::Step ClientHello::read(std::span<const std::byte> packet) {
    PacketStart start;
    if (!load(packet, start) || start.bytes != packet.size() || start.zero != 0) return Step::ignored;
    switch (static_cast<PacketKind>(start.kind)) {
        case PacketKind::retry: return read_retry(packet);
        case PacketKind::welcome: return read_welcome(packet);
        case PacketKind::refuse: {
            Refuse refuse;
            if (packet.size() != sizeof refuse || !load(packet, refuse) || refuse.client != hello_.client) return Step::ignored;
            refused_ = refuse;
            return Step::failed;
        }
        default: return Step::ignored;
    }
}

ClientHello::Step ClientHello::read_retry(std::span<const std::byte> packet) {
    Retry retry;
    if (packet.size() != sizeof retry || !load(packet, retry) || retry.client != hello_.client) return Step::ignored;
    answered_ = true;
    duck_is_keyed_ = (retry.flags & flag_keyed) != 0;
    keys_differ_ = duck_is_keyed_ == key_.empty();
    if (keys_differ_) return Step::failed;
    // One cookie is enough, unless it seems to have become stale: a hello that changes while its welcome is on the way would not match it.
    if (hello_.cookie != Bytes32{} && writes_ < 4) return Step::ignored;
    writes_ = 0;
    hello_.cookie = retry.cookie;
    hello_.cookie_second = retry.cookie_second;
    return Step::again;
}

ClientHello::Step ClientHello::read_welcome(std::span<const std::byte> packet) {
    Welcome welcome;
    if (packet.size() != sizeof welcome || !load(packet, welcome) || welcome.client != hello_.client || welcome.server == 0) return Step::ignored;
    if (welcome.version < lowest_version || welcome.version > highest_version) return Step::ignored;
    const bool keyed = welcome.cipher == static_cast<std::uint32_t>(Cipher::aes_256_gcm) || welcome.cipher == static_cast<std::uint32_t>(Cipher::chacha20_poly1305);
    if (keyed == key_.empty() || (!keyed && welcome.cipher != 0)) return Step::ignored;
    if (keyed) {
        if (!same_bytes(mac_of(key_, hello_, welcome), welcome.mac)) return Step::ignored;
        Bytes32 agreed{};
        if (!share_->agree(welcome.share, agreed)) return Step::ignored;
        options_.keys = make_keys(key_, agreed, hello_, welcome, true);
    }
    options_.own_id = hello_.client;
    options_.peer_id = welcome.server;
    options_.peer_window = welcome.window;
    options_.dead_after_ns = hello_.dead_after_ns;
    return Step::done;
}

void ClientHello::fail(const std::string& address) const {
    if (refused_ && refused_->reason == static_cast<std::uint32_t>(Refusal::version))
        throw Error(Code::version_mismatch, "duck " + address + ": it speaks versions " + std::to_string(refused_->lowest) + " to " + std::to_string(refused_->highest) +
                                                " of the duck protocol, this Teal " + std::to_string(lowest_version) + " to " + std::to_string(highest_version));
    if (refused_) throw Error(Code::quota_exceeded, "duck " + address + ": it has as many connections as it takes (--connections)");
    if (keys_differ_ && duck_is_keyed_) throw Error(Code::invalid_argument, "duck " + address + ": it wants a key, and none was given");
    if (keys_differ_) throw Error(Code::invalid_argument, "duck " + address + ": it has no key, so everything would be in the clear; ours is not used there");
    if (answered_) throw Error(Code::invalid_argument, "duck " + address + ": it is there, but takes no hello of ours (wrong key?)");
    throw Error(Code::not_found, "duck " + address + ": no answer: does a duck listen there, and does a firewall let its port through?");
}

Door::Door(std::span<const std::byte> key, std::uint64_t window) : key_(key.begin(), key.end()), window_(window) {
    check_key(key);
    random_bytes(secret_);
}

std::optional<Hello> Door::hello_in(std::span<const std::byte> packet) noexcept {
    Hello hello;
    if (!read_hello(packet, hello)) return std::nullopt;
    return hello;
}

// Without libcrypto (and thus without a key) a random number that this duck keeps must do: only loopback is served then.
Bytes32 Door::cookie(const Hello& hello, std::span<const std::byte> address, std::uint64_t second) const {
    if (key_.empty()) return secret_;
    const std::span<const std::byte> parts[] = {address, bytes_of(hello.client), hello.random, bytes_of(second)};
    return hmac_sha256(secret_, parts);
}

Door::What Door::read(std::span<const std::byte> packet, std::span<const std::byte> address, std::uint64_t second, bool full, std::span<std::byte> out,
                      std::size_t& reply_bytes, ConnectionOptions& options) {
    Hello hello;
    if (!read_hello(packet, hello)) return What::dropped;
    const auto refuse = [&](Refusal reason) {
        const Refuse reply{start_of(PacketKind::refuse, sizeof(Refuse)), hello.client, lowest_version, highest_version, static_cast<std::uint32_t>(reason)};
        std::memcpy(out.data(), &reply, reply_bytes = sizeof reply);
        return What::answered;
    };
    if (hello.lowest > highest_version || hello.highest < lowest_version) return refuse(Refusal::version);
    const bool keyed = (hello.flags & flag_keyed) != 0;
    const bool stale = hello.cookie_second > second || second - hello.cookie_second > cookie_life_s;
    if (keyed == key_.empty() || stale || !same_bytes(hello.cookie, cookie(hello, address, hello.cookie_second))) {
        const Retry reply{start_of(PacketKind::retry, sizeof(Retry)), hello.client, lowest_version, highest_version, key_.empty() ? 0 : flag_keyed, second,
                          cookie(hello, address, second)};
        std::memcpy(out.data(), &reply, reply_bytes = sizeof reply);
        return What::answered;
    }
    if (!key_.empty() && !same_bytes(hello.mac, mac_of(key_, hello))) return What::wrong;
    if (full) return refuse(Refusal::full);
    options = {};
    welcome(hello, out, options);
    if (options.own_id == 0) return What::dropped;
    reply_bytes = sizeof(Welcome);
    return What::welcome;
}

void Door::welcome(const Hello& hello, std::span<std::byte> out, ConnectionOptions& options) {
    Welcome reply{};
    reply.start = start_of(PacketKind::welcome, sizeof reply);
    reply.client = hello.client;
    do random_bytes(std::as_writable_bytes(std::span(&reply.server, 1)));
    while (reply.server == 0);
    reply.version = std::min(hello.highest, highest_version);
    random_bytes(reply.random);
    options.dead_after_ns = std::clamp(hello.dead_after_ns, least_dead_after_ns, most_dead_after_ns) * 2;  // the client gives up first
    reply.dead_after_ns = options.dead_after_ns;
    reply.window = window_;
    if (!key_.empty()) {
        reply.cipher = static_cast<std::uint32_t>((hello.flags & flag_fast_aes) != 0 && has_fast_aes() ? Cipher::aes_256_gcm : Cipher::chacha20_poly1305);
        const KeyShare share;
        reply.share = share.share();
        Bytes32 agreed{};
        if (!share.agree(hello.share, agreed)) return;
        reply.mac = mac_of(key_, hello, reply);
        options.keys = make_keys(key_, agreed, hello, reply, false);
    }
    options.own_id = reply.server;
    options.peer_id = hello.client;
    options.peer_window = std::clamp<std::uint64_t>(hello.window, 16 << 10, 64 << 20);
    std::memcpy(out.data(), &reply, sizeof reply);
}

}  // namespace teal::duck
