// A worker: the loop that takes requests and runs kernels, in one thread.
//
// Theory of operation: everything a worker owns (session maps, kernels, bindings) is touched by its loop only.
// Whoever has news (the control thread: a session came, a version was loaded, quit) posts a small function to
// the inbox and wakes the loop, which applies it between two requests. A request that arrives before the news of
// its session waits for it, but only when the pool region says that the host really opened that session.
//
// A request that has begun is a Begun: all that its run needs until it ends. Usually it lives on the stack of execute(). One whose kernel can
// be preempted may leave in the middle; its Begun is then kept here while its record is queued again (suspended.cpp), and only this worker can
// go on with it. Nothing that it uses (its slot, its session, a region of its tensors, its kernel) is given up before it ends: news of that
// kind wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "host/batch.hpp"
#include "host/chain.hpp"
#include "host/loans.hpp"
#include "host/pool.hpp"
#include "kernel/fiber.hpp"
#include "kernel/kernel.hpp"
#include "kernel/preemptor.hpp"
#include "queue/wait.hpp"

namespace teal {

class Worker {
public:
    // Whose time a lent worker uses (lent.cpp).
    struct Lender {
        std::shared_ptr<const Pool> pool;
        std::shared_ptr<Loans> loans;
        std::uint32_t worker = 0;
    };
    Worker(std::shared_ptr<Pool> pool, std::uint32_t index, std::optional<Lender> lender = std::nullopt);
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
    void decide_inline(std::shared_ptr<Policy> policy);  // Pool::decide_inline()
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
    // Called by the loop, under the role, when a request has left this worker in the middle: its record is queued again, `suspended`.
    // How: at a yield point of its own, or taken. ran_ns: on the core so far. Set before run().
    enum class Left : std::uint8_t { yielded, preempted };
    std::function<void(std::uint32_t record, Left how, std::uint64_t ran_ns)> on_left;

    [[nodiscard]] Pool& pool() noexcept { return *pool_; }

private:
    void fetch_path(std::uint32_t record, const Ending& ending) const noexcept;
    struct Slot {  // what is prepared for one slot of one session
        std::uint32_t stamp = 0;
        std::uint32_t region = 0;
        std::uint64_t offset = 0;
        std::uint32_t version_line = nobody;
        std::uint32_t generation = 0;
        bool known = false;          // the descriptor is that of the stamp
        bool begun = false;          // a request of it has left and not ended: nothing here may change
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
    struct Begun {  // a request that has begun
        std::uint32_t record = 0;
        std::uint32_t version_line = 0;
        std::uint32_t slot_index = 0;
        std::uint32_t generation = 0;        // of its completion line
        CompletionLine* line = nullptr;
        Worker* worker = nullptr;
        Session* session = nullptr;
        Slot* slot = nullptr;                // null: it cannot run, and `ending` says why
        Ending ending;
        Run run;
        std::uint64_t submitted = 0;
        bool told = false;                   // its client has the answer already
        bool ok = false;                     // what its kernel said
        std::uint64_t left_at = 0;           // ticks
        std::unique_ptr<Fiber> fiber;        // of a kernel that can be left anywhere
        bool answer();
    };
    struct Postponed {  // news that wait for requests that have left
        std::function<bool(const Begun&)> of;
        std::function<void(Worker&)> news;
    };

    void post_session(std::shared_ptr<SessionMap> map);
    void apply_inbox();
    void list_live();
    void show_core() noexcept;
    void drop_bindings(std::uint32_t version_line);
    void forget_session(std::uint32_t session, std::uint32_t epoch);
    void forget_region(std::uint32_t session, std::uint32_t epoch, std::uint32_t id);
    [[nodiscard]] static bool uses(const Slot& slot, std::uint32_t region) noexcept;
    std::uint32_t take();
    void wait();
    void tell_wanted(std::bitset<max_versions> wanted);
    void refresh_seat();
    void give_up_role() noexcept;
    void give_back_finished() noexcept;
    void sleep_leading(std::uint32_t wake_seen);
    void sleep_following(std::uint32_t wake_seen);
    [[nodiscard]] bool work_due() const noexcept;
    [[nodiscard]] bool work_ready() const noexcept;
    [[nodiscard]] bool own_work_due() const noexcept;
    [[nodiscard]] bool take_lead() noexcept;
    // lent.cpp
    std::uint32_t take_for_others();
    void wait_for_others();
    void resign() noexcept;
    // begun.cpp
    void execute(std::uint32_t record);
    bool begin(Begun& begun, std::uint32_t record);
    void run_through(Begun& begun);
    void settle(Begun& begun);
    void count_overrun(const Begun& begun) noexcept;
    void tell_asks() noexcept;
    // suspended.cpp
    [[nodiscard]] bool may_leave(const Binding& binding, std::uint32_t record);
    [[nodiscard]] std::uint64_t slice_ns(std::uint32_t record) const noexcept;
    [[nodiscard]] std::uint64_t timer_ns(std::uint32_t record) const noexcept;
    [[nodiscard]] bool goes_on_by_itself() const noexcept { return !suspended_records_.empty() && pool_->goes_on(suspended_records_); }
    void watch_asks();
    [[nodiscard]] std::span<const std::uint32_t> resumable() const noexcept { return suspended_records_; }
    [[nodiscard]] Preemptor& preemptor();
    void run_leaving(std::unique_ptr<Begun> begun);
    void run_pieces(std::unique_ptr<Begun> begun);
    bool run_piece(Begun& begun);
    [[nodiscard]] bool yields_now(Begun& begun);
    [[nodiscard]] bool is_wanted(const Begun& begun) const noexcept;
    [[nodiscard]] bool wanted_now() const noexcept;
    [[nodiscard]] bool is_over(const Begun& begun) const noexcept;
    [[nodiscard]] bool must_go(const Begun& begun);
    void suspend(std::unique_ptr<Begun> begun);
    void go_on(std::uint32_t record);
    std::unique_ptr<Begun> take_suspended(std::size_t at);
    void shed();
    void drop(std::unique_ptr<Begun> begun, Reason reason);
    void when_unused(std::function<bool(const Begun&)> of, std::function<void(Worker&)> news);
    void retry_postponed();
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
    std::optional<Lender> lender_;           // of a lent worker
    bool in_vain_ = false;                   // of a lent worker: it has looked at all that waits, and may run nothing of it
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
    std::vector<std::uint32_t> ran_ns_;      // of each; 0: charged by its pieces, or it never ran
    std::vector<std::pair<std::uint32_t, std::uint32_t>> leaving_;  // (session, epoch) dropped while it was served

    std::unique_ptr<Preemptor> preemptor_;   // since it was first needed
    std::shared_ptr<HostSeat> watched_seat_; // whose asks to leave it believes
    std::uint64_t told_in_vain_ = 0;         // of the preemptor's count of asks in vain
    std::uint64_t piece_began_ = 0;          // ticks, of what runs in pieces; 0: nothing does
    const Begun* running_ = nullptr;         // the piece that runs
    Fibers fibers_;
    std::vector<std::unique_ptr<Begun>> suspended_;   // that have left
    std::vector<std::uint32_t> suspended_records_;    // theirs, in the same order
    std::vector<Postponed> postponed_;

    std::mutex inbox_mutex_;                 // guards inbox_
    std::vector<std::function<void(Worker&)>> inbox_;
    std::atomic<bool> news_{false};
};

}  // namespace teal
