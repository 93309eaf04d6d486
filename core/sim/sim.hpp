// A pool on a virtual clock: the real seat (HostSeat, AgentSeat, AgentLoop) and the real policy, around workers and requests that are made up.
//
// Theory of operation. One thread and a heap of events: a request comes, one ends, a slice is over, the agent looks, the host sweeps, something
// breaks. What the host does at each is what a pool does under its role: tell the seat, claim, commit. The agent looks a link's delay after it
// was told, and needs its time for each message and decision; workers see what it staged a delay after that. So the same policy is judged
// with the staleness that it would meet, and a run is the same for a seed on every machine.
//
// Faults come from a second stream of random numbers, so that they do not change what is asked. At each step the books are looked at: what the
// host knows is the truth, and nothing that the agent's side does may lead to a request that is lost, runs twice, or runs after it has ended.
// What breaks one of these is a violation, with the time, and the seed reproduces it; the run ends there. What the policy owes is less, and a
// host can do without: a request that is not forgotten, no worker that idles beside one that may run it, no exception. Such a breach is noted,
// and the run goes on as the host would, in the default order and with another agent after a while.
//
// With several agents the requests are dealt to them by the rules of core/host/dealing.cpp, and each breaks by itself. Then a decision has to be
// of the agent that the request was dealt to, each agent's words have to say what its part of the books says, and no worker may idle beside what
// waits at another agent whose workers are all busy.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agents/policy.hpp"
#include "sim/load.hpp"

namespace teal {

// What may break: times a (virtual) second, or the share of the requests.
struct SimFaults {
    double agent_dies = 0;
    double agent_freezes = 0;      // for up to 200 ms: it may come back before the host has noticed, or after
    double agent_slow = 0;         // a hundred times, for 5 ms
    double link_slow = 0;          // a hundred times, for 5 ms
    double upgrades = 0;           // another agent takes over while this one works
    double worker_dies = 0;        // and is there again 2 ms later
    double overflows = 0;          // messages are lost; the agent is told that some were
    double garbles = 0;            // a message comes twice in the place of the next, or two change places
    double restates = 0;           // the host repairs its words
    double priorities = 0;         // a request's priority changes
    double cancels = 0;            // share of the requests that are cancelled
    double lost_wakeups = 0;       // share of the rings that nobody hears: the sleeper looks when its nap is over

    static SimFaults all();        // all of them, so often that a run of a few hundred requests meets several
};

// What can be broken on purpose, to see that it is found.
enum class SimBug : std::uint8_t {
    none,
    twice,      // the host lets a decision through about a request that runs
    ended,      // … about one that has ended
    elsewhere,  // … for another worker than the only one that can go on with it
    lost,       // a request that leaves its worker is in nobody's list any more
    unheard,    // a request comes, and the agent is not told
    // of what is dealt to several agents:
    kept,       // an agent falls: what was dealt to it stays with it, and the next one does not hear of it
    both,       // one agent takes over from another, which is not told
    neither,    // … and is not told itself
    forgotten,  // a request runs anew at another agent, and the one that had it is not told
    unended,    // a request leaves a worker of another agent, and the one that had it is not told
};

struct SimSpec {
    std::uint32_t workers = 16;
    std::uint32_t agents = 1;              // 1 to 4, workers at most: worker i is agent i % agents'
    std::uint32_t records = 8192;          // requests that are out at most; others are turned away
    std::uint32_t ring = 8192;
    std::uint64_t seed = 1;
    SimLoad load;
    SimFaults faults;
    std::uint64_t link_ns = 200;           // from host to agent, and back
    std::uint64_t agent_step_ns = 100;     // what the agent needs for a look, …
    std::uint64_t agent_event_ns = 50;     // … and for each message and decision
    std::uint64_t worker_ns = 100;         // from one request to the next
    std::uint64_t preempt_ns = 2'000;      // to take a request from its worker
    std::uint64_t poll_ns = 5'000;         // between looks of the agent while there is something to preempt
    std::uint64_t sweep_ns = 1'000'000;
    std::uint64_t watchdog_ns = 50'000'000;
    std::uint64_t max_wait_ns = 50'000'000; // a request that waits so long while a worker idles: the policy has forgotten it
    std::uint64_t quantum_ns = 0;          // in the default order: so long one runs while others wait, if it can leave; 0: until it ends
    std::uint64_t restart_ns = 10'000'000; // a new agent after a fallback
    SimBug bug = SimBug::none;
};

inline constexpr std::uint32_t most_sim_agents = 4;  // as a pool has seats

struct SimTypeResult {
    std::string name;
    std::uint64_t arrived = 0, done = 0, cancelled = 0, expired = 0, turned_away = 0;
    std::uint64_t missed = 0;              // done, after their deadline
    std::uint64_t busy_ns = 0;             // of workers
    std::vector<std::uint64_t> latency_ns; // ascending; from arrival to end, of those done
    [[nodiscard]] std::uint64_t percentile(double p) const;
};

struct SimResult {
    std::vector<SimTypeResult> types;
    std::uint64_t arrived = 0, done = 0, cancelled = 0, expired = 0, turned_away = 0, reruns = 0, preempted = 0, yielded = 0;
    std::uint64_t events = 0, messages = 0, decisions = 0, moved = 0, refused = 0, rescans = 0;
    std::uint64_t fallbacks = 0, upgrades = 0, restarts = 0, longest_gap_ns = 0;  // gap: from an agent's end to the default order
    std::uint64_t local = 0;               // requests that ran in the default order
    std::uint64_t taken_over = 0;          // by one agent from another
    std::uint64_t virtual_ns = 0, busy_ns = 0;  // busy: of all workers together
    SimFaults met;                         // how often each of them happened
    std::string policy_error;              // the first, whole
    std::uint64_t fingerprint = 0;         // of all that happened: equal for equal runs
    std::vector<std::string> violations;   // the first few
    std::vector<std::string> breaches;     // the first few …
    std::uint64_t breached = 0;            // … of so many
};

// A short run of anything, by its seed: some workers, some types, a short ring, all faults in nine of ten. With several agents: so many workers
// at least.
SimSpec any_run(std::uint64_t seed, std::uint32_t agents = 1);

using MakePolicy = std::function<std::shared_ptr<Policy>()>;

// Called now and then with how many requests have come. What it throws ends the run.
using SimProgress = std::function<void(std::uint64_t arrived)>;

// Throws Error(invalid_argument) for a spec that makes no sense, and what `make` and `progress` throw.
SimResult simulate(const SimSpec& spec, const MakePolicy& make, const SimProgress& progress = {});

}  // namespace teal
