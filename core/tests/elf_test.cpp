// read_program(): what it takes, page by page, and everything that it refuses, with the words that it refuses it with.
#include <array>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/sha256.hpp"
#include "check.hpp"
#include "elf/program.hpp"
#include "made_elf.hpp"

namespace {

using namespace teal;
using elf::Range;
using made::MadeElf;
using made::refusal;

bool says(const std::string& text, const char* what) {
    const bool found = text.find(what) != std::string::npos;
    if (!found) std::fprintf(stderr, "said \"%s\", not \"%s\"\n", text.c_str(), what);
    return found;
}

void test_ordinary() {
    const MadeElf made;
    const auto file = made.bytes();
    const auto program = made::read(made);
    CHECK(program->machine == elf::Machine::x86_64 && program->kind == elf::Kind::fixed);
    CHECK(!program->resident() && !program->executable_stack && !program->duckinfo);
    CHECK_EQ(program->entry, 0x40'1000U);
    CHECK_EQ(program->low, 0x40'0000U);
    CHECK_EQ(program->high, 0x40'7000U);
    CHECK_EQ(program->header_address, 0x40'0040U);
    const std::vector<Range> expected = {
        {0x40'0000, 1, 1, 0, elf::readable},
        {0x40'1000, 2, 2, 0x1000, elf::readable | elf::executable},
        {0x40'4000, 3, 1, 0x3000, elf::readable | elf::writable},
    };
    CHECK(program->ranges == expected);
    CHECK_EQ(program->memory_pages(), 6U);
    CHECK_EQ(program->image.size(), 0x4000U);
    CHECK(std::memcmp(program->image.data(), file.data(), 0x200) == 0 && program->image[0x200] == std::byte{0});
    CHECK(std::memcmp(program->image.data() + 0x1000, file.data() + 0x1000, 0x1800) == 0 && program->image[0x2800] == std::byte{0});
    CHECK(std::memcmp(program->image.data() + 0x3000, file.data() + 0x3000, 0x100) == 0 && program->image[0x3100] == std::byte{0});
    CHECK(program->executable_at(0x40'2fff) && !program->executable_at(0x40'3000) && !program->executable_at(0x40'4000));
    Sha256 digest;
    digest.add(file);
    CHECK(program->digest == digest.finish());
    const std::array<std::uint8_t, 32> known = {1, 2, 3};
    elf::Rules rules;
    rules.digest = &known;
    CHECK(made::read(made, rules)->digest == known);
}

// Gigabytes of .bss cost nothing; more than is allowed is refused.
void test_huge_memory() {
    MadeElf made;
    made.segments[2].bytes = std::uint64_t{32} << 30;
    const auto program = made::read(made);
    CHECK_EQ(program->image.size(), 0x4000U);
    CHECK_EQ(program->ranges[2].pages, (std::uint64_t{32} << 30) / 4096);
    elf::Rules rules;
    rules.most_bytes = 1 << 20;
    CHECK(says(refusal(made, rules), "pages of memory when it starts: at most 256 are allowed"));
    for (const std::uint64_t bytes : {UINT64_MAX, UINT64_MAX - 0x40'3fff, std::uint64_t{0x7fff'ffff'0000}, UINT64_MAX - 0x40'4000}) {
        made.segments[2].bytes = bytes;
        CHECK(says(refusal(made), "expected an end at or below 0x7fffffff0000"));
    }
    made = {};
    made.segments[2].address = UINT64_MAX - 10;
    CHECK(says(refusal(made), "expected an end at or below"));
}

// -z noseparate-code with a linker that does not care for pages: .text and .data in one.
void test_shared_pages() {
    MadeElf made;
    made.segments = {
        {PT_LOAD, PF_R, 0, 0x40'0000, 0x1100, 0x1100, 4096},
        {PT_LOAD, PF_R | PF_X, 0x1100, 0x40'1100, 0x1000, 0x1000, 4096},
        {PT_LOAD, PF_R, 0x2100, 0x40'2100, 0x300, 0x300, 4096},
        {PT_LOAD, PF_R, 0x2400, 0x40'2400, 0x100, 0x100, 4096},
    };
    made.entry = 0x40'1100;
    const auto program = made::read(made);
    const std::uint8_t rx = elf::readable | elf::executable;
    const std::vector<Range> expected = {
        {0x40'0000, 1, 1, 0, elf::readable},
        {0x40'1000, 1, 1, 0x1000, rx},
        {0x40'2000, 1, 1, 0x2000, rx},
    };
    CHECK(program->ranges == expected);
    const auto file = made.bytes();
    CHECK(std::memcmp(program->image.data(), file.data(), 0x2500) == 0);
    CHECK(program->image[0x2500] == std::byte{0});

    made.segments[2].flags = PF_R | PF_W;
    CHECK(says(refusal(made), "segment 2 and the one before it share the page at 0x402000, which would be writable and executable"));

    // A .bss that ends in a page with bytes of the next segment: the page is from the file, those before it are zeros.
    made.segments = {
        {PT_LOAD, PF_R | PF_X, 0x1000, 0x40'1000, 0x100, 0x100, 4096},
        {PT_LOAD, PF_R | PF_W, 0x2000, 0x40'2000, 0x10, 0x2800, 4096},
        {PT_LOAD, PF_R, 0x2900, 0x40'4900, 0x100, 0x100, 4096},
    };
    made.entry = 0x40'1000;
    const auto mixed = made::read(made);
    const std::uint8_t rw = elf::readable | elf::writable;
    const std::vector<Range> parts = {{0x40'1000, 1, 1, 0, rx}, {0x40'2000, 2, 1, 0x1000, rw}, {0x40'4000, 1, 1, 0x2000, rw}};
    CHECK(mixed->ranges == parts);
    CHECK(mixed->image[0x2000 + 0x8ff] == std::byte{0} && mixed->image[0x2000 + 0x900] == made.bytes()[0x2900]);
    CHECK_EQ(mixed->header_address, 0U);  // in no segment
}

void test_order() {
    MadeElf made;
    made.segments[2].address = 0x40'2000;  // within the text
    CHECK(says(refusal(made), "begins before the end of segment 1 at 0x402800"));
    made = {};
    std::swap(made.segments[1], made.segments[2]);
    CHECK(says(refusal(made), "expected segments in the order of their addresses that do not overlap"));
    made = {};
    made.segments.insert(made.segments.begin() + 1, {PT_LOAD, PF_R | PF_W, 0x3000, 0x30'0000, 0, 0, 4096});  // nothing at all
    CHECK_EQ(refusal(made), std::string());
    made.segments = {{PT_LOAD, PF_R | PF_X, 0, 0x40'0000, 0, 0, 4096}};
    CHECK(says(refusal(made), "nothing to load"));
    made.segments = {{PT_LOAD, PF_R, 0, 0x40'0000, 0x3000, 0x3000, 4096}, {PT_LOAD, PF_R | PF_X, 0, 0x41'0000, 0x3000, 0x3000, 4096}};
    made.entry = 0x41'0000;
    CHECK(says(refusal(made), "its segments have 24576 bytes of the file, which has only 12800"));
}

void test_heads() {
    const auto with = [](std::size_t at, unsigned value) {
        MadeElf made;
        made.afterwards = [=](std::vector<std::byte>& file) { file[at] = static_cast<std::byte>(value); };
        return refusal(made);
    };
    CHECK(says(with(1, 'F'), "no ELF file"));
    CHECK(says(with(EI_CLASS, 3), "ELF class 3"));
    CHECK(says(with(EI_DATA, ELFDATA2MSB), "ELF byte order 2"));
    CHECK(says(with(EI_VERSION, 0), "ELF version"));
    CHECK(says(with(EI_OSABI, ELFOSABI_FREEBSD), "made for operating system 9"));
    CHECK_EQ(with(EI_OSABI, ELFOSABI_LINUX), std::string());
    CHECK(says(with(offsetof(Elf64_Ehdr, e_version), 2), "ELF version 2"));
    CHECK(says(with(offsetof(Elf64_Ehdr, e_type), ET_REL), "an object file has to be linked first"));
    CHECK(says(with(offsetof(Elf64_Ehdr, e_type), ET_CORE), "ELF type 4"));
    CHECK(says(with(offsetof(Elf64_Ehdr, e_machine), EM_RISCV), "machine 243 with 64 bits"));
    CHECK(says(with(offsetof(Elf64_Ehdr, e_machine), EM_386), "machine 3 with 64 bits"));
    CHECK(says(with(offsetof(Elf64_Ehdr, e_ehsize), 52), "e_ehsize is 52"));
    CHECK(says(with(offsetof(Elf64_Ehdr, e_phentsize), 32), "e_phentsize is 32: expected 56"));
    CHECK(says(with(offsetof(Elf64_Ehdr, e_phnum), 0), "e_phnum is 0"));
    CHECK(says(with(offsetof(Elf64_Ehdr, e_phnum) + 1, 255), "expected 1 to 256 program headers"));
    CHECK(says(with(offsetof(Elf64_Ehdr, e_phnum), 255), "cut short: 255 program headers at 0x40"));
    CHECK(says(with(offsetof(Elf64_Ehdr, e_phoff) + 7, 255), "cut short: 3 program headers at 0xff00000000000040"));

    MadeElf arm;
    arm.machine = EM_AARCH64;
    elf::Rules rules;
    rules.machines = elf::bit_of(elf::Machine::x86_64);
    CHECK(says(refusal(arm, rules), "a program for aarch64, which this machine cannot run"));
    rules.machines = elf::any_machine;
    CHECK_EQ(refusal(arm, rules), std::string());
    CHECK(made::read(made::i386(), rules)->machine == elf::Machine::i386);

    const auto file = MadeElf{}.bytes();
    for (std::size_t size = 0; size < file.size(); size += size < 300 ? 1 : 97) {
        const std::string said = refusal(std::span(file).first(size));
        CHECK(said.find("cut short") != std::string::npos || said.find("no ELF file") != std::string::npos || size >= 0x3100);
    }
}

void test_segments() {
    const auto with = [](std::size_t index, const std::function<void(made::MadeSegment&)>& change) {
        MadeElf made;
        change(made.segments[index]);
        return refusal(made);
    };
    CHECK(says(with(1, [](auto& s) { s.file_bytes = s.bytes + 1; }), "expected no more in the file"));
    CHECK(says(with(1, [](auto& s) { s.offset = UINT64_MAX; }), "cut short: segment 1"));
    CHECK(says(with(1, [](auto& s) { s.file_bytes = s.bytes = UINT64_MAX; }), "cut short: segment 1"));
    CHECK(says(with(1, [](auto& s) { s.align = 4097; }), "expected a power of two"));
    CHECK(says(with(1, [](auto& s) { s.flags = PF_R | PF_W | PF_X; }), "is writable and executable"));
    CHECK(says(with(1, [](auto& s) { s.flags = 0x1000'0005; }), "expected read, write, execute"));
    CHECK(says(with(0, [](auto& s) { s.address = 0; }), "segment 0 is at 0x0: expected 0x10000 or above"));
    CHECK(says(with(1, [](auto& s) { s.flags = PF_R; }), "entry 0x401000: expected an address in an executable segment"));
    MadeElf made;
    for (const std::uint64_t entry : {std::uint64_t{0}, std::uint64_t{0x40'0000}, std::uint64_t{0x40'2800}, std::uint64_t{0x40'4000}, UINT64_MAX}) {
        made.entry = entry;
        CHECK(says(refusal(made), "expected an address in an executable segment"));
    }
    made.entry = 0x40'27ff;
    CHECK_EQ(refusal(made), std::string());
    made.segments.push_back({PT_GNU_STACK, PF_R | PF_W | PF_X, 0, 0, 0, 0, 16});
    CHECK(made::read(made)->executable_stack);
}

void test_linkage() {
    MadeElf made;
    made.segments.push_back({PT_INTERP, PF_R, 0x1000, 0x40'1000, 16, 16, 1});
    made.afterwards = [](std::vector<std::byte>& file) { std::memcpy(file.data() + 0x1000, "/lib/ld\x1b.so\0????", 16); };
    CHECK(says(refusal(made), "dynamically linked (by /lib/ld?.so): link it with -static"));

    MadeElf shared;
    shared.type = ET_DYN;
    shared.segments[0].address = 0;
    shared.segments[1].address = 0x1000;
    shared.segments[2].address = 0x4000;
    shared.entry = 0x1000;
    CHECK(made::read(shared)->kind == elf::Kind::position_independent);  // of some other linker, with nothing dynamic about it
    shared.segments.push_back({PT_DYNAMIC, PF_R | PF_W, 0x3000, 0x4000, 48, 48, 8});
    const auto dynamic = [&shared](std::int64_t tag, std::uint64_t value) {
        shared.afterwards = [=](std::vector<std::byte>& file) {
            const std::uint64_t words[6] = {static_cast<std::uint64_t>(DT_DEBUG), 0, static_cast<std::uint64_t>(tag), value, DT_NULL, 0};
            std::memcpy(file.data() + 0x3000, words, sizeof words);
        };
        return refusal(shared);
    };
    CHECK_EQ(dynamic(DT_FLAGS_1, DF_1_PIE), std::string());
    CHECK(says(dynamic(DT_FLAGS_1, DF_1_NOW), "a shared library"));
    CHECK(says(dynamic(DT_NEEDED, 1), "it needs shared libraries"));
    CHECK(says(dynamic(DT_NULL, 0), "a shared library"));
}

void test_tls() {
    MadeElf made;
    made.segments.push_back({PT_TLS, PF_R, 0x3000, 0x40'4000, 0x40, 0x90, 32});
    const auto program = made::read(made);
    CHECK_EQ(program->tls_address, 0x40'4000U);
    CHECK_EQ(program->tls_file_bytes, 0x40U);
    CHECK_EQ(program->tls_bytes, 0x90U);
    CHECK_EQ(program->tls_align, 32U);
    made.segments[3].address = 0x40'6fc1;
    CHECK(says(refusal(made), "(PT_TLS) is at 0x406fc1, which no segment loads"));
    made.segments[3].address = UINT64_MAX - 3;
    CHECK(says(refusal(made), "which no segment loads"));
    made.segments[3].address = 0x40'4000;
    made.segments[3].align = 8192;
    CHECK(says(refusal(made), "aligned to 8192"));
    made.segments[3].align = 8;
    made.segments[3].bytes = UINT64_MAX;
    CHECK(says(refusal(made), "thread-local storage of 18446744073709551615 bytes"));
    made.segments[3].bytes = 0x90;
    made.segments.push_back(made.segments[3]);
    CHECK(says(refusal(made), "segment 4 is the second PT_TLS"));
    // Variables that are all zeros have nothing in the file, and lie behind its end.
    MadeElf zeros;
    zeros.segments.push_back({PT_TLS, PF_R, 0x10'0000, 0x40'4000, 0, 0x16, 8});
    CHECK_EQ(refusal(zeros), std::string());
}

void test_notes() {
    struct Note {
        std::uint32_t name_bytes, desc_bytes, type;
        char name[8];
        std::uint32_t desc;
    };
    MadeElf made;
    made.segments.push_back({PT_NOTE, PF_R, 0x1000, 0x40'1000, 2 * sizeof(Note), 2 * sizeof(Note), 4});
    const auto with = [&made](Note first, Note second) {
        made.afterwards = [=](std::vector<std::byte>& file) {
            std::memcpy(file.data() + 0x1000, &first, sizeof first);
            std::memcpy(file.data() + 0x1000 + sizeof first, &second, sizeof second);
        };
        return made::read(made)->resident_abi;
    };
    const Note other{8, 4, 1, "GNU", 7}, ours{5, 4, 1, "Teal", 1};
    CHECK_EQ(with(other, other), 0U);
    CHECK_EQ(with(other, ours), 1U);
    CHECK_EQ(with(ours, other), 1U);
    CHECK_EQ(with({5, 4, 1, "Tea", 1}, other), 0U);
    CHECK_EQ(with({5, 4, 2, "Teal", 1}, other), 0U);
    CHECK_EQ(with({5, UINT32_MAX, 1, "Teal", 1}, ours), 0U);
    CHECK(!made::read(made)->wants_duckinfo);
    CHECK_EQ(with(other, {5, 4, 2, "Teal", 40}), 0U);
    CHECK(made::read(made)->wants_duckinfo);
    CHECK_EQ(with({UINT32_MAX, UINT32_MAX, 1, "Teal", 1}, ours), 0U);
    CHECK_EQ(with({UINT32_MAX - 2, 4, 1, "Teal", 1}, ours), 0U);
    bool thrown = false;
    try {
        with(other, {5, 4, 1, "Teal", 2});
    } catch (const Error& error) {
        thrown = error.code() == Code::version_mismatch && says(error.what(), "was compiled for DUCK_ABI 2 of duck.h: this Teal knows 1");
    }
    CHECK(thrown);
}

void test_duckinfo() {
    elf::Rules rules;
    rules.duckinfo = true;
    CHECK(made::read(MadeElf{}, rules)->duckinfo);
    CHECK(made::read(made::i386(), rules)->duckinfo);
    MadeElf made;
    made.segments[1].align = 0x20'0000;
    CHECK_EQ(refusal(made, rules), std::string());
    made.segments[1].align = 0x1'0000;
    CHECK(says(refusal(made, rules), "segment 1 has alignment 65536: expected 4096 or 2097152"));
    made = {};
    made.segments.erase(made.segments.begin());
    CHECK(says(refusal(made, rules), "begins at 0x401000: expected 0x400000"));
    MadeElf small = made::i386();
    small.segments[0].address += 0x1000;
    small.segments[1].address += 0x1000;
    CHECK(says(refusal(small, rules), "begins at 0x8049000: expected 0x8048000"));
    MadeElf pie;
    pie.type = ET_DYN;
    CHECK(says(refusal(pie, rules), "DuckInfo programs have a fixed address"));
    MadeElf arm;
    arm.machine = EM_AARCH64;
    rules.machines = elf::any_machine;
    CHECK(says(refusal(arm, rules), "a DuckInfo program for aarch64"));
    MadeElf far;
    far.afterwards = [](std::vector<std::byte>& file) {
        const std::uint64_t offset = 0x1000;
        std::memmove(file.data() + offset, file.data() + sizeof(Elf64_Ehdr), 3 * sizeof(Elf64_Phdr));
        std::memcpy(file.data() + offsetof(Elf64_Ehdr, e_phoff), &offset, sizeof offset);
    };
    CHECK(says(refusal(far, rules), "do not lie in the first page of the file"));
    rules.duckinfo = false;
    CHECK_EQ(made::read(far, rules)->header_address, 0x40'1000U);
}

}  // namespace

int main() {
    test_ordinary();
    test_huge_memory();
    test_shared_pages();
    test_order();
    test_heads();
    test_segments();
    test_linkage();
    test_tls();
    test_notes();
    test_duckinfo();
    return check::summary();
}
