// The inside of Net: what the loop's thread owns, and what other threads hand to it. See net.hpp.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "duck/handshake.hpp"
#include "duck/peer.hpp"

namespace teal::duck {

// A multicast group that one blob is expected from.
struct GroupListener {
    UdpSocket socket;
    std::uint64_t group = 0;
    std::optional<Aead> open;
    std::shared_ptr<Blob> blob;
    std::uint64_t until = 0;  // then it is over
};

struct Net::Impl final : PeerHost {
    explicit Impl(NetOptions given);
    ~Impl() override;

    // net.cpp: any thread
    void order(std::function<void()> what);      // at the loop's next turn; at once where there is no thread
    void order_and_wait(std::function<void()> what);
    void tell(NetEvent&& event);
    void run() noexcept;

    // net_loop.cpp: the loop's thread
    void turn(bool may_sleep);
    bool receive_datagrams();
    void datagram(std::span<std::byte> bytes, const Address& from);
    void packet(std::span<std::byte> bytes, const Address& from, Stream* stream);
    void wrong_key(const Address& from);
    void tell_of_wrong_keys();
    void hello(std::span<std::byte> bytes, const Address& from, Stream* stream);
    void reply_raw(std::span<const std::byte> bytes, const Address& to, Stream* stream);
    bool receive_streams();
    void accept_streams();
    bool poll_desks();
    [[nodiscard]] bool in_the_way() const noexcept;
    void serve(Peer& peer);
    void serve_stream(Peer& peer);
    void serve_dirty();
    void run_timers();
    [[nodiscard]] NetFigures count() const;
    void bury(Peer& peer);
    void take_orders();
    void sleep();
    void watch(int fd);
    [[nodiscard]] Peer* find(std::uint64_t id) noexcept;
    [[nodiscard]] static std::uint64_t clock() noexcept;

    void message(Peer& peer, std::uint64_t id, std::span<const std::byte> bytes) override;
    void busy(Desk& desk) override { busy_.push_back(&desk); }
    Blobs& blobs() override { return blobs_; }
    void hash(const std::shared_ptr<Blob>& blob, std::uint64_t prefix) override { hasher_.add(blob, prefix); }
    void finish(Peer& peer, std::uint64_t transfer, const std::shared_ptr<Blob>& blob) override;
    void blob_here(std::uint64_t connection, Blob& blob, bool checked);
    Peer* blob_finished(std::uint64_t connection, std::uint64_t transfer, bool good);
    void blob_checked(std::uint64_t connection, std::uint64_t transfer, const Blob& blob, bool good);
    bool begin_group(const GroupAsk& ask) override;   // net_group.cpp
    void end_group(const BlobDigest& digest) override;
    bool receive_groups();
    void group_packet(GroupListener& group, std::span<std::byte> bytes);
    NetFigures& figures() override { return figures_; }

    NetOptions options;
    UdpSocket udp;
    int listener = -1, epoll = -1, wake = -1, events = -1;
    std::optional<Door> door;

    std::thread thread;
    std::atomic<bool> stopping{false}, asleep{false};

    std::mutex mutex;                             // guards the three below
    std::vector<std::function<void()>> orders;
    std::deque<NetEvent> told;
    bool ended = false;                           // the thread took its last orders
    std::mutex after;                             // then whoever orders does it himself, one at a time
    std::atomic<bool> ordered{false};             // orders is not empty

    // The loop's own.
    std::unordered_map<std::uint64_t, std::unique_ptr<Peer>> peers_;
    Peer* last_ = nullptr;                        // whose packet came last
    std::vector<std::uint64_t> dirty_;            // peers to serve at the end of the turn
    std::vector<Desk*> busy_;
    std::unordered_map<std::uint32_t, Peer*> sessions_;
    std::unordered_map<int, std::unique_ptr<Stream>> strangers_;  // accepted, no hello yet
    std::unordered_map<int, Peer*> stream_peers_;
    std::uint32_t next_session_ = 1;
    std::vector<std::unique_ptr<GroupListener>> groups_;
    Blobs blobs_;
    NetFigures figures_{};
    ConnectionFigures buried_{};                  // of connections that are gone
    std::vector<std::byte> in_, out_;
    Address from_;                                // of the datagram at hand
    std::uint64_t now_ = 0, last_activity_ = 0, next_timer_ = 0;
    std::uint64_t next_streams_ = 0, next_accept_ = 0, last_stream_ = 0;
    std::vector<int> stream_fds_;                 // of one turn; capacity is kept
    bool active_ = false, worked_ = false;        // this turn: something came; and it was no mere heartbeat
    unsigned quiet_turns_ = 0;
    std::uint64_t wrong_keys_ = 0, next_wrong_key_ = 0;  // packets since the last event of them; when there may be another one
    std::string wrong_key_from_;
    Hasher hasher_;                               // its thread is gone before anything of this is
};

}  // namespace teal::duck
