// Slot, as Python holds it: the tensors and completion line of one call, and who it belongs to.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/error.hpp"
#include "bindings/tensor.hpp"
#include "cpu/clock.hpp"
#include "host/slot_home.hpp"

namespace teal {

// Spun with the GIL held: shorter than giving it away and getting it back.
inline constexpr std::uint64_t held_spin_ns = 4'000;

inline constexpr std::uint64_t direct_spin_ns = 50'000;
inline constexpr std::uint64_t most_direct_spin_ns = 1'000'000;

inline constexpr std::uint64_t signal_slice_ns = 50'000'000;

struct Home {
    std::shared_ptr<SlotHome> home;
    ClientStages* stages = nullptr;      // the session's
    std::uint32_t model = 0;
    std::uint32_t version = 0;
    std::uint32_t forks = fork_generation.load(std::memory_order_relaxed);
};

struct Slot {
    std::shared_ptr<ClientSlot> elder;   // whose inputs a sibling uses; declared first: goes last
    std::shared_ptr<ClientSlot> slot;
    std::shared_ptr<ClientSession> session;
    ClientStages* stages = nullptr;      // the session's
    const SlotHome* home = nullptr;      // only compared
    std::uint32_t model = 0;
    std::uint32_t version = 0;
    std::uint32_t forks = fork_generation.load(std::memory_order_relaxed);
    std::uint64_t deadline_ns = 0;   // of the last submit
    bool outgrown = false;           // its outputs did not fit: the next call on its inputs gets a slot with more room
    bool counted = true;             // the last submit's end was added to the statistics
    std::shared_ptr<void> claim;     // from ready() until its outputs were taken: no other call gets this memory meanwhile

    Slot(std::shared_ptr<ClientSession> s, ClientStages* counters, const SlotHome* from, std::uint32_t m, std::uint32_t v)
        : session(std::move(s)), stages(counters), home(from), model(m), version(v) {}
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

    void submit(std::int32_t priority, std::uint64_t deadline, std::vector<std::shared_ptr<ClientSlot>> after = {}) {
        check_not_forked(forks);
        const bool rewritten = (flags_of(word()) & word_reshaped) != 0 || reason_of(word()) == Reason::output_spilled;
        if (rewritten && ClientSession::quiescent(*slot)) restore_outputs();  // whoever had the slot at that time
        deadline_ns = deadline;
        counted = false;
        session->submit(*slot, model, version, priority, deadline, std::move(after));
    }

    // The whole call through a resident device kernel. False: submit() it. `until_ns`: CLOCK_MONOTONIC, 0: no deadline.
    bool call_direct(std::uint64_t until_ns) {
        check_not_forked(forks);
        struct GiveUp {  // who leaves by an exception takes no outputs
            std::shared_ptr<void>& claim;
            bool thrown = true;
            ~GiveUp() {
                if (thrown) claim.reset();
            }
        } leaving{claim};
        const bool done = run_direct(until_ns);
        leaving.thrown = false;
        return done;
    }

    bool run_direct(std::uint64_t until_ns) {
        if (!session->submit_direct(*slot)) return false;
        Answer answer = session->wait_direct(*slot, held_spin_ns, held_spin_ns);
        while (answer == Answer::late) {
            const auto now = static_cast<std::uint64_t>(monotonic_ns());
            if (until_ns != 0 && now >= until_ns) throw Error(Code::deadline_exceeded, "the deadline passed before the device answered");
            if (session->peer_gone()) throw Error(Code::peer_died, "host: its process is gone");
            const std::uint64_t slice = until_ns == 0 ? signal_slice_ns : std::min(until_ns - now, signal_slice_ns);
            {
                const nb::gil_scoped_release release;
                // A device wakes nobody, and a nap lasts 50 µs at least: spin for as long as such calls take.
                const std::uint64_t expected = std::min(2 * slot->direct_ns + direct_spin_ns, most_direct_spin_ns);
                answer = session->wait_direct(*slot, slice, std::min(slice, std::max(session->spin_budget_ns(), expected)));
            }
            if (answer == Answer::late && PyErr_CheckSignals() != 0) nb::raise_python_error();
        }
        if (answer != Answer::done) return false;
        ClientSession::saw_direct_end(*slot, *stages);
        return true;
    }

    void count_end() {
        if (counted) return;
        counted = true;
        ClientSession::saw_end(*slot, *stages);
        if (!slot->awaited.empty()) let_go_of(std::exchange(slot->awaited, {}));
        // Outputs of others that it took were inputs, and the worker is done with them. So what comes after keeps no more than one of a chain.
        if (slot->placed && ClientSession::let_go(*slot))
            for (Hold& hold : slot->holds)
                if (hold.chained) let_go_of(std::exchange(hold, Hold{}));
    }

    // The middle of a long call asleep, and then the GIL taken once well before its likely end: a core that slept comes back with
    // cold caches, and taking the GIL is 1 to 5 µs of misses the first time.
    void doze(std::uint64_t until_ns) {
        const std::uint64_t end = deadline_ns == 0 ? until_ns : until_ns == 0 ? deadline_ns : std::min(until_ns, deadline_ns);
        for (bool slept = true; slept;) {
            const std::uint64_t now = static_cast<std::uint64_t>(monotonic_ns());
            if (end != 0 && now >= end) return;
            const std::uint64_t slice = now + signal_slice_ns;
            {
                const nb::gil_scoped_release release;
                slept = session->doze(*slot, end == 0 ? slice : std::min(end, slice));
            }
            if (slept && PyErr_CheckSignals() != 0) nb::raise_python_error();
        }
    }

    bool wait(std::uint64_t until_ns) {
        check_not_forked(forks);
        if (!session->spin(*slot, held_spin_ns)) {
            doze(until_ns);
            for (;;) {
                // In slices, so that Ctrl-C and other Python signal handlers get their turn during a long call.
                const std::uint64_t slice = static_cast<std::uint64_t>(monotonic_ns()) + signal_slice_ns;
                const bool last = until_ns != 0 && until_ns <= slice;
                bool done = false;
                {
                    const nb::gil_scoped_release release;
                    done = session->wait(*slot, last ? until_ns : slice, deadline_ns);
                }
                if (done) break;
                if (last) return false;
                if (PyErr_CheckSignals() != 0) nb::raise_python_error();
            }
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

// An event, as Python holds it.
struct Event {
    std::shared_ptr<ClientSession> session;
    std::shared_ptr<ClientSlot> line;
    std::uint32_t forks = fork_generation.load(std::memory_order_relaxed);

    explicit Event(std::shared_ptr<ClientSession> s) : session(std::move(s)), line(session->make_event()) {}
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    ~Event() {
        // A forked child holds a copy of the pointer; what becomes of the event is the parent's business.
        if (forks != fork_generation.load(std::memory_order_relaxed)) new std::shared_ptr<ClientSlot>(std::move(line));
        else session->signal(*line, State::cancelled);  // what waits for it still holds the line, and nobody can signal it any more
    }
};

}  // namespace teal
