// The client's end of a session: memory for calls, submitting, waiting.
//
// Theory of operation: a ClientSlot is one block of shared memory that holds a descriptor block and the tensors of
// one call, plus one completion line. A SlotHome keeps the slots of one signature (model, shapes): loaning one is
// taking it off a list; when the last holder of a loan is gone the slot goes back, at once if the worker side has let
// go of it, else (cancelled, expired) as soon as it has. Submitting is one ring entry; waiting is reading one line.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "host/session.hpp"
#include "memory/arena.hpp"
#include "queue/expectation.hpp"
#include "queue/wait.hpp"

namespace teal {

class ClientSession;

struct TensorPlan {
    Dtype dtype = Dtype::none;
    std::uint16_t flags = 0;             // TensorFlags
    std::vector<std::int64_t> shape;
    std::uint64_t capacity = 0;          // bytes; 0: exactly what the shape needs
    std::int32_t in_place = -1;          // output: lies in the memory of this input
};

struct ClientSlot {
    std::uint32_t index = 0;             // completion line
    std::uint32_t generation = 0;        // of the last submit
    std::uint32_t stamp = 1;             // of the descriptor block
    std::uint32_t region = 0;
    std::uint64_t offset = 0;            // of the descriptor block, in the region
    std::uint64_t block = 0;             // of the allocation
    std::byte* base = nullptr;           // region base
    bool submitted = false;              // generation is not known to have been released
    std::uint64_t submitted_ticks = 0;   // of the last submit
    std::shared_ptr<Expectation> expected;  // of its home; null: do not spin on a guess
    std::shared_ptr<Region> memory;      // keeps the pages while anybody looks
    std::vector<TensorDesc> inputs;      // this side's copy of what is in the block
    std::vector<TensorDesc> outputs;
    std::vector<std::int32_t> in_place;  // for each output: the input whose memory it is, or -1
    CompletionLine* line = nullptr;
    // Held by every view of an output besides the loan: use_count() == 1 means that nobody looks at them.
    std::shared_ptr<void> views = std::make_shared<char>();
    // What its last request waited for: their lines may not be about anything else before it has ended.
    std::vector<std::shared_ptr<ClientSlot>> awaited;
    // Slots with outputs of their own on the same inputs, for calls made while the outputs above are looked at.
    std::vector<std::shared_ptr<ClientSlot>> siblings;
};

// A block of tensor memory on loan, for tensors that belong to no slot.
struct Block {
    std::shared_ptr<ClientSession> session;
    std::shared_ptr<Region> memory;
    std::uint32_t region = 0;
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
    ~Block();
};

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
    std::unique_ptr<ClientSlot> make_slot(const std::vector<TensorPlan>& inputs, const std::vector<TensorPlan>& outputs);  // null: no room
    void destroy_slot(std::unique_ptr<ClientSlot> slot);
    // `slot` itself when its outputs may be overwritten now, else a sibling of it. Null: no room.
    std::shared_ptr<ClientSlot> ready(const std::shared_ptr<ClientSlot>& slot);

    // Never given out twice in a session: a worker takes an equal stamp for an unchanged descriptor block.
    std::uint32_t next_stamp() noexcept { return stamp_.fetch_add(1, std::memory_order_relaxed); }

    // Publishes the request. Throws busy when the slot is still out. With `after` it runs once all of these have ended well, and is
    // cancelled (Reason::dependency) when one ends otherwise; at most max_after of them, and of this session.
    void submit(ClientSlot& slot, std::uint32_t model, std::uint32_t version, std::int32_t priority, std::uint64_t deadline_ns,
                std::vector<std::shared_ptr<ClientSlot>> after = {});
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
    [[nodiscard]] static bool ended(const ClientSlot& slot) noexcept {
        // SYNC: acquire pairs with end_request(): outputs and fields are visible.
        return has_ended(slot.line->word.load(std::memory_order_acquire), slot.generation);
    }
    // Ends it from this side; false when it had ended, or is running a kernel that cannot be undone.
    bool cancel(ClientSlot& slot, State to, Reason reason) noexcept;
    [[nodiscard]] static bool quiescent(const ClientSlot& slot) noexcept;

    // Where the calls of a model are counted; stays valid as long as the session.
    ClientStages* stages_of(std::uint32_t model) noexcept;
    // The request has ended and its caller knows.
    static void saw_end(const ClientSlot& slot, ClientStages& stages) noexcept;

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
    friend struct Block;
    friend class SlotHome;
    void release_block(std::uint32_t region, std::uint64_t offset) noexcept;
    struct Piece { std::uint32_t region; std::uint64_t offset; std::shared_ptr<Region> memory; };
    std::optional<Piece> find(std::uint64_t size, std::uint64_t align);
    void ring_doorbell() noexcept;
    bool wait_out(ClientSlot& slot, std::uint64_t end_ns);
    void nap(ClientSlot& slot, std::uint64_t until_ns) noexcept;
    void check_peer() const;
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

    std::mutex ring_mutex_;            // guards producer_: one producer at a time
    RingProducer producer_;
};

// Loans slots of one signature.
class SlotHome : public std::enable_shared_from_this<SlotHome> {
public:
    // may_spin: the engine leaves a core for a waiter that spins across the expected end of a long call.
    SlotHome(std::shared_ptr<ClientSession> session, std::vector<TensorPlan> inputs, std::vector<TensorPlan> outputs, std::size_t keep, bool may_spin);
    ~SlotHome();
    // A quiescent slot that goes back to this home when the last copy of the pointer is gone. Null: no room.
    std::shared_ptr<ClientSlot> loan();
    void forget_idle();  // gives the memory of slots that nobody holds back to the arenas
    [[nodiscard]] ClientSession& session() noexcept { return *session_; }
    [[nodiscard]] const std::shared_ptr<ClientSession>& session_pointer() const noexcept { return session_; }

private:
    void take_back(std::unique_ptr<ClientSlot> slot) noexcept;

    std::shared_ptr<ClientSession> session_;
    std::vector<TensorPlan> inputs_;
    std::vector<TensorPlan> outputs_;
    std::shared_ptr<Expectation> expected_;           // null: waiters do not spin on a guess
    std::size_t keep_;                                // idle slots beyond this are destroyed
    std::mutex mutex_;                                // guards the lists
    std::vector<std::unique_ptr<ClientSlot>> idle_;   // quiescent
    std::vector<std::unique_ptr<ClientSlot>> limbo_;  // ended for the client, not yet released by the worker side
};

}  // namespace teal
