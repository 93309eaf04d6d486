// Multicast in the duck's network loop: pieces of a blob that a client sends to many ducks at once.
//
// Theory of operation. A client that is connected announces the group, the blob and a key for it (group_ask, sealed). Pieces that come are opened and
// written where they belong; nothing is acknowledged and nothing is asked for. When the client is through, it puts the blob as always: the
// duck answers with the ranges it has, and the rest comes by unicast. So a group can only save bytes, never lose any.
#include "duck/net_impl.hpp"

namespace teal::duck {
namespace {

constexpr std::size_t most_groups = 4;
constexpr unsigned datagrams_a_turn = 64;
constexpr std::uint64_t quiet_ns = 5'000'000'000;  // a group that says nothing for so long is over

}  // namespace

bool Net::Impl::begin_group(const GroupAsk& ask) {
    if (options.group_interface.empty() || groups_.size() >= most_groups) return false;
    const auto cipher = static_cast<Cipher>(ask.cipher);
    const bool keyed = cipher == Cipher::aes_256_gcm || cipher == Cipher::chacha20_poly1305;
    if (keyed == options.key.empty() || (!keyed && cipher != Cipher::none) || (ntohl(ask.address) >> 28) != 14) return false;  // 224.0.0.0/4
    auto group = std::make_unique<GroupListener>();
    end_group(ask.blob.digest);
    if (!blobs_.begin(ask.blob.digest, ask.blob.bytes, group->blob)) return false;
    try {
        Address at = Address::parse("224.0.0.1:" + std::to_string(ask.port), true);
        reinterpret_cast<sockaddr_in&>(at.raw).sin_addr.s_addr = ask.address;
        group->socket.join(at, Address::parse(options.group_interface + ":0", true));
        const std::span<const std::byte, 48> key(ask.key);
        if (keyed) group->open.emplace(cipher, false, key.first<32>(), key.subspan<32, 12>());
    } catch (const std::exception&) {
        blobs_.stopped(std::move(group->blob), now_);
        return false;
    }
    group->group = ask.group;
    group->until = now_ + quiet_ns;
    watch(group->socket.fd());
    groups_.push_back(std::move(group));
    return true;
}

void Net::Impl::end_group(const BlobDigest& digest) {
    if (!groups_.empty()) (void)receive_groups();  // what lies in the socket
    for (auto at = groups_.begin(); at != groups_.end(); ++at) {
        if ((*at)->blob->digest() != digest) continue;
        blobs_.stopped(std::move((*at)->blob), now_);
        groups_.erase(at);
        return;
    }
}

bool Net::Impl::receive_groups() {
    bool any = false;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
        GroupListener& group = *groups_[i];
        for (unsigned turns = 0; turns < datagrams_a_turn; ++turns) {
            const std::ptrdiff_t bytes = group.socket.receive(in_);
            if (bytes == 0) break;
            if (bytes < 0) continue;
            any = true;
            std::span<std::byte> datagram(in_.data(), static_cast<std::size_t>(bytes));
            PacketStart start;
            while (load(std::span<const std::byte>(datagram), start) && start.bytes >= sizeof start && start.bytes <= datagram.size()) {
                group_packet(group, datagram.first(start.bytes));
                datagram = datagram.subspan(start.bytes);
            }
        }
        if (now_ < group.until) continue;
        blobs_.stopped(std::move(group.blob), now_);
        groups_.erase(groups_.begin() + static_cast<std::ptrdiff_t>(i--));
    }
    return any;
}

void Net::Impl::group_packet(GroupListener& group, std::span<std::byte> bytes) {
    GroupHead head;
    const std::size_t extra = sizeof head + (group.open ? tag_bytes : 0);
    std::uint64_t offset = 0;
    if (!load(std::span<const std::byte>(bytes), head) || static_cast<PacketKind>(head.start.kind) != PacketKind::group || head.group != group.group) {
        ++figures_.dropped_unknown;  // somebody else's: groups are shared
        return;
    }
    if (head.start.zero != 0 || head.start.version != highest_version || bytes.size() <= extra + sizeof offset) {
        ++figures_.dropped_malformed;
        return;
    }
    const std::span<std::byte> text = bytes.subspan(sizeof head, bytes.size() - extra);
    if (group.open && !group.open->open(head.number, bytes.first(sizeof head), text.data(), text.size())) {
        ++figures_.dropped_forged;
        return;
    }
    (void)load(std::span<const std::byte>(text), offset);
    const std::span<const std::byte> piece = text.subspan(sizeof offset);
    Blob& blob = *group.blob;
    if (offset > blob.bytes() || piece.size() > blob.bytes() - offset) {
        ++figures_.dropped_malformed;
        return;
    }
    group.until = now_ + quiet_ns;
    // Never into what is there already: it may have been hashed.
    if (blob.there.overlaps(offset, offset + piece.size()) || !blob.write(offset, piece)) return;
    blob.there.add(offset, offset + piece.size());
    blob.of_a_group = true;
    figures_.group_bytes += piece.size();
    hasher_.add(group.blob, blob.there.prefix());
}

}  // namespace teal::duck
