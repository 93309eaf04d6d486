// Judged runs are not built in yet: what the seam calls meanwhile.
#include "base/error.hpp"
#include "box/yard.hpp"

namespace teal::box {
RunRecord Yard::judge(const RunOrder&) {
    RunRecord record;
    record.reason = "judged runs are not built in";
    return record;
}
const char* run_status_name(RunStatus) noexcept { return "Judge Failed"; }
}  // namespace teal::box
