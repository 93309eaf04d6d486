// Judged runs: verdicts, limits, counts, outputs.
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>

#include "base/error.hpp"
#include "check.hpp"
#include "cpu/clock.hpp"
#include "made_yard.hpp"

using namespace teal;
using namespace teal::box;
using namespace teal::box::test;

namespace {

struct Memfd {
    int fd = ::memfd_create("test", MFD_CLOEXEC);
    ~Memfd() { ::close(fd); }
    std::string text() const {
        std::string all(1 << 16, '\0');
        const ssize_t got = ::pread(fd, all.data(), all.size(), 0);
        all.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
        return all;
    }
};

RunOrder order_for(const elf::Place& place, const std::vector<std::string>& arguments) {
    RunOrder order;
    order.image = linux_image(place, arguments, {"SEED=1"});
    order.time_limit_ns = 2'000'000'000;
    return order;
}

struct Verdict {
    const char* what;
    RunStatus status;
    std::uint32_t trap;
    int code;      // return code, or signal
};

void verdicts(Yard& yard, const elf::Place& place) {
    const Verdict table[] = {
        {"x", RunStatus::finished, 255, 0},      {"7", RunStatus::finished, 255, 7},         {"n", RunStatus::runtime_error, 14, SIGSEGV},
        {"g", RunStatus::runtime_error, 13, SIGSEGV}, {"d", RunStatus::runtime_error, 0, SIGFPE}, {"i", RunStatus::runtime_error, 6, SIGILL},
        {"a", RunStatus::runtime_error, 253, SIGABRT}, {"o", RunStatus::runtime_error, 14, SIGSEGV}, {"f", RunStatus::finished, 255, 38},
        {"p", RunStatus::finished, 255, 38},     {"r", RunStatus::finished, 255, 0},
    };
    for (const Verdict& expected : table) {
        const RunRecord record = yard.judge(order_for(place, {"actor", expected.what}));
        const bool right = record.status == expected.status && record.trap_num == expected.trap &&
                           (record.status == RunStatus::finished ? record.return_code : record.signal) == expected.code;
        if (!CHECK(right))
            std::printf("    %s: %s %s trap %u code %d signal %d\n", expected.what, run_status_name(record.status), record.reason.c_str(), record.trap_num,
                        record.return_code, record.signal);
        CHECK(record.time_ns > 0 && record.time_ns < record.time_ns_real + 1'000'000'000);
    }
    const RunRecord fault = yard.judge(order_for(place, {"actor", "n"}));
    CHECK_EQ(fault.trap_cr2, 0x123);
    CHECK(place.program()->executable_at(fault.trap_epc - place.bias()));
}

void time_limits(Yard& yard, const elf::Place& place) {
    RunOrder order = order_for(place, {"actor", "l"});
    order.time_limit_ns = 50'000'000;
    RunRecord record = yard.judge(order);
    CHECK_EQ(record.status, RunStatus::time_limit);
    CHECK_EQ(record.trap_num, 32);
    CHECK_EQ(record.time_ns, 50'000'000);
    CHECK(record.time_ns_real >= 50'000'000);
    order = order_for(place, {"actor", "s"});
    order.time_limit_ns = 10'000'000;
    order.wall_limit_ns = 100'000'000;
    record = yard.judge(order);
    CHECK_EQ(record.status, RunStatus::time_limit);
    CHECK(record.time_ns_real >= 80'000'000);   // the fuse burns from before its start
    order.time_limit_ns = 0;
    record = yard.judge(order);
    CHECK_EQ(record.status, RunStatus::judge_failed);
    CHECK(record.reason.find("time limit") != std::string::npos);
}

void memory_is_counted(Yard& yard, const elf::Place& place) {
    const RunRecord nothing = yard.judge(order_for(place, {"actor", "x"}));
    const RunRecord written = yard.judge(order_for(place, {"actor", "t"}));
    const RunRecord read = yard.judge(order_for(place, {"actor", "r"}));
    if (nothing.memory == "page table") {
        CHECK_EQ(written.memory_kb - nothing.memory_kb, 1024);
        CHECK_EQ(read.memory_kb, nothing.memory_kb);
        CHECK(read.memory_kb_accessed - nothing.memory_kb_accessed >= 1024);
    }
    CHECK(!written.memory_exceeded);
    RunOrder order = order_for(place, {"actor", "m"});
    order.memory_bytes = 64 << 20;
    order.stack_bytes = 1 << 20;
    const RunRecord all = yard.judge(order);
    CHECK_EQ(all.status, RunStatus::finished);
    CHECK(all.return_code >= 55 && all.return_code <= 68);
}

void outputs(Yard& yard, const elf::Place& place) {
    Memfd in, out, err;
    CHECK_EQ(::pwrite(in.fd, "quack", 5, 0), 5);
    RunOrder order = order_for(place, {"actor", "c"});
    order.in = in.fd;
    order.out = out.fd;
    order.err = err.fd;
    RunRecord record = yard.judge(order);
    CHECK_EQ(record.status, RunStatus::finished);
    CHECK_EQ(record.stdout_size, 5);
    CHECK_EQ(out.text(), std::string("quack"));
    CHECK(!record.stdout_truncated);
    Memfd environment;
    order = order_for(place, {"actor", "v"});
    order.out = environment.fd;
    yard.judge(order);
    CHECK_EQ(environment.text(), std::string("SEED=1"));
    Memfd much, error;
    order = order_for(place, {"actor", "w"});
    order.out = much.fd;
    order.out_limit = 100'000;
    record = yard.judge(order);
    CHECK_EQ(record.status, RunStatus::finished);
    CHECK_EQ(record.stdout_size, 100'000);
    CHECK(record.stdout_truncated);
    order = order_for(place, {"actor", "E"});
    order.err = error.fd;
    CHECK_EQ(yard.judge(order).stderr_size, 4);
    CHECK_EQ(error.text(), std::string("oops"));
}

// Each from zero: what one run writes, the next one does not see.
void runs_are_alike(Yard& yard, const elf::Place& place) {
    const RunOrder order = order_for(place, {"actor", "t"});
    const RunRecord first = yard.judge(order);
    for (int i = 0; i < 20; ++i) {
        const RunRecord record = yard.judge(order);
        CHECK_EQ(record.status, RunStatus::finished);
        CHECK_EQ(record.memory_kb, first.memory_kb);
        CHECK_EQ(yard.judge(order_for(place, {"actor", "r"})).return_code, 0);
    }
}

}  // namespace

int main() {
    const auto place = load("run_actor");
    {
        Yard yard(yard_options());
        const RunRecord record = yard.judge(order_for(*place, {"actor", "x"}));
        if (record.status == RunStatus::judge_failed && record.reason.find("ptrace") != std::string::npos) {
            std::printf("skipped: %s\n", record.reason.c_str());
            return 0;
        }
        std::printf("  %s; memory by %s; %llu ns, %llu KiB\n", record.clock.c_str(), record.memory.c_str(),
                    static_cast<unsigned long long>(record.time_ns), static_cast<unsigned long long>(record.memory_kb));
        verdicts(yard, *place);
        time_limits(yard, *place);
        memory_is_counted(yard, *place);
        outputs(yard, *place);
        runs_are_alike(yard, *place);
        CHECK_EQ(yard.statistics().zygotes_started, 1);
    }
    return check::summary();
}
