#include "elf/stack.hpp"

#include <algorithm>
#include <cstring>
#include <elf.h>
#include <string>
#include <string_view>
#include <sys/auxv.h>

#include "base/checked.hpp"
#include "base/error.hpp"

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

namespace teal::elf {
namespace {

constexpr std::uint64_t user = 1000;
constexpr std::uint64_t ticks_a_second = 100;
constexpr std::uint64_t most_stack_block = std::uint64_t{64} << 20;

std::uint64_t address_end(const Program& program) { return program.is_64() ? std::uint64_t{0x7fff'ffff'f000} : std::uint64_t{0xffff'e000}; }

const char* platform_of(Machine machine) {
    switch (machine) {
        case Machine::x86_64: return "x86_64";
        case Machine::i386: return "i686";
        case Machine::aarch64: return "aarch64";
    }
    return "";
}

// Bytes of a stack that are written from its top down (strings) and, at the end, as one block of words.
class Block {
public:
    Block(std::uint64_t top, std::size_t word) : top_(top), word_(word) {}

    // Keeps them, and returns where they will lie.
    std::uint64_t push(const void* bytes, std::size_t count, std::size_t align) {
        std::uint64_t at = (top_ - pushed_.size() - count) & ~std::uint64_t{align - 1};
        pushed_.resize(top_ - at);  // reversed: the byte at address a is pushed_[top - 1 - a]
        for (std::size_t i = 0; i < count; ++i) pushed_[top_ - 1 - (at + i)] = static_cast<const std::byte*>(bytes)[i];
        return at;
    }
    std::uint64_t push(std::string_view text) {
        const std::string ended(text);
        return push(ended.c_str(), ended.size() + 1, 1);
    }

    void word(std::uint64_t value) {
        for (std::size_t i = 0; i < word_; ++i) words_.push_back(static_cast<std::byte>(value >> (8 * i)));
    }
    void pair(std::uint64_t tag, std::uint64_t value) {
        word(tag);
        word(value);
    }

    Stack finish() {
        const std::uint64_t pointer = (top_ - pushed_.size() - words_.size()) & ~std::uint64_t{15};
        Stack stack{pointer, pointer & ~(page_bytes - 1), {}};
        stack.bytes.resize(top_ - stack.address);
        std::copy(words_.begin(), words_.end(), stack.bytes.begin() + static_cast<std::ptrdiff_t>(pointer - stack.address));
        std::reverse_copy(pushed_.begin(), pushed_.end(), stack.bytes.end() - static_cast<std::ptrdiff_t>(pushed_.size()));
        return stack;
    }

private:
    std::uint64_t top_;
    std::size_t word_;
    std::vector<std::byte> pushed_, words_;
};

void check_strings(const std::vector<std::string>& strings, const char* what, std::uint64_t& total) {
    for (const std::string& text : strings) {
        if (text.find('\0') != std::string::npos) throw Error(Code::invalid_argument, std::string(what) + " of a program has a zero byte in it");
        total += text.size() + 1 + 8;
    }
}

void identity(Block& block) {
    for (const std::uint64_t tag : {AT_UID, AT_EUID, AT_GID, AT_EGID}) block.pair(tag, user);
    block.pair(AT_SECURE, 0);
}

// The DuckInfo in the order that the interface prescribes, as words of the program's class; the TSC's rate is 64 bits wide in both.
constexpr std::size_t duckinfo_words = 13, stdout_size_word = 5, stderr_size_word = 8;

std::size_t word_bytes(const Program& program) { return program.is_64() ? 8 : 4; }
std::size_t duckinfo_bytes(const Program& program) { return duckinfo_words * word_bytes(program) + 8; }

std::vector<std::byte> duckinfo_of(const Program& program, const Layout& l, std::uint64_t tsc_hz) {
    const std::uint64_t words[duckinfo_words] = {
        duckinfo_version, l.stdin_at, l.sizes.stdin_bytes, l.stdout_at, l.sizes.stdout_bytes, 0, l.stderr_at, l.sizes.stderr_bytes, 0,
        l.ib_at, l.sizes.ib_bytes, l.ob_at, l.sizes.ob_bytes};
    std::vector<std::byte> bytes(duckinfo_bytes(program));
    for (std::size_t i = 0; i < duckinfo_words; ++i) std::memcpy(bytes.data() + i * word_bytes(program), &words[i], word_bytes(program));
    std::memcpy(bytes.data() + duckinfo_words * word_bytes(program), &tsc_hz, sizeof tsc_hz);
    return bytes;
}

}  // namespace

Capabilities host_capabilities() noexcept { return {::getauxval(AT_HWCAP), ::getauxval(AT_HWCAP2), ::getauxval(AT_MINSIGSTKSZ)}; }

Stack linux_stack(const Program& program, std::uint64_t bias, const StackWish& wish) {
    if (wish.top % page_bytes != 0 || wish.top > address_end(program))
        throw Error(Code::invalid_argument, "a stack that ends at " + std::to_string(wish.top) + ": expected whole pages, at or below " +
                    std::to_string(address_end(program)));
    std::uint64_t total = (64 + wish.more.size() * 2) * 8 + (wish.arguments.empty() ? 0 : wish.arguments.front().size());
    check_strings(wish.arguments, "an argument", total);
    check_strings(wish.environment, "an environment variable", total);
    const std::uint64_t room = std::min({wish.room, wish.top, most_stack_block});
    if (total > room)
        throw Error(Code::quota_exceeded, "arguments and environment of " + std::to_string(total) + " bytes: the stack has room for " + std::to_string(room));

    Block block(wish.top, word_bytes(program));
    block.push("", 0, 16);
    const std::string name = wish.arguments.empty() ? "" : wish.arguments.front();
    const std::uint64_t executed = block.push(name);
    const std::uint64_t platform = block.push(std::string_view(platform_of(program.machine)));
    const std::uint64_t random = block.push(wish.random.data(), wish.random.size(), 16);
    std::vector<std::uint64_t> arguments, environment;
    for (const std::string& text : wish.arguments) arguments.push_back(block.push(text));
    for (const std::string& text : wish.environment) environment.push_back(block.push(text));

    block.word(arguments.size());
    for (const std::uint64_t at : arguments) block.word(at);
    block.word(0);
    for (const std::uint64_t at : environment) block.word(at);
    block.word(0);
    block.pair(AT_HWCAP, wish.capabilities.hwcap);
    block.pair(AT_PAGESZ, page_bytes);
    block.pair(AT_CLKTCK, ticks_a_second);
    if (program.header_address != 0) block.pair(AT_PHDR, program.header_address + bias);
    block.pair(AT_PHENT, program.header_entry_bytes);
    block.pair(AT_PHNUM, program.header_count);
    block.pair(AT_BASE, 0);
    block.pair(AT_FLAGS, 0);
    block.pair(AT_ENTRY, program.entry + bias);
    identity(block);
    block.pair(AT_RANDOM, random);
    block.pair(AT_HWCAP2, wish.capabilities.hwcap2);
    if (wish.capabilities.signal_stack_bytes != 0) block.pair(AT_MINSIGSTKSZ, wish.capabilities.signal_stack_bytes);
    block.pair(AT_EXECFN, executed);
    block.pair(AT_PLATFORM, platform);
    for (const Auxiliary& entry : wish.more) block.pair(entry.tag, entry.value);
    block.pair(AT_NULL, 0);
    return block.finish();
}

Layout layout_of(const Program& program, const DuckInfoSizes& sizes) {
    Layout l{};
    l.base = program.low;
    l.sizes = sizes;
    std::uint64_t at = l.base;
    const auto take = [&at, &program](std::uint64_t bytes, const char* what) {
        const std::uint64_t begin = at;
        if (bytes > address_end(program) || !checked_add(at, round_up(bytes, page_bytes), at) || at > address_end(program))
            throw Error(Code::quota_exceeded, std::string(what) + " of " + std::to_string(bytes) + " bytes: its end is beyond the " +
                        (program.is_64() ? "47" : "32") + " bits of address that the program has");
        return begin;
    };
    take(sizes.region, "a memory limit");
    l.region_bytes = at - l.base;
    if (l.region_bytes < program.high - program.low + page_bytes)
        throw Error(Code::quota_exceeded, "a memory limit of " + std::to_string(sizes.region) + " bytes: the program and one page of stack are " +
                    std::to_string(program.high - program.low + page_bytes));
    l.stack_page = at - page_bytes;
    l.stdin_at = take(sizes.stdin_bytes, "stdin");
    l.stdout_at = take(sizes.stdout_bytes, "a limit of stdout");
    l.stderr_at = take(sizes.stderr_bytes, "a limit of stderr");
    l.ib_at = take(sizes.ib_bytes, "an input buffer");
    l.ob_at = take(sizes.ob_bytes, "an output buffer");
    l.header_page = take(page_bytes, "the header page");
    l.random_page = take(page_bytes, "the random page");
    l.end = at;
    return l;
}

Stack duckinfo_stack(const Program& program, const Layout& layout, std::uint64_t tsc_hz, std::uint64_t hwcap) {
    Block block(layout.base + layout.region_bytes, word_bytes(program));
    const std::vector<std::byte> info = duckinfo_of(program, layout, tsc_hz);
    const std::uint64_t info_at = block.push(info.data(), info.size(), 16);
    block.word(0);  // argc
    block.word(0);  // argv
    block.word(0);  // the environment
    block.pair(AT_PAGESZ, page_bytes);
    block.pair(AT_BASE, 0);
    block.pair(AT_PHDR, layout.header_page + program.header_offset);
    block.pair(AT_PHENT, program.header_entry_bytes);
    block.pair(AT_PHNUM, program.header_count);
    block.pair(AT_ENTRY, program.entry);
    block.pair(AT_HWCAP, hwcap);
    identity(block);
    block.pair(AT_RANDOM, layout.random_page);
    block.pair(at_duck, info_at);
    block.pair(AT_NULL, 0);
    return block.finish();
}

DuckInfoOutputs duckinfo_outputs(const Program& program, const Layout& layout, std::span<const std::byte, page_bytes> page) noexcept {
    const std::uint64_t info = (page_bytes - duckinfo_bytes(program)) & ~std::uint64_t{15};  // where duckinfo_stack() put it
    const auto word = [&](std::size_t index) {
        std::uint64_t value = 0;
        std::memcpy(&value, page.data() + info + index * word_bytes(program), word_bytes(program));
        return value;
    };
    const std::uint64_t out = word(stdout_size_word), err = word(stderr_size_word);
    const DuckInfoSizes& sizes = layout.sizes;
    return {std::min(out, sizes.stdout_bytes), std::min(err, sizes.stderr_bytes), out > sizes.stdout_bytes, err > sizes.stderr_bytes};
}

}  // namespace teal::elf
