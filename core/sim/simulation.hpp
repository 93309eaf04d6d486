// The inside of simulate(): what is, and what happens. Pool and workers in pool.cpp, agents in agents.cpp, what breaks in faults.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "agents/agent.hpp"
#include "agents/dealing.hpp"
#include "agents/host_seat.hpp"
#include "sim/sim.hpp"

namespace teal {

inline constexpr std::uint64_t never = UINT64_MAX;

struct SimRequest {
    enum class State : std::uint8_t { none, queued, running };
    State state = State::none;
    std::uint32_t generation = 0;
    std::uint32_t type = 0;
    std::uint16_t session = 0;
    std::int32_t priority = 0;
    std::uint32_t worker = no_object;   // runs it, or is the only one that can go on
    std::uint32_t seat = 0;             // whose agent it was dealt to
    std::uint32_t out = 0;              // position in out_
    std::uint64_t id = 0;               // in order of arrival
    std::uint64_t arrived = 0, deadline = 0, queued_at = 0;
    std::uint64_t service = 0, left = 0, ran = 0;
    bool breached = false;              // it was said that it waits
};

struct SimWorker {
    bool there = true;
    bool looks = false;                 // a look is under way
    std::uint32_t running = no_object;
    std::uint32_t idle = 0;             // position in idle_, plus 1; 0: it runs something or is not there
    std::uint64_t token = 0;            // of what it runs: events about anything older are void
    std::uint64_t asked = 0;            // token that is to leave
    std::uint64_t began = 0;
    std::uint64_t idle_since = 0;
};

// One incarnation: both sides of a seat, and the agent at it.
struct SimAgent {
    std::shared_ptr<HostSeat> host;
    std::shared_ptr<AgentSeat> seat;
    std::shared_ptr<Policy> policy;
    std::unique_ptr<AgentLoop> loop;
    std::vector<std::uint32_t> rung;    // workers that something was staged for, in one look
    std::uint64_t look_at = never;      // its next look
    std::uint64_t look = 0;             // which of the events is meant
    std::uint64_t free_at = 0;          // busy until then
    std::uint64_t frozen_until = 0;     // `never`: dead
    std::uint64_t slow_until = 0, link_slow_until = 0;
    std::uint64_t preempts = 0;         // asked so far
    bool failed = false;                // its policy did, and it was said
};

struct SimSeat {
    std::unique_ptr<SimAgent> agent;    // the active one; null: the default order
    std::uint32_t queued = 0;           // of its requests
    std::uint32_t idle = 0;             // of its workers
    std::uint64_t gone_since = 0;       // the agent cannot decide since then; 0: it can
    std::uint64_t idle_beside = 0;      // its workers idle, and nobody takes over what waits elsewhere, since then; 0: that is not so
};

class Simulation {
public:
    Simulation(const SimSpec& spec, const MakePolicy& make);
    SimResult run(const SimProgress& progress);

private:
    enum class What : std::uint8_t { arrive, look, leave, ask, agent, zombie, sweep, fault, cancel, back, attach };
    struct Event {
        std::uint64_t at, order;
        What what;
        std::uint32_t a;
        std::uint64_t b;
        bool operator<(const Event& other) const noexcept { return at != other.at ? at > other.at : order > other.order; }  // soonest on top
    };

    void at(std::uint64_t when, What what, std::uint32_t a = 0, std::uint64_t b = 0);
    void happen(const Event& event);
    void complain(const std::string& text);
    void breach(const std::string& text);
    SimTypeResult& of_type(std::uint32_t type) { return result_.types[type]; }
    bool over() const { return !coming_ && out_.empty(); }
    void finish();

    // pool.cpp
    void arrive();
    void look(std::uint32_t worker);
    bool look_at_desk(std::uint32_t worker);
    bool look_at_queue(std::uint32_t worker);
    void take_default(const Claim& claim);
    std::uint32_t oldest(std::uint32_t worker, bool of_agent) const;
    void queue(std::uint32_t record);
    void unqueue(std::uint32_t record);
    bool check_claim(const Claim& claim);
    void break_claim(Claim& claim);
    void begin(std::uint32_t worker, std::uint32_t record, std::uint64_t slice_ns);
    void leave(std::uint32_t worker, std::uint64_t token);
    void ask(std::uint32_t worker, std::uint64_t token);
    void end(std::uint32_t record, bool answered);
    void rerun(std::uint32_t record);
    void free_worker(std::uint32_t worker);
    void set_idle(std::uint32_t worker, bool idle);
    void wake_somebody();
    void sweep();
    void sweep(std::uint32_t seat);
    void check_waiting(std::uint32_t seat);
    RequestFacts facts(std::uint32_t record) const;
    bool can_leave(const SimRequest& request) const { return type_of(request).preemptible || type_of(request).yields; }
    const SimType& type_of(const SimRequest& request) const { return spec_.load.types[request.type]; }

    // dealing.cpp
    std::uint32_t seats() const { return static_cast<std::uint32_t>(seats_.size()); }
    std::uint32_t seat_of_worker(std::uint32_t worker) const { return worker % seats(); }
    std::uint32_t seat_of(const SimRequest& request) const;
    void load_of_seats(std::span<SeatLoad> loads) const;
    void deal(std::uint32_t record);
    void deal_back(std::uint32_t record, std::uint32_t worker);
    bool take_over(std::uint32_t seat);
    void take_over_for_idle();
    void check_words(std::uint32_t seat);
    void check_idle_beside(std::uint32_t seat);

    // agents.cpp
    void attach(std::uint32_t seat);
    void restate(std::uint32_t seat, HostSeat& host);
    void fall_back(std::uint32_t seat, const char* why);
    void retire(std::unique_ptr<SimAgent> agent);
    bool policy_failed(SimAgent& agent);
    bool is_heard();
    void agent_looks(std::uint32_t seat, std::uint64_t look);
    void wake_agent(std::uint32_t seat, std::uint64_t when);
    void tell(std::uint32_t seat);
    void pass_on_asks(std::uint32_t seat, std::uint64_t when);
    std::uint64_t link_delay(const SimAgent& agent) const;
    bool active(std::uint32_t seat) const { return seats_[seat].agent != nullptr; }
    HostSeat& host(std::uint32_t seat) { return *seats_[seat].agent->host; }

    // faults.cpp
    void next_fault();
    void fault();
    void break_agent(std::uint32_t seat, double choice);
    void worker_dies();
    void worker_back(std::uint32_t worker);
    void cancel(std::uint32_t record, std::uint32_t generation);
    void garble(std::uint32_t seat);

    const SimSpec& spec_;
    const MakePolicy& make_;
    Arrivals arrivals_;
    Random fate_;                         // of faults
    Random detail_;                       // sessions
    std::uint64_t now_ = 1'000'000;
    std::vector<Event> events_;           // a heap
    std::uint64_t order_ = 0;
    bool coming_ = true;                  // more will arrive
    bool broken_ = false;                 // a violation: stop
    std::optional<SimArrival> next_;

    std::vector<SimRequest> requests_;    // by record
    std::vector<std::uint32_t> free_;
    std::vector<std::uint32_t> out_;      // records in use
    std::vector<SimWorker> workers_;
    std::vector<std::uint32_t> idle_;
    std::uint32_t queued_ = 0;
    std::uint32_t leavable_ = 0;          // running requests that can leave their worker
    std::uint64_t ids_ = 0;

    std::vector<SimSeat> seats_;
    std::uint32_t next_dealt_ = 0;
    std::vector<std::unique_ptr<SimAgent>> zombies_;  // replaced, and perhaps not aware of it
    std::uint32_t incarnations_ = 0;
    std::uint64_t calm_since_ = 0;        // the last fault
    std::uint64_t moved_at_ = 0;          // something came, ran or ended
    SimResult result_;
};

}  // namespace teal
