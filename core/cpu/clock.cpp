// Chooses the tick source and measures its rate; see clock.hpp for the theory of operation.
#include "cpu/clock.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <limits>

#include "cpu/features.hpp"

namespace teal {
namespace {

__extension__ using Uint128 = unsigned __int128;

constexpr std::int64_t nanoseconds_per_second = 1'000'000'000;
constexpr std::int64_t shortest_calibration_ns = 2'000'000;
constexpr std::int64_t longest_calibration_ns = 10 * nanoseconds_per_second;  // beyond it the rate gains nothing

std::int64_t clock_ns(clockid_t clock) noexcept {
    timespec time{};
    ::clock_gettime(clock, &time);
    return std::int64_t{time.tv_sec} * nanoseconds_per_second + time.tv_nsec;
}

#if defined(__x86_64__)

// True unless the kernel lists its clock sources and the TSC is not among them. Where there is no list (a sandbox without
// /sys), nobody has objected.
bool kernel_accepts_tsc() noexcept {
    std::FILE* file = std::fopen("/sys/devices/system/clocksource/clocksource0/available_clocksource", "re");
    if (file == nullptr) {
        return true;
    }
    char line[256] = {};
    const bool has_line = std::fgets(line, sizeof line, file) != nullptr;
    std::fclose(file);
    if (!has_line) {
        return true;
    }
    char* rest = nullptr;
    for (const char* word = ::strtok_r(line, " \n", &rest); word != nullptr; word = ::strtok_r(nullptr, " \n", &rest)) {
        if (std::strcmp(word, "tsc") == 0) {
            return true;
        }
    }
    return false;
}

#endif

TickSource choose_source() noexcept {
#if defined(__x86_64__)
    int permission = PR_TSC_ENABLE;
    if (::prctl(PR_GET_TSC, &permission) == 0 && permission != PR_TSC_ENABLE) {
        return TickSource::clock_gettime;  // rdtsc would raise SIGSEGV
    }
    return cpu_features().invariant_tsc && kernel_accepts_tsc() ? TickSource::counter : TickSource::clock_gettime;
#elif defined(__aarch64__)
    return TickSource::counter;  // architected: one rate, always on, readable from user space under Linux
#else
    return TickSource::clock_gettime;
#endif
}

// The same moment on both scales.
struct Anchor {
    std::uint64_t ticks = 0;
    std::int64_t monotonic = 0;
    std::int64_t suspended = 0;  // time spent suspended since boot, which CLOCK_MONOTONIC leaves out and a counter may not
};

Anchor read_anchor() noexcept {
    Anchor best;
    std::uint64_t narrowest = std::numeric_limits<std::uint64_t>::max();
    for (int attempt = 0; attempt < 5; ++attempt) {  // the narrowest bracket was not interrupted
        const std::uint64_t before = ticks();
        const std::int64_t now = monotonic_ns();
        const std::uint64_t width = ticks() - before;
        if (width < narrowest) {
            narrowest = width;
            best.ticks = before + width / 2;
            best.monotonic = now;
        }
    }
    best.suspended = clock_ns(CLOCK_BOOTTIME) - monotonic_ns();
    return best;
}

const Anchor load_anchor = read_anchor();

constexpr std::uint64_t lowest_rate = 1'000;

detail::Rate measure_rate() noexcept {
    if (tick_source() == TickSource::clock_gettime) {
        return detail::Rate(static_cast<std::uint64_t>(nanoseconds_per_second));
    }
    Anchor start = load_anchor;
    Anchor now = read_anchor();
    constexpr std::int64_t suspend_slack_ns = 1'000'000;  // the two clocks of `suspended` are read one after the other
    const std::int64_t suspended = now.suspended - start.suspended;
    if (start.monotonic == 0 || now.monotonic - start.monotonic > longest_calibration_ns || suspended > suspend_slack_ns ||
        suspended < -suspend_slack_ns) {
        start = now;
    }
    while (now.monotonic - start.monotonic < shortest_calibration_ns) {
        now = read_anchor();
    }
    const Uint128 counted = now.ticks - start.ticks;
    const auto elapsed = static_cast<Uint128>(now.monotonic - start.monotonic);
    const auto per_second = static_cast<std::uint64_t>(counted * static_cast<Uint128>(nanoseconds_per_second) / elapsed);
    return detail::Rate(std::max(per_second, lowest_rate));  // a counter that stands still must not divide by zero
}

const detail::Rate& rate() noexcept {
    static const detail::Rate measured = measure_rate();
    return measured;
}

}  // namespace

namespace detail {

constexpr std::uint64_t second = nanoseconds_per_second;

// 44 bits keep ten digits of either factor for every rate between a slow cntvct (1 MHz) and a fast TSC, and fit in 64 bits from
// 1 kHz to 1 THz. Rounded up: with a rate such as 2.4 GHz many intervals are whole in either unit, and shall be in the other.
Rate::Rate(std::uint64_t rate) noexcept
    : per_second(rate), ns_per_tick_(static_cast<std::uint64_t>(((Uint128{second} << point) + rate - 1) / rate)),
      ticks_per_ns_(static_cast<std::uint64_t>(((Uint128{rate} << point) + second - 1) / second)) {}

std::int64_t Rate::to_ns(std::uint64_t interval) const noexcept {
    const Uint128 ns = Uint128{interval} * ns_per_tick_ >> point;
    constexpr auto largest = std::numeric_limits<std::int64_t>::max();
    return ns > static_cast<Uint128>(largest) ? largest : static_cast<std::int64_t>(ns);
}

std::uint64_t Rate::to_ticks(std::int64_t interval) const noexcept {
    if (interval <= 0) return 0;
    const Uint128 counted = static_cast<Uint128>(interval) * ticks_per_ns_ >> point;
    constexpr auto largest = std::numeric_limits<std::uint64_t>::max();
    return counted > Uint128{largest} ? largest : static_cast<std::uint64_t>(counted);
}

std::atomic<TickSource> tick_source{TickSource::unknown};

std::uint64_t first_ticks() noexcept {
    return teal::tick_source() == TickSource::counter ? read_counter() : static_cast<std::uint64_t>(monotonic_ns());
}

}  // namespace detail

std::int64_t monotonic_ns() noexcept { return clock_ns(CLOCK_MONOTONIC); }

TickSource tick_source() noexcept {
    TickSource source = detail::tick_source.load(std::memory_order_relaxed);
    if (source == TickSource::unknown) {
        source = choose_source();
        detail::tick_source.store(source, std::memory_order_relaxed);
    }
    return source;
}

std::string_view tick_source_name() noexcept {
    if (tick_source() == TickSource::clock_gettime) {
        return "clock_gettime";
    }
#if defined(__aarch64__)
    return "cntvct";
#else
    return "tsc";
#endif
}

std::uint64_t ticks_per_second() noexcept { return rate().per_second; }

std::int64_t ticks_to_ns(std::uint64_t interval) noexcept { return rate().to_ns(interval); }
std::uint64_t ns_to_ticks(std::int64_t interval) noexcept { return rate().to_ticks(interval); }

}  // namespace teal
