// Expectation: the window a waiter spins in covers nearly all calls of a steady model, survives outliers, and stays small.
#include "queue/expectation.hpp"

#include <cstdint>
#include <random>

#include "check.hpp"

namespace {

struct Seen {
    int inside = 0;
    int calls = 0;
    std::uint64_t spun = 0;
    std::uint64_t ran = 0;
};

// Calls around `typical` ns with a spread, every `odd`-th stretched to twice its length.
Seen play(std::uint64_t typical, double spread, int odd, int calls) {
    teal::Expectation expectation;
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal(0.0, spread);
    Seen seen;
    for (int i = 0; i < calls; ++i) {
        auto ns = static_cast<std::uint64_t>(static_cast<double>(typical) * (1.0 + normal(random)));
        if (odd > 0 && i % odd == odd - 1) ns *= 2;
        const auto window = expectation.window();
        if (i >= calls / 2) {
            ++seen.calls;
            if (window.begin_ns <= ns && ns <= window.end_ns) ++seen.inside;
            if (ns > window.begin_ns) seen.spun += (ns < window.end_ns ? ns : window.end_ns) - window.begin_ns;
            seen.ran += ns;
        }
        expectation.learn(ns);
    }
    return seen;
}

}  // namespace

int main() {
    {
        teal::Expectation nothing;
        CHECK_EQ(nothing.window().end_ns, std::uint64_t{0});
        nothing.learn(100'000);  // short calls are spun through anyway
        CHECK_EQ(nothing.window().end_ns, std::uint64_t{0});
    }
    for (const std::uint64_t typical : {1'000'000ULL, 4'000'000ULL, 20'000'000ULL}) {
        const Seen steady = play(typical, 0.01, 0, 2000);
        CHECK(steady.inside * 10 >= steady.calls * 9);
        const Seen bumpy = play(typical, 0.01, 10, 2000);  // a tenth is stretched: the rest must still be met
        CHECK(bumpy.inside * 10 >= bumpy.calls * 8);
        // Never more than an eighth of the time, or the two leads.
        CHECK(bumpy.spun <= bumpy.ran / 8 + static_cast<std::uint64_t>(bumpy.calls) * 300'000);
    }
    {
        const Seen pipeline = play(1'000'000'000, 0.3, 0, 2000);
        CHECK(pipeline.spun <= static_cast<std::uint64_t>(pipeline.calls) * 2'000'000);
    }
    {
        teal::Expectation slower;  // a model that gets slower is followed
        for (int i = 0; i < 200; ++i) slower.learn(4'000'000);
        for (int i = 0; i < 400; ++i) slower.learn(6'000'000);
        const auto window = slower.window();
        CHECK(window.begin_ns <= 6'000'000 && 6'000'000 <= window.end_ns);
    }
    return teal::check::summary();
}
