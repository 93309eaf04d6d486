// Resident sessions: opened, called, mapped, closed; programs that misbehave, and that nothing else notices.
#include <cstring>
#include <atomic>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

#include "base/error.hpp"
#include "box/actor.h"
#include "check.hpp"
#include "cpu/clock.hpp"
#include "made_yard.hpp"

using namespace teal;
using namespace teal::box;
using namespace teal::box::test;

namespace {

constexpr std::uint64_t second = 1'000'000'000;

void answers_many_calls(Yard& yard, const Loaded& actor) {
    Opened opened = open(yard, order_of(actor));
    CHECK(answers(opened));
    for (std::uint64_t i = 1; i <= 1000; ++i) {
        const Answer answer = opened.call({act_count});
        if (answer.outcome != Outcome::done || output<std::uint64_t>(*opened.caller) != i) CHECK_EQ(output<std::uint64_t>(*opened.caller), i);
    }
    std::vector<std::byte> most(opened.session->facts().args_bytes + 1);
    CHECK_EQ(opened.caller->call(most.data(), most.size()).outcome, Outcome::too_long);
    CHECK_EQ(opened.caller->call(most.data(), most.size() - 1).result, -1000);
    CHECK_EQ(opened.call({act_result, static_cast<std::uint64_t>(-7)}).result, -7);
    const Answer wild = opened.call({act_result, UINT64_MAX >> 1});
    CHECK(wild.clamped);
    CHECK_EQ(static_cast<std::uint64_t>(wild.result), opened.session->facts().ob_bytes);
    CHECK_EQ(opened.call({act_serve, 0}).result, 64);
    opened.session->close(5 * second);
    CHECK_EQ(opened.session->ending().fate, Fate::closed);
    CHECK_EQ(opened.session->ending().detail, 0);
    CHECK_EQ(opened.call({act_count}).outcome, Outcome::ended);
    pollfd ended{opened.session->ended_fd(), POLLIN, 0};
    CHECK_EQ(::poll(&ended, 1, 0), 1);
}

void submits_and_polls(Yard& yard, const Loaded& actor) {
    Opened opened = open(yard, order_of(actor));
    const std::uint64_t args[2] = {act_echo, 5};
    CHECK_EQ(opened.caller->submit(args, sizeof args), Outcome::pending);
    while (opened.caller->poll().outcome == Outcome::pending) std::this_thread::yield();
    CHECK(!opened.caller->in_flight());
    CHECK_EQ(output<std::uint64_t>(*opened.caller), 5);
    std::memcpy(opened.caller->args(), args, sizeof args);
    CHECK_EQ(opened.caller->submit_in_place(sizeof args), Outcome::pending);
    CHECK_EQ(opened.caller->wait().result, 8);
    CHECK_EQ(opened.caller->clear().outcome, Outcome::done);
    CHECK_EQ(output<std::uint64_t>(*opened.caller), 0);
    // A second caller goes on where the first one was.
    Caller other(opened.session->control_fd(), opened.session->fate_fd(), opened.session->facts());
    CHECK_EQ(other.call(args, sizeof args).result, 8);
}

void logs(Yard& yard, const Loaded& actor) {
    SessionOrder order = order_of(actor);
    order.log_bytes = 4096;
    Opened opened = open(yard, order);
    std::uint64_t from = 0;
    CHECK_EQ(opened.session->log(from, 1 << 20), std::string());
    CHECK_EQ(opened.call({act_log, 2}).result, 0);
    CHECK_EQ(opened.session->log(from, 1 << 20), std::string(" line of sixteen\n line of sixteen\n"));
    CHECK_EQ(opened.call({act_log, 100'000}).result, 0);
    const std::string text = opened.session->log(from, 1 << 20);
    CHECK_EQ(text.size(), 4096);
    CHECK(text.ends_with(" line of sixteen\n"));
    CHECK_EQ(from, 100'002u * 17 - 4096);
}

int sealed_memfd(std::uint64_t bytes, std::uint64_t first, int seals) {
    const int fd = ::memfd_create("ib", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_EQ(::ftruncate(fd, static_cast<off_t>(bytes)), 0);
    CHECK_EQ(::pwrite(fd, &first, 8, 0), 8);
    CHECK_EQ(::fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

void maps_input_buffers(Yard& yard, const Loaded& actor) {
    Opened opened = open(yard, order_of(actor));
    Session& session = *opened.session;
    CHECK_EQ(opened.call({act_ib}).result, -2);
    const int first = sealed_memfd(64 << 10, 111, F_SEAL_SHRINK);
    const int other = sealed_memfd(5000, 222, F_SEAL_SHRINK | F_SEAL_WRITE);
    session.map(1, first, 64 << 10);
    CHECK_EQ(opened.call({act_ib}).result, 24);
    struct Said {
        std::uint64_t bytes, word, address;
    };
    const Said one = output<Said>(*opened.caller);
    CHECK_EQ(one.bytes, 64u << 10);
    CHECK_EQ(one.word, 111);
    session.map(2, other, 5000);
    opened.call({act_ib});
    CHECK_EQ(output<Said>(*opened.caller).word, 222);
    session.map(1, -1, 0);   // a switch
    opened.call({act_ib});
    CHECK_EQ(output<Said>(*opened.caller).address, one.address);
    session.unmap();
    CHECK_EQ(opened.call({act_ib}).result, -2);
    CHECK(session.has(2));
    session.forget(2);
    CHECK(!session.has(2));
    const auto refused = [&](auto&& what) {
        try {
            what();
        } catch (const Error& error) {
            return error.code();
        }
        return Code::internal_error;
    };
    CHECK_EQ(refused([&] { session.map(2, -1, 0); }), Code::not_found);
    CHECK_EQ(refused([&] { session.forget(3); }), Code::not_found);
    CHECK_EQ(refused([&] { session.map(4, other, 5001); }), Code::invalid_argument);
    const int loose = ::memfd_create("ib", MFD_CLOEXEC);
    CHECK_EQ(refused([&] { session.map(4, loose, 0); }), Code::invalid_argument);
    ::close(loose);
    // Read-only for the program, whatever it does: writing there ends it.
    session.map(1, -1, 0);
    CHECK_EQ(opened.call({act_crash, one.address}).outcome, Outcome::ended);
    ::close(first);
    ::close(other);
    CHECK_EQ(refused([&] { session.map(1, -1, 0); }), Code::peer_died);
}

void runs_on_cores(Yard& yard, const Loaded& actor) {
    SessionOrder order = order_of(actor);
    order.cores = 3;
    Opened opened = open(yard, order);
    for (int i = 0; i < 200; ++i) {
        const Answer answer = opened.call({act_cores});
        if (answer.result != 8 || output<std::uint64_t>(*opened.caller) != 6) CHECK_EQ(output<std::uint64_t>(*opened.caller), 6);
    }
    CHECK_EQ(opened.call({act_cores}).result, 8);
}

std::uint64_t cpu_ns(std::uint32_t pid) {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%u/schedstat", pid);
    std::ifstream file(path);
    std::uint64_t ns = 0;
    file >> ns;
    return ns;
}

void sleeps_when_idle(Yard& yard, const Loaded& actor) {
    SessionOrder order = order_of(actor);
    order.idle_ns = 1'000'000;
    Opened opened = open(yard, order);
    CHECK(answers(opened));
    const std::uint32_t pid = opened.session->facts().box_pid;
    if (pid == 0 || cpu_ns(pid) == 0) return;   // no /proc
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const std::uint64_t before = cpu_ns(pid);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    CHECK(cpu_ns(pid) - before < 5'000'000);   // a hundredth of a core
    CHECK(answers(opened));
    const int fd = sealed_memfd(4096, 1, F_SEAL_SHRINK);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    opened.session->map(1, fd, 4096);          // an order wakes it too
    ::close(fd);
}

void late_calls_stay_in_flight(Yard& yard, const Loaded& actor) {
    SessionOrder order = order_of(actor);
    order.call_limit_ns = 300'000'000;
    Opened opened = open(yard, order);
    const std::uint64_t args[1] = {act_loop};
    CHECK_EQ(opened.caller->call(args, 8, static_cast<std::uint64_t>(monotonic_ns()) + 20'000'000).outcome, Outcome::late);
    CHECK_EQ(opened.caller->submit(args, 8), Outcome::busy);
    const Answer answer = opened.caller->wait();
    CHECK_EQ(answer.outcome, Outcome::ended);
    CHECK_EQ(answer.ending.fate, Fate::overdue);
    CHECK_EQ(answer.ending.detail, 300);
}

struct Misdeed {
    const char* name;
    std::vector<std::uint64_t> words;
    Fate fate;
    std::int32_t detail;
};

void misdeeds_end_their_session_only(Yard& yard, const Loaded& actor) {
    Opened neighbour = open(yard, order_of(actor));
    const std::uint64_t control = layout::control;
    const Misdeed misdeeds[] = {
        {"write to address 0", {act_crash, 0}, Fate::killed, SIGSEGV},
        {"write into its own code's page", {act_crash, 0x400000}, Fate::killed, SIGSEGV},
        {"ud2", {act_invalid}, Fate::killed, SIGILL},
        {"32-bit system call", {act_narrow}, Fate::killed, SIGSYS},
        {"stack overflow", {act_dive}, Fate::killed, SIGSEGV},
        {"exit", {act_exit, 3}, Fate::exited, 3},
        {"jump into the output buffer", {act_jump, control + 8192 + 65536}, Fate::killed, SIGSEGV},
        {"loop", {act_loop}, Fate::overdue, 200},
        {"raise a signal", {act_syscall, 62, 0, SIGKILL}, Fate::running, 0},
    };
    for (const Misdeed& misdeed : misdeeds) {
        SessionOrder order = order_of(actor);
        order.stack_bytes = 1 << 20;   // that a dive reaches its end before the bound, also in a guest
        order.call_limit_ns = 200'000'000;
        Opened opened = open(yard, order);
        const Answer answer = opened.caller->call(misdeed.words.data(), misdeed.words.size() * 8);
        if (misdeed.fate == Fate::running) {
            CHECK_EQ(answer.outcome, Outcome::done);
        } else if (!CHECK_EQ(answer.outcome, Outcome::ended) || !CHECK_EQ(answer.ending.fate, misdeed.fate) ||
                   !CHECK_EQ(answer.ending.detail, misdeed.detail)) {
            std::printf("    %s\n", misdeed.name);
        }
        CHECK(answers(neighbour));
    }
}

// It answers itself and goes on: by its lines nothing runs. Its CPU time says otherwise.
void forged_answers_have_a_bound(Yard& yard, const Loaded& actor) {
    SessionOrder order = order_of(actor);
    order.call_limit_ns = second / 5;
    order.idle_ns = 1'000'000;
    Opened opened = open(yard, order);
    const Answer answer = opened.call({act_pretend, layout::control, offsetof(ControlPage, answer)});
    CHECK_EQ(answer.outcome, Outcome::done);
    CHECK(opened.session->wait_ended(20 * second));
    CHECK_EQ(opened.session->ending().fate, Fate::overdue);
    // Long pauses and many calls are no such thing.
    order.idle_ns = second / 10;
    Opened honest = open(yard, order);
    const std::uint64_t end = static_cast<std::uint64_t>(monotonic_ns()) + 2 * second;
    while (static_cast<std::uint64_t>(monotonic_ns()) < end) {
        CHECK(answers(honest));
        ::usleep(20'000);
    }
    CHECK_EQ(honest.session->ending().fate, Fate::running);
}

void memory_has_a_limit(Yard& yard, const Loaded& actor) {
    SessionOrder order = order_of(actor);
    order.memory_bytes = 32 << 20;
    Opened opened = open(yard, order);
    CHECK_EQ(opened.call({act_allocate, std::uint64_t{1} << 40}).result, 8);
    const auto got = output<std::uint64_t>(*opened.caller);
    CHECK(got >= 30u << 20);
    CHECK(got <= 48u << 20);
    CHECK(answers(opened));
}

// The program writes random bytes over every control line, again and again, while it is called.
void scribbling_fools_nobody(Yard& yard, const Loaded& actor) {
    Opened neighbour = open(yard, order_of(actor));
    for (int i = 0; i < 3; ++i) {
        SessionOrder order = order_of(actor);
        order.call_limit_ns = 200'000'000;
        Opened opened = open(yard, order);
        const std::uint64_t args[3] = {act_scribble, layout::control, 1u << 22};
        for (int call = 0; call < 5; ++call) {
            const Answer answer = opened.caller->call(args, sizeof args, static_cast<std::uint64_t>(monotonic_ns()) + 50'000'000);
            CHECK(answer.result <= static_cast<std::int64_t>(opened.session->facts().ob_bytes));
            std::uint64_t from = 0;
            CHECK(opened.session->log(from, UINT64_MAX).size() <= opened.session->facts().log_bytes);
            if (answer.outcome == Outcome::ended) break;
        }
        opened.session->close(10'000'000);
        CHECK(opened.session->wait_ended(5 * second));
        CHECK(answers(neighbour));
    }
}

void serves_with_a_libc(Yard& yard) {
    if (::access(TEAL_BOX_PROGRAMS "/libc_resident", R_OK) != 0) return;
    Opened opened = open(yard, order_of(load_resident("libc_resident")));
    CHECK_EQ(opened.caller->call("quack", 5).result, 7);
    CHECK_EQ(opened.caller->call("quack", 5).result, 7);
    CHECK_EQ(std::string(reinterpret_cast<const char*>(opened.caller->output()), 7), std::string("quack 2"));
    opened.session->close(5 * second);
    CHECK_EQ(opened.session->ending().detail, 0);
}

void refusals_are_errors(Yard& yard, const Loaded& actor) {
    const auto code_of = [&](SessionOrder order) {
        try {
            yard.open(order);
        } catch (const Error& error) {
            return error.code();
        }
        return Code::busy;
    };
    const Loaded refuser = load_resident("box_refuses");
    SessionOrder order = order_of(refuser);
    const std::uint64_t before = yard.statistics().ended_refused;
    CHECK_EQ(code_of(order), Code::kernel_failed);
    const auto limit = static_cast<std::uint64_t>(monotonic_ns()) + 5 * second;
    while (yard.statistics().ended_refused == before && static_cast<std::uint64_t>(monotonic_ns()) < limit) std::this_thread::yield();
    CHECK_EQ(yard.statistics().ended_refused, before + 1);
    order = order_of(actor);
    order.cores = 0;
    CHECK_EQ(code_of(order), Code::invalid_argument);
    order = order_of(actor);
    order.log_bytes = 5000;
    CHECK_EQ(code_of(order), Code::invalid_argument);
    order = order_of(actor);
    order.image.entry = 0x10;   // nothing there
    CHECK_EQ(code_of(order), Code::kernel_failed);
    order = order_of(actor);
    order.image.steps.push_back({elf::Step::What::zeros, 3, 0x5555'5555'0000, 4096, 0});   // where the box itself lies
    CHECK_EQ(code_of(order), Code::invalid_argument);
    order = order_of(actor);
    order.image.steps.push_back({elf::Step::What::zeros, 7, 0x1000'0000, 4096, 0});   // writable and executable
    CHECK_EQ(code_of(order), Code::invalid_argument);
}

// From several threads at once; and when this process has no descriptor left, what is open stays open.
void many_at_once(const Loaded& actor) {
    YardOptions options = yard_options();
    options.spares = 2;
    Yard yard(options);
    std::vector<std::thread> threads;
    std::atomic<int> right{0};
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&] {
            for (int i = 0; i < 8; ++i) {
                Opened opened = open(yard, order_of(actor));
                if (answers(opened)) ++right;
                if (i % 2 == 0) opened.session->close(second);
            }
        });
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(right.load(), 32);
    Opened opened = open(yard, order_of(actor));
    std::vector<int> taken;
    for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) taken.push_back(fd);
    bool refused = false;
    for (int i = 0; i < 4 && !refused; ++i) {
        try {
            yard.open(order_of(actor));
        } catch (const Error&) {
            refused = true;
        }
    }
    CHECK(refused);
    CHECK(answers(opened));
    for (const int fd : taken) ::close(fd);
    Opened next = open(yard, order_of(actor));
    CHECK(answers(next));
    CHECK(answers(opened));
    CHECK_EQ(yard.statistics().zygotes_started, 1);
}

}  // namespace

int main() {
    const Loaded actor = load_resident("box_actor");
    {
        Yard yard(yard_options());
        for (const Guard& guard : yard.report()) std::printf("  %-20s %-4s %s\n", guard.name.c_str(), guard.used ? "yes" : "no", guard.detail.c_str());
        answers_many_calls(yard, actor);
        submits_and_polls(yard, actor);
        logs(yard, actor);
        maps_input_buffers(yard, actor);
        runs_on_cores(yard, actor);
        sleeps_when_idle(yard, actor);
        late_calls_stay_in_flight(yard, actor);
        misdeeds_end_their_session_only(yard, actor);
        forged_answers_have_a_bound(yard, actor);
        memory_has_a_limit(yard, actor);
        scribbling_fools_nobody(yard, actor);
        serves_with_a_libc(yard);
        refusals_are_errors(yard, actor);
        CHECK_EQ(yard.statistics().zygotes_started, 1);
    }
    rlimit few{};
    if (::getrlimit(RLIMIT_NOFILE, &few) == 0 && few.rlim_cur > 256) {
        few.rlim_cur = 256;
        ::setrlimit(RLIMIT_NOFILE, &few);
    }
    many_at_once(actor);
    return check::summary();
}
