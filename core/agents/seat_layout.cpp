#include "agents/seat_layout.hpp"

#include <bit>
#include <string>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace teal {
namespace {

void require(const char* what, std::uint32_t value, std::uint32_t most) {
    if (value == 0 || value > most)
        throw Error(Code::invalid_argument, std::string("a seat's ") + what + ": " + std::to_string(value) + ", expected 1 to " + std::to_string(most));
}

}  // namespace

SeatLayout seat_layout(std::uint32_t workers, std::uint32_t records, std::uint32_t ring_capacity) {
    require("workers", workers, most_seat_workers);
    require("records", records, most_seat_records);
    require("ring capacity", ring_capacity, most_seat_ring);
    if (!std::has_single_bit(ring_capacity))
        throw Error(Code::invalid_argument, "a seat's ring capacity: " + std::to_string(ring_capacity) + ", expected a power of two");
    SeatLayout layout;
    layout.workers = workers;
    layout.records = records;
    layout.ring_capacity = ring_capacity;
    // None of it can overflow: the limits above keep each term below 2^30.
    std::uint64_t at = page_bytes + sizeof(ViewHeader);
    const auto place = [&at](std::uint64_t& offset, std::uint64_t count, std::uint64_t size) {
        offset = round_up(at, 64);
        at = offset + count * size;
    };
    place(layout.ring, ring_capacity, sizeof(RingSlot));
    place(layout.request_words, records, sizeof(StatusWord));
    place(layout.worker_words, workers, sizeof(StatusWord));
    place(layout.seat_workers, workers, sizeof(SeatWorker));
    place(layout.times, records, sizeof(RequestTimes));
    place(layout.numbers, 1, sizeof(SeatNumbers));
    layout.view_size = round_up(at, page_bytes);
    at = page_bytes + sizeof(DeskHeader);
    place(layout.desks, workers, sizeof(WorkerDesk));
    layout.desk_size = round_up(at, page_bytes);
    return layout;
}

}  // namespace teal
