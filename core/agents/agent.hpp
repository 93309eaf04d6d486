// An agent's loop: the mechanism around a policy.
//
// Theory of operation. Each step takes in all messages and tells the policy what they mean, asks it what the workers that have room are to
// do next, stages that, wakes the workers that sleep, asks it whether somebody is to leave its worker, and says that it is alive. What the
// agent knows follows from messages; the one thing it reads on the desk is whether a slot is free again.
//
// What a worker does is known late, so it is *believed*: what is staged first for a worker with nothing to do runs at once, and when a
// request leaves its worker the next that is staged there runs. Where that is wrong a latch_failure says so, in order with all else.
//
// A worker has room for what runs and for policy.depth() more. Workers with nothing to do are asked for first; if the policy has nothing for
// one, what waits behind another request elsewhere is taken back and given to it (policy.moves()).
//
// Lost messages: everything that is staged is withdrawn, all status words are read, and the policy is told the difference. What is in the ring
// from before then is older than the words, and known by its tseq.
//
// A group (policy.pick_group()): its members are written for workers that have nothing to do and nothing unsettled, then all made ready. Should
// one of these workers go, the others' are taken back, as they would wait for it in vain.
//
// By load. While messages come it takes them in batches that grow with what waits, and it looks without sleeping for as long as
// looking paid lately (`poll=adaptive`); when nothing comes it sleeps, 20 ms at a time while requests are known (its heart is judged by
// that), else long. Workers that sleep are rung once a step, or after `coalesce=` when more may come.
//
// No clock but step()'s `now`, and that of the seat for times that are in messages: a simulator drives it as it is.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agents/agent_seat.hpp"
#include "agents/policy.hpp"
#include "queue/wait.hpp"

namespace teal {

// How it waits: `adaptive` looks for as long as that paid lately, at most idle_ns; the others always or never, or always as long.
enum class AgentPolling : std::uint8_t { adaptive = 0, spin, sleep, fixed };

struct AgentSpec {
    std::uint64_t idle_ns = 50'000;           // longest that it looks before it sleeps; UINT64_MAX: it never sleeps
    std::uint64_t nap_ns = 20'000'000;        // longest sleep while requests are known: so often its heart beats
    std::uint64_t long_nap_ns = 500'000'000;  // while none are
    unsigned events = 1024;                   // most messages of one step; it begins with least_events
    AgentPolling polling = AgentPolling::adaptive;
    std::uint64_t fixed_ns = 0;               // of `fixed`
    bool ring_each = false;                   // a worker is rung for each decision, and not for all of a step
    std::uint64_t coalesce_ns = 0;            // that ring waits so long for others while messages come
};
inline constexpr unsigned least_events = 128;

struct AgentFigures {
    std::uint64_t events = 0, decisions = 0, steps = 0, rescans = 0, sleeps = 0;
    std::uint64_t refused[outcome_count] = {};  // decisions, by outcome
    std::uint64_t moved = 0;            // staged decisions that went to another worker
    std::uint64_t preempts = 0;         // asks
    std::uint64_t groups = 0;           // decided
    std::uint64_t spins = 0;            // waits that ended while it looked; sleeps: those that did not
    std::uint64_t busy_ns = 0;          // spent on messages and decisions
    std::uint64_t errors = 0;           // what makes no sense: of the policy's decisions, or in messages
};

class AgentLoop {
public:
    AgentLoop(std::shared_ptr<AgentSeat> seat, std::shared_ptr<Policy> policy, AgentSpec spec = {});

    // One look. Returns how much there was to do: messages and decisions.
    unsigned step(std::uint64_t now);
    // Until stop(), on the real clock.
    void run();
    // The same until `until_ns` (CLOCK_MONOTONIC), or a sleep that brought no message, which may be longer, or until the host calls: for who
    // has other things to do now and then. leave() at the end.
    void run(std::uint64_t until_ns);
    void leave();
    // How long it looks for news before it sleeps, from now on: what `adaptive` is bounded by.
    void set_idle(std::uint64_t ns) noexcept;
    // Settings of its own: poll = spin | adaptive | sleep | a time, coalesce = off | step | a time. False: it has none of that name. Throws
    // Error(invalid_argument).
    bool set(std::string_view name, std::string_view value);
    [[nodiscard]] PolicySettings settings() const;

    // From any thread.
    void stop() noexcept;
    void post(std::function<void(AgentLoop&)> news);  // applied between two steps of run()

    [[nodiscard]] Policy& policy() noexcept { return *policy_; }
    [[nodiscard]] AgentSeat& seat() noexcept { return *seat_; }
    [[nodiscard]] const AgentFigures& figures() const noexcept { return figures_; }
    [[nodiscard]] std::string dump() const;           // the loop's own thread
    [[nodiscard]] std::uint32_t known() const noexcept { return known_; }  // requests that have not ended, as far as it was told
    // When the policy wants to be called again, at the latest; 0: when there are messages. For a simulator's events.
    [[nodiscard]] std::uint64_t wanted_at(std::uint64_t now) { return policy_->timer_ns(now); }

private:
    struct Out {                       // a transaction that is not settled, as far as is known
        std::uint32_t serial = 0;
        std::uint32_t object = no_object;
        std::uint64_t slice_ns = 0;
        bool live = false;             // its request still counts on it
        bool own = false;              // has a serial
        std::uint32_t group = 0;       // that it is a member of
    };
    struct Place {                     // a worker
        PolicyWorker view;
        bool busy = false;             // runs `running`, or something that is not ours
        bool asked = false;            // to let it go
        Out running;
        Out staged[stage_depth];
        std::uint32_t at_idle = 0, at_room = 0, at_behind = 0, at_preemptible = 0;  // 1 + position in the lists
    };
    enum class List : std::uint8_t { idle, room, behind, preemptible };

    void handle(const Message& message);
    void handle_request(MessageType type, const Message& message, PolicyRequest& request);
    void handle_worker(MessageType type, const Message& message);
    void handle_latch(const Message& message);
    void learn(PolicyRequest& request, const Message& message);
    void end(PolicyRequest& request, bool departed);
    void mark(PolicyRequest& request, bool runnable, bool staged);
    void leave(PolicyRequest& request);
    void retake(PolicyRequest& request, const Message& message);
    void gone(Place& place);
    void rescan();
    void rescan_request(std::uint32_t index, const RequestWord& word);
    void rescan_worker(Place& place);
    void withdraw_all();
    void learn(PolicyRequest& request, const RequestWord& word);
    bool decide();
    bool decide_for(Place& place);
    bool stage(Place& place, const Decision& decision, std::uint32_t object);
    [[nodiscard]] Decided decided(const Decision& decision, std::uint32_t object) const noexcept;
    void entrust(Place& place, const Out& out);
    bool decide_group();
    [[nodiscard]] bool is_group(std::span<const GroupMember> members) const noexcept;
    void stage_group(std::span<const GroupMember> members);
    void break_group(std::uint32_t group, const Place& but);
    [[nodiscard]] bool may_run(const PolicyRequest* request, std::uint32_t worker) const noexcept;
    unsigned take_batch();
    unsigned take_messages(unsigned most);
    void ring_workers(bool more);
    void move_waiting();
    void ask_preempts();
    void begin(Place& place, const Out& out);
    void finish_running(Place& place);
    void drop_staged(Place& place, unsigned at);
    [[nodiscard]] bool is_carried_out(const Place& place, unsigned at) const noexcept;
    [[nodiscard]] bool has_not_begun(const Place& place) const noexcept;
    void come_to(Place& place, unsigned at, bool over);
    void update(Place& place);
    void put(std::vector<std::uint32_t>& list, std::uint32_t Place::*at, Place& place, bool in);
    [[nodiscard]] bool known(std::uint32_t record, std::uint32_t generation) const noexcept {
        return record < requests_.size() && requests_[record].index != no_object && requests_[record].generation == generation;
    }
    [[nodiscard]] std::uint64_t time_of(std::uint64_t at) const noexcept;
    void show() noexcept;
    void apply_inbox();
    [[nodiscard]] std::uint64_t patience_ns() const noexcept;
    [[nodiscard]] std::uint64_t nap_until(std::uint64_t now);   // and says which timer it wants
    void woke(std::uint64_t now, bool slept);                   // there is something to do again
    friend class Rounds;

    std::shared_ptr<AgentSeat> seat_;
    std::shared_ptr<Policy> policy_;
    AgentSpec spec_;
    SpinBudget spin_;
    std::vector<PolicyRequest> requests_;      // by record; index no_object: not known
    std::vector<std::uint32_t> at_;            // by record: worker where it is staged or runs
    std::vector<Place> places_;
    std::vector<std::uint32_t> idle_, room_, behind_, preemptible_;
    std::uint64_t now_ = 0;
    std::uint64_t now_ticks_ = 0;
    std::uint32_t waiting_ = 0;                // requests that may run and are not staged
    std::uint32_t known_ = 0;                  // requests
    std::uint32_t group_ = 0;                  // number of the last group
    unsigned batch_ = least_events;            // most messages of the next step
    std::uint64_t ring_since_ = 0;             // a ring waits for others since then; 0: none does
    std::vector<const PolicyWorker*> free_;    // decide_group()'s own
    std::vector<GroupMember> members_;
    unsigned depth_ = 1;
    bool preempts_ = true;  // the policy may ask
    bool online_ = false;
    bool dirty_ = false;                       // something changed since the policy was asked last
    bool crowded_ = false;                     // a worker was passed over, as its slots were all taken
    std::uint64_t settings_ = 0;
    AgentFigures figures_;
    std::uint64_t quiet_since_ = 0;            // of run(): when there was nothing to do for the first time; 0: there is
    std::uint64_t looked_ = 0;

    std::atomic<bool> stop_{false};
    std::mutex inbox_mutex_;                   // guards inbox_
    std::vector<std::function<void(AgentLoop&)>> inbox_;
    std::atomic<bool> news_{false};
};

}  // namespace teal
