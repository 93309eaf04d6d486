// The seam of `teal bench wave`: loads that do not wait for their answers, and what the pieces of a seat cost.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agents/agent.hpp"
#include "base/error.hpp"
#include "bench/open_loop.hpp"
#include "bench/seat_costs.hpp"
#include "bindings/bindings.hpp"
#include "bindings/slot.hpp"

namespace teal {
namespace {

template <typename T> using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::bytes bytes_of(const std::vector<std::uint64_t>& values) { return nb::bytes(values.data(), values.size() * sizeof(std::uint64_t)); }

std::vector<OpenKind> kinds_of(const nb::list& kinds) {
    std::vector<OpenKind> found;
    for (const nb::handle each : kinds) {
        const auto pair = nb::cast<nb::tuple>(each);
        OpenKind kind;
        kind.writes = nb::cast<bool>(pair[1]);
        for (const nb::handle handle : nb::cast<nb::list>(pair[0])) {
            const Slot& slot = *nb::inst_ptr<Slot>(handle);
            kind.slots.push_back({slot.session, slot.slot, slot.model, slot.version});
        }
        found.push_back(std::move(kind));
    }
    return found;
}

std::vector<OpenArrival> arrivals_of(const Column<std::uint64_t>& at_ns, const Column<std::uint32_t>& kind, const Column<std::int64_t>& value) {
    const std::size_t n = at_ns.shape(0);
    if (kind.shape(0) != n || value.shape(0) != n) throw Error(Code::invalid_argument, "open loop: columns of different lengths");
    std::vector<OpenArrival> arrivals(n);
    for (std::size_t i = 0; i < n; ++i) arrivals[i] = {at_ns.data()[i], kind.data()[i], value.data()[i]};
    return arrivals;
}

nb::dict run(const nb::list& kinds, const Column<std::uint64_t>& at_ns, const Column<std::uint32_t>& kind, const Column<std::int64_t>& value,
             std::uint32_t most_out, std::uint64_t patience_ns, std::uint64_t nap_ns, const std::optional<std::shared_ptr<AgentLoop>>& agent) {
    const std::shared_ptr<AgentLoop> beside = agent.value_or(nullptr);
    OpenLoop loop(kinds_of(kinds), arrivals_of(at_ns, kind, value), most_out);
    {
        const nb::gil_scoped_release release;
        const auto step = [&beside] { beside->step(static_cast<std::uint64_t>(monotonic_ns())); };
        run_open_loop(loop, beside != nullptr ? std::function<void()>(step) : nullptr, patience_ns, nap_ns);
    }
    const OpenResult& result = loop.result();
    nb::dict found;
    found["latency_ns"] = bytes_of(result.latency_ns);
    found["ended_ns"] = bytes_of(result.ended_ns);
    found["started_ns"] = result.started_ns;
    found["most_late_ns"] = result.most_late_ns;
    found["failed"] = result.failed;
    found["failure"] = result.failure;
    return found;
}

nb::dict seat_costs(std::uint32_t n, int host_core, int agent_core) {
    SeatCosts costs;
    {
        const nb::gil_scoped_release release;
        costs = measure_seat(n, {host_core, agent_core});
    }
    nb::dict found;
    found["clock"] = costs.clock;
    found["line"] = costs.line;
    found["cold"] = costs.cold;
    found["prefetched"] = costs.prefetched;
    found["commit"] = costs.commit;
    found["messages"] = costs.messages;
    found["roundtrip"] = costs.roundtrip;
    return found;
}

nb::tuple events(std::shared_ptr<Policy> policy, double seconds, int host_core, int agent_core) {
    EventRate rate;
    {
        const nb::gil_scoped_release release;  // as an agent's process runs it
        rate = measure_events(std::move(policy), seconds, {host_core, agent_core});
    }
    return nb::make_tuple(rate.events, rate.decisions, rate.seconds);
}

}  // namespace

void bind_wave(nb::module_& m) {
    m.def("open_loop", &run, nb::arg("kinds"), nb::arg("at_ns"), nb::arg("kind"), nb::arg("value"), nb::arg("most_out"), nb::arg("patience_ns"),
          nb::arg("nap_ns") = 0, nb::arg("agent").none() = nb::none(),
          nb::sig("def open_loop(kinds: list[tuple[list[Slot], bool]], at_ns: NDArray[typing.Any], kind: NDArray[typing.Any], value: NDArray[typing.Any], "
                  "most_out: int, patience_ns: int, nap_ns: int = 0, agent: AgentLoop | None = None) -> dict[str, typing.Any]"),
          "Sends requests when they are due (ns from the start, uint64), of a kind (uint32) and with a value (int64) each, whatever became of those before. "
          "A kind: its slots, and whether the value is written into input 0. Returns latency_ns and ended_ns (uint64 as bytes; all ones: failed), "
          "started_ns (CLOCK_MONOTONIC), most_late_ns, failed, failure. nap_ns: it sleeps so long between its looks; 0: never. "
          "agent: its loop does a step after each look. Raises InvalidArgument; PeerDied when nothing ends for patience_ns.");
    m.def("measure_seat", &seat_costs, nb::arg("n"), nb::arg("host_core"), nb::arg("agent_core"),
          nb::sig("def measure_seat(n: int, host_core: int, agent_core: int) -> dict[str, list[int]]"),
          "Nanoseconds of n tries of each piece of a seat (core/bench/seat_costs.hpp). Raises InvalidArgument, PeerDied.");
    m.def("measure_events", &events, nb::arg("policy"), nb::arg("seconds"), nb::arg("host_core"), nb::arg("agent_core"),
          nb::sig("def measure_events(policy: Policy, seconds: float, host_core: int, agent_core: int) -> tuple[int, int, float]"),
          "Events a policy was told of, decisions it made, and the seconds that took. Raises InvalidArgument.");
}

}  // namespace teal
