// Programs that were compiled, read, put into a place, mapped by its steps and started on the stack that was made for them: the examples.
//
// No sandbox: each runs in a child of its own, which is a box without walls. The programs are made by CMake (TEAL_TEST_PROGRAMS, the folder).
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "check.hpp"
#include "duck/include/duck.h"
#include "elf/place.hpp"
#include "elf/program.hpp"
#include "elf/stack.hpp"

namespace {

using namespace teal;

constexpr std::uint64_t stack_bytes = 1 << 20;
constexpr std::uint64_t bias = 0x2000'0000'0000;  // where sanitizers have nothing of theirs

std::vector<std::byte> file_of(const std::string& name) {
    std::ifstream in(std::string(TEAL_TEST_PROGRAMS) + "/" + name, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
}

int as_flags(std::uint32_t protection) {
    return ((protection & elf::readable) != 0 ? PROT_READ : 0) | ((protection & elf::writable) != 0 ? PROT_WRITE : 0) |
           ((protection & elf::executable) != 0 ? PROT_EXEC : 0);
}

void map_program(const elf::Place& place) {
    for (const elf::Step& step : place.steps()) {
        const bool file = step.what == elf::Step::What::map;
        void* at = reinterpret_cast<void*>(step.address);
        if (::mmap(at, step.bytes, as_flags(step.protection), MAP_PRIVATE | MAP_FIXED_NOREPLACE | (file ? 0 : MAP_ANONYMOUS), file ? place.fd() : -1,
                   static_cast<off_t>(step.offset)) != at)
            ::_exit(120);
    }
}

// Every register but the stack pointer is 0.
[[noreturn]] void enter(std::uint64_t entry, std::uint64_t stack) {
#if defined(__x86_64__)
    __asm__ volatile(
        "movq %0, %%rsp\n push %1\n"
        "xorl %%eax, %%eax\n xorl %%ebx, %%ebx\n xorl %%ecx, %%ecx\n xorl %%edx, %%edx\n xorl %%esi, %%esi\n xorl %%edi, %%edi\n xorl %%ebp, %%ebp\n"
        "xorl %%r8d, %%r8d\n xorl %%r9d, %%r9d\n xorl %%r10d, %%r10d\n xorl %%r11d, %%r11d\n xorl %%r12d, %%r12d\n xorl %%r13d, %%r13d\n"
        "xorl %%r14d, %%r14d\n xorl %%r15d, %%r15d\n ret"
        : : "r"(stack), "r"(entry) : "memory");
#else
    __asm__ volatile("mov sp, %0\n mov x0, #0\n mov x29, #0\n mov x30, #0\n br %1" : : "r"(stack), "r"(entry) : "memory", "x0", "x30");
#endif
    __builtin_unreachable();
}

#if defined(__x86_64__)
// Leaves 64-bit mode for good. Its data segments are no segments at all there, and 32-bit code needs them.
[[noreturn]] void enter_32(std::uint64_t entry, std::uint64_t stack) {
    __asm__ volatile("movl $0x2b, %%eax\n movl %%eax, %%ds\n movl %%eax, %%es\n movq %0, %%rsp\n pushq $0x23\n pushq %1\n lretq" : : "r"(stack), "r"(entry) : "memory", "rax");
    __builtin_unreachable();
}
#endif

void put_stack(const elf::Stack& stack) { std::memcpy(reinterpret_cast<void*>(stack.address), stack.bytes.data(), stack.bytes.size()); }

std::uint64_t new_stack() {
    auto* at = static_cast<std::byte*>(::mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    return reinterpret_cast<std::uint64_t>(at) + stack_bytes;
}

int wait_for(pid_t child) {
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    return status;
}
bool exited(int status, int code) {
    const bool good = WIFEXITED(status) && WEXITSTATUS(status) == code;
    if (!good) std::fprintf(stderr, "wait status %#x, expected exit status %d\n", static_cast<unsigned>(status), code);
    return good;
}

// ---- resident programs ---------------------------------------------------------------------------------------------------------------------

struct Call {
    std::vector<std::byte> args;
    std::int64_t result = 0;
    std::vector<std::byte> answer;
};

struct Meeting {  // shared with the child
    std::int64_t results[8];
    duck_barrier_line_t barrier;
    char logged[64];
};

Meeting* meeting = nullptr;
std::vector<Call>* calls = nullptr;
std::byte* ob = nullptr;
constexpr std::uint64_t ob_bytes = 1 << 20;

std::int64_t call_all(const duck_t* duck, const duck_program_t* program, const Call& call) {
    std::int64_t result = 0;
    std::vector<std::thread> others;
    for (std::uint32_t core = 1; core < duck->cores; ++core)
        others.emplace_back([=, &call] { program->call(duck, call.args.data(), call.args.size(), core); });
    result = program->call(duck, call.args.data(), call.args.size(), 0);
    for (std::thread& other : others) other.join();
    return result;
}

int serve(const duck_t* duck, const duck_program_t* program) {
    if (program->abi != DUCK_ABI || program->bytes != sizeof *program) return 121;
    if (program->init != nullptr)
        if (const int status = program->init(duck); status != 0) return status;
    for (std::size_t i = 0; i < calls->size(); ++i) {
        meeting->results[i] = call_all(duck, program, (*calls)[i]);
        // Each answer behind the one before it: the parent takes them apart.
        if (i + 1 < calls->size()) std::memcpy(ob + (i + 1) * ob_bytes, ob, ob_bytes);
    }
    if (program->exit != nullptr) program->exit(duck);
    return 7;
}

void log_line(const duck_t*, const char* text, std::uint64_t bytes) { std::memcpy(meeting->logged, text, std::min<std::uint64_t>(bytes, sizeof meeting->logged - 1)); }
void yield() { std::this_thread::yield(); }

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return {bytes.begin(), bytes.end()};
}

// Calls it in a child; the answers come back in `wanted`.
int run_resident(const std::string& name, std::uint32_t cores, std::span<const std::byte> ib, std::vector<Call>& wanted) {
    const auto program = elf::read_program(file_of(name), name.c_str());
    CHECK(program->resident());
    elf::Place place(program->image.size());
    place.load(program, program->kind == elf::Kind::position_independent ? bias : 0);
    const std::uint64_t all = ob_bytes * (wanted.size() + 1);
    ob = static_cast<std::byte*>(::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    meeting = static_cast<Meeting*>(::mmap(nullptr, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    calls = &wanted;
    const pid_t child = ::fork();
    if (child == 0) {
        map_program(place);
        static duck_t duck;
        duck = {DUCK_ABI, sizeof(duck_t), cores, 0, ib.data(), ib.size(), ob, ob_bytes, 1'000'000'000, &meeting->barrier, serve, yield, log_line};
        elf::StackWish wish;
        wish.top = new_stack();
        wish.room = 65536;
        wish.arguments = {name};
        wish.environment = {"A=1", "B="};
        wish.capabilities = elf::host_capabilities();
        wish.more = {{elf::at_teal, reinterpret_cast<std::uint64_t>(&duck)}};
        const elf::Stack stack = elf::linux_stack(*program, place.bias(), wish);
        put_stack(stack);
        enter(program->entry + place.bias(), stack.pointer);
    }
    const int status = wait_for(child);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        wanted[i].result = meeting->results[i];
        const std::byte* at = ob + (i + 1 < wanted.size() ? i + 1 : 0) * ob_bytes;
        if (wanted[i].result > 0) wanted[i].answer.assign(at, at + std::min<std::int64_t>(wanted[i].result, ob_bytes));
    }
    ::munmap(ob, all);
    ::munmap(meeting, sizeof *meeting);
    return status;
}

std::string text_of(const std::vector<std::byte>& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

std::vector<std::byte> bytes_of(const std::string& text) {
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
}

template <typename T>
std::vector<T> values_of(const std::vector<std::byte>& bytes) {
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
}

void test_hello() {
    for (const char* name : {"hello.elf", "hello_pie.elf"}) {
        std::vector<Call> greetings(2);
        greetings[0].args = bytes_of(std::string("Ada"));
        greetings[1].args = bytes_of(std::string("Bo"));
        CHECK(exited(run_resident(name, 1, {}, greetings), 7));
        CHECK_EQ(text_of(greetings[0].answer), std::string("hello, Ada, for the 1st time\n"));
        CHECK_EQ(text_of(greetings[1].answer), std::string("hello, Bo, for the 2nd time\n"));
    }
}

void test_hash() {
    std::vector<Call> one(1);
    one[0].args = bytes_of(std::string("hello"));
    CHECK(exited(run_resident("hash.elf", 1, {}, one), 7));
    CHECK_EQ(values_of<std::uint64_t>(one[0].answer).at(0), 0xa430d84680aabd0bULL);
    std::vector<std::byte> ib(2'500'000, std::byte{3});
    std::uint64_t first = 0;
    for (const std::uint32_t cores : {1U, 2U, 3U}) {
        std::vector<Call> whole(1);
        CHECK(exited(run_resident("hash.elf", cores, ib, whole), 7));
        const std::uint64_t hash = values_of<std::uint64_t>(whole[0].answer).at(0);
        if (first == 0) first = hash;
        CHECK_EQ(hash, first);
    }
}

void test_sort() {
    std::vector<std::uint32_t> numbers(10'007);
    std::uint32_t x = 1;
    for (auto& number : numbers) number = x = x * 1664525 + 1013904223;
    for (const std::uint32_t cores : {1U, 2U}) {
        std::vector<Call> sorted(1);
        CHECK(exited(run_resident("sort.elf", cores, std::as_bytes(std::span(numbers)), sorted), 7));
        auto expected = numbers;
        std::sort(expected.begin(), expected.end());
        CHECK(values_of<std::uint32_t>(sorted[0].answer) == expected);
    }
    std::vector<std::byte> too_many(ob_bytes);
    std::vector<Call> refused(1);
    CHECK(exited(run_resident("sort.elf", 2, too_many, refused), 7));
    CHECK_EQ(refused[0].result, -2);
}

bool near(const std::vector<float>& found, const std::vector<double>& expected) {
    if (found.size() != expected.size()) return false;
    for (std::size_t i = 0; i < found.size(); ++i)
        if (!(found[i] - expected[i] < 1e-3 && expected[i] - found[i] < 1e-3)) return false;
    return true;
}

void test_gemv() {
    for (const std::uint64_t columns : {1U, 15U, 64U, 301U}) {
        const std::uint64_t rows = 37;
        std::vector<float> w(rows * columns), x(columns);
        for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 13) - 6;
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) / 8;
        std::vector<double> expected(rows);
        for (std::size_t r = 0; r < rows; ++r)
            for (std::size_t c = 0; c < columns; ++c) expected[r] += static_cast<double>(w[r * columns + c]) * static_cast<double>(x[c]);
        for (const std::uint32_t cores : {1U, 2U}) {
            std::vector<Call> product(2);
            product[0].args = bytes_of(x);
            product[1].args = bytes_of(std::string("12345"));
            CHECK(exited(run_resident("gemv.elf", cores, std::as_bytes(std::span(w)), product), 7));
            CHECK(near(values_of<float>(product[0].answer), expected));
            CHECK_EQ(product[1].result, -1);
        }
    }
}

void test_matmul() {
    for (const std::array<std::uint32_t, 3> shape : {std::array{1U, 1U, 1U}, std::array{9U, 20U, 70U}, std::array{8U, 3U, 64U}}) {
        const auto [m, k, n] = shape;
        std::vector<float> both((m + n) * k);
        for (std::size_t i = 0; i < both.size(); ++i) both[i] = static_cast<float>(i % 11) - 5;
        std::vector<double> expected(std::size_t{m} * n);
        for (std::size_t i = 0; i < m; ++i)
            for (std::size_t j = 0; j < n; ++j)
                for (std::size_t l = 0; l < k; ++l) expected[i * n + j] += static_cast<double>(both[i * k + l]) * static_cast<double>(both[m * k + l * n + j]);
        std::vector<Call> product(2);
        product[0].args = bytes_of(std::vector<std::uint32_t>(shape.begin(), shape.end()));
        product[1].args = bytes_of(std::vector<std::uint32_t>{m, UINT32_MAX, n});
        CHECK(exited(run_resident("matmul.elf", 2, std::as_bytes(std::span(both)), product), 7));
        CHECK(near(values_of<float>(product[0].answer), expected));
        CHECK_EQ(product[1].result, -3);
    }
}

// ---- programs of other kinds ---------------------------------------------------------------------------------------------------------------

std::string run_classic(const std::string& name, const std::string& input, int expected) {
    const auto file = file_of(name);
    if (file.empty()) {
        std::printf("%s: not made here (no static libc): skipped\n", name.c_str());
        return "55\n";
    }
    const auto program = elf::read_program(file, name.c_str());
    CHECK(!program->resident());
    elf::Place place(program->image.size());
    place.load(program, program->kind == elf::Kind::position_independent ? bias : 0);
    int in[2], out[2];
    CHECK(::pipe(in) == 0 && ::pipe(out) == 0);
    CHECK_EQ(::write(in[1], input.data(), input.size()), static_cast<ssize_t>(input.size()));
    const pid_t child = ::fork();
    if (child == 0) {
        ::dup2(in[0], 0);
        ::dup2(out[1], 1);
        for (const int fd : {in[0], in[1], out[0], out[1]}) ::close(fd);
        map_program(place);
        elf::StackWish wish;
        wish.top = new_stack();
        wish.room = 65536;
        wish.arguments = {name, "an argument"};
        wish.environment = {"LANG=C"};
        wish.capabilities = elf::host_capabilities();
        const elf::Stack stack = elf::linux_stack(*program, place.bias(), wish);
        put_stack(stack);
        enter(program->entry + place.bias(), stack.pointer);
    }
    for (const int fd : {in[0], in[1], out[1]}) ::close(fd);
    std::string said;
    char buffer[256];
    for (ssize_t n; (n = ::read(out[0], buffer, sizeof buffer)) > 0;) said.append(buffer, static_cast<std::size_t>(n));
    ::close(out[0]);
    CHECK(exited(wait_for(child), expected));
    return said;
}

void test_classic() {
    for (const char* name : {"classic.elf", "classic_pie.elf"}) CHECK_EQ(run_classic(name, "1 2 3 4 5 6 7 8 9 10\n", 0), std::string("55\n"));
    // A resident program that is not in a duck says so, and does not crash.
    const auto hello = elf::read_program(file_of("hello.elf"), "hello.elf");
    const pid_t child = ::fork();
    if (child == 0) {
        ::close(2);
        ::execl((std::string(TEAL_TEST_PROGRAMS) + "/hello.elf").c_str(), "hello.elf", nullptr);
        ::_exit(119);
    }
    CHECK(exited(wait_for(child), 125));
}

#if defined(__x86_64__)
bool runs_i386() {
    const pid_t child = ::fork();
    if (child == 0) {
        __asm__ volatile("int $0x80" : : "a"(1), "b"(0) : "memory");
        ::_exit(1);
    }
    const int status = wait_for(child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void test_duckinfo(const std::string& name) {
    const std::string input = "17 4 21\n100";
    elf::Rules rules;
    rules.duckinfo = true;
    const auto program = elf::read_program(file_of(name), name.c_str(), rules);
    const elf::Layout l = elf::layout_of(*program, {1 << 20, input.size(), 8192, 100, 0, 4096});
    elf::Place place(program->image.size());
    place.load(program);
    // What it leaves is looked at from outside: shared with the child, and mapped here at the same addresses.
    const auto share = [](std::uint64_t at, std::uint64_t bytes, const void* from, std::size_t count) {
        if (bytes == 0) return;
        void* where = reinterpret_cast<void*>(at);
        CHECK(::mmap(where, elf::page_bytes * ((bytes + 4095) / 4096), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == where);
        if (count > 0) std::memcpy(where, from, count);
    };
    const elf::Stack stack = elf::duckinfo_stack(*program, l, 2'000'000'000, 0);
    CHECK_EQ(stack.bytes.size(), elf::page_bytes);
    CHECK_EQ(stack.address, l.stack_page);
    share(l.stack_page, 4096, stack.bytes.data(), stack.bytes.size());
    share(l.stdin_at, input.size(), input.data(), input.size());
    share(l.stdout_at, 8192, nullptr, 0);
    share(l.stderr_at, 100, nullptr, 0);
    share(l.ob_at, 4096, nullptr, 0);
    share(l.header_page, 4096, program->header_page.data(), program->header_page.size());
    share(l.random_page, 4096, elf::fixed_random.data(), elf::fixed_random.size());
    const pid_t child = ::fork();
    if (child == 0) {
        map_program(place);
        if (program->is_64()) enter(program->entry, stack.pointer);
        enter_32(program->entry, stack.pointer);
    }
    CHECK(exited(wait_for(child), 0));
    const auto left = elf::duckinfo_outputs(*program, l, std::span<const std::byte, 4096>(reinterpret_cast<const std::byte*>(l.stack_page), 4096));
    CHECK(!left.stdout_cut && !left.stderr_cut);
    CHECK_EQ(left.stderr_bytes, 0U);
    CHECK_EQ(std::string(reinterpret_cast<const char*>(l.stdout_at), left.stdout_bytes), std::string("142\n"));
    ::munmap(reinterpret_cast<void*>(l.stack_page), l.end - l.stack_page);
}
#endif

}  // namespace

int main() {
    test_hello();
    test_hash();
    test_sort();
    test_gemv();
    test_matmul();
    test_classic();
#if defined(__x86_64__)
    test_duckinfo("duckinfo.elf");
    if (runs_i386()) test_duckinfo("duckinfo32.elf");
    else std::printf("duckinfo32.elf: this kernel runs no i386 programs: skipped\n");
#endif
    return check::summary();
}
