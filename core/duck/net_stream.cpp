// TCP in the duck's network loop: accept, take packets out of streams, write them back.
#include <unistd.h>

#include "duck/net_impl.hpp"

namespace teal::duck {
namespace {

constexpr std::uint64_t accept_each_ns = 200'000, stream_is_busy_ns = 1'000'000, quiet_streams_each_ns = 20'000;

}  // namespace

void Net::Impl::accept_streams() {
    for (;;) {
        Address from;
        from.bytes = sizeof from.raw;
        const int fd = ::accept4(listener, reinterpret_cast<sockaddr*>(&from.raw), &from.bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) return;
        if (strangers_.size() + stream_peers_.size() >= 2UL * options.most_connections) {
            ::close(fd);
            continue;
        }
        watch(fd);
        strangers_.emplace(fd, std::make_unique<Stream>(fd));
    }
}

bool Net::Impl::receive_streams() {
    if (now_ >= next_accept_) {
        next_accept_ = now_ + accept_each_ns;
        accept_streams();
    }
    bool any = false;
    std::vector<int>& all = stream_fds_;
    all.clear();
    for (const auto& [fd, stream] : strangers_) all.push_back(fd);
    for (const auto& [fd, peer] : stream_peers_) all.push_back(fd);
    for (const int fd : all) {
        const auto known = stream_peers_.find(fd);
        const auto stranger = strangers_.find(fd);
        Stream* stream = known != stream_peers_.end() ? known->second->stream.get() : stranger != strangers_.end() ? stranger->second.get() : nullptr;
        if (stream == nullptr) continue;
        const bool open = stream->fill();
        Address from;
        from.bytes = sizeof from.raw;
        ::getpeername(fd, reinterpret_cast<sockaddr*>(&from.raw), &from.bytes);
        for (std::span<std::byte> bytes = stream->next(); !bytes.empty(); bytes = stream->next()) {
            any = true;
            packet(bytes, from, stream);
        }
        if (open) continue;
        if (const auto peer = stream_peers_.find(fd); peer != stream_peers_.end()) {
            peer->second->connection.close(1, "its TCP connection ended");
            next_timer_ = 0;
        }
        strangers_.erase(fd);
    }
    // Streams that are quiet cost a call of the kernel each: not at every turn of a loop that answers datagrams.
    if (any) last_stream_ = now_;
    next_streams_ = now_ < last_stream_ + stream_is_busy_ns ? now_ : now_ + quiet_streams_each_ns;
    return any;
}

void Net::Impl::serve_stream(Peer& peer) {
    Stream& stream = *peer.stream;
    bool open = stream.flush();
    while (open && !stream.blocked()) {
        const std::size_t bytes = peer.connection.send(std::span(out_).first(most_packet), now_, peer);
        if (bytes == 0) break;
        stream.put(std::span<const std::byte>(out_).first(bytes));
        open = stream.flush();
    }
    if (!open) peer.connection.close(1, "its TCP connection ended");
    peer.next_timer = stream.blocked() ? now_ + 100'000 : peer.connection.next_timer();
    if (peer.connection.closed()) peer.next_timer = 0;
    next_timer_ = std::min(next_timer_, peer.next_timer);
}

}  // namespace teal::duck
