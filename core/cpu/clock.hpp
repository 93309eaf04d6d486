// Time for measuring and for deadlines. Never the wall clock: nothing here moves when somebody sets the date.
//
// Theory of operation. Two scales:
//   ticks()         the CPU's own counter (rdtsc, cntvct_el0), a few nanoseconds to read, for intervals on the hot path;
//   monotonic_ns()  CLOCK_MONOTONIC, the scale of deadlines and of anything that is compared with what the kernel says.
// The TSC is used only where it can be trusted: the CPU calls it invariant, the kernel has not struck it off its list of clock
// sources (it does so when the cores disagree or the rate drifts), and this process is allowed to read it. Otherwise ticks()
// *is* monotonic_ns(), at 10^9 ticks per second: slower to read, never wrong; tick_source() says which one it is.
//
// The rate is measured against CLOCK_MONOTONIC between the load of this library and the first conversion (at least 2 ms apart,
// so that the two ends, each read to some 50 ns, give it within 50 ppm), then stays fixed: a conversion is one multiplication.
// With one tick source, ticks are comparable between the processes of a machine; compare tick_source() before relying on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace teal {

enum class TickSource : std::uint8_t { unknown, counter, clock_gettime };

std::int64_t monotonic_ns() noexcept;  // CLOCK_MONOTONIC

namespace detail {

// Written once with the same value by whoever comes first; relaxed, because it guards no other data.
extern std::atomic<TickSource> tick_source;

std::uint64_t first_ticks() noexcept;  // settles tick_source, or serves the clock_gettime case

// Fixed point: ns = ticks * ns_per_tick >> point, and the reverse.
class Rate {
public:
    explicit Rate(std::uint64_t per_second) noexcept;  // 1 kHz to 1 THz
    [[nodiscard]] std::int64_t to_ns(std::uint64_t interval) const noexcept;
    [[nodiscard]] std::uint64_t to_ticks(std::int64_t interval) const noexcept;

    std::uint64_t per_second;

private:
    static constexpr unsigned point = 44;
    std::uint64_t ns_per_tick_, ticks_per_ns_;
};

inline std::uint64_t read_counter() noexcept {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();  // what __rdtsc() is, without the weight of <x86intrin.h> in every file
#elif defined(__aarch64__)
    std::uint64_t value = 0;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
#else
    return static_cast<std::uint64_t>(monotonic_ns());
#endif
}

}  // namespace detail

// Not ordered against surrounding loads and stores (no fence): right for intervals of 100 ns and more.
inline std::uint64_t ticks() noexcept {
    if (detail::tick_source.load(std::memory_order_relaxed) == TickSource::counter) [[likely]] {
        return detail::read_counter();
    }
    return detail::first_ticks();
}

TickSource tick_source() noexcept;                          // never unknown
std::string_view tick_source_name() noexcept;               // "tsc", "cntvct" or "clock_gettime"
std::uint64_t ticks_per_second() noexcept;                  // the first call may take 2 ms
std::int64_t ticks_to_ns(std::uint64_t interval) noexcept;  // saturates at the largest int64 (292 years)
std::uint64_t ns_to_ticks(std::int64_t interval) noexcept;  // a negative interval gives 0

}  // namespace teal
