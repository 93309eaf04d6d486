// The Python face of core/cpu: functions of teal._core that say what the machine is and how still it stands.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "cpu/clock.hpp"
#include "cpu/features.hpp"
#include "cpu/jitter.hpp"
#include "cpu/probe.hpp"

namespace nb = nanobind;

namespace teal {
namespace {

// CPUID text is bytes that a hypervisor chose: keep printable ASCII, drop the padding.
template <std::size_t size>
std::string text_of(const std::array<char, size>& raw) {
    std::string text;
    for (const char c : raw) {
        if (c == '\0') {
            break;
        }
        text += (c >= ' ' && c <= '~') ? c : '?';
    }
    const std::size_t first = text.find_first_not_of(' ');
    const std::size_t last = text.find_last_not_of(' ');
    return first == std::string::npos ? std::string() : text.substr(first, last - first + 1);
}

nb::dict features_dict() {
    const CpuFeatures& features = cpu_features();
    nb::dict by_name;
    for (std::size_t i = 0; i < feature_count; ++i) {
        nb::dict state;
        state["offered"] = features.offered[i];
        state["enabled"] = features.enabled[i];
        by_name[nb::cast(feature_name(static_cast<Feature>(i)))] = state;
    }
    nb::dict result;
    result["architecture"] = architecture_name();
    result["vendor"] = text_of(features.vendor);
    result["brand"] = text_of(features.brand);
    result["features"] = by_name;
    result["xcr0"] = features.xcr0;
    result["isa"] = isa_name(isa());
    result["isa_widest"] = isa_name(widest_isa(features));
    result["isa_error"] = isa_error().empty() ? nb::object(nb::none()) : nb::object(nb::cast(isa_error()));
    result["invariant_tsc"] = features.invariant_tsc;
    result["tick_source"] = tick_source_name();
    return result;
}

nb::dict jitter_dict(int core, int milliseconds) {
    Jitter jitter;
    {
        const nb::gil_scoped_release released;
        jitter = measure_jitter(core, milliseconds);
    }
    nb::dict result;
    result["core"] = jitter.core;
    result["milliseconds"] = jitter.milliseconds;
    result["reads"] = jitter.reads;
    result["over_5us"] = jitter.over_5us;
    result["over_20us"] = jitter.over_20us;
    result["over_100us"] = jitter.over_100us;
    result["lost_ms"] = jitter.lost_ms;
    result["max_us"] = jitter.max_us;
    return result;
}

std::string_view checked_isa() {
    const Isa chosen = isa();
    if (!isa_error().empty()) {
        throw Error(Code::invalid_argument, isa_error());
    }
    return isa_name(chosen);
}

nb::dict probes_dict() {
    nb::dict result;
    for (const Probe& probe : probes) {
        result[nb::cast(probe.name)] = probe.run();
    }
    return result;
}

}  // namespace

void bind_cpu(nb::module_& m) {
    m.def("cpu_features", &features_dict, nb::sig("def cpu_features() -> dict[str, typing.Any]"),
          "What the CPU offers and what the OS lets us use: architecture, vendor, brand, features (name -> offered, enabled), "
          "xcr0, isa (after TEAL_ISA), isa_widest, isa_error (None, or why TEAL_ISA was not honoured), invariant_tsc, "
          "tick_source.");
    m.def("isa", &checked_isa,
          "The rung that run-time dispatch uses: 'v2', 'avx2', 'avx512' or 'amx' ('armv8' on aarch64). Raises InvalidArgument "
          "when TEAL_ISA names something this machine does not have.");
    m.def("amx_permission", &amx_permission,
          "Asks the kernel for AMX tile state for this process. 0, or the errno of the refusal (ENOTSUP: no AMX here).");
    m.def("ticks", &ticks, "The CPU's counter; compare intervals only, within one tick_source.");
    m.def("ticks_per_second", &ticks_per_second, "Rate of ticks(), measured once against the monotonic clock.");
    m.def("ticks_to_ns", &ticks_to_ns, nb::arg("interval"), "Nanoseconds in an interval of ticks().");
    m.def("monotonic_ns", &monotonic_ns, "CLOCK_MONOTONIC in nanoseconds: the scale of deadlines.");
    m.def("jitter", &jitter_dict, nb::arg("core"), nb::arg("milliseconds"),
          nb::sig("def jitter(core: int, milliseconds: int) -> dict[str, float]"),
          "Spins on `core` for 1 to 60,000 ms with the GIL released and counts the gaps in our own time: milliseconds, reads, "
          "over_5us, over_20us, over_100us (cumulative counts), lost_ms, max_us. Raises InvalidArgument for a core that this "
          "process may not use.");
    m.def("probe_system", &probes_dict, nb::sig("def probe_system() -> dict[str, int]"),
          "Uses what Teal needs from the kernel and reports 0 or an errno by name: memfd_seals, memfd_huge, futex_waitv, "
          "pidfd_open, robust_futex, fd_passing, peer_identity.");
}

}  // namespace teal
