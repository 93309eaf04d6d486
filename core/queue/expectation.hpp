// How long calls of one kind take: what a waiter needs to sleep through the middle of a long call and be awake at its end.
//
// Theory of operation: waking a sleeper costs 6–50 µs, spinning through a call of milliseconds costs a core. A call whose length is
// known within a few percent needs neither: sleep until shortly before its likely end, then spin across it. Kept are a low and a
// high quantile (10 % and 90 %), per model and shapes, each moved a little up or down by every call: unlike a mean they do not
// follow the few calls that a busy machine stretches to twice their length. A window longer than an eighth of the call, or than 2 ms, is
// cut to that, from its end: a wake-up saved is worth no more, and whoever waits for a pipeline, whose length depends on what else is under
// way, would take a core from it for a tenth of a second. A call that is not over by then is waited for asleep. Racing writers lose samples,
// nothing else.
#pragma once

#include <atomic>
#include <cstdint>

namespace teal {

class Expectation {
public:
    struct Window { std::uint64_t begin_ns; std::uint64_t end_ns; };  // after submission; both 0: nothing is known

    void learn(std::uint64_t ns) noexcept {
        const std::uint64_t low = low_.load(std::memory_order_relaxed);
        if (low == 0) {
            low_.store(ns, std::memory_order_relaxed);
            high_.store(ns, std::memory_order_relaxed);
            return;
        }
        // A quantile p rests where p of the calls push it down by (1 - p) steps and the others up by p steps.
        low_.store(moved(low, ns, 1, 9), std::memory_order_relaxed);
        high_.store(moved(high_.load(std::memory_order_relaxed), ns, 9, 1), std::memory_order_relaxed);
    }

    [[nodiscard]] Window window() const noexcept {
        const std::uint64_t low = low_.load(std::memory_order_relaxed);
        if (low < shortest_ns) return {0, 0};
        const std::uint64_t high = high_.load(std::memory_order_relaxed);
        const std::uint64_t eighth = low / 8 < longest_ns ? low / 8 : longest_ns;
        const std::uint64_t most = eighth < 2 * lead_ns ? 2 * lead_ns : eighth;
        const std::uint64_t begin = low - lead_ns;
        const std::uint64_t end = (high > low ? high : low) + lead_ns;
        return {begin, end - begin > most ? begin + most : end};
    }

private:
    static std::uint64_t moved(std::uint64_t quantile, std::uint64_t ns, std::uint64_t up, std::uint64_t down) noexcept {
        const std::uint64_t tenth = quantile / 640 + 1;  // of a step, which is 1/64 of the value
        return ns > quantile ? quantile + tenth * up : quantile - tenth * down;
    }

    static constexpr std::uint64_t shortest_ns = 500'000;  // below, spinning all the way costs no more than the window
    static constexpr std::uint64_t longest_ns = 2'000'000;
    static constexpr std::uint64_t lead_ns = 150'000;      // timer slack (50 µs) and a slow wake-up
    std::atomic<std::uint64_t> low_{0};
    std::atomic<std::uint64_t> high_{0};
};

}  // namespace teal
