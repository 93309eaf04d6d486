// One connection between a client and a duck, without any I/O: packets in, packets out, the time given.
//
// Theory of operation. Whatever must arrive is an *item*: a kind, a number (each once), bytes. Items are cut into chunks, chunks travel
// in packets, packets are numbered and never sent twice; what was in a lost packet goes out again in a new one. The receiver acknowledges
// packet numbers in ranges; the same ranges are its replay window. Small answers to calls are no items: they are frames that
// nobody acknowledges, because the client asks again (poll()) as long as it has no answer, and the duck keeps it in store.
//
//   lost:     three packets sent later were acknowledged, or one was and 9/8 of a round trip has passed; or a timeout (PTO) with nothing
//             acknowledged, which doubles each time
//   window:   bytes in flight: slow start, then additive increase; times 0.7 at a loss, once a round trip; never above what the peer
//             said that its socket holds, never below eight packets
//   packets:  1200 bytes until a padded probe of 1452, 8952 or 61440 was acknowledged
//   alive:    whoever hears nothing for a quarter of `dead_after_ns` sends a ping, which is acknowledged at once; after all of it the
//             connection is dead. Call receive() for what the socket holds before send(): whoever was stopped himself must not blame the peer.
//
// The caller (Net, Remote, a test with a virtual clock) owns time and sockets: receive() each packet, then send() until it returns 0, then
// come back at next_timer() or with the next packet. One thread at a time. States: open → closed, for good.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "duck/packet.hpp"
#include "duck/ranges.hpp"

namespace teal::duck {

// Who gets what a connection has received. Called within receive() and send(); may queue new items and frames from there, nothing else.
class Above {
public:
    virtual ~Above() = default;
    virtual void item(ItemKind kind, std::uint64_t id, std::span<const std::byte> bytes) = 0;  // complete; valid during the call
    virtual void answered(const AnswerHead&, std::span<const std::byte>) {}
    virtual void polled(std::uint32_t, std::uint64_t) {}         // session, seq: is there an answer?
    virtual void delivered(ItemKind, std::uint64_t) {}           // all of an outgoing item has arrived
    // A piece of an expected blob that was not there yet: transfer, offset, bytes. False: it cannot be kept, and whoever says so ends the transfer.
    virtual bool blob_bytes(std::uint64_t, std::uint64_t, std::span<const std::byte>) { return false; }
    virtual void blob_arrived(std::uint64_t, std::uint64_t, bool) {}  // transfer, bytes from the start without a gap, all of it
};

struct Keys {
    Cipher cipher = Cipher::none;
    std::array<std::byte, 44> out{}, in{};   // key, IV
    Bytes32 exporter{};                      // secret from which others are made (direct calls)
};

struct ConnectionOptions {
    std::uint64_t own_id = 0, peer_id = 0;
    Keys keys;
    std::uint64_t dead_after_ns = 1'000'000'000;
    std::uint64_t peer_window = 256 << 10;   // bytes in flight that the peer's socket holds
    std::uint64_t most_item_bytes = 64 << 20;// of an incoming item; blobs excepted
    std::uint64_t first_rtt_ns = 10'000'000; // a guess, or what the handshake took
    bool reliable = false;                   // a stream below: nothing is lost, packets are long from the start
};

struct ConnectionFigures {
    std::uint64_t packets_in, packets_out, bytes_in, bytes_out;
    std::uint64_t packets_lost, packets_probed;
    std::uint64_t malformed, forged, replayed, no_room;
};

enum class Verdict : std::uint8_t { taken, malformed, forged, replayed, no_room };

// All frames of a packet: known types, sizes that add up, fields in range. What it lets through is safe to walk.
[[nodiscard]] bool check_frames(std::span<const std::byte> frames) noexcept;

class Connection {
public:
    Connection(const ConnectionOptions& options, std::uint64_t now);
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    // One whole data packet for own_id(), opened in place.
    Verdict receive(std::span<std::byte> packet, std::uint64_t now, Above& above);
    // The next packet, or 0: nothing may be sent now. `out` holds most_packet bytes.
    std::size_t send(std::span<std::byte> out, std::uint64_t now, Above& above);
    [[nodiscard]] std::uint64_t next_timer() const noexcept;      // when send() may have something again
    [[nodiscard]] std::uint64_t most_item_bytes() const noexcept { return options_.most_item_bytes; }
    [[nodiscard]] bool urgent() const noexcept { return !soon_.empty(); }
    [[nodiscard]] bool has_more() const noexcept { return ack_now_ || ping_now_ || probing_ || close_left_ != 0 || !soon_.empty() || (unsent_ != 0 && in_flight_ < window()); }

    [[nodiscard]] bool probing() const noexcept { return probing_; }  // the next packet may be as long as any

    // Items. The bytes are copied, except a blob's, which must stay until it was delivered or dropped.
    std::uint64_t queue(ItemKind kind, std::span<const std::byte> head, std::span<const std::byte> body);
    std::uint64_t reserve() noexcept { return next_item_++; }    // a number for a blob
    void queue_blob(std::uint64_t transfer, std::span<const std::byte> bytes, const Ranges& there);
    void drop_blob(std::uint64_t transfer) noexcept;
    void expect_blob(std::uint64_t transfer, std::uint64_t total, const Ranges& there);
    void refuse_blob(std::uint64_t transfer) noexcept;            // it will not come, or came
    [[nodiscard]] const Ranges* blob_there(std::uint64_t transfer) const noexcept;
    // Frames that are sent once.
    void answer(const AnswerHead& head, std::span<const std::byte> bytes);
    void poll(std::uint32_t session, std::uint64_t seq);
    void ping() noexcept { ping_now_ = true; }
    void close(std::uint32_t reason, std::string text);           // sent once (send() three times for luck), then closed()

    [[nodiscard]] bool closed() const noexcept { return closed_; }
    [[nodiscard]] bool closed_by_peer() const noexcept { return by_peer_; }
    [[nodiscard]] const std::string& why() const noexcept { return why_; }
    [[nodiscard]] std::uint64_t own_id() const noexcept { return options_.own_id; }
    [[nodiscard]] std::uint64_t peer_id() const noexcept { return options_.peer_id; }
    [[nodiscard]] std::uint64_t rtt_ns() const noexcept { return srtt_; }
    [[nodiscard]] std::uint64_t acked_pings() const noexcept { return acked_pings_; }
    // Frames so far that were about something: not heartbeats, not acknowledgements.
    [[nodiscard]] std::uint64_t worked() const noexcept { return worked_; }
    [[nodiscard]] std::uint64_t last_received() const noexcept { return last_received_; }
    [[nodiscard]] std::size_t datagram_bytes() const noexcept { return mtu_; }
    [[nodiscard]] std::uint64_t window() const noexcept { return window_ < options_.peer_window ? window_ : options_.peer_window; }
    [[nodiscard]] std::uint64_t pto_ns() const noexcept;
    [[nodiscard]] bool idle() const noexcept { return sent_.empty() && soon_.empty() && unsent_ == 0; }
    [[nodiscard]] std::size_t answer_room() const noexcept;       // result bytes that an answer frame takes now
    [[nodiscard]] const ConnectionFigures& figures() const noexcept { return figures_; }
    void too_long(std::size_t bytes) noexcept;                    // the socket said EMSGSIZE
    [[nodiscard]] Cipher cipher() const noexcept { return options_.keys.cipher; }
    [[nodiscard]] const Bytes32& exporter() const noexcept { return options_.keys.exporter; }

private:
    struct Outgoing {
        std::uint64_t id = 0;        // 0: free
        ItemKind kind{};
        std::vector<std::byte> own;  // head and body, unless a blob
        std::span<const std::byte> bytes;
        std::uint64_t next = 0;      // first byte never sent
        Ranges lost, acked;
        std::uint64_t acked_bytes = 0;
        [[nodiscard]] bool sendable() const noexcept { return next < bytes.size() || !lost.empty(); }
    };
    struct Incoming {
        std::uint64_t id = 0;        // 0: free
        ItemKind kind{};
        std::vector<std::byte> own;  // unless a blob
        std::uint64_t total = 0;
        Ranges there;
        std::uint64_t bytes = 0;     // of `there`
    };
    struct SentChunk {
        std::uint64_t id, offset;
        std::uint32_t bytes, slot;
    };
    struct Sent {
        std::uint64_t number, at;
        std::uint32_t bytes;
        std::uint16_t chunks;
        bool gone;                   // acknowledged or lost
        bool ping;
        SentChunk chunk[2];
    };
    class Writer;

    Verdict admit(std::span<const std::byte> frames);
    void frames_in(std::span<const std::byte> frames, std::uint64_t now, Above& above);
    void ack_in(std::span<const std::byte> frame, std::uint64_t now, Above& above);
    void chunk_in(std::span<const std::byte> frame, Above& above);
    void arrived(Incoming& item, std::span<const std::byte> bytes, std::uint64_t offset, Above& above);
    void probes_acked(const Range* ranges, std::size_t count) noexcept;
    void acked(const Sent& sent, Above& above);
    void lost(Sent& sent, bool congested, std::uint64_t now);
    void find_lost(std::uint64_t now);
    void forget_gone() noexcept;
    void learn_rtt(std::uint64_t sample) noexcept;
    void timeouts(std::uint64_t now);
    void write_ack(Writer& to, std::uint64_t now);
    void write_soon(Writer& to);
    bool write_chunks(Writer& to, Sent& sent);
    bool write_probe(Writer& to);
    void probe_for(std::uint64_t item_bytes) noexcept;
    std::size_t finish(Writer& to, Sent* sent, std::uint64_t now);
    std::size_t send_close(std::span<std::byte> out);
    void unsendable(Outgoing& item) noexcept;
    Outgoing& take_slot();
    Outgoing* next_to_send() noexcept;
    Incoming* incoming(std::uint64_t id) noexcept;
    std::uint64_t pto_at() const noexcept;
    void die(std::string why) noexcept;

    ConnectionOptions options_;
    std::optional<Aead> seal_, open_;
    std::uint64_t next_number_ = 1, next_item_ = 1;

    // Receiving.
    Ranges received_;                // packet numbers; below `floor_` all count as received
    std::uint64_t floor_ = 1;
    std::uint64_t largest_at_ = 0, last_received_, ack_at_ = 0 /* 0: nothing to acknowledge */;
    unsigned unacked_ = 0;
    bool ack_now_ = false;
    std::vector<Incoming> in_;
    std::uint64_t in_bytes_ = 0;
    Ranges done_;                    // items that have arrived

    // Sending.
    std::vector<Outgoing> out_;
    std::vector<std::uint32_t> active_;  // slots in use, oldest first
    unsigned unsent_ = 0;            // of them sendable()
    std::vector<std::byte> soon_;    // frames for the next packets
    std::vector<Sent> sent_;         // in the order of their numbers, from sent_first_ on
    std::size_t sent_first_ = 0;
    std::uint64_t in_flight_ = 0, largest_acked_ = 0, last_eliciting_ = 0, loss_at_ = 0;
    std::uint64_t window_ = 64 << 10, slow_start_until_ = ~0ULL, reduced_at_number_ = 0;
    std::uint64_t srtt_ = 0, rttvar_ = 0, latest_rtt_ = 0;
    unsigned backoff_ = 0, credit_ = 0;  // packets that may leave whatever the window says
    bool ping_now_ = false;
    std::uint64_t last_ping_ = 0, acked_pings_ = 0, worked_ = 0;
    std::size_t mtu_ = least_packet, most_mtu_ = most_packet;
    bool probing_ = false;
    unsigned probe_round_ = 0, probe_next_ = 0;
    std::uint64_t probe_at_ = 0;
    struct Probe {
        std::uint64_t number;
        std::size_t bytes;
    };
    std::array<Probe, 9> probes_{};      // the last ones; not in sent_: their loss means nothing, and they may be late
    unsigned probes_sent_ = 0;

    bool closed_ = false, by_peer_ = false;
    unsigned close_left_ = 0;
    std::uint32_t close_reason_ = 0;
    std::string why_;
    ConnectionFigures figures_{};
};

}  // namespace teal::duck
