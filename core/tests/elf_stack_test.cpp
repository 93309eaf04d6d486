// Stacks and layouts, byte by byte: what the kernel's and the DuckInfo interface prescribe, for both word sizes, and what has no room.
#include <cstring>
#include <elf.h>
#include <map>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"
#include "elf/stack.hpp"
#include "made_elf.hpp"

namespace {

using namespace teal;
using elf::Layout;
using elf::Stack;

// Reads a stack as a program would.
class Reader {
public:
    Reader(const Stack& stack, bool wide) : stack_(stack), word_(wide ? 8 : 4), at_(stack.pointer) {}

    std::uint64_t next() {
        const std::uint64_t value = number(at_, word_);
        at_ += word_;
        return value;
    }
    [[nodiscard]] std::uint64_t number(std::uint64_t address, std::size_t bytes) const {
        std::uint64_t value = 0;
        std::memcpy(&value, at(address), bytes);
        return value;
    }
    [[nodiscard]] std::string text(std::uint64_t address) const { return reinterpret_cast<const char*>(at(address)); }
    [[nodiscard]] const std::byte* at(std::uint64_t address) const { return stack_.bytes.data() + (address - stack_.address); }
    std::map<std::uint64_t, std::uint64_t> auxiliary() {
        std::map<std::uint64_t, std::uint64_t> found;
        for (std::uint64_t tag; (tag = next()) != AT_NULL;) {
            CHECK(!found.contains(tag));
            found[tag] = next();
        }
        CHECK_EQ(next(), 0U);
        return found;
    }

private:
    const Stack& stack_;
    std::size_t word_;
    std::uint64_t at_;
};

void test_linux() {
    for (const bool wide : {true, false}) {
        const auto program = made::read(wide ? made::MadeElf{} : made::i386());
        elf::StackWish wish;
        wish.top = 0xe000'0000;
        wish.room = 1 << 16;
        wish.arguments = {"prog", "", "an argument"};
        wish.environment = {"A=1"};
        wish.capabilities = {0x1234, 2, 3632};
        wish.more = {{elf::at_teal, 0x7000'0000}};
        const Stack stack = elf::linux_stack(*program, 0, wish);
        CHECK_EQ(stack.address % elf::page_bytes, 0U);
        CHECK_EQ(stack.pointer % 16, 0U);
        CHECK_EQ(stack.address + stack.bytes.size(), wish.top);
        Reader reader(stack, wide);
        CHECK_EQ(reader.next(), 3U);
        for (const char* argument : {"prog", "", "an argument"}) CHECK_EQ(reader.text(reader.next()), std::string(argument));
        CHECK_EQ(reader.next(), 0U);
        CHECK_EQ(reader.text(reader.next()), std::string("A=1"));
        CHECK_EQ(reader.next(), 0U);
        auto found = reader.auxiliary();
        const std::uint64_t base = wide ? 0x40'0000 : 0x804'8000;
        CHECK_EQ(found[AT_PHDR], base + (wide ? 64U : 52U));
        CHECK_EQ(found[AT_PHENT], wide ? 56U : 32U);
        CHECK_EQ(found[AT_PHNUM], wide ? 3U : 2U);
        CHECK_EQ(found[AT_ENTRY], base + 0x1000);
        CHECK_EQ(found[AT_PAGESZ], 4096U);
        for (const std::uint64_t tag : {AT_UID, AT_EUID, AT_GID, AT_EGID}) CHECK_EQ(found[tag], 1000U);
        CHECK(found.contains(AT_SECURE) && found[AT_SECURE] == 0);
        CHECK_EQ(found[AT_HWCAP], 0x1234U);
        CHECK_EQ(found[AT_HWCAP2], 2U);
        CHECK_EQ(found[51], 3632U);
        CHECK_EQ(found[elf::at_teal], 0x7000'0000U);
        CHECK(!found.contains(AT_SYSINFO_EHDR) && !found.contains(AT_SYSINFO));  // no vDSO
        CHECK_EQ(found[AT_RANDOM] % 16, 0U);
        CHECK(std::memcmp(reader.at(found[AT_RANDOM]), elf::fixed_random.data(), 16) == 0);
        CHECK_EQ(reader.text(found[AT_EXECFN]), std::string("prog"));
        CHECK_EQ(reader.text(found[AT_PLATFORM]), std::string(wide ? "x86_64" : "i686"));
        CHECK(elf::linux_stack(*program, 0, wish).bytes == stack.bytes);  // the same each time
    }
}

void test_linux_limits() {
    const auto program = made::read({});
    const auto said = [&](const elf::StackWish& wish) {
        try {
            const Stack stack = elf::linux_stack(*program, 0, wish);
            return std::to_string(wish.top - stack.pointer <= wish.room);
        } catch (const Error& error) {
            return std::string(error.what());
        }
    };
    elf::StackWish wish;
    wish.top = 0xe000'0000;
    wish.room = 4096;
    wish.arguments = {std::string(2900, 'x')};
    CHECK(said(wish).find("the stack has room for 4096") != std::string::npos);
    wish.room = 8192;
    CHECK_EQ(said(wish), std::string("1"));  // and no more than that is used
    wish.environment.assign(1000, "");
    CHECK(said(wish).find("the stack has room for 8192") != std::string::npos);
    wish.room = UINT64_MAX;
    CHECK_EQ(said(wish), std::string("1"));
    wish.top = 4096;
    CHECK(said(wish).find("the stack has room for 4096") != std::string::npos);
    wish.top = 0xe000'0001;
    CHECK(said(wish).starts_with("a stack that ends at 3758096385"));
    wish.top = UINT64_MAX - 4095;
    CHECK(said(wish).find("expected whole pages, at or below") != std::string::npos);
    wish.top = 0xe000'0000;
    wish.environment = {std::string("A\0B", 3)};
    CHECK_EQ(said(wish), std::string("an environment variable of a program has a zero byte in it"));
}

void test_layout() {
    const auto program = made::read({});
    const Layout l = elf::layout_of(*program, {0x10'0001, 1, 0x2000, 0, 5, 0x1001});
    CHECK_EQ(l.base, 0x40'0000U);
    CHECK_EQ(l.region_bytes, 0x10'1000U);
    CHECK_EQ(l.stack_page, 0x50'0000U);
    CHECK_EQ(l.stdin_at, 0x50'1000U);
    CHECK_EQ(l.stdout_at, 0x50'2000U);
    CHECK_EQ(l.stderr_at, 0x50'4000U);
    CHECK_EQ(l.ib_at, 0x50'4000U);  // stderr has no bytes, so no pages
    CHECK_EQ(l.ob_at, 0x50'5000U);
    CHECK_EQ(l.header_page, 0x50'7000U);
    CHECK_EQ(l.random_page, 0x50'8000U);
    CHECK_EQ(l.end, 0x50'9000U);

    const auto said = [](const elf::Program& of, const elf::DuckInfoSizes& sizes) {
        try {
            elf::layout_of(of, sizes);
            return std::string();
        } catch (const Error& error) {
            CHECK(error.code() == Code::quota_exceeded);
            return std::string(error.what());
        }
    };
    CHECK_EQ(said(*program, {0x8000, 0, 0, 0, 0, 0}), std::string());  // seven pages and one of stack
    CHECK_EQ(said(*program, {0x7000, 0, 0, 0, 0, 0}), std::string("a memory limit of 28672 bytes: the program and one page of stack are 32768"));
    CHECK(said(*program, {UINT64_MAX, 0, 0, 0, 0, 0}).starts_with("a memory limit of 18446744073709551615 bytes"));
    CHECK(said(*program, {0x8000, UINT64_MAX - 4096, 0, 0, 0, 0}).starts_with("stdin of "));
    CHECK(said(*program, {0x8000, 0, 0, 0, std::uint64_t{1} << 46, std::uint64_t{1} << 46}).starts_with("an output buffer of "));
    const auto small = made::read(made::i386());
    CHECK_EQ(said(*small, {1 << 20, 0, 0, 0, std::uint64_t{3} << 30, 0}), std::string());
    CHECK(said(*small, {1 << 20, 0, 0, 0, std::uint64_t{4} << 30, 0}).find("beyond the 32 bits of address") != std::string::npos);
}

void test_duckinfo_page() {
    for (const bool wide : {true, false}) {
        elf::Rules rules;
        rules.duckinfo = true;
        const auto program = made::read(wide ? made::MadeElf{} : made::i386(), rules);
        const Layout l = elf::layout_of(*program, {1 << 20, 11, 22, 33, 44, 55});
        Stack stack = elf::duckinfo_stack(*program, l, 0x1'2345'6789, 0xabcd);
        CHECK_EQ(stack.bytes.size(), 4096U);
        CHECK_EQ(stack.address, l.stack_page);
        Reader reader(stack, wide);
        for (int i = 0; i < 3; ++i) CHECK_EQ(reader.next(), 0U);  // argc, argv, the environment
        auto found = reader.auxiliary();
        CHECK_EQ(found[AT_PHDR], l.header_page + (wide ? 64 : 52));
        CHECK_EQ(found[AT_ENTRY], program->entry);
        CHECK_EQ(found[AT_HWCAP], 0xabcdU);
        CHECK_EQ(found[AT_RANDOM], l.random_page);
        CHECK(found.contains(AT_BASE) && found.contains(AT_PAGESZ) && found.contains(AT_UID) && found.contains(AT_SECURE));
        // The interface's own table of offsets.
        const std::uint64_t info = found[elf::at_duck];
        const std::uint64_t words[13] = {40, l.stdin_at, 11, l.stdout_at, 22, 0, l.stderr_at, 33, 0, l.ib_at, 44, l.ob_at, 55};
        const std::size_t word = wide ? 8 : 4;
        for (std::size_t i = 0; i < 13; ++i) CHECK_EQ(reader.number(info + i * word, word), words[i]);
        CHECK_EQ(reader.number(info + 13 * word, 8), 0x1'2345'6789U);
        CHECK(info + 13 * word + 8 <= l.stack_page + 4096);

        const auto outputs = [&] { return elf::duckinfo_outputs(*program, l, std::span<const std::byte, 4096>(stack.bytes.data(), 4096)); };
        const auto write = [&](std::size_t index, std::uint64_t value) { std::memcpy(stack.bytes.data() + (info - stack.address) + index * word, &value, word); };
        write(5, 22);
        write(8, 34);
        auto left = outputs();
        CHECK(left.stdout_bytes == 22 && !left.stdout_cut && left.stderr_bytes == 33 && left.stderr_cut);
        write(5, UINT64_MAX);
        write(4, UINT64_MAX);  // a limit that the program has raised for itself
        left = outputs();
        CHECK(left.stdout_bytes == 22 && left.stdout_cut);
    }
}

}  // namespace

int main() {
    test_linux();
    test_linux_limits();
    test_layout();
    test_duckinfo_page();
    return check::summary();
}
