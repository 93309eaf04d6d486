#include "duck/peer.hpp"

#include <algorithm>
#include <cerrno>

namespace teal::duck {

void Peer::replied(std::uint64_t id) {
    const auto found = asked.find(id);
    if (found == asked.end()) return;
    asked_bytes -= found->second;
    asked.erase(found);
}

void Desk::call(const CallHead& head, std::span<const std::byte> args) {
    if (head.seq == 0 || head.seq >= next_ + kept) return say(head.seq, Outcome::refused, EINVAL);  // no client of ours does
    if (head.seq < next_) return polled(head.seq);
    Record& record = records_[head.seq % kept];
    if (record.seq == head.seq) return;
    record.seq = head.seq;
    record.op = head.op;
    record.answered = record.cancelled = record.small = false;
    record.too_long = args.size() > limits_.args_bytes;  // it keeps its place in the order, and is refused in it
    if (record.too_long) args = {};
    if (!running_ && head.seq == next_) return begin(record, args);
    record.waiting = true;
    record.bytes.assign(args.begin(), args.end());
}

void Desk::begin(Record& record, std::span<const std::byte> args) {
    record.waiting = false;
    ++next_;
    ++figures_.calls;
    Answer refusal;
    if (record.cancelled) {
        refusal.outcome = Outcome::cancelled;
        return end(record, refusal);
    }
    if (record.too_long) {
        ++figures_.calls_refused;
        refusal.outcome = Outcome::refused;
        refusal.result = E2BIG;
        return end(record, refusal);
    }
    if (!sink_->submit({record.seq, record.op, args}, refusal)) {
        ++figures_.calls_refused;
        return end(record, refusal);
    }
    running_ = true;
    poll();  // who runs in this thread is done already
}

bool Desk::poll() {
    if (!running_) return false;
    Answer answer;
    if (!sink_->poll(answer)) return false;
    running_ = false;
    end(records_[(next_ - 1) % kept], answer);
    return true;
}

void Desk::end(Record& record, const Answer& answer) {
    std::span<const std::byte> bytes = answer.bytes;
    if (bytes.size() > limits_.result_bytes) bytes = bytes.first(limits_.result_bytes);
    record.head = {id_, static_cast<std::uint32_t>(answer.outcome), record.seq, answer.result, answer.took_ns};
    record.answered = true;
    record.small = bytes.size() <= connection_.answer_room();
    if (record.small) {
        connection_.answer(record.head, bytes);
        record.bytes.assign(bytes.begin(), bytes.end());
    } else {
        connection_.queue(ItemKind::answer, bytes_of(record.head), bytes);
        record.bytes.clear();
    }
    go_on();
}

void Desk::go_on() {
    Record& next = records_[next_ % kept];
    if (running_ || next.seq != next_ || !next.waiting) return;
    const std::vector<std::byte> args = std::move(next.bytes);
    begin(next, args);
}

void Desk::polled(std::uint64_t seq) {
    if (seq >= next_ || (running_ && seq == next_ - 1)) return;  // it will be answered
    Record& record = records_[seq % kept];
    if (record.seq != seq || !record.answered) return say(seq, Outcome::forgotten, 0);  // an old question that was long on its way
    if (!record.small) return;  // a long one is on its way, and arrives
    ++figures_.calls_repeated;
    record.small = record.bytes.size() <= connection_.answer_room();  // packets may have become shorter
    if (record.small) connection_.answer(record.head, record.bytes);
    else connection_.queue(ItemKind::answer, bytes_of(record.head), record.bytes);
}

void Desk::cancel(std::uint64_t seq) {
    Record& record = records_[seq % kept];
    if (record.seq != seq || record.answered) return;
    if (record.waiting) {
        record.cancelled = true;
    } else if (running_ && seq == next_ - 1 && sink_->cancel()) {
        running_ = false;
        Answer answer;
        answer.outcome = Outcome::cancelled;
        end(record, answer);
    }
}

void Desk::say(std::uint64_t seq, Outcome outcome, std::int64_t result) {
    connection_.answer({id_, static_cast<std::uint32_t>(outcome), seq, result, 0}, {});
}

Peer::~Peer() = default;

void Peer::item(ItemKind kind, std::uint64_t, std::span<const std::byte> bytes) {
    switch (kind) {
        case ItemKind::call: return call(bytes);
        case ItemKind::cancel: {
            CallHead head;
            if (!load(bytes, head)) break;
            if (const auto desk = desks.find(head.session); desk != desks.end()) desk->second->cancel(head.seq);
            return;
        }
        case ItemKind::message: {
            MessageHead head;
            if (!load(bytes, head)) break;
            // Whoever sends faster than is answered fills this machine's memory: no client of ours has so many questions open.
            if (asked.size() >= most_asked || asked_bytes + bytes.size() > most_asked_bytes) break;
            if (!asked.emplace(head.id, bytes.size()).second) break;
            asked_bytes += bytes.size();
            ++host_.figures().messages;
            return host_.message(*this, head.id, bytes.subspan(sizeof head));
        }
        case ItemKind::blob_ask: {
            BlobAsk ask;
            if (!load(bytes, ask) || bytes.size() != sizeof ask || ask.transfer == 0) break;
            return blob_ask(ask);
        }
        case ItemKind::group_ask: {
            GroupAsk ask;
            if (!load(bytes, ask) || bytes.size() != sizeof ask || ask.blob.transfer == 0) break;
            return group_ask(ask);
        }
        default: break;
    }
    connection.close(2, "an item that a client does not send");
}

void Peer::call(std::span<const std::byte> bytes) {
    CallHead head;
    if (!load(bytes, head)) return connection.close(2, "a call without a head");
    const auto desk = desks.find(head.session);
    if (desk == desks.end()) return connection.answer({head.session, static_cast<std::uint32_t>(Outcome::unknown), head.seq, 0, 0}, {});
    const bool ran = desk->second->running();  // then it is polled already
    desk->second->call(head, bytes.subspan(sizeof head));
    if (!ran && desk->second->running()) host_.busy(*desk->second);
}

void Peer::polled(std::uint32_t session, std::uint64_t seq) {
    const auto desk = desks.find(session);
    if (desk == desks.end()) return connection.answer({session, static_cast<std::uint32_t>(Outcome::unknown), seq, 0, 0}, {});
    desk->second->polled(seq);
}

void Peer::blob_state(std::uint64_t transfer, BlobAnswer answer, std::uint64_t from, const Ranges* there) {
    if (answer != BlobAnswer::want) connection.refuse_blob(transfer);  // of a group: nothing will come here either way
    const BlobState state{transfer, static_cast<std::uint32_t>(answer), 0, from};
    std::vector<Range> ranges;
    for (std::size_t i = 0; there != nullptr && i < there->count() && ranges.size() < most_state_ranges; ++i) ranges.push_back((*there)[i]);
    connection.queue(ItemKind::blob_state, bytes_of(state), std::as_bytes(std::span(ranges)));
}

void Peer::blob_ask(const BlobAsk& ask) {
    const auto here = [&](const auto& each) { return each.second == ask.digest; };
    if (host_.blobs().held(ask.digest) || std::any_of(unchecked.begin(), unchecked.end(), here)) {
        ++host_.figures().blobs_had;
        return blob_state(ask.transfer, BlobAnswer::have, 0);
    }
    std::shared_ptr<Blob> blob;
    for (auto& [transfer, before] : arriving) {  // a put() that was given up, and is tried again
        if (before->digest() != ask.digest || transfer == ask.transfer) continue;
        if (const Ranges* come = connection.blob_there(transfer)) before->there = *come;
        connection.refuse_blob(transfer);
        host_.blobs().stopped(std::move(before), 0);
        arriving.erase(std::uint64_t{transfer});
        break;
    }
    host_.end_group(ask.digest);  // what has come that way is kept, and gone on with
    if (arriving.contains(ask.transfer) || arriving.size() >= 16 || !host_.blobs().begin(ask.digest, ask.bytes, blob))
        return blob_state(ask.transfer, BlobAnswer::no_room, 0);
    connection.expect_blob(ask.transfer, ask.bytes, blob->there);
    const std::uint64_t from = blob->there.prefix();
    const Ranges there = blob->there;
    if (from == ask.bytes) {
        connection.refuse_blob(ask.transfer);  // nothing of it will come
        host_.blobs().ended(ask.bytes);
        return host_.finish(*this, ask.transfer, blob);
    }
    arriving.emplace(ask.transfer, std::move(blob));
    blob_state(ask.transfer, BlobAnswer::want, from, &there);
}

void Peer::group_ask(const GroupAsk& ask) {
    if (host_.blobs().held(ask.blob.digest)) return blob_state(ask.blob.transfer, BlobAnswer::have, 0);
    blob_state(ask.blob.transfer, host_.begin_group(ask) ? BlobAnswer::want : BlobAnswer::no_group, 0);
}

bool Peer::blob_bytes(std::uint64_t transfer, std::uint64_t offset, std::span<const std::byte> bytes) {
    const auto found = arriving.find(transfer);
    if (found == arriving.end()) return false;
    if (found->second->write(offset, bytes)) return true;
    host_.blobs().ended(found->second->bytes());  // no memory for it after all
    arriving.erase(found);
    blob_state(transfer, BlobAnswer::no_room, 0);
    return false;
}

void Peer::blob_arrived(std::uint64_t transfer, std::uint64_t prefix, bool whole) {
    const auto found = arriving.find(transfer);
    if (found == arriving.end()) return;
    if (!whole) return host_.hash(found->second, prefix);
    const std::shared_ptr<Blob> blob = std::move(found->second);
    arriving.erase(found);
    host_.blobs().ended(blob->bytes());
    host_.finish(*this, transfer, blob);
}

void Peer::blob_here(std::uint64_t transfer, const BlobDigest& digest) {
    unchecked.emplace(transfer, digest);
    blob_state(transfer, BlobAnswer::arrived, 0);
}

void Peer::blob_refused(std::uint64_t transfer) { blob_state(transfer, BlobAnswer::no_room, 0); }

void Peer::blob_finished(std::uint64_t transfer, bool good) {
    unchecked.erase(transfer);
    ++(good ? host_.figures().blobs_received : host_.figures().blobs_bad);
    blob_state(transfer, good ? BlobAnswer::done : BlobAnswer::bad, 0);
}

}  // namespace teal::duck
