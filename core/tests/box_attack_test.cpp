// What a program may try (docs/security.md), tried.
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <array>
#include <set>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <thread>

#include "base/error.hpp"
#include "check.hpp"
#include "cpu/clock.hpp"
#include "made_yard.hpp"

using namespace teal;
using namespace teal::box;
using namespace teal::box::test;

namespace {

constexpr std::uint64_t minus_one = UINT64_MAX;

#if defined(__x86_64__)

struct Attempt {
    const char* name;
    std::uint64_t number;
    std::vector<std::uint64_t> arguments;
};

// Each of these has to fail, whatever the errno.
const Attempt attempts[] = {
    {"fork", SYS_fork, {}},
    {"vfork", SYS_vfork, {}},
    {"clone", SYS_clone, {SIGCHLD}},
    {"clone of a thread", SYS_clone, {0x10f00, layout::control + 65536}},
    {"clone3", SYS_clone3, {layout::control + 4096, 88}},
    {"execve", SYS_execve, {layout::control, 0, 0}},
    {"execveat", SYS_execveat, {3, layout::control, 0, 0, 0x1000}},
    {"open", SYS_open, {layout::control, O_RDWR}},
    {"openat", SYS_openat, {minus_one - 99, layout::control, O_RDWR}},
    {"openat2", SYS_openat2, {minus_one - 99, layout::control, layout::control, 24}},
    {"stat", SYS_stat, {layout::control, layout::control}},
    {"readlink", SYS_readlink, {layout::control, layout::control, 100}},
    {"getdents64", SYS_getdents64, {0, layout::control, 100}},
    {"socket", SYS_socket, {2, 1, 0}},
    {"socketpair", SYS_socketpair, {1, 1, 0, layout::control}},
    {"sendmsg to the yard", SYS_sendmsg, {3, layout::control, 0}},
    {"sendto to the yard", SYS_sendto, {3, layout::control, 8, 0, 0, 0}},
    {"write to the yard", SYS_write, {3, layout::control, 8}},
    {"recvmsg from elsewhere", SYS_recvmsg, {0, layout::control, 0}},
    {"read", SYS_read, {0, layout::control, 8}},
    {"ptrace the zygote", SYS_ptrace, {16, 1, 0, 0}},
    {"process_vm_readv", SYS_process_vm_readv, {1, layout::control, 1, layout::control, 1, 0}},
    {"process_vm_writev", SYS_process_vm_writev, {1, layout::control, 1, layout::control, 1, 0}},
    {"kill the zygote", SYS_kill, {1, SIGKILL}},
    {"kill everybody", SYS_kill, {minus_one, SIGKILL}},
    {"kill its group", SYS_kill, {0, SIGKILL}},
    {"tkill the zygote", SYS_tkill, {1, SIGKILL}},
    {"tgkill the zygote", SYS_tgkill, {1, 1, SIGKILL}},
    {"rt_sigqueueinfo", SYS_rt_sigqueueinfo, {1, SIGKILL, layout::control}},
    {"pidfd_open", SYS_pidfd_open, {1, 0}},
    {"pidfd_send_signal", SYS_pidfd_send_signal, {0, SIGKILL, 0, 0}},
    {"pidfd_getfd", SYS_pidfd_getfd, {0, 0, 0}},
    {"prctl: dumpable", SYS_prctl, {4, 1}},
    {"prctl: no death signal", SYS_prctl, {1, 0}},
    {"prctl: ptracer", SYS_prctl, {0x59616d61, minus_one}},
    {"seccomp", SYS_seccomp, {1, 0, layout::control}},
    {"personality: read implies execute", SYS_personality, {0x400000}},
    {"userfaultfd", SYS_userfaultfd, {1}},
    {"io_uring_setup", SYS_io_uring_setup, {8, layout::control}},
    {"io_uring_enter", SYS_io_uring_enter, {0, 1, 1, 0, 0, 0}},
    {"bpf", SYS_bpf, {0, layout::control, 48}},
    {"keyctl", SYS_keyctl, {0, 1, 0}},
    {"add_key", SYS_add_key, {layout::control, layout::control, layout::control, 8, 1}},
    {"perf_event_open", SYS_perf_event_open, {layout::control, 0, minus_one, minus_one, 0}},
    {"mount", SYS_mount, {layout::control, layout::control, layout::control, 0, 0}},
    {"pivot_root", SYS_pivot_root, {layout::control, layout::control}},
    {"chroot", SYS_chroot, {layout::control}},
    {"unshare", SYS_unshare, {0x10000000}},
    {"setns", SYS_setns, {0, 0}},
    {"setuid", SYS_setuid, {0}},
    {"setgroups", SYS_setgroups, {0, 0}},
    {"capset", SYS_capset, {layout::control, layout::control}},
    {"memfd_create", SYS_memfd_create, {layout::control, 0}},
    {"memfd_secret", 447, {0}},
    {"shmget", SYS_shmget, {0, 1 << 30, 01777}},
    {"shmat", SYS_shmat, {0, 0, 0x8000}},
    {"msgget", SYS_msgget, {0, 01777}},
    {"semget", SYS_semget, {0, 100, 01777}},
    {"mq_open", SYS_mq_open, {layout::control, 0102, 0777, 0}},
    {"timer_create", SYS_timer_create, {0, 0, layout::control}},
    {"setitimer", SYS_setitimer, {0, layout::control, 0}},
    {"alarm", SYS_alarm, {1}},
    {"timerfd_create", SYS_timerfd_create, {1, 0}},
    {"inotify_init", SYS_inotify_init, {}},
    {"fanotify_init", SYS_fanotify_init, {0, 0}},
    {"eventfd2", SYS_eventfd2, {0, 0}},
    {"epoll_create1", SYS_epoll_create1, {0}},
    {"dup", SYS_dup, {3}},
    {"fcntl", SYS_fcntl, {3, 0, 10}},
    {"ioctl", SYS_ioctl, {0, 0x5412, layout::control}},
    {"mmap executable", SYS_mmap, {0, 4096, 7, 0x22, minus_one, 0}},
    {"mmap executable, not writable", SYS_mmap, {0, 4096, 5, 0x22, minus_one, 0}},
    {"mmap shared and anonymous", SYS_mmap, {0, 4096, 3, 0x21, minus_one, 0}},
    {"mmap that grows down", SYS_mmap, {0, 4096, 3, 0x122, minus_one, 0}},
    {"mmap of huge pages", SYS_mmap, {0, 2 << 20, 3, 0x40022, minus_one, 0}},
    {"mmap locked", SYS_mmap, {0, 4096, 3, 0x2022, minus_one, 0}},
    {"mmap of all addresses", SYS_mmap, {0, std::uint64_t{100} << 40, 0, 0x4022, minus_one, 0}},
    {"mmap of the socket", SYS_mmap, {0, 4096, 1, 1, 3, 0}},
    {"mprotect: its code writable and executable", SYS_mprotect, {0x401000, 4096, 7}},
    {"mprotect: its buffer executable", SYS_mprotect, {layout::control, 4096, 5}},
    {"pkey_mprotect", SYS_pkey_mprotect, {layout::control, 4096, 5, minus_one}},
    {"mremap of its code to elsewhere", SYS_mremap, {0x401000, 4096, 4096, 3, 0x70000000}},
    {"mremap that may move", SYS_mremap, {0x401000, 4096, 8192, 1, 0}},
    {"remap_file_pages", SYS_remap_file_pages, {layout::control, 4096, 0, 1, 0}},
    {"mlock", SYS_mlock, {layout::control, 4096}},
    {"mlockall", SYS_mlockall, {3}},
    {"modify_ldt", SYS_modify_ldt, {1, layout::control, 16}},
    {"iopl", SYS_iopl, {3}},
    {"ioperm", SYS_ioperm, {0, 1024, 1}},
    {"arch_prctl: something else", SYS_arch_prctl, {0x3001, 0}},
    {"setrlimit", SYS_setrlimit, {2, layout::control}},
    {"prlimit64 of the zygote", SYS_prlimit64, {1, 2, layout::control, 0}},
    {"sched_setscheduler", SYS_sched_setscheduler, {0, 1, layout::control}},
    {"sched_setaffinity", SYS_sched_setaffinity, {0, 8, layout::control}},
    {"setpriority", SYS_setpriority, {0, 0, minus_one - 19}},
    {"mbind", SYS_mbind, {layout::control, 4096, 1, 0, 0, 0}},
    {"move_pages", SYS_move_pages, {0, 0, 0, 0, 0, 0}},
    {"process_madvise", SYS_process_madvise, {0, 0, 0, 0, 0}},
    {"splice", SYS_splice, {0, 0, 3, 0, 100, 0}},
    {"vmsplice", SYS_vmsplice, {3, layout::control, 1, 0}},
    {"kcmp", SYS_kcmp, {1, 1, 0, 0, 0}},
    {"open_by_handle_at", SYS_open_by_handle_at, {0, layout::control, 0}},
    {"landlock_create_ruleset", 444, {0, 0, 1}},
    {"init_module", SYS_init_module, {layout::control, 100, layout::control}},
    {"kexec_load", SYS_kexec_load, {0, 0, 0, 0}},
    {"reboot", SYS_reboot, {0xfee1dead, 672274793, 0x1234567}},
    {"settimeofday", SYS_settimeofday, {layout::control, 0}},
    {"sethostname", SYS_sethostname, {layout::control, 1}},
    {"syslog", SYS_syslog, {3, layout::control, 100}},
    {"x32 open", 0x40000000 | 2, {layout::control, 0}},
};

std::int64_t try_call(Opened& opened, std::uint64_t number, const std::vector<std::uint64_t>& arguments, Outcome& outcome) {
    std::uint64_t words[8] = {act_syscall, number};
    for (std::size_t i = 0; i < arguments.size(); ++i) words[2 + i] = arguments[i];
    const Answer answer = opened.caller->call(words, sizeof words);
    outcome = answer.outcome;
    return output<std::int64_t>(*opened.caller);
}

void attempts_fail(Yard& yard, const Loaded& actor) {
    Opened neighbour = open(yard, order_of(actor)), attacker = open(yard, order_of(actor));
    for (const Attempt& attempt : attempts) {
        Outcome outcome{};
        const std::int64_t result = try_call(attacker, attempt.number, attempt.arguments, outcome);
        if (!CHECK(outcome == Outcome::done && result < 0 && result > -4096))
            std::printf("    %s: outcome %d, result %lld\n", attempt.name, static_cast<int>(outcome), static_cast<long long>(result));
    }
    CHECK(answers(neighbour));
    CHECK(answers(attacker));
}

// Every number that is not on the list, also those that no kernel has today.
void unlisted_calls_do_not_exist(Yard& yard, const Loaded& actor) {
    const std::set<std::uint64_t> listed = {SYS_futex, SYS_exit, SYS_exit_group, SYS_rt_sigreturn, SYS_sched_yield, SYS_brk, SYS_munmap, SYS_madvise,
        SYS_getpid, SYS_gettid, SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday, SYS_nanosleep,
        SYS_clock_nanosleep, SYS_set_tid_address, SYS_set_robust_list, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_sigaltstack, SYS_getrandom, SYS_close,
        SYS_uname, SYS_sched_getaffinity, SYS_getcpu, SYS_restart_syscall, 334 /* rseq */, 335, 336 /* uretprobe, uprobe: never filtered, and SIGILL outside of a probe */, SYS_time, SYS_mmap, SYS_mprotect, SYS_mremap, SYS_tgkill,
        SYS_tkill, SYS_kill, SYS_arch_prctl, SYS_recvmsg, SYS_write, SYS_writev};
    Opened attacker = open(yard, order_of(actor));
    for (std::uint64_t number = 0; number < 600; ++number) {
        if (listed.contains(number)) continue;
        Outcome outcome{};
        const std::int64_t result = try_call(attacker, number, {}, outcome);
        if (outcome == Outcome::done && result == -ENOSYS) continue;
        CHECK(!"a call that is not listed does something");
        std::printf("    number %llu: outcome %d, result %lld\n", static_cast<unsigned long long>(number), static_cast<int>(outcome),
                    static_cast<long long>(result));
        if (outcome != Outcome::done) break;
    }
    CHECK(answers(attacker));
}

void input_buffers_stay_read_only(Yard& yard, const Loaded& actor) {
    Opened attacker = open(yard, order_of(actor));
    const int fd = ::memfd_create("ib", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_EQ(::ftruncate(fd, 4096), 0);
    CHECK_EQ(::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    const std::uint64_t args[2] = {act_steal, 2'000'000'000};
    CHECK_EQ(attacker.caller->submit(args, sizeof args), Outcome::pending);
    std::thread mapping([&] {
        try {   // the first one may come before the call does
            for (std::uint64_t id = 1; id < 100; ++id) attacker.session->map(id, fd, 4096);
        } catch (const Error&) {   // the order was stolen: nobody does it
        }
    });
    const Answer answer = attacker.caller->wait();
    CHECK_EQ(answer.outcome, Outcome::done);
    CHECK_EQ(answer.result, 24);
    const auto said = output<std::array<std::int64_t, 3>>(*attacker.caller);
    CHECK(said[0] >= 0);
    CHECK_EQ(said[1], -EACCES);
    CHECK(said[2] > 0);
    attacker.session->kill();
    mapping.join();
    ::close(fd);
}

#endif

void closed_descriptors_hurt_itself_only(Yard& yard, const Loaded& actor) {
    SessionOrder order = order_of(actor);
    order.call_limit_ns = 100'000'000;
    Opened attacker = open(yard, order);
    for (std::uint64_t fd = 0; fd < 10; ++fd) attacker.call({act_syscall, SYS_close, fd});
    CHECK(answers(attacker));
    const int fd = ::memfd_create("ib", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_EQ(::ftruncate(fd, 4096), 0);
    CHECK_EQ(::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    bool refused = false;
    try {
        attacker.session->map(1, fd, 4096);
    } catch (const Error& error) {
        refused = error.code() == Code::deadline_exceeded || error.code() == Code::peer_died || error.code() == Code::invalid_argument;
    }
    CHECK(refused);
    ::close(fd);
    attacker.session->close(10'000'000);
    CHECK(attacker.session->wait_ended(5'000'000'000));
}

void handlers_do_not_outlive_the_limit(Yard& yard, const Loaded& actor) {
    // It catches what can be caught, overwrites what it was given, and never returns.
    SessionOrder order = order_of(actor);
    order.call_limit_ns = 100'000'000;
    for (const std::uint64_t address : {layout::duck, layout::control, layout::control + 4096}) {
        Opened attacker = open(yard, order);
        const Answer answer = attacker.call({act_scribble, address, 1}, static_cast<std::uint64_t>(monotonic_ns()) + 300'000'000);
        CHECK(answer.outcome == Outcome::done || answer.outcome == Outcome::ended || answer.outcome == Outcome::late);
        attacker.session->close(0);
        CHECK(attacker.session->wait_ended(5'000'000'000));
    }
}

}  // namespace

int main() {
    const Loaded actor = load_resident("box_actor");
    for (const bool namespaces : {true, false}) {
        YardOptions options = yard_options();
        options.namespaces = namespaces;
        Yard yard(options);
#if defined(__x86_64__)
        attempts_fail(yard, actor);
        unlisted_calls_do_not_exist(yard, actor);
        input_buffers_stay_read_only(yard, actor);
#endif
        closed_descriptors_hurt_itself_only(yard, actor);
        handlers_do_not_outlive_the_limit(yard, actor);
        CHECK_EQ(yard.statistics().zygotes_started, 1);
    }
    return check::summary();
}
