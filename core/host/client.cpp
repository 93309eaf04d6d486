#include "host/client.hpp"

#include <algorithm>
#include <climits>
#include <cstring>
#include <iterator>
#include <poll.h>
#include <string>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "cpu/clock.hpp"

namespace teal {
namespace {

constexpr std::uint64_t nap_ns = 50'000'000;  // bound of one sleep: how late a dead host is noticed
constexpr std::uint32_t message_capacity = 512;

std::uint64_t now_ns() noexcept { return static_cast<std::uint64_t>(monotonic_ns()); }

std::uint64_t plan_bytes(const TensorPlan& plan) {
    if ((plan.flags & tensor_absent) != 0) return 0;
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    if ((plan.flags & tensor_unplanned) == 0 && !tensor_bytes(plan.dtype, plan.shape.data(), plan.shape.size(), count, bytes))
        throw Error(Code::invalid_argument, "shape: a negative extent, or more than 2^63 bytes");
    return std::max(bytes, plan.capacity);
}

}  // namespace

Block::~Block() { session->release_block(region, offset); }

ClientSession::ClientSession(std::unique_ptr<SessionMap> map, std::uint64_t idle_ns, int socket)
    : map_(std::move(map)), socket_(socket), spin_(idle_ns), producer_(map_->ring(), map_->layout.ring_capacity) {
    free_lines_.reserve(map_->layout.slots);
    for (std::uint32_t i = map_->layout.slots; i-- > 0;) free_lines_.push_back(i);
    generations_.assign(map_->layout.slots, 0);
}

ClientSession::~ClientSession() = default;

void ClientSession::retire_slot(std::unique_ptr<ClientSlot> slot) {
    const std::lock_guard lock(retired_mutex_);
    retired_.push_back(std::move(slot));
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

void ClientSession::add_region(std::uint32_t id, int fd) {
    auto region = Region::adopt(fd, RegionKind::tensor, true);
    region->close_fd();
    const std::lock_guard lock(memory_mutex_);
    if (arenas_.size() <= id) arenas_.resize(id + 1);
    arenas_[id] = std::make_unique<Arena>(page_bytes, region->size());
    map_->set_region(id, std::move(region));
}

std::vector<std::uint32_t> ClientSession::take_empty_regions(std::uint64_t keep_bytes) {
    std::vector<std::uint32_t> empty;
    const std::lock_guard lock(memory_mutex_);
    std::uint64_t kept = 0;
    for (std::uint32_t id = 0; id < arenas_.size(); ++id) {
        if (!arenas_[id] || arenas_[id]->blocks() > 0) continue;
        const std::uint64_t size = map_->owned[id]->size();
        if (kept + size <= keep_bytes) {
            kept += size;
            continue;
        }
        arenas_[id].reset();
        map_->set_region(id, nullptr);
        empty.push_back(id);
    }
    return empty;
}

std::optional<ClientSession::Piece> ClientSession::find(std::uint64_t size, std::uint64_t align) {
    for (std::uint32_t id = 0; id < arenas_.size(); ++id) {
        if (!arenas_[id]) continue;
        if (const auto offset = arenas_[id]->allocate(size, align)) return Piece{id, *offset, map_->owned[id]};
    }
    return std::nullopt;
}

std::shared_ptr<Block> ClientSession::allocate(std::uint64_t size, std::uint64_t align) {
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
    if (inputs.size() + outputs.size() > max_tensors)
        throw Error(Code::invalid_argument, std::to_string(inputs.size() + outputs.size()) + " inputs and outputs, expected at most 1024");
    const std::uint64_t header = round_up(descriptor_bytes(inputs.size(), outputs.size(), message_capacity), tensor_align);
    std::uint64_t total = header;
    auto slot = std::make_unique<ClientSlot>();
    const auto lay_out = [&](const std::vector<TensorPlan>& plans, std::vector<TensorDesc>& list) {
        for (const TensorPlan& plan : plans) {
            TensorDesc tensor{};
            if (plan.shape.size() > max_rank) throw Error(Code::invalid_argument, "rank " + std::to_string(plan.shape.size()) + ", expected at most 8");
            if (plan.in_place >= 0 && static_cast<std::size_t>(plan.in_place) < slot->inputs.size()) {
                slot->in_place.push_back(plan.in_place);
                list.push_back(slot->inputs[static_cast<std::size_t>(plan.in_place)]);
                continue;
            }
            if (&list == &slot->outputs) slot->in_place.push_back(-1);
            const std::uint64_t capacity = plan_bytes(plan);
            tensor.dtype = static_cast<std::uint8_t>(plan.dtype);
            tensor.rank = static_cast<std::uint8_t>(plan.shape.size());
            tensor.flags = plan.flags;
            tensor.offset = total;  // made absolute below
            tensor.capacity = capacity;
            tensor.nbytes = capacity;
            std::uint64_t count = 0;
            if ((plan.flags & (tensor_absent | tensor_unplanned)) == 0 && !tensor_bytes(plan.dtype, plan.shape.data(), plan.shape.size(), count, tensor.nbytes))
                throw Error(Code::invalid_argument, "shape: a negative extent, or more than 2^63 bytes");
            for (std::size_t i = 0; i < plan.shape.size(); ++i) tensor.shape[i] = plan.shape[i];
            std::uint64_t padded = 0;
            if (!checked_add(capacity, tensor_align - 1, padded) || !checked_add(total, padded & ~(tensor_align - 1), total) || total > INT64_MAX)
                throw Error(Code::invalid_argument, "the tensors of one call need more than 2^63 bytes");
            list.push_back(tensor);
        }
    };
    lay_out(inputs, slot->inputs);
    lay_out(outputs, slot->outputs);
    if (!place(*slot, total)) return nullptr;
    for (auto* list : {&slot->inputs, &slot->outputs})
        for (TensorDesc& tensor : *list) {
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
    std::shared_ptr<ClientSlot> sibling{made.release(), [session = shared_from_this()](ClientSlot* raw) { session->destroy_slot(std::unique_ptr<ClientSlot>(raw)); }};
    slot->siblings.push_back(sibling);
    return sibling;
}

void ClientSession::destroy_slot(std::unique_ptr<ClientSlot> slot) {
    const std::lock_guard lock(memory_mutex_);
    generations_[slot->index] = slot->generation;
    free_lines_.push_back(slot->index);
    if (slot->region < arenas_.size() && arenas_[slot->region]) arenas_[slot->region]->release(slot->block);
}

std::shared_ptr<ClientSlot> ClientSession::make_event() {
    destroy_retired();
    auto slot = std::make_unique<ClientSlot>();
    {
        const std::lock_guard lock(memory_mutex_);
        if (free_lines_.empty())
            throw Error(Code::quota_exceeded, "all " + std::to_string(map_->layout.slots) + " slots of this session are on loan; an event takes one: release some, or raise Limits.slots");
        slot->index = free_lines_.back();
        free_lines_.pop_back();
        slot->generation = next_generation(generations_[slot->index]);
    }
    slot->region = UINT32_MAX;  // no memory
    slot->line = &map_->lines()[slot->index];
    slot->submitted = true;
    slot->submitted_ticks = ticks();
    return {slot.release(), [session = shared_from_this()](ClientSlot* raw) {
        session->signal(*raw, State::cancelled);
        session->destroy_slot(std::unique_ptr<ClientSlot>(raw));
    }};
}

bool ClientSession::signal(ClientSlot& event, State to) noexcept {
    if (!cancel(event, to, Reason::none)) return false;
    // A leader that spins sees the line itself; one that sleeps is woken, and nobody else costs a syscall.
    ring_doorbell();
    return true;
}

void ClientSession::rearm(ClientSlot& event) {
    if (!ended(event)) throw Error(Code::busy, "this event has not come yet; signal() it first");
    event.generation = next_generation(event.generation);
    event.submitted_ticks = ticks();
}

void ClientSession::submit(ClientSlot& slot, std::uint32_t model, std::uint32_t version, std::int32_t priority, std::uint64_t deadline_ns,
                           std::vector<std::shared_ptr<ClientSlot>> after) {
    if (closed()) throw Error(Code::closed, "the connection to the host is closed");
    if (slot.submitted && !quiescent(slot)) throw Error(Code::busy, "this slot's previous request is still out; wait for it, or use another slot");
    if (after.size() > max_after)
        throw Error(Code::invalid_argument, "$.after: " + std::to_string(after.size()) + " to wait for, expected at most 7; let an event stand for several");
    slot.generation = next_generation(slot.generation);
    slot.submitted = true;
    // Only when a wait() gave up before the end; a store on every call would cost the line a trip between the cores.
    if (slot.line->waiting.load(std::memory_order_relaxed) != 0) slot.line->waiting.store(0, std::memory_order_relaxed);
    RequestEntry entry{};
    entry.slot = slot.index;
    entry.generation = slot.generation;
    entry.model = model;
    entry.version = version;
    entry.priority = priority;
    entry.stamp = slot.stamp;
    entry.region = slot.region;
    entry.offset_low = static_cast<std::uint32_t>(slot.offset);
    entry.offset_high = static_cast<std::uint32_t>(slot.offset >> 32);
    entry.deadline_low = static_cast<std::uint32_t>(deadline_ns);
    entry.deadline_high = static_cast<std::uint32_t>(deadline_ns >> 32);
    if (!after.empty()) {
        entry.flags = entry_after;
        AfterLine& line = map_->afters()[slot.index];  // nobody reads it before the entry below is published
        line.count = static_cast<std::uint32_t>(after.size());
        for (std::size_t i = 0; i < after.size(); ++i) line.on[i] = {after[i]->index, after[i]->generation};
    }
    slot.awaited = std::move(after);
    {
        const std::lock_guard lock(ring_mutex_);
        const std::uint64_t now = ticks();
        slot.submitted_ticks = now;
        entry.submitted_low = static_cast<std::uint32_t>(now);
        entry.submitted_high = static_cast<std::uint32_t>(now >> 32);
        if (!producer_.push(&entry)) {
            slot.submitted = false;
            throw Error(Code::would_block, "the request ring is full; wait for some requests to end");
        }
    }
    ring_doorbell();
}

void ClientSession::ring_doorbell() noexcept {
    SessionHeader* header = map_->header();
    // SYNC: pairs with the exchange in Worker::sleep_leading(). We have published, then exchange; it exchanges, then looks at
    // the ring: whichever exchange is second sees what was done before the first. The line stays in our cache: a worker
    // that spins does not touch it.
    if (header->need_wake.exchange(0, std::memory_order_acq_rel) == 0) return;
    header->doorbell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(&header->doorbell, INT_MAX);  // a worker that lost the lead in its sleep may lie beside the one that has it
}

bool ClientSession::spin(ClientSlot& slot, std::uint64_t ns) noexcept {
    return spin_for(ns, [&] { return ended(slot); });
}

bool ClientSession::quiescent(const ClientSlot& slot) noexcept {
    for (const auto& sibling : slot.siblings)
        if (!quiescent(*sibling)) return false;
    if (!slot.submitted) return true;
    const std::uint64_t word = slot.line->word.load(std::memory_order_acquire);
    if (has_ended(word, slot.generation) && (flags_of(word) & word_released) != 0) return true;
    // SYNC: acquire pairs with release_slot().
    return slot.line->released.load(std::memory_order_acquire) == (slot.generation & generation_mask);
}

bool ClientSession::cancel(ClientSlot& slot, State to, Reason reason) noexcept {
    std::uint64_t seen = slot.line->word.load(std::memory_order_acquire);
    while (!has_ended(seen, slot.generation)) {
        const bool running = generation_of(seen) == (slot.generation & generation_mask);
        if (running && to == State::cancelled) return false;  // claimed: its effects can be noticed
        // SYNC: acq_rel pairs with end_request() and claim_request(): one of us ends it.
        if (!slot.line->word.compare_exchange_strong(seen, make_word(slot.generation, to, reason), std::memory_order_seq_cst)) continue;
        // SYNC: seq_cst load pairs with the store of `waiting` in nap() and Notifier::loop(): another thread may sleep on it.
        if (slot.line->waiting.load(std::memory_order_seq_cst) != 0) futex_wake(low_word(&slot.line->word), INT_MAX);
        if (!slot.awaited.empty()) ring_doorbell();  // it waits where nobody would look before what it waits for has come
        return true;
    }
    return false;
}

// Sleeps through the middle of a call whose length is known, then spins across its likely end. True when it has ended.
bool ClientSession::wait_out(ClientSlot& slot, std::uint64_t end_ns) {
    const Expectation::Window window = slot.expected ? slot.expected->window() : Expectation::Window{0, 0};
    if (window.end_ns == 0) return false;
    const auto since_submit = [&] { return static_cast<std::uint64_t>(ticks_to_ns(ticks() - slot.submitted_ticks)); };
    std::uint64_t passed = since_submit();
    if (passed < window.begin_ns) {
        const std::uint64_t wake = now_ns() + (window.begin_ns - passed);
        const std::uint64_t until = end_ns == 0 ? wake : std::min(wake, end_ns);
        for (std::uint64_t now = now_ns(); now < until && !ended(slot); now = now_ns()) {
            nap(slot, std::min(until, now + nap_ns));
            if (!ended(slot)) check_peer();
        }
        passed = since_submit();
    }
    if (ended(slot)) return true;
    if (passed >= window.end_ns) return false;
    std::uint64_t budget = window.end_ns - passed;
    if (end_ns != 0) {
        const std::uint64_t now = now_ns();
        budget = std::min(budget, end_ns > now ? end_ns - now : 0);
    }
    return spin_for(budget, [&] { return ended(slot); });
}

// One bounded sleep on the slot's completion word.
void ClientSession::nap(ClientSlot& slot, std::uint64_t until_ns) noexcept {
    // SYNC: seq_cst pairs with end_request(): we store `waiting`, then load the word; it stores the word, then
    // loads `waiting`. Only submit() takes it down again: others may sleep on the same word.
    slot.line->waiting.store(1, std::memory_order_seq_cst);
    const std::uint64_t word = slot.line->word.load(std::memory_order_seq_cst);
    if (!has_ended(word, slot.generation)) futex_wait(low_word(&slot.line->word), static_cast<std::uint32_t>(word), until_ns);
}

void ClientSession::check_peer() const {
    if (closed()) throw Error(Code::closed, "the connection to the host was closed before the answer came");
    if (peer_gone()) throw Error(Code::peer_died, "host: its process is gone");
}

bool ClientSession::wait(ClientSlot& slot, std::uint64_t until_ns, std::uint64_t deadline_ns) {
    const std::uint64_t start = ticks();
    const std::uint64_t end = deadline_ns == 0 ? until_ns : until_ns == 0 ? deadline_ns : std::min(until_ns, deadline_ns);
    bool done = wait_out(slot, end);
    std::uint64_t now = now_ns();
    if (!done) {
        std::uint64_t budget = spin_.budget_ns();
        if (end != 0 && now + budget > end) budget = end > now ? end - now : 0;
        done = spin_for(budget, [&] { return ended(slot); });
    }
    while (!done) {
        now = now_ns();
        if (deadline_ns != 0 && now >= deadline_ns) {
            cancel(slot, State::expired, Reason::deadline);
            break;
        }
        if (until_ns != 0 && now >= until_ns) return false;
        nap(slot, end == 0 ? now + nap_ns : std::min(end, now + nap_ns));
        done = ended(slot);
        if (!done) check_peer();
    }
    spin_.learn(static_cast<std::uint64_t>(ticks_to_ns(ticks() - start)));
    if (done && slot.expected) slot.expected->learn(static_cast<std::uint64_t>(ticks_to_ns(ticks() - slot.submitted_ticks)));
    return true;
}

ClientStages* ClientSession::stages_of(std::uint32_t model) noexcept {
    ClientStages* stages = map_->stages();
    for (std::uint32_t i = 0; i + 1 < stages_per_session; ++i) {
        std::uint32_t seen = 0;
        // Relaxed: it guards no other data, and only threads of this client write it.
        if (stages[i].model.compare_exchange_strong(seen, model + 1, std::memory_order_relaxed) || seen == model + 1) return &stages[i];
    }
    return &stages[stages_per_session - 1];
}

void ClientSession::saw_end(const ClientSlot& slot, ClientStages& stages) noexcept {
    const std::uint64_t now = ticks();
    const std::uint64_t times = slot.line->times.load(std::memory_order_relaxed);
    stages.requests.fetch_add(1, std::memory_order_relaxed);
    // A word that this side ended has the times of the request before.
    const bool by_worker = state_of(slot.line->word.load(std::memory_order_relaxed)) == State::done;
    if (by_worker && times != 0) stages.wake.add(static_cast<std::uint64_t>(ticks_to_ns(ticks_since_left(times, now))));
    if (now > slot.submitted_ticks) stages.total.add(static_cast<std::uint64_t>(ticks_to_ns(now - slot.submitted_ticks)));
}

bool ClientSession::peer_gone() const noexcept {
    pollfd poll_fd{socket_, 0, 0};
    poll_fd.events = POLLRDHUP;
    return ::poll(&poll_fd, 1, 0) > 0 && (poll_fd.revents & (POLLHUP | POLLRDHUP | POLLERR | POLLNVAL)) != 0;
}

void ClientSession::close() noexcept {
    closed_.store(true, std::memory_order_relaxed);
    std::vector<std::unique_ptr<ClientSlot>> retired;  // siblings of theirs hold this session
    const std::lock_guard lock(retired_mutex_);
    retired.swap(retired_);
}

std::uint64_t ClientSession::bytes_used() const {
    const std::lock_guard lock(memory_mutex_);
    std::uint64_t total = 0;
    for (const auto& arena : arenas_)
        if (arena) total += arena->used();
    return total;
}

std::uint64_t ClientSession::slots_out() const {
    const std::lock_guard lock(memory_mutex_);
    return map_->layout.slots - free_lines_.size();
}

std::uint64_t ClientSession::region_bytes() const {
    const std::lock_guard lock(memory_mutex_);
    std::uint64_t total = 0;
    for (const auto& region : map_->owned)
        if (region) total += region->size();
    return total;
}

std::uint32_t ClientSession::largest_page_shift() const {
    const std::lock_guard lock(memory_mutex_);
    std::uint32_t shift = 12;
    for (const auto& region : map_->owned)
        if (region) shift = std::max(shift, region->page_shift());
    return shift;
}

SlotHome::SlotHome(std::shared_ptr<ClientSession> session, std::vector<TensorPlan> inputs, std::vector<TensorPlan> outputs, std::size_t keep, bool may_spin)
    : session_(std::move(session)), inputs_(std::move(inputs)), outputs_(std::move(outputs)),
      expected_(may_spin ? std::make_shared<Expectation>() : nullptr), keep_(keep) {}

SlotHome::~SlotHome() {
    for (auto& slot : idle_) session_->destroy_slot(std::move(slot));
    // The worker side may still write to slots in limbo: the session keeps them until it does not.
    for (auto& slot : limbo_) session_->retire_slot(std::move(slot));
}

std::shared_ptr<ClientSlot> SlotHome::loan() {
    std::unique_ptr<ClientSlot> slot;
    std::vector<std::shared_ptr<ClientSlot>> awaited;  // may come home here as well: not under the lock
    {
        const std::lock_guard lock(mutex_);
        for (std::size_t i = 0; i < limbo_.size();) {
            if (!ClientSession::quiescent(*limbo_[i])) { ++i; continue; }
            std::move(limbo_[i]->awaited.begin(), limbo_[i]->awaited.end(), std::back_inserter(awaited));
            limbo_[i]->awaited.clear();
            idle_.push_back(std::move(limbo_[i]));
            limbo_[i] = std::move(limbo_.back());
            limbo_.pop_back();
        }
        if (!idle_.empty()) {
            slot = std::move(idle_.back());
            idle_.pop_back();
        }
    }
    if (!slot) slot = session_->make_slot(inputs_, outputs_);
    if (!slot) return nullptr;
    slot->submitted = false;
    slot->expected = expected_;
    return {slot.release(), [home = shared_from_this()](ClientSlot* raw) { home->take_back(std::unique_ptr<ClientSlot>(raw)); }};
}

void SlotHome::take_back(std::unique_ptr<ClientSlot> slot) noexcept {
    // A request that nobody waits for any more still runs (its kernel may have effects); its slot rests in limbo.
    std::vector<std::shared_ptr<ClientSlot>> awaited;  // may come home here as well: not under the lock
    const std::lock_guard lock(mutex_);
    if (ClientSession::quiescent(*slot)) awaited.swap(slot->awaited);
    if (!ClientSession::quiescent(*slot)) limbo_.push_back(std::move(slot));
    else if (idle_.size() < keep_) idle_.push_back(std::move(slot));
    else session_->destroy_slot(std::move(slot));
}

void SlotHome::forget_idle() {
    const std::lock_guard lock(mutex_);
    for (auto& slot : idle_) session_->destroy_slot(std::move(slot));
    idle_.clear();
}

}  // namespace teal
