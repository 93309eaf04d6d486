// DLPack export, written against the DLPack ABI (unversioned and 1.x).
#pragma once

#include <nanobind/nanobind.h>

#include "bindings/tensor.hpp"

namespace teal {

// A capsule named "dltensor" or "dltensor_versioned". Holds `self` and counts as an export until its consumer is done.
nb::object export_dlpack(Tensor& tensor, nb::handle self, bool versioned);

}  // namespace teal
