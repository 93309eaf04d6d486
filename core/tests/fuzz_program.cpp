// Fuzzing of what a duck is sent to run: read_program(), and all that follows from what it lets through.
//
// One input = the bytes of a file. A program that is let through has to be what program.hpp says of it; it is loaded into a place behind
// the program before it, and the place has to hold it then, page by page; its stacks are made, of every kind that it can have. With
// TEAL_LIBFUZZER this is a libFuzzer target; without, main() drives it with mutations of valid files from a fixed seed, so that it runs everywhere:
//
//     fuzz_program [rounds [seed]]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <unistd.h>
#include <vector>

#include "base/error.hpp"
#include "elf/place.hpp"
#include "elf/program.hpp"
#include "elf/stack.hpp"
#include "made_elf.hpp"

namespace {

using namespace teal;

constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30;

[[noreturn]] void fail(const char* what) {
    std::fprintf(stderr, "fuzz_program: %s\n", what);
    std::abort();
}

void check_program(const elf::Program& p, std::size_t file_bytes) {
    std::uint64_t end = 0, offset = 0;
    if (p.ranges.empty()) fail("a program of nothing");
    for (const elf::Range& range : p.ranges) {
        if (range.pages == 0 || range.file_pages > range.pages) fail("a range without pages, or with more in the file than in memory");
        if (range.address % elf::page_bytes != 0 || range.address < end) fail("ranges that overlap, or lie between pages");
        if ((range.protection & elf::writable) != 0 && (range.protection & elf::executable) != 0) fail("writable and executable");
        if (range.offset != offset) fail("a range that is not where the one before it ended in the image");
        if (range.pages > most_bytes / elf::page_bytes) fail("more memory than allowed");
        end = range.address + range.pages * elf::page_bytes;
        offset += range.file_pages * elf::page_bytes;
    }
    if (p.low != p.ranges.front().address || p.high != end || p.image.size() != offset) fail("an extent that is not that of its ranges");
    if (p.image.size() > file_bytes + 2 * elf::page_bytes * p.header_count) fail("an image larger than the file and the ends of its pages");
    if (!p.executable_at(p.entry)) fail("an entry that cannot be executed");
    if (p.memory_pages() > most_bytes / elf::page_bytes) fail("more memory than allowed, together");
    if (p.tls_file_bytes > p.tls_bytes || p.tls_bytes > most_bytes) fail("thread-local storage that cannot be");
    if (p.header_page.size() > elf::page_bytes) fail("a header page of more than a page");
}

void load(const std::shared_ptr<const elf::Program>& program) {
    static elf::Place place(1 << 16);
    const std::uint64_t bias = program->kind == elf::Kind::fixed ? 0 : 0x1'0000'0000;
    try {
        const elf::LoadReport report = place.load(program, bias);
        if (!report.known && report.pages_same + report.pages_written + report.pages_zeroed < program->image.size() / elf::page_bytes) fail("pages that nobody looked at");
    } catch (const Error& error) {
        if (error.code() != Code::quota_exceeded && error.code() != Code::invalid_argument) fail("a load that fails in some other way");
        return;
    }
    std::vector<std::byte> bytes(place.bytes());
    if (::pread(place.fd(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) fail("a place that cannot be read");
    if (!program->image.empty() && std::memcmp(bytes.data(), program->image.data(), program->image.size()) != 0) fail("a place that holds something else");
    if (std::any_of(bytes.begin() + static_cast<std::ptrdiff_t>(program->image.size()), bytes.end(), [](std::byte b) { return b != std::byte{0}; })) fail("a place with leftovers");
    for (const elf::Step& step : place.steps_since_last())
        if (step.bytes == 0 || step.address % elf::page_bytes != 0 || step.bytes % elf::page_bytes != 0) fail("a step that no kernel would take");
}

void start(const elf::Program& program) {
    elf::StackWish wish;
    wish.top = 0xf000'0000;
    wish.room = 1 << 16;
    wish.arguments = {"program", "an argument"};
    wish.more = {{elf::at_teal, 4096}};
    const elf::Stack stack = elf::linux_stack(program, 0, wish);
    if (stack.pointer % 16 != 0 || stack.pointer < stack.address || stack.address + stack.bytes.size() != wish.top) fail("a stack that is not where it was wanted");
    if (!program.duckinfo) return;
    try {
        const elf::Layout l = elf::layout_of(program, {program.high - program.low + 3 * elf::page_bytes, 1, 4096, 4097, program.entry, 0});
        const elf::Stack page = elf::duckinfo_stack(program, l, 1, 0);
        if (page.bytes.size() != elf::page_bytes || page.address != l.stack_page) fail("a DuckInfo stack of more than its page");
        const auto left = elf::duckinfo_outputs(program, l, std::span<const std::byte, elf::page_bytes>(page.bytes.data(), elf::page_bytes));
        if (left.stdout_bytes != 0 || left.stderr_bytes != 0) fail("output before the program has started");
    } catch (const Error& error) {
        if (error.code() != Code::quota_exceeded) fail("a layout that fails in some other way");
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    for (const bool duckinfo : {false, true}) {
        elf::Rules rules;
        rules.machines = elf::any_machine;
        rules.most_bytes = most_bytes;
        rules.duckinfo = duckinfo;
        std::shared_ptr<const elf::Program> program;
        try {
            program = elf::read_program(std::as_bytes(std::span(data, size)), "fuzzed", rules);
        } catch (const Error& error) {
            if (error.code() != Code::invalid_argument && error.code() != Code::version_mismatch) fail("a refusal of some other kind");
            if (std::strncmp(error.what(), "fuzzed: ", 8) != 0) fail("a refusal that does not say what it is about");
            continue;
        }
        check_program(*program, size);
        load(program);
        start(*program);
    }
    return 0;
}

#ifndef TEAL_LIBFUZZER
namespace {

class Mutator {
public:
    explicit Mutator(std::uint32_t seed) : random_(seed) {}

    std::vector<std::uint8_t> valid() {
        made::MadeElf made = pick(4) == 0 ? made::i386() : made::MadeElf{};
        if (pick(4) == 0) {
            made.type = ET_DYN;
            made.segments.push_back({PT_DYNAMIC, PF_R | PF_W, 0x3000, 0x40'4000, 48, 48, 8});
        }
        if (pick(3) == 0) made.segments.push_back({PT_TLS, PF_R, 0x3000, made.segments.back().address, 0x40, 0x90, 32});
        if (pick(3) == 0) made.segments.push_back({PT_NOTE, PF_R, 0x3100, 0x40'4100, 0x40, 0x40, pick(2) == 0 ? 4U : 8U});
        if (pick(3) == 0) made.segments.push_back({PT_LOAD, pick(8), 0x1000, made.segments[made.wide ? 2 : 1].address + 0x3000, 0x123, 0x1234, 4096});
        if (pick(4) == 0) made.segments[1].address += 0x80;  // shares nothing yet, but is not aligned
        made.afterwards = [](std::vector<std::byte>& file) {
            const std::uint64_t words[6] = {DT_FLAGS_1, DF_1_PIE, DT_NULL, 0, 0, 0};
            std::memcpy(file.data() + 0x3000, words, sizeof words);
            const std::uint32_t note[6] = {5, 4, 1, 0x6c616554, 0, 1};
            std::memcpy(file.data() + 0x3100, note, sizeof note);
        };
        const auto file = made.bytes();
        const auto* at = reinterpret_cast<const std::uint8_t*>(file.data());
        return {at, at + file.size()};
    }

    void mutate(std::vector<std::uint8_t>& bytes) {
        static constexpr std::uint64_t odd[] = {0, 1, 2, 4, 7, 8, 52, 56, 64, 255, 256, 4095, 4096, 0x1000'0000, 0x7fffffff, 0xffffffff, 0x40'0000, 0x40'2000, 0x40'3000,
                                                0x7fff'ffff'0000, INT64_MAX, UINT64_MAX, UINT64_MAX - 4095};
        for (std::uint32_t turns = 1 + pick(3); turns > 0; --turns) {
            const std::size_t reach = pick(8) != 0 ? std::min<std::size_t>(bytes.size(), 480) : bytes.size();
            const std::size_t size = std::size_t{1} << pick(4);
            const std::size_t at = pick(reach) / size * size;
            if (at + size > bytes.size()) continue;
            std::uint64_t value = 0;
            std::memcpy(&value, &bytes[at], size);
            switch (pick(5)) {
                case 0: value = odd[pick(std::size(odd))]; break;
                case 1: value += pick(33) - std::uint64_t{16}; break;
                case 2: value ^= std::uint64_t{1} << pick(64); break;
                case 3: value += (pick(9) - std::uint64_t{4}) * 4096; break;
                default: value = std::uint64_t{random_()} << 32 | random_(); break;
            }
            std::memcpy(&bytes[at], &value, size);
        }
        if (pick(64) == 0) bytes.resize(pick(bytes.size()));
    }

private:
    std::uint32_t pick(std::size_t below) { return static_cast<std::uint32_t>(random_() % below); }

    std::mt19937 random_;
};

}  // namespace

int main(int argc, char** argv) {
    const unsigned long rounds = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 60'000;
    Mutator mutator(argc > 2 ? static_cast<std::uint32_t>(std::strtoul(argv[2], nullptr, 10)) : 1);
    std::vector<std::uint8_t> bytes;
    for (unsigned long round = 0; round < rounds; ++round) {
        if (round % 4 == 0 || bytes.size() < 64) bytes = mutator.valid();  // then four mutations deep
        LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
        mutator.mutate(bytes);
    }
    std::printf("%lu inputs\n", rounds);
    return 0;
}
#endif
