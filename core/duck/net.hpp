// The duck's network loop: one thread that owns the sockets and every connection.
//
// Theory of operation. The loop polls its sockets while there is something to do and for `idle_ns` after; then it sleeps in epoll until
// a packet, a timer or a command of another thread wakes it. Calls are answered here and nowhere else: packet in, ask line written, answer line
// polled, packet out (sink.hpp). What is not hot goes up: control messages, finished blobs, peers that came and went are queued as
// NetEvents and announced on event_fd(); whoever reads them (Python) answers with reply(), attach(), hold() from any thread: those are
// commands that the loop takes over at its next turn. While a call is in flight and the loop has been quiet for `idle_ns`, it naps for 50 to
// 500 µs between two looks at the answer line, which no descriptor announces.
//
// Blobs land in memfds of the loop's own and are handed up, with their descriptor, when all of their bytes are there and nobody can change
// them any more. Long ones are checked against their SHA-256 after that: until `checked` says so, a blob is its sender's alone. Who sent one
// that is not what he called it is thrown out. The loop knows which digests are held above (hold(), forget()), so a blob that is there costs
// no bytes. An unfinished one is kept for `resume_ns` after its connection is gone, so that another connection goes on where it stopped.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "duck/sink.hpp"

namespace teal::duck {

using BlobDigest = std::array<std::byte, 32>;  // SHA-256

struct NetOptions {
    std::string udp = "127.0.0.1:0";             // "host:port", "[::1]:0"; empty: no UDP
    std::string tcp;                             // the same; empty: no TCP
    std::vector<std::byte> key;                  // pre-shared, 16 bytes or more; empty: loopback addresses only
    std::uint64_t idle_ns = 10'000'000;          // polls this long after the last activity
    std::uint32_t most_connections = 64;
    std::uint64_t most_message_bytes = 16 << 20; // one control message
    std::uint64_t most_blob_bytes = 1ULL << 35;  // one blob
    std::uint64_t blob_budget_bytes = 1ULL << 33;// unfinished blobs together
    std::uint64_t resume_ns = 60'000'000'000;
    std::string group_interface;                 // IPv4 address of the interface on which it takes blobs from multicast groups; empty: it does not
    int core = -1;                               // pins the thread; -1: anywhere
};

enum class NetEventKind : std::uint32_t {
    opened = 1,   // a peer is there: `text` = its address
    lost = 2,     // it is gone, with every session of it: `text` = how
    message = 3,  // `bytes`, to be answered with reply(connection, id, …)
    blob = 4,     // all of it is there, for good: `digest`, `size`, `fd` (the receiver's to close), `connection` whence it came, `id`: 1 its
                  // SHA-256 is right; 0 `checked` will tell, and until then only that client may use it
    checked = 5,  // `digest`, `size`, `connection`; `id`: 1 it is what it was called, 0 it is not
    wrong_key = 6,// somebody sends packets under another key: `text` = the address that the last one bears, `id` = how many since the last such event
};

struct NetEvent {
    NetEventKind kind = NetEventKind::message;
    std::uint64_t connection = 0;
    std::uint64_t id = 0;
    std::vector<std::byte> bytes;
    std::string text;
    BlobDigest digest{};
    std::uint64_t size = 0;
    int fd = -1;
};

struct SessionLimits {
    std::uint64_t args_bytes = 1 << 20;   // longer arguments are refused (E2BIG)
    std::uint64_t result_bytes = 1 << 20; // size of the output buffer: no answer is longer
};

// All counters since the start, except those that say "now".
struct NetFigures {
    std::uint64_t connections_now, connections_opened, connections_lost;
    std::uint64_t sessions_now, calls, calls_repeated /* answered from the store */, calls_refused;
    std::uint64_t packets_in, packets_out, bytes_in, bytes_out;
    std::uint64_t dropped_malformed, dropped_unknown, dropped_forged /* did not open with our keys */, dropped_replayed;
    std::uint64_t packets_lost, packets_probed /* timeouts */;
    std::uint64_t hellos, hellos_refused /* wrong key */, wrong_key /* packets, hellos included */;
    std::uint64_t messages, blobs_had, blobs_received, blobs_bad, blob_bytes, group_bytes /* of blobs, by multicast */;
    std::uint64_t sleeps;                 // of the loop
    std::uint64_t directs, directs_refused; // sessions with direct calls, and those that go without: their client wanted none, or it cannot be
};

struct DirectOffer;

class Net {
public:
    // Binds, and throws what went wrong: invalid_argument (address, a key that is too short, not loopback and no key), not_found (no
    // libcrypto.so.3, with its package), busy (the address is in use).
    explicit Net(NetOptions options);
    ~Net();  // stop(), then closes everything
    Net(const Net&) = delete;
    Net& operator=(const Net&) = delete;

    void start();            // the thread; once
    void stop() noexcept;    // tells every peer, joins
    // For tests and benches: one turn of the loop in the calling thread instead of start(); never sleeps.
    void turn() noexcept;

    [[nodiscard]] std::uint16_t udp_port() const noexcept;  // 0: none
    [[nodiscard]] std::uint16_t tcp_port() const noexcept;

    // From any thread:
    [[nodiscard]] int event_fd() const noexcept;            // readable while next_event() has something
    bool next_event(NetEvent& event);                       // false: nothing now
    void reply(std::uint64_t connection, std::uint64_t id, std::span<const std::byte> bytes);  // of an unknown connection: nothing
    // A session for this peer alone; ends with the connection (the sink is then dropped) or with detach(). Never 0.
    std::uint32_t attach(std::uint64_t connection, std::shared_ptr<CallSink> sink, SessionLimits limits);
    // A socket for the box of this peer's next session, connected to the peer's host and that port; or why there is none (direct.hpp).
    DirectOffer direct(std::uint64_t connection, std::uint16_t port);
    void detach(std::uint32_t session);                     // returns when the loop has let go of the sink
    void drop(std::uint64_t connection, std::string why);   // ends a peer
    void hold(const BlobDigest& digest);                    // is there: not to be sent again
    void forget(const BlobDigest& digest);
    [[nodiscard]] NetFigures figures() const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace teal::duck
