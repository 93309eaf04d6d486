// Sending: what leaves, when, and what is done when it is lost. The theory is in connection.hpp.
#include <algorithm>

#include "duck/connection.hpp"

namespace teal::duck {
namespace {

constexpr std::uint64_t ack_delay_ns = 1'000'000, least_pto_ns = 2'000'000;
constexpr std::uint64_t reorder_packets = 3;
constexpr std::size_t most_written_pairs = 16, most_sent = 8192;
constexpr std::size_t probe_sizes[] = {1452, 8952, most_packet};
constexpr unsigned probe_rounds = 3;

std::uint64_t least_window(std::size_t mtu) noexcept { return std::max<std::uint64_t>(2 * mtu, std::min<std::uint64_t>(8 * mtu, 64 << 10)); }

}  // namespace

class Connection::Writer {
public:
    Writer(std::span<std::byte> out, std::size_t packet, std::size_t tag) : out_(out), end_(std::min(out.size(), packet) - tag) {}
    [[nodiscard]] std::size_t room() const noexcept { return end_ - at_; }
    [[nodiscard]] std::size_t at() const noexcept { return at_; }
    [[nodiscard]] bool empty() const noexcept { return at_ == sizeof(DataHead); }
    [[nodiscard]] std::byte* data() const noexcept { return out_.data(); }
    void put(const void* bytes, std::size_t count) noexcept {
        std::memcpy(out_.data() + at_, bytes, count);
        at_ += count;
    }
    template <class T> void put(const T& value) noexcept { put(&value, sizeof value); }
    void zeros(std::size_t count) noexcept {
        std::memset(out_.data() + at_, 0, count);
        at_ += count;
    }

private:
    std::span<std::byte> out_;
    std::size_t at_ = sizeof(DataHead), end_;
};

std::uint64_t Connection::pto_ns() const noexcept {
    const std::uint64_t once = std::max(least_pto_ns, srtt_ + std::max<std::uint64_t>(4 * rttvar_, 500'000) + ack_delay_ns);
    return std::min(once << std::min(backoff_, 6U), std::max(once, options_.dead_after_ns / 8));
}

std::uint64_t Connection::pto_at() const noexcept { return last_eliciting_ + pto_ns(); }

std::uint64_t Connection::next_timer() const noexcept {
    if (closed_) return close_left_ != 0 ? 0 : ~0ULL;
    const std::uint64_t beat = options_.dead_after_ns / 4;
    std::uint64_t next = std::max(last_received_, last_ping_) + beat;
    next = std::min(next, last_received_ + options_.dead_after_ns);
    if (ack_at_ != 0) next = std::min(next, ack_at_);
    if (!options_.reliable && sent_first_ != sent_.size()) next = std::min(next, pto_at());
    if (loss_at_ != 0) next = std::min(next, loss_at_);
    if (probe_at_ != 0) next = std::min(next, probe_at_);
    return next;
}

std::size_t Connection::answer_room() const noexcept {
    return mtu_ - sizeof(DataHead) - tag_bytes - sizeof(FrameHead) - sizeof(AnswerHead) - sizeof(AckFrame) - most_written_pairs * sizeof(AckPair);
}

std::size_t Connection::send(std::span<std::byte> out, std::uint64_t now, Above& above) {
    if (!closed_) timeouts(now);
    if (closed_) return send_close(out);
    const bool may = in_flight_ < window() || credit_ != 0;
    if (!ack_now_ && soon_.empty() && !ping_now_ && !(unsent_ != 0 && may) && !probing_) return 0;
    Sent sent{};
    Writer to(out, mtu_, seal_ ? tag_bytes : 0);
    if (unacked_ != 0) write_ack(to, now);
    if (!soon_.empty()) write_soon(to);
    bool eliciting = false;
    if (ping_now_) {
        ping_now_ = false;
        to.put(FrameHead{static_cast<std::uint8_t>(FrameType::ping), 0, 0, sizeof(FrameHead)});
        last_ping_ = now;
        eliciting = sent.ping = true;
    }
    // A blob is long enough to be worth the question first: it fills the window from now on.
    const bool ask_first = probing_ && to.empty() && unsent_ != 0 && next_to_send()->kind == ItemKind::blob;
    if (unsent_ != 0 && may && !ask_first && sent_.size() - sent_first_ < most_sent) eliciting = write_chunks(to, sent) || eliciting;
    if (!to.empty()) return finish(to, eliciting ? &sent : nullptr, now);
    if (!probing_ || out.size() < most_packet) return 0;
    Writer probe(out, most_packet, seal_ ? tag_bytes : 0);
    if (!write_probe(probe)) return has_more() ? send(out, now, above) : 0;  // that was the last one
    probe_at_ = now + 3 * pto_ns();
    const std::size_t bytes = finish(probe, nullptr, now);
    probes_[probes_sent_++ % probes_.size()] = {next_number_ - 1, bytes};
    return bytes;
}

std::size_t Connection::finish(Writer& to, Sent* sent, std::uint64_t now) {
    const std::size_t text = to.at() - sizeof(DataHead), bytes = to.at() + (seal_ ? tag_bytes : 0);
    const DataHead head{{static_cast<std::uint8_t>(PacketKind::data), static_cast<std::uint8_t>(highest_version), 0, static_cast<std::uint32_t>(bytes)}, options_.peer_id,
                        next_number_++};
    std::memcpy(to.data(), &head, sizeof head);
    if (seal_) seal_->seal(head.number, {to.data(), sizeof head}, to.data() + sizeof head, text);
    ++figures_.packets_out;
    figures_.bytes_out += bytes;
    if (sent != nullptr) {  // to be acknowledged
        sent->number = head.number;
        sent->at = last_eliciting_ = now;
        sent->bytes = static_cast<std::uint32_t>(bytes);
        sent_.push_back(*sent);
        in_flight_ += bytes;
        if (credit_ != 0) --credit_;
    }
    return bytes;
}

std::size_t Connection::send_close(std::span<std::byte> out) {
    if (close_left_ == 0) return 0;
    --close_left_;
    Writer to(out, least_packet, seal_ ? tag_bytes : 0);
    const std::size_t text = std::min<std::size_t>(why_.size(), 900);
    to.put(FrameHead{static_cast<std::uint8_t>(FrameType::close), 0, 0, static_cast<std::uint32_t>(sizeof(FrameHead) + sizeof close_reason_ + text)});
    to.put(close_reason_);
    to.put(why_.data(), text);
    return finish(to, nullptr, 0);
}

void Connection::close(std::uint32_t reason, std::string text) {
    if (closed_) return;
    close_reason_ = reason;
    close_left_ = options_.reliable ? 1 : 3;
    die(std::move(text));
}

void Connection::write_ack(Writer& to, std::uint64_t now) {
    const std::size_t pairs = std::min(received_.count() - 1, most_written_pairs);
    const Range& top = received_.back();
    const std::uint64_t delay = now > largest_at_ ? now - largest_at_ : 0;
    to.put(AckFrame{{static_cast<std::uint8_t>(FrameType::ack), 0, 0, static_cast<std::uint32_t>(sizeof(AckFrame) + pairs * sizeof(AckPair))}, top.end - 1,
                    top.end - 1 - top.begin, static_cast<std::uint32_t>(std::min<std::uint64_t>(delay, UINT32_MAX)), static_cast<std::uint32_t>(pairs)});
    for (std::size_t i = 0; i < pairs; ++i) {
        const Range& above = received_[received_.count() - 1 - i];
        const Range& range = received_[received_.count() - 2 - i];
        to.put(AckPair{static_cast<std::uint32_t>(above.begin - range.end), static_cast<std::uint32_t>(range.end - range.begin)});
    }
    unacked_ = 0;
    ack_now_ = false;
    ack_at_ = 0;
}

void Connection::write_soon(Writer& to) {
    std::size_t done = 0;
    while (done < soon_.size()) {
        FrameHead head;
        std::memcpy(&head, soon_.data() + done, sizeof head);
        if (head.bytes > to.room()) {
            if (to.empty()) done += head.bytes;  // fits no packet any more: it will be asked for again
            break;
        }
        to.put(soon_.data() + done, head.bytes);
        done += head.bytes;
    }
    if (done == soon_.size()) soon_.clear();
    else soon_.erase(soon_.begin(), soon_.begin() + static_cast<std::ptrdiff_t>(done));
}

// Small items first; blobs and other long ones share what is left, oldest first.
Connection::Outgoing* Connection::next_to_send() noexcept {
    Outgoing* later = nullptr;
    for (const std::uint32_t slot : active_) {
        Outgoing& item = out_[slot];
        if (!item.sendable()) continue;
        if (item.kind != ItemKind::blob && item.bytes.size() <= 64 << 10) return &item;
        if (later == nullptr) later = &item;
    }
    return later;
}

bool Connection::write_chunks(Writer& to, Sent& sent) {
    while (unsent_ != 0 && sent.chunks < 2 && to.room() >= sizeof(ChunkFrame) + 32) {
        Outgoing* item = next_to_send();
        if (item == nullptr) break;
        const std::size_t room = to.room() - sizeof(ChunkFrame);
        const bool again = !item->lost.empty();
        const std::uint64_t offset = again ? item->lost.front().begin : item->next;
        const std::uint64_t left = (again ? item->lost.front().end : item->bytes.size()) - offset;
        const std::size_t bytes = std::min<std::uint64_t>(room, left);
        to.put(ChunkFrame{{static_cast<std::uint8_t>(FrameType::chunk), static_cast<std::uint8_t>(item->kind), 0, static_cast<std::uint32_t>(sizeof(ChunkFrame) + bytes)},
                          item->id, offset, item->bytes.size()});
        to.put(item->bytes.data() + offset, bytes);
        if (again) item->lost.remove(offset, offset + bytes);
        else item->next += bytes;
        sent.chunk[sent.chunks++] = {item->id, offset, static_cast<std::uint32_t>(bytes), static_cast<std::uint32_t>(item - out_.data())};
        if (!item->sendable()) --unsent_;
    }
    return sent.chunks != 0;
}

// Packets of each longer size, padded; which of them arrive tells how long packets may be.
bool Connection::write_probe(Writer& to) {
    while (probe_next_ < std::size(probe_sizes)) {
        const std::size_t size = probe_sizes[probe_next_++];
        if (size <= mtu_ || size > most_mtu_ || (size > least_packet * 8 && 2 * size > options_.peer_window)) continue;
        const std::size_t text = size - (seal_ ? tag_bytes : 0) - to.at() - sizeof(FrameHead);
        to.put(FrameHead{static_cast<std::uint8_t>(FrameType::ping), 0, 0, sizeof(FrameHead)});
        to.put(FrameHead{static_cast<std::uint8_t>(FrameType::padding), 0, 0, static_cast<std::uint32_t>(text)});
        to.zeros(text - sizeof(FrameHead));
        return true;
    }
    probing_ = false;
    if (++probe_round_ >= probe_rounds || mtu_ >= std::min(most_mtu_, most_packet)) probe_at_ = 0;
    return false;
}

// Before something long: how long may packets be? Once more for what is very long, when it seemed that they may not.
void Connection::probe_for(std::uint64_t item_bytes) noexcept {
    if (item_bytes <= 4 * least_packet || mtu_ >= most_mtu_ || options_.reliable || probing_ || probe_at_ != 0) return;
    if (probe_round_ >= probe_rounds && item_bytes >= 256 << 10) probe_round_ = probe_rounds - 1;
    probing_ = probe_round_ < probe_rounds;
    probe_next_ = 0;
}

void Connection::too_long(std::size_t bytes) noexcept {
    most_mtu_ = std::max(least_packet, std::min(most_mtu_, bytes - 1));
    mtu_ = std::min(mtu_, least_packet);  // what is in flight is found lost; the next probes find the right size
    if (probe_round_ > 1) probe_round_ = 1;
    probing_ = true;
    probe_next_ = 0;
}

Connection::Outgoing& Connection::take_slot() {
    std::size_t slot = 0;
    while (slot < out_.size() && out_[slot].id != 0) ++slot;
    if (slot == out_.size()) out_.emplace_back();
    active_.push_back(static_cast<std::uint32_t>(slot));
    ++unsent_;
    return out_[slot];
}

std::uint64_t Connection::queue(ItemKind kind, std::span<const std::byte> head, std::span<const std::byte> body) {
    Outgoing& item = take_slot();
    item.id = next_item_++;
    item.kind = kind;
    item.own.resize(head.size() + body.size());
    if (!head.empty()) std::memcpy(item.own.data(), head.data(), head.size());
    if (!body.empty()) std::memcpy(item.own.data() + head.size(), body.data(), body.size());
    item.bytes = item.own;
    probe_for(item.bytes.size());
    return item.id;
}

void Connection::queue_blob(std::uint64_t transfer, std::span<const std::byte> bytes, const Ranges& there) {
    Outgoing& item = take_slot();
    item.id = transfer;
    item.kind = ItemKind::blob;
    item.bytes = bytes;
    item.next = bytes.size();  // what is missing there is sent as if it had been lost
    item.acked = there;
    item.lost.add(0, bytes.size());
    for (std::size_t i = 0; i < there.count(); ++i) {
        item.acked_bytes += there[i].end - there[i].begin;
        item.lost.remove(there[i].begin, there[i].end);
    }
    if (item.lost.empty()) --unsent_;
    probe_for(bytes.size() - item.acked_bytes);
}

void Connection::drop_blob(std::uint64_t transfer) noexcept {
    for (Outgoing& item : out_) {
        if (item.id != transfer || item.kind != ItemKind::blob) continue;
        if (item.sendable()) --unsent_;
        unsendable(item);
        return;
    }
}

// Frees the slot of an item that has nothing left to send.
void Connection::unsendable(Outgoing& item) noexcept {
    if (!item.lost.empty() && item.acked_bytes == item.bytes.size()) --unsent_;
    const auto slot = static_cast<std::uint32_t>(&item - out_.data());
    active_.erase(std::find(active_.begin(), active_.end(), slot));
    item.id = 0;
    item.next = item.acked_bytes = 0;
    item.bytes = {};
    item.lost.clear();
    item.acked.clear();
    if (item.own.capacity() > 64 << 10) item.own = {};
}

void Connection::answer(const AnswerHead& head, std::span<const std::byte> bytes) {
    const FrameHead frame{static_cast<std::uint8_t>(FrameType::answer), 0, 0, static_cast<std::uint32_t>(sizeof(FrameHead) + sizeof head + bytes.size())};
    const std::size_t at = soon_.size();
    soon_.resize(at + frame.bytes);
    std::memcpy(soon_.data() + at, &frame, sizeof frame);
    std::memcpy(soon_.data() + at + sizeof frame, &head, sizeof head);
    if (!bytes.empty()) std::memcpy(soon_.data() + at + sizeof frame + sizeof head, bytes.data(), bytes.size());
}

void Connection::poll(std::uint32_t session, std::uint64_t seq) {
    const PollFrame frame{{static_cast<std::uint8_t>(FrameType::poll), 0, 0, sizeof(PollFrame)}, session, 0, seq};
    const auto bytes = bytes_of(frame);
    soon_.insert(soon_.end(), bytes.begin(), bytes.end());
}

void Connection::timeouts(std::uint64_t now) {
    if (ack_at_ != 0 && now >= ack_at_) ack_now_ = true;
    if (now > last_received_ + options_.dead_after_ns) return die("nothing heard for " + std::to_string((now - last_received_) / 1'000'000) + " ms");
    const std::uint64_t beat = options_.dead_after_ns / 4;
    if (now >= last_received_ + beat && now >= last_ping_ + beat) ping_now_ = true;
    if (options_.reliable) return;
    if (loss_at_ != 0 && now >= loss_at_) find_lost(now);
    if (probe_at_ != 0 && now >= probe_at_) {
        probe_at_ = 0;
        if (probe_round_ < probe_rounds) {
            probing_ = true;
            probe_next_ = 0;
        }
    }
    if (sent_first_ == sent_.size() || now < pto_at()) return;
    ++backoff_;
    ++figures_.packets_probed;
    credit_ = 2;
    unsigned again = 0;
    bool chunks = false;
    for (std::size_t i = sent_first_; i < sent_.size() && again < 2; ++i) {
        if (sent_[i].gone) continue;
        chunks = chunks || sent_[i].chunks != 0;
        lost(sent_[i], false, now);
        ++again;
    }
    forget_gone();
    if (!chunks) ping_now_ = true;
    last_eliciting_ = now;
    if (backoff_ < 3) return;
    window_ = least_window(mtu_);
    slow_start_until_ = std::max(slow_start_until_ == ~0ULL ? 0 : slow_start_until_ / 2, window_ * 2);
    if (backoff_ < 6 || mtu_ == least_packet) return;
    mtu_ = least_packet;  // the path may have become narrower; what it carries is found out again
    probe_round_ = probe_next_ = 0;
    probe_at_ = now + pto_ns();
}

void Connection::find_lost(std::uint64_t now) {
    loss_at_ = 0;
    const std::uint64_t patience = std::max<std::uint64_t>(std::max(srtt_, latest_rtt_) * 9 / 8, 200'000);
    for (std::size_t i = sent_first_; i < sent_.size() && sent_[i].number < largest_acked_; ++i) {
        Sent& sent = sent_[i];
        if (sent.gone) continue;
        if (sent.number + reorder_packets <= largest_acked_ || now >= sent.at + patience) lost(sent, true, now);
        else if (loss_at_ == 0 || sent.at + patience < loss_at_) loss_at_ = sent.at + patience;
    }
    forget_gone();
}

void Connection::lost(Sent& sent, bool congested, std::uint64_t) {
    sent.gone = true;
    ++figures_.packets_lost;
    in_flight_ -= sent.bytes;
    for (unsigned i = 0; i < sent.chunks; ++i) {
        const SentChunk& chunk = sent.chunk[i];
        Outgoing& item = out_[chunk.slot];
        if (item.id != chunk.id) continue;
        const bool before = item.sendable();
        item.lost.add(chunk.offset, chunk.offset + chunk.bytes);
        for (std::size_t j = 0; j < item.acked.count(); ++j) {
            const Range& range = item.acked[j];
            if (range.begin >= chunk.offset + chunk.bytes) break;
            if (range.end > chunk.offset) item.lost.remove(range.begin, range.end);
        }
        if (!before && item.sendable()) ++unsent_;
    }
    if (!congested || sent.number <= reduced_at_number_) return;
    window_ = std::max(window_ * 7 / 10, least_window(mtu_));
    slow_start_until_ = window_;
    reduced_at_number_ = next_number_ - 1;
}

void Connection::forget_gone() noexcept {
    while (sent_first_ < sent_.size() && sent_[sent_first_].gone) ++sent_first_;
    if (sent_first_ == sent_.size()) {
        sent_.clear();
        sent_first_ = 0;
    } else if (sent_first_ > 1024 && sent_first_ * 2 > sent_.size()) {
        sent_.erase(sent_.begin(), sent_.begin() + static_cast<std::ptrdiff_t>(sent_first_));
        sent_first_ = 0;
    }
}

}  // namespace teal::duck
