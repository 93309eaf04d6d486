// The jitter measurement; see jitter.hpp for the theory of operation.
#include "cpu/jitter.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>

#include "base/error.hpp"
#include "cpu/clock.hpp"

namespace teal {
namespace {

constexpr int longest_ms = 60'000;
constexpr int highest_core = 65'535;  // far above any kernel's NR_CPUS; bounds the size of the affinity mask
constexpr const char* where_to_look = "give one that Cpus_allowed_list in /proc/self/status names";

struct FreeCpuSet {
    void operator()(cpu_set_t* set) const noexcept { CPU_FREE(set); }
};

struct Attributes {
    Attributes() noexcept { ::pthread_attr_init(&value); }
    ~Attributes() { ::pthread_attr_destroy(&value); }
    Attributes(const Attributes&) = delete;
    Attributes& operator=(const Attributes&) = delete;

    pthread_attr_t value{};
};

void spin(Jitter& jitter) noexcept {
    const std::uint64_t over_5us = ns_to_ticks(5'000);
    const std::uint64_t over_20us = ns_to_ticks(20'000);
    const std::uint64_t over_100us = ns_to_ticks(100'000);
    const std::uint64_t start = ticks();
    const std::uint64_t length = ns_to_ticks(static_cast<std::int64_t>(jitter.milliseconds) * 1'000'000);
    std::uint64_t lost = 0;
    std::uint64_t longest = 0;
    std::uint64_t last = start;
    while (last - start < length) {
        const std::uint64_t now = ticks();
        const std::uint64_t gap = now > last ? now - last : 0;  // a counter that steps back is no gap
        last = now;
        ++jitter.reads;
        if (gap > over_5us) [[unlikely]] {
            ++jitter.over_5us;
            jitter.over_20us += gap > over_20us ? 1 : 0;
            jitter.over_100us += gap > over_100us ? 1 : 0;
            lost += gap;
        }
        longest = std::max(longest, gap);
    }
    jitter.milliseconds = static_cast<double>(ticks_to_ns(last - start)) / 1e6;
    jitter.lost_ms = static_cast<double>(ticks_to_ns(lost)) / 1e6;
    jitter.max_us = static_cast<double>(ticks_to_ns(longest)) / 1e3;
}

void* spin_thread(void* argument) {
    spin(*static_cast<Jitter*>(argument));
    return nullptr;
}

}  // namespace

Jitter measure_jitter(int core, int milliseconds) {
    if (core < 0 || core > highest_core) {
        throw Error(Code::invalid_argument, "jitter: core " + std::to_string(core) + " is not between 0 and " +
                                                std::to_string(highest_core) + "; " + where_to_look);
    }
    if (milliseconds < 1 || milliseconds > longest_ms) {
        throw Error(Code::invalid_argument, "jitter: milliseconds is " + std::to_string(milliseconds) +
                                                ", expected 1 to " + std::to_string(longest_ms));
    }
    const auto count = static_cast<std::size_t>(core) + 1;
    const std::unique_ptr<cpu_set_t, FreeCpuSet> set(CPU_ALLOC(count));
    if (!set) {
        throw Error(Code::internal_error, system_message("jitter: CPU_ALLOC", ENOMEM));
    }
    const std::size_t size = CPU_ALLOC_SIZE(count);
    CPU_ZERO_S(size, set.get());
    CPU_SET_S(static_cast<std::size_t>(core), size, set.get());

    Attributes attributes;
    Jitter jitter;
    jitter.core = core;
    jitter.milliseconds = milliseconds;
    ticks_per_second();  // calibrate now: it must not be inside the measurement
    pthread_t thread{};
    // The affinity travels in the attributes, so the thread never runs a single instruction elsewhere.
    int refusal = ::pthread_attr_setaffinity_np(&attributes.value, size, set.get());
    if (refusal == 0) {
        refusal = ::pthread_create(&thread, &attributes.value, spin_thread, &jitter);
    }
    if (refusal == EINVAL) {
        throw Error(Code::invalid_argument, "jitter: this process may not run on core " + std::to_string(core) +
                                                " (cpuset or offline); " + where_to_look);
    }
    if (refusal != 0) {
        throw Error(Code::internal_error, system_message("jitter: starting a thread", refusal));
    }
    ::pthread_join(thread, nullptr);
    return jitter;
}

}  // namespace teal
