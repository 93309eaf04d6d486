// The agent's side of a seat: reads what the host tells, writes what the agent decides (docs/protocol.md).
//
// Theory of operation. The agent maps the view read-only and the desk for writing, and trusts the host. It keeps its positions to itself: how far
// it has read, and which serial comes next for each worker. A slot of the desk may be written again once the host's next_serial has
// passed it; that number is read only when the slots that are known to be free have run out.
//
// Sleeping: the agent says on the desk that it may sleep, looks once more at everything that could wake it, and sleeps on its bell; the
// host writes, then looks whether the agent sleeps. Waking a worker is the same the other way round: ring().
//
// No policy here, and no allocation after attach(). One thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "agents/host_seat.hpp"
#include "agents/seat_layout.hpp"
#include "link/link.hpp"
#include "queue/wait.hpp"

namespace teal {

class AgentSeat {
public:
    // Takes both descriptors, also when it throws: version_mismatch, invalid_argument.
    static std::shared_ptr<AgentSeat> attach(int view_fd, int desk_fd);
    // In the same process as the host's side, for simulators and tests: `host` has to outlive it.
    static std::shared_ptr<AgentSeat> beside(const HostSeat& host);

    void set_link(std::shared_ptr<Link> link) noexcept { link_ = std::move(link); }
    void set_clock(SeatClock clock) noexcept { clock_ = clock; }
    // For simulators: ring() lists there whom something was staged for, and wakes nobody.
    void collect_rings(std::vector<std::uint32_t>* into) noexcept { collected_ = into; }
    [[nodiscard]] const SeatClock& clock() const noexcept { return clock_; }

    [[nodiscard]] std::uint32_t seat() const noexcept { return map_.view_header().seat; }
    [[nodiscard]] std::uint32_t incarnation() const noexcept { return map_.view_header().incarnation; }
    [[nodiscard]] std::uint32_t workers() const noexcept { return map_.layout.workers; }
    [[nodiscard]] std::uint32_t records() const noexcept { return map_.layout.records; }
    [[nodiscard]] std::uint32_t link_kind() const noexcept { return map_.view_header().link; }
    [[nodiscard]] bool is_active() const noexcept { return map_.view_header().active.load(std::memory_order_acquire) != 0; }
    [[nodiscard]] std::uint64_t settings() const noexcept { return map_.view_header().settings.load(std::memory_order_acquire); }
    [[nodiscard]] const SeatMap& map() const noexcept { return map_; }
    // Told by the agent for people to see.
    [[nodiscard]] DeskHeader& figures() const noexcept { return map_.desk_header(); }

    // ---- what happened ----
    // The next message. False: there is none now.
    bool poll(Message& message) noexcept;
    [[nodiscard]] bool has_message() const noexcept;
    // aseq of the last message that was polled.
    [[nodiscard]] std::uint32_t aseq() const noexcept { return aseq_; }
    // Messages were lost since the last time, or never read: read all words. True once for each time.
    bool lost() noexcept;
    // A word could not be read: lost() is true once more.
    void read_again() noexcept { overflow_ = UINT64_MAX; }
    // Tries until no writer is in the way (a thousand times at most: false then, and whoever died in the middle is repaired by the host).
    bool request(std::uint32_t record, RequestWord& word) const noexcept;
    bool worker(std::uint32_t worker, WorkerWord& word) const noexcept;

    // The host called: something lies beside the seat (HostSeat::call()). True once for each time.
    bool called() noexcept {
        // SYNC: acquire pairs with HostSeat::call(): what is to be read was sent before.
        const std::uint32_t now = map_.view_header().orders.load(std::memory_order_acquire);
        return now != std::exchange(orders_, now);
    }
    // Something has come, of any kind.
    [[nodiscard]] bool has_news() const noexcept;

    // ---- decisions ----
    // How many more can be staged for a worker, at least: the host's count is read when it seems to be none.
    unsigned room(std::uint32_t worker) noexcept;
    // Stages; fills in version, staged and serial. Returns the serial; 0 with `ok` false when there is no room.
    struct Staged { bool ok; std::uint32_t serial; };
    Staged stage(std::uint32_t worker, Decided decided) noexcept;
    // Writes a transaction without making it ready; publish() does: for groups, whose members become ready together.
    Staged prepare(std::uint32_t worker, Decided decided) noexcept;
    void publish(std::uint32_t worker, std::uint32_t serial) noexcept;
    // Takes back what is ready. False: a worker has it, or it is settled.
    bool withdraw(std::uint32_t worker, std::uint32_t serial) noexcept;
    // What became of it, while its slot has not been used again: state committed says so.
    [[nodiscard]] std::uint64_t state(std::uint32_t worker, std::uint32_t serial) const noexcept;
    // Serial that comes next for a worker; those from settled() on are not settled yet.
    [[nodiscard]] std::uint32_t next(std::uint32_t worker) const noexcept { return workers_[worker].next; }
    [[nodiscard]] std::uint32_t settled(std::uint32_t worker) const noexcept;
    // Wakes those of the workers staged for that sleep: once for a batch.
    void ring() noexcept;
    [[nodiscard]] bool has_to_ring() const noexcept { return !rings_.empty(); }
    // Workers that were woken; those that need not be: awake, or staged for more than once; ring()s for several decisions, and these.
    struct Rings { std::uint64_t rung = 0, spared = 0, batches = 0, batched = 0; };
    [[nodiscard]] const Rings& rings() const noexcept { return counts_; }
    // What the worker runs is to leave it. 0: nothing is.
    void ask_preempt(std::uint32_t worker, std::uint32_t record, std::uint32_t generation) noexcept;

    // ---- being there ----
    void set_state(AgentState state) noexcept;
    void beat(std::uint64_t now_ns) noexcept { map_.desk_header().beat.store(now_ns, std::memory_order_relaxed); }
    void want_timer(std::uint64_t ns) noexcept { map_.desk_header().timer_ns.store(ns, std::memory_order_relaxed); }
    void saw_settings(std::uint64_t number) noexcept { map_.desk_header().settings_seen.store(number, std::memory_order_relaxed); }
    // Sleeps until rung, something has come, or CLOCK_MONOTONIC `until_ns`; not when `news` says that there is any, which is asked once the
    // bell was read: who has news stores it, then calls wake().
    template <class News>
    void sleep(std::uint64_t until_ns, News&& news) noexcept {
        const std::uint32_t bell = lie_down();
        if (!news() && !has_news()) doze(bell, until_ns);
        get_up();
    }
    void sleep(std::uint64_t until_ns) noexcept { sleep(until_ns, [] { return false; }); }
    // From another thread of this process: it is not to sleep now, or to wake up.
    void wake() noexcept;

    // On the bells of several seats; not when one of them has news, or `news` says that there is any.
    template <class News>
    static void sleep_at_all(std::span<AgentSeat* const> seats, std::uint64_t until_ns, News&& news) noexcept {
        std::uint32_t bells[max_futex_waiters];
        const std::span<AgentSeat* const> some = seats.first(std::min<std::size_t>(seats.size(), max_futex_waiters));
        for (std::size_t i = 0; i < some.size(); ++i) bells[i] = some[i]->lie_down();
        bool any = news();
        for (const AgentSeat* seat : seats) any = any || seat->has_news();
        if (!any) doze_at_all(some, bells, until_ns);
        for (AgentSeat* seat : some) seat->get_up();
    }

    [[nodiscard]] bool stages_ahead() const noexcept { return teal::stages_ahead(link_.get()); }
    // How many more are to be staged than over shared memory: a worker that reads its slot ahead of time sees what was staged when its last
    // request began, and ends are heard of late when they wait for company.
    [[nodiscard]] unsigned more_ahead() const noexcept {
        return link_ == nullptr ? 0 : (link_->tricks().prefetch ? 1 : 0) + most_held_ends(link_.get()) - 1;
    }
    // Pays for reading all status words.
    void fetch_words() noexcept { fetch(link_.get(), std::uint64_t{map_.layout.records + map_.layout.workers} * sizeof(StatusWord)); }

private:
    std::uint32_t lie_down() noexcept;
    void doze(std::uint32_t bell, std::uint64_t until_ns) noexcept;
    static void doze_at_all(std::span<AgentSeat* const> seats, const std::uint32_t* bells, std::uint64_t until_ns) noexcept;
    void get_up() noexcept { map_.desk_header().asleep.store(0, std::memory_order_relaxed); }

    struct WorkerEnd {
        std::uint32_t next = 1;
        std::uint32_t settled = 1;      // the host's next_serial as read last
        std::uint32_t to_ring = 0;      // listed in rings_
    };
    AgentSeat(const SeatMap& map, std::shared_ptr<Region> view, std::shared_ptr<Region> desk);

    SeatMap map_;
    std::shared_ptr<Region> view_;
    std::shared_ptr<Region> desk_;
    std::shared_ptr<Link> link_;
    SeatClock clock_;
    std::uint32_t position_ = 0;
    std::uint32_t aseq_ = 0;
    std::uint64_t overflow_ = UINT64_MAX;  // never read
    std::vector<WorkerEnd> workers_;
    std::vector<std::uint32_t> rings_;
    Rings counts_;
    std::uint32_t published_ = 0;          // decisions since the last ring()
    std::uint32_t orders_ = 0;
    std::vector<std::uint32_t>* collected_ = nullptr;
};

}  // namespace teal
