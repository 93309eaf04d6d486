// Whoever is killed, whenever: nothing is left behind, and the next session works.
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <poll.h>
#include <set>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "base/error.hpp"
#include "box/descriptor.hpp"
#include "check.hpp"
#include "cpu/clock.hpp"
#include "made_yard.hpp"

using namespace teal;
using namespace teal::box;
using namespace teal::box::test;

namespace {

constexpr std::uint64_t patience_ns = 10'000'000'000;

std::size_t open_descriptors() {
    DIR* folder = ::opendir("/proc/self/fd");
    if (folder == nullptr) return 0;
    std::size_t count = 0;
    while (::readdir(folder) != nullptr) ++count;
    ::closedir(folder);
    return count;
}

std::size_t mapped_memfds() {
    std::ifstream maps("/proc/self/maps");
    std::size_t count = 0;
    for (std::string line; std::getline(maps, line);) count += line.find("memfd:teal") != std::string::npos;
    return count;
}

template <class Condition>
bool in_time(Condition condition) {
    const auto limit = static_cast<std::uint64_t>(monotonic_ns()) + patience_ns;
    while (!condition()) {
        if (static_cast<std::uint64_t>(monotonic_ns()) > limit) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
}

// Reaps what was orphaned to this process, so that a zombie does not pass for alive.
bool gone(pid_t pid) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    return ::kill(pid, 0) != 0 && errno == ESRCH;
}

void a_killed_box_is_replaced(const Loaded& actor) {
    Yard yard(yard_options());
    Opened neighbour = open(yard, order_of(actor));
    for (int i = 0; i < 10; ++i) {
        Opened opened = open(yard, order_of(actor));
        CHECK(answers(opened));
        const auto pid = static_cast<pid_t>(opened.session->facts().box_pid);
        if (pid == 0) return;
        const std::uint64_t args[1] = {act_loop};
        if (i % 2 == 1) opened.caller->submit(args, 8);
        CHECK_EQ(::kill(pid, SIGKILL), 0);
        const Answer answer = i % 2 == 1 ? opened.caller->wait() : (opened.session->wait_ended(patience_ns), opened.call({act_count}));
        CHECK_EQ(answer.outcome, Outcome::ended);
        CHECK_EQ(answer.ending.fate, Fate::killed);
        CHECK_EQ(answer.ending.detail, SIGKILL);
        CHECK(answers(neighbour));
    }
}

void a_killed_zygote_is_replaced(const Loaded& actor) {
    Yard yard(yard_options());
    for (int i = 0; i < 3; ++i) {
        Opened first = open(yard, order_of(actor)), second = open(yard, order_of(actor));
        const std::uint64_t args[1] = {act_loop};
        first.caller->submit(args, 8);
        CHECK_EQ(::kill(static_cast<pid_t>(yard.zygote_pid()), SIGKILL), 0);
        CHECK_EQ(first.caller->wait().ending.fate, Fate::lost);
        CHECK(second.session->wait_ended(patience_ns));
        CHECK_EQ(second.session->ending().fate, Fate::lost);
        for (const auto& session : {first.session, second.session})
            CHECK(in_time([&] { return gone(static_cast<pid_t>(session->facts().box_pid)); }));
        Opened next = open(yard, order_of(actor));
        CHECK(answers(next));
    }
    CHECK_EQ(yard.statistics().zygotes_started, 4);
}

// A yard in a process of its own, killed after so many microseconds: its boxes go with it.
void a_killed_yard_leaves_nothing(const Loaded& actor, unsigned after_us) {
    int pipe_ends[2];
    CHECK_EQ(::pipe(pipe_ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        ::close(pipe_ends[0]);
        Yard yard(yard_options());
        for (;;) {
            const Opened opened = open(yard, order_of(actor));
            const std::uint32_t pids[2] = {yard.zygote_pid(), opened.session->facts().box_pid};
            if (::write(pipe_ends[1], pids, sizeof pids) != sizeof pids) ::_exit(1);
            const std::uint64_t args[1] = {act_loop};
            opened.caller->submit(args, 8);
            std::this_thread::sleep_for(std::chrono::microseconds(300));
        }
    }
    ::close(pipe_ends[1]);
    std::uint32_t pids[2] = {};
    std::set<pid_t> seen;
    if (::read(pipe_ends[0], pids, sizeof pids) == sizeof pids) seen = {static_cast<pid_t>(pids[0]), static_cast<pid_t>(pids[1])};
    CHECK(seen.size() == 2);
    ::usleep(after_us);
    ::kill(child, SIGKILL);
    while (::read(pipe_ends[0], pids, sizeof pids) == sizeof pids) seen.insert(static_cast<pid_t>(pids[1]));   // ends only when nobody has the other end
    ::close(pipe_ends[0]);
    CHECK(in_time([&] { return gone(child); }));
    for (const pid_t pid : seen) CHECK(pid > 0 && in_time([&] { return gone(pid); }));
}

void a_forked_child_harms_nothing(const Loaded& actor) {
    Yard yard(yard_options());
    Opened opened = open(yard, order_of(actor));
    const pid_t child = ::fork();
    if (child == 0) {
        yard.close();
        opened.session.reset();
        ::_exit(0);
    }
    int status = 0;
    CHECK_EQ(::waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK(answers(opened));
    CHECK_EQ(opened.session->ending().fate, Fate::running);
}

void a_closed_yard_says_so(const Loaded& actor) {
    Yard yard(yard_options());
    Opened opened = open(yard, order_of(actor));
    yard.close();
    CHECK_EQ(opened.call({act_count}).outcome, Outcome::ended);
    bool refused = false;
    try {
        yard.open(order_of(actor));
    } catch (const Error& error) {
        refused = error.code() == Code::closed;
    }
    CHECK(refused);
    YardOptions options = yard_options();
    options.program = "/nonexistent/teal-box";
    refused = false;
    try {
        const Yard other(options);
    } catch (const Error& error) {
        refused = error.code() == Code::not_found;
    }
    CHECK(refused);
}

// All of this process sleeps, as with a machine that was suspended: longer than callers take for the end of a yard, and longer than a call
// may last. Whoever wakes first blames nobody.
void a_sleep_is_nobodys_end(const Loaded& actor) {
    Yard yard(yard_options());
    SessionOrder order = order_of(actor);
    order.call_limit_ns = 400'000'000;
    Opened opened = open(yard, order);
    const std::uint64_t loops[1] = {act_loop};
    CHECK_EQ(opened.caller->submit(loops, sizeof loops), Outcome::pending);
    const pid_t sleeper = ::getpid(), alarm = ::fork();
    if (alarm == 0) {
        ::usleep(100'000);
        ::kill(sleeper, SIGSTOP);
        ::usleep(3'400'000);
        ::kill(sleeper, SIGCONT);
        ::_exit(0);
    }
    const Answer answer = opened.caller->wait();
    CHECK_EQ(answer.outcome, Outcome::ended);
    CHECK_EQ(answer.ending.fate, Fate::overdue);
    while (::waitpid(alarm, nullptr, 0) < 0 && errno == EINTR) {
    }
    Opened next = open(yard, order_of(actor));
    CHECK(answers(next));
}

// The kernel says first that a message of ours was never read.
void last_words_are_heard() {
    int ends[2];
    CHECK_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const Descriptor ours(ends[0]);
    Descriptor theirs(ends[1]);
    char order[] = "order", words[] = "it ended";
    const iovec sent[] = {{order, sizeof order}, {words, sizeof words}};
    CHECK_EQ(send_record(ours.get(), std::span(sent).first(1), {}), 0);
    CHECK_EQ(send_record(theirs.get(), std::span(sent).last(1), {}), 0);
    theirs.reset();
    char heard[32] = {};
    std::size_t count = 0;
    CHECK_EQ(receive_record(ours.get(), heard, sizeof heard, {}, count), static_cast<long>(sizeof words));
    CHECK_EQ(std::string(heard), std::string(words));
    CHECK_EQ(receive_record(ours.get(), heard, sizeof heard, {}, count), 0);
}

}  // namespace

int main() {
    last_words_are_heard();
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    const Loaded actor = load_resident("box_actor");
    a_closed_yard_says_so(actor);
    const std::size_t descriptors = open_descriptors(), memfds = mapped_memfds();
    for (unsigned i = 0; i < 8; ++i) a_killed_yard_leaves_nothing(actor, i * 700);
    a_killed_box_is_replaced(actor);
    a_killed_zygote_is_replaced(actor);
    a_forked_child_harms_nothing(actor);
    a_sleep_is_nobodys_end(actor);
    CHECK_EQ(open_descriptors(), descriptors);
    CHECK_EQ(mapped_memfds(), memfds);
    CHECK(in_time([] { return ::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD; }));
    return check::summary();
}
