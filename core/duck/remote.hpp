// A duck elsewhere, as its client sees it: connect, request, put, call.
//
// Theory of operation. There is no loop of its own: whoever waits works. A waiting thread takes the connection's mutex, receives what is
// there, runs the timers, sends what may be sent, looks for its own answer, lets go; it spins like that for a learned while
// (SpinBudget) and then sleeps in poll(). Beside the callers a *keeper* thread does the same while nobody waits, so that heartbeats are answered and
// nothing that was submitted is left lying; it naps while callers are about, and costs no CPU otherwise but its heartbeats.
//
// Thread safety: every function of Remote and RemoteSession may be called from any thread at once. Answers are copied into the session's
// mirror of the output buffer, one after the other, by whichever thread receives them: look at the mirror between the end of wait() for one
// call and the submit() of the next.
//
// A session may have a path to its box beside the connection (direct.hpp): then calls that fit a packet go there, one at a time, and
// whatever goes wrong with one goes on here.
//
// Calls are exactly once: retransmitted with the same seq, answered by the duck from its store. When the duck falls silent for `dead_after_ns`,
// or ends, everything that waits throws peer_died, which says whether the call may have run; the Remote is then dead for good.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "duck/net.hpp"
#include "duck/sink.hpp"

namespace teal::duck {

struct RemoteOptions {
    std::vector<std::byte> key;                      // as the duck's; empty: none
    std::uint64_t dead_after_ns = 1'000'000'000;     // silence of this length = PeerDied; a partition that heals sooner is not noticed
    std::uint64_t connect_timeout_ns = 5'000'000'000;
    std::uint64_t spin_ns = 200'000;                 // ceiling of the busy part of a wait
    bool tcp = false;
    std::uint64_t most_message_bytes = 64 << 20;     // longer replies are refused
};

struct CallAnswer {
    Outcome outcome = Outcome::ran;
    std::int64_t result = 0;
    std::uint64_t took_ns = 0;   // in the program, as the duck measured it
};

struct PutResult {
    bool had = false;            // the duck had it: nothing was sent
    std::uint64_t sent_bytes = 0;// of contents, without retransmissions
    bool checked = false;        // its SHA-256 was right; else the duck is still at it, and nobody but this client may use the blob
};

struct GroupAsk;  // packet.hpp

struct RemoteFigures {
    std::uint64_t calls, calls_asked_again, requests, packets_in, packets_out, bytes_in, bytes_out;
    std::uint64_t packets_lost, packets_probed, dropped_malformed, dropped_forged, dropped_replayed;
    std::uint64_t rtt_ns, datagram_bytes /* now */, window_bytes /* now */;
    std::uint64_t blob_bytes_sent, blobs_had;
    std::uint64_t direct_calls, direct_again /* sent again */, direct_moved /* to the connection */, direct_long /* of them: results of several packets */;
    std::uint64_t direct_passed /* did not fit, or the box was not heard yet: over the connection from the start */, direct_dropped /* packets */;
};

class DirectPath;

class Remote;

// A session that the duck has attached for this connection. Ends with it; at most `most_in_flight` calls wait at a time.
class RemoteSession {
public:
    static constexpr unsigned most_in_flight = 8;
    ~RemoteSession();
    RemoteSession(const RemoteSession&) = delete;
    RemoteSession& operator=(const RemoteSession&) = delete;

    // Sends the call and returns its seq. `args` are copied. Throws busy when `most_in_flight` are out, peer_died, closed, invalid_argument.
    std::uint64_t submit(std::span<const std::byte> args, std::uint32_t op = 1);
    // Waits for it. 0 ns: looks once. False: not yet (it runs on). Throws peer_died. Each answer is given once.
    bool wait(std::uint64_t seq, std::uint64_t timeout_ns, CallAnswer& answer);
    // Both, without an allocation when small. Throws deadline_exceeded after `timeout_ns` (the call may still run; its answer is dropped).
    CallAnswer call(std::span<const std::byte> args, std::uint64_t timeout_ns, std::uint32_t op = 1);
    // Asks the duck not to begin it; wait() still gives the answer: Outcome::cancelled, or the result when it had begun.
    void cancel(std::uint64_t seq);
    // The calls that went straight to the box so far; whether the box answers there.
    [[nodiscard]] std::uint64_t direct_calls() const noexcept;
    [[nodiscard]] bool direct() const noexcept;
    [[nodiscard]] std::span<std::byte> ob() const noexcept;  // the mirror: result bytes of the last answer at its start

private:
    friend class Remote;
    struct State;
    RemoteSession(std::shared_ptr<Remote> remote, std::shared_ptr<State> state);
    std::shared_ptr<Remote> remote_;
    std::shared_ptr<State> state_;
};

class Remote : public std::enable_shared_from_this<Remote> {
public:
    // "host:port", "[::1]:port". Throws not_found (nobody answers), invalid_argument (key: missing, not wanted, wrong?), version_mismatch.
    static std::shared_ptr<Remote> connect(const std::string& address, RemoteOptions options);
    ~Remote();
    Remote(const Remote&) = delete;
    Remote& operator=(const Remote&) = delete;

    // A control message and its reply. Reliable: once each way, whatever the network does. Throws deadline_exceeded, peer_died, closed.
    std::vector<std::byte> request(std::span<const std::byte> message, std::uint64_t timeout_ns);
    // Sends a blob unless the duck has it. `bytes` must stay as they are until it returns: when all is there, or, `checked`, when the duck has
    // compared its SHA-256. Throws quota_exceeded (the duck has no room), invalid_argument (the digest is not theirs; found out after it
    // returned: the duck ends the connection), deadline_exceeded, peer_died.
    PutResult put(const BlobDigest& digest, std::span<const std::byte> bytes, std::uint64_t timeout_ns, bool checked = false);
    // For put_group() (group.hpp): asks it to listen to a group. False: this duck does not.
    bool offer_group(const GroupAsk& offer, std::uint64_t timeout_ns, bool& had);
    // `session`: the number that the duck's attach() gave, told in a reply. `ob`: where answers go; kept alive by `owner`.
    std::unique_ptr<RemoteSession> session(std::uint32_t session, std::span<std::byte> ob, std::shared_ptr<void> owner);
    // A path for direct calls, whose port the duck has to know before it opens the session. Null: over TCP there is none.
    std::unique_ptr<DirectPath> direct();
    // With what the duck answered: its port for them and their number. Throws invalid_argument.
    std::unique_ptr<RemoteSession> session(std::uint32_t session, std::span<std::byte> ob, std::shared_ptr<void> owner, std::unique_ptr<DirectPath> path,
                                           std::uint16_t port, std::uint64_t id);
    [[nodiscard]] std::uint64_t ping(std::uint64_t timeout_ns);  // round trip in ns, over the network loop alone
    void close() noexcept;        // tells the duck; waits in other threads end with closed
    [[nodiscard]] bool alive() const noexcept;
    [[nodiscard]] bool keyed() const noexcept;   // everything is sealed
    [[nodiscard]] std::string address() const;
    [[nodiscard]] RemoteFigures figures() const;

private:
    friend class RemoteSession;
    struct Impl;
    Remote();
    std::unique_ptr<Impl> impl_;
};

// SHA-256.
BlobDigest sha256(std::span<const std::byte> bytes);

}  // namespace teal::duck
