#include "bench/seat_costs.hpp"

#include "bench/on_core.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <sched.h>
#include <string>
#include <thread>
#include <utility>

#include "agents/agent.hpp"
#include "agents/agent_seat.hpp"
#include "agents/host_seat.hpp"
#include "agents/policies/make.hpp"
#include "base/error.hpp"
#include "cpu/clock.hpp"
#include "queue/wait.hpp"

namespace teal {
namespace {

constexpr std::uint32_t most_tries = 1'000'000;
constexpr std::uint32_t warm_up = 500;
constexpr std::uint64_t patience_ns = 10'000'000'000;
constexpr std::uint32_t event_workers = 64, event_records = 1024;

std::uint64_t fenced_ticks() noexcept {
#if defined(__x86_64__)
    __asm__ volatile("lfence" ::: "memory");
    const std::uint64_t now = ticks();
    __asm__ volatile("lfence" ::: "memory");
    return now;
#elif defined(__aarch64__)
    __asm__ volatile("dsb sy\n\tisb" ::: "memory");
    const std::uint64_t now = ticks();
    __asm__ volatile("isb" ::: "memory");
    return now;
#else
    return ticks();
#endif
}

std::uint32_t interval_ns(std::uint64_t start, std::uint64_t end) noexcept {
    return static_cast<std::uint32_t>(std::min<std::int64_t>(ticks_to_ns(end - start), UINT32_MAX));
}

void pause_ns(std::uint64_t ns) noexcept {
    const std::uint64_t until = ticks() + ns_to_ticks(static_cast<std::int64_t>(ns));
    while (ticks() < until) cpu_relax();
}

void await(const std::atomic<bool>& failed, const char* what, const auto& done) {
    const std::uint64_t until = ticks() + ns_to_ticks(static_cast<std::int64_t>(patience_ns));
    while (!done()) {
        if (failed.load(std::memory_order_relaxed)) throw Error(Code::invalid_argument, std::string("measure_seat: the other thread failed: ") + what);
        if (ticks() > until) throw Error(Code::peer_died, std::string("measure_seat: nothing for 10 s: ") + what);
        cpu_relax();
    }
}

// The agent's thread: whatever `step` does, again and again.
class Beside {
public:
    template <class Step> Beside(int core, Step step) {
        thread_ = std::thread([this, core, step]() mutable {
            try {
                const OnCore here(core);
                while (!stop_.load(std::memory_order_relaxed)) step();
            } catch (const std::exception&) {
                failed_.store(true, std::memory_order_seq_cst);
            }
        });
    }
    ~Beside() {
        stop_.store(true, std::memory_order_relaxed);
        thread_.join();
    }
    Beside(const Beside&) = delete;
    Beside& operator=(const Beside&) = delete;
    [[nodiscard]] const std::atomic<bool>& failed() const noexcept { return failed_; }

private:
    std::atomic<bool> stop_{false};
    std::atomic<bool> failed_{false};
    std::thread thread_;
};

// A host's side with one worker and a few records, of which one request at a time runs.
struct Stand {
    static constexpr std::uint32_t records = 64;
    std::shared_ptr<HostSeat> host;
    std::vector<std::uint32_t> generations = std::vector<std::uint32_t>(records, 1);
    std::uint32_t next = 0;

    Stand() : host(HostSeat::create({0, 1, 1, records, 1024, 0})) {
        host->worker_came(0);
        host->activate();
        host->flush(true);
    }
    RequestFacts facts() noexcept {
        const std::uint32_t record = next++ % records;
        return {.index = record, .generation = generations[record], .expected_ns = 1000, .arrived = ticks()};
    }
    void end(const Claim& claim) noexcept {
        host->ended(claim.decided.object, true, false);
        ++generations[claim.decided.object];
    }
};

// Stages whatever may run for worker 0, then says so on a line of its own: who waits for it leaves the slot alone.
struct Stager {
    std::shared_ptr<AgentSeat> agent;
    std::atomic<std::uint32_t>& staged;

    void operator()() noexcept {
        Message m;
        while (agent->poll(m)) {
            const auto type = static_cast<MessageType>(m.type);
            if (type != MessageType::request_new && type != MessageType::request_runnable) continue;
            Decided decided{};
            decided.object = m.object;
            decided.generation = m.generation;
            decided.tseq = m.tseq;
            if (agent->stage(0, decided).ok) staged.fetch_add(1, std::memory_order_release);
        }
    }
};

void measure_picks(std::uint32_t n, BenchCores cores, bool ahead, SeatCosts& costs) {
    Stand stand;
    alignas(64) std::atomic<std::uint32_t> staged{0};
    const Beside agent(cores.agent, Stager{AgentSeat::beside(*stand.host), staged});
    Claim claims[max_group];
    for (std::uint32_t i = 1; i <= warm_up + n; ++i) {
        stand.host->ready(stand.facts());
        stand.host->flush(true);
        await(agent.failed(), "a decision", [&] { return staged.load(std::memory_order_acquire) == i; });
        if (ahead) stand.host->prefetch(0);
        pause_ns(1000);
        const std::uint64_t start = fenced_ticks();
        const unsigned found = stand.host->claim(0, claims);
        const std::uint64_t claimed = fenced_ticks();
        if (found != 1) throw Error(Code::internal_error, "measure_seat: a decision that was staged was not claimed");
        const std::uint64_t before = fenced_ticks();
        stand.host->commit(claims[0], Outcome::complete);
        const std::uint64_t committed = fenced_ticks();
        stand.end(claims[0]);
        stand.host->flush(true);
        if (i <= warm_up) continue;
        (ahead ? costs.prefetched : costs.cold).push_back(interval_ns(start, claimed));
        if (!ahead) costs.commit.push_back(interval_ns(before, committed));
    }
}

// What a worker at saturation tells at each take: the end of one request, and one that may run.
void measure_messages(std::uint32_t n, BenchCores cores, SeatCosts& costs) {
    Stand stand;
    alignas(64) std::atomic<std::uint32_t> staged{0};
    const Beside agent(cores.agent, Stager{AgentSeat::beside(*stand.host), staged});
    Claim claims[max_group];
    stand.host->ready(stand.facts());
    stand.host->flush(true);
    for (std::uint32_t i = 1; i <= warm_up + n; ++i) {
        await(agent.failed(), "a decision", [&] { return staged.load(std::memory_order_acquire) == i; });
        pause_ns(1000);
        if (stand.host->claim(0, claims) != 1) throw Error(Code::internal_error, "measure_seat: a decision that was staged was not claimed");
        stand.host->commit(claims[0], Outcome::complete);
        stand.host->flush(true);
        const RequestFacts facts = stand.facts();
        pause_ns(1000);
        const std::uint64_t start = fenced_ticks();
        stand.end(claims[0]);
        stand.host->ready(facts);
        stand.host->flush(true);
        const std::uint64_t end = fenced_ticks();
        if (i > warm_up) costs.messages.push_back(interval_ns(start, end));
    }
}

void measure_roundtrips(std::uint32_t n, BenchCores cores, SeatCosts& costs) {
    Stand stand;
    const auto loop = std::make_shared<AgentLoop>(AgentSeat::beside(*stand.host), std::shared_ptr<Policy>(make_policy("fifo")));
    const Beside agent(cores.agent, [loop] { loop->step(static_cast<std::uint64_t>(monotonic_ns())); });
    Claim claims[max_group];
    for (std::uint32_t i = 1; i <= warm_up + n; ++i) {
        const RequestFacts facts = stand.facts();
        pause_ns(5000);  // the agent has seen the last one's end
        const std::uint64_t start = fenced_ticks();
        stand.host->ready(facts);
        stand.host->flush(true);
        await(agent.failed(), "a decision", [&] { return stand.host->staged(0); });
        const unsigned found = stand.host->claim(0, claims);
        const std::uint64_t end = fenced_ticks();
        if (found != 1) throw Error(Code::internal_error, "measure_seat: a decision that was staged was not claimed");
        stand.host->commit(claims[0], Outcome::complete);
        stand.end(claims[0]);
        stand.host->flush(true);
        if (i > warm_up) costs.roundtrip.push_back(interval_ns(start, end));
    }
}

void measure_line(std::uint32_t n, BenchCores cores, SeatCosts& costs) {
    struct Lines {
        alignas(64) std::atomic<std::uint32_t> asked{0};
        alignas(64) std::atomic<std::uint32_t> written{0};
        alignas(64) std::atomic<std::uint64_t> line{0};
    } lines;
    const Beside other(cores.agent, [&lines, seen = std::uint32_t{0}]() mutable {
        const std::uint32_t asked = lines.asked.load(std::memory_order_acquire);
        if (asked == seen) return;
        seen = asked;
        lines.line.store(asked, std::memory_order_release);
        lines.written.store(asked, std::memory_order_release);
    });
    for (std::uint32_t i = 1; i <= warm_up + n; ++i) {
        lines.asked.store(i, std::memory_order_release);
        await(other.failed(), "a line", [&] { return lines.written.load(std::memory_order_acquire) == i; });
        pause_ns(1000);
        const std::uint64_t start = fenced_ticks();
        const std::uint64_t found = lines.line.exchange(0, std::memory_order_acq_rel);
        const std::uint64_t end = fenced_ticks();
        if (found != i) throw Error(Code::internal_error, "measure_seat: a line that was written was not seen");
        if (i > warm_up) costs.line.push_back(interval_ns(start, end));
    }
}

void measure_clock(std::uint32_t n, SeatCosts& costs) {
    for (std::uint32_t i = 0; i < n; ++i) {
        const std::uint64_t start = fenced_ticks();
        costs.clock.push_back(interval_ns(start, fenced_ticks()));
    }
}

// The host's side of measure_events(): each worker takes what is staged for it, is done with it, and it comes again.
void spin_requests(HostSeat& host, std::vector<std::uint32_t>& generations) noexcept {
    Claim claims[max_group];
    for (std::uint32_t worker = 0; worker < event_workers; ++worker) {
        if (!host.staged(worker)) continue;
        const unsigned found = host.claim(worker, claims);
        for (unsigned i = 0; i < found; ++i) {
            const std::uint32_t record = claims[i].decided.object;
            host.commit(claims[i], Outcome::complete);
            host.ended(record, true, false);
            host.ready({.index = record, .generation = ++generations[record], .expected_ns = 1000, .arrived = ticks()});
        }
        host.flush(true);
    }
}

}  // namespace

SeatCosts measure_seat(std::uint32_t n, BenchCores cores) {
    if (n == 0 || n > most_tries) throw Error(Code::invalid_argument, "measure_seat: n = " + std::to_string(n) + ", expected 1 to 1000000");
    const OnCore here(cores.host);
    SeatCosts costs;
    measure_clock(n, costs);
    measure_line(n, cores, costs);
    measure_picks(n, cores, false, costs);
    measure_picks(n, cores, true, costs);
    measure_messages(n, cores, costs);
    measure_roundtrips(n, cores, costs);
    return costs;
}

EventRate measure_events(std::shared_ptr<Policy> policy, double seconds, BenchCores cores) {
    if (!(seconds > 0) || seconds > 60) throw Error(Code::invalid_argument, "measure_events: expected seconds from 0 to 60");
    const OnCore here(cores.agent);
    const std::shared_ptr<HostSeat> host = HostSeat::create({0, 1, event_workers, event_records, 8192, 0});
    std::vector<std::uint32_t> generations(event_records, 1);
    AgentLoop loop(AgentSeat::beside(*host), std::move(policy));
    for (std::uint32_t i = 0; i < event_workers; ++i) host->worker_came(i);
    host->activate();
    for (std::uint32_t i = 0; i < event_records; ++i) host->ready({.index = i, .generation = 1, .expected_ns = 1000, .arrived = ticks()});
    host->flush(true);
    const Beside workers(cores.host, [&host, &generations] { spin_requests(*host, generations); });
    const auto until = [&](double from_now) { return ticks() + ns_to_ticks(static_cast<std::int64_t>(from_now * 1e9)); };
    for (const std::uint64_t end = until(seconds / 10); ticks() < end;) loop.step(static_cast<std::uint64_t>(monotonic_ns()));
    const AgentFigures before = loop.figures();
    const std::uint64_t start = ticks();
    for (const std::uint64_t end = until(seconds); ticks() < end;) loop.step(static_cast<std::uint64_t>(monotonic_ns()));
    const std::uint64_t end = ticks();
    if (workers.failed().load(std::memory_order_relaxed)) throw Error(Code::invalid_argument, "measure_events: core " + std::to_string(cores.host) + " may not be used");
    const AgentFigures& after = loop.figures();
    return {after.events - before.events, after.decisions - before.decisions, static_cast<double>(ticks_to_ns(end - start)) / 1e9};
}

}  // namespace teal
