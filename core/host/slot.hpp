// The memory of one call, as its client keeps it: slots, free blocks, and tensors that lie where the client says.
//
// Theory of operation: a ClientSlot is one block of shared memory that holds a descriptor block and the tensors of one
// call, plus one completion line. A tensor may also lie in memory that the client holds already (a Block, or a tensor of
// another slot): its plan names the place, and the slot has a Hold on it. The Hold is what ownership comes down to:
// it stays with the slot for as long as the worker side may touch the memory, whoever has let go of it meanwhile, and
// goes when the request has ended and its outputs were taken, so that a result does not keep what it was made from.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "host/session.hpp"
#include "queue/expectation.hpp"

namespace teal {

class ClientSession;

// Where a tensor lies, if not in the slot's own block: bytes from the start of a region of this session.
struct Place {
    std::uint32_t region = 0;
    std::uint64_t offset = 0;
};

struct TensorPlan {
    Dtype dtype = Dtype::none;
    std::uint16_t flags = 0;             // TensorFlags
    std::vector<std::int64_t> shape;
    std::uint64_t capacity = 0;          // bytes; 0: exactly what the shape needs
    std::int32_t in_place = -1;          // output: lies in the memory of this input
    std::optional<Place> place = std::nullopt;  // lies there; whoever loans the slot has a Hold on it
    std::optional<ChainLink> link = std::nullopt;    // input with a place: comes there as this output of another request
};

struct ClientSlot;

// What keeps the memory at a Place. Empty for tensors in the slot's own block.
struct Hold {
    std::shared_ptr<Region> memory;      // its pages
    std::shared_ptr<void> loan;          // the Block, or the slot whose tensor it is
    std::shared_ptr<void> view;          // of an output: ClientSlot::views
    const ClientSlot* lender = nullptr;  // that slot, null for a Block; valid while `loan` is held
    bool chained = false;                // an output to come: another request of the same shapes will bring it to the same place
};

struct ClientSlot {
    std::uint32_t index = 0;             // completion line
    std::uint32_t generation = 0;        // of the last submit
    std::uint32_t stamp = 1;             // of the descriptor block
    std::uint32_t region = 0;
    std::uint64_t offset = 0;            // of the descriptor block, in the region
    std::uint64_t block = 0;             // of the allocation
    std::byte* base = nullptr;           // region base
    bool submitted = false;              // generation is not known to have been released
    bool placed = false;                 // some tensors lie at given places: made with a plan that has one
    bool kept = false;                   // a prepared call: the holds stay from one request to the next
    std::uint64_t submitted_ticks = 0;   // of the last submit
    std::shared_ptr<Expectation> expected;  // of its home; null: do not spin on a guess
    std::shared_ptr<Region> memory;      // keeps the pages while anybody looks
    std::vector<TensorDesc> inputs;      // this side's copy of what is in the block
    std::vector<TensorDesc> outputs;
    std::vector<std::int32_t> in_place;  // for each output: the input whose memory it is, or -1
    // With `placed`: one for each input, then for each output. Not while nobody uses the slot.
    std::vector<Hold> holds;
    CompletionLine* line = nullptr;
    DeviceLine* device = nullptr;
    bool tried = false;                  // it was submitted in an earlier loan: the line's word is about a request of its own
    bool direct = false;                 // its last request went to a resident device kernel, and may not have ended
    std::uint32_t device_generation = 0; // of that
    std::uint64_t direct_ns = 0;         // moving average of what those took
    // What its last request waits for: their lines may not be about anything else before it has ended.
    std::vector<std::shared_ptr<ClientSlot>> awaited;
    // Held by every view of an output besides the loan: use_count() == 1 means that nobody looks at them.
    std::shared_ptr<void> views = std::make_shared<char>();
    // Slots with outputs of their own on the same inputs, for calls made while the outputs above are looked at.
    std::vector<std::shared_ptr<ClientSlot>> siblings;

    // The hold on a tensor's memory; null when it lies in the slot's own block.
    [[nodiscard]] const Hold* hold_of(std::size_t index_of_tensor, bool output) const noexcept {
        const std::size_t at = output && in_place[index_of_tensor] < 0 ? inputs.size() + index_of_tensor
                               : output ? static_cast<std::size_t>(in_place[index_of_tensor]) : index_of_tensor;
        return at < holds.size() && holds[at].memory ? &holds[at] : nullptr;
    }
    [[nodiscard]] std::byte* address(std::size_t index_of_tensor, bool output) const noexcept {
        const Hold* hold = hold_of(index_of_tensor, output);
        return (hold != nullptr ? hold->memory->base() : base) + (output ? outputs : inputs)[index_of_tensor].offset;
    }
};

// A block of tensor memory on loan, for tensors that belong to no slot.
struct Block {
    std::shared_ptr<ClientSession> session;
    std::shared_ptr<Region> memory;
    std::uint32_t region = 0;
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
    ~Block();
};

// Lets go of what a request waited for: one after the other, however long the chain that hangs on it.
void let_go_of(std::vector<std::shared_ptr<ClientSlot>>&& awaited) noexcept;
void let_go_of(Hold&& hold) noexcept;

[[nodiscard]] inline Hold hold_on(const std::shared_ptr<Block>& block) { return {block->memory, block, nullptr, nullptr}; }

}  // namespace teal
