#include "bench/box_costs.hpp"

#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <thread>

#include "base/error.hpp"
#include "cpu/clock.hpp"
#include "queue/wait.hpp"

namespace teal::box {
namespace {

std::uint32_t ns_since(std::uint64_t start) {
    const std::int64_t ns = ticks_to_ns(ticks() - start);
    return ns > 0xffff'ffff ? 0xffff'ffffu : static_cast<std::uint32_t>(ns);
}

void pause_for(std::uint64_t ns) {
    if (ns == 0) return;
    timespec nap{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    while (::nanosleep(&nap, &nap) != 0 && errno == EINTR) {
    }
}

void pin(std::int32_t cpu) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    ::sched_setaffinity(0, sizeof set, &set);
}

struct alignas(128) Line {
    std::atomic<std::uint32_t> word{0};
};

}  // namespace

std::vector<std::uint32_t> time_calls(Caller& caller, const void* args, std::uint64_t bytes, std::uint32_t tries, std::uint64_t pause_ns) {
    std::vector<std::uint32_t> times;
    times.reserve(tries);
    for (std::uint32_t i = 0; i < tries; ++i) {
        pause_for(pause_ns);
        const std::uint64_t start = ticks();
        const Answer answer = caller.call(args, bytes);
        if (answer.outcome == Outcome::done && caller.facts().ob_bytes != 0) static_cast<void>(*static_cast<volatile std::byte*>(caller.output()));
        times.push_back(ns_since(start));
        if (answer.outcome != Outcome::done) throw Error(Code::internal_error, "call " + std::to_string(i) + " of a bench was not answered");
    }
    return times;
}

std::vector<std::uint32_t> time_echo(std::int32_t here, std::int32_t there, std::uint32_t tries) {
    Line ask, answer;
    std::vector<std::uint32_t> times;
    times.reserve(tries);
    std::thread other([&] {
        pin(there);
        for (std::uint32_t i = 1; i <= tries; ++i) {
            while (ask.word.load(std::memory_order_acquire) != i) cpu_relax();   // SYNC: pairs with the release below
            answer.word.store(i, std::memory_order_release);
        }
    });
    std::thread mine([&] {   // a thread of its own: the caller's affinity stays as it is
        pin(here);
        for (std::uint32_t i = 1; i <= tries; ++i) {
            const std::uint64_t start = ticks();
            ask.word.store(i, std::memory_order_release);
            while (answer.word.load(std::memory_order_acquire) != i) cpu_relax();   // SYNC: pairs with the other thread's release
            times.push_back(ns_since(start));
        }
    });
    mine.join();
    other.join();
    return times;
}

std::vector<std::uint32_t> time_switches(Session& session, std::uint64_t first, std::uint64_t second, std::uint32_t tries) {
    std::vector<std::uint32_t> times;
    times.reserve(tries);
    for (std::uint32_t i = 0; i < tries; ++i) {
        const std::uint64_t start = ticks();
        session.map(i % 2 == 0 ? first : second, -1, 0);
        times.push_back(ns_since(start));
    }
    return times;
}

std::vector<std::uint32_t> time_opens(Yard& yard, const SessionOrder& order, std::uint32_t tries, std::uint64_t pause_ns) {
    std::vector<std::uint32_t> times;
    times.reserve(tries);
    for (std::uint32_t i = 0; i < tries; ++i) {
        pause_for(pause_ns);
        const std::uint64_t start = ticks();
        const auto session = yard.open(order);
        times.push_back(ns_since(start));
        session->close(1'000'000'000);
    }
    return times;
}

namespace {

// posix_spawn is vfork and execve in glibc, and says so when execve fails.
void spawn_and_wait(const std::string& file) {
    std::string name = file;
    char* const arguments[] = {name.data(), nullptr};
    char* const environment[] = {nullptr};
    pid_t pid = 0;
    if (const int error = ::posix_spawn(&pid, file.c_str(), nullptr, nullptr, arguments, environment); error != 0)
        throw Error(Code::not_found, system_message(("run " + file).c_str(), error));
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
}

std::uint32_t judge_once(Yard& yard, const RunOrder& order) {
    const RunRecord record = yard.judge(order);
    if (record.status != RunStatus::finished) throw Error(Code::internal_error, std::string(run_status_name(record.status)) + ": " + record.reason);
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(record.time_ns, 0xffff'ffff));
}

}  // namespace

RunCosts time_runs(Yard& yard, const RunOrder& order, const std::string& file, std::uint32_t tries, std::uint64_t pause_ns) {
    RunCosts costs;
    for (std::uint32_t i = 0; i < tries; ++i) {
        pause_for(pause_ns);
        std::uint64_t start = ticks();
        const std::uint32_t judged_time = judge_once(yard, order);
        costs.judged.push_back(ns_since(start));
        costs.judged_time.push_back(judged_time);
        pause_for(pause_ns);
        start = ticks();
        spawn_and_wait(file);
        costs.spawned.push_back(ns_since(start));
    }
    return costs;
}

SeriesCosts time_series(Yard& yard, const RunOrder& order, const std::string& file, std::uint32_t tries) {
    constexpr std::uint64_t patience_ns = 10'000'000'000, look_ns = 20'000;
    SeriesCosts costs;
    judge_once(yard, order);   // spares of this kind are kept from here on
    // Guests judge one run after the other in one box, which stays: then there is nothing to wait for.
    const auto at_rest = [&] {
        const YardStatistics now = yard.statistics();
        return now.boxes_ended + now.spares_ready == now.boxes_made && now.spares_ready != 0;
    };
    const auto rest = [&] {
        for (std::uint64_t waited = 0; !at_rest(); waited += look_ns) {
            if (waited > patience_ns) throw Error(Code::deadline_exceeded, "the boxes of judged runs have not ended");
            pause_for(look_ns);
        }
    };
    rest();
    std::uint64_t start = ticks();
    for (std::uint32_t i = 0; i < tries; ++i) costs.judged_time.push_back(judge_once(yard, order));
    rest();
    costs.judged = static_cast<std::uint64_t>(ticks_to_ns(ticks() - start));
    start = ticks();
    for (std::uint32_t i = 0; i < tries; ++i) spawn_and_wait(file);
    costs.spawned = static_cast<std::uint64_t>(ticks_to_ns(ticks() - start));
    return costs;
}

}  // namespace teal::box
