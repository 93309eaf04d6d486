// The benches of the duck's network, for `teal bench duck`.
#include "bench/duck_echo.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.hpp"
#include "bindings/duck_image.hpp"

namespace teal {

void bind_duck_bench(nb::module_& m) {
    nb::class_<DuckEchoTimes>(m, "DuckEchoTimes")
        .def_ro("bare", &DuckEchoTimes::bare)
        .def_ro("bare_small", &DuckEchoTimes::bare_small)
        .def_ro("call", &DuckEchoTimes::call)
        .def_ro("sealed", &DuckEchoTimes::sealed);
    m.def(
        "measure_duck_echo",
        [](std::uint32_t calls, std::size_t bytes, int client_core, int duck_core, const std::string& near, const std::string& far, const std::string& host) {
            return measure_duck_echo({calls, bytes, client_core, duck_core, near, far, host});
        },
        nb::arg("calls") = 20'000, nb::arg("bytes") = 64, nb::arg("client_core") = 0, nb::arg("duck_core") = 1, nb::arg("near") = "", nb::arg("far") = "",
        nb::arg("host") = "127.0.0.1", nb::call_guard<nb::gil_scoped_release>(),
        "Round trips in ns, in one run: a bare C echo of packets as long as ours and of `bytes`, and calls without and with a key; over the loopback, or "
        "between two network namespaces (files such as /run/netns/NAME), the duck at `host`.");
    nb::class_<DuckDirectTimes>(m, "DuckDirectTimes")
        .def_ro("bare", &DuckDirectTimes::bare)
        .def_ro("bare_small", &DuckDirectTimes::bare_small)
        .def_ro("call", &DuckDirectTimes::call)
        .def_ro("sealed", &DuckDirectTimes::sealed);
    m.def(
        "measure_duck_direct",
        [](box::Yard& yard, box::Yard* sealed, const DuckProgram& program, std::uint32_t calls, std::size_t bytes, int client_core, int box_core,
           const std::string& near, const std::string& far, const std::string& host) {
            return measure_duck_direct({&yard, sealed, resident_image(program), calls, bytes, client_core, box_core, near, far, host});
        },
        nb::arg("yard"), nb::arg("sealed").none(), nb::arg("program"), nb::arg("calls") = 20'000, nb::arg("bytes") = 64, nb::arg("client_core") = 0,
        nb::arg("box_core") = 1, nb::arg("near") = "", nb::arg("far") = "", nb::arg("host") = "127.0.0.1", nb::call_guard<nb::gil_scoped_release>(),
        "The same with the program in a box that the client calls directly; sealed: a yard whose boxes have libcrypto, or None.");
    nb::class_<BlobRates>(m, "BlobRates").def_ro("there", &BlobRates::there).def_ro("checked", &BlobRates::checked);
    nb::class_<DuckBlobRates>(m, "DuckBlobRates")
        .def_ro("bare_udp", &DuckBlobRates::bare_udp)
        .def_ro("bare_tcp", &DuckBlobRates::bare_tcp)
        .def_ro("bare_udp_huge", &DuckBlobRates::bare_udp_huge)
        .def_ro("bare_tcp_huge", &DuckBlobRates::bare_tcp_huge)
        .def_ro("bare_udp_small", &DuckBlobRates::bare_udp_small)
        .def_ro("bare_tcp_small", &DuckBlobRates::bare_tcp_small)
        .def_ro("udp", &DuckBlobRates::udp)
        .def_ro("tcp", &DuckBlobRates::tcp)
        .def_ro("udp_sealed", &DuckBlobRates::udp_sealed)
        .def_ro("tcp_sealed", &DuckBlobRates::tcp_sealed);
    m.def(
        "measure_duck_blob",
        [](std::uint64_t bytes, std::uint32_t times, int client_core, int duck_core, const std::string& near, const std::string& far, const std::string& host) {
            return measure_duck_blob({bytes, times, client_core, duck_core, near, far, host});
        },
        nb::arg("bytes") = std::uint64_t{64} << 20, nb::arg("times") = 5, nb::arg("client_core") = 0, nb::arg("duck_core") = 1, nb::arg("near") = "",
        nb::arg("far") = "", nb::arg("host") = "127.0.0.1", nb::call_guard<nb::gil_scoped_release>(),
        "Bytes per second, in one run: bare UDP and TCP, and blobs, until they are there and until they are checked; where, as measure_duck_echo().");
}

}  // namespace teal
