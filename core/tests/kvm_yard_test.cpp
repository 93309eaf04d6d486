// A yard of guests beside a yard of processes: what programs do is the same, and what it costs is said.
//
// All other tests of boxes are made a second time for guests (kvm_box_test and others: CMakeLists.txt). Skips where no guest can run.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "box/actor.h"
#include "check.hpp"
#include "cpu/clock.hpp"
#include "guest_code.hpp"
#include "kvm/probe.hpp"
#include "made_yard.hpp"

using namespace teal;
using namespace teal::box;
using namespace teal::box::test;
using namespace teal::guest_code;

namespace {

YardOptions options_of(const char* program) {
    YardOptions options;
    options.program = program;
    return options;
}

struct Sample {
    const char* name;
    std::span<const std::byte> code;
    Abi abi = Abi::linux_static;
    bool address = true;    // a process's kernel tells where the fault was
};

RunRecord judge(Yard& yard, const Sample& sample) {
    RunOrder order = order_for(sample.code, sample.abi);
    order.time_limit_ns = 200'000'000;
    RunRecord record = yard.judge(order);
    ::close(order.image.fd);
    return record;
}

// What a program did is the same in both kinds of boxes.
void records_are_the_same() {
    Yard process(options_of(TEAL_PROCESS_BOX)), guest(options_of(TEAL_BOX));
    const Sample samples[] = {
        {"exits_with_42", exits_with_42()}, {"divides_by_zero", divides_by_zero()},
        {"no_instruction", no_instruction()}, {"reads_nowhere", reads_nowhere()}, {"reads_null", reads_null()},
        {"writes_its_code", writes_its_code()}, {"runs_its_data", runs_its_data()}, {"halts", halts()}, {"loads_a_root", loads_a_root()},
        {"says_hello, duckinfo", says_hello(), Abi::duckinfo, false}, {"loops", loops(), Abi::linux_static, false},
    };
    for (const Sample& sample : samples) {
        const RunRecord a = judge(process, sample), b = judge(guest, sample);
        const bool same = a.status == b.status && a.return_code == b.return_code && a.trap_num == b.trap_num &&
                          (!sample.address || (a.trap_epc == b.trap_epc && a.trap_cr2 == b.trap_cr2));
        if (!CHECK(same))
            for (const RunRecord& record : {a, b})
                std::printf("    %s: %s, trap %u at %llx, address %llx %s\n", sample.name, run_status_name(record.status), record.trap_num,
                            static_cast<unsigned long long>(record.trap_epc), static_cast<unsigned long long>(record.trap_cr2),
                            record.reason.c_str());
    }
}

// A file of the test programs, ordinary and static.
RunOrder order_of_file(const std::shared_ptr<elf::Place>& place) {
    RunOrder order;
    order.image = linux_image(*place, {"program"}, {});
    return order;
}

void runs_files() {
    Yard process(options_of(TEAL_PROCESS_BOX)), guest(options_of(TEAL_BOX));
    const auto place = load("run_true");
    for (Yard* yard : {&process, &guest}) {
        double least = 1e9;
        RunRecord record;
        for (int round = 0; round < 200; ++round) {
            const std::uint64_t began = ticks();
            record = yard->judge(order_of_file(place));
            least = std::min(least, static_cast<double>(ticks_to_ns(ticks() - began)) / 1e3);
        }
        CHECK_EQ(record.status, RunStatus::finished);
        CHECK_EQ(record.return_code, 0);
        std::printf("run_true, %s: least %.0f us, memory %llu kB, accessed %llu kB %s\n", yard == &process ? "process" : "guest", least,
                    static_cast<unsigned long long>(record.memory_kb), static_cast<unsigned long long>(record.memory_kb_accessed),
                    record.reason.c_str());
    }
}

// The median of calls with 64 bytes, by kind of box.
double median_call_us(Yard& yard, const Loaded& actor) {
    Opened opened = open(yard, order_of(actor));
    std::uint64_t words[8] = {act_echo};
    std::vector<std::uint64_t> took;
    for (int i = 0; i < 20'000; ++i) {
        const std::uint64_t began = ticks();
        opened.caller->call(words, sizeof words);
        took.push_back(ticks() - began);
    }
    std::nth_element(took.begin(), took.begin() + 10'000, took.end());
    return static_cast<double>(took[10'000]) / static_cast<double>(ticks_per_second()) * 1e6;
}

// All system calls there are, and some that are not: what is no answer of ours does not exist. The session next door notices nothing.
void asks_for_everything(const Loaded& actor) {
    Yard yard(options_of(TEAL_BOX));
    Opened neighbour = open(yard, order_of(actor)), attacker = open(yard, order_of(actor));
    const std::set<std::uint64_t> known = {3, 9, 10, 11, 12, 13, 14, 24, 28, 35, 39, 63, 102, 104, 107, 108, 131, 158, 186, 202, 218, 228, 229, 230, 273, 318};
    for (std::uint64_t number = 0; number < 1024; ++number) {
        if (known.contains(number) || number == 60 || number == 231) continue;
        const std::uint64_t words[8] = {act_syscall, number};
        std::int64_t result = 0;
        const Answer answer = attacker.caller->call(words, sizeof words);
        std::memcpy(&result, attacker.caller->output(), sizeof result);
        const bool writes = number == 1 || number == 20, kills = number == 62 || number == 200 || number == 234, moves = number == 25;
        const std::int64_t wanted = writes ? -EBADF : kills ? -EPERM : moves ? -ENOMEM : -ENOSYS;
        const bool harmless = number == 20 && result == 0;   // writev of nothing
        if (answer.outcome != Outcome::done || (result != wanted && !harmless))
            if (!CHECK_EQ(result, wanted)) std::printf("    number %llu\n", static_cast<unsigned long long>(number));
    }
    CHECK(answers(attacker));
    CHECK(answers(neighbour));
    // Calls of our own loop, by the program: it may harm itself only.
    for (std::uint64_t number = 0x7ea1'0000; number < 0x7ea1'0010; ++number) {
        if (number == 0x7ea1'0000) continue;                 // it would sleep until it is asked
        const std::uint64_t words[8] = {act_syscall, number, 1};
        attacker.caller->call(words, sizeof words, static_cast<std::uint64_t>(monotonic_ns()) + 20'000'000'000);
    }
    CHECK(answers(neighbour));
}

// What is around a guest is locked up as well.
void process_is_confined(const Loaded& actor) {
    Yard yard(options_of(TEAL_BOX));
    const Opened opened = open(yard, order_of(actor));
    std::ifstream file("/proc/" + std::to_string(opened.session->facts().box_pid) + "/status");
    const std::string status((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (status.empty()) return;                              // no /proc
    CHECK(status.find("Seccomp:\t2") != std::string::npos);
    CHECK(status.find("NoNewPrivs:\t1") != std::string::npos);
}

int weights(std::uint64_t bytes, std::uint64_t word) {
    const int fd = ::memfd_create("ib", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_EQ(::ftruncate(fd, static_cast<off_t>(bytes)), 0);
    CHECK_EQ(::pwrite(fd, &word, sizeof word, 0), static_cast<ssize_t>(sizeof word));
    CHECK_EQ(::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    return fd;
}

// Input buffers large and small, mapped, gone over to by the caller alone, forgotten, and mapped where others were.
void input_buffers_come_and_go(const Loaded& actor) {
    constexpr std::uint64_t large = 64u << 20;
    Yard yard(options_of(TEAL_BOX));
    SessionOrder order = order_of(actor);
    order.cores = 2;
    order.input_bytes = 1u << 30;
    Opened opened = open(yard, order);
    const auto sum = [&] {
        const std::uint64_t words[1] = {act_ib};
        std::uint64_t said[3] = {};
        if (opened.caller->call(words, sizeof words).result != 24) return std::uint64_t{0};
        std::memcpy(said, opened.caller->output(), sizeof said);
        return said[1];
    };
    const int one = weights(large, 111), two = weights(4096, 222);
    const std::int64_t began = monotonic_ns();
    opened.session->map(1, one, large);
    const std::int64_t mapped = monotonic_ns();
    opened.session->map(2, two, 4096);
    CHECK_EQ(sum(), 222);
    const std::int64_t again = monotonic_ns();
    opened.session->map(1, -1, large);
    std::printf("guest: input buffer of 64 MiB: mapped in %.0f us, again in %.0f us\n", static_cast<double>(mapped - began) / 1e3,
                static_cast<double>(monotonic_ns() - again) / 1e3);
    CHECK_EQ(sum(), 111);
    CHECK_EQ(opened.caller->use(2).result, 0);
    CHECK_EQ(sum(), 222);
    CHECK_EQ(opened.caller->use(3).result, -ENOENT);
    CHECK_EQ(opened.caller->use(0).result, 0);
    CHECK_EQ(sum(), 0);
    for (std::uint64_t round = 0; round < 20; ++round) {
        const int fd = weights((round + 1) << 20, round + 1);
        opened.session->map(10 + round, fd, (round + 1) << 20);
        CHECK_EQ(sum(), round + 1);
        if (round >= 3) opened.session->forget(10 + round - 3);
        ::close(fd);
    }
    CHECK_EQ(opened.caller->use(11).result, -ENOENT);
    CHECK_EQ(opened.caller->use(1).result, 0);
    CHECK_EQ(sum(), 111);
    ::close(one);
    ::close(two);
}

// The least of a few opens, and the median of first calls after a sleep.
void report_kind(const char* program, const char* name, const Loaded& actor) {
    Yard yard(options_of(program));
    std::uint64_t open_ns = ~std::uint64_t{0};
    for (int i = 0; i < 10; ++i) {
        const Opened opened = open(yard, order_of(actor));
        open_ns = std::min(open_ns, yard.statistics().last_open_ns);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));   // the next spare
    }
    SessionOrder order = order_of(actor);
    order.idle_ns = 100'000;
    Opened opened = open(yard, order);
    std::vector<std::uint64_t> took;
    for (int i = 0; i < 51; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        const std::uint64_t began = ticks();
        CHECK(answers(opened));
        took.push_back(ticks() - began);
    }
    std::nth_element(took.begin(), took.begin() + 25, took.end());
    std::printf("%s: call of 64 bytes p50 %.3f us, first call after a sleep p50 %.1f us, least open %.0f us\n", name, median_call_us(yard, actor),
                static_cast<double>(took[25]) / static_cast<double>(ticks_per_second()) * 1e6, static_cast<double>(open_ns) / 1e3);
}

}  // namespace

int main() {
    std::printf("%s\n", kvm::describe(kvm::probe()).c_str());
    if (!kvm::probe().available) {
        std::printf("skipped: no guest can run here\n");
        return check::summary();
    }
    const Loaded actor = load_resident("box_actor");
    report_kind(TEAL_PROCESS_BOX, "process", actor);
    report_kind(TEAL_BOX, "guest", actor);
    asks_for_everything(actor);
    process_is_confined(actor);
    input_buffers_come_and_go(actor);
    records_are_the_same();
    runs_files();
    return check::summary();
}
