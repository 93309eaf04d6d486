// How long calls of one kind take: what a waiter needs to sleep through the middle of a long call and be awake at its end.
//
// Theory of operation: waking a sleeper costs 6–50 µs, spinning through a call of milliseconds costs a core. A call whose length is
// known within a few percent needs neither: sleep until shortly before its likely end, then spin across it. The mean and the
// mean deviation are kept as moving averages (weight 1/8), per model and shapes; a window that would be longer than an eighth of the
// call is cut to that, and a call that is not over by the end of the window is waited for asleep. Racing writers lose
// samples, nothing else.
#pragma once

#include <atomic>
#include <cstdint>

namespace teal {

class Expectation {
public:
    struct Window { std::uint64_t begin_ns; std::uint64_t end_ns; };  // after submission; both 0: nothing is known

    void learn(std::uint64_t ns) noexcept {
        const std::uint64_t mean = mean_.load(std::memory_order_relaxed);
        if (mean == 0) {
            mean_.store(ns, std::memory_order_relaxed);
            deviation_.store(ns / 8, std::memory_order_relaxed);
            return;
        }
        const std::uint64_t error = ns > mean ? ns - mean : mean - ns;
        mean_.store(mean - mean / 8 + ns / 8, std::memory_order_relaxed);
        const std::uint64_t deviation = deviation_.load(std::memory_order_relaxed);
        // One long outlier must not open the window for the next ten calls.
        deviation_.store(deviation - deviation / 8 + (error < 4 * deviation + mean / 64 ? error : 4 * deviation + mean / 64) / 8, std::memory_order_relaxed);
    }

    [[nodiscard]] Window window() const noexcept {
        const std::uint64_t mean = mean_.load(std::memory_order_relaxed);
        if (mean < shortest_ns) return {0, 0};
        std::uint64_t before = 3 * deviation_.load(std::memory_order_relaxed) + lead_ns;
        std::uint64_t after = 4 * deviation_.load(std::memory_order_relaxed) + lead_ns;
        const std::uint64_t most = mean / 8 < 2 * lead_ns ? 2 * lead_ns : mean / 8;
        if (before + after > most) {
            before = before * most / (before + after);
            after = most - before;
        }
        return {before < mean ? mean - before : 0, mean + after};
    }

private:
    static constexpr std::uint64_t shortest_ns = 500'000;  // below, spinning all the way costs no more than the window
    static constexpr std::uint64_t lead_ns = 150'000;      // timer slack (50 µs) and a slow wake-up
    std::atomic<std::uint64_t> mean_{0};
    std::atomic<std::uint64_t> deviation_{0};
};

}  // namespace teal
