// The seam of agents' seats: the host's and the workers' side, and the loop of an agent's process.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "agents/agent.hpp"
#include "agents/policies/make.hpp"
#include "agents/rounds.hpp"
#include "agents/trace.hpp"
#include "bindings/bindings.hpp"
#include "cpu/clock.hpp"
#include "host/sweeper.hpp"
#include "host/worker.hpp"
#include "link/link.hpp"

namespace teal {
namespace {

using released = nb::call_guard<nb::gil_scoped_release>;

// Null for plain memory, which has nothing to emulate.
std::shared_ptr<Link> link_of(const std::string& text) {
    const LinkSpec spec = LinkSpec::parse(text);
    return spec.is_plain_shm() ? nullptr : std::make_shared<Link>(spec);
}

nb::tuple attach_seat(Sweeper& sweeper, std::uint32_t seat, const std::string& link, std::uint32_t ring) {
    const Sweeper::Seated seated = sweeper.attach_seat(seat, ring, link_of(link), static_cast<std::uint32_t>(LinkSpec::parse(link).kind));
    return nb::make_tuple(seated.incarnation, seated.view_fd, seated.desk_fd, seated.agent_view_fd);
}

nb::list take_seat_events(Sweeper& sweeper) {
    nb::list list;
    constexpr const char* kinds[] = {"put off", "frozen", "beats"};
    for (const Sweeper::SeatEvent& event : sweeper.take_seat_events())
        list.append(nb::make_tuple(event.seat, event.incarnation, kinds[static_cast<std::size_t>(event.kind)], event.reason, event.at_ns));
    return list;
}

std::shared_ptr<AgentLoop> make_loop(int view_fd, int desk_fd, std::shared_ptr<Policy> policy, const std::string& link, std::uint64_t idle_ns) {
    std::shared_ptr<AgentSeat> seat = AgentSeat::attach(view_fd, desk_fd);
    seat->set_link(link_of(link));
    AgentSpec spec;
    spec.idle_ns = idle_ns;
    return std::make_shared<AgentLoop>(std::move(seat), std::move(policy), spec);
}

nb::dict loop_numbers(AgentLoop& loop) {
    const AgentFigures& f = loop.figures();
    nb::dict d;
    d["events"] = f.events;
    d["decisions"] = f.decisions;
    d["steps"] = f.steps;
    d["rescans"] = f.rescans;
    d["sleeps"] = f.sleeps;
    d["moved"] = f.moved;
    d["preempts"] = f.preempts;
    d["busy_ns"] = f.busy_ns;
    d["errors"] = f.errors;
    d["groups"] = f.groups;
    d["spins"] = f.spins;
    const AgentSeat::Rings& rings = loop.seat().rings();
    d["rings"] = rings.rung;
    d["rings_spared"] = rings.spared;
    d["batches"] = rings.batches;
    return d;
}

std::uint64_t until(std::uint64_t slice_ns) { return static_cast<std::uint64_t>(monotonic_ns()) + slice_ns; }

// Methods of classes that other files bind.
template <class Class, class Function, class... More>
void method(const char* name, Function&& function, const More&... more) {
    const nb::handle type = nb::type<Class>();
    nb::cpp_function_def(std::forward<Function>(function), nb::scope(type), nb::name(name), nb::is_method(), more...);
}

void bind_host_side() {
    method<Sweeper>("attach_seat", &attach_seat, nb::arg("seat"), nb::arg("link"), nb::arg("ring") = 8192,
                    nb::sig("def attach_seat(self, seat: int, link: str, ring: int = 8192) -> tuple[int, int, int, int]"),
                    "Incarnation, and descriptors of its view and its desk for workers, which stay ours, and of its view for the agent, which do not.");
    method<Sweeper>("activate_seat", &Sweeper::activate_seat, nb::arg("seat"), nb::arg("incarnation"), released());
    method<Sweeper>("deactivate_seat", &Sweeper::deactivate_seat, nb::arg("seat"), nb::arg("reason"), released(), "False: nobody decided there.");
    method<Sweeper>("detach_seat", &Sweeper::detach_seat, nb::arg("seat"), nb::arg("incarnation"), released());
    method<Sweeper>("active_seat", &Sweeper::active_seat, nb::arg("seat"), "Incarnation whose agent decides; 0: none does.");
    method<Sweeper>("set_seat_limits", &Sweeper::set_seat_limits, nb::arg("seat"), nb::arg("beat_ns"), nb::arg("wait_ns"), nb::arg("overtaken_ns") = 0);
    method<Sweeper>("set_local_fast_path", &Sweeper::set_local_fast_path, nb::arg("seat"), nb::arg("on"), released());
    method<Sweeper>("wake_agent", &Sweeper::wake_agent, nb::arg("seat"), nb::arg("settings"), released());
    method<Sweeper>("take_seat_events", &take_seat_events, nb::sig("def take_seat_events(self) -> list[tuple[int, int, str, str, int]]"),
                    "(seat, incarnation, kind, reason, CLOCK_MONOTONIC ns) since the last time. kind: an agent was put off its seat, it was as its heart stood still "
                    "(frozen), or the heart of such a one beats again.");
    method<Sweeper>("seat_events_fd", &Sweeper::seat_events_fd, "Readable once there are events: an eventfd, ours to close.");
    method<Sweeper>("call_agent", &Sweeper::call_agent, nb::arg("seat"), nb::arg("incarnation"), released(),
                    "The agent of that incarnation is to look at its control socket, also when it sleeps.");
    method<Sweeper>("seat_model", &Sweeper::seat_model, nb::arg("model"), nb::arg("seat"), released(), "Who decides about the requests of a name.");
    method<Sweeper>("seat_worker", &Sweeper::seat_worker, nb::arg("worker"), nb::arg("seat"), released(), "Who decides for a worker.");
    method<Sweeper>("deal_seats", &Sweeper::deal_seats, nb::arg("seats"), released(),
                    "These seats, a bit each, share all requests from now on; 0: each name has its own.");
    method<Sweeper>("set_trace", [](Sweeper& s, std::optional<std::shared_ptr<Trace>> trace) { s.set_trace(trace.value_or(nullptr)); },
                    nb::arg("trace").none(), nb::sig("def set_trace(self, trace: Trace | None) -> None"));
    method<Worker>("add_seat", [](Worker& w, int view_fd, int desk_fd, const std::string& link) { w.add_seat(view_fd, desk_fd, link_of(link)); },
                   nb::arg("view_fd"), nb::arg("desk_fd"), nb::arg("link"), "Takes the descriptors.");
    method<Worker>("decide_inline", &Worker::decide_inline, nb::arg("policy"), "The policy is called in this worker, the pool's only one, from now on.");
    method<Worker>("drop_seat", &Worker::drop_seat, nb::arg("seat"), nb::arg("incarnation"));
    method<Worker>("add_trace", [](Worker& w, int fd) { w.set_trace(Trace::attach(fd)); }, nb::arg("fd"), "Takes the descriptor.");
    method<Worker>("drop_trace", [](Worker& w) { w.set_trace(nullptr); });
}

}  // namespace

void bind_seat(nb::module_& m) {
    bind_host_side();
    m.attr("MAX_SEATS") = max_seats;
    m.attr("SHORTEST_QUANTUM_NS") = std::uint64_t{shortest_slice_us} * 1000;
    nb::class_<AgentLoop>(m, "AgentLoop", "The mechanism around a policy, at one seat: core/agents/agent.hpp.")
        .def(nb::new_(&make_loop), nb::arg("view_fd"), nb::arg("desk_fd"), nb::arg("policy"), nb::arg("link") = "shm", nb::arg("idle_ns") = 50'000)
        .def("step", &AgentLoop::step, nb::arg("now"), "One look at CLOCK_MONOTONIC now; how much there was to do.")
        .def("leave", [](AgentLoop& loop) { loop.leave(); }, "Takes back what is staged, and says that it goes.")
        .def("set_idle", &AgentLoop::set_idle, nb::arg("ns"))
        .def("set", [](AgentLoop& loop, const std::string& name, const std::string& value) { return loop.set(name, value); }, nb::arg("name"), nb::arg("value"),
             "poll or coalesce; False: it has no setting of that name.")
        .def("settings", &AgentLoop::settings, nb::sig("def settings(self) -> list[tuple[str, str]]"))
        .def("numbers", &loop_numbers, nb::sig("def numbers(self) -> dict[str, int]"))
        .def("dump", &AgentLoop::dump);
    nb::class_<Rounds>(m, "Rounds", "Several agents' loops in one thread.")
        .def(nb::init<>())
        .def("add", &Rounds::add, nb::arg("loop"))
        .def("remove", [](Rounds& rounds, const AgentLoop& loop) { rounds.remove(loop); }, nb::arg("loop"))
        .def("run", [](Rounds& rounds, std::uint64_t slice_ns) { rounds.run(until(slice_ns)); }, nb::arg("slice_ns"), released(), "For so long.");
}

}  // namespace teal
