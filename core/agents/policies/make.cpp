#include "agents/policies/make.hpp"

#include "base/error.hpp"

namespace teal {
namespace {

struct Shipped {
    std::string_view name;
    std::unique_ptr<Policy> (*make)();
};
constexpr Shipped shipped[] = {
    {"fifo", make_fifo}, {"fifo-per-worker", make_fifo_per_worker}, {"edf", make_edf},
    {"fair", make_fair}, {"shinjuku", make_shinjuku},               {"composite", make_composite},
};
constexpr std::string_view names[] = {"fifo", "fifo-per-worker", "edf", "fair", "shinjuku", "composite"};
static_assert(std::size(names) == std::size(shipped));

}  // namespace

std::unique_ptr<Policy> make_policy(std::string_view name) {
    for (const Shipped& each : shipped)
        if (each.name == name) return each.make();
    return nullptr;
}

std::span<const std::string_view> policy_names() noexcept { return names; }

void set_or_throw(Policy& policy, std::string_view name, std::string_view value) {
    if (policy.set(name, value)) return;
    std::string known;
    for (const auto& [setting, unused] : policy.settings()) known += (known.empty() ? "" : ", ") + setting;
    throw Error(Code::invalid_argument, "policy " + std::string(policy.name()) + " has no setting '" + std::string(name.substr(0, 80)) +
                                            "'; it has " + (known.empty() ? "none" : known));
}

}  // namespace teal
