#include "host/chain.hpp"

#include <cstring>

namespace teal {
namespace {

std::string path_of(std::uint32_t input) { return "$.inputs[" + std::to_string(input) + "]"; }

bool fail(std::string& error, std::string message) {
    error = std::move(message);
    return false;
}

bool alike(const TensorDesc& a, const TensorDesc& b) noexcept {
    return a.dtype == b.dtype && a.rank == b.rank && a.flags == b.flags && a.region == b.region && a.offset == b.offset && a.nbytes == b.nbytes &&
           std::memcmp(a.shape, b.shape, a.rank * sizeof a.shape[0]) == 0;
}

}  // namespace

bool Chain::read(const Descriptor& descriptor, std::uint32_t awaited, std::string& error) {
    inputs_.clear();
    for (std::uint32_t i = 0; i < descriptor.inputs.size(); ++i) {
        const TensorDesc& tensor = descriptor.inputs[i];
        if ((tensor.flags & tensor_chained) == 0) continue;
        ChainLink link;
        if (!link_of(tensor, link) || link.awaited >= awaited)
            return fail(error, path_of(i) + ": is to come from request " + std::to_string(link.awaited) + " of those this one waits for, and there are " + std::to_string(awaited));
        inputs_.push_back({i, tensor, link});
    }
    return true;
}

Chain::Found Chain::follow(const SessionMap& map, const AfterLine& after, Descriptor& descriptor, bool ahead, const FetchSpill& fetch, std::string& error) {
    views_.clear();
    owners_.clear();
    fetched_.clear();
    Found outcome = Found::same;
    for (const Input& input : inputs_) {
        TensorDesc found;
        const Found one = find(map, after, input, ahead, fetch, found, error);
        if (one == Found::wrong && !error.starts_with("$")) error = path_of(input.index) + ": " + error;
        if (one == Found::wrong || one == Found::unknown) return one;
        TensorDesc& tensor = descriptor.inputs[input.index];
        if (alike(found, tensor)) continue;
        tensor = found;
        outcome = Found::changed;
    }
    return spilled() ? Found::changed : outcome;
}

Chain::Found Chain::find(const SessionMap& map, const AfterLine& after, const Input& input, bool ahead, const FetchSpill& fetch, TensorDesc& found,
                         std::string& error) {
    bool reshaped = false;
    if (!ahead) {
        if (input.link.awaited >= after.count || after.count > max_after || after.on[input.link.awaited].slot >= map.layout.slots) {
            fail(error, "does not wait for the request it is to come from");
            return Found::wrong;
        }
        const auto& source = after.on[input.link.awaited];
        const CompletionLine& line = map.lines()[source.slot];
        // SYNC: acquire pairs with end_request(): the source's outputs, their shapes and `detail` are seen.
        const std::uint64_t word = line.word.load(std::memory_order_acquire);
        if (!has_ended(word, source.generation) || state_of(word) != State::done) {
            fail(error, "the output it is to come from is gone: its slot was used again");
            return Found::wrong;
        }
        if (reason_of(word) == Reason::output_spilled) {
            if (!find_spilled(map, input, line.detail.load(std::memory_order_relaxed), fetch, found, error)) return Found::wrong;
            if (found.flags == 0) return Found::changed;  // else it lies in its slot, as one that was written in place does
        }
        reshaped = (flags_of(word) & word_reshaped) != 0;
    }
    if (!read_output(map.views, input.link, reshaped, found, error)) {
        if (ahead) return Found::unknown;
        if (error.empty()) fail(error, "the size of the output it is to come from is not known, though that has ended");
        return Found::wrong;
    }
    if (found.region != input.planned.region || found.offset != input.planned.offset || found.nbytes > input.planned.capacity) {
        fail(error, "the output it is to come from lies elsewhere");
        return ahead ? Found::unknown : Found::wrong;
    }
    return Found::changed;
}

// found.flags: absent when the spill does not have that output.
bool Chain::find_spilled(const SessionMap& map, const Input& input, std::uint32_t id, const FetchSpill& fetch, TensorDesc& found, std::string& error) {
    std::size_t at = 0;
    while (at < fetched_.size() && fetched_[at].first != id) ++at;
    if (at == fetched_.size()) {
        SpilledOutputs outputs;
        if (!fetch || !fetch(map.index, map.epoch, id, outputs) || !outputs.region)
            return fail(error, "the output it is to come from was larger than planned, and has been taken by its client since");
        if (views_.empty()) {
            views_ = map.views;
            owners_ = map.owned;
        }
        views_.push_back({outputs.region->base(), outputs.region->size()});
        owners_.push_back(outputs.region);
        for (auto& [index, tensor] : outputs.tensors) tensor.region = static_cast<std::uint32_t>(views_.size() - 1);
        fetched_.emplace_back(id, std::move(outputs));
    }
    found.flags = tensor_absent;
    for (const auto& [index, tensor] : fetched_[at].second.tensors)
        if (index == input.link.output) found = tensor;
    return true;
}

}  // namespace teal
