// What a program may try (docs/security.md), tried.
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <array>
#include <filesystem>
#include <set>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sstream>
#include <thread>
#include <unistd.h>

#include "base/error.hpp"
#include "attempts.hpp"
#include "check.hpp"
#include "cpu/clock.hpp"
#include "made_yard.hpp"

using namespace teal;
using namespace teal::box;
using namespace teal::box::test;

namespace {

#if defined(__x86_64__)

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

// What Linux says about a process; "": there is no /proc.
std::string proc(std::uint32_t pid, const char* name) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/" + name);
    return {(std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>()};
}

// How many names a folder of /proc has.
std::size_t entries(std::uint32_t pid, const char* name) {
    std::error_code error;
    std::size_t count = 0;
    for (std::filesystem::directory_iterator at("/proc/" + std::to_string(pid) + "/" + name, error), end; !error && at != end; at.increment(error)) ++count;
    return count;
}

// Seen from outside, where no trick of the program reaches: no process, thread, descriptor or executable page more than it began with.
void floods_leave_nothing(Yard& yard, const Loaded& actor) {
    SessionOrder order = order_of(actor);
    order.cores = 2;
    Opened neighbour = open(yard, order_of(actor)), attacker = open(yard, order);
    const std::uint32_t pid = attacker.session->facts().box_pid;
    if (pid == 0 || proc(pid, "status").empty()) return;
    const std::size_t tasks = entries(pid, "task"), descriptors = entries(pid, "fd");
    CHECK_EQ(tasks, 2);
    CHECK_EQ(descriptors, 4);   // nothing three times, and its socket
    const std::uint64_t floods[] = {57 /* fork */, 58 /* vfork */, 56 /* clone */, 435 /* clone3 */, 32 /* dup */, 53 /* socketpair */, 22 /* pipe */,
                                    290 /* eventfd2 */, 319 /* memfd_create */, 291 /* epoll_create1 */, 2 /* open */, 72 /* fcntl */};
    for (int round = 0; round < 200; ++round)
        for (const std::uint64_t number : floods) attacker.call({act_syscall, number, 0, 0, layout::control, layout::control});
    CHECK_EQ(entries(pid, "task"), tasks);
    CHECK_EQ(entries(pid, "fd"), descriptors);
    const std::string children = proc(pid, ("task/" + std::to_string(pid) + "/children").c_str());
    CHECK_EQ(children, std::string());
    std::istringstream maps(proc(pid, "maps"));
    for (std::string line; std::getline(maps, line);)
        if (!CHECK(line.find(" rwx") == std::string::npos && line.find(" -wx") == std::string::npos)) std::printf("    %s\n", line.c_str());
    const std::string status = proc(pid, "status");
    for (const char* line : {"NoNewPrivs:\t1", "Seccomp:\t2"}) CHECK(status.find(line) != std::string::npos);
    // Root of a user namespace of its own has rights in that one, and no call to use them.
    if (::geteuid() == 0) CHECK(status.find("CapEff:\t0000000000000000") != std::string::npos);
    CHECK(answers(neighbour));
    CHECK(answers(attacker));
}

// Nothing of its memory is left on a disk when it dies, whatever the machine does with core dumps.
void crashes_leave_no_core(Yard& yard, const Loaded& actor) {
    Opened attacker = open(yard, order_of(actor));
    const std::uint32_t pid = attacker.session->facts().box_pid;
    const std::string limits = pid == 0 ? std::string() : proc(pid, "limits");
    if (const std::size_t at = limits.find("Max core file size"); at != std::string::npos) {
        std::istringstream line(limits.substr(at + 18));
        std::string soft, hard;
        line >> soft >> hard;
        // 1, not 0: what is told to pipe dumps into a program does so with 0, too.
        CHECK_EQ(soft, std::string("1"));
        CHECK_EQ(hard, std::string("1"));
    }
    const auto cores = [] {
        std::size_t count = 0;
        for (const auto& file : std::filesystem::directory_iterator(".")) count += file.path().filename().string().starts_with("core");
        return count;
    };
    const std::size_t before = cores();
    CHECK_EQ(attacker.call({act_crash, 0}).outcome, Outcome::ended);
    CHECK_EQ(attacker.session->ending().detail, SIGSEGV);
    CHECK_EQ(cores(), before);
}

// It answers by itself whatever it is asked, and never comes back: for the yard no call takes long. Its own callers get what it says, and no more
// than their buffers hold; it is closed as any other.
void forged_answers_are_its_own(Yard& yard, const Loaded& actor) {
    SessionOrder order = order_of(actor);
    order.call_limit_ns = 200'000'000;
    Opened neighbour = open(yard, order_of(actor)), attacker = open(yard, order);
    const std::uint64_t answer_at = layout::control + offsetof(ControlPage, answer), ask_at = layout::control + offsetof(ControlPage, ask);
    for (int call = 0; call < 100; ++call) {
        const Answer answer = attacker.call({act_forge, answer_at, ask_at, UINT64_MAX >> 1});
        CHECK_EQ(answer.outcome, Outcome::done);
        CHECK(answer.clamped);
        CHECK_EQ(static_cast<std::uint64_t>(answer.result), attacker.session->facts().ob_bytes);
    }
    CHECK(answers(neighbour));
    attacker.session->close(10'000'000);
    CHECK(attacker.session->wait_ended(5'000'000'000));
    CHECK(answers(neighbour));
}

#if defined(__x86_64__)
// A process that has stopped itself is ended like one that loops.
void stopping_itself_is_no_way_out(Yard& yard, const Loaded& actor) {
    SessionOrder order = order_of(actor);
    order.call_limit_ns = 200'000'000;
    for (const std::uint64_t number : {SYS_kill, SYS_tkill}) {
        Opened attacker = open(yard, order);
        CHECK_EQ(attacker.call({act_syscall, SYS_getpid}).outcome, Outcome::done);
        const auto self = output<std::uint64_t>(*attacker.caller);
        const Answer answer = attacker.call({act_syscall, number, self, SIGSTOP});
        CHECK_EQ(answer.outcome, Outcome::ended);
        CHECK_EQ(answer.ending.fate, Fate::overdue);
    }
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
        floods_leave_nothing(yard, actor);
        stopping_itself_is_no_way_out(yard, actor);
#endif
        crashes_leave_no_core(yard, actor);
        forged_answers_are_its_own(yard, actor);
        closed_descriptors_hurt_itself_only(yard, actor);
        handlers_do_not_outlive_the_limit(yard, actor);
        CHECK_EQ(yard.statistics().zygotes_started, 1);
    }
    return check::summary();
}
