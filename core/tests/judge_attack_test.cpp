// What a judged program may try (docs/security.md), tried: all it gets is an errno, or its end.
#include <cerrno>
#include <csignal>
#include <cstring>
#include <set>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "attempts.hpp"
#include "box/duckinfo.hpp"
#include "box/judge.hpp"
#include "check.hpp"
#include "made_yard.hpp"

using namespace teal;
using namespace teal::box;
using namespace teal::box::test;

namespace {

#if defined(__x86_64__)

struct Record {
    std::uint64_t narrow = 0, number = 0, arguments[6] = {};
};

struct Memfd {
    int fd = ::memfd_create("test", MFD_CLOEXEC);
    ~Memfd() { ::close(fd); }
};

// The results of these calls, made by one run in turn; shorter if it ended before.
std::vector<std::int64_t> results(Yard& yard, const elf::Place& place, const std::vector<Record>& records, RunRecord& record) {
    const Memfd in, out;
    const auto bytes = static_cast<ssize_t>(records.size() * sizeof(Record));
    CHECK_EQ(::pwrite(in.fd, records.data(), static_cast<std::size_t>(bytes), 0), bytes);
    RunOrder order;
    order.image = linux_image(place, {"attacker"}, {});
    order.time_limit_ns = 5'000'000'000;
    order.in = in.fd, order.out = out.fd;
    record = yard.judge(order);
    std::vector<std::int64_t> said(record.stdout_size / 8);
    CHECK_EQ(::pread(out.fd, said.data(), said.size() * 8, 0), static_cast<ssize_t>(said.size() * 8));
    return said;
}

void attempts_fail(Yard& yard, const elf::Place& place) {
    std::vector<Record> records;
    std::vector<const char*> names;
    for (const Attempt& attempt : attempts) {
        if (attempt.of_runs) continue;
        Record& record = records.emplace_back();
        record.number = attempt.number;
        for (std::size_t i = 0; i < attempt.arguments.size(); ++i) record.arguments[i] = attempt.arguments[i];
        names.push_back(attempt.name);
    }
    RunRecord record;
    const auto said = results(yard, place, records, record);
    if (!CHECK_EQ(record.status, RunStatus::finished)) std::printf("    %s, trap %u, after %zu\n", record.reason.c_str(), record.trap_num, said.size());
    CHECK_EQ(said.size(), records.size());
    for (std::size_t i = 0; i < said.size(); ++i)
        if (!CHECK(said[i] < 0 && said[i] > -4096)) std::printf("    %s: %lld\n", names[i], static_cast<long long>(said[i]));
}

// Every number of the 64-bit and of the 32-bit table that no list in inside/filter.cpp has.
void unlisted_calls_do_not_exist(Yard& yard, const elf::Place& place) {
    const std::set<std::uint64_t> listed = {
        0, 1, 3, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 19, 20, 24, 25, 28, 35, 39, 60, 62, 63, 96, 102, 104, 107, 108, 131, 158, 186,
        200, 201, 202, 204, 218, 219, 228, 229, 230, 231, 234, 271, 273, 295, 309, 318, 334, 335, 336};
    const std::set<std::uint64_t> listed_narrow = {
        1, 3, 4, 13, 19, 20, 45, 78, 91, 122, 125, 140, 145, 146, 168, 173, 174, 175, 180, 192, 197, 219, 224, 243, 252, 258, 265, 311,
        355, 386, 403};
    std::vector<Record> records;
    for (std::uint64_t number = 0; number < 600; ++number) {
        if (!listed.contains(number)) records.push_back({0, number, {}});
        if (!listed_narrow.contains(number)) records.push_back({1, number, {}});
    }
    RunRecord record;
    const auto said = results(yard, place, records, record);
    CHECK_EQ(record.status, RunStatus::finished);
    CHECK_EQ(said.size(), records.size());
    for (std::size_t i = 0; i < said.size(); ++i)
        if (!CHECK_EQ(said[i], -ENOSYS)) std::printf("    %s %llu\n", records[i].narrow != 0 ? "int 0x80" : "syscall", static_cast<unsigned long long>(records[i].number));
}

// What is listed for 32-bit code looks at the same arguments.
void narrow_calls_are_looked_at(Yard& yard, const elf::Place& place) {
    constexpr std::uint64_t code = 0x401000, none = 0xffff'ffff;
    const std::vector<Record> records = {
        {1, 192, {0, 4096, 7, 0x22, none}},        // mmap2: writable and executable
        {1, 192, {0, 4096, 5, 0x22, none}},
        {1, 192, {0, 4096, 3, 0x21, none}},        // shared
        {1, 192, {0, 4096, 3, 1, 1}},              // of stdout
        {1, 125, {code, 4096, 7}},                 // mprotect
        {1, 219, {code, 4096, 12}},                // madvise: merge
        {1, 3, {1, code, 16}},                     // read from another descriptor
        {1, 4, {0, code, 16}},                     // write to another
        {1, 197, {3, code}},                       // fstat64
    };
    RunRecord record;
    const auto said = results(yard, place, records, record);
    CHECK_EQ(record.status, RunStatus::finished);
    CHECK_EQ(said.size(), records.size());
    for (std::size_t i = 0; i < said.size(); ++i)
        if (!CHECK(said[i] == -EPERM || said[i] == -EBADF)) std::printf("    item %zu: %lld\n", i, static_cast<long long>(said[i]));
}

// A DuckInfo program has exit and abort; whatever else it asks for is its end.
void duckinfo_calls_end_it(Yard& yard) {
    elf::Rules rules;
    rules.duckinfo = true;
    const auto place = load("duckinfo_actor", rules);
    const Memfd in, out, err;
    DuckInfoOrder order;
    order.time_limit_ns = 1'000'000'000;
    order.memory_bytes = 8 << 20;
    order.in = in.fd, order.out = out.fd, order.err = err.fd;
    order.in_bytes = 5, order.out_limit = order.err_limit = 4096;
    for (std::uint32_t number = 0; number < 470; ++number) {
        if (number == 60) continue;
        const std::uint8_t words[5] = {'k', static_cast<std::uint8_t>(number), static_cast<std::uint8_t>(number >> 8), 0, 0};
        CHECK_EQ(::pwrite(in.fd, words, sizeof words, 0), static_cast<ssize_t>(sizeof words));
        const RunRecord record = judge_duckinfo(yard, *place, order);
        // Linux never filters these two: they serve a probe that is not there, and either say so or raise SIGILL.
        if (number == 335 || number == 336) {
            CHECK(record.return_code < 0 || record.trap_num == 6);
            continue;
        }
        const bool right = record.status == RunStatus::runtime_error && record.trap_num == (number == 200 ? 253u : 254u);
        if (!CHECK(right))
            std::printf("    number %u: %s %s trap %u code %d\n", number, run_status_name(record.status), record.reason.c_str(), record.trap_num, record.return_code);
    }
}

// A run that stops, or blocks and catches all that can be, is over at its limit all the same.
void no_run_outlives_its_limit(Yard& yard) {
    RunOrder order;
    for (const char* what : {"S", "B"}) {
        const auto actor = load("run_actor");
        order.image = linux_image(*actor, {"actor", what}, {});
        order.time_limit_ns = 50'000'000;
        order.wall_limit_ns = 400'000'000;
        const RunRecord run = yard.judge(order);
        if (!CHECK_EQ(run.status, RunStatus::time_limit)) std::printf("    %s: %s trap %u code %d\n", what, run.reason.c_str(), run.trap_num, run.return_code);
        CHECK_EQ(run.trap_num, 32);
    }
}

#endif

}  // namespace

int main() {
#if defined(__x86_64__)
    const auto place = load("run_attacker");
    for (const bool namespaces : {true, false}) {
        YardOptions options = yard_options();
        options.namespaces = namespaces;
        Yard yard(options);
        RunRecord record;
        results(yard, *place, {}, record);
        if (record.status == RunStatus::judge_failed && record.reason.find("ptrace") != std::string::npos) {
            std::printf("skipped: %s\n", record.reason.c_str());
            return 0;
        }
        attempts_fail(yard, *place);
        unlisted_calls_do_not_exist(yard, *place);
        narrow_calls_are_looked_at(yard, *place);
        duckinfo_calls_end_it(yard);
        no_run_outlives_its_limit(yard);
        CHECK_EQ(yard.statistics().zygotes_started, 1);
    }
#endif
    return check::summary();
}
