// Spilled outputs: those of one request in a region of their own, as its client reads them, and the worker of a request that takes them.
//
// Both get a descriptor and a layout from the host, which had them from the worker that made them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "host/chain.hpp"

namespace teal {

namespace nb = nanobind;

// (dtype, shape, offset, bytes) as a tensor of that region. Throws internal_error when it does not lie in it.
TensorDesc spilled_tensor(const nb::tuple& item, const Region& region);

// Asks `ask(session, epoch, id)` for (descriptor, [(output, dtype, shape, offset, bytes), …]), or None. False: none was given.
bool fetch_spill(const nb::object& ask, std::uint32_t session, std::uint32_t epoch, std::uint32_t id, SpilledOutputs& out) noexcept;

}  // namespace teal
