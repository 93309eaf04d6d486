// What a host shows of a seat: counters, histograms, and what the agent says of itself (for people; used for nothing).
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include "agents/host_seat.hpp"
#include "bindings/bindings.hpp"
#include "host/sweeper.hpp"

namespace teal {
namespace {

constexpr const char* outcome_names[outcome_count] = {
    "complete", "aborted", "already_running", "target_stale", "not_found", "not_runnable", "agent_stale", "worker_offline", "worker_unavailable",
    "invalid_flags", "invalid_target", "not_permitted", "invalid_worker", "no_agent", "unsupported_version", "poisoned", "timeout",
};
constexpr const char* stage_names[seat_stages] = {"message", "decision", "commit", "start", "run", "done"};

std::uint64_t read(const std::atomic<std::uint64_t>& counter) noexcept { return counter.load(std::memory_order_relaxed); }

// Refusals that no correct agent meets.
std::uint64_t bugs(const SeatNumbers& numbers) noexcept {
    std::uint64_t sum = read(numbers.forged);
    for (std::size_t i = 0; i < outcome_count; ++i)
        if (!is_expected(static_cast<Outcome>(i))) sum += read(numbers.outcomes[i]);
    return sum;
}

nb::dict desk_dict(const DeskHeader& desk) {
    nb::dict d;
    d["events"] = read(desk.events);
    d["decisions"] = read(desk.decisions);
    d["steps"] = read(desk.steps);
    d["runnable"] = read(desk.runnable);
    d["busy_ns"] = read(desk.busy_ns);
    d["errors"] = read(desk.errors);
    d["rescans"] = read(desk.rescans);
    d["sleeps"] = read(desk.sleeps);
    d["spins"] = read(desk.spins);
    d["rings"] = read(desk.rings);
    d["rings_spared"] = read(desk.rings_spared);
    d["batches"] = read(desk.batches);
    d["batched"] = read(desk.batched);
    d["groups"] = read(desk.groups);
    d["preempts"] = read(desk.preempts);
    return d;
}

nb::dict seat_numbers(Sweeper& sweeper, std::uint32_t index, std::uint32_t incarnation) {
    const std::shared_ptr<HostSeat> seat = sweeper.seat(index, incarnation);
    const Sweeper::SeatFigures figures = sweeper.seat_figures(index, incarnation);
    const SeatNumbers& numbers = seat->numbers();
    nb::dict d, refused, stages;
    for (std::size_t i = 1; i < outcome_count; ++i) refused[outcome_names[i]] = read(numbers.outcomes[i]);
    refused["forged"] = read(numbers.forged);
    for (std::size_t i = 0; i < seat_stages; ++i) stages[stage_names[i]] = histogram_list(numbers.stages[i]);
    d["incarnation"] = incarnation;
    d["active"] = figures.active;
    d["completed"] = read(numbers.outcomes[0]);
    d["refused"] = refused;
    d["bugs"] = bugs(numbers);
    d["messages"] = read(numbers.messages);
    d["lost"] = read(numbers.lost);
    d["hits"] = read(numbers.hits);
    d["misses"] = read(numbers.misses);
    d["groups"] = read(numbers.groups);
    d["groups_refused"] = read(numbers.groups_refused);
    d["bells"] = read(numbers.bells);
    d["local"] = read(numbers.local);
    d["preempted"] = read(numbers.preempted);
    d["yielded"] = read(numbers.yielded);
    d["asked"] = read(numbers.asked);
    d["asks_in_vain"] = read(numbers.asks_in_vain);
    d["asks_refused"] = read(numbers.asks_refused);
    d["unread"] = figures.ring_waiting;
    d["offered"] = figures.offered;
    d["oldest_wait_ms"] = static_cast<double>(figures.oldest_wait_ns) / 1e6;
    d["heart_ms"] = static_cast<double>(figures.beat_age_ns) / 1e6;
    d["stages"] = stages;
    d["age"] = histogram_list(numbers.age);
    d["desk"] = desk_dict(seat->map().desk_header());
    return d;
}

nb::tuple seat_pulse(Sweeper& sweeper, std::uint32_t index, std::uint32_t incarnation) {
    const std::shared_ptr<HostSeat> seat = sweeper.seat(index, incarnation);
    const DeskHeader& desk = seat->map().desk_header();
    return nb::make_tuple(bugs(seat->numbers()), read(desk.busy_ns), read(desk.events));
}

}  // namespace

void bind_seat_numbers(nb::module_& m) {
    m.def("seat_numbers", &seat_numbers, nb::arg("sweeper"), nb::arg("seat"), nb::arg("incarnation"),
          nb::sig("def seat_numbers(sweeper: Sweeper, seat: int, incarnation: int) -> dict[str, typing.Any]"),
          "Counters and histograms of one incarnation; `desk`: what its agent says. Raises NotFound.");
    m.def("seat_pulse", &seat_pulse, nb::arg("sweeper"), nb::arg("seat"), nb::arg("incarnation"),
          nb::sig("def seat_pulse(sweeper: Sweeper, seat: int, incarnation: int) -> tuple[int, int, int]"),
          "Refusals that no correct agent meets; ns that the agent says it was busy, and events that it says it saw. Raises NotFound.");
}

}  // namespace teal
