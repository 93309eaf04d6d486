// A worker: the loop that takes requests and runs kernels, in one thread.
//
// Theory of operation: everything a worker owns (session maps, kernels, bindings) is touched by its loop only.
// Whoever has news (the control thread: a session came, a version was loaded, quit) posts a small function to
// the inbox and wakes the loop, which applies it between two requests. A request that arrives before the news of
// its session waits for it, but only when the pool region says that the host really opened that session.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "host/batch.hpp"
#include "host/chain.hpp"
#include "host/pool.hpp"
#include "kernel/kernel.hpp"
#include "queue/wait.hpp"

namespace teal {

class Worker {
public:
    Worker(std::shared_ptr<Pool> pool, std::uint32_t index);
    ~Worker();

    // From any thread.
    void post(std::function<void(Worker&)> news);
    // Takes the descriptor. `granted`: regions handed out so far; those that still exist follow.
    void add_session(int fd, std::uint32_t index, std::uint32_t epoch, std::uint32_t slots, std::uint32_t granted = 0);
    void add_region(std::uint32_t session, std::uint32_t epoch, std::uint32_t id, int fd);    // takes the descriptor
    void drop_region(std::uint32_t session, std::uint32_t epoch, std::uint32_t id);
    // A session whose memory is a BPF map of `bytes`, tensors and all. Takes the descriptor.
    void add_bpf_session(int fd, std::uint32_t index, std::uint32_t epoch, std::uint32_t slots, std::uint64_t bytes);
    void drop_session(std::uint32_t session, std::uint32_t epoch);
    void set_kernel(std::uint32_t version_line, std::uint32_t generation, std::shared_ptr<Kernel> kernel);
    void drop_kernel(std::uint32_t version_line, std::uint32_t generation);
    // Bindings of a version go; each slot that calls it again gets a new one. What is told as dropped: "bindings".
    void unbind(std::uint32_t version_line, std::uint32_t generation);
    // An agent's regions; takes both descriptors, also when it throws. `link`: what it costs to reach them, or null.
    void add_seat(int view_fd, int desk_fd, std::shared_ptr<Link> link = nullptr);
    void drop_seat(std::uint32_t seat, std::uint32_t incarnation);  // told as dropped: "seat"
    // A recording, of what this worker does; null: none (told as dropped: "trace").
    void set_trace(std::shared_ptr<Trace> trace);
    void quit();

    // The worker's thread: until quit().
    void run();

    // Called by the loop after drop_* was applied, with what was dropped, and with "wanted" when a parked version is asked for; set
    // before run().
    std::function<void(const char* what, std::uint32_t index, std::uint32_t epoch)> on_dropped;
    // Called by the loop for a request whose input was spilled by another; set before run().
    FetchSpill fetch_spill;

    [[nodiscard]] Pool& pool() noexcept { return *pool_; }

    void fetch_path(std::uint32_t record, const Ending& ending) const noexcept;

private:
    struct Slot {  // what is prepared for one slot of one session
        std::uint32_t stamp = 0;
        std::uint32_t region = 0;
        std::uint64_t offset = 0;
        std::uint32_t version_line = nobody;
        std::uint32_t generation = 0;
        bool known = false;          // the descriptor is that of the stamp
        Descriptor descriptor;
        Chain chain;                 // its inputs that are outputs of others
        std::unique_ptr<Binding> binding;
    };
    struct Session {
        std::unique_ptr<SessionMap> map;
        std::vector<Slot> slots;
    };
    struct Loaded {
        std::uint32_t generation = 0;
        std::shared_ptr<Kernel> kernel;
    };

    void post_session(std::shared_ptr<SessionMap> map);
    void apply_inbox();
    void list_live();
    void show_core() noexcept;
    void drop_bindings(std::uint32_t version_line);
    void forget_session(std::uint32_t session, std::uint32_t epoch);
    std::uint32_t take();
    void wait();
    void tell_wanted();
    void refresh_seat();
    void give_up_role() noexcept;
    void sleep_leading(std::uint32_t wake_seen);
    void sleep_following(std::uint32_t wake_seen);
    [[nodiscard]] bool work_ready() const noexcept;
    void execute(std::uint32_t record);
    // together.cpp
    struct Member {
        std::uint32_t record = 0;
        Session* session = nullptr;
        std::int64_t rows = 0;
        Run run;
        Ending ending;
    };
    void execute_together(std::uint32_t first);
    bool take_part(Member& member);
    bool run_together(std::vector<Member>& members);
    void abandon(std::uint32_t record);
    Session* session_of(const Record& record);
    Slot* prepared(Session& session, const Record& record, const AfterLine& after, Run& run, Ending& ending);
    [[nodiscard]] const AfterLine& after_of(std::uint32_t record) const noexcept;
    [[nodiscard]] static bool is_known(const Slot& slot, const Record& record) noexcept;
    bool read(Session& session, Slot& slot, const Record& record, const AfterLine& after, Run& run, Ending& ending);
    void bind(Session& session, Slot& slot, const Record& record, Run& run, Ending& ending);
    bool prepare_ahead();
    bool prepare_one(const Record& record, const AfterLine& after);
    void finish(std::uint32_t index, Session* session, Run& run, Ending ending, bool told, std::uint64_t share = 1);
    bool tell(const Record& record, Session* session, const Run& run, Ending& ending);
    // `share`: so many requests were answered by that run.
    void account(std::uint32_t version_line, std::uint64_t submitted, BpfStages* bpf_stages, const Run& run, const Ending& ending,
                 std::uint64_t share = 1) noexcept;

    std::shared_ptr<Pool> pool_;
    std::uint32_t index_;
    WorkerLine& line_;
    SpinBudget spin_;
    bool leading_ = false;
    std::uint8_t core_ = 0;                  // core_mark() that the sessions were shown
    bool quit_ = false;
    std::shared_ptr<HostSeat> seat_;         // whose agent decides for this worker; null: nobody's, or its regions are on their way
    std::uint32_t seats_seen_ = 0;           // Pool::seats_changed() when that was looked up
    std::uint32_t serving_ = nobody;         // session whose request is being executed
    std::uint64_t wait_began_ = 0;           // ticks; 0: did not wait as the leader for what comes next
    std::vector<SessionMap*> maps_;          // by session index, or null
    std::vector<SessionMap*> live_;          // the same without the gaps
    std::vector<std::unique_ptr<Session>> sessions_;
    std::vector<Loaded> kernels_;            // by version line
    std::bitset<max_versions> told_wanted_;  // parked versions that on_dropped("wanted", …) was called for
    Gatherings gatherings_;
    std::vector<std::uint32_t> company_;     // taken together with the record that take() returned
    std::vector<std::uint32_t> finished_;    // ended records, given back at the next take()
    std::vector<std::pair<std::uint32_t, std::uint32_t>> leaving_;  // (session, epoch) dropped while it was served

    std::mutex inbox_mutex_;                 // guards inbox_
    std::vector<std::function<void(Worker&)>> inbox_;
    std::atomic<bool> news_{false};
};

}  // namespace teal
