// The client's end of a session: memory for calls, submitting, waiting.
//
// Theory of operation: a session makes slots (slot.hpp: the memory and completion line of one call) in its regions;
// homes (slot_home.hpp) keep them for calls that are alike. Submitting is one ring entry; waiting is reading one line.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "host/session.hpp"
#include "host/slot.hpp"
#include "host/uses.hpp"
#include "memory/arena.hpp"
#include "queue/wait.hpp"

namespace teal {

class SlotHome;

class ClientSession : public std::enable_shared_from_this<ClientSession> {
public:
    // `socket` is only polled for a hang-up; it stays the caller's.
    ClientSession(std::unique_ptr<SessionMap> map, std::uint64_t idle_ns, int socket);
    ~ClientSession();

    void add_region(std::uint32_t id, int fd);  // takes the descriptor
    // Region ids that hold nothing any more, largest first to give back; they are forgotten here.
    std::vector<std::uint32_t> take_empty_regions(std::uint64_t keep_bytes);

    std::shared_ptr<Block> allocate(std::uint64_t size, std::uint64_t align);  // null: no room, add a region
    // Null: no room. With places in the plans: throws invalid_argument, with the tensor's path, unless each lies in a region of this
    // session, aligned for its dtype, and outputs lie apart. Whoever submits the slot sets its `holds` first (SlotHome::loan does).
    std::unique_ptr<ClientSlot> make_slot(const std::vector<TensorPlan>& inputs, const std::vector<TensorPlan>& outputs);
    void destroy_slot(std::unique_ptr<ClientSlot> slot);
    // `slot` itself when its outputs may be overwritten now, else a sibling of it. Null: no room. Not for slots with places.
    std::shared_ptr<ClientSlot> ready(const std::shared_ptr<ClientSlot>& slot);

    // Never given out twice in a session: a worker takes an equal stamp for an unchanged descriptor block.
    std::uint32_t next_stamp() noexcept { return stamp_.fetch_add(1, std::memory_order_relaxed); }

    // Publishes the request. Throws busy when the slot is still out, or a request that is out uses memory at its places. With `after`
    // it runs once all of these have ended well, and is cancelled (Reason::dependency) when one ends otherwise; at most max_after of
    // them, and of this session. Their memory may be at its places: they are done with it by then.
    void submit(ClientSlot& slot, std::uint32_t model, std::uint32_t version, std::int32_t priority, std::uint64_t deadline_ns,
                std::vector<std::shared_ptr<ClientSlot>> after = {});
    // The same through a resident device kernel that polls the slot's own device line (device/line.hpp), without ring and worker. False when
    // none does, for these tensors; submit() then. The request that went before must have ended well. One request, one thread.
    bool submit_direct(ClientSlot& slot);
    // How that ended: done; late (`ns` passed, wait again); parked, lost, invalid or failed: submit(), the worker sees to it. A request that
    // stands in a parked line is served by the worker that way, and not twice.
    Answer wait_direct(ClientSlot& slot, std::uint64_t ns, std::uint64_t spin_ns) noexcept;
    // An event is a completion line without a request: wait(), ended() and `after` take it like any other. It has not come yet;
    // one that is given up before it came is cancelled. Throws quota_exceeded.
    std::shared_ptr<ClientSlot> make_event();
    // Ends an event: State::done lets what waits for it run, any other end cancels that. False when it had ended.
    bool signal(ClientSlot& event, State to = State::done) noexcept;
    // An event that came has not come again. Throws busy when it has not ended.
    void rearm(ClientSlot& event);
    // Spins at most `ns`; true when the request has ended.
    bool spin(ClientSlot& slot, std::uint64_t ns) noexcept;
    // Spins, then sleeps until the request has ended or CLOCK_MONOTONIC `until_ns` (0: no bound) has passed.
    // Throws peer_died when the host's socket hung up meanwhile. Ends the request itself when its deadline passes.
    bool wait(ClientSlot& slot, std::uint64_t until_ns, std::uint64_t deadline_ns);
    // Only the sleep that wait() begins with, until `until_ns` at most. False: there is none (any more).
    bool doze(ClientSlot& slot, std::uint64_t until_ns);
    [[nodiscard]] static bool ended(const ClientSlot& slot) noexcept {
        // SYNC: acquire pairs with end_request(): outputs and fields are visible.
        return has_ended(slot.line->word.load(std::memory_order_acquire), slot.generation);
    }
    // Ends it from this side; false when it had ended, or is running a kernel that cannot be undone.
    bool cancel(ClientSlot& slot, State to, Reason reason) noexcept;
    // Has the worker side let go of the slot? quiescent(): and of its siblings, which use its inputs.
    [[nodiscard]] static bool let_go(const ClientSlot& slot) noexcept;
    [[nodiscard]] static bool quiescent(const ClientSlot& slot) noexcept;
    // The request's outputs were taken, or there are none: the slot lets go of the memory at its places, unless it is kept or
    // the worker side may still touch it.
    static void let_go_of_places(ClientSlot& slot) noexcept;

    // Wakes the pool's leader to look at all rings: on behalf of a session whose memory nobody can sleep on (bpf/bell.hpp).
    void rouse() noexcept;
    // Entries put into the ring so far.
    [[nodiscard]] std::uint32_t ring_position() const noexcept { return producer_.position(); }

    // Where the calls of a model are counted; stays valid as long as the session.
    ClientStages* stages_of(std::uint32_t model) noexcept;
    // The request has ended and its caller knows.
    static void saw_end(const ClientSlot& slot, ClientStages& stages) noexcept;
    static void saw_direct_end(ClientSlot& slot, ClientStages& stages) noexcept;

    [[nodiscard]] bool peer_gone() const noexcept;
    void close() noexcept;
    [[nodiscard]] bool closed() const noexcept { return closed_.load(std::memory_order_relaxed); }
    [[nodiscard]] SessionMap& map() noexcept { return *map_; }
    [[nodiscard]] std::uint64_t bytes_used() const;
    [[nodiscard]] std::uint64_t slots_out() const;
    [[nodiscard]] std::uint64_t region_bytes() const;
    [[nodiscard]] std::uint32_t largest_page_shift() const;
    void raise_idle(std::uint64_t ns) noexcept {
        if (ns > spin_.ceiling_ns()) spin_.set_ceiling(ns);
    }
    [[nodiscard]] std::uint64_t spin_budget_ns() const noexcept { return spin_.budget_ns(); }

private:
    // Was a worker last seen on this thread's core?
    [[nodiscard]] bool worker_here() const noexcept;
    friend struct Block;
    friend class SlotHome;
    void release_block(std::uint32_t region, std::uint64_t offset) noexcept;
    struct Piece { std::uint32_t region; std::uint64_t offset; std::shared_ptr<Region> memory; };
    std::optional<Piece> find(std::uint64_t size, std::uint64_t align);
    void ring_doorbell() noexcept;
    bool wait_out(ClientSlot& slot, std::uint64_t end_ns);
    void nap(ClientSlot& slot, std::uint64_t until_ns) noexcept;
    void check_peer() const;
    void left(const ClientSlot& slot) noexcept { uses_.forget(slot); }
    void check_places(const ClientSlot& slot) const;
    bool place(ClientSlot& slot, std::uint64_t total);
    void retire_slot(std::unique_ptr<ClientSlot> slot);  // destroys it as soon as the worker side has let go
    void destroy_retired();
    void write_descriptor(ClientSlot& slot) noexcept;

    std::unique_ptr<SessionMap> map_;
    int socket_;
    std::atomic<bool> closed_{false};
    SpinBudget spin_;
    std::atomic<std::uint32_t> stamp_{1};

    mutable std::mutex memory_mutex_;  // guards arenas_ and free_lines_, generations_
    std::vector<std::unique_ptr<Arena>> arenas_;
    std::vector<std::uint32_t> free_lines_;
    std::vector<std::uint32_t> generations_;

    std::mutex retired_mutex_;         // guards retired_
    std::vector<std::unique_ptr<ClientSlot>> retired_;  // nobody's slots, not yet released by the worker side

    Uses uses_;

    std::mutex ring_mutex_;            // guards producer_: one producer at a time
    RingProducer producer_;
};

}  // namespace teal
