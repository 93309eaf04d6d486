// The host's seam: Sweeper and the pool region behind it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <string>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "host/bpf_session.hpp"
#include "host/batch.hpp"
#include "host/sweeper.hpp"

namespace teal {
namespace {

nb::dict worker_dict(const WorkerLine& line) {
    nb::dict d;
    static constexpr const char* names[] = {"absent", "starting", "idle", "leading", "running", "idle", "idle", "running"};
    const std::uint32_t state = line.state.load(std::memory_order_relaxed);
    const bool running = line.run_started.load(std::memory_order_relaxed) != 0;
    d["state"] = running ? "running" : names[state < std::size(names) ? state : 0];
    d["pid"] = line.pid.load(std::memory_order_relaxed);
    d["requests"] = line.requests.load(std::memory_order_relaxed);
    d["sleeps"] = line.sleeps.load(std::memory_order_relaxed);
    return d;
}

nb::dict version_dict(const Pool& pool, std::uint32_t index) {
    const VersionLine& v = pool.memory().versions[index];
    nb::dict d;
    d["requests"] = v.requests.load(std::memory_order_relaxed);
    d["failed"] = v.failed.load(std::memory_order_relaxed);
    d["cancelled"] = v.cancelled.load(std::memory_order_relaxed);
    d["expired"] = v.expired.load(std::memory_order_relaxed);
    d["copies_in"] = v.copies_in.load(std::memory_order_relaxed);
    d["copies_out"] = v.copies_out.load(std::memory_order_relaxed);
    d["bytes_copied"] = v.bytes_copied.load(std::memory_order_relaxed);
    d["bindings"] = v.bindings.load(std::memory_order_relaxed);
    d["in_flight"] = v.in_flight;
    d["cpu"] = v.paths[0].load(std::memory_order_relaxed);
    d["apk"] = v.paths[1].load(std::memory_order_relaxed);
    d["pl"] = v.paths[2].load(std::memory_order_relaxed);
    d["fallbacks"] = v.fallbacks.load(std::memory_order_relaxed);
    d["chained"] = v.chained.load(std::memory_order_relaxed);
    d["batches"] = v.batches.load(std::memory_order_relaxed);
    d["batched"] = v.batched.load(std::memory_order_relaxed);
    d["held"] = v.held.load(std::memory_order_relaxed);
    d["preemptions"] = v.preemptions.load(std::memory_order_relaxed);
    d["yields"] = v.yields.load(std::memory_order_relaxed);
    d["resumed"] = v.resumed.load(std::memory_order_relaxed);
    d["cannot_preempt"] = v.cannot_preempt.load(std::memory_order_relaxed);
    d["dropped"] = v.dropped.load(std::memory_order_relaxed);
    static constexpr const char* names[stage_count] = {"queue", "run", "copy"};
    nb::dict stages;
    for (std::size_t i = 0; i < stage_count; ++i) stages[names[i]] = histogram_list(pool.memory().histograms[index].stages[i]);
    d["stages"] = stages;
    return d;
}

nb::dict session_dict(const Pool& pool, std::uint32_t index) {
    const SessionLine& s = pool.memory().sessions[index];
    nb::dict d;
    d["in_flight"] = s.in_flight;
    d["limit"] = s.limit;
    d["requests"] = s.requests;
    d["garbage"] = s.garbage;
    return d;
}

nb::dict client_stages(Sweeper& sweeper, std::uint32_t session) {
    nb::dict by_model;
    const std::span<const ClientStages> stages = sweeper.client_stages(session);
    for (std::size_t i = 0; i < stages.size(); ++i) {
        const ClientStages& s = stages[i];
        const std::uint32_t model = s.model.load(std::memory_order_relaxed);
        if (model == 0 && i + 1 < stages.size()) continue;
        nb::dict d;
        d["requests"] = s.requests.load(std::memory_order_relaxed);
        d["copies_in"] = s.copies_in.load(std::memory_order_relaxed);
        d["bytes_in"] = s.bytes_in.load(std::memory_order_relaxed);
        d["direct"] = s.direct.load(std::memory_order_relaxed);
        d["relayed"] = s.relayed.load(std::memory_order_relaxed);
        d["copy"] = histogram_list(s.copy);
        d["wake"] = histogram_list(s.wake);
        d["total"] = histogram_list(s.total);
        by_model[nb::int_(model == 0 || i + 1 == stages.size() ? -1 : static_cast<int>(model - 1))] = d;
    }
    return by_model;
}

nb::dict bpf_stages(Sweeper& sweeper, std::uint32_t session) {
    nb::dict d;
    const BpfStages* stages = sweeper.bpf_stages(session);
    if (stages == nullptr) return d;
    d["queue"] = histogram_list(stages->queue);
    d["run"] = histogram_list(stages->run);
    return d;
}

std::shared_ptr<Sweeper> make_sweeper(std::uint64_t idle_ns) { return std::make_shared<Sweeper>(Pool::create(idle_ns)); }

using released = nb::call_guard<nb::gil_scoped_release>;

}  // namespace

void bind_host(nb::module_& m) {
    nb::class_<Sweeper>(m, "Sweeper", "The host's hold on one pool: sessions, versions, deadlines, the dead.")
        .def(nb::new_(&make_sweeper), nb::arg("idle_ns"))
        .def_prop_ro("pool_fd", [](Sweeper& s) { return s.pool().fd(); })
        .def("start", &Sweeper::start)
        .def("stop", &Sweeper::stop, released())
        .def("tick", &Sweeper::tick, released())
        .def("adopt_bpf_session", [](Sweeper& s, int fd, std::uint32_t slots, std::uint32_t limit) {
            const Sweeper::Adopted adopted = s.adopt_bpf_session(fd, slots, limit);
            return nb::make_tuple(adopted.index, adopted.epoch, adopted.fd, adopted.bytes);
        }, nb::arg("fd"), nb::arg("slots"), nb::arg("limit"), nb::sig("def adopt_bpf_session(self, fd: int, slots: int, limit: int) -> tuple[int, int, int, int]"))
        .def("limit_priority", &Sweeper::limit_priority, nb::arg("session"), nb::arg("most"))
        .def("open_session", [](Sweeper& s, std::uint32_t slots, std::uint32_t limit) {
            const Sweeper::Opened opened = s.open_session(slots, limit);
            return nb::make_tuple(opened.index, opened.epoch, opened.fd);
        }, nb::arg("slots"), nb::arg("limit"), nb::sig("def open_session(self, slots: int, limit: int) -> tuple[int, int, int]"))
        .def("grant_region", &Sweeper::grant_region, nb::arg("session"), nb::arg("count"))
        .def("close_session", [](Sweeper& s, std::uint32_t session, bool gone) { s.close_session(session, gone ? Reason::client_gone : Reason::host_stopping); },
             nb::arg("session"), nb::arg("gone"), released())
        .def("session_in_flight", &Sweeper::session_in_flight, nb::arg("session"))
        .def("free_session", &Sweeper::free_session, nb::arg("session"))
        .def("open_version", &Sweeper::open_version, nb::arg("model"), nb::arg("number"), nb::arg("flags"), nb::arg("native_op"))
        .def("version_generation", [](Sweeper& s, std::uint32_t line) { return s.pool().memory().versions[line].generation; }, nb::arg("line"))
        .def("publish_version", &Sweeper::publish_version, nb::arg("line"), nb::arg("make_current"), released())
        .def("retire_version", &Sweeper::retire_version, nb::arg("line"), released())
        .def("version_in_flight", &Sweeper::version_in_flight, nb::arg("line"))
        .def("cancel_version", &Sweeper::cancel_version, nb::arg("line"), released())
        .def("park_version", &Sweeper::park_version, nb::arg("line"), released())
        .def("unpark_version", &Sweeper::unpark_version, nb::arg("line"), released())
        .def("version_running", &Sweeper::version_running, nb::arg("line"), released())
        .def("version_waiting", &Sweeper::version_waiting, nb::arg("line"), released())
        .def("free_version", &Sweeper::free_version, nb::arg("line"))
        .def("set_version_flags", &Sweeper::set_version_flags, nb::arg("line"), nb::arg("flags"))
        .def("bpf_stages", &bpf_stages, nb::arg("session"), nb::sig("def bpf_stages(self, session: int) -> dict[str, list[tuple[int, int]]]"),
             "Of a BPF session, as workers saw it; empty for any other.")
        .def("client_stages", &client_stages, nb::arg("session"), nb::sig("def client_stages(self, session: int) -> dict[int, dict[str, typing.Any]]"),
             "By index of the model (-1: all that found no room of their own): requests, copies_in, bytes_in, and the buckets of copy, wake, total.")
        .def("bury_worker", [](Sweeper& s, std::uint32_t worker, std::uint32_t detail, bool stopping) {
            Sweeper::Buried buried{};
            {
                const nb::gil_scoped_release release;
                buried = s.bury_worker(worker, detail, stopping);
            }
            return nb::make_tuple(buried.failed, buried.again);
        }, nb::arg("worker"), nb::arg("detail"), nb::arg("stopping") = false,
             nb::sig("def bury_worker(self, worker: int, detail: int, stopping: bool = False) -> tuple[int, int]"))
        .def("end_handed_over", [](Sweeper& s, std::uint32_t record, std::uint32_t generation, std::uint32_t spill) {
            s.end_handed_over(record, generation, spill != 0, spill, spill != 0 ? Reason::none : Reason::quota);
        }, nb::arg("record"), nb::arg("generation"), nb::arg("spill"), released())
        .def("record_session", [](Sweeper& s, std::uint32_t record) {
            return record < record_count ? s.pool().memory().records[record].session : nobody;
        }, nb::arg("record"))
        .def("record_request", [](Sweeper& s, std::uint32_t record) {
            const RequestEntry entry = record < record_count ? s.pool().memory().records[record].entry : RequestEntry{};
            return nb::make_tuple(entry.slot, entry.generation);
        }, nb::arg("record"), nb::sig("def record_request(self, record: int) -> tuple[int, int]"), "Slot and generation of its request.")
        .def("is_awaited", &Sweeper::is_awaited, nb::arg("session"), nb::arg("slot"), nb::arg("generation"), released(),
             "Is a request out that waits, or waited, for this one?")
        .def("is_used_again", &Sweeper::is_used_again, nb::arg("session"), nb::arg("slot"), nb::arg("generation"),
             "Has the slot had a later request that ended?")
        .def("set_idle", &Sweeper::set_idle, nb::arg("ns"))
        .def("stop_taking", &Sweeper::stop_taking, nb::arg("stopping"), released(), "What is in the rings now is still taken; what comes later is refused.")
        .def("all_taken", &Sweeper::all_taken, released(), "Was everything taken that was in the rings when stop_taking() was called?")
        .def("active", &Sweeper::active)
        .def("queued", [](Sweeper& s) { return s.pool().waiting(); }, "In the run queue, or held for company or concurrency.")
        .def("set_batching", &Sweeper::set_batching, nb::arg("rows"), nb::arg("delay_ns"), released())
        .def("set_quantum", &Sweeper::set_quantum, nb::arg("ns"))
        .def("limit_running", &Sweeper::limit_running, nb::arg("model"), nb::arg("most"), released())
        .def("repairs", [](Sweeper& s) { return s.pool().memory().header.repairs; })
        .def("loans_fds", [](Sweeper& s) { return nb::make_tuple(s.pool().readable_fd(), s.loans()->fd()); }, nb::sig("def loans_fds(self) -> tuple[int, int]"),
             "For a worker that this pool lends: a descriptor of the pool that reads only, the caller's to close, and that of the loans, which stays ours.")
        .def("lend", &Sweeper::lend, nb::arg("worker"), nb::arg("lender"), nb::arg("its_worker"), "Workers from this one on are lent: this one by that pool, for its worker's idle time.")
        .def("bury_lent", &Sweeper::bury_lent, nb::arg("worker"), nb::arg("pid"))
        .def("wake_worker", [](Sweeper& s, std::uint32_t worker) { s.pool().wake_worker(worker); }, nb::arg("worker"))
        .def("worker", [](Sweeper& s, std::uint32_t worker) { return worker_dict(s.pool().memory().workers[worker]); }, nb::arg("worker"),
             nb::sig("def worker(self, worker: int) -> dict[str, typing.Any]"))
        .def("version", [](Sweeper& s, std::uint32_t line) { return version_dict(s.pool(), line); }, nb::arg("line"),
             nb::sig("def version(self, line: int) -> dict[str, typing.Any]"))
        .def("session", [](Sweeper& s, std::uint32_t session) { return session_dict(s.pool(), session); }, nb::arg("session"),
             nb::sig("def session(self, session: int) -> dict[str, typing.Any]"));
    m.attr("KERNEL_PURE") = static_cast<unsigned>(kernel_pure);
    m.attr("KERNEL_IDEMPOTENT") = static_cast<unsigned>(kernel_idempotent);
    m.attr("KERNEL_BATCHES") = static_cast<unsigned>(kernel_batches);
    m.attr("KERNEL_PREEMPTIBLE") = static_cast<unsigned>(kernel_preemptible);
    m.attr("KERNEL_YIELDS") = static_cast<unsigned>(kernel_yields);
    m.attr("MAX_BATCH") = most_batch;
    m.attr("KERNEL_NATIVE") = static_cast<unsigned>(kernel_native);
    m.attr("MAX_WORKERS") = max_workers;
    m.attr("MODELS_COUNTED_APART") = stages_per_session - 1;  // by a client, of what it sees of its calls
}

}  // namespace teal
