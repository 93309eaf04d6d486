#include "sim/load.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace teal {

namespace {
constexpr std::uint64_t longest_mean_ns = 3'600'000'000'000;
constexpr std::uint64_t longest_run_ns = 24 * longest_mean_ns;
}  // namespace

Arrivals::Arrivals(const SimLoad& load, std::uint32_t workers, std::uint64_t seed) : load_(load), random_(seed) {
    double work = 0.0;
    for (const SimType& type : load.types) {
        if (!(type.share >= 0.0 && type.share <= 1e9) || type.mean_ns == 0 || type.mean_ns > longest_mean_ns || type.deadline_ns > longest_mean_ns)
            throw Error(Code::invalid_argument, "type " + type.name + ": expected a share of 0 or more, a mean above 0, and times of one hour at most");
        if (type.sessions == 0 || type.sessions > 1024 || !(type.sigma >= 0.0 && type.sigma <= 10.0))
            throw Error(Code::invalid_argument, "type " + type.name + ": expected 1 to 1024 sessions, and a sigma of 0 to 10");
        shares_ += type.share;
        work += type.share * static_cast<double>(type.mean_ns);
    }
    if (load.types.empty() || load.types.size() > 1024 || !(shares_ > 0.0)) throw Error(Code::invalid_argument, "load: expected 1 to 1024 types, one of them with a share above 0");
    if (!(load.load > 0.0 && load.load <= 100.0)) throw Error(Code::invalid_argument, "load: expected a number above 0 and at most 100");
    gap_ns_ = work / shares_ / load.load / static_cast<double>(workers);
    if (load.trace.empty() && gap_ns_ * static_cast<double>(load.requests) > static_cast<double>(longest_run_ns))
        throw Error(Code::invalid_argument, "load: the requests would come over more than 24 hours; simulate fewer, or more load");
    std::uint64_t last = 0;
    for (const SimArrival& arrival : load.trace) {
        if (arrival.at_ns < last || arrival.type >= load.types.size() || arrival.at_ns > longest_run_ns || arrival.service_ns > longest_mean_ns)
            throw Error(Code::invalid_argument, "trace: expected times in order within 24 hours, types that there are, and an hour at most for each");
        last = arrival.at_ns;
    }
}

std::optional<SimArrival> Arrivals::next() {
    if (!load_.trace.empty()) {
        if (made_ == load_.trace.size()) return std::nullopt;
        SimArrival arrival = load_.trace[made_++];
        arrival.service_ns = std::max<std::uint64_t>(arrival.service_ns, 1);
        return arrival;
    }
    if (made_++ == load_.requests) return std::nullopt;
    at_ns_ += random_.exponential(gap_ns_);
    double choice = random_.unit() * shares_;
    std::uint32_t type = 0;
    while (type + 1 < load_.types.size() && choice >= load_.types[type].share) choice -= load_.types[type++].share;
    return SimArrival{static_cast<std::uint64_t>(at_ns_), type, service(load_.types[type])};
}

std::uint64_t Arrivals::service(const SimType& type) {
    const auto mean = static_cast<double>(type.mean_ns);
    double ns = mean;
    if (type.spread == Spread::exponential) ns = random_.exponential(mean);
    if (type.spread == Spread::lognormal) ns = mean * std::exp(type.sigma * random_.normal() - type.sigma * type.sigma / 2);
    return static_cast<std::uint64_t>(std::clamp(ns, 1.0, 1e13));
}

}  // namespace teal
