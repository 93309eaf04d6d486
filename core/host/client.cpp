#include "host/client.hpp"

#include <algorithm>
#include <climits>
#include <cstring>
#include <poll.h>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "cpu/clock.hpp"

namespace teal {
namespace {

constexpr std::uint64_t nap_ns = 50'000'000;  // bound of one sleep: how late a dead host is noticed

std::uint64_t now_ns() noexcept { return static_cast<std::uint64_t>(monotonic_ns()); }

}  // namespace

ClientSession::ClientSession(std::unique_ptr<SessionMap> map, std::uint64_t idle_ns, int socket)
    : map_(std::move(map)), socket_(socket), spin_(idle_ns), producer_(map_->ring(), map_->layout.ring_capacity) {
    free_lines_.reserve(map_->layout.slots);
    for (std::uint32_t i = map_->layout.slots; i-- > 0;) free_lines_.push_back(i);
    generations_.assign(map_->layout.slots, 0);
    for (const auto& region : map_->owned) arenas_.push_back(region ? std::make_unique<Arena>(page_bytes, region->size()) : nullptr);
}

ClientSession::~ClientSession() = default;

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

void ClientSession::submit(ClientSlot& slot, std::uint32_t model, std::uint32_t version, std::int32_t priority, std::uint64_t deadline_ns,
                           std::vector<std::shared_ptr<ClientSlot>> after) {
    if (closed()) throw Error(Code::closed, "the connection to the host is closed");
    if (slot.submitted && !quiescent(slot)) throw Error(Code::busy, "this slot's previous request is still out; wait for it, or use another slot");
    if (after.size() > max_after)
        throw Error(Code::invalid_argument, "$.after: " + std::to_string(after.size()) + " to wait for, expected at most 7; let an event stand for several");
    slot.awaited.swap(after);
    let_go_of(std::move(after));
    const bool watched = uses_.concerns(slot);
    if (watched) {
        uses_.admit(slot);
    } else {
        slot.generation = next_generation(slot.generation);
        slot.submitted = true;
    }
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
    if (!slot.awaited.empty()) {
        entry.flags = entry_after;
        AfterLine& line = map_->afters()[slot.index];  // nobody reads it before the entry below is published
        line.count = static_cast<std::uint32_t>(slot.awaited.size());
        for (std::size_t i = 0; i < slot.awaited.size(); ++i) line.on[i] = {slot.awaited[i]->index, slot.awaited[i]->generation};
    }
    {
        const std::lock_guard lock(ring_mutex_);
        const std::uint64_t now = ticks();
        slot.submitted_ticks = now;
        entry.submitted_low = static_cast<std::uint32_t>(now);
        entry.submitted_high = static_cast<std::uint32_t>(now >> 32);
        if (!producer_.push(&entry)) {
            if (watched) uses_.retract(slot);
            else slot.submitted = false;
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
    if (header->need_wake.exchange(0, std::memory_order_acq_rel) != 0) rouse();
}

void ClientSession::rouse() noexcept {
    SessionHeader* header = map_->header();
    header->doorbell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(&header->doorbell, INT_MAX);  // a worker that lost the lead in its sleep may lie beside the one that has it
}

bool ClientSession::spin(ClientSlot& slot, std::uint64_t ns) noexcept {
    return spin_for(ns, [&] { return ended(slot); }, [this] { return worker_here(); });
}

bool ClientSession::worker_here() const noexcept {
    const std::uint8_t here = core_mark();
    if (here == 0) return true;
    const SessionHeader& header = *map_->header();
    return std::ranges::any_of(header.worker_cores, [&](const auto& mark) { return mark.load(std::memory_order_relaxed) == here; });
}

bool ClientSession::quiescent(const ClientSlot& slot) noexcept {
    for (const auto& sibling : slot.siblings)
        if (!let_go(*sibling)) return false;
    return let_go(slot);
}

void ClientSession::let_go_of_places(ClientSlot& slot) noexcept {
    if (!slot.holds.empty() && !slot.kept && let_go(slot)) std::exchange(slot.holds, {});
}

bool ClientSession::let_go(const ClientSlot& slot) noexcept {
    if (slot.direct && !settled(*slot.device, slot.device_generation)) return false;
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
        // SYNC: seq_cst load pairs with the counting up of `waiting` in nap() and Notifier::loop(): another thread may sleep on it.
        if (slot.line->waiting.load(std::memory_order_seq_cst) != 0) futex_wake(low_word(&slot.line->word), INT_MAX);
        // SYNC: release pairs with the acquire in Pool::ends_of(): whoever sees the count sees the word.
        map_->header()->ends.fetch_add(1, std::memory_order_release);
        ring_doorbell();  // it may wait where nobody looks before what it waits for has come, or others may wait for it
        return true;
    }
    return false;
}

// Sleeps through the middle of a call whose length is known, unless callers spin that long. True when it slept.
bool ClientSession::doze(ClientSlot& slot, std::uint64_t until_ns) {
    const std::uint64_t begin = slot.expected ? slot.expected->window().begin_ns : 0;
    if (begin <= spin_.ceiling_ns() || ended(slot)) return false;
    const auto passed = static_cast<std::uint64_t>(ticks_to_ns(ticks() - slot.submitted_ticks));
    if (passed >= begin) return false;
    const std::uint64_t wake = now_ns() + (begin - passed);
    const std::uint64_t until = until_ns == 0 ? wake : std::min(wake, until_ns);
    for (std::uint64_t now = now_ns(); now < until && !ended(slot); now = now_ns()) {
        nap(slot, std::min(until, now + nap_ns));
        if (!ended(slot)) check_peer();
    }
    return true;
}

// Dozes, then spins across the likely end. True when it has ended.
bool ClientSession::wait_out(ClientSlot& slot, std::uint64_t end_ns) {
    const std::uint64_t window_end = slot.expected ? slot.expected->window().end_ns : 0;
    if (window_end == 0 || spin_.ceiling_ns() == 0) return false;  // unknown, or nobody is to spin
    doze(slot, end_ns);
    if (ended(slot)) return true;
    const auto passed = static_cast<std::uint64_t>(ticks_to_ns(ticks() - slot.submitted_ticks));
    if (passed >= window_end) return false;
    std::uint64_t budget = window_end - passed;
    if (end_ns != 0) {
        const std::uint64_t now = now_ns();
        budget = std::min(budget, end_ns > now ? end_ns - now : 0);
    }
    return spin_for(budget, [&] { return ended(slot); }, [this] { return worker_here(); });
}

// One bounded sleep on the slot's completion word.
void ClientSession::nap(ClientSlot& slot, std::uint64_t until_ns) noexcept {
    // SYNC: seq_cst pairs with end_request(): we count ourselves in, then load the word; it stores the word, then loads
    // `waiting`. Counted, because others may sleep on the same word; and out again, because whoever is awake at the end, as a
    // caller that only dozed is, costs the worker no system call.
    slot.line->waiting.fetch_add(1, std::memory_order_seq_cst);
    const std::uint64_t word = slot.line->word.load(std::memory_order_seq_cst);
    if (!has_ended(word, slot.generation)) futex_wait(low_word(&slot.line->word), static_cast<std::uint32_t>(word), until_ns);
    slot.line->waiting.fetch_sub(1, std::memory_order_relaxed);  // too late for somebody only costs a wake-up of nobody
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
        done = spin_for(budget, [&] { return ended(slot); }, [this] { return worker_here(); });
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
    for (std::uint32_t i = 0; i + 1 < map_->layout.stage_count; ++i) {
        std::uint32_t seen = 0;
        // Relaxed: it guards no other data, and only threads of this client write it.
        if (stages[i].model.compare_exchange_strong(seen, model + 1, std::memory_order_relaxed) || seen == model + 1) return &stages[i];
    }
    return &stages[map_->layout.stage_count - 1];
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

}  // namespace teal
