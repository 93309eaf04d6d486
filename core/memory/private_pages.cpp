#include "memory/private_pages.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>

namespace teal {
namespace {

// The kernel's ABI (linux/fs.h), which the headers here may be too old for.
struct ScanArgument {
    std::uint64_t size;
    std::uint64_t flags;
    std::uint64_t start;
    std::uint64_t end;
    std::uint64_t walk_end;
    std::uint64_t vec;
    std::uint64_t vec_len;
    std::uint64_t max_pages;
    std::uint64_t category_inverted;
    std::uint64_t category_mask;
    std::uint64_t category_anyof_mask;
    std::uint64_t return_mask;
};
static_assert(sizeof(ScanArgument) == 96);
struct PageRegion {
    std::uint64_t start;
    std::uint64_t end;
    std::uint64_t categories;
};
static_assert(sizeof(PageRegion) == 24);

constexpr unsigned long pagemap_scan = _IOWR('f', 16, ScanArgument);
constexpr std::uint64_t page_is_file = 1 << 2;
constexpr std::uint64_t page_is_present = 1 << 3;
constexpr std::uint64_t page_is_swapped = 1 << 4;

// The page table is that of the process that opened the file: a forked child needs a descriptor of its own.
std::atomic<std::uint64_t> opened{0};  // process id << 32 | descriptor + 1

int pagemap() noexcept {
    const auto pid = static_cast<std::uint64_t>(::getpid());
    std::uint64_t seen = opened.load(std::memory_order_relaxed);  // guards no other data
    if (seen >> 32 == pid) return static_cast<int>(seen & 0xffffffff) - 1;
    const int fd = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    const std::uint64_t mine = pid << 32 | static_cast<std::uint64_t>(fd + 1);
    if (opened.compare_exchange_strong(seen, mine, std::memory_order_relaxed)) return fd;
    if (fd >= 0) ::close(fd);  // another thread was faster
    return static_cast<int>(seen & 0xffffffff) - 1;
}

}  // namespace

Written written_privately(std::uint64_t start, std::uint64_t end) noexcept {
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const int fd = pagemap();
    if (fd < 0) return Written::unknown;
    PageRegion found{};
    ScanArgument scan{};
    scan.size = sizeof scan;
    scan.start = start & ~(page - 1);
    scan.end = (end + page - 1) & ~(page - 1);
    scan.vec = reinterpret_cast<std::uint64_t>(&found);
    scan.vec_len = 1;
    scan.max_pages = 1;
    scan.category_inverted = page_is_file;
    scan.category_mask = page_is_file;
    scan.category_anyof_mask = page_is_present | page_is_swapped;
    scan.return_mask = page_is_present | page_is_swapped;
    const int count = ::ioctl(fd, pagemap_scan, &scan);
    return count < 0 ? Written::unknown : count > 0 ? Written::yes : Written::no;
}

}  // namespace teal
