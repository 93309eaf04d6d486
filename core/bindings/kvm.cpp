// The Python face of core/kvm: what KVM of this machine can do for guests.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bindings/bindings.hpp"
#include "kvm/probe.hpp"

namespace teal {
namespace {

nb::dict probe_dict(const kvm::Probe& found) {
    nb::dict result;
    result["available"] = found.available;
    result["text"] = kvm::describe(found);
    result["reason"] = found.reason;
    result["api_version"] = found.api_version;
    result["native"] = found.native;
    result["paravirtual"] = found.syscall_in_ring3;
    result["avx"] = found.avx;
    result["avx512"] = found.avx512;
    result["fsgsbase"] = found.fsgsbase;
    result["code32"] = found.code32;
    result["touched_bits"] = found.touched_bits;
    result["tsc_offset"] = found.tsc_offset;
    result["dirty_log"] = found.dirty_log;
    result["dirty_ring"] = found.dirty_ring;
    result["most_cores"] = found.most_cores;
    result["exit_ns"] = found.exit_ns;
    result["create_ns"] = found.create_ns;
    return result;
}

}  // namespace

void bind_kvm(nb::module_& m) {
    m.def(
        "kvm_probe",
        [] {
            const kvm::Probe* found = nullptr;
            {
                const nb::gil_scoped_release release;   // the first time it takes 2 to 50 ms
                found = &kvm::probe();
            }
            return probe_dict(*found);
        },
        nb::sig("def kvm_probe() -> dict[str, object]"),
        "What a guest could do that was run the first time this was asked: 'available', 'text' (one line), 'reason' (why not), and details.");
}

}  // namespace teal
