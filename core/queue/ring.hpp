// A bounded single-producer single-consumer ring of 64-byte slots in shared memory.
//
// Theory of operation: slot i of lap k is ready when its sequence number is k * capacity + i + 1, so the
// consumer learns of a message by reading the very line that holds it: one line transfer, no shared
// head. The consumer publishes its tail on a line of its own, which the producer reads only when its
// last known tail says "full". A message that finds the ring full is counted (`overflow`); the reader
// of the counter rescans the status table (queue/status.hpp), so the event itself is not lost.
//
// Both ends keep their position in private memory (RingProducer, RingConsumer): whatever the other
// side scribbles into the shared part can spoil messages, but never address memory outside the ring.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

namespace teal {

struct RingSlot {
    std::atomic<std::uint32_t> sequence;  // position + 1 once the message is complete
    std::uint8_t payload[60];
};
static_assert(sizeof(RingSlot) == 64 && std::atomic<std::uint32_t>::is_always_lock_free);

inline constexpr std::uint32_t ring_magic = 0x474e5254;  // "TRNG"

struct RingHeader {
    std::uint32_t magic;     // ring_magic
    std::uint32_t capacity;  // slots, a power of two
    std::uint8_t pad0[56];
    alignas(64) std::atomic<std::uint32_t> tail;      // consumer's position; written by the consumer
    std::uint8_t pad1[60];
    alignas(64) std::atomic<std::uint64_t> overflow;  // messages that found the ring full; written by the producer
    std::uint8_t pad2[56];
};
static_assert(sizeof(RingHeader) == 192);

inline constexpr std::uint64_t ring_bytes(std::uint32_t capacity) noexcept {
    return sizeof(RingHeader) + std::uint64_t{capacity} * sizeof(RingSlot);
}

inline RingSlot* ring_slots(RingHeader* header) noexcept { return reinterpret_cast<RingSlot*>(header + 1); }

// Formats zeroed memory as an empty ring. `capacity` is a power of two (checked by the caller).
inline void ring_format(RingHeader* header, std::uint32_t capacity) noexcept {
    header->magic = ring_magic;
    header->capacity = capacity;
    header->tail.store(0, std::memory_order_relaxed);
    header->overflow.store(0, std::memory_order_relaxed);
}

class RingProducer {
public:
    RingProducer() = default;
    RingProducer(RingHeader* header, std::uint32_t capacity, std::uint32_t position = 0) noexcept
        : header_(header), slots_(ring_slots(header)), mask_(capacity - 1), head_(position), known_tail_(position) {}

    // Copies 60 bytes into the next slot; false (and counted) when the ring is full.
    bool push(const void* payload) noexcept {
        if (!fill(payload)) return false;
        publish();
        return true;
    }

    // A batch: fill() any number of messages, then publish() them with one pass of release stores.
    bool fill(const void* payload) noexcept {
        if (head_ - known_tail_ > mask_) {
            // SYNC: acquire pairs with the release store in RingConsumer::retire(): the consumer has
            // finished reading the slots up to tail before we overwrite them.
            known_tail_ = header_->tail.load(std::memory_order_acquire);
            if (head_ - known_tail_ > mask_) {
                header_->overflow.fetch_add(1, std::memory_order_relaxed);
                return false;
            }
        }
        std::memcpy(slots_[head_ & mask_].payload, payload, sizeof RingSlot::payload);
        ++head_;
        return true;
    }

    void publish() noexcept {
        // SYNC: release pairs with the acquire in RingConsumer::peek(). In order, so that the consumer
        // never sees a later message before an earlier one.
        for (; published_ != head_; ++published_)
            slots_[published_ & mask_].sequence.store(published_ + 1, std::memory_order_release);
    }

    [[nodiscard]] std::uint32_t position() const noexcept { return head_; }
    [[nodiscard]] std::uint64_t overflow() const noexcept { return header_->overflow.load(std::memory_order_relaxed); }

private:
    RingHeader* header_ = nullptr;
    RingSlot* slots_ = nullptr;
    std::uint32_t mask_ = 0;
    std::uint32_t head_ = 0;
    std::uint32_t known_tail_ = 0;
    std::uint32_t published_ = head_;
};

class RingConsumer {
public:
    RingConsumer() = default;
    RingConsumer(RingHeader* header, std::uint32_t capacity, std::uint32_t position = 0) noexcept
        : header_(header), slots_(ring_slots(header)), mask_(capacity - 1), position_(position) {}

    // The next message's payload, or nullptr. Copy it out (hostile producers may rewrite it) and retire().
    [[nodiscard]] const std::uint8_t* peek() const noexcept {
        const RingSlot& slot = slots_[position_ & mask_];
        // SYNC: acquire pairs with the release in RingProducer::publish().
        return slot.sequence.load(std::memory_order_acquire) == position_ + 1 ? slot.payload : nullptr;
    }

    // How many messages there are to take.
    [[nodiscard]] std::uint32_t waiting() const noexcept {
        std::uint32_t count = 0;
        // SYNC: acquire pairs with the release in RingProducer::publish().
        while (count <= mask_ && slots_[(position_ + count) & mask_].sequence.load(std::memory_order_acquire) == position_ + count + 1) ++count;
        return count;
    }

    void retire() noexcept {
        ++position_;
        // SYNC: release pairs with the acquire in RingProducer::fill().
        header_->tail.store(position_, std::memory_order_release);
    }

    bool pop(void* payload) noexcept {
        const std::uint8_t* message = peek();
        if (message == nullptr) return false;
        std::memcpy(payload, message, sizeof RingSlot::payload);
        retire();
        return true;
    }

    [[nodiscard]] std::uint32_t position() const noexcept { return position_; }
    [[nodiscard]] const std::atomic<std::uint32_t>* next_line() const noexcept { return &slots_[position_ & mask_].sequence; }

private:
    RingHeader* header_ = nullptr;
    RingSlot* slots_ = nullptr;
    std::uint32_t mask_ = 0;
    std::uint32_t position_ = 0;
};

}  // namespace teal
