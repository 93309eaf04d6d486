// Resident sessions: opened, called, mapped, closed.
#include <chrono>
#include <cstring>
#include <sys/mman.h>
#include <fcntl.h>

#include "base/error.hpp"
#include "box/actor.h"
#include "check.hpp"
#include "cpu/clock.hpp"
#include "made_yard.hpp"

using namespace teal;
using namespace teal::box;
using namespace teal::box::test;

namespace {

void say_report(const Yard& yard) {
    for (const Guard& guard : yard.report()) std::printf("  %-20s %-4s %s\n", guard.name.c_str(), guard.used ? "yes" : "no", guard.detail.c_str());
}

void session_answers() {
    const Loaded actor = load_resident("box_actor");
    Yard yard(yard_options());
    say_report(yard);
    SessionOrder order;
    order.image = actor.image;
    const auto session = yard.open(order);
    Caller caller(session->control_fd(), session->fate_fd(), session->facts());
    const std::uint64_t args[3] = {act_echo, 0x1122334455667788, 42};
    Answer answer = caller.call(args, sizeof args);
    CHECK_EQ(answer.outcome, Outcome::done);
    CHECK_EQ(answer.result, 16);
    CHECK(std::memcmp(caller.output(), args + 1, 16) == 0);
    const std::uint64_t count[1] = {act_count};
    for (std::uint64_t i = 1; i <= 1000; ++i) {
        answer = caller.call(count, sizeof count);
        std::uint64_t said = 0;
        std::memcpy(&said, caller.output(), 8);
        if (answer.outcome != Outcome::done || said != i) CHECK_EQ(said, i);
    }
    session->close(2'000'000'000);
    CHECK_EQ(session->ending().fate, Fate::closed);
    CHECK_EQ(caller.call(count, 8).outcome, Outcome::ended);
}

}  // namespace

int main() {
    session_answers();
    return check::summary();
}
