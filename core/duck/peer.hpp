// One client as the duck's network loop sees it: its connection, its sessions, its unfinished blobs. The loop's thread only.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "duck/blob.hpp"
#include "duck/connection.hpp"
#include "duck/net.hpp"
#include "duck/pour.hpp"
#include "duck/socket.hpp"

namespace teal::duck {

// A session's calls: exactly once and in order, the last `kept` answers in store.
//
// States of a record: empty → waiting (a call before it has not ended) → running → answered → overwritten by seq + kept.
class Desk {
public:
    static constexpr std::uint64_t kept = 8;
    Desk(std::uint32_t id, Connection& connection, std::shared_ptr<CallSink> sink, SessionLimits limits, NetFigures& figures)
        : id_(id), connection_(connection), sink_(std::move(sink)), limits_(limits), figures_(figures) {}

    void call(const CallHead& head, std::span<const std::byte> args);
    void polled(std::uint64_t seq);
    void cancel(std::uint64_t seq);
    bool poll();  // true: something was answered
    [[nodiscard]] bool running() const noexcept { return running_; }
    [[nodiscard]] bool in_the_way() const noexcept { return sink_->in_the_way(); }
    [[nodiscard]] std::uint32_t id() const noexcept { return id_; }

private:
    struct Record {
        std::uint64_t seq = 0;
        std::uint32_t op = 0;
        bool waiting = false, answered = false, cancelled = false, too_long = false, small = false;
        AnswerHead head{};
        std::vector<std::byte> bytes;  // arguments while it waits, the answer afterwards; capacity is kept
    };
    void begin(Record& record, std::span<const std::byte> args);
    void end(Record& record, const Answer& answer);
    void go_on();
    void say(std::uint64_t seq, Outcome outcome, std::int64_t result);

    std::uint32_t id_;
    Connection& connection_;
    std::shared_ptr<CallSink> sink_;
    SessionLimits limits_;
    NetFigures& figures_;
    std::uint64_t next_ = 1;  // to begin
    bool running_ = false;    // next_ - 1
    std::array<Record, kept> records_;
};

class Peer;

// What a peer needs of the loop.
class PeerHost {
public:
    virtual ~PeerHost() = default;
    virtual void message(Peer& peer, std::uint64_t id, std::span<const std::byte> bytes) = 0;
    virtual void busy(Desk& desk) = 0;                 // runs: poll it
    virtual Blobs& blobs() = 0;
    virtual void hash(const std::shared_ptr<Blob>& blob, std::uint64_t prefix) = 0;  // so much is there; when it is convenient
    virtual void finish(Peer& peer, std::uint64_t transfer, const std::shared_ptr<Blob>& blob) = 0;  // all: ends with peer.blob_finished(), perhaps after blob_here()
    virtual NetFigures& figures() = 0;
    virtual bool begin_group(const GroupAsk&) { return false; }  // listen to a multicast group; false: not here
    virtual void end_group(const BlobDigest&) {}
};

class Peer final : public Above {
public:
    static constexpr std::size_t most_asked = 1024, most_asked_bytes = 64 << 20;
    Peer(PeerHost& host, const ConnectionOptions& options, const Address& from, std::uint64_t now) : host_(host), connection(options, now), address(from) {}
    ~Peer() override;

    void item(ItemKind kind, std::uint64_t id, std::span<const std::byte> bytes) override;
    void polled(std::uint32_t session, std::uint64_t seq) override;
    bool blob_bytes(std::uint64_t transfer, std::uint64_t offset, std::span<const std::byte> bytes) override;
    void blob_arrived(std::uint64_t transfer, std::uint64_t prefix, bool whole) override;
    void blob_here(std::uint64_t transfer, const BlobDigest& digest);  // not checked yet, but this peer's
    void blob_finished(std::uint64_t transfer, bool good);
    void blob_refused(std::uint64_t transfer);
    void replied(std::uint64_t id);  // a message was answered

private:
    void call(std::span<const std::byte> bytes);
    void blob_ask(const BlobAsk& ask);
    void group_ask(const GroupAsk& ask);
    void blob_state(std::uint64_t transfer, BlobAnswer answer, std::uint64_t from, const Ranges* there = nullptr);
    PeerHost& host_;

public:
    Connection connection;
    Address address;
    std::unique_ptr<Stream> stream;                     // null: UDP
    std::unordered_map<std::uint32_t, std::unique_ptr<Desk>> desks;
    std::unordered_map<std::uint64_t, std::shared_ptr<Blob>> arriving;  // by transfer
    std::unordered_map<std::uint64_t, BlobDigest> unchecked;            // by transfer: all there
    Hello hello{};                                      // it was welcomed for, and how
    std::vector<std::byte> welcome;
    std::unordered_map<std::uint64_t, std::size_t> asked;  // messages without a reply, by id: their bytes
    std::size_t asked_bytes = 0;
    HeldPackets held;                                   // what the socket did not take
    bool dirty = false;                                 // has received since it was last served
    std::uint64_t next_timer = 0;
};

}  // namespace teal::duck
