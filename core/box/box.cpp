#include "box/box.hpp"

#include <string>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace teal::box {
namespace {

constexpr std::uint64_t page = 4096;
constexpr std::uint64_t most_region_bytes = std::uint64_t{1} << 42;

void check(bool fine, const std::string& message) {
    if (!fine) throw Error(Code::invalid_argument, message);
}

bool power_of_two(std::uint64_t value) noexcept { return value != 0 && (value & (value - 1)) == 0; }

}  // namespace

SessionFacts plan_region(const SessionOrder& order) {
    check(order.cores >= 1 && order.cores <= most_cores, "cores is " + std::to_string(order.cores) + "; a session has 1 to 64 of them");
    check(order.pin.empty() || order.pin.size() == order.cores,
          "pin names " + std::to_string(order.pin.size()) + " CPUs for " + std::to_string(order.cores) + " cores; name one for each core, or none");
    check(order.args_bytes <= (1u << 30), "args_bytes is " + std::to_string(order.args_bytes) + "; at most 1 GiB: map what is larger as input buffer");
    check(order.log_bytes == 0 || (power_of_two(order.log_bytes) && order.log_bytes >= page && order.log_bytes <= (1u << 30)),
          "log_bytes is " + std::to_string(order.log_bytes) + "; it has to be 0 or a power of two from 4096 to 1 GiB");
    check(order.ob_bytes <= most_region_bytes, "ob_bytes is " + std::to_string(order.ob_bytes) + "; at most 4 TiB");
    check(order.stack_bytes >= 4 * page && order.stack_bytes <= layout::stack_stride / 2,
          "stack_bytes is " + std::to_string(order.stack_bytes) + "; 16 KiB to 2 GiB a core");
    check(order.memory_bytes <= most_region_bytes, "memory_bytes is " + std::to_string(order.memory_bytes) + "; at most 4 TiB");
    SessionFacts facts;
    facts.cores = order.cores;
    const std::uint64_t args = order.args_bytes < shortest_args ? shortest_args : order.args_bytes;
    facts.log_bytes = order.log_bytes;
    facts.log_offset = round_up(offsetof(ControlPage, ask) + offsetof(AskLine, args) + args, page);
    facts.args_bytes = facts.log_offset - offsetof(ControlPage, ask) - offsetof(AskLine, args);
    facts.ob_offset = facts.log_offset + order.log_bytes;
    facts.ob_bytes = order.ob_bytes;
    facts.region_bytes = facts.ob_offset + round_up(order.ob_bytes, page);
    facts.call_limit_ns = order.call_limit_ns;
    return facts;
}

const char* fate_name(Fate fate) noexcept {
    switch (fate) {
    case Fate::running: return "running";
    case Fate::closed: return "closed";
    case Fate::exited: return "exited";
    case Fate::killed: return "killed";
    case Fate::overdue: return "overdue";
    case Fate::memory: return "memory";
    case Fate::refused: return "refused";
    case Fate::not_started: return "not started";
    case Fate::lost: return "lost";
    }
    return "unknown";
}

}  // namespace teal::box
