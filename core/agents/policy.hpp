// What a person replaces: a policy. One method per event, one that decides.
//
// Theory of operation: the mechanism around it (agents/agent.hpp; the simulator; the in-line scheduler of a worker) keeps the requests and the
// workers, calls a method for each event, and asks pick() whenever a worker can take a decision. A policy holds no clock, no lock and no
// memory shared with anybody: time comes in, requests come in, decisions go out. So the same object runs live, over an emulated link,
// in-line on the worker, and on a virtual clock. All calls come from one thread.
//
// on_new() is told of what runs already as well (request.staged): after an upgrade, or a rescan. What is in `request.worker` is bound there.
//
// A Request& stays valid from on_new() until on_done() or on_departed() has returned. After a rescan the mechanism calls on_new() for what it did
// not know and on_departed() for what is gone; what is known is told as on_runnable() or on_blocked() if that changed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agents/protocol.hpp"

namespace teal {

struct PolicyRequest {
    std::uint32_t index = no_object;      // record
    std::uint32_t generation = 0;
    std::uint32_t tseq = 0;
    std::uint16_t model = 0, session = 0;
    std::int32_t priority = 0;
    std::uint64_t arrived_ns = 0;         // on the clock that `now` is of
    std::uint64_t deadline_ns = 0;        // 0: none
    std::uint64_t expected_ns = 0;        // what its version usually takes; 0: not known
    std::uint64_t ran_ns = 0;
    std::uint32_t worker = no_object;     // the only one that can go on with it
    bool runnable = false;
    bool preemptible = false;             // its kernel can be taken from a worker …
    bool yields = false;                  // … at its own yield points only
    bool staged = false;                  // the mechanism has it staged or running: do not offer it again
    std::uint64_t data[8] = {};           // the policy's own; 0 before on_new(). The shipped ones keep their queues' links here
};

// What a policy's settings may speak of by name.
enum class Named : std::uint8_t { model, session };

struct PolicyWorker {
    std::uint32_t index = no_object;
    const PolicyRequest* running = nullptr;  // what it is believed to run
    std::uint64_t since_ns = 0;              // since when
    std::uint64_t slice_ns = 0;              // what it was given
    unsigned staged = 0;                     // decisions that wait for it
    bool idle = true;
    bool online = true;
};

struct Decision {
    PolicyRequest* request = nullptr;     // nullptr: nothing for this worker now
    std::uint64_t slice_ns = 0;           // 0: until it ends
    std::uint8_t commit_flags = 0;        // CommitFlags
    std::uint8_t run_flags = 0;           // RunFlags
    std::uint64_t expires_ns = 0;
};

// One decision of several that are carried out together or not at all: each by a worker with nothing to do.
struct GroupMember {
    std::uint32_t worker = no_object;
    Decision decision;
};

// Settings as they were given: "quantum" → "50us". A policy takes what it knows and the mechanism refuses the rest by name.
using PolicySettings = std::vector<std::pair<std::string, std::string>>;

class Policy {
public:
    virtual ~Policy() = default;

    virtual void on_new(PolicyRequest& request, std::uint64_t now) = 0;
    virtual void on_runnable(PolicyRequest& request, std::uint64_t now) = 0;    // may run again: it was blocked
    virtual void on_blocked(PolicyRequest&, std::uint64_t) {}
    virtual void on_yield(PolicyRequest& request, std::uint64_t now) { on_preempt(request, now); }
    virtual void on_preempt(PolicyRequest& request, std::uint64_t now) { on_runnable(request, now); }
    virtual void on_done(PolicyRequest& request, std::uint64_t now) = 0;        // with what it took in ran_ns
    virtual void on_departed(PolicyRequest& request, std::uint64_t now) = 0;
    virtual void on_priority(PolicyRequest&, std::int32_t /*before*/, std::uint64_t) {}
    virtual void on_affinity(PolicyRequest&, std::uint64_t) {}
    // A decision about it was refused: it is runnable still when request.runnable says so.
    virtual void on_latch_failure(PolicyRequest& request, Outcome, std::uint64_t now) { if (request.runnable) on_runnable(request, now); }
    virtual void on_worker_available(PolicyWorker&, std::uint64_t) {}
    virtual void on_worker_busy(PolicyWorker&, std::uint64_t) {}
    virtual void on_worker_gone(PolicyWorker&, std::uint64_t) {}
    virtual void on_tick(std::uint64_t) {}
    virtual void on_timer(std::uint64_t) {}
    virtual void on_wakeup(std::uint64_t) {}

    // What this worker does next. Called while it has room for another decision. What is given here is out of the policy's queues until
    // the mechanism says otherwise (on_latch_failure, on_preempt, on_yield).
    virtual Decision pick(PolicyWorker& worker, std::uint64_t now) = 0;
    // Does pick_group() ever decide anything? False: it is not asked.
    virtual bool groups() const { return false; }
    // A gang: decisions for several of `idle`, which have nothing to do, that are carried out together or not at all. Fills `out` from its
    // beginning and returns how many (2 or more; 0: none now). Asked before pick(), until it has none. A member that is refused comes back by
    // on_latch_failure() with its reason, the others with `poisoned`; so they do when not all could begin within some milliseconds (`timeout`).
    virtual unsigned pick_group(std::span<const PolicyWorker* const> /*idle*/, std::span<GroupMember> /*out*/, std::uint64_t) { return 0; }
    // Should what it runs leave it now? Asked for workers that run something preemptible, at each step.
    virtual bool preempt(const PolicyWorker&, std::uint64_t) { return false; }
    // False: it never does. What it gives without a slice then runs to its end undisturbed, and its worker need not look for an ask, which
    // costs it a timer's tick every 100 us of a run.
    virtual bool preempts() const { return true; }
    // May what it staged behind another request go to a worker that has nothing to do? False where it matters to it which worker it is.
    virtual bool moves() const { return true; }
    // False: pick() has nothing for anybody now, and is not asked. A promise that spares a mechanism with many workers the asking.
    virtual bool has_work() const { return true; }
    // When it wants on_timer(); 0: does not.
    virtual std::uint64_t timer_ns(std::uint64_t) { return 0; }
    // How many decisions it wants staged for a worker (1 … stage_depth). Preemptive policies stage few: what is staged is decided early.
    virtual unsigned depth() const { return 1; }

    // Model or session `index` is called `name`. Told before the first request of it where the mechanism knows, else as soon as it does.
    // Until then it is called "#INDEX", so "slo.#3=1ms" speaks of model 3 whatever its name.
    virtual void on_name(Named, std::uint16_t /*index*/, std::string_view /*name*/) {}

    // One setting; false: it has none of that name. Throws Error(invalid_argument) for a value that makes no sense.
    virtual bool set(std::string_view name, std::string_view value) = 0;
    virtual PolicySettings settings() const = 0;
    virtual std::string_view name() const = 0;
    virtual std::string dump() const { return {}; }   // its state, for people (SIGUSR1)
    virtual bool work_conserving() const { return true; }  // promises: no worker idles while something waits that it may run
    // Calls that failed inside the policy (an exception of a Python one), and what the last of them said. A mechanism that sees the
    // number rise has a policy whose books may be wrong: it says so to the host, which puts the default order in its place.
    virtual std::uint64_t errors() const { return 0; }
    virtual std::string last_error() const { return {}; }
};

// "fifo", "fifo-per-worker", "edf", "fair", "shinjuku", "composite"; null: no such policy.
std::unique_ptr<Policy> make_policy(std::string_view name);
std::span<const std::string_view> policy_names() noexcept;

}  // namespace teal
