// The simulator, for teal.sim.
#include "sim/sim.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "base/error.hpp"
#include "bindings/bindings.hpp"

namespace teal {
namespace {

void bind_load(nb::module_& m) {
    nb::enum_<Spread>(m, "Spread").value("fixed", Spread::fixed).value("exponential", Spread::exponential).value("lognormal", Spread::lognormal);
    nb::class_<SimType>(m, "SimType")
        .def(nb::init<>())
        .def_rw("name", &SimType::name)
        .def_rw("share", &SimType::share)
        .def_rw("spread", &SimType::spread)
        .def_rw("mean_ns", &SimType::mean_ns)
        .def_rw("sigma", &SimType::sigma)
        .def_rw("sessions", &SimType::sessions)
        .def_rw("priority", &SimType::priority)
        .def_rw("deadline_ns", &SimType::deadline_ns)
        .def_rw("preemptible", &SimType::preemptible)
        .def_rw("yields", &SimType::yields);
    nb::class_<SimFaults>(m, "SimFaults")
        .def(nb::init<>())
        .def_static("all", &SimFaults::all)
        .def_rw("agent_dies", &SimFaults::agent_dies)
        .def_rw("agent_freezes", &SimFaults::agent_freezes)
        .def_rw("agent_slow", &SimFaults::agent_slow)
        .def_rw("link_slow", &SimFaults::link_slow)
        .def_rw("upgrades", &SimFaults::upgrades)
        .def_rw("worker_dies", &SimFaults::worker_dies)
        .def_rw("overflows", &SimFaults::overflows)
        .def_rw("garbles", &SimFaults::garbles)
        .def_rw("restates", &SimFaults::restates)
        .def_rw("priorities", &SimFaults::priorities)
        .def_rw("cancels", &SimFaults::cancels)
        .def_rw("lost_wakeups", &SimFaults::lost_wakeups);
}

void replay(SimSpec& spec, const nb::bytes& at_ns, const nb::bytes& types, const nb::bytes& service_ns) {
    const std::size_t count = types.size() / sizeof(std::uint32_t);
    if (types.size() % sizeof(std::uint32_t) != 0 || at_ns.size() != count * sizeof(std::uint64_t) || service_ns.size() != at_ns.size())
        throw Error(Code::invalid_argument, "trace: expected a time, a type and a service time for each request");
    std::vector<SimArrival> trace(count);
    for (std::size_t i = 0; i < count; ++i) {
        std::memcpy(&trace[i].at_ns, static_cast<const char*>(at_ns.data()) + i * sizeof(std::uint64_t), sizeof(std::uint64_t));
        std::memcpy(&trace[i].type, static_cast<const char*>(types.data()) + i * sizeof(std::uint32_t), sizeof(std::uint32_t));
        std::memcpy(&trace[i].service_ns, static_cast<const char*>(service_ns.data()) + i * sizeof(std::uint64_t), sizeof(std::uint64_t));
    }
    spec.load.trace = std::move(trace);
}

void bind_spec(nb::module_& m) {
    nb::enum_<SimBug>(m, "SimBug", "What can be broken on purpose, to see that it is found: core/sim/sim.hpp.")
        .value("none", SimBug::none)
        .value("twice", SimBug::twice)
        .value("ended", SimBug::ended)
        .value("elsewhere", SimBug::elsewhere)
        .value("lost", SimBug::lost)
        .value("unheard", SimBug::unheard)
        .value("kept", SimBug::kept)
        .value("both", SimBug::both)
        .value("neither", SimBug::neither)
        .value("forgotten", SimBug::forgotten)
        .value("unended", SimBug::unended);
    nb::class_<SimSpec>(m, "SimSpec")
        .def(nb::init<>())
        .def_static("any_run", &any_run, nb::arg("seed"), nb::arg("agents") = 1, "A short run of anything, by its seed.")
        .def_rw("workers", &SimSpec::workers)
        .def_rw("agents", &SimSpec::agents)
        .def_rw("records", &SimSpec::records)
        .def_rw("ring", &SimSpec::ring)
        .def_rw("seed", &SimSpec::seed)
        .def_rw("faults", &SimSpec::faults)
        .def_rw("link_ns", &SimSpec::link_ns)
        .def_rw("agent_step_ns", &SimSpec::agent_step_ns)
        .def_rw("agent_event_ns", &SimSpec::agent_event_ns)
        .def_rw("worker_ns", &SimSpec::worker_ns)
        .def_rw("preempt_ns", &SimSpec::preempt_ns)
        .def_rw("poll_ns", &SimSpec::poll_ns)
        .def_rw("watchdog_ns", &SimSpec::watchdog_ns)
        .def_rw("max_wait_ns", &SimSpec::max_wait_ns)
        .def_rw("quantum_ns", &SimSpec::quantum_ns)
        .def_rw("restart_ns", &SimSpec::restart_ns)
        .def_rw("bug", &SimSpec::bug)
        .def_prop_rw("types", [](const SimSpec& spec) { return spec.load.types; }, [](SimSpec& spec, std::vector<SimType> types) { spec.load.types = std::move(types); })
        .def_prop_rw("load", [](const SimSpec& spec) { return spec.load.load; }, [](SimSpec& spec, double load) { spec.load.load = load; })
        .def_prop_rw("requests", [](const SimSpec& spec) { return spec.load.requests; }, [](SimSpec& spec, std::uint64_t requests) { spec.load.requests = requests; })
        .def("replay", &replay, nb::arg("at_ns"), nb::arg("types"), nb::arg("service_ns"),
             "These requests, in this order, instead of `load` and `requests`: uint64, uint32 and uint64 each, as bytes.");
}

void bind_result(nb::module_& m) {
    nb::class_<SimTypeResult>(m, "SimTypeResult")
        .def_ro("name", &SimTypeResult::name)
        .def_ro("arrived", &SimTypeResult::arrived)
        .def_ro("done", &SimTypeResult::done)
        .def_ro("cancelled", &SimTypeResult::cancelled)
        .def_ro("expired", &SimTypeResult::expired)
        .def_ro("turned_away", &SimTypeResult::turned_away)
        .def_ro("missed", &SimTypeResult::missed)
        .def_ro("busy_ns", &SimTypeResult::busy_ns)
        .def("latencies", [](const SimTypeResult& type) { return nb::bytes(type.latency_ns.data(), type.latency_ns.size() * sizeof(std::uint64_t)); }, "uint64 nanoseconds, ascending.");
    nb::class_<SimResult>(m, "SimResult")
        .def_ro("types", &SimResult::types)
        .def_ro("arrived", &SimResult::arrived)
        .def_ro("done", &SimResult::done)
        .def_ro("cancelled", &SimResult::cancelled)
        .def_ro("expired", &SimResult::expired)
        .def_ro("turned_away", &SimResult::turned_away)
        .def_ro("reruns", &SimResult::reruns)
        .def_ro("preempted", &SimResult::preempted)
        .def_ro("yielded", &SimResult::yielded)
        .def_ro("events", &SimResult::events)
        .def_ro("messages", &SimResult::messages)
        .def_ro("decisions", &SimResult::decisions)
        .def_ro("moved", &SimResult::moved)
        .def_ro("refused", &SimResult::refused)
        .def_ro("rescans", &SimResult::rescans)
        .def_ro("fallbacks", &SimResult::fallbacks)
        .def_ro("upgrades", &SimResult::upgrades)
        .def_ro("restarts", &SimResult::restarts)
        .def_ro("longest_gap_ns", &SimResult::longest_gap_ns)
        .def_ro("local", &SimResult::local)
        .def_ro("taken_over", &SimResult::taken_over)
        .def_ro("virtual_ns", &SimResult::virtual_ns)
        .def_ro("busy_ns", &SimResult::busy_ns)
        .def_ro("policy_error", &SimResult::policy_error)
        .def_ro("fingerprint", &SimResult::fingerprint)
        .def_ro("violations", &SimResult::violations)
        .def_ro("breaches", &SimResult::breaches)
        .def_ro("breached", &SimResult::breached)
        .def_ro("met", &SimResult::met, "How often each fault happened.");
}

}  // namespace

void bind_sim(nb::module_& m) {
    bind_load(m);
    bind_spec(m);
    bind_result(m);
    m.def("simulate",
          [](const SimSpec& spec, nb::callable make, nb::object progress) {
              const MakePolicy maker = [&make] {
                  const nb::gil_scoped_acquire gil;
                  return nb::cast<std::shared_ptr<Policy>>(make());
              };
              const SimProgress said = [&progress](std::uint64_t arrived) {  // Ctrl-C is heard here, too
                  const nb::gil_scoped_acquire gil;
                  if (PyErr_CheckSignals() != 0) throw nb::python_error();
                  if (!progress.is_none()) progress(arrived);
              };
              const nb::gil_scoped_release released;
              return simulate(spec, maker, said);
          },
          nb::arg("spec"), nb::arg("make"), nb::arg("progress").none() = nb::none(),
          nb::sig("def simulate(spec: SimSpec, make: Callable[[], Policy], progress: Callable[[int], None] | None = None) -> SimResult"),
          "Plays it. `make` gives the policy of each agent that comes; `progress` hears now and then how many requests have come.");
}

}  // namespace teal
