// The Python seam of boxes, for a duck's daemon: programs, the yard, sessions as their yard sees them.
//
// Theory of operation. Everything here may take milliseconds and gives the GIL away meanwhile. Descriptors stay what they were: those of a session
// are the session's, those that are given are the caller's.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <sys/mman.h>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "bindings/duck_image.hpp"
#include "bindings/duck_offer.hpp"
#include "box/duckinfo.hpp"
#include "box/image.hpp"
#include "box/inline.hpp"
#include "box/yard.hpp"
#include "elf/place.hpp"
#include "elf/program.hpp"

namespace teal {
namespace {

// A sealed file, mapped for reading.
class Mapping {
public:
    Mapping(int fd, std::uint64_t bytes) : bytes_(bytes) {
        if (bytes == 0) return;
        void* at = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (at == MAP_FAILED) throw Error(Code::quota_exceeded, system_message("mapping a program's file", errno));
        base_ = static_cast<const std::byte*>(at);
    }
    ~Mapping() {
        if (base_ != nullptr) ::munmap(const_cast<std::byte*>(base_), bytes_);
    }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    [[nodiscard]] std::span<const std::byte> bytes() const { return {base_, bytes_}; }

private:
    const std::byte* base_ = nullptr;
    std::uint64_t bytes_;
};

nb::dict facts_dict(const box::SessionFacts& f) {
    nb::dict found;
    found["id"] = f.id;
    found["cores"] = f.cores;
    found["box_pid"] = f.box_pid;
    found["region_bytes"] = f.region_bytes;
    found["args_bytes"] = f.args_bytes;
    found["log_offset"] = f.log_offset;
    found["log_bytes"] = f.log_bytes;
    found["ob_offset"] = f.ob_offset;
    found["ob_bytes"] = f.ob_bytes;
    found["call_limit_ns"] = f.call_limit_ns;
    return found;
}

nb::dict statistics_dict(const box::YardStatistics& s) {
    nb::dict found;
    found["zygotes_started"] = s.zygotes_started;
    found["boxes_made"] = s.boxes_made;
    found["boxes_used"] = s.boxes_used;
    found["boxes_ended"] = s.boxes_ended;
    found["spares_ready"] = s.spares_ready;
    found["spares_waited_for"] = s.spares_waited_for;
    found["sessions_open"] = s.sessions_open;
    found["sessions_opened"] = s.sessions_opened;
    found["ended_overdue"] = s.ended_overdue;
    found["ended_killed"] = s.ended_killed;
    found["ended_exited"] = s.ended_exited;
    found["ended_memory"] = s.ended_memory;
    found["ended_refused"] = s.ended_refused;
    found["maps"] = s.maps;
    found["maps_first"] = s.maps_first;
    found["runs"] = s.runs;
    found["runs_failed"] = s.runs_failed;
    found["last_box_ns"] = s.last_box_ns;
    found["last_open_ns"] = s.last_open_ns;
    return found;
}

// The reference's keys, and what is beyond it.
nb::dict record_dict(const box::RunRecord& r) {
    nb::dict found;
    found["status"] = box::run_status_name(r.status);
    found["reason"] = r.reason;
    found["clock"] = r.clock;
    found["count-inst"] = r.count_inst;
    found["clk-thread"] = r.clk_thread;
    found["clk-ref-tsc"] = r.clk_ref_tsc;
    found["clock-MHz"] = r.clock_mhz;
    found["tsc-MHz"] = r.tsc_mhz;
    found["ext-MHz"] = r.ext_mhz;
    found["time-ns"] = r.time_ns;
    found["time-ns-ref-tsc"] = r.time_ns_ref_tsc;
    found["time-ns-real"] = r.time_ns_real;
    found["time-tsc"] = r.time_tsc;
    found["memory-kb"] = r.memory_kb;
    found["memory-kb-accessed"] = r.memory_kb_accessed;
    found["stdout-size"] = r.stdout_size;
    found["stderr-size"] = r.stderr_size;
    found["return-code"] = r.return_code;
    found["trap-num"] = r.trap_num;
    found["trap-epc"] = r.trap_epc;
    found["trap-cr2"] = r.trap_cr2;
    found["signal"] = r.signal;
    found["stdout-truncated"] = r.stdout_truncated;
    found["stderr-truncated"] = r.stderr_truncated;
    found["memory-exceeded"] = r.memory_exceeded;
    found["user-ns"] = r.user_ns;
    found["system-ns"] = r.system_ns;
    found["voluntary-switches"] = r.voluntary_switches;
    found["involuntary-switches"] = r.involuntary_switches;
    found["minor-faults"] = r.minor_faults;
    found["major-faults"] = r.major_faults;
    return found;
}

std::shared_ptr<DuckProgram> read(int fd, std::uint64_t bytes, const std::string& name, bool duckinfo) {
    const nb::gil_scoped_release release;
    const Mapping file(fd, bytes);
    auto program = std::make_shared<DuckProgram>();
    elf::Rules rules;
    rules.duckinfo = duckinfo;
    program->program = elf::read_program(file.bytes(), name.c_str(), rules);
    program->bias = box::bias_for(*program->program);
    program->place = std::make_unique<elf::Place>(program->program->image.size());
    program->report = program->place->load(program->program, program->bias);
    return program;
}

box::SessionOrder session_order(const nb::dict& asked) {
    box::SessionOrder order;
    const auto number = [&](const char* name) { return nb::cast<std::uint64_t>(asked[name]); };
    order.cores = static_cast<std::uint32_t>(number("cores"));
    order.pin = nb::cast<std::vector<std::int32_t>>(asked["pin"]);
    order.args_bytes = number("args_bytes");
    order.ob_bytes = number("ob_bytes");
    order.log_bytes = number("log_bytes");
    order.memory_bytes = number("memory_bytes");
    order.idle_ns = number("idle_ns");
    order.start_limit_ns = number("start_limit_ns");
    order.call_limit_ns = number("call_limit_ns");
    return order;
}

std::shared_ptr<box::Session> open(box::Yard& yard, const std::shared_ptr<DuckProgram>& program, const nb::dict& asked, const DuckOffer* offer) {
    box::SessionOrder order = session_order(asked);
    if (offer != nullptr) order.direct = {offer->offer.fd, offer->offer.id, static_cast<std::uint32_t>(offer->offer.cipher), offer->offer.keys};
    const nb::gil_scoped_release release;
    order.image = resident_image(*program);
    return yard.open(order);
}

std::shared_ptr<box::Session> open_here(const std::shared_ptr<DuckProgram>& program, const nb::dict& asked) {
    box::SessionOrder order = session_order(asked);
    const nb::gil_scoped_release release;
    order.image = resident_image(*program);
    return box::open_inline(order);
}

box::DuckInfoOrder duckinfo_order(const nb::dict& asked) {
    box::DuckInfoOrder order;
    for (const auto& [key, value] : asked) {
        const auto name = nb::cast<std::string>(key);
        const std::pair<const char*, std::uint64_t*> numbers[] = {
            {"time_limit_ns", &order.time_limit_ns}, {"wall_limit_ns", &order.wall_limit_ns}, {"memory_bytes", &order.memory_bytes},
            {"in_bytes", &order.in_bytes},   {"out_limit", &order.out_limit}, {"err_limit", &order.err_limit}, {"ib_bytes", &order.ib_bytes},
            {"ob_bytes", &order.ob_bytes},   {"in_offset", &order.in_offset}, {"ib_offset", &order.ib_offset}, {"ob_offset", &order.ob_offset}};
        const std::pair<const char*, int*> descriptors[] = {
            {"in", &order.in}, {"out", &order.out}, {"err", &order.err}, {"ib", &order.ib}, {"ob", &order.ob}, {"pin", &order.pin}};
        bool known = name == "clear_ob";
        if (known) order.clear_ob = nb::cast<bool>(value);
        for (const auto& [called, field] : numbers)
            if (name == called) *field = nb::cast<std::uint64_t>(value), known = true;
        for (const auto& [called, field] : descriptors)
            if (name == called) *field = nb::cast<int>(value), known = true;
        if (!known) throw Error(Code::invalid_argument, "a DuckInfo run has no field " + name);
    }
    return order;
}

}  // namespace

void bind_duck_yard(nb::module_& m) {
    nb::class_<DuckProgram>(m, "DuckProgram", "A program that was read and checked, in memory that boxes map.")
        .def(nb::new_(&read), nb::arg("fd"), nb::arg("nbytes"), nb::arg("name"), nb::arg("duckinfo") = false,
             "Of a sealed file; the descriptor stays the caller's. `duckinfo`: by the rules for DuckInfo programs.")
        .def_prop_ro("resident", [](const DuckProgram& p) { return p.program->resident(); }, "Was it linked with duck.h's start-up code?")
        .def_prop_ro("machine", [](const DuckProgram& p) { return elf::name_of(p.program->machine); })
        .def_prop_ro("memory_bytes", [](const DuckProgram& p) { return p.program->memory_pages() * elf::page_bytes; }, "Of all its pages.")
        .def_prop_ro("image_bytes", [](const DuckProgram& p) { return static_cast<std::uint64_t>(p.program->image.size()); })
        .def_prop_ro("load", [](const DuckProgram& p) {
            nb::dict found;
            found["pages_written"] = p.report.pages_written;
            found["pages_zeroed"] = p.report.pages_zeroed;
            found["pages_same"] = p.report.pages_same;
            found["ns"] = p.report.ns;
            return found;
        }, nb::sig("def load(self) -> dict[str, int]"), "What loading it took.");
    nb::class_<box::Session>(m, "DuckBox", "A resident program as its yard sees it.")
        .def_prop_ro("facts", [](const box::Session& s) { return facts_dict(s.facts()); }, nb::sig("def facts(self) -> dict[str, int]"))
        .def_prop_ro("control_fd", &box::Session::control_fd)
        .def_prop_ro("fate_fd", &box::Session::fate_fd)
        .def_prop_ro("ended_fd", &box::Session::ended_fd)
        .def_prop_ro("direct_calls", &box::Session::direct_calls, "Calls that came straight from a client elsewhere, as the box says.")
        .def_prop_ro("ending", [](const box::Session& s) {
            const box::Ending ending = s.ending();
            return nb::make_tuple(static_cast<unsigned>(ending.fate), ending.detail, box::fate_name(ending.fate));
        }, nb::sig("def ending(self) -> tuple[int, int, str]"), "(fate, detail, in words); fate 0: it has not ended")
        .def("map", &box::Session::map, nb::arg("id"), nb::arg("fd"), nb::arg("nbytes"), nb::call_guard<nb::gil_scoped_release>())
        .def("unmap", &box::Session::unmap, nb::call_guard<nb::gil_scoped_release>())
        .def("forget", &box::Session::forget, nb::arg("id"), nb::call_guard<nb::gil_scoped_release>())
        .def("has", &box::Session::has, nb::arg("id"))
        .def("close", &box::Session::close, nb::arg("limit_ns"), nb::call_guard<nb::gil_scoped_release>())
        .def("kill", [](box::Session& s) { s.kill(); }, nb::call_guard<nb::gil_scoped_release>())
        .def("wait_ended", &box::Session::wait_ended, nb::arg("limit_ns"), nb::call_guard<nb::gil_scoped_release>())
        .def("log", [](const box::Session& s, std::uint64_t from, std::uint64_t most) {
            std::string text = s.log(from, most);
            return nb::make_tuple(nb::bytes(text.data(), text.size()), from);
        }, nb::arg("start"), nb::arg("most"), nb::sig("def log(self, start: int, most: int) -> tuple[bytes, int]"), "(bytes, position of the first)");
    m.def("open_inline", &open_here, nb::arg("program"), nb::arg("order"),
          nb::sig("def open_inline(program: DuckProgram, order: dict[str, typing.Any]) -> DuckBox"), "A session in this very process, without a sandbox; one at a time.");
    nb::class_<box::Yard>(m, "DuckYard", "Makes boxes, watches them, ends them.")
        .def("__init__", [](box::Yard* self, const std::string& program, std::uint32_t spares, std::uint32_t judge_spares, bool namespaces, bool demand_seccomp) {
            box::YardOptions options;
            options.program = program;
            options.spares = spares;
            options.judge_spares = judge_spares;
            options.namespaces = namespaces;
            options.demand_seccomp = demand_seccomp;
            const nb::gil_scoped_release release;
            new (self) box::Yard(options);
        }, nb::arg("program"), nb::arg("spares") = 1, nb::arg("judge_spares") = 1, nb::arg("namespaces") = true, nb::arg("demand_seccomp") = true)
        .def("open", &open, nb::arg("program"), nb::arg("order"), nb::arg("direct").none() = nb::none(),
             nb::sig("def open(self, program: DuckProgram, order: dict[str, typing.Any], direct: DuckOffer | None = None) -> DuckBox"))
        .def("refuses_direct", &box::Yard::refuses_direct, nb::arg("sealed"), "Why its boxes can take no direct calls; empty: they can.")
        .def("judge", [](box::Yard& yard, const std::shared_ptr<DuckProgram>& program, const nb::dict& asked) {
            RunAsked run;
            run.abi = nb::cast<std::string>(asked["abi"]);
            run.time_ns = nb::cast<std::uint64_t>(asked["time_ns"]);
            run.memory_bytes = nb::cast<std::uint64_t>(asked["memory_bytes"]);
            run.output_bytes = nb::cast<std::uint64_t>(asked["output_bytes"]);
            run.in = nb::cast<int>(asked["stdin"]);
            run.out = nb::cast<int>(asked["stdout"]);
            run.err = nb::cast<int>(asked["stderr"]);
            box::RunRecord record;
            {
                const nb::gil_scoped_release release;
                record = judge_run(yard, *program, run);
            }
            return record_dict(record);
        }, nb::arg("program"), nb::arg("run"), nb::sig("def judge(self, program: DuckProgram, run: dict[str, typing.Any]) -> dict[str, typing.Any]"))
        .def("judge_duckinfo", [](box::Yard& yard, const std::shared_ptr<DuckProgram>& program, const nb::dict& asked) {
            const box::DuckInfoOrder order = duckinfo_order(asked);
            box::RunRecord record;
            {
                const nb::gil_scoped_release release;
                record = box::judge_duckinfo(yard, *program->place, order);
            }
            return record_dict(record);
        }, nb::arg("program"), nb::arg("run"), nb::sig("def judge_duckinfo(self, program: DuckProgram, run: dict[str, int]) -> dict[str, typing.Any]"),
           "A run of a program that was read with duckinfo=True. `run`: the fields of DuckInfoOrder (core/box/duckinfo.hpp); those left out are 0, descriptors -1.")
        .def("report", [](const box::Yard& yard) {
            nb::list list;
            for (const box::Guard& guard : yard.report()) list.append(nb::make_tuple(guard.name, guard.used, guard.detail));
            return list;
        }, nb::sig("def report(self) -> list[tuple[str, bool, str]]"), "(what confines boxes, is it used, detail)")
        .def("statistics", [](const box::Yard& yard) { return statistics_dict(yard.statistics()); }, nb::sig("def statistics(self) -> dict[str, int]"))
        .def_prop_ro("zygote_pid", &box::Yard::zygote_pid)
        .def("close", &box::Yard::close, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace teal
