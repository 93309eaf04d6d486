// Judged runs: verdicts, limits, counts, outputs.
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>

#include <thread>

#include "base/error.hpp"
#include "box/duckinfo.hpp"
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
        RunOrder order = order_for(place, {"actor", expected.what});
        order.stack_bytes = 1 << 20;
        const RunRecord record = yard.judge(order);
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

// What a run used is added up as it leaves its CPU, which may be after it was seen to end.
void every_run_has_its_time(Yard& yard, const elf::Place& place) {
    unsigned without = 0;
    for (int i = 0; i < 1000; ++i) {
        const RunRecord record = yard.judge(order_for(place, {"actor", "x"}));
        if (record.time_ns == 0) ++without;
    }
    CHECK_EQ(without, 0);
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

// The stack may take all of the memory; it and the heap together are counted.
void stacks_are_bounded_by_memory(Yard& yard, const elf::Place& place) {
    RunOrder order = order_for(place, {"actor", "D"});
    order.memory_bytes = 64 << 20;
    order.time_limit_ns = 20'000'000'000;
    RunRecord record = yard.judge(order);
    CHECK_EQ(record.status, RunStatus::finished);
    CHECK_EQ(record.return_code, 41);
    order.memory_bytes = 32 << 20;
    record = yard.judge(order);
    CHECK_EQ(record.status, RunStatus::runtime_error);
    CHECK_EQ(record.trap_num, 14);
#if !defined(TEAL_GUESTS)   // a guest's pages are all counted, but its memory is not one sum
    order = order_for(place, {"actor", "b"});
    order.memory_bytes = 64 << 20;
    record = yard.judge(order);
    if (record.memory == "page table") {
        CHECK(record.memory_exceeded);
        CHECK_EQ(record.status, RunStatus::runtime_error);
        CHECK(record.reason.find("the limit is 65536") != std::string::npos);
    }
#endif
    order = order_for(place, {"actor", "x"});
    order.memory_bytes = 1 << 20;   // its variables alone are more
    record = yard.judge(order);
    CHECK_EQ(record.status, RunStatus::judge_failed);
    CHECK(record.reason.find("the program and one page of stack are") != std::string::npos);
}

// A run that waits for a CPU while others have it is not late.
void crowded_runs_are_not_late(Yard& yard, const elf::Place& place) {
    constexpr int crowd = 6;
    cpu_set_t cpus;
    CHECK_EQ(::sched_getaffinity(0, sizeof cpus, &cpus), 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &cpus)) ++cpu;
    RunRecord records[crowd];
    std::vector<std::thread> threads;
    for (RunRecord& record : records)
        threads.emplace_back([&] {
            RunOrder order = order_for(place, {"actor", "u"});
            order.pin = cpu;
            order.wall_limit_ns = 300'000'000;
            record = yard.judge(order);
        });
    for (std::thread& thread : threads) thread.join();
    for (const RunRecord& record : records) {
        if (!CHECK_EQ(record.status, RunStatus::finished)) std::printf("    %s trap %u\n", record.reason.c_str(), record.trap_num);
        CHECK(record.time_ns >= 190'000'000);
    }
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

bool built(const char* name) { return ::access((std::string(TEAL_BOX_PROGRAMS) + "/" + name).c_str(), R_OK) == 0; }

void with_a_libc(Yard& yard, const char* name) {
    const auto place = load(name);
    Memfd in, out, err;
    CHECK_EQ(::pwrite(in.fd, "30 1 -5 22", 10, 0), 10);
    RunOrder order = order_for(*place, {name, "word"});
    order.in = in.fd, order.out = out.fd, order.err = err.fd;
    RunRecord record = yard.judge(order);
    if (!CHECK_EQ(record.status, RunStatus::finished))
        std::printf("    %s: %s trap %u at %llx\n", name, record.reason.c_str(), record.trap_num, static_cast<unsigned long long>(record.trap_epc));
    CHECK_EQ(record.return_code, 3);
    CHECK_EQ(out.text(), std::string("-5\n1\n22\n30\n"));
    CHECK_EQ(err.text(), std::string("word 1 clock\n"));
    if (record.memory == "page table") CHECK(record.memory_kb < 1000);   // the large block was given back
    RunOrder files = order_for(*place, {name, "files"});
    files.in = in.fd, files.out = out.fd, files.err = err.fd;
    CHECK_EQ(::lseek(in.fd, 0, SEEK_SET), 0);
    record = yard.judge(files);
    if (record.trap_num == 255) CHECK_EQ(record.return_code, 0);
    CHECK_EQ(record.status, RunStatus::finished);
    CHECK_EQ(yard.judge(order_for(*place, {name, "end"})).return_code, 255);
    record = yard.judge(order_for(*place, {name, "abort"}));
    CHECK_EQ(record.status, RunStatus::runtime_error);
    CHECK_EQ(record.signal, SIGABRT);
}

[[maybe_unused]] void narrow(Yard& yard) {
    elf::Rules rules;
    rules.machines = elf::any_machine;
    const auto place = load("narrow_run", rules);
    Memfd out;
    RunOrder order = order_for(*place, {"narrow"});
    order.out = out.fd;
    const RunRecord record = yard.judge(order);
    CHECK_EQ(record.status, RunStatus::finished);
    CHECK_EQ(record.return_code, 42);
    CHECK_EQ(out.text(), std::string("narrow"));
}

struct Wanted {
    const char* in;
    RunStatus status;
    std::uint32_t trap;
    int code;
};

void duckinfo(Yard& yard, const char* name) {
    elf::Rules rules;
    rules.duckinfo = true;
    rules.machines = elf::any_machine;
    const auto place = load(name, rules);
    Memfd in, out, err, ib, ob;
    const std::uint64_t words[2] = {1, 40};
    CHECK_EQ(::pwrite(ib.fd, words, sizeof words, 0), 16);
    DuckInfoOrder order;
    order.time_limit_ns = 100'000'000;
    order.memory_bytes = 8 << 20;
    order.in = in.fd, order.out = out.fd, order.err = err.fd, order.ib = ib.fd, order.ob = ob.fd;
    order.out_limit = 4096, order.err_limit = 100, order.ib_bytes = 16, order.ob_bytes = 8192;
    const bool narrow = !place->program()->is_64();
    const Wanted table[] = {
        {"", RunStatus::finished, 255, -1},       {"cquack", RunStatus::finished, 255, 5},       {"w", RunStatus::finished, 255, 0},
        {"i", RunStatus::runtime_error, 14, SIGSEGV}, {"a", narrow ? RunStatus::finished : RunStatus::runtime_error, narrow ? 255u : 253u, narrow ? 206 : SIGSYS},
        {"s", narrow ? RunStatus::finished : RunStatus::runtime_error, narrow ? 255u : 254u, narrow ? 39 : SIGSYS}, {"l", RunStatus::time_limit, 32, SIGKILL},
        {"m", RunStatus::finished, 255, 0},
    };
    for (const Wanted& wanted : table) {
        CHECK_EQ(::ftruncate(in.fd, 0), 0);
        order.in_bytes = std::strlen(wanted.in);
        CHECK_EQ(::pwrite(in.fd, wanted.in, order.in_bytes, 0), static_cast<ssize_t>(order.in_bytes));
        const RunRecord record = judge_duckinfo(yard, *place, order);
        const int code = record.status == RunStatus::finished ? record.return_code : record.signal;
        if (wanted.in[0] == 'm') continue;   // what lies behind the region may be stdin, or nothing
        if (!CHECK(record.status == wanted.status && record.trap_num == wanted.trap && code == wanted.code))
            std::printf("    %s %s: %s %s trap %u code %d at %llx %llx\n", name, wanted.in, run_status_name(record.status), record.reason.c_str(),
                        record.trap_num, code, static_cast<unsigned long long>(record.trap_epc), static_cast<unsigned long long>(record.trap_cr2));
        if (wanted.in[0] == 'c') {
            CHECK_EQ(record.stdout_size, 5);
            CHECK_EQ(record.stderr_size, 1);
            CHECK_EQ(out.text().substr(0, 5), std::string("quack"));
        }
        if (wanted.in[0] == 'w') {
            CHECK(record.stdout_truncated);
            CHECK_EQ(record.stdout_size, 4096);
        }
    }
    // The output buffer keeps what it has from run to run.
    CHECK_EQ(::pwrite(in.fd, "b", 1, 0), 1);
    order.in_bytes = 1;
    for (std::uint64_t run = 1; run <= 3; ++run) {
        CHECK_EQ(judge_duckinfo(yard, *place, order).return_code, 0);
        std::uint64_t said = 0;
        CHECK_EQ(::pread(ob.fd, &said, 8, 0), 8);
        CHECK_EQ(said, 40 * run);
    }
    order.clear_ob = true;
    judge_duckinfo(yard, *place, order);
    std::uint64_t said = 0;
    CHECK_EQ(::pread(ob.fd, &said, 8, 0), 8);
    CHECK_EQ(said, 40);
    order.ib_bytes = 4096;
    CHECK_EQ(judge_duckinfo(yard, *place, order).status, RunStatus::judge_failed);
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
        every_run_has_its_time(yard, *place);
        verdicts(yard, *place);
        time_limits(yard, *place);
        memory_is_counted(yard, *place);
        stacks_are_bounded_by_memory(yard, *place);
        crowded_runs_are_not_late(yard, *place);
        outputs(yard, *place);
        runs_are_alike(yard, *place);
#if defined(__x86_64__)
        duckinfo(yard, "duckinfo_actor");
#if !defined(TEAL_GUESTS)   // 32-bit code is for processes
        if (built("duckinfo_actor32")) duckinfo(yard, "duckinfo_actor32");
        if (built("narrow_run")) narrow(yard);
#endif
#endif
        for (const char* name : {"libc_run", "libc_run_pie"})
            if (built(name)) with_a_libc(yard, name);
        CHECK_EQ(yard.statistics().zygotes_started, 1);
    }
    return check::summary();
}
