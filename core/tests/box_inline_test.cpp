// Programs in this very process, without a sandbox: the same sessions, one at a time.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "base/error.hpp"
#include "box/inline.hpp"
#include "check.hpp"
#include "made_yard.hpp"

using namespace teal;
using namespace teal::box;
using namespace teal::box::test;

namespace {

constexpr std::uint64_t second = 1'000'000'000;

Opened open_here(const SessionOrder& order) {
    Opened opened;
    opened.session = open_inline(order);
    opened.caller = std::make_unique<Caller>(opened.session->control_fd(), opened.session->fate_fd(), opened.session->facts());
    return opened;
}

template <class Do>
Code refused(Do&& what) {
    try {
        what();
    } catch (const Error& error) {
        return error.code();
    }
    return Code::internal_error;
}

// Its slot is free a moment after the session has ended.
Opened open_when_free(const SessionOrder& order) {
    for (int i = 0; i < 20'000; ++i) {
        try {
            return open_here(order);
        } catch (const Error& error) {
            if (error.code() != Code::busy) throw;
            ::usleep(500);
        }
    }
    return open_here(order);
}

void serves_calls(const Loaded& actor) {
    Opened opened = open_here(order_of(actor));
    CHECK_EQ(opened.session->facts().box_pid, static_cast<std::uint32_t>(::getpid()));
    CHECK(answers(opened));
    for (std::uint64_t i = 1; i <= 1000; ++i) {
        opened.call({act_count});
        if (output<std::uint64_t>(*opened.caller) != i) CHECK_EQ(output<std::uint64_t>(*opened.caller), i);
    }
    const int fd = ::memfd_create("ib", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    const std::uint64_t word = 4711;
    CHECK_EQ(::ftruncate(fd, 65536), 0);
    CHECK_EQ(::pwrite(fd, &word, 8, 0), 8);
    CHECK_EQ(::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    opened.session->map(1, fd, 65536);
    ::close(fd);
    CHECK_EQ(opened.call({act_sum}).result, 8);
    CHECK_EQ(output<std::uint64_t>(*opened.caller), word);
    CHECK_EQ(opened.call({act_log, 2}).result, 0);
    std::uint64_t from = 0;
    CHECK_EQ(opened.session->log(from, 1 << 20), std::string(" line of sixteen\n line of sixteen\n"));
    // This process is as it was: its own thread pointer, its own memory.
    std::thread([] { CHECK(std::to_string(42) == "42"); }).join();
    CHECK_EQ(refused([&] { (void)open_inline(order_of(actor)); }), Code::busy);
    opened.session->close(10 * second);
    CHECK_EQ(opened.session->ending().fate, Fate::closed);
}

void begins_from_zero_each_time(const Loaded& actor) {
    for (int i = 0; i < 20; ++i) {
        Opened opened = open_when_free(order_of(actor));
        CHECK_EQ(opened.call({act_count}).result, 8);
        CHECK_EQ(output<std::uint64_t>(*opened.caller), 1);
    }
}

void refusals(const Loaded& actor) {
    const Loaded refuses = load_resident("box_refuses");
    SessionOrder order = order_of(refuses);
    CHECK_EQ(refused([&] { (void)open_when_free(order); }), Code::kernel_failed);
    order = order_of(actor);
    order.cores = 2;
    CHECK_EQ(refused([&] { (void)open_when_free(order); }), Code::invalid_argument);
    Opened opened = open_when_free(order_of(actor));
    CHECK(answers(opened));
}

// What a box would be for: the session ends, the program does not.
void nothing_ends_a_loop(const Loaded& actor) {
    Opened opened = open_when_free(order_of(actor));
    static volatile std::uint64_t seen[1024];  // the program's memory is ours
    const std::uint64_t words[] = {act_scribble, reinterpret_cast<std::uint64_t>(seen), UINT64_MAX};
    CHECK_EQ(opened.caller->submit(words, sizeof words), Outcome::pending);
    while (seen[0] == 0) ::usleep(500);  // one that has not begun when its session ends never does
    CHECK_EQ(opened.caller->wait(static_cast<std::uint64_t>(0) + 1).outcome, Outcome::late);
    opened.session->kill();
    CHECK_EQ(opened.caller->wait().outcome, Outcome::ended);
    CHECK_EQ(opened.session->ending().fate, Fate::closed);
    CHECK_EQ(refused([&] { (void)open_inline(order_of(actor)); }), Code::busy);
}

}  // namespace

int main() {
#if defined(__SANITIZE_ADDRESS__)
    std::puts("not run: the address sanitizer has its heap where a program's session is mapped");
    return 0;
#endif
    const Loaded actor = load_resident("box_actor");
    serves_calls(actor);
    begins_from_zero_each_time(actor);
    refusals(actor);
    nothing_ends_a_loop(actor);
    return check::summary();
}
