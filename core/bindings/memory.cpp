// Regions and sealed files, as the host makes them: descriptors in, descriptors out.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cerrno>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "memory/private_pages.hpp"
#include "memory/region.hpp"

namespace teal {
namespace {

Pages pages_from(const std::string& name) {
    if (name == "small") return Pages::small;
    if (name == "huge") return Pages::huge;
    if (name == "best") return Pages::best;
    throw Error(Code::invalid_argument, "pages: '" + name + "', expected small, huge or best");
}

// The descriptor of a new region that this process does not keep mapped.
nb::tuple make_region(std::uint64_t size, std::uint64_t id, const std::string& pages, bool spill) {
    const auto region = Region::create(spill ? RegionKind::spill : RegionKind::tensor, size, id, pages_from(pages));
    const int fd = ::fcntl(region->fd(), F_DUPFD_CLOEXEC, 3);
    if (fd < 0) throw Error(Code::quota_exceeded, system_message("duplicating a descriptor", errno));
    return nb::make_tuple(fd, region->size(), std::uint64_t{1} << region->page_shift());
}

}  // namespace

void bind_memory(nb::module_& m) {
    m.def("make_region", &make_region, nb::arg("size"), nb::arg("id"), nb::arg("pages") = "best", nb::arg("spill") = false,
          nb::sig("def make_region(size: int, id: int, pages: str = 'best', spill: bool = False) -> tuple[int, int, int]"),
          "(descriptor, bytes, page bytes) of a new sealed region with its pages reserved. Raises QuotaExceeded.");
    m.def("sealed_file", [](const std::string& name, nb::bytes contents) {
        return sealed_file(name.c_str(), {reinterpret_cast<const std::byte*>(contents.data()), contents.size()});
    }, nb::arg("name"), nb::arg("contents"), "Descriptor of a read-only memfd that nobody can change any more.");
    m.def("private_pages", [](std::uint64_t start, std::uint64_t end) {
        const Written written = written_privately(start, end);
        return written == Written::unknown ? -1 : written == Written::yes ? 1 : 0;
    }, nb::arg("start"), nb::arg("end"), "1: this process has written into its private mapping there; 0: it has not; -1: the kernel cannot tell.");
    m.def("available_memory", &available_memory, "Bytes that a reservation may take now.");
}

}  // namespace teal
