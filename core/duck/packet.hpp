// What crosses the wire, byte by byte (docs/duck-protocol.md explains why). Little-endian; every struct is copied, never cast in place.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "duck/crypto.hpp"

namespace teal::duck {

static_assert(std::endian::native == std::endian::little);

inline constexpr std::uint16_t lowest_version = 1, highest_version = 1;
inline constexpr std::size_t least_packet = 1200;   // every path must carry it; a hello is padded to it
inline constexpr std::size_t most_packet = 61440;

enum class PacketKind : std::uint8_t { data = 0xD0, hello = 0xD1, retry = 0xD2, welcome = 0xD3, refuse = 0xD4, group = 0xD5 };

// At the start of every packet. Packets may follow each other in one datagram (as a receiver with GRO sees them) or in a stream (TCP).
struct PacketStart {
    std::uint8_t kind;
    std::uint8_t version;
    std::uint16_t zero;
    std::uint32_t bytes;   // of the whole packet
};
static_assert(sizeof(PacketStart) == 8);

struct DataHead {          // the additional data of the AEAD
    PacketStart start;
    std::uint64_t to;      // the receiver's connection id
    std::uint64_t number;  // from 1, each once; makes the nonce
};
static_assert(sizeof(DataHead) == 24);

inline constexpr std::uint32_t flag_keyed = 1, flag_fast_aes = 2;

struct Hello {             // client → duck, padded with zeros to least_packet
    PacketStart start;
    std::uint64_t client;  // the client's connection id
    std::uint16_t lowest, highest;
    std::uint32_t flags;
    Bytes32 random, share;
    std::uint64_t dead_after_ns;
    std::uint64_t window;  // bytes that may be in flight towards the sender
    std::uint64_t cookie_second;
    Bytes32 cookie;        // zeros: none yet
    Bytes32 mac;           // over all before it; zeros without a key
};
static_assert(sizeof(Hello) == 176);

struct Retry {             // duck → client: say it again with this cookie. The duck keeps nothing.
    PacketStart start;
    std::uint64_t client;
    std::uint16_t lowest, highest;
    std::uint32_t flags;   // flag_keyed: a key is wanted
    std::uint64_t cookie_second;
    Bytes32 cookie;
};
static_assert(sizeof(Retry) == 64);

struct Welcome {           // duck → client
    PacketStart start;
    std::uint64_t client, server;
    std::uint32_t version;
    std::uint32_t cipher;
    Bytes32 random, share;
    std::uint64_t dead_after_ns;
    std::uint64_t window;
    Bytes32 mac;           // over the hello and all before it
};
static_assert(sizeof(Welcome) == 144);

enum class Refusal : std::uint32_t { version = 1, full = 2 };

struct Refuse {            // duck → client; nothing in it is secret and nothing is believed but the end of this attempt
    PacketStart start;
    std::uint64_t client;
    std::uint16_t lowest, highest;
    std::uint32_t reason;
};
static_assert(sizeof(Refuse) == 24);

enum class FrameType : std::uint8_t { ack = 1, ping = 2, chunk = 3, answer = 4, poll = 5, close = 6, padding = 7 };

struct FrameHead {
    std::uint8_t type;
    std::uint8_t kind;     // of a chunk: ItemKind; else 0
    std::uint16_t zero;
    std::uint32_t bytes;   // of the frame with this head
};
static_assert(sizeof(FrameHead) == 8);

struct AckFrame {          // then `more` pairs, from high to low: AckPair
    FrameHead head;
    std::uint64_t largest;
    std::uint64_t first;   // packets before `largest` without a gap
    std::uint32_t delay_ns;// since `largest` came
    std::uint32_t more;
};
static_assert(sizeof(AckFrame) == 32);
struct AckPair {
    std::uint32_t missing; // packets between this range and the one above it, at least 1
    std::uint32_t present; // at least 1
};
inline constexpr std::size_t most_ack_pairs = 48;

enum class ItemKind : std::uint8_t { call = 1, answer = 2, message = 3, reply = 4, blob_ask = 5, blob_state = 6, blob = 7, cancel = 8, group_ask = 9 };
inline constexpr std::uint8_t last_item_kind = 9;

struct ChunkFrame {        // then the bytes
    FrameHead head;
    std::uint64_t item;    // from 1, in order, each once
    std::uint64_t offset, total;
};
static_assert(sizeof(ChunkFrame) == 32);

struct CallHead {          // an item `call` = this + arguments; `cancel` = this
    std::uint32_t session, op;
    std::uint64_t seq;
};
static_assert(sizeof(CallHead) == 16);

struct AnswerHead {        // an item `answer`, or the rest of an answer frame, = this + result bytes
    std::uint32_t session, outcome;
    std::uint64_t seq;
    std::int64_t result;
    std::uint64_t took_ns;
};
static_assert(sizeof(AnswerHead) == 32);

struct PollFrame {
    FrameHead head;
    std::uint32_t session, zero;
    std::uint64_t seq;
};
static_assert(sizeof(PollFrame) == 24);

struct MessageHead {       // an item `message` or `reply` = this + bytes
    std::uint64_t id;
};

struct BlobAsk {
    Bytes32 digest;
    std::uint64_t bytes;
    std::uint64_t transfer;// chosen by the asker; the blob's item has kind `blob` and carries it in `item`
};
static_assert(sizeof(BlobAsk) == 48);

// `arrived`: all is there and is the sender's to use; `done` or the end of the connection follows when its SHA-256 is known.
enum class BlobAnswer : std::uint32_t { have = 1, want = 2, no_room = 3, bad = 4, done = 5, no_group = 6, arrived = 7 };

struct BlobState {
    std::uint64_t transfer;
    std::uint32_t answer;  // BlobAnswer
    std::uint32_t zero;
    std::uint64_t from;    // of `want`: bytes that are there already without a gap; then, in the item: ranges that are there too (u64 begin, u64 end)
};
static_assert(sizeof(BlobState) == 24);
inline constexpr std::size_t most_state_ranges = 1024;

struct GroupAsk {          // a blob is about to be sent to a multicast group: listen there
    BlobAsk blob;          // `transfer` names the question in its BlobState
    std::uint64_t group;   // number of the packets that carry it
    std::uint32_t address; // IPv4, as on the wire
    std::uint16_t port;    // host order
    std::uint16_t zero;
    std::uint32_t cipher, zero2;
    std::array<std::byte, 48> key;  // key, IV, four zeros: of this blob alone
};
static_assert(sizeof(GroupAsk) == 120);

struct GroupHead {         // client → group: the additional data of the AEAD; then, sealed: `offset` u64 and bytes
    PacketStart start;
    std::uint64_t group;
    std::uint64_t number;
};
static_assert(sizeof(GroupHead) == 24);

template <class T> [[nodiscard]] bool load(std::span<const std::byte> bytes, T& out) noexcept {
    if (bytes.size() < sizeof out) return false;
    std::memcpy(static_cast<void*>(&out), bytes.data(), sizeof out);
    return true;
}
template <class T> [[nodiscard]] std::span<const std::byte> bytes_of(const T& value) noexcept { return std::as_bytes(std::span<const T, 1>(&value, 1)); }

}  // namespace teal::duck
