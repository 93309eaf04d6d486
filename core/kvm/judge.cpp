#include "kvm/judge.hpp"

#include "base/error.hpp"

#if defined(__x86_64__)

#include <csignal>

#include <sched.h>
#include <sys/resource.h>
#include <x86intrin.h>

#include "cpu/clock.hpp"
#include "kvm/bench.hpp"
#include "kvm/calls.hpp"
#include "kvm/fuse.hpp"

namespace teal::kvm {
namespace {

constexpr std::uint64_t longest_ns = 500'000'000'000;
constexpr std::uint32_t timer_trap = 32, exit_trap = 255;

// What Linux would have sent.
std::int32_t signal_of(std::uint32_t trap) noexcept {
    switch (trap) {
    case 0: case 16: case 19: return SIGFPE;
    case 1: case 3: return SIGTRAP;
    case 6: return SIGILL;
    case 17: return SIGBUS;
    case 253: return SIGABRT;
    default: return trap < 32 ? SIGSEGV : 0;
    }
}

// This thread on one CPU for as long as a run takes.
class Pin {
public:
    explicit Pin(std::int32_t cpu) noexcept {
        if (cpu < 0 || cpu >= CPU_SETSIZE || ::sched_getaffinity(0, sizeof before_, &before_) != 0) return;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(static_cast<unsigned>(cpu), &one);
        pinned_ = ::sched_setaffinity(0, sizeof one, &one) == 0;
    }
    ~Pin() {
        if (pinned_) ::sched_setaffinity(0, sizeof before_, &before_);
    }
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

private:
    cpu_set_t before_{};
    bool pinned_ = false;
};

std::uint64_t ns_of(const timeval& time) noexcept {
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(time.tv_usec) * 1000u;
}

// The resources that this thread has used since.
class Usage {
public:
    Usage() noexcept { ::getrusage(RUSAGE_THREAD, &began_); }
    void tell(box::RunRecord& record) const noexcept {
        rusage now{};
        ::getrusage(RUSAGE_THREAD, &now);
        record.user_ns = ns_of(now.ru_utime) - ns_of(began_.ru_utime);
        record.system_ns = ns_of(now.ru_stime) - ns_of(began_.ru_stime);
        record.voluntary_switches = static_cast<std::uint64_t>(now.ru_nvcsw - began_.ru_nvcsw);
        record.involuntary_switches = static_cast<std::uint64_t>(now.ru_nivcsw - began_.ru_nivcsw);
        record.minor_faults = static_cast<std::uint64_t>(now.ru_minflt - began_.ru_minflt);
        record.major_faults = static_cast<std::uint64_t>(now.ru_majflt - began_.ru_majflt);
    }

private:
    rusage began_{};
};

}  // namespace

struct Judge::State {
    Bench bench;

    void run(const box::RunOrder& order, std::uint64_t image_id, box::RunRecord& record);
    void follow(Calls& calls, Fuse& fuse, box::RunRecord& record);
};

// Until the program has ended: its end is in the record.
void Judge::State::follow(Calls& calls, Fuse& fuse, box::RunRecord& record) {
    Guest& guest = bench.guest();
    for (;;) {
        const Event event = guest.run(0);
        record.trap_epc = event.rip;
        switch (event.what) {
        case Event::What::stopped:
            guest.core(0).unstop();
            if (fuse.cpu_over() || fuse.wall_over()) {
                record.trap_num = timer_trap;
                record.signal = SIGKILL;                     // as a process box would have got
                return;
            }
            break;
        case Event::What::trap:
            record.trap_num = event.number;
            record.trap_cr2 = event.address;
            record.signal = signal_of(event.number);
            return;
        case Event::What::syscall:
        case Event::What::int80:
            if (const End end = calls.answer(0, event); end.ended) {
                record.trap_num = end.trap;
                record.return_code = end.status;
                record.signal = end.signal;
                return;
            }
            break;
        case Event::What::failed:
            throw Error(Code::internal_error, "KVM could not run the guest (exit reason " + std::to_string(event.number) + ")");
        }
    }
}

void Judge::State::run(const box::RunOrder& order, std::uint64_t image_id, box::RunRecord& record) {
    if (order.time_limit_ns == 0 || order.time_limit_ns > longest_ns) {
        throw Error(Code::invalid_argument, "a time limit is 1 ns to 500 s");
    }
    bench.prepare(order, image_id);
    const Pin pin(order.pin);
    const Usage usage;
    const Calls::Files files{order.in, order.out, order.err, order.out_limit, order.err_limit};
    Calls calls(bench.guest(), order.abi, files, bench.heap(), bench.heap_bytes());
    const std::uint64_t wall_limit = order.wall_limit_ns != 0 ? order.wall_limit_ns : 2 * order.time_limit_ns + 1'000'000'000;
    bench.guest().begin(0, bench.start());
    std::uint64_t ticks = 0;
    {
        Fuse fuse(bench.guest().core(0), order.time_limit_ns + order.time_limit_ns / 100 + 10'000'000, wall_limit, box::longest_wait_ns(order));
        calls.bound_by(fuse);
        const std::uint64_t began = __rdtsc();
        follow(calls, fuse, record);
        ticks = __rdtsc() - began;
        record.time_ns = fuse.cpu_used();
        record.time_ns_real = fuse.wall_used();
    }
    usage.tell(record);
    const Count count = bench.finish(order.report_address, record.report);
    record.memory_kb = count.written * 4;
    record.memory_kb_accessed = count.touched * 4;
    record.time_tsc = record.clk_ref_tsc = ticks;
    record.tsc_mhz = static_cast<double>(ticks_per_second()) / 1e6;
    record.time_ns_ref_tsc = static_cast<std::uint64_t>(static_cast<double>(ticks) * 1e3 / record.tsc_mhz);
    record.stdout_size = calls.out_bytes();
    record.stderr_size = calls.err_bytes();
    record.stdout_truncated = calls.out_truncated();
    record.stderr_truncated = calls.err_truncated();
    record.memory_exceeded = calls.memory_refused();
    if (record.trap_num == timer_trap || record.time_ns > order.time_limit_ns) {
        record.status = box::RunStatus::time_limit;
        record.time_ns = order.time_limit_ns;
    } else {
        record.status = record.trap_num == exit_trap ? box::RunStatus::finished : box::RunStatus::runtime_error;
    }
}

Judge::Judge() : state_(std::make_unique<State>()) {}
Judge::~Judge() = default;

BenchStatistics Judge::statistics() const noexcept { return state_->bench.statistics(); }

box::RunRecord Judge::run(const box::RunOrder& order, std::uint64_t image_id) noexcept {
    box::RunRecord record;
    record.clock = "thread cpu clock of the guest's core: no hardware counters in guests";
    record.memory = "the guest's page tables";
    try {
        state_->run(order, image_id, record);
    } catch (const std::exception& error) {
        record = {};
        record.reason = error.what();
        state_ = std::make_unique<State>();   // whatever was half done is gone
    }
    return record;
}

}  // namespace teal::kvm

#else

namespace teal::kvm {

struct Judge::State {};
Judge::Judge() = default;
Judge::~Judge() = default;
box::RunRecord Judge::run(const box::RunOrder&, std::uint64_t) noexcept {
    box::RunRecord record;
    record.reason = "the KVM back end is for x86-64";
    return record;
}

}  // namespace teal::kvm

#endif
