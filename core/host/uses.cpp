#include "host/uses.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "host/client.hpp"

namespace teal {
namespace {

// An output in place of its input is the input's memory, not written by anybody.
bool writes(const ClientSlot& slot, std::size_t output) noexcept { return slot.in_place[output] < 0; }

// Does the slot's request run only after that of `other`, by what it waits for and what that waits for?
bool comes_after(const ClientSlot& slot, const ClientSlot& other) {
    std::vector<const ClientSlot*> before;
    for (const auto& one : slot.awaited) before.push_back(one.get());
    for (std::size_t i = 0; i < before.size(); ++i) {
        if (before[i] == &other) return true;
        for (const auto& one : before[i]->awaited)
            if (std::find(before.begin(), before.end(), one.get()) == before.end()) before.push_back(one.get());
    }
    return false;
}

void check(const ClientSlot& slot, const ClientSlot& other) {
    const auto fail = [&](bool output, std::size_t i, const char* what) {
        if (comes_after(slot, other)) return;
        const std::string path = (output ? "$.outputs[" : "$.inputs[") + std::to_string(i) + "]";
        throw Error(Code::busy, path + ": a request that is still out " + what + " this memory; wait for it to end, or use other memory");
    };
    for (std::size_t o = 0; o < other.outputs.size(); ++o) {
        if (!writes(other, o)) continue;
        for (std::size_t i = 0; i < slot.inputs.size(); ++i)
            if (overlap(slot.inputs[i], other.outputs[o])) fail(false, i, "writes");
    }
    for (std::size_t i = 0; i < slot.outputs.size(); ++i) {
        if (!writes(slot, i)) continue;
        for (const TensorDesc& output : other.outputs)
            if (overlap(slot.outputs[i], output)) fail(true, i, "uses");
        for (const TensorDesc& input : other.inputs)
            if (overlap(slot.outputs[i], input)) fail(true, i, "uses");
    }
}

void check_out(const ClientSlot& slot, const ClientSlot& other) {
    if (!ClientSession::let_go(other)) check(slot, other);
}

// The slots whose own memory some of these places are in, and their siblings.
void check_lenders(const ClientSlot& slot) {
    for (const Hold& hold : slot.holds) {
        if (hold.lender == nullptr) continue;
        check_out(slot, *hold.lender);
        for (const auto& sibling : hold.lender->siblings) check_out(slot, *sibling);
    }
}

}  // namespace

bool overlap(const TensorDesc& a, const TensorDesc& b) noexcept {
    if (((a.flags | b.flags) & tensor_absent) != 0 || a.region != b.region || a.capacity == 0 || b.capacity == 0) return false;
    return a.offset < b.offset ? b.offset - a.offset < a.capacity : a.offset - b.offset < b.capacity;
}

void Uses::admit(ClientSlot& slot) {
    const std::lock_guard lock(mutex_);
    check_lenders(slot);
    for (std::size_t i = 0; i < out_.size();) {
        if (out_[i] == &slot || ClientSession::let_go(*out_[i])) {
            out_[i] = out_.back();
            out_.pop_back();
        } else {
            check_out(slot, *out_[i++]);
        }
    }
    if (slot.placed) out_.push_back(&slot);
    count_.store(static_cast<std::uint32_t>(out_.size()), std::memory_order_relaxed);
    if (slot.direct) return;
    slot.generation = next_generation(slot.generation);
    slot.submitted = true;
}

void Uses::retract(ClientSlot& slot) noexcept {
    const std::lock_guard lock(mutex_);
    slot.submitted = false;
}

void Uses::forget(const ClientSlot& slot) noexcept {
    const std::lock_guard lock(mutex_);
    std::erase(out_, &slot);
    count_.store(static_cast<std::uint32_t>(out_.size()), std::memory_order_relaxed);
}

}  // namespace teal
