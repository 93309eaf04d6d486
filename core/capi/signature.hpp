// What a host says of a model, checked; and from it and a call's tensors, the plan of a slot (src/teal/host/plan.py).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "capi/control.hpp"
#include "capi/failure.hpp"
#include "host/client.hpp"
#include "memory/dtype.hpp"

namespace teal::capi {

struct Extent {
    std::int64_t size = -1;  // -1: any
    std::string symbol;      // equal symbols of one call stand for equal extents; empty: none
};

struct TensorSpec {
    std::string name;
    Dtype dtype = Dtype::none;   // none: any
    bool ranked = false;         // `shape` is known
    std::vector<Extent> shape;
    std::int32_t like = -1;      // output: dtype and shape of this input
    bool in_place = false;       // output: lies in the memory of that input
    bool optional = false;
};

struct Signature {
    std::string name;            // of the model
    std::uint32_t index = 0;     // what requests carry
    std::uint32_t version = 0;
    std::uint64_t idle_ns = 0;   // 0: the host's
    std::uint32_t threads = 1;   // cores a run may keep busy
    std::string digest;          // SHA-256 of the file, hex; empty: none
    std::string pool = "default";
    bool onnx = false;
    std::vector<TensorSpec> inputs;
    std::vector<TensorSpec> outputs;
};

// From the answer to `load` or `lookup`. Throws Failure: internal (not understood), unsupported.
Signature parse_signature(const Answer& answer);

struct Plan {
    std::vector<TensorPlan> inputs;
    std::vector<TensorPlan> outputs;
};

// Checks the tensors of a call against the signature. Throws Failure naming the part: "inputs[0].shape[1]: …".
// An output of unknown shape may take as many bytes as the caller's shape gives. rooms: bytes for each tensor of strings, inputs first;
// what stands there for others does not matter.
Plan plan_call(const Signature& signature, const laika_tensor_t* inputs, std::size_t n_in, const laika_tensor_t* outputs, std::size_t n_out,
               std::span<const std::uint64_t> rooms = {});

// Bytes of a caller's memory for a tensor (of strings: the array of their elements); throws Failure with `path` for what is no tensor (dtype, ndim, shape).
std::uint64_t checked_bytes(const laika_tensor_t& tensor, const std::string& path);

}  // namespace teal::capi
