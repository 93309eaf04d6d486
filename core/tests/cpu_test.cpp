// Tests of core/cpu: feature decoding on machines that are not at hand, clocks, jitter, the three sums, the probes.
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "cpu/clock.hpp"
#include "cpu/features.hpp"
#include "cpu/jitter.hpp"
#include "cpu/probe.hpp"
#include "cpu/sum.hpp"
#include "tests/check.hpp"

namespace {

using teal::CpuidWords;
using teal::Feature;
using teal::Isa;

// Sapphire Rapids as CPUID tells it, with an OS that has switched everything on.
[[maybe_unused]] CpuidWords wide_machine() {
    CpuidWords words;
    words.leaf1_ecx = 0x7FFAFBFFU;
    words.leaf7_ebx = 0xF1BF27EBU;
    words.leaf7_ecx = 0x1A427F66U;
    words.leaf7_edx = 1U << 22 | 1U << 24 | 1U << 25;
    words.leaf7_1_eax = 1U << 4 | 1U << 5;
    words.extended1_ecx = 0x21U;
    words.extended7_edx = 1U << 8;
    words.xcr0 = 0x602E7U;
    return words;
}

void test_decode() {
    const auto nothing = teal::decode(CpuidWords{});
    CHECK(!nothing.is_enabled(Feature::avx2));
    CHECK(!nothing.is_enabled(Feature::amx_int8));
    CHECK(!nothing.invariant_tsc);
    CHECK_EQ(teal::widest_isa(nothing), Isa::baseline);
#if defined(__x86_64__)
    CHECK(!nothing.is_enabled(Feature::baseline));

    CpuidWords words = wide_machine();
    auto features = teal::decode(words);
    for (std::size_t i = 0; i < teal::feature_count; ++i) {
        CHECK(features.offered[i]);
        CHECK(features.enabled[i]);
    }
    CHECK(features.invariant_tsc);
    CHECK_EQ(teal::widest_isa(features), Isa::amx);

    words.xcr0 = 0xE7;  // no tile state
    features = teal::decode(words);
    CHECK(features.is_offered(Feature::amx_bf16));
    CHECK(!features.is_enabled(Feature::amx_bf16));
    CHECK(features.is_enabled(Feature::avx512_bf16));
    CHECK_EQ(teal::widest_isa(features), Isa::avx512);

    words.xcr0 = 0x60007;  // tiles without ZMM state is no state that a kernel of ours may run in
    CHECK_EQ(teal::widest_isa(teal::decode(words)), Isa::avx2);

    words.xcr0 = 0x67;  // upper ZMM registers missing
    CHECK_EQ(teal::widest_isa(teal::decode(words)), Isa::avx2);

    words.xcr0 = 0;  // CPU offers all, OS has no XSAVE
    features = teal::decode(words);
    CHECK(features.is_offered(Feature::avx512_vnni));
    CHECK(features.is_offered(Feature::avx2));
    CHECK(!features.is_enabled(Feature::avx2));
    CHECK(features.is_enabled(Feature::baseline));
    CHECK_EQ(teal::widest_isa(features), Isa::baseline);

    words = wide_machine();
    words.leaf7_ebx &= ~(1U << 30);  // AVX-512 without BW (Knights Landing) is not our avx512
    CHECK_EQ(teal::widest_isa(teal::decode(words)), Isa::avx2);
    words.leaf1_ecx &= ~(1U << 12);  // AVX2 without FMA (VIA) is not our avx2
    CHECK_EQ(teal::widest_isa(teal::decode(words)), Isa::baseline);
#else
    CHECK(nothing.is_enabled(Feature::baseline));
#endif
}

void test_isa_request() {
    CHECK_EQ(teal::resolve_isa(Isa::avx512, nullptr).isa, Isa::avx512);
    CHECK(teal::resolve_isa(Isa::avx512, nullptr).error.empty());
    CHECK_EQ(teal::resolve_isa(Isa::amx, "avx2").isa, Isa::avx2);
    CHECK(teal::resolve_isa(Isa::amx, "avx2").error.empty());
    const std::string narrowest(teal::isa_name(Isa::baseline));
    CHECK_EQ(teal::resolve_isa(Isa::amx, narrowest.c_str()).isa, Isa::baseline);
    CHECK(teal::resolve_isa(Isa::amx, narrowest.c_str()).error.empty());

    for (const char* wrong : {"amx", "", "AVX2", "avx2 ", "sse9"}) {  // amx: wider than the machine
        const auto choice = teal::resolve_isa(Isa::avx512, wrong);
        CHECK_EQ(choice.isa, Isa::baseline);
        CHECK(choice.error.find("TEAL_ISA") != std::string::npos);
        CHECK(choice.error.find("avx2, avx512") != std::string::npos);
        CHECK(choice.error.find("unset") != std::string::npos);
    }
    const std::string hostile = "\x1b[31m\n" + std::string(5000, 'x');
    const auto choice = teal::resolve_isa(Isa::avx2, hostile.c_str());
    CHECK(choice.error.size() < 300);
    CHECK(choice.error.find('\x1b') == std::string::npos);
    CHECK(choice.error.find('\n') == std::string::npos);
}

void test_this_machine() {
    const auto& features = teal::cpu_features();
    CHECK(features.is_enabled(Feature::baseline));  // or this test would not run
    for (std::size_t i = 0; i < teal::feature_count; ++i) {
        CHECK(features.offered[i] || !features.enabled[i]);
        CHECK(!teal::feature_name(static_cast<Feature>(i)).empty());
    }
    CHECK(teal::isa() <= teal::widest_isa(features));
    if (std::getenv("TEAL_ISA") == nullptr) {
        CHECK_EQ(teal::isa(), teal::widest_isa(features));
        CHECK(teal::isa_error().empty());
        CHECK_EQ(teal::has(Feature::avx512), features.is_enabled(Feature::avx512));
    }
    CHECK(teal::has(Feature::baseline));
    CHECK_EQ(teal::has(Feature::avx2), teal::isa() >= Isa::avx2);
    const bool amx = features.is_enabled(Feature::amx_bf16) || features.is_enabled(Feature::amx_int8);
    if (!amx) {
        CHECK_EQ(teal::amx_permission(), ENOTSUP);
    }
    CHECK_EQ(teal::amx_permission(), teal::amx_permission());
    CHECK_EQ(teal::has(Feature::amx_bf16) || teal::has(Feature::amx_int8),
             teal::isa() == Isa::amx && teal::amx_permission() == 0);
}

void test_clock() {
    CHECK(teal::tick_source() != teal::TickSource::unknown);
    CHECK(!teal::tick_source_name().empty());
    const std::uint64_t rate = teal::ticks_per_second();
    CHECK(rate > 1'000'000);
    CHECK(rate < 100'000'000'000ULL);
    CHECK_EQ(teal::ticks_per_second(), rate);

    std::uint64_t last = teal::ticks();
    bool forward = true;
    for (int i = 0; i < 100'000; ++i) {
        const std::uint64_t now = teal::ticks();
        forward = forward && now >= last;
        last = now;
    }
    CHECK(forward);

    // Both scales over the same stretch. Our own preemption lengthens both alike, except between the paired reads, so the
    // ticks must lie between the inner and the outer stretch of the other clock, within the accuracy of the rate.
    const std::int64_t outer_start = teal::monotonic_ns();
    const std::uint64_t start = teal::ticks();
    const std::int64_t inner_start = teal::monotonic_ns();
    while (teal::monotonic_ns() - inner_start < 20'000'000) {
    }
    const std::int64_t inner = teal::monotonic_ns() - inner_start;
    const std::int64_t measured = teal::ticks_to_ns(teal::ticks() - start);
    const std::int64_t outer = teal::monotonic_ns() - outer_start;
    CHECK(static_cast<double>(measured) >= static_cast<double>(inner) * 0.999);
    CHECK(static_cast<double>(measured) <= static_cast<double>(outer) * 1.001);
}

void test_conversion() {
    CHECK_EQ(teal::ticks_to_ns(0), 0);
    CHECK_EQ(teal::ns_to_ticks(0), 0);
    CHECK_EQ(teal::ns_to_ticks(-5), 0);
    CHECK_EQ(teal::ns_to_ticks(std::numeric_limits<std::int64_t>::min()), 0);
    const std::int64_t second = teal::ticks_to_ns(teal::ticks_per_second());
    CHECK(std::abs(second - 1'000'000'000) <= 2);
    const double one_tick_ns = 1e9 / static_cast<double>(teal::ticks_per_second());
    for (const std::int64_t ns : {1'000LL, 1'000'000LL, 3'600'000'000'000LL, 31'536'000'000'000'000LL}) {
        const std::int64_t back = teal::ticks_to_ns(teal::ns_to_ticks(ns));
        CHECK(std::abs(static_cast<double>(back - ns)) <= one_tick_ns + 2.0 + static_cast<double>(ns) * 1e-9);
    }
    // What is whole in both units is the same in both, whatever the rate.
    for (const std::uint64_t rate : {1'000'000ULL, 24'000'000ULL, 1'000'000'000ULL, 2'400'000'000ULL, 2'450'000'000ULL, 3'300'000'000ULL}) {
        const teal::detail::Rate at(rate);
        for (std::uint64_t ticks = rate / 1'000'000; ticks <= rate; ticks *= 10) {
            const auto ns = static_cast<std::int64_t>(ticks * 1'000 / (rate / 1'000'000));
            CHECK_EQ(at.to_ns(ticks), ns);
            CHECK_EQ(at.to_ticks(ns), ticks);
        }
    }
    CHECK(teal::ticks_to_ns(std::numeric_limits<std::uint64_t>::max()) > 0);  // saturates or fits, never wraps
    CHECK(teal::ns_to_ticks(std::numeric_limits<std::int64_t>::max()) > 0);
}

void test_clock_from_many_threads() {
    std::vector<std::thread> threads;
    std::vector<std::uint64_t> rates(8);
    for (std::size_t i = 0; i < rates.size(); ++i) {
        threads.emplace_back([&rates, i] { rates[i] = teal::ticks_per_second(); });
    }
    for (auto& thread : threads) {
        thread.join();
    }
    for (const std::uint64_t rate : rates) {
        CHECK_EQ(rate, rates.front());
    }
}

template <typename Call>
bool throws_invalid_argument(Call call) {
    try {
        call();
    } catch (const teal::Error& error) {
        return error.code() == teal::Code::invalid_argument && std::strlen(error.what()) > 0;
    }
    return false;
}

int allowed_core() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (::sched_getaffinity(0, sizeof set, &set) == 0) {
        for (int core = 0; core < CPU_SETSIZE; ++core) {
            if (CPU_ISSET(static_cast<std::size_t>(core), &set)) {
                return core;
            }
        }
    }
    return 0;
}

void test_jitter() {
    const int core = allowed_core();
    const teal::Jitter jitter = teal::measure_jitter(core, 20);
    CHECK_EQ(jitter.core, core);
    CHECK(jitter.milliseconds >= 19.9);
    CHECK(jitter.reads > 0);
    CHECK(jitter.over_5us >= jitter.over_20us);
    CHECK(jitter.over_20us >= jitter.over_100us);
    CHECK(jitter.lost_ms <= jitter.milliseconds);
    CHECK(jitter.max_us > 0.0);
    CHECK_EQ(jitter.lost_ms > 0.0, jitter.over_5us > 0);

    CHECK(throws_invalid_argument([] { teal::measure_jitter(-1, 10); }));
    CHECK(throws_invalid_argument([] { teal::measure_jitter(65'535, 10); }));
    CHECK(throws_invalid_argument([] { teal::measure_jitter(std::numeric_limits<int>::max(), 10); }));
    CHECK(throws_invalid_argument([core] { teal::measure_jitter(core, 0); }));
    CHECK(throws_invalid_argument([core] { teal::measure_jitter(core, 60'001); }));
}

double reference_sum(const float* values, std::size_t count) {
    if (count <= 8) {
        double sum = 0.0;
        for (std::size_t i = 0; i < count; ++i) {
            sum += static_cast<double>(values[i]);
        }
        return sum;
    }
    const std::size_t half = count / 2;
    return reference_sum(values, half) + reference_sum(values + half, count - half);
}

bool agrees(double sum, const float* values, std::size_t count) {
    double magnitude = 0.0;
    for (std::size_t i = 0; i < count; ++i) {
        magnitude += std::abs(static_cast<double>(values[i]));
    }
    return std::abs(sum - reference_sum(values, count)) <= 1e-12 * magnitude;
}

std::vector<Isa> runnable() {
    std::vector<Isa> rungs;
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512, Isa::amx}) {
        if (isa <= teal::widest_isa(teal::cpu_features())) {
            rungs.push_back(isa);
        }
    }
    return rungs;
}

void test_sum_agrees() {
    std::mt19937 random(7);  // NOLINT: a fixed seed, so that a failure can be run again
    std::normal_distribution<float> signed_values(0.0F, 1e3F);
    std::uniform_real_distribution<float> positive_values(0.0F, 1.0F);
    const std::vector<Isa> rungs = runnable();
    std::vector<std::size_t> counts = {4095, 4096, 4097, 8192, 12'289, 100'003, 1'000'000};
    for (std::size_t count = 0; count <= 130; ++count) {
        counts.push_back(count);
    }
    for (const std::size_t count : counts) {
        std::vector<float> values(count + 1);
        for (std::size_t i = 0; i < values.size(); ++i) {
            values[i] = count % 2 == 0 ? signed_values(random) : positive_values(random);
        }
        for (const std::size_t offset : {std::size_t{0}, std::size_t{1}}) {  // 4-byte alignment is enough
            for (const Isa isa : rungs) {
                CHECK(agrees(teal::sum_f32_with(isa, values.data() + offset, count), values.data() + offset, count));
            }
            CHECK(agrees(teal::sum_f32(values.data() + offset, count), values.data() + offset, count));
        }
    }
}

void test_sum_edges() {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    constexpr float largest = std::numeric_limits<float>::max();
    constexpr float denormal = std::numeric_limits<float>::denorm_min();
    for (const Isa isa : runnable()) {
        CHECK_EQ(teal::sum_f32_with(isa, nullptr, 0), 0.0);
        for (const std::size_t count : {std::size_t{1}, std::size_t{7}, std::size_t{64}, std::size_t{10'000}}) {
            std::vector<float> values(count, largest);
            CHECK_EQ(teal::sum_f32_with(isa, values.data(), count),
                     static_cast<double>(largest) * static_cast<double>(count));  // no overflow in float64
            values.assign(count, denormal);
            CHECK_EQ(teal::sum_f32_with(isa, values.data(), count),
                     static_cast<double>(denormal) * static_cast<double>(count));
            values.back() = infinity;
            CHECK_EQ(teal::sum_f32_with(isa, values.data(), count), static_cast<double>(infinity));
            values.front() = std::numeric_limits<float>::quiet_NaN();
            CHECK(std::isnan(teal::sum_f32_with(isa, values.data(), count)));
        }
        const std::vector<float> opposite = {infinity, -infinity};
        CHECK(std::isnan(teal::sum_f32_with(isa, opposite.data(), opposite.size())));
    }
}

int open_descriptors() {
    int open = 0;
    for (int fd = 0; fd < 256; ++fd) {
        open += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    }
    return open;
}

void test_probes() {
    const int before = open_descriptors();
    for (const teal::Probe& probe : teal::probes) {
        const int refusal = probe.run();
        CHECK(refusal >= 0);
        CHECK_EQ(probe.run() == 0, refusal == 0);
        CHECK(!probe.name.empty());
        if (probe.name == "memfd_seals" || probe.name == "fd_passing" || probe.name == "peer_identity") {
            CHECK_EQ(refusal, 0);  // in every Linux since 3.17; the core's other tests need them too
        }
    }
    CHECK_EQ(open_descriptors(), before);
}

}  // namespace

int main() {
    test_decode();
    test_isa_request();
    test_this_machine();
    test_clock_from_many_threads();
    test_clock();
    test_conversion();
    test_jitter();
    test_sum_agrees();
    test_sum_edges();
    test_probes();
    return teal::check::summary();
}
