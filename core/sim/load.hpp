// What is asked of a simulated pool: types of requests, and when which comes and how long it takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/random.hpp"

namespace teal {

enum class Spread : std::uint8_t { fixed, exponential, lognormal };

struct SimType {                      // is a model of its own, by its position
    std::string name;
    double share = 1.0;               // of the requests, relative to the others'
    Spread spread = Spread::fixed;
    std::uint64_t mean_ns = 10'000;
    double sigma = 1.0;               // of a lognormal one's logarithm
    std::uint32_t sessions = 1;       // its requests come from so many, in turn by chance
    std::int32_t priority = 0;
    std::uint64_t deadline_ns = 0;    // after its arrival; 0: none
    bool preemptible = true;
    bool yields = false;              // … at its own yield points only: every `mean_ns` / 4
};

struct SimArrival {
    std::uint64_t at_ns = 0;
    std::uint32_t type = 0;
    std::uint64_t service_ns = 0;
};

struct SimLoad {
    std::vector<SimType> types;
    double load = 0.7;                     // of what the workers can do
    std::uint64_t requests = 10'000;
    std::vector<SimArrival> trace;         // instead of the three above, but for the types' names and flags
};

// Arrivals, one after the other: Poisson at `load`, or the trace.
class Arrivals {
public:
    Arrivals(const SimLoad& load, std::uint32_t workers, std::uint64_t seed);
    std::optional<SimArrival> next();

private:
    std::uint64_t service(const SimType& type);

    const SimLoad& load_;
    Random random_;
    double shares_ = 0.0;
    double gap_ns_ = 0.0;
    double at_ns_ = 0.0;
    std::uint64_t made_ = 0;
};

}  // namespace teal
