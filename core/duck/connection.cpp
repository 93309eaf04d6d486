// Receiving: open, check, record, deliver. Sending is in connection_send.cpp.
#include "duck/connection.hpp"

#include <algorithm>

namespace teal::duck {
namespace {

constexpr std::size_t most_received_ranges = 64, most_done_ranges = 1024, most_open_items = 64;
constexpr std::uint64_t ack_delay_ns = 1'000'000;
constexpr unsigned ack_each_packets = 8;
constexpr std::uint64_t ack_each_bytes = 32 << 10;

}  // namespace

Connection::Connection(const ConnectionOptions& options, std::uint64_t now) : options_(options), last_received_(now) {
    if (options.keys.cipher != Cipher::none) {
        const auto cut = [](const std::array<std::byte, 44>& all) {
            const std::span<const std::byte, 44> view(all);
            return std::pair(view.first<32>(), view.last<12>());
        };
        const auto [out_key, out_iv] = cut(options.keys.out);
        const auto [in_key, in_iv] = cut(options.keys.in);
        seal_.emplace(options.keys.cipher, true, out_key, out_iv);
        open_.emplace(options.keys.cipher, false, in_key, in_iv);
    }
    srtt_ = options.first_rtt_ns;
    rttvar_ = srtt_ / 2;
    last_ping_ = now;
    sent_.reserve(64);
    soon_.reserve(4096);
    in_.reserve(most_open_items);
    if (options.reliable) {
        mtu_ = most_packet;
        window_ = options_.peer_window;
        probe_round_ = 3;
    }
}

Connection::~Connection() = default;

Connection::Incoming* Connection::incoming(std::uint64_t id) noexcept {
    for (Incoming& item : in_)
        if (item.id == id) return &item;
    return nullptr;
}

Verdict Connection::receive(std::span<std::byte> packet, std::uint64_t now, Above& above) {
    DataHead head;
    const auto bad = [&](Verdict verdict, std::uint64_t& counter) {
        ++counter;
        return verdict;
    };
    const std::size_t extra = sizeof head + (open_ ? tag_bytes : 0);
    if (!load(packet, head) || packet.size() <= extra || head.start.bytes != packet.size() || head.start.zero != 0 || head.start.version != highest_version ||
        static_cast<PacketKind>(head.start.kind) != PacketKind::data || head.to != options_.own_id || head.number == 0 || head.number >= 1ULL << 62)
        return bad(Verdict::malformed, figures_.malformed);
    if (head.number < floor_ || received_.contains(head.number)) return bad(Verdict::replayed, figures_.replayed);
    const std::span<std::byte> text = packet.subspan(sizeof head, packet.size() - extra);
    if (open_ && !open_->open(head.number, packet.first(sizeof head), text.data(), text.size())) return bad(Verdict::forged, figures_.forged);
    if (!check_frames(text)) return bad(Verdict::malformed, figures_.malformed);
    if (closed_) return Verdict::taken;
    if (const Verdict verdict = admit(text); verdict != Verdict::taken) return verdict;

    ++figures_.packets_in;
    figures_.bytes_in += packet.size();
    last_received_ = now;
    const std::uint64_t largest = received_.empty() ? 0 : received_.back().end - 1;
    const bool in_order = head.number == largest + 1;
    received_.add(head.number, head.number + 1);
    if (head.number > largest) largest_at_ = now;
    if (received_.count() > most_received_ranges) {
        floor_ = received_.front().end;
        received_.drop_front();
    }
    const unsigned before = unacked_;
    frames_in(text, now, above);
    if (unacked_ != before) {
        if (!in_order || unacked_ >= ack_each_packets || (unacked_ > 1 && unacked_ * packet.size() >= ack_each_bytes)) ack_now_ = true;
        if (ack_at_ == 0) ack_at_ = now + ack_delay_ns;
    }
    return Verdict::taken;
}

// Whether there is room for what the packet begins. Without, the packet is treated as lost: it is not acknowledged, and comes again.
Verdict Connection::admit(std::span<const std::byte> frames) {
    for (FrameHead head; !frames.empty(); frames = frames.subspan(head.bytes)) {
        (void)load(frames, head);
        ChunkFrame chunk;
        if (static_cast<FrameType>(head.type) != FrameType::chunk || !load(frames, chunk) || static_cast<ItemKind>(head.kind) == ItemKind::blob) continue;
        if (head.bytes - sizeof chunk == chunk.total || done_.contains(chunk.item) || incoming(chunk.item) != nullptr) continue;
        if (chunk.total > options_.most_item_bytes) {
            ++figures_.malformed;
            close(2, "an item of " + std::to_string(chunk.total) + " bytes, at most " + std::to_string(options_.most_item_bytes) + " are taken");
            return Verdict::malformed;
        }
        const auto open = std::count_if(in_.begin(), in_.end(), [](const Incoming& item) { return item.id != 0; });
        if (static_cast<std::size_t>(open) >= most_open_items || in_bytes_ + chunk.total > 2 * options_.most_item_bytes) {
            ++figures_.no_room;
            return Verdict::no_room;
        }
    }
    return Verdict::taken;
}

void Connection::frames_in(std::span<const std::byte> frames, std::uint64_t now, Above& above) {
    bool eliciting = false;
    for (FrameHead head; !frames.empty(); frames = frames.subspan(head.bytes)) {
        (void)load(frames, head);
        const std::span<const std::byte> frame = frames.first(head.bytes);
        switch (static_cast<FrameType>(head.type)) {
            case FrameType::ack: ack_in(frame, now, above); break;
            case FrameType::ping: eliciting = ack_now_ = true; break;
            case FrameType::chunk:
                eliciting = true;
                ++worked_;
                chunk_in(frame, above);
                break;
            case FrameType::answer: {
                ++worked_;
                AnswerHead answer;
                (void)load(frame.subspan(sizeof head), answer);
                above.answered(answer, frame.subspan(sizeof head + sizeof answer));
                break;
            }
            case FrameType::poll: {
                ++worked_;
                PollFrame poll;
                (void)load(frame, poll);
                above.polled(poll.session, poll.seq);
                break;
            }
            case FrameType::close: {
                const auto text = frame.subspan(sizeof head + sizeof(std::uint32_t));
                by_peer_ = true;
                die(std::string(reinterpret_cast<const char*>(text.data()), text.size()));
                return;
            }
            case FrameType::padding: break;
        }
    }
    if (eliciting) ++unacked_;
}

void Connection::chunk_in(std::span<const std::byte> frame, Above& above) {
    ChunkFrame chunk;
    (void)load(frame, chunk);
    const std::span<const std::byte> bytes = frame.subspan(sizeof chunk);
    const auto kind = static_cast<ItemKind>(chunk.head.kind);
    if (done_.contains(chunk.item)) return;
    Incoming* item = in_bytes_ == 0 && in_.empty() ? nullptr : incoming(chunk.item);
    if (item == nullptr) {
        if (kind == ItemKind::blob) return;  // not expected (any more)
        if (bytes.size() == chunk.total) {
            done_.add(chunk.item, chunk.item + 1);
            if (done_.count() > most_done_ranges) return close(2, "item numbers without order");
            if (kind != ItemKind::call) ack_now_ = true;  // a call is acknowledged with its answer
            return above.item(kind, chunk.item, bytes);
        }
        item = incoming(0);
        if (item == nullptr) item = &in_.emplace_back();
        item->own.resize(chunk.total);
        *item = Incoming{chunk.item, kind, std::move(item->own), chunk.total, {}, 0};
        in_bytes_ += chunk.total;
    }
    if (item->kind != kind || item->total != chunk.total) return close(2, "an item that changed its size");
    arrived(*item, bytes, chunk.offset, above);
}

void Connection::arrived(Incoming& item, std::span<const std::byte> bytes, std::uint64_t offset, Above& above) {
    const std::uint64_t fresh = item.there.add(offset, offset + bytes.size());
    if (fresh == 0) return;
    item.bytes += fresh;
    const bool whole = item.bytes == item.total;
    if (item.kind == ItemKind::blob) {
        if (!above.blob_bytes(item.id, offset, bytes)) return;
        const std::uint64_t id = item.id, prefix = item.there.prefix();
        if (whole) {
            refuse_blob(id);
            ack_now_ = true;
        }
        return above.blob_arrived(id, prefix, whole);
    }
    std::memcpy(item.own.data() + offset, bytes.data(), bytes.size());
    if (!whole) return;
    done_.add(item.id, item.id + 1);
    in_bytes_ -= item.total;
    const std::vector<std::byte> own = std::move(item.own);
    const std::uint64_t id = item.id;
    const ItemKind kind = item.kind;
    item = Incoming{};
    if (kind != ItemKind::call) ack_now_ = true;
    above.item(kind, id, own);
}

void Connection::expect_blob(std::uint64_t transfer, std::uint64_t total, const Ranges& there) {
    Incoming* item = incoming(0);
    if (item == nullptr) item = &in_.emplace_back();
    *item = Incoming{transfer, ItemKind::blob, {}, total, there, 0};
    for (std::size_t i = 0; i < there.count(); ++i) item->bytes += there[i].end - there[i].begin;
}

void Connection::refuse_blob(std::uint64_t transfer) noexcept {
    done_.add(transfer, transfer + 1);
    if (Incoming* item = incoming(transfer)) *item = Incoming{};
}

const Ranges* Connection::blob_there(std::uint64_t transfer) const noexcept {
    for (const Incoming& item : in_)
        if (item.id == transfer) return &item.there;
    return nullptr;
}

void Connection::ack_in(std::span<const std::byte> frame, std::uint64_t now, Above& above) {
    AckFrame ack;
    (void)load(frame, ack);
    if (ack.largest >= next_number_) return;  // of packets that were never sent: nothing to believe
    Range ranges[most_ack_pairs + 1];  // from high to low
    std::size_t count = 0;
    ranges[count++] = {ack.largest - ack.first, ack.largest + 1};
    for (std::uint32_t i = 0; i < ack.more; ++i) {
        AckPair pair;
        (void)load(frame.subspan(sizeof ack + i * sizeof pair), pair);
        const std::uint64_t end = ranges[count - 1].begin - pair.missing;
        ranges[count++] = {end - pair.present, end};
    }
    if (probes_sent_ != 0 && mtu_ < most_mtu_) probes_acked(ranges, count);
    bool any = false;
    for (std::size_t i = sent_first_; i < sent_.size() && sent_[i].number <= ack.largest; ++i) {
        Sent& sent = sent_[i];
        if (sent.gone) continue;
        while (count > 1 && sent.number >= ranges[count - 1].end) --count;
        if (sent.number < ranges[count - 1].begin || sent.number >= ranges[count - 1].end) continue;
        sent.gone = true;
        any = true;
        if (sent.number == ack.largest) {
            const std::uint64_t passed = now > sent.at ? now - sent.at : 0;
            learn_rtt(passed > ack.delay_ns ? passed - ack.delay_ns : passed);
        }
        acked(sent, above);
    }
    if (!any) return;
    largest_acked_ = std::max(largest_acked_, ack.largest);
    backoff_ = 0;
    forget_gone();
    if (!options_.reliable && sent_first_ != sent_.size()) find_lost(now);
    else loss_at_ = 0;
}

void Connection::probes_acked(const Range* ranges, std::size_t count) noexcept {
    for (const Probe& probe : probes_)
        for (std::size_t i = 0; i < count && probe.number != 0; ++i)
            if (probe.number >= ranges[i].begin && probe.number < ranges[i].end && probe.bytes > mtu_ && probe.bytes <= most_mtu_) mtu_ = probe.bytes;
}

void Connection::acked(const Sent& sent, Above& above) {
    if (sent.ping) ++acked_pings_;
    if (in_flight_ * 2 >= window_) {  // only what fills the window tells that it may grow
        if (window_ < slow_start_until_) window_ += sent.bytes;
        else window_ += std::max<std::uint64_t>(1, mtu_ * sent.bytes / window_);
        window_ = std::min(window_, std::max(options_.peer_window, window_ / 2));
    }
    in_flight_ -= sent.bytes;
    for (unsigned i = 0; i < sent.chunks; ++i) {
        const SentChunk& chunk = sent.chunk[i];
        Outgoing& item = out_[chunk.slot];
        if (item.id != chunk.id) continue;
        item.acked_bytes += item.acked.add(chunk.offset, chunk.offset + chunk.bytes);
        if (item.acked_bytes != item.bytes.size()) {
            if (!item.lost.empty()) {  // it had only been slow
                item.lost.remove(chunk.offset, chunk.offset + chunk.bytes);
                if (!item.sendable()) --unsent_;
            }
            continue;
        }
        const ItemKind kind = item.kind;
        const std::uint64_t id = item.id;
        unsendable(item);
        above.delivered(kind, id);
    }
}

void Connection::learn_rtt(std::uint64_t sample) noexcept {
    const bool first = latest_rtt_ == 0;
    latest_rtt_ = std::max<std::uint64_t>(sample, 1);
    if (first) {
        srtt_ = sample;
        rttvar_ = sample / 2;
        return;
    }
    const std::uint64_t off = srtt_ > sample ? srtt_ - sample : sample - srtt_;
    rttvar_ = (rttvar_ * 3 + off) / 4;
    srtt_ = (srtt_ * 7 + sample) / 8;
}

void Connection::die(std::string why) noexcept {
    if (closed_) return;
    closed_ = true;
    why_ = std::move(why);
}

}  // namespace teal::duck
