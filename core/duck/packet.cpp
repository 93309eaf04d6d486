// check_frames(): the one place where the structure of a packet from the peer is checked.
#include "duck/connection.hpp"

namespace teal::duck {
namespace {

bool check_ack(std::span<const std::byte> frame) noexcept {
    AckFrame ack;
    if (!load(frame, ack) || ack.more > most_ack_pairs || frame.size() != sizeof ack + ack.more * sizeof(AckPair)) return false;
    if (ack.largest == 0 || ack.first >= ack.largest) return false;
    std::uint64_t low = ack.largest - ack.first;  // the lowest number so far, at least 1
    for (std::uint32_t i = 0; i < ack.more; ++i) {
        AckPair pair;
        (void)load(frame.subspan(sizeof ack + i * sizeof pair), pair);
        const std::uint64_t down = std::uint64_t{pair.missing} + pair.present;
        if (pair.missing == 0 || pair.present == 0 || down >= low) return false;
        low -= down;
    }
    return true;
}

bool check_chunk(std::span<const std::byte> frame) noexcept {
    ChunkFrame chunk;
    if (!load(frame, chunk) || chunk.head.kind == 0 || chunk.head.kind > last_item_kind || chunk.item == 0) return false;
    const std::uint64_t bytes = frame.size() - sizeof chunk;
    return bytes > 0 && chunk.offset < chunk.total && bytes <= chunk.total - chunk.offset;
}

bool check_frame(const FrameHead& head, std::span<const std::byte> frame) noexcept {
    if (head.zero != 0 || (head.kind != 0 && static_cast<FrameType>(head.type) != FrameType::chunk)) return false;
    switch (static_cast<FrameType>(head.type)) {
        case FrameType::ack: return check_ack(frame);
        case FrameType::ping: return frame.size() == sizeof head;
        case FrameType::chunk: return check_chunk(frame);
        case FrameType::answer: return frame.size() >= sizeof head + sizeof(AnswerHead);
        case FrameType::poll: return frame.size() == sizeof(PollFrame);
        case FrameType::close: return frame.size() >= sizeof head + sizeof(std::uint32_t) && frame.size() <= 1024;
        case FrameType::padding: return true;
    }
    return false;
}

}  // namespace

bool check_frames(std::span<const std::byte> frames) noexcept {
    if (frames.empty()) return false;
    while (!frames.empty()) {
        FrameHead head;
        if (!load(frames, head) || head.bytes < sizeof head || head.bytes > frames.size()) return false;
        if (!check_frame(head, frames.first(head.bytes))) return false;
        frames = frames.subspan(head.bytes);
    }
    return true;
}

}  // namespace teal::duck
