// HostSeat: what an agent is told of workers, and of itself.
#include "agents/host_seat.hpp"

#include "queue/wait.hpp"

namespace teal {
namespace {

// One writer at a time: no need for a locked instruction.
void add(std::atomic<std::uint64_t>& counter) noexcept { counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }

}  // namespace

void HostSeat::write_worker(std::uint32_t worker) noexcept {
    const SeatWorker& line = map_.seat_worker(worker);
    WorkerWord word{};
    word.flags = line.flags;
    if (line.running == no_object && (line.flags & worker_online) != 0) word.flags |= worker_idle;
    word.running = line.running;
    word.generation = line.generation;
    word.next_serial = line.next_serial.load(std::memory_order_relaxed);
    word.since = line.since;
    word.requests = line.requests;
    word.staged_hits = line.hits;
    word.staged_misses = line.misses;
    map_.worker_word(worker).write(word);
}

void HostSeat::enter_worker(std::uint32_t worker, std::uint32_t record, std::uint32_t generation) noexcept {
    if (worker >= map_.layout.workers) return;
    SeatWorker& line = map_.seat_worker(worker);
    line.running = record;
    line.generation = generation;
    line.told = 0;
    line.since = now_ != 0 ? now_ : clock_.ticks();
    ++line.requests;
    write_worker(worker);
}

void HostSeat::leave_worker(std::uint32_t worker, std::uint32_t record) noexcept {
    if (worker >= map_.layout.workers) return;
    SeatWorker& line = map_.seat_worker(worker);
    if (line.running != record) return;  // one of those taken along
    line.running = no_object;
    line.since = now_ != 0 ? now_ : clock_.ticks();
    write_worker(worker);
}

void HostSeat::worker_came(std::uint32_t worker) noexcept {
    SeatWorker& line = map_.seat_worker(worker);
    if ((line.flags & worker_online) != 0) return;
    line.flags = worker_online | worker_of_seat;
    line.running = no_object;
    line.told = 1;  // the message below says so
    line.since = clock_.ticks();
    write_worker(worker);
    Message m = message(MessageType::worker_came, worker);
    send(m);
}

void HostSeat::worker_gone(std::uint32_t worker) noexcept {
    SeatWorker& line = map_.seat_worker(worker);
    void_desk(worker, Outcome::worker_offline);
    line.flags = 0;
    line.running = no_object;
    line.told = 0;
    line.asleep.store(0, std::memory_order_relaxed);
    write_worker(worker);
    if (link_ != nullptr) link_->forget(worker);
    Message m = message(MessageType::worker_gone, worker);
    send(m);
}

void HostSeat::found_nothing(std::uint32_t worker, bool waiting) noexcept {
    SeatWorker& line = map_.seat_worker(worker);
    if (line.told != 0) return;
    line.told = 1;
    line.running = no_object;
    if (waiting) {
        ++line.misses;
        add(numbers().misses);
    }
    write_worker(worker);
    Message m = message(MessageType::worker_available, worker);
    send(m);
}

void HostSeat::tick() noexcept {
    Message m = message(MessageType::worker_tick, no_object);
    send(m);
}

void HostSeat::timer() noexcept {
    Message m = message(MessageType::agent_timer, no_object);
    send(m);
}

void HostSeat::wakeup(bool settings) noexcept {
    std::atomic<std::uint64_t>& count = view_header().settings;
    if (settings) count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    Message m = message(MessageType::agent_wakeup, no_object);
    send(m);
}

void HostSeat::call() noexcept {
    // SYNC: seq_cst pairs with the fence in AgentSeat::lie_down(): it reads the bell, says that it sleeps, then looks at `orders`.
    view_header().orders.fetch_add(1, std::memory_order_seq_cst);
    desk_header().bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(&desk_header().bell, 1);
}

}  // namespace teal
