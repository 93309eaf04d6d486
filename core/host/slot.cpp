// The memory side of ClientSession: blocks, slots, and the descriptor blocks that say where their tensors are.
#include "host/slot.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "host/client.hpp"

namespace teal {
namespace {

constexpr std::uint32_t message_capacity = 512;
constexpr std::uint32_t own = UINT32_MAX;  // region of a tensor whose offset still counts from the slot's own block

std::uint64_t plan_bytes(const TensorPlan& plan) {
    if ((plan.flags & tensor_absent) != 0) return 0;
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    if ((plan.flags & tensor_unplanned) == 0 && !tensor_bytes(plan.dtype, plan.shape.data(), plan.shape.size(), count, bytes))
        throw Error(Code::invalid_argument, "shape: a negative extent, or more than 2^63 bytes");
    return std::max(bytes, plan.capacity);
}

std::string path_of(bool output, std::size_t index) { return (output ? "$.outputs[" : "$.inputs[") + std::to_string(index) + "]"; }

// Puts one tensor after the other behind the descriptor block, except those that lie elsewhere.
class Layout {
public:
    explicit Layout(ClientSlot& slot, std::size_t tensors) : slot_(slot), total_(round_up(descriptor_bytes(tensors, 0, message_capacity), tensor_align)) {}

    void input(const TensorPlan& plan) { slot_.inputs.push_back(described(plan)); }
    void output(const TensorPlan& plan) {
        const bool shares = !plan.place && plan.in_place >= 0 && static_cast<std::size_t>(plan.in_place) < slot_.inputs.size();
        slot_.in_place.push_back(shares ? plan.in_place : -1);
        slot_.outputs.push_back(shares ? slot_.inputs[static_cast<std::size_t>(plan.in_place)] : described(plan));
    }
    [[nodiscard]] std::uint64_t total() const noexcept { return total_; }

private:
    TensorDesc described(const TensorPlan& plan) {
        if (plan.shape.size() > max_rank) throw Error(Code::invalid_argument, "rank " + std::to_string(plan.shape.size()) + ", expected at most 8");
        TensorDesc tensor{};
        tensor.dtype = static_cast<std::uint8_t>(plan.dtype);
        tensor.rank = static_cast<std::uint8_t>(plan.shape.size());
        tensor.flags = plan.flags;
        tensor.capacity = plan_bytes(plan);
        tensor.nbytes = tensor.capacity;
        std::uint64_t count = 0;
        if ((plan.flags & (tensor_absent | tensor_unplanned)) == 0 && !(plan.place && plan.dtype == Dtype::bytes) &&
            !tensor_bytes(plan.dtype, plan.shape.data(), plan.shape.size(), count, tensor.nbytes))
            throw Error(Code::invalid_argument, "shape: a negative extent, or more than 2^63 bytes");
        std::copy(plan.shape.begin(), plan.shape.end(), tensor.shape);
        if (plan.place) {
            slot_.placed = true;
            tensor.region = plan.place->region;
            tensor.offset = plan.place->offset;
            if (plan.link) {
                tensor.capacity = tensor.nbytes = plan.capacity;
                set_link(tensor, *plan.link);
            }
            return tensor;
        }
        tensor.region = own;
        tensor.offset = total_;
        std::uint64_t padded = 0;
        if (!checked_add(tensor.capacity, tensor_align - 1, padded) || !checked_add(total_, padded & ~(tensor_align - 1), total_) || total_ > INT64_MAX)
            throw Error(Code::invalid_argument, "the tensors of one call need more than 2^63 bytes");
        return tensor;
    }

    ClientSlot& slot_;
    std::uint64_t total_;
};

// What is written lies apart from everything else of the call.
void check_apart(const ClientSlot& slot) {
    for (std::size_t i = 0; i < slot.outputs.size(); ++i) {
        if (slot.in_place[i] >= 0) continue;
        for (std::size_t j = 0; j < slot.inputs.size(); ++j)
            if (overlap(slot.outputs[i], slot.inputs[j]))
                throw Error(Code::invalid_argument, path_of(true, i) + ": overlaps " + path_of(false, j) + "; outputs need memory of their own");
        for (std::size_t j = 0; j < i; ++j)
            if (overlap(slot.outputs[i], slot.outputs[j]))
                throw Error(Code::invalid_argument, path_of(true, i) + ": overlaps " + path_of(true, j) + "; outputs need memory of their own");
    }
}

}  // namespace

Block::~Block() { session->release_block(region, offset); }

void ClientSession::check_places(const ClientSlot& slot) const {
    const auto check = [this](const TensorDesc& tensor, const std::string& path) {
        if (tensor.region == own || (tensor.flags & tensor_absent) != 0) return;
        if (tensor.region >= map_->owned.size() || !map_->owned[tensor.region])
            throw Error(Code::invalid_argument, path + ": " + std::to_string(tensor.region) + " is not a region of this session");
        const std::uint64_t size = map_->owned[tensor.region]->size();
        if (tensor.offset < page_bytes || !within(tensor.offset, tensor.capacity, size))
            throw Error(Code::invalid_argument, path + ": " + std::to_string(tensor.offset) + " + " + std::to_string(tensor.capacity) +
                        " bytes leave region " + std::to_string(tensor.region) + " of " + std::to_string(size) + " bytes");
        if (tensor.offset % dtype_info(static_cast<Dtype>(tensor.dtype)).size != 0)
            throw Error(Code::invalid_argument, path + ": " + std::to_string(tensor.offset) + " is not aligned for its dtype");
    };
    const std::lock_guard lock(memory_mutex_);
    for (std::size_t i = 0; i < slot.inputs.size(); ++i) check(slot.inputs[i], path_of(false, i));
    for (std::size_t i = 0; i < slot.outputs.size(); ++i) check(slot.outputs[i], path_of(true, i));
}

void ClientSession::retire_slot(std::unique_ptr<ClientSlot> slot) {
    {
        const std::lock_guard lock(retired_mutex_);
        if (!closed()) {
            retired_.push_back(std::move(slot));
            return;
        }
    }
    uses_.forget(*slot);  // nothing is loaned any more: its memory may go, and what it holds may hold this session
}

void ClientSession::destroy_retired() {
    std::vector<std::unique_ptr<ClientSlot>> quiet;
    {
        const std::lock_guard lock(retired_mutex_);
        for (std::size_t i = 0; i < retired_.size();) {
            if (!quiescent(*retired_[i])) { ++i; continue; }
            quiet.push_back(std::move(retired_[i]));
            retired_[i] = std::move(retired_.back());
            retired_.pop_back();
        }
    }
    for (auto& slot : quiet) destroy_slot(std::move(slot));
}

std::optional<ClientSession::Piece> ClientSession::find(std::uint64_t size, std::uint64_t align) {
    for (std::uint32_t id = 0; id < arenas_.size(); ++id) {
        if (!arenas_[id]) continue;
        if (const auto offset = arenas_[id]->allocate(size, align)) return Piece{id, *offset, map_->owned[id]};
    }
    return std::nullopt;
}

std::shared_ptr<Block> ClientSession::allocate(std::uint64_t size, std::uint64_t align) {
    destroy_retired();
    const std::lock_guard lock(memory_mutex_);
    auto piece = find(size, align);
    if (!piece) return nullptr;
    auto block = std::make_shared<Block>();
    block->session = shared_from_this();
    block->memory = piece->memory;
    block->region = piece->region;
    block->offset = piece->offset;
    block->size = size;
    return block;
}

void ClientSession::release_block(std::uint32_t region, std::uint64_t offset) noexcept {
    const std::lock_guard lock(memory_mutex_);
    if (region < arenas_.size() && arenas_[region]) arenas_[region]->release(offset);
}

std::unique_ptr<ClientSlot> ClientSession::make_slot(const std::vector<TensorPlan>& inputs, const std::vector<TensorPlan>& outputs) {
    const std::size_t tensors = inputs.size() + outputs.size();
    if (tensors > max_tensors) throw Error(Code::invalid_argument, std::to_string(tensors) + " inputs and outputs, expected at most 1024");
    auto slot = std::make_unique<ClientSlot>();
    Layout layout(*slot, tensors);
    for (const TensorPlan& plan : inputs) layout.input(plan);
    for (const TensorPlan& plan : outputs) layout.output(plan);
    if (slot->placed) {
        check_places(*slot);
        check_apart(*slot);
    }
    if (!place(*slot, layout.total())) return nullptr;
    for (auto* list : {&slot->inputs, &slot->outputs})
        for (TensorDesc& tensor : *list) {
            if (tensor.region != own) continue;
            tensor.region = slot->region;
            tensor.offset += slot->offset;
        }
    write_descriptor(*slot);
    return slot;
}

// Gives the slot a completion line and a block of memory. False: no room for the block.
bool ClientSession::place(ClientSlot& slot, std::uint64_t total) {
    destroy_retired();
    const std::lock_guard lock(memory_mutex_);
    if (free_lines_.empty())
        throw Error(Code::quota_exceeded, "all " + std::to_string(map_->layout.slots) + " slots of this session are on loan; release tensors, or raise Limits.slots");
    auto piece = find(total, tensor_align);
    if (!piece) return false;
    slot.index = free_lines_.back();
    free_lines_.pop_back();
    slot.generation = generations_[slot.index];
    slot.region = piece->region;
    slot.offset = piece->offset;
    slot.block = piece->offset;
    slot.memory = piece->memory;
    slot.base = piece->memory->base();
    slot.line = &map_->lines()[slot.index];
    slot.device = &map_->devices()[slot.index];
    slot.stamp = next_stamp();
    return true;
}

void ClientSession::write_descriptor(ClientSlot& slot) noexcept {
    DescriptorHeader head{};
    head.magic = descriptor_magic;
    head.n_in = static_cast<std::uint16_t>(slot.inputs.size());
    head.n_out = static_cast<std::uint16_t>(slot.outputs.size());
    head.message_capacity = message_capacity;
    std::byte* at = slot.base + slot.offset;
    std::memcpy(at, &head, sizeof head);
    at += sizeof head;
    for (const auto* list : {&slot.inputs, &slot.outputs}) {
        if (!list->empty()) std::memcpy(at, list->data(), list->size() * sizeof(TensorDesc));
        at += list->size() * sizeof(TensorDesc);
    }
}

std::shared_ptr<ClientSlot> ClientSession::ready(const std::shared_ptr<ClientSlot>& slot) {
    const auto usable = [](const std::shared_ptr<ClientSlot>& one) { return one->views.use_count() == 1 && quiescent(*one); };
    if (usable(slot)) return slot;
    for (const auto& sibling : slot->siblings)
        if (usable(sibling)) return sibling;
    auto made = std::make_unique<ClientSlot>();
    made->inputs = slot->inputs;
    made->outputs = slot->outputs;
    made->in_place = slot->in_place;
    made->expected = slot->expected;
    std::uint64_t total = round_up(descriptor_bytes(slot->inputs.size(), slot->outputs.size(), message_capacity), tensor_align);
    const auto own = [&](std::size_t output) { return made->in_place[output] < 0; };
    for (std::size_t i = 0; i < made->outputs.size(); ++i) {
        if (!own(i)) continue;
        made->outputs[i].offset = total;
        total += round_up(made->outputs[i].capacity, tensor_align);
    }
    if (!place(*made, total)) return nullptr;
    for (std::size_t i = 0; i < made->outputs.size(); ++i) {
        if (!own(i)) continue;
        made->outputs[i].region = made->region;
        made->outputs[i].offset += made->offset;
    }
    write_descriptor(*made);
    // The sibling does not hold its elder: while a request of it is out, quiescent() of the elder is false.
    std::shared_ptr<ClientSlot> sibling{made.release(), [session = shared_from_this()](ClientSlot* raw) mutable {
        const auto last = std::move(session);
        last->destroy_slot(std::unique_ptr<ClientSlot>(raw));
    }};
    slot->siblings.push_back(sibling);
    return sibling;
}

namespace {

// Drops these one after the other, those too that are dropped meanwhile: a chain may be long.
void drop_in_turn(std::vector<std::shared_ptr<void>>& more) noexcept {
    thread_local std::vector<std::shared_ptr<void>> leaving;
    thread_local bool at_it = false;
    std::move(more.begin(), more.end(), std::back_inserter(leaving));
    more.clear();
    if (at_it) return;  // further out on this stack
    at_it = true;
    while (!leaving.empty()) {
        const std::shared_ptr<void> one = std::move(leaving.back());
        leaving.pop_back();
    }
    at_it = false;
}

}  // namespace

void let_go_of(std::vector<std::shared_ptr<ClientSlot>>&& awaited) noexcept {
    if (awaited.empty()) return;
    std::vector<std::shared_ptr<void>> leaving(std::make_move_iterator(awaited.begin()), std::make_move_iterator(awaited.end()));
    awaited.clear();
    drop_in_turn(leaving);
}

void let_go_of(Hold&& hold) noexcept {
    Hold dropped = std::move(hold);
    hold = {};
    std::vector<std::shared_ptr<void>> leaving;
    if (dropped.view) leaving.push_back(std::move(dropped.view));
    if (dropped.loan) leaving.push_back(std::move(dropped.loan));
    drop_in_turn(leaving);
}

void ClientSession::destroy_slot(std::unique_ptr<ClientSlot> slot) {
    let_go_of(std::move(slot->awaited));
    if (slot->placed) uses_.forget(*slot);
    const std::lock_guard lock(memory_mutex_);
    generations_[slot->index] = slot->generation;
    free_lines_.push_back(slot->index);
    if (slot->region < arenas_.size() && arenas_[slot->region]) arenas_[slot->region]->release(slot->block);
}

}  // namespace teal
