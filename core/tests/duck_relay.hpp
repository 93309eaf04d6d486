// A client's connection and a duck's peer with a bad network between them, on a clock of their own: thousands of seeds in seconds.
//
// The relay loses, duplicates, delays (and so reorders) each packet by the seed, and cuts the line for a while when told to. Time
// jumps from event to event.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "duck/peer.hpp"
#include "duck_sinks.hpp"
#include "sim/random.hpp"

namespace teal::duck {

struct Weather {
    double loss = 0, duplicates = 0;
    std::uint64_t delay_ns = 20'000, jitter_ns = 0;
    std::uint64_t cut_at = ~0ULL, cut_until = 0;
    std::uint64_t longest_packet = most_packet;  // longer ones vanish, as on a path that does not carry them
    std::size_t queue_bytes = 1 << 20;           // what the receiver's socket holds
};

// The client as Remote is one, without sockets: remembers answers, asks again.
class TestClient final : public Above {
public:
    void item(ItemKind kind, std::uint64_t, std::span<const std::byte> bytes) override {
        if (kind == ItemKind::answer) {
            AnswerHead head;
            if (load(bytes, head)) answered(head, bytes.subspan(sizeof head));
        } else if (kind == ItemKind::reply) {
            MessageHead head;
            if (load(bytes, head)) replies.emplace_back(head.id, std::vector<std::byte>(bytes.begin() + sizeof head, bytes.end()));
        } else if (kind == ItemKind::blob_state) {
            BlobState state;
            if (load(bytes, state)) states.push_back(state);
        }
    }
    void answered(const AnswerHead& head, std::span<const std::byte> bytes) override { answers.emplace_back(head, std::vector<std::byte>(bytes.begin(), bytes.end())); }
    std::vector<std::pair<AnswerHead, std::vector<std::byte>>> answers;
    std::vector<std::pair<std::uint64_t, std::vector<std::byte>>> replies;
    std::vector<BlobState> states;
};

class TestHost final : public PeerHost {
public:
    void message(Peer& peer, std::uint64_t id, std::span<const std::byte> bytes) override {
        messages.emplace_back(id, std::vector<std::byte>(bytes.begin(), bytes.end()));
        peer.replied(id);
        const MessageHead head{id};
        peer.connection.queue(ItemKind::reply, bytes_of(head), bytes);
    }
    void busy(Desk& desk) override { running.push_back(&desk); }
    Blobs& blobs() override { return blobs_; }
    void hash(const std::shared_ptr<Blob>& blob, std::uint64_t prefix) override {
        if (blob->flush()) blob->hash_to(prefix);
    }
    void finish(Peer& peer, std::uint64_t transfer, const std::shared_ptr<Blob>& blob) override {
        const bool good = blob->arrived() && blob->finish();
        if (good) whole.push_back(blob->digest());
        peer.blob_finished(transfer, good);
    }
    NetFigures& figures() override { return figures_; }
    std::vector<std::pair<std::uint64_t, std::vector<std::byte>>> messages;
    std::vector<Desk*> running;
    std::vector<BlobDigest> whole;

private:
    Blobs blobs_{1 << 30, 1 << 30, 1'000'000'000};
    NetFigures figures_{};
};

class TestLine {
public:
    TestLine(std::uint64_t seed, const Weather& weather, Cipher cipher, std::uint64_t dead_after_ns = 2'000'000'000) : weather_(weather), random_(seed) {
        ConnectionOptions ours, theirs;
        ours.own_id = theirs.peer_id = 0x1111;
        ours.peer_id = theirs.own_id = 0x2222;
        ours.dead_after_ns = dead_after_ns;
        theirs.dead_after_ns = 2 * dead_after_ns;
        ours.keys.cipher = theirs.keys.cipher = cipher;
        for (std::size_t i = 0; i < 44; ++i) {
            ours.keys.out[i] = theirs.keys.in[i] = static_cast<std::byte>(i * 7 + seed);
            ours.keys.in[i] = theirs.keys.out[i] = static_cast<std::byte>(i * 13 + seed);
        }
        ours.peer_window = theirs.peer_window = weather.queue_bytes;
        up = std::make_unique<Connection>(ours, now);
        duck = std::make_unique<Peer>(host, theirs, Address{}, now);
        sink = std::make_shared<EchoSink>();
        duck->desks.emplace(1, std::make_unique<Desk>(1, duck->connection, sink, SessionLimits{}, host.figures()));
    }

    // Until `done()`; false: not within `limit_ns`, or a side has given up.
    bool run(std::uint64_t limit_ns, const std::function<bool()>& done) {
        const std::uint64_t end = now + limit_ns;
        for (;;) {
            settle();
            if (done()) return true;
            if (up->closed() || duck->connection.closed() || now >= end) return false;
            std::uint64_t next = std::min(up->next_timer(), duck->connection.next_timer());
            if (!flying_.empty()) next = std::min(next, flying_.begin()->first);
            if (asking) next = std::min(next, now + 2'000'000);
            now = std::max(now + 1, std::min(next, end));
            while (!flying_.empty() && flying_.begin()->first <= now) {
                auto [to_duck, bytes] = std::move(flying_.begin()->second);
                flying_.erase(flying_.begin());
                deliver(to_duck, bytes);
            }
        }
    }
    void settle() {
        for (std::size_t i = 0; i < host.running.size();)
            if (host.running[i]->poll() && !host.running[i]->running()) host.running.erase(host.running.begin() + static_cast<std::ptrdiff_t>(i));
            else ++i;
        pull(*up, client, true);
        pull(duck->connection, *duck, false);
    }
    void deliver(bool to_duck, std::vector<std::byte>& bytes) {
        if (tamper) tamper(to_duck, bytes);
        Connection& connection = to_duck ? duck->connection : *up;
        connection.receive(bytes, now, to_duck ? static_cast<Above&>(*duck) : client);
    }

    std::uint64_t now = 1'000'000'000;
    TestHost host;
    TestClient client;
    std::unique_ptr<Connection> up;
    std::unique_ptr<Peer> duck;
    std::shared_ptr<EchoSink> sink;
    bool asking = false;                     // the test asks again for answers, each 2 ms
    std::function<void(bool, std::vector<std::byte>&)> tamper;
    std::uint64_t packets = 0, lost = 0;

private:
    void pull(Connection& connection, Above& above, bool to_duck) {
        std::byte out[most_packet];
        for (std::size_t n = connection.send(out, now, above); n != 0; n = connection.send(out, now, above)) {
            ++packets;
            const bool cut = now >= weather_.cut_at && now < weather_.cut_until;
            if (cut || n > weather_.longest_packet || random_.chance(weather_.loss)) {
                ++lost;
                continue;
            }
            for (int copies = random_.chance(weather_.duplicates) ? 2 : 1; copies > 0; --copies) {
                const std::uint64_t delay = weather_.delay_ns + (weather_.jitter_ns != 0 ? random_.below(weather_.jitter_ns) : 0);
                flying_.emplace(now + delay, std::pair(to_duck, std::vector<std::byte>(out, out + n)));
            }
        }
    }
    Weather weather_;
    Random random_;
    std::multimap<std::uint64_t, std::pair<bool, std::vector<std::byte>>> flying_;
};

}  // namespace teal::duck
