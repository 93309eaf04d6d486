// Chained inputs: how a request comes by another one's outputs, in the worker.
//
// Theory of operation: a chained input names one of the requests that its own waits for, and an output of that. The client wrote so
// in memory of its own, so all of it is checked here: whom the request waits for was copied when it was taken (AfterLine, in the pool
// region), that one must have ended well in the very generation that was named, and its block must describe a tensor within the
// session's regions that lies where the chained input was planned. An output that did not fit is in a spill, which the host hands out.
// What is found is an input like any other; while it stays the same from one request of a slot to the next, so does the binding.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/session.hpp"
#include "memory/descriptor.hpp"

namespace teal {

// Outputs of one request in a region of their own, by index.
struct SpilledOutputs {
    std::shared_ptr<Region> region;
    std::vector<std::pair<std::uint32_t, TensorDesc>> tensors;
};
// From the host: spill `id` of a session (index, epoch). False: there is none, or the host does not say.
using FetchSpill = std::function<bool(std::uint32_t session, std::uint32_t epoch, std::uint32_t id, SpilledOutputs& out)>;

// The chained inputs of one slot.
class Chain {
public:
    // Takes note of those in a descriptor that was just read. False, with `error`: the request does not wait for what they name.
    bool read(const Descriptor& descriptor, std::uint32_t awaited, std::string& error);
    [[nodiscard]] bool empty() const noexcept { return inputs_.empty(); }

    enum class Found { same, changed, unknown, wrong };
    // Puts what they are into the descriptor's inputs. changed: not what stood there. wrong: `error` says what and where.
    // ahead: before the others have ended, as they were planned; unknown: they were not.
    Found follow(const SessionMap& map, const AfterLine& after, Descriptor& descriptor, bool ahead, const FetchSpill& fetch, std::string& error);

    // While some of them lie in a spill: the session's regions and behind them that one's.
    [[nodiscard]] bool spilled() const noexcept { return !views_.empty(); }
    [[nodiscard]] const std::vector<RegionView>& views() const noexcept { return views_; }
    [[nodiscard]] const std::vector<std::shared_ptr<Region>>& owners() const noexcept { return owners_; }

private:
    struct Input {
        std::uint32_t index;
        TensorDesc planned;
        ChainLink link;
    };
    Found find(const SessionMap& map, const AfterLine& after, const Input& input, bool ahead, const FetchSpill& fetch, TensorDesc& found, std::string& error);
    bool find_spilled(const SessionMap& map, const Input& input, std::uint32_t id, const FetchSpill& fetch, TensorDesc& found, std::string& error);

    std::vector<Input> inputs_;
    std::vector<RegionView> views_;
    std::vector<std::shared_ptr<Region>> owners_;
    std::vector<std::pair<std::uint32_t, SpilledOutputs>> fetched_;  // by id, of this request
};

}  // namespace teal
