// Guests without an operating system (core/kvm). Skips all but the first check where there is no KVM.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "check.hpp"
#include "guest_code.hpp"
#include "kvm/judge.hpp"
#include "kvm/probe.hpp"

using namespace teal;
using namespace teal::guest_code;

#if defined(__x86_64__)

#include "kvm/bench.hpp"
#include "kvm/fuse.hpp"

namespace {

box::RunRecord run(kvm::Judge& judge, box::RunOrder order) {
    const box::RunRecord record = judge.run(order);
    ::close(order.image.fd);
    if (record.status == box::RunStatus::judge_failed) std::printf("judge failed: %s\n", record.reason.c_str());
    return record;
}

box::RunRecord run(kvm::Judge& judge, std::span<const std::byte> code, box::Abi abi = box::Abi::linux_static) {
    return run(judge, order_for(code, abi));
}

std::string contents(int fd) {
    char text[65536];
    const ssize_t got = ::pread(fd, text, sizeof text, 0);
    return {text, got > 0 ? static_cast<std::size_t>(got) : 0};
}

void test_ends() {
    kvm::Judge judge;
    const box::RunRecord record = run(judge, exits_with_42());
    CHECK(record.status == box::RunStatus::finished);
    CHECK_EQ(record.return_code, 42);
    CHECK_EQ(record.trap_num, 255);
    CHECK(record.time_ns > 0 && record.time_tsc > 0);
    CHECK_EQ(run(judge, exits_with_42(), box::Abi::duckinfo).return_code, 42);
    const box::RunRecord aborted = run(judge, aborts());
    CHECK(aborted.status == box::RunStatus::runtime_error);
    CHECK_EQ(aborted.trap_num, 253);
    CHECK_EQ(aborted.signal, 6);
    CHECK_EQ(run(judge, says_hello(), box::Abi::duckinfo).trap_num, 254);
    CHECK_EQ(run(judge, asks_for_a_file()).return_code, 2);          // ENOENT
    CHECK_EQ(run(judge, asks_for_the_unknown()).return_code, 38);    // ENOSYS
}

void test_traps() {
    kvm::Judge judge;
    const struct {
        const char* name;
        std::span<const std::byte> code;
        std::uint32_t trap;
        std::uint64_t at, address;
    } wanted[] = {
        {"divides_by_zero", divides_by_zero(), 0, 9, 0},
        {"single_steps", single_steps(), 1, 0, 0},
        {"no_instruction", no_instruction(), 6, 1, 0},
        {"reads_nowhere", reads_nowhere(), 14, 5, 0x12'3000},
        {"reads_null", reads_null(), 14, 2, 0},
        {"writes_its_code", writes_its_code(), 14, 7, code_at + 7},
        {"reads_the_trap_page", reads_the_trap_page(), 14, 5, 0x1000},
        {"writes_the_trap_page", writes_the_trap_page(), 14, 5, 0x6000},
        {"halts", halts(), 13, 0, 0},
        {"speaks_to_a_port", speaks_to_a_port(), 13, 2, 0},
        {"loads_a_root", loads_a_root(), 13, 2, 0},
        {"bad_stack", bad_stack(), 14, 5, 8},
        {"not_canonical", not_canonical(), 13, 0, 0},
    };
    for (const auto& want : wanted) {
        const box::RunRecord record = run(judge, want.code);
        const bool good = record.status == box::RunStatus::runtime_error && record.trap_num == want.trap &&
                          (want.at == 0 || record.trap_epc == code_at + want.at) && record.trap_cr2 == want.address && record.signal != 0;
        if (!CHECK(good)) {
            std::printf("%s: status %d trap %u epc %llx cr2 %llx signal %d\n", want.name, static_cast<int>(record.status), record.trap_num,
                        static_cast<unsigned long long>(record.trap_epc), static_cast<unsigned long long>(record.trap_cr2), record.signal);
        }
    }
    const box::RunRecord data = run(judge, runs_its_data());
    CHECK_EQ(data.trap_num, 14);
    CHECK_EQ(data.trap_epc, data_at);
    CHECK_EQ(run(judge, exits_with_42()).return_code, 42);           // and the next run is as ever
    CHECK_EQ(judge.statistics().guests_made, 1);
}

void test_output_and_input() {
    kvm::Judge judge;
    box::RunOrder order = order_for(says_hello());
    order.out = memory_file({}, 0);
    box::RunRecord record = judge.run(order);
    CHECK_EQ(contents(order.out), "hello\n");
    CHECK_EQ(record.stdout_size, 6);
    CHECK_EQ(record.return_code, 6);
    order.out_limit = 9;
    record = judge.run(order);
    CHECK_EQ(contents(order.out), "hello\nhello\n");
    order.out_limit = 2;
    record = judge.run(order);
    CHECK_EQ(contents(order.out), "hello\nhello\nhe");
    CHECK(record.stdout_truncated);
    CHECK_EQ(record.stdout_size, 2);
    ::close(order.out);
    ::close(order.image.fd);

    box::RunOrder copy = order_for(copies_input());
    const std::string text(10'000, 'x');
    copy.in = memory_file(std::as_bytes(std::span(text)), text.size());
    copy.out = memory_file({}, 0);
    record = judge.run(copy);
    CHECK_EQ(contents(copy.out), text);
    CHECK_EQ(record.stdout_size, text.size());
    CHECK_EQ(record.memory_kb, 8);                                    // the two pages that it reads into, by us
    ::close(copy.in);
    ::close(copy.out);
    ::close(copy.image.fd);
}

void test_every_run_begins_from_zero() {
    kvm::Judge judge;
    for (int round = 0; round < 200; ++round) {                       // past the last window of the tables
        const box::RunRecord record = run(judge, counts_itself());
        CHECK_EQ(record.return_code, 0);
        CHECK_EQ(record.memory_kb, 12);
        CHECK_EQ(record.memory_kb_accessed, 20);                      // and its code, and one that it only read
    }
    CHECK_EQ(judge.statistics().guests_made, 1);
    CHECK_EQ(judge.statistics().pages_restored, 600);
    CHECK_EQ(judge.statistics().pages_copied, 1);
    for (int round = 0; round < 3; ++round) CHECK_EQ(run(judge, looks_for_leftovers()).return_code, 0);
}

void test_limits() {
    kvm::Judge judge;
    box::RunOrder order = order_for(loops());
    order.time_limit_ns = 20'000'000;
    box::RunRecord record = run(judge, order);
    CHECK(record.status == box::RunStatus::time_limit);
    CHECK_EQ(record.trap_num, 32);
    CHECK_EQ(record.time_ns, order.time_limit_ns);
    CHECK(record.time_ns_real >= 30'000'000);                         // the fuse: limit + 1 % + 10 ms
    CHECK_EQ(record.trap_epc, code_at);
    order = order_for(loops_in_calls());
    order.time_limit_ns = 5'000'000;
    CHECK_EQ(run(judge, order).trap_num, 32);
    order = order_for(loops());
    order.wall_limit_ns = 5'000'000;                                  // the wall may be the nearer one
    record = run(judge, order);
    CHECK(record.status == box::RunStatus::time_limit);
    order = order_for(loops());
    order.time_limit_ns = 0;
    CHECK(judge.run(order).status == box::RunStatus::judge_failed);
    ::close(order.image.fd);
    record = run(judge, takes_memory());
    CHECK_EQ(record.return_code, 12);                                 // ENOMEM: a megabyte is all there is
    CHECK(record.memory_exceeded);
}

void test_narrow() {
    if (!kvm::probe().code32) return;
    kvm::Judge judge;
    box::RunOrder order = order_for(exits_narrowly(), box::Abi::duckinfo);
    order.image.narrow = true;
    const box::RunRecord record = run(judge, order);
    CHECK_EQ(record.trap_num, 255);
    CHECK_EQ(record.return_code, 9);
}

// Whatever bytes are run, the record is clean and the next run is as ever.
void test_random_code() {
    kvm::Judge judge;
    std::uint64_t random = 0x1234'5678'9abc'def1;
    for (int round = 0; round < 300; ++round) {
        std::byte code[256];
        for (std::byte& byte : code) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            byte = static_cast<std::byte>(random);
        }
        box::RunOrder order = order_for(code, round < 150 ? box::Abi::duckinfo : box::Abi::linux_static);
        order.time_limit_ns = 1'000'000;
        const box::RunRecord record = run(judge, order);
        CHECK(record.status != box::RunStatus::judge_failed);
    }
    CHECK_EQ(run(judge, looks_for_leftovers()).return_code, 0);
    CHECK_EQ(judge.statistics().guests_made, 2);                      // one for each interface
}

// All of its memory, again and again; the next run finds none of it.
void test_scribbles() {
    kvm::Judge judge;
    const box::RunRecord record = run(judge, scribbles());
    CHECK_EQ(record.trap_num, 14);
    CHECK_EQ(record.trap_cr2, data_at + data_bytes + (1 << 20));
    CHECK_EQ(record.memory_kb, (data_bytes + (1 << 20)) / 1024);
    CHECK_EQ(run(judge, counts_itself()).return_code, 0);
    CHECK_EQ(run(judge, looks_through_memory()).return_code, 0);
}

// The size of a run's image changes nothing but the guest.
void test_other_images() {
    kvm::Judge judge;
    box::RunOrder order = order_for(exits_with_42());
    CHECK_EQ(judge.run(order).return_code, 42);
    order.image.steps[1].bytes = 4096;
    CHECK_EQ(judge.run(order).return_code, 42);
    CHECK_EQ(judge.statistics().guests_made, 2);
    order.image.steps[1].address = code_at;
    CHECK(judge.run(order).status == box::RunStatus::runtime_error); // zeros lie over its code: the later step counts
    order.image.steps[1].address = 0x1000;                           // the trap page's
    CHECK(judge.run(order).status == box::RunStatus::judge_failed);
    order.image.steps[1].address = ~std::uint64_t{0xfff};
    CHECK(judge.run(order).status == box::RunStatus::judge_failed);
    order.image.steps[1].address = data_at;
    order.image.stack.resize(1 << 20);                               // more than the stack has
    CHECK(judge.run(order).status == box::RunStatus::judge_failed);
    order.image.stack.resize(64);
    order.memory_bytes = ~std::uint64_t{0};
    CHECK(judge.run(order).status == box::RunStatus::judge_failed);
    order.memory_bytes = 1 << 20;
    CHECK_EQ(judge.run(order).return_code, 42);
    ::close(order.image.fd);
}

void test_buffers() {
    kvm::Judge judge;
    box::RunOrder order = order_for(doubles_input(), box::Abi::duckinfo);
    const std::uint64_t word = 21;
    const int in = memory_file(std::as_bytes(std::span(&word, 1)), 4096), out = memory_file({}, 4096);
    order.buffers = {{in, 0x100'0000, 4096, 0, false, false}, {out, 0x200'0000, 4096, 0, true}};
    order.report_address = 0x200'0000;
    for (int round = 0; round < 3; ++round) {
        const box::RunRecord record = judge.run(order);
        CHECK_EQ(record.return_code, 42);
        CHECK_EQ(record.memory_kb, 4);
        CHECK_EQ(record.memory_kb_accessed, 8);                       // the code and the output, not stdin
        std::uint64_t said = 0;
        CHECK_EQ(record.report.size(), 4096);
        std::memcpy(&said, record.report.data(), record.report.size() < sizeof said ? 0 : sizeof said);
        CHECK_EQ(said, 42);
    }
    std::uint64_t written = 0;
    CHECK_EQ(::pread(out, &written, sizeof written, 0), static_cast<ssize_t>(sizeof written));
    CHECK_EQ(written, 42);
    ::close(in);
    ::close(out);
    box::RunOrder wrong = order_for(writes_its_input(), box::Abi::duckinfo);
    wrong.buffers = {{memory_file({}, 4096), 0x100'0000, 4096, 0, false}};
    const int kept = wrong.buffers[0].fd;
    const box::RunRecord record = run(judge, wrong);
    CHECK_EQ(record.trap_num, 14);
    CHECK_EQ(record.trap_cr2, 0x100'0000);
    ::close(kept);
    ::close(order.image.fd);
}

void report_times() {
    kvm::Judge judge;
    box::RunOrder order = order_for(exits_with_42());
    std::uint64_t least = ~0ull, prepare = ~0ull, restore = ~0ull, whole = ~0ull;
    for (int round = 0; round < 300; ++round) {
        const std::uint64_t began = kvm::wall_ns();
        const box::RunRecord record = judge.run(order, 7);
        whole = std::min(whole, kvm::wall_ns() - began);
        least = std::min(least, record.time_ns_real);
        prepare = std::min(prepare, judge.statistics().prepare_ns);
        restore = std::min(restore, judge.statistics().restore_ns);
    }
    std::printf("a run again: %.1f us (prepare %.1f, run %.1f, restore %.1f)\n", static_cast<double>(whole) / 1e3,
                static_cast<double>(prepare) / 1e3, static_cast<double>(least) / 1e3, static_cast<double>(restore) / 1e3);
    ::close(order.image.fd);
}

void test_guests() {
    const kvm::Probe& found = kvm::probe();
    std::printf("%s\n", kvm::describe(found).c_str());
    if (!found.available) {
        std::printf("skipped: no guest can run here\n");
        return;
    }
    CHECK(found.ring3);
    CHECK(found.touched_bits);
    test_ends();
    test_traps();
    test_output_and_input();
    test_every_run_begins_from_zero();
    test_limits();
    test_narrow();
    test_random_code();
    test_scribbles();
    test_other_images();
    test_buffers();
    report_times();
}

}  // namespace

#else

namespace {
void test_guests() {}
}  // namespace

#endif

namespace {

// Says so in one line, and everybody gets a clean answer.
void test_no_device() {
    for (const char* device : {"none", "/dev/null", "/no/such/device"}) {
        ::setenv("TEAL_KVM_DEVICE", device, 1);
        const kvm::Probe found = kvm::probe_now();
        CHECK(!found.available && !found.reason.empty());
        CHECK(kvm::describe(found).find('\n') == std::string::npos);
        kvm::Judge judge;
        CHECK(judge.run(box::RunOrder{}).status == box::RunStatus::judge_failed);
    }
}

}  // namespace

int main() {
    const char* chosen = std::getenv("TEAL_KVM_DEVICE");
    const std::string device = chosen == nullptr ? "" : chosen;
    test_no_device();
    if (device.empty()) {
        ::unsetenv("TEAL_KVM_DEVICE");
    } else {
        ::setenv("TEAL_KVM_DEVICE", device.c_str(), 1);
    }
    test_guests();
    return check::summary();
}
