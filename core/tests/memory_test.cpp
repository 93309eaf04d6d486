// Tests of core/memory: regions and their seals, the arena against a plain reference.
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "memory/arena.hpp"
#include "memory/region.hpp"
#include "tests/check.hpp"

namespace {

using teal::Code;
using teal::Pages;
using teal::Region;
using teal::RegionKind;

int open_descriptors() {
    int count = 0;
    DIR* directory = ::opendir("/proc/self/fd");
    while (::readdir(directory) != nullptr) ++count;
    ::closedir(directory);
    return count;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Runs it; true when it throws this code. `said`: its message.
bool throws(Code code, const std::function<void()>& run, std::string* said = nullptr) {
    try {
        run();
    } catch (const teal::Error& error) {
        if (said != nullptr) *said = error.what();
        return error.code() == code;
    }
    return false;
}

// ---- regions ---------------------------------------------------------------------------------------------------

void test_create() {
    const auto region = Region::create(RegionKind::tensor, 10'000, 77, Pages::small);
    CHECK_EQ(region->size(), 12'288);
    CHECK_EQ(region->page_shift(), 12);
    CHECK_EQ(region->id(), 77);
    CHECK(region->writable());
    const auto* header = reinterpret_cast<const teal::RegionHeader*>(region->base());
    CHECK_EQ(header->magic, teal::region_magic);
    CHECK_EQ(header->abi, teal::abi_version);
    CHECK_EQ(header->size, 12'288);
    CHECK(header->kind == RegionKind::tensor);
    CHECK_EQ(header->owner_pid, ::getpid());
    CHECK_EQ(header->owner_uid, ::getuid());
    CHECK(std::all_of(region->base() + teal::page_bytes, region->base() + region->size(), [](std::byte b) { return b == std::byte{0}; }));
    const int seals = ::fcntl(region->fd(), F_GET_SEALS);
    CHECK_EQ(seals & (F_SEAL_SHRINK | F_SEAL_GROW), F_SEAL_SHRINK | F_SEAL_GROW);
    CHECK_EQ(::ftruncate(region->fd(), 4096), -1);
    CHECK_EQ(::ftruncate(region->fd(), 1 << 20), -1);
    CHECK((::fcntl(region->fd(), F_GETFD) & FD_CLOEXEC) != 0);
    const auto best = Region::create(RegionKind::tensor, 3 << 20, 1, Pages::best);
    CHECK(best->page_shift() == 12 || best->page_shift() == 21);
    CHECK_EQ(best->size() % (std::uint64_t{1} << best->page_shift()), 0);
    try {  // a machine without huge pages says so; one with them gives them
        CHECK_EQ(Region::create(RegionKind::tensor, 4096, 1, Pages::huge)->page_shift(), 21);
    } catch (const teal::Error& error) {
        CHECK(error.code() == Code::quota_exceeded);
        CHECK(contains(error.what(), "nr_hugepages"));
    }
}

void test_create_refuses() {
    CHECK(throws(Code::invalid_argument, [] { Region::create(RegionKind::tensor, 4095, 1, Pages::small); }));
    CHECK(throws(Code::invalid_argument, [] { Region::create(RegionKind::tensor, (std::uint64_t{1} << 46) + 1, 1, Pages::small); }));
    CHECK(throws(Code::invalid_argument, [] { Region::create(RegionKind::tensor, UINT64_MAX, 1, Pages::best); }));
    std::string said;
    CHECK(throws(Code::quota_exceeded, [] { Region::create(RegionKind::tensor, std::uint64_t{1} << 46, 1, Pages::small); }, &said));
    CHECK(contains(said, "70368744177664"));
    CHECK(contains(said, "available"));
    CHECK(teal::available_memory() > 0);
    CHECK(teal::available_memory() < std::uint64_t{1} << 46);
}

void test_adopt() {
    const auto made = Region::create(RegionKind::session, 8192, 5, Pages::small);
    const auto shared = Region::adopt(::dup(made->fd()), RegionKind::session, true);
    CHECK(shared->base() != made->base());
    CHECK_EQ(shared->size(), made->size());
    CHECK_EQ(shared->id(), 5);
    made->base()[5000] = std::byte{42};
    CHECK(shared->base()[5000] == std::byte{42});
    shared->base()[5001] = std::byte{43};
    CHECK(made->base()[5001] == std::byte{43});
    const auto reader = Region::adopt(::dup(made->fd()), RegionKind::session, false);
    CHECK(!reader->writable());
    CHECK(reader->base()[5000] == std::byte{42});
    CHECK_EQ(::mprotect(reader->base(), 4096, PROT_READ), 0);
    shared->close_fd();
    CHECK_EQ(shared->fd(), -1);
    CHECK(shared->base()[5000] == std::byte{42});
}

// Adopts a copy of `fd` that must be refused, and closed nevertheless.
void expect_refused(int fd, RegionKind kind, Code code, const char* word) {
    const int copy = fd < 0 ? fd : ::dup(fd);
    std::string said;
    CHECK(throws(code, [=] { Region::adopt(copy, kind, true); }, &said));
    if (!CHECK(contains(said, word))) std::fprintf(stderr, "    said: %s\n", said.c_str());
    CHECK(copy < 0 || ::fcntl(copy, F_GETFD) == -1);
}

void test_adopt_refuses() {
    const auto made = Region::create(RegionKind::tensor, 8192, 5, Pages::small);
    auto* header = reinterpret_cast<teal::RegionHeader*>(made->base());
    expect_refused(made->fd(), RegionKind::session, Code::invalid_argument, "kind 2, expected 1");
    header->abi = 777;
    expect_refused(made->fd(), RegionKind::tensor, Code::version_mismatch, "ABI 777");
    expect_refused(made->fd(), RegionKind::tensor, Code::version_mismatch, ("speaks ABI " + std::to_string(teal::abi_version)).c_str());
    header->abi = teal::abi_version;
    header->magic ^= 1;
    expect_refused(made->fd(), RegionKind::tensor, Code::invalid_argument, "magic");
    header->magic ^= 1;
    header->size = 1;  // a lie that nobody believes
    CHECK_EQ(Region::adopt(::dup(made->fd()), RegionKind::tensor, true)->size(), 8192);

    const int unsealed = ::memfd_create("teal-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_EQ(::ftruncate(unsealed, 8192), 0);
    expect_refused(unsealed, RegionKind::tensor, Code::invalid_argument, "sealed");
    CHECK_EQ(::fcntl(unsealed, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    expect_refused(unsealed, RegionKind::tensor, Code::invalid_argument, "sealed");
    ::close(unsealed);
    const int tiny = ::memfd_create("teal-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_EQ(::ftruncate(tiny, 4095), 0);
    CHECK_EQ(::fcntl(tiny, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    expect_refused(tiny, RegionKind::tensor, Code::invalid_argument, "header");
    ::close(tiny);
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    expect_refused(null, RegionKind::tensor, Code::invalid_argument, "memfd");
    ::close(null);
    expect_refused(-1, RegionKind::tensor, Code::invalid_argument, "size of a region");
}

void test_sealed_contents() {
    const auto made = Region::create(RegionKind::weights, 8192, 1, Pages::small);
    made->base()[4096] = std::byte{1};
    made->seal_contents();
    CHECK(throws(Code::quota_exceeded, [&] { Region::adopt(::dup(made->fd()), RegionKind::weights, true); }));
    CHECK(Region::adopt(::dup(made->fd()), RegionKind::weights, false)->base()[4096] == std::byte{1});
    CHECK_EQ(::pwrite(made->fd(), "x", 1, 4096), -1);
    CHECK(throws(Code::internal_error, [&] { made->seal_contents(); }));  // sealed against more seals
    made->base()[4096] = std::byte{2};  // the owner's old mapping still writes
    CHECK(Region::adopt(::dup(made->fd()), RegionKind::weights, false)->base()[4096] == std::byte{2});
}

void test_sealed_file() {
    std::vector<std::byte> bytes(100'001);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
    const int fd = teal::sealed_file("model", bytes);
    std::vector<std::byte> read(bytes.size() + 1);
    CHECK_EQ(::pread(fd, read.data(), read.size(), 0), static_cast<ssize_t>(bytes.size()));
    read.pop_back();
    CHECK(read == bytes);
    CHECK_EQ(::pwrite(fd, "x", 1, 0), -1);
    CHECK_EQ(::ftruncate(fd, 0), -1);
    CHECK_EQ(::fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), -1);
    CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    ::close(fd);
    const int empty = teal::sealed_file("empty", {});
    CHECK_EQ(::lseek(empty, 0, SEEK_END), 0);
    CHECK_EQ(::pwrite(empty, "x", 1, 0), -1);
    ::close(empty);
}

// ---- arena -----------------------------------------------------------------------------------------------------

struct Reference {  // what is taken, and nothing clever
    std::uint64_t begin;
    std::uint64_t end;
    std::map<std::uint64_t, std::uint64_t> taken;

    // Could a slice of this size and alignment be had at all?
    [[nodiscard]] bool fits(std::uint64_t size, std::uint64_t align) const {
        std::uint64_t from = begin;
        const auto hole_holds = [&](std::uint64_t to) {
            const std::uint64_t start = teal::round_up(from, align);
            return start <= to && size <= to - start;
        };
        for (const auto& [offset, length] : taken) {
            if (hole_holds(offset)) return true;
            from = offset + length;
        }
        return hole_holds(end);
    }
    [[nodiscard]] bool free_of_others(std::uint64_t offset, std::uint64_t size) const {
        const auto next = taken.lower_bound(offset);
        if (next != taken.end() && next->first < offset + size) return false;
        return next == taken.begin() || std::prev(next)->first + std::prev(next)->second <= offset;
    }
};

void test_arena_random(std::uint32_t seed) {
    std::mt19937 random(seed);
    const std::uint64_t end = 4096 + (1 << 20);
    teal::Arena arena(4096, end);
    Reference reference{4096, end, {}};
    std::uint64_t used = 0;
    std::vector<std::uint64_t> mine;
    int refused = 0;
    for (int step = 0; step < 20'000; ++step) {
        // Fills up, then drains, then fills again: merges of every kind happen.
        const bool filling = step / 2'500 % 2 == 0;
        if (mine.empty() || random() % 100 < (filling ? 65U : 35U)) {
            const std::uint64_t size = random() % 8 == 0 ? random() % 100'000 : random() % 3'000;
            const std::uint64_t align = std::uint64_t{1} << random() % 14;
            const std::uint64_t rounded = teal::round_up(size == 0 ? 1 : size, teal::line_bytes);
            const std::uint64_t aligned = std::max(align, teal::line_bytes);
            const auto offset = arena.allocate(size, align);
            if (!offset) {
                CHECK(!reference.fits(rounded, aligned));
                ++refused;
                continue;
            }
            CHECK_EQ(*offset % aligned, 0);
            CHECK(*offset >= 4096 && teal::within(*offset, rounded, end));
            CHECK(reference.free_of_others(*offset, rounded));
            reference.taken.emplace(*offset, rounded);
            mine.push_back(*offset);
            used += rounded;
        } else {
            std::swap(mine[random() % mine.size()], mine.back());
            arena.release(mine.back());
            used -= reference.taken[mine.back()];
            reference.taken.erase(mine.back());
            mine.pop_back();
        }
        CHECK_EQ(arena.used(), used);
        CHECK_EQ(arena.blocks(), mine.size());
    }
    CHECK(refused > 0);
    for (const std::uint64_t offset : mine) arena.release(offset);
    CHECK_EQ(arena.used(), 0);
    CHECK_EQ(arena.largest_hole(), std::uint64_t{1} << 20);  // everything merged again
}

void test_arena_edges() {
    teal::Arena arena(4000, 8192 + 100);  // begins at the next line
    CHECK_EQ(arena.largest_hole(), 8192 + 100 - 4032);
    CHECK(!arena.allocate(UINT64_MAX, 64));
    CHECK(!arena.allocate(100, 96));  // not a power of two
    CHECK(!arena.allocate(100, std::uint64_t{1} << 63));
    const auto none = arena.allocate(0, 1);
    CHECK(none.has_value());
    CHECK_EQ(arena.used(), 64);
    CHECK(throws(Code::internal_error, [&] { arena.release(*none + 64); }));
    arena.release(*none);
    CHECK(throws(Code::internal_error, [&] { arena.release(*none); }));
    CHECK_EQ(arena.largest_hole(), 8192 + 100 - 4032);
    teal::Arena nothing(4096, 4096);
    CHECK(!nothing.allocate(1, 1));
    CHECK_EQ(nothing.largest_hole(), 0);
    const auto first = arena.allocate(1024, 64);
    const auto second = arena.allocate(1024, 64);
    const auto third = arena.allocate(256, 64);
    const auto wall = arena.allocate(64, 64);
    arena.release(*first);
    arena.release(*third);
    CHECK_EQ(*arena.allocate(200, 64), *third);  // best fit: the small hole, not the first one
    CHECK(second && wall);
}

void test_arena_threads() {
    teal::Arena arena(4096, 1 << 20);
    std::vector<std::thread> threads;
    for (std::uint32_t t = 0; t < 3; ++t) {
        threads.emplace_back([&arena, t] {
            std::mt19937 random(t);
            std::vector<std::uint64_t> mine;
            for (int i = 0; i < 3'000; ++i) {
                if (const auto offset = arena.allocate(random() % 2'000, 256)) mine.push_back(*offset);
                if (mine.size() > 40) {
                    arena.release(mine.front());
                    mine.erase(mine.begin());
                }
            }
            for (const std::uint64_t offset : mine) arena.release(offset);
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(arena.used(), 0);
    CHECK_EQ(arena.largest_hole(), (1 << 20) - 4096);
}

}  // namespace

int main() {
    const int before = open_descriptors();
    test_create();
    test_create_refuses();
    test_adopt();
    test_adopt_refuses();
    test_sealed_contents();
    test_sealed_file();
    CHECK_EQ(open_descriptors(), before);
    for (std::uint32_t seed = 1; seed <= 4; ++seed) test_arena_random(seed);
    test_arena_edges();
    test_arena_threads();
    return teal::check::summary();
}
