// A seat for tests: its workers are there, it is active, and its clock stands still unless told.
#pragma once

#include <memory>

#include "agents/host_seat.hpp"

namespace teal::tests {

inline std::shared_ptr<HostSeat> made_seat(std::uint64_t& now, std::uint32_t workers, std::uint32_t ring = 64, std::uint32_t records = 32) {
    SeatSpec spec;
    spec.workers = workers;
    spec.records = records;
    spec.ring_capacity = ring;
    std::shared_ptr<HostSeat> host = HostSeat::create(spec);
    host->set_clock(SeatClock(&now));
    for (std::uint32_t i = 0; i < workers; ++i) host->worker_came(i);
    host->activate();
    host->flush(true);
    return host;
}

}  // namespace teal::tests
