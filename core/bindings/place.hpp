// Place, as Python holds it: memory of a session that a call may use where it is.
//
// Theory of operation: a Tensor knows its place. A NumPy array or memoryview is recognised by what it is a view of: the chain of its
// bases leads to a Tensor, and its elements lie packed inside that Tensor's bytes. An address alone would not do: nothing would
// then say who keeps the memory. A Place holds the Tensor's loan, not the Tensor.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>
#include <vector>

#include "bindings/tensor.hpp"
#include "host/client.hpp"

namespace teal {

struct GivenPlace {
    Hold hold;
    nb::object dtype;   // str
    nb::object shape;   // tuple
    nb::object key;     // bytes: equal for equal places, sizes, dtypes and shapes
    std::uint64_t nbytes = 0;
    std::uint32_t region = 0;
    std::uint64_t offset = 0;
    bool readonly = false;
    nb::object link;    // of an output to come: (awaited, output, region, block); else null
    std::uint32_t forks = fork_generation.load(std::memory_order_relaxed);

    GivenPlace() = default;
    GivenPlace(const GivenPlace&) = delete;
    GivenPlace& operator=(const GivenPlace&) = delete;
    ~GivenPlace() {  // in a forked child the loan is only forgotten, as a Tensor's is
        if (forks != fork_generation.load(std::memory_order_relaxed)) new Hold(std::move(hold));
    }
};

// None: not in this session's memory, or not packed.
nb::object place_of(const ClientSession& session, nb::handle array);
// Where output `index` of a request that is out will be, for the request that waits for it as its `awaited`-th. It keeps the slot
// from being used for another request.
nb::object place_to_come(const std::shared_ptr<ClientSlot>& slot, const std::shared_ptr<ClientSlot>& elder, std::size_t index, std::uint32_t awaited);
std::vector<Hold> holds_of(const nb::list& places);

void bind_place(nb::module_& m);

}  // namespace teal
