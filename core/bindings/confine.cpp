// The seam of agents' walls.
#include <nanobind/nanobind.h>

#include "agents/confine.hpp"
#include "bindings/bindings.hpp"

namespace teal {
namespace {

nb::dict walls_dict(const Walls& walls) {
    nb::dict d;
    d["filter"] = walls.filter;
    d["capabilities"] = walls.capabilities;
    d["landlock"] = walls.landlock;
    d["missing"] = walls.missing.c_str();
    return d;
}

}  // namespace

void bind_confine(nb::module_& m) {
    m.def("walls_offered", [] { return walls_dict(walls_offered()); }, nb::sig("def walls_offered() -> dict[str, typing.Any]"),
          "filter, capabilities (bool), landlock (version, 0: none), missing: what an agent's process can be locked in with here.");
    m.def("confine", [] { return walls_dict(confine()); }, nb::sig("def confine() -> dict[str, typing.Any]"),
          "Locks this process in for good: see core/agents/confine.hpp. As walls_offered().");
}

}  // namespace teal
