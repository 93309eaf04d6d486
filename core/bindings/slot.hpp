// Slot, as Python holds it: the tensors and completion line of one call, and who it belongs to.
#pragma once

#include <nanobind/nanobind.h>

#include <cstring>
#include <memory>

#include "base/error.hpp"
#include "bindings/tensor.hpp"
#include "cpu/clock.hpp"
#include "host/client.hpp"
#include "queue/histogram.hpp"

namespace teal {

// Spun with the GIL held: shorter than giving it away and getting it back.
inline constexpr std::uint64_t held_spin_ns = 4'000;

struct Stats {  // of one Model object in this process
    std::uint64_t requests = 0;
    std::uint64_t copies_in = 0;
    std::uint64_t bytes_in = 0;
    Histogram wake{};
    Histogram total{};
    Histogram copy{};
};

struct Home {
    std::shared_ptr<SlotHome> home;
    std::shared_ptr<Stats> stats;
    std::uint32_t model = 0;
    std::uint32_t version = 0;
};

struct Slot {
    std::shared_ptr<ClientSlot> elder;   // whose inputs a sibling uses; declared first: goes last
    std::shared_ptr<ClientSlot> slot;
    std::shared_ptr<ClientSession> session;
    std::shared_ptr<Stats> stats;
    const SlotHome* home = nullptr;      // only compared
    std::uint32_t model = 0;
    std::uint32_t version = 0;
    std::uint32_t forks = fork_generation.load(std::memory_order_relaxed);
    std::uint64_t deadline_ns = 0;   // of the last submit
    std::uint64_t submitted = 0;     // ticks of the last submit
    bool counted = true;             // the last submit's end was added to the statistics

    Slot(std::shared_ptr<ClientSession> s, std::shared_ptr<Stats> numbers, const SlotHome* from, std::uint32_t m, std::uint32_t v)
        : session(std::move(s)), stats(std::move(numbers)), home(from), model(m), version(v) {}
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;
    ~Slot() {
        if (forks == fork_generation.load(std::memory_order_relaxed)) return;
        // A forked child holds copies of the pointers; giving the slot back is the parent's business.
        new std::shared_ptr<ClientSlot>(std::move(slot));
        new std::shared_ptr<ClientSlot>(std::move(elder));
    }

    TensorDesc& tensor(std::size_t index, bool output) const {
        auto& list = output ? slot->outputs : slot->inputs;
        if (index >= list.size()) throw Error(Code::invalid_argument, "tensor index out of range");
        return list[index];
    }
    // Copies this side's record of a tensor into the shared block; the worker takes it up with the next stamp.
    void store(std::size_t index, bool output) const {
        const std::size_t at = (output ? slot->inputs.size() : 0) + index;
        std::memcpy(slot->base + slot->offset + sizeof(DescriptorHeader) + at * sizeof(TensorDesc), &tensor(index, output), sizeof(TensorDesc));
        slot->stamp = session->next_stamp();
    }

    // The last run wrote other shapes into the block; the next one may not write any.
    void restore_outputs() const {
        std::byte* at = slot->base + slot->offset + sizeof(DescriptorHeader) + slot->inputs.size() * sizeof(TensorDesc);
        if (!slot->outputs.empty()) std::memcpy(at, slot->outputs.data(), slot->outputs.size() * sizeof(TensorDesc));
    }

    void submit(std::int32_t priority, std::uint64_t deadline) {
        check_not_forked(forks);
        if (slot->submitted && (flags_of(word()) & word_reshaped) != 0 && ClientSession::quiescent(*slot)) restore_outputs();
        deadline_ns = deadline;
        counted = false;
        submitted = ticks();
        session->submit(*slot, model, version, priority, deadline);
    }

    void count_end() {
        if (counted) return;
        counted = true;
        ++stats->requests;
        const std::uint64_t now = ticks();
        const std::uint64_t ended = slot->line->ended.load(std::memory_order_relaxed);
        if (ended != 0 && now > ended) stats->wake.add(static_cast<std::uint64_t>(ticks_to_ns(now - ended)));
        if (now > submitted) stats->total.add(static_cast<std::uint64_t>(ticks_to_ns(now - submitted)));
        session->saw_end(*slot, submitted);
    }

    bool wait(std::uint64_t until_ns) {
        check_not_forked(forks);
        if (!session->spin(*slot, held_spin_ns)) {
            const nb::gil_scoped_release release;
            if (!session->wait(*slot, until_ns, deadline_ns)) return false;
        }
        count_end();
        return true;
    }

    [[nodiscard]] std::uint64_t word() const { return slot->line->word.load(std::memory_order_acquire); }
    // Done, outputs where and as they were planned: nothing to look up.
    [[nodiscard]] bool plain_success() const {
        return (word() & ~(std::uint64_t{word_released} << 48)) == make_word(slot->generation, State::done);
    }
};

}  // namespace teal
