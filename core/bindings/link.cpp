// Emulated links: what a specification means, and what its delays really are here.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <string_view>

#include "bindings/bindings.hpp"
#include "link/link.hpp"
#include "link/measure.hpp"

namespace teal {
namespace {

nb::dict described(std::string_view text) {
    const LinkSpec spec = LinkSpec::parse(text);
    const LinkFigures& f = spec.figures;
    const LinkTricks& t = spec.tricks;
    nb::dict found;
    found["kind"] = std::string(link_kind_name(spec.kind));
    found["text"] = spec.text();
    for (const auto& [name, ns] : {std::pair{"read", f.read}, {"write", f.write}, {"line", f.line}, {"flush", f.flush}, {"one_way", f.one_way},
                                   {"kick_send", f.kick_send}, {"kick_receive", f.kick_receive}, {"kick", f.kick}, {"dma_setup", f.dma_setup},
                                   {"dma_per_kib", f.dma_per_kib}, {"coalesce", t.coalesce}})
        found[name] = ns;
    for (const auto& [name, on] : {std::pair{"write_combining", t.write_combining}, {"prefetch", t.prefetch}, {"batching", t.batching},
                                   {"pre_staging", t.pre_staging}, {"coalescing", t.coalescing}, {"dma", t.dma}})
        found[name] = on;
    found["polling"] = std::string(polling_name(t.polling));
    return found;
}

nb::list delays(std::string_view text, std::uint32_t n) {
    std::vector<LinkDelay> found;
    {
        const nb::gil_scoped_release release;
        found = measure_link(LinkSpec::parse(text), n);
    }
    nb::list list;
    for (LinkDelay& delay : found) {
        nb::list samples;
        for (const std::uint32_t ns : delay.delivered_ns) samples.append(ns);
        list.append(nb::make_tuple(delay.name, delay.asked_ns, samples));
    }
    return list;
}

}  // namespace

void bind_link(nb::module_& m) {
    m.def("parse_link", &described, nb::arg("spec"), nb::sig("def parse_link(spec: str) -> dict[str, typing.Any]"),
          "What a link's specification means: kind, figures in ns, tricks, and its shortest text. Raises InvalidArgument.");
    m.def("measure_link", &delays, nb::arg("spec"), nb::arg("n"), nb::sig("def measure_link(spec: str, n: int) -> list[tuple[str, int, list[int]]]"),
          "Each primitive of a link: its name, the ns asked, and the ns that each of n tries took. Raises InvalidArgument.");
}

}  // namespace teal
