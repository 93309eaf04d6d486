// Theory of operation. See judge.hpp. The thread that judges is the tracer. It leaves a fuse with the yard's thread, sends the order, and sleeps in wait4().
#include "box/judge.hpp"

#include <csignal>
#include <cerrno>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <ctime>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "box/trace.hpp"
#include "box/yard_state.hpp"
#include "cpu/clock.hpp"
#include "kvm/court.hpp"

namespace teal::box {
namespace {

constexpr std::uint64_t page = 4096;
constexpr std::uint64_t longest_limit_ns = 500'000'000'000;
constexpr std::uint64_t own_space_bytes = 64u << 20;
constexpr std::uint64_t usual_stack_bytes = 8u << 20;      // of a run's memory, or an eighth of it: more is there for the stack only while others leave it
constexpr std::uint64_t fuse_extra_ns = 10'000'000;

std::uint64_t now_ns() noexcept { return static_cast<std::uint64_t>(monotonic_ns()); }
std::uint64_t ns_of(const timeval& time) noexcept {
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(time.tv_usec) * 1000u;
}
std::uint64_t less(std::uint64_t a, std::uint64_t b) noexcept { return a > b ? a - b : 0; }
std::int32_t cpu_clock(std::uint32_t pid) noexcept { return static_cast<std::int32_t>(~pid << 3 | 2u); }   // CPUCLOCK_SCHED of a process
std::uint64_t cpu_ns(std::int32_t clock) noexcept {
    timespec used{};
    if (::clock_gettime(clock, &used) != 0) return 0;
    return static_cast<std::uint64_t>(used.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(used.tv_nsec);
}

// A counter of user-mode events of a process; -1 where the machine has none.
Descriptor counter(std::uint32_t pid, std::uint64_t event) noexcept {
    perf_event_attr what{};
    what.size = sizeof what;
    what.type = PERF_TYPE_HARDWARE;
    what.config = event;
    what.exclude_kernel = 1;
    what.exclude_hv = 1;
    return Descriptor(static_cast<int>(::syscall(SYS_perf_event_open, &what, pid, -1, -1, PERF_FLAG_FD_CLOEXEC)));
}
bool counters_offered() noexcept {
    static const bool offered = static_cast<bool>(counter(0, PERF_COUNT_HW_INSTRUCTIONS));
    return offered;
}
std::uint64_t read_counter(const Descriptor& fd) noexcept {
    std::uint64_t value = 0;
    return fd && ::read(fd.get(), &value, sizeof value) == sizeof value ? value : 0;
}

class Run {
public:
    Run(Yard::State& yard, const RunOrder& order) : yard_(yard), order_(order) {}
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;
    ~Run() {   // something failed on our side: no box may be left behind
        if (seized_ && !reaped_) end();
        const std::lock_guard lock(yard_.mutex);
        if (fuse_) std::erase(yard_.fuses, fuse_);
        yard_.spent.push_back(std::move(box_));
    }
    void end() noexcept {
        kill_process(box_.pidfd.get(), box_.pid);
        for (int status = 0;;) {
            const pid_t got = ::wait4(pid_, &status, __WALL, nullptr);
            if ((got < 0 && errno != EINTR) || (got == pid_ && !WIFSTOPPED(status))) break;
            if (got == pid_) ::ptrace(PTRACE_CONT, pid_, nullptr, nullptr);
        }
    }

    RunRecord judge() {
        check_order();
        const BoxKind kind = order_.abi == Abi::duckinfo ? BoxKind::duckinfo_run : BoxKind::linux_run;
        box_ = yard_.take(kind, yard_.options.zygote_limit_ns);
        pid_ = static_cast<pid_t>(box_.pid);
        if (pid_ == 0) throw Error(Code::internal_error, "the box's pid is not known here: is /proc mounted?");
        {
            const std::lock_guard lock(yard_.mutex);
            memory_ = yard_.memory;
        }
        if (!memory_) throw Error(Code::internal_error, "the box's memory map is not known here: is /proc mounted?");
        if (::ptrace(PTRACE_SEIZE, pid_, nullptr, reinterpret_cast<void*>(PTRACE_O_TRACEEXIT | PTRACE_O_TRACESECCOMP | PTRACE_O_EXITKILL)) != 0) {
            const int error = errno;
            kill_process(box_.pidfd.get(), box_.pid);
            throw Error(Code::internal_error, system_message("ptrace of a box (in a container: allow SYS_PTRACE)", error));
        }
        seized_ = true;
        if (counters_offered()) {
            instructions_ = counter(box_.pid, PERF_COUNT_HW_INSTRUCTIONS);
            cycles_ = counter(box_.pid, PERF_COUNT_HW_CPU_CYCLES);
        }
        start();
        follow();
        conclude();
        return std::move(record_);
    }

private:
    void check_order() const {
        if (order_.time_limit_ns == 0 || order_.time_limit_ns > longest_limit_ns)
            throw Error(Code::invalid_argument, "invalid time limit of " + std::to_string(order_.time_limit_ns) + " ns, expected 1 ns to 500 s");
        if (order_.buffers.size() > most_buffers) throw Error(Code::invalid_argument, "a run has at most 8 buffers");
    }

    void start() {
        BecomeMessage m{};
        m.kind = order_.abi == Abi::duckinfo ? BoxKind::duckinfo_run : BoxKind::linux_run;
        m.cores = 1;
        m.stack_room = stack_of(order_);
        m.tsc_hz = ticks_per_second();
        // The kernel counts mappings, not what is written: all that the stack may become is mapped from the start, so it is added. A program that
        // fills both its heap and its stack beyond the limit is found when its pages are counted.
        const std::uint64_t usual = std::min({usual_stack_bytes, order_.memory_bytes / 8, m.stack_room});
        m.data_limit = memory_->data_bytes + std::max(order_.memory_bytes - usual, writable_bytes(order_.image)) + m.stack_room;
        m.space_limit = own_space_bytes + image_bytes(order_.image) + m.stack_room + order_.memory_bytes;
        for (const RunOrder::Buffer& buffer : order_.buffers) m.space_limit += buffer.bytes;
        m.file_limit = std::max(order_.out_limit, order_.err_limit);
        // In whole seconds, and only if the yard itself should die before the fuse blows.
        m.cpu_limit_s = order_.time_limit_ns / 1'000'000'000 + 2;
        m.pin[0] = order_.pin;
        m.buffers = static_cast<std::uint32_t>(order_.buffers.size());
        const int nothing = yard_.nothing.get();
        std::vector<int> fds = {order_.image.fd, order_.in < 0 ? nothing : order_.in, order_.out < 0 ? nothing : order_.out,
                                order_.err < 0 ? nothing : order_.err};
        for (std::size_t i = 0; i < order_.buffers.size(); ++i) {
            const RunOrder::Buffer& buffer = order_.buffers[i];
            m.buffer[i] = {buffer.address, buffer.bytes, buffer.offset, buffer.writable ? 1u : 0u, 0};
            fds.push_back(buffer.fd);
        }
        cpu_before_ = cpu_ns(cpu_clock(box_.pid));
        began_ns_ = now_ns();
        send_become(box_, m, order_.image, fds);
    }

    // Until the box is reaped.
    void follow() {
        const std::uint64_t wall = order_.wall_limit_ns != 0 ? order_.wall_limit_ns : 2 * order_.time_limit_ns + 1'000'000'000;
        leave_fuse(wall);
        for (;;) {
            int status = 0;
            const pid_t got = ::wait4(pid_, &status, __WALL, &used_);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) throw Error(Code::internal_error, system_message("wait for a box: did somebody else in this process wait for all children?", errno));
            if (!WIFSTOPPED(status)) {   // killed before it could stop on its way out
                status_ = status;
                reaped_ = true;
                return;
            }
            if (stopped(status)) return;
        }
    }

    void leave_fuse(std::uint64_t wall) {
        fuse_ = std::make_shared<Fuse>();
        fuse_->pidfd = box_.pidfd.get();
        fuse_->pid = box_.pid;
        fuse_->clock = cpu_clock(box_.pid);
        fuse_->cpu_end = cpu_before_ + order_.time_limit_ns + order_.time_limit_ns / 100 + fuse_extra_ns;
        fuse_->wall_end = began_ns_ + wall;
        fuse_->wait_most = longest_wait_ns(order_);
        bool told = false;
        {
            const std::lock_guard lock(yard_.mutex);
            yard_.fuses.push_back(fuse_);
            told = yard_.looks_until != 0;
        }
        if (!told) yard_.nudge();
    }

    // True when it is on its way out, and no longer ours: all is known by then (wait4 gives a stopped box's usage too), and the zygote reaps it.
    bool stopped(int status) {
        const int signal = WSTOPSIG(status);
        const int event = status >> 16;
        int deliver = 0;
        if (event == PTRACE_EVENT_EXIT) {
            leaving();
            reaped_ = ::ptrace(PTRACE_DETACH, pid_, nullptr, nullptr) == 0;
            if (reaped_) return true;
        } else if (event == PTRACE_EVENT_SECCOMP) {
            const int nothing = yard_.nothing.get();
            describe_files(pid_, {order_.in < 0 ? nothing : order_.in, order_.out < 0 ? nothing : order_.out, order_.err < 0 ? nothing : order_.err});
        } else if (event == 0) {
            siginfo_t info{};
            deliver = signal;
            if (::ptrace(PTRACE_GETSIGINFO, pid_, nullptr, &info) == 0) {
                fault_signal_ = signal;
                fault_code_ = info.si_code;
                fault_address_ = reinterpret_cast<std::uint64_t>(info.si_addr);
                read_registers(pid_, fault_at_);
            }
        }
        ::ptrace(PTRACE_CONT, pid_, nullptr, reinterpret_cast<void*>(static_cast<std::intptr_t>(deliver)));
        return false;
    }

    // On its way out, with its memory still there.
    void leaving() {
        ended_ticks_ = ticks();
        ended_ns_ = now_ns();
        // ptrace waits until it is off its CPU, where what it ran is added up: between its stop and that the clock may lack a whole tick.
        read_registers(pid_, exit_at_);
        cpu_after_ = cpu_ns(cpu_clock(box_.pid));
        unsigned long code = 0;
        if (::ptrace(PTRACE_GETEVENTMSG, pid_, nullptr, &code) == 0) status_ = static_cast<int>(code);
        record_.count_inst = read_counter(instructions_);
        record_.clk_thread = read_counter(cycles_);
        pages_ = count_pages(box_.pages.get(), memory_->ranges, order_.buffers);
        if (order_.report_address != 0) {
            record_.report.resize(page);
            if (read_memory_of(pid_, order_.report_address, record_.report) != 0) record_.report.clear();
        }
    }

    void conclude() {
        BecameMessage said{};
        std::size_t none = 0;
        const long got = receive_record(box_.socket.get(), &said, sizeof said, {}, none);
        if (got != sizeof said || said.magic != message_magic) throw Error(Code::internal_error, "the box died before the program began");
        if (said.where != 0) throw Error(Code::internal_error, became_text(said));
        measure(said);
        outputs();
        verdict();
    }

    void measure(const BecameMessage& said) {
        RunRecord& r = record_;
        r.time_ns = less(cpu_after_, said.cpu_ns);
        r.time_tsc = less(ended_ticks_, said.ticks);
        r.time_ns_real = static_cast<std::uint64_t>(ticks_to_ns(r.time_tsc));
        r.tsc_mhz = static_cast<double>(ticks_per_second()) / 1e6;
        r.clk_ref_tsc = static_cast<std::uint64_t>(static_cast<double>(r.time_ns) * r.tsc_mhz / 1e3);
        r.time_ns_ref_tsc = r.time_ns;
        r.clock = counters_offered() ? "thread cpu clock; counters from the box's start on" : "thread cpu clock: no hardware counters here";
        r.user_ns = less(ns_of(used_.ru_utime), said.user_ns);
        r.system_ns = less(ns_of(used_.ru_stime), said.system_ns);
        r.user_ns += less(r.time_ns, r.user_ns + r.system_ns);   // wait4() may have looked before that
        r.voluntary_switches = less(static_cast<std::uint64_t>(used_.ru_nvcsw), said.voluntary_switches);
        r.involuntary_switches = less(static_cast<std::uint64_t>(used_.ru_nivcsw), said.involuntary_switches);
        r.minor_faults = less(static_cast<std::uint64_t>(used_.ru_minflt), said.minor_faults);
        r.major_faults = less(static_cast<std::uint64_t>(used_.ru_majflt), said.major_faults);
        if (pages_.known) {
            r.memory = "page table";
            r.memory_kb = pages_.written * 4;
            r.memory_kb_accessed = pages_.accessed * 4;
        } else {
            r.memory = "peak resident set of the box: no PAGEMAP_SCAN here";
            r.memory_kb = r.memory_kb_accessed = static_cast<std::uint64_t>(used_.ru_maxrss);
        }
        r.memory_exceeded = pages_.known && r.memory_kb > order_.memory_bytes / 1024;
    }

    static std::uint64_t size_of(int fd, std::uint64_t limit, bool& truncated) noexcept {
        struct stat info {};
        if (fd < 0 || ::fstat(fd, &info) != 0) return 0;
        const auto size = static_cast<std::uint64_t>(info.st_size);
        truncated = size >= limit;
        if (size > limit && ::ftruncate(fd, static_cast<off_t>(limit)) != 0) return size;
        return std::min(size, limit);
    }
    void outputs() {
        record_.stdout_size = size_of(order_.out, order_.out_limit, record_.stdout_truncated);
        record_.stderr_size = size_of(order_.err, order_.err_limit, record_.stderr_truncated);
    }

    void verdict() {
        RunRecord& r = record_;
        const bool blown = fuse_ && fuse_->blown.load(std::memory_order_relaxed);
        if (WIFEXITED(status_)) {
            r.trap_num = 255;
            r.return_code = order_.abi == Abi::duckinfo ? static_cast<std::int32_t>(exit_at_.first) : WEXITSTATUS(status_);
            r.trap_epc = exit_at_.ip;
            r.status = RunStatus::finished;
        } else {
            r.signal = WTERMSIG(status_);
            const bool same = fault_signal_ == r.signal;
            r.trap_num = trap_of(r.signal, same ? fault_code_ : 0);
            if (order_.abi == Abi::duckinfo && r.signal == SIGSYS && !order_.image.narrow && exit_at_.call == 200) r.trap_num = 253;
            r.trap_epc = same ? fault_at_.ip : exit_at_.ip;
            if (r.trap_num == 14 && same) r.trap_cr2 = fault_address_;
            r.status = RunStatus::runtime_error;
        }
        if (r.memory_exceeded && r.status == RunStatus::finished) {
            r.status = RunStatus::runtime_error;
            r.reason = "wrote " + std::to_string(r.memory_kb) + " KiB, the limit is " + std::to_string(order_.memory_bytes / 1024);
        }
        if (blown) r.trap_num = 32;
        if (blown || r.trap_num == 32 || r.time_ns > order_.time_limit_ns) {
            r.status = RunStatus::time_limit;
            r.time_ns = order_.time_limit_ns;
        }
    }

    Yard::State& yard_;
    const RunOrder& order_;
    RunRecord record_;
    Spare box_;
    pid_t pid_ = 0;
    bool seized_ = false, reaped_ = false;
    std::shared_ptr<const BoxMemory> memory_;
    std::shared_ptr<Fuse> fuse_;
    Descriptor instructions_, cycles_;
    std::uint64_t cpu_before_ = 0, cpu_after_ = 0, began_ns_ = 0, ended_ns_ = 0, ended_ticks_ = 0;
    int status_ = 0, fault_signal_ = 0, fault_code_ = 0;
    std::uint64_t fault_address_ = 0;
    Registers fault_at_, exit_at_;
    PageCount pages_;
    rusage used_{};
};

// Here, for boxes of both kinds.
void check_memory(const RunOrder& order) {
    if (order.abi == Abi::duckinfo) return;   // layout_of() has looked
    const std::uint64_t least = writable_bytes(order.image) + page;
    if (order.memory_bytes < least)
        throw Error(Code::quota_exceeded, "a memory limit of " + std::to_string(order.memory_bytes) +
                                              " bytes: the program and one page of stack are " + std::to_string(least));
}

}  // namespace

std::uint64_t stack_of(const RunOrder& order) noexcept {
    if (order.abi == Abi::duckinfo || order.stack_bytes != 0) return round_up(order.stack_bytes, page);
    return round_up(std::min(order.memory_bytes, layout::stack_stride / 2), page);
}

const char* run_status_name(RunStatus status) noexcept {
    switch (status) {
    case RunStatus::finished: return "Run Finished";
    case RunStatus::time_limit: return "Time Limit Exceeded";
    case RunStatus::runtime_error: return "Runtime Error";
    case RunStatus::judge_failed: return "Judge Failed";
    }
    return "Judge Failed";
}

RunRecord Yard::judge(const RunOrder& order) {
    RunRecord record;
    try {
        check_memory(order);
        bool guests = false;
        {
            const std::lock_guard lock(state_->mutex);
            guests = state_->hello.guests != 0;
        }
        record = guests ? kvm::judge_in_guest(*state_, order) : Run(*state_, order).judge();
    } catch (const Error& error) {
        record = RunRecord{};
        record.reason = error.what();
    }
    const std::lock_guard lock(state_->mutex);
    state_->replace(order.abi == Abi::duckinfo ? BoxKind::duckinfo_run : BoxKind::linux_run);
    ++state_->counts.runs;
    if (record.status == RunStatus::judge_failed) ++state_->counts.runs_failed;
    return record;
}

}  // namespace teal::box
