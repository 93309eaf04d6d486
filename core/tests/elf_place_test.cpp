// Places: only pages that differ are written, nothing of a program stays behind, and what boxes are told to map is what they then have.
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"
#include "elf/place.hpp"
#include "made_elf.hpp"

namespace {

using namespace teal;
using elf::LoadReport;
using elf::Place;
using elf::Step;
using made::MadeElf;

std::vector<std::byte> contents(const Place& place) {
    std::vector<std::byte> bytes(place.bytes());
    CHECK_EQ(::pread(place.fd(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    return bytes;
}

// Its image, and zeros behind it.
bool holds(const Place& place, const elf::Program& program) {
    const auto bytes = contents(place);
    if (std::memcmp(bytes.data(), program.image.data(), program.image.size()) != 0) return false;
    for (std::size_t i = program.image.size(); i < bytes.size(); ++i)
        if (bytes[i] != std::byte{0}) return false;
    return true;
}

void test_load() {
    Place place(1 << 16);
    CHECK(place.program() == nullptr && place.steps().empty() && place.steps_since_last().empty());
    const auto first = made::read({});
    LoadReport report = place.load(first);
    CHECK_EQ(report.pages_written, 4U);
    CHECK_EQ(report.pages_same + report.pages_zeroed, 0U);
    CHECK_EQ(report.steps, 4U);
    CHECK(!report.known && holds(place, *first));
    CHECK_EQ(place.generation(), 1U);

    // The same object, and the same file read once more.
    for (const auto& again : {first, made::read({})}) {
        report = place.load(again);
        CHECK(report.known);
        CHECK_EQ(report.pages_written + report.pages_zeroed + report.pages_same, 0U);
        CHECK_EQ(place.generation(), 1U);
        CHECK_EQ(report.steps, 2U);  // what was written of .data and .bss is dropped
    }

    // One byte.
    MadeElf changed;
    changed.afterwards = [](std::vector<std::byte>& file) { file[0x1234] ^= std::byte{1}; };
    const auto second = made::read(changed);
    report = place.load(second);
    CHECK_EQ(report.pages_written, 1U);
    CHECK_EQ(report.pages_same, 3U);
    CHECK(holds(place, *second));
    CHECK_EQ(place.generation(), 2U);

    // A page that becomes zeros, and a program that is shorter.
    changed.afterwards = [](std::vector<std::byte>& file) { std::memset(file.data() + 0x1000, 0, 0x1000); };
    report = place.load(made::read(changed));
    CHECK_EQ(report.pages_zeroed, 1U);
    CHECK_EQ(report.pages_written, 0U);
    changed.segments.pop_back();
    const auto shorter = made::read(changed);
    report = place.load(shorter);
    CHECK_EQ(report.pages_zeroed, 1U);
    CHECK_EQ(report.pages_written, 1U);  // with the headers
    CHECK_EQ(report.pages_same, 2U);
    CHECK(holds(place, *shorter));
}

void test_limits() {
    const auto code_of = [](auto&& what) {
        try {
            what();
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    Place place(0x3fff);  // rounded up: the program fits exactly
    const auto program = made::read({});
    CHECK_EQ(code_of([&] { place.load(program); }), std::string());
    Place small(0x3000);
    CHECK_EQ(code_of([&] { small.load(program); }), std::string("the program has 16384 bytes of file pages: its place has room for 12288"));
    CHECK(small.program() == nullptr);
    CHECK(code_of([&] { place.load(program, 4096); }).starts_with("a program with a fixed address was given bias 4096"));
    CHECK(code_of([&] { place.load(nullptr); }).starts_with("a place was given no program"));
    CHECK(code_of([] { Place none(0); }).starts_with("a place of 0 bytes"));
    CHECK(code_of([] { Place big(UINT64_MAX); }).starts_with("a place of 18446744073709551615 bytes"));
    MadeElf made;
    made.type = ET_DYN;
    const auto moving = made::read(made);
    CHECK_EQ(code_of([&] { place.load(moving, 0x10'0000'0000); }), std::string());
    CHECK(place.steps()[0].address == 0x10'0040'0000);
    for (const std::uint64_t bias : {std::uint64_t{1}, UINT64_MAX & ~std::uint64_t{4095}, std::uint64_t{1} << 47})
        CHECK(code_of([&] { place.load(moving, bias); }).find("expected whole pages, and an end below 2^47") != std::string::npos);
    CHECK_EQ(place.bias(), 0x10'0000'0000U);
}

// Nobody who has the descriptor can change what others will run.
void test_cannot_be_written() {
    Place place(1 << 14);
    place.load(made::read({}));
    CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, place.fd(), 0) == MAP_FAILED);
    CHECK_EQ(errno, EPERM);
    CHECK_EQ(::pwrite(place.fd(), "x", 1, 0), ssize_t{-1});
    CHECK_EQ(errno, EPERM);
    CHECK_EQ(::ftruncate(place.fd(), 0), -1);
    CHECK_EQ(::fallocate(place.fd(), 3 /* punch a hole, keep the size */, 0, 4096), -1);
    CHECK(holds(place, *made::read({})));
}

int as_flags(std::uint32_t protection) {
    int flags = 0;
    if ((protection & elf::readable) != 0) flags |= PROT_READ;
    if ((protection & elf::writable) != 0) flags |= PROT_WRITE;
    if ((protection & elf::executable) != 0) flags |= PROT_EXEC;
    return flags;
}

void follow(const std::vector<Step>& steps, int fd) {
    for (const Step& step : steps) {
        void* at = reinterpret_cast<void*>(step.address);
        const int flags = as_flags(step.protection);
        switch (step.what) {
            case Step::What::map: CHECK(::mmap(at, step.bytes, flags, MAP_PRIVATE | MAP_FIXED, fd, static_cast<off_t>(step.offset)) == at); break;
            case Step::What::zeros: CHECK(::mmap(at, step.bytes, flags, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0) == at); break;
            case Step::What::protect: CHECK_EQ(::mprotect(at, step.bytes, flags), 0); break;
            case Step::What::unmap: CHECK_EQ(::munmap(at, step.bytes), 0); break;
            case Step::What::discard: CHECK_EQ(::madvise(at, step.bytes, MADV_DONTNEED), 0); break;
        }
    }
}

bool has_program(const elf::Program& program, std::uint64_t bias) {
    for (const elf::Range& range : program.ranges) {
        const auto* at = reinterpret_cast<const std::byte*>(range.address + bias);
        const std::uint64_t file_bytes = range.file_pages * elf::page_bytes;
        if (std::memcmp(at, program.image.data() + range.offset, file_bytes) != 0) return false;
        for (std::uint64_t i = file_bytes; i < range.pages * elf::page_bytes; ++i)
            if (at[i] != std::byte{0}) return false;
    }
    return true;
}

bool is_mapped(std::uint64_t address) {
    unsigned char resident;
    return ::mincore(reinterpret_cast<void*>(address), 4096, &resident) == 0;
}

// One program after the other in one address space, by steps_since_last() alone.
void test_steps() {
    constexpr std::uint64_t bias = 0x2000'0000'0000, elsewhere = 0x3000'0000'0000;
    Place place(1 << 16);
    MadeElf made;
    made.type = ET_DYN;
    const auto first = made::read(made);
    place.load(first, bias);
    follow(place.steps_since_last(), place.fd());
    CHECK(has_program(*first, bias));

    const auto scribble = [&](const elf::Program& program, std::uint64_t at) {
        for (const elf::Range& range : program.ranges)
            if ((range.protection & elf::writable) != 0) std::memset(reinterpret_cast<void*>(range.address + at), 0x5a, range.pages * elf::page_bytes);
    };
    scribble(*first, bias);
    CHECK(!has_program(*first, bias));
    CHECK(holds(place, *first));
    place.load(first, bias);
    follow(place.steps_since_last(), place.fd());
    CHECK(has_program(*first, bias));

    // Another content, more .bss, text that becomes data.
    made.segments[2].bytes = 0x4000;
    made.segments.push_back({PT_LOAD, PF_R | PF_W, 0x1000, 0x40'a000, 0x80, 0x80, 4096});
    made.segments[0].flags = PF_R | PF_W;
    made.afterwards = [](std::vector<std::byte>& file) { file[0x1080] = std::byte{0xcc}; };
    const auto second = made::read(made);
    scribble(*first, bias);
    place.load(second, bias);
    follow(place.steps_since_last(), place.fd());
    CHECK(has_program(*second, bias));
    scribble(*second, bias);

    // Elsewhere: nothing stays where it was.
    place.load(second, elsewhere);
    follow(place.steps_since_last(), place.fd());
    CHECK(has_program(*second, elsewhere));
    for (const elf::Range& range : second->ranges) CHECK(!is_mapped(range.address + bias));

    // And what steps() says from nothing is the same.
    place.load(first, elsewhere);
    follow(place.steps_since_last(), place.fd());
    CHECK(has_program(*first, elsewhere));
    CHECK(!is_mapped(0x40'a000 + elsewhere));
    CHECK(place.steps() == elf::steps_for(*first, elsewhere));
}

}  // namespace

int main() {
    test_load();
    test_limits();
    test_cannot_be_written();
    test_steps();
    return check::summary();
}
