// Programs and places, for tests, benches and what the duck has to know of a file before it opens it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "elf/place.hpp"
#include "elf/program.hpp"

namespace teal {
namespace {

using elf::Place;
using elf::Program;

struct ElfProgram {
    std::shared_ptr<const Program> program;
};

ElfProgram read(nb::handle object, const std::string& name, bool duckinfo, bool any_machine, std::uint64_t most_bytes, nb::handle digest) {
    elf::Rules rules;
    rules.duckinfo = duckinfo;
    rules.most_bytes = most_bytes;
    if (any_machine) rules.machines = elf::any_machine;
    std::array<std::uint8_t, 32> known;
    if (!digest.is_none()) {
        const auto given = nb::cast<nb::bytes>(digest);
        if (given.size() != known.size()) throw Error(Code::invalid_argument, "a SHA-256 of " + std::to_string(given.size()) + " bytes: expected 32");
        std::memcpy(known.data(), given.c_str(), known.size());
        rules.digest = &known;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
    struct Release {
        Py_buffer* view;
        ~Release() { PyBuffer_Release(view); }
    } release{&view};
    const std::span<const std::byte> file(static_cast<const std::byte*>(view.buf), static_cast<std::size_t>(view.len));
    // The GIL is kept: the bytes may be an array that somebody else would change meanwhile.
    return {elf::read_program(file, name.c_str(), rules)};
}

std::string protection_text(unsigned protection) {
    std::string text = "---";
    if ((protection & elf::readable) != 0) text[0] = 'r';
    if ((protection & elf::writable) != 0) text[1] = 'w';
    if ((protection & elf::executable) != 0) text[2] = 'x';
    return text;
}

nb::dict facts(const ElfProgram& self) {
    const Program& p = *self.program;
    nb::dict found;
    found["machine"] = elf::name_of(p.machine);
    found["position_independent"] = p.kind == elf::Kind::position_independent;
    found["duckinfo"] = p.duckinfo;
    found["resident"] = p.resident();
    found["abi"] = p.resident() ? "teal" : p.wants_duckinfo ? "duckinfo" : "linux";
    found["executable_stack"] = p.executable_stack;
    found["entry"] = p.entry;
    found["low"] = p.low;
    found["high"] = p.high;
    found["header_address"] = p.header_address;
    found["tls_bytes"] = p.tls_bytes;
    found["memory_bytes"] = p.memory_pages() * elf::page_bytes;
    found["file_bytes"] = p.image.size();
    found["sha256"] = nb::bytes(reinterpret_cast<const char*>(p.digest.data()), p.digest.size());
    nb::list ranges;
    for (const elf::Range& range : p.ranges) ranges.append(nb::make_tuple(range.address, range.pages, range.file_pages, protection_text(range.protection)));
    found["ranges"] = ranges;
    return found;
}

nb::bytes image(const ElfProgram& self) { return nb::bytes(reinterpret_cast<const char*>(self.program->image.data()), self.program->image.size()); }

nb::dict report_of(const elf::LoadReport& report) {
    nb::dict found;
    found["pages_written"] = report.pages_written;
    found["pages_zeroed"] = report.pages_zeroed;
    found["pages_same"] = report.pages_same;
    found["known"] = report.known;
    found["steps"] = report.steps;
    found["ns"] = report.ns;
    return found;
}

nb::list steps_of(const std::vector<elf::Step>& steps) {
    static constexpr const char* names[] = {"map", "zeros", "protect", "unmap", "discard"};
    nb::list list;
    for (const elf::Step& step : steps)
        list.append(nb::make_tuple(names[static_cast<std::size_t>(step.what)], step.address, step.bytes, step.offset, protection_text(step.protection)));
    return list;
}

}  // namespace

void bind_elf(nb::module_& m) {
    nb::class_<ElfProgram>(m, "ElfProgram", "A static ELF file that was read and checked.")
        .def_prop_ro("facts", &facts, nb::sig("def facts(self) -> dict[str, Any]"),
                     "machine, position_independent, duckinfo (was read so), resident, abi (by its note: teal, duckinfo; else linux), executable_stack, entry, low, high, header_address, tls_bytes, memory_bytes,\n"
                     "file_bytes (of its file pages), sha256, ranges: (address, pages, file pages, 'rwx').")
        .def_prop_ro("image", &image, nb::sig("def image(self) -> bytes"), "The file pages of all ranges, one range after the other.");
    m.def("read_elf", &read, nb::arg("file"), nb::arg("name"), nb::kw_only(), nb::arg("duckinfo") = false, nb::arg("any_machine") = false,
          nb::arg("most_bytes") = std::uint64_t{1} << 36, nb::arg("sha256").none() = nb::none(),
          nb::sig("def read_elf(file: bytes | bytearray | memoryview, name: str, *, duckinfo: bool = False, any_machine: bool = False, "
                  "most_bytes: int = 68719476736, sha256: bytes | None = None) -> ElfProgram"),
          "Reads and checks a static ELF file. Raises InvalidArgument, VersionMismatch. `sha256`: of the file, if it was made already.");
    nb::class_<Place>(m, "ElfPlace", "Program memory: a memfd that programs are loaded into one after the other, page by page where they differ.")
        .def(nb::init<std::uint64_t>(), nb::arg("nbytes"))
        .def(
            "load", [](Place& self, const ElfProgram& program, std::uint64_t bias) { return report_of(self.load(program.program, bias)); }, nb::arg("program"),
            nb::arg("bias") = 0, nb::sig("def load(self, program: ElfProgram, bias: int = 0) -> dict[str, int]"),
            "pages_written, pages_zeroed, pages_same, known (it was there already), steps, ns. Raises QuotaExceeded, InvalidArgument.")
        .def("steps", [](const Place& self) { return steps_of(self.steps()); }, nb::sig("def steps(self) -> list[tuple[str, int, int, int, str]]"),
             "(what, address, bytes, offset, 'rwx') for a process with nothing of it.")
        .def("steps_since_last", [](const Place& self) { return steps_of(self.steps_since_last()); },
             nb::sig("def steps_since_last(self) -> list[tuple[str, int, int, int, str]]"), "For a process that has what was there before the last load().")
        .def_prop_ro("generation", &Place::generation)
        .def_prop_ro("nbytes", &Place::bytes)
        .def("fileno", &Place::fd, "The memfd, which cannot be written through.");
}

}  // namespace teal
