#include "box/trace.hpp"

#include <csignal>
#include <cerrno>
#include <elf.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>

namespace teal::box {
namespace {

// linux/fs.h, which the headers here may be too old for.
struct ScanArgument {
    std::uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, category_inverted, category_mask, category_anyof_mask, return_mask;
};
struct PageRegion {
    std::uint64_t start, end, categories;
};
constexpr unsigned long pagemap_scan = _IOWR('f', 16, ScanArgument);
constexpr std::uint64_t page_is_file = 1 << 2, page_is_present = 1 << 3, page_is_swapped = 1 << 4, page_is_zero = 1 << 5;
constexpr std::uint64_t page = 4096;
constexpr std::uint64_t highest = 0x7fff'ffff'f000;

// Pages of [start, end) that lie in buffers of which `wanted` is true.
template <class Wanted>
std::uint64_t pages_in(std::uint64_t start, std::uint64_t end, std::span<const RunOrder::Buffer> buffers, Wanted wanted) noexcept {
    std::uint64_t inside = 0;
    for (const RunOrder::Buffer& buffer : buffers) {
        if (!wanted(buffer)) continue;
        const std::uint64_t a = buffer.address > start ? buffer.address : start;
        const std::uint64_t b = buffer.address + buffer.bytes < end ? buffer.address + buffer.bytes : end;
        if (a < b) inside += b - a;
    }
    return inside / page;
}

}  // namespace

bool read_registers(std::int32_t pid, Registers& out) noexcept {
#if defined(__x86_64__)
    user_regs_struct all{};
    iovec part{&all, sizeof all};
    if (::ptrace(PTRACE_GETREGSET, pid, reinterpret_cast<void*>(NT_PRSTATUS), &part) != 0) return false;
    if (part.iov_len == 17 * 4) {   // 32-bit code: the kernel answers in its own layout
        const auto* narrow = reinterpret_cast<const std::uint32_t*>(&all);
        out = {narrow[12], narrow[11], narrow[0], narrow[15]};
        return true;
    }
    out = {all.rip, all.orig_rax, all.rdi, all.rsp};
    return true;
#elif defined(__aarch64__)
    user_regs_struct all{};
    iovec part{&all, sizeof all};
    if (::ptrace(PTRACE_GETREGSET, pid, reinterpret_cast<void*>(NT_PRSTATUS), &part) != 0) return false;
    out = {all.pc, all.regs[8], all.regs[0], all.sp};
    return true;
#endif
}

void describe_files([[maybe_unused]] std::int32_t pid, [[maybe_unused]] const std::array<int, 3>& files) noexcept {
#if defined(__x86_64__)
    user_regs_struct all{};
    iovec part{&all, sizeof all};
    if (::ptrace(PTRACE_GETREGSET, pid, reinterpret_cast<void*>(NT_PRSTATUS), &part) != 0 || part.iov_len != sizeof all) return;
    std::byte first{1};
    const bool by_path = read_memory_of(pid, all.rsi, {&first, 1}) != 0 || first != std::byte{};
    if (!by_path && all.orig_rax == SYS_newfstatat) {   // the kernel does it; the filter looks at the new number again
        all.orig_rax = SYS_fstat;
        all.rsi = all.rdx;
    } else {
        long result = -ENOSYS;
        if (!by_path && all.rdi < files.size()) {
            struct statx about {};
            result = ::statx(files[all.rdi], "", AT_EMPTY_PATH, static_cast<unsigned>(all.r10), &about) == 0 ? 0 : -errno;
            const iovec here{&about, sizeof about};
            const iovec there{reinterpret_cast<void*>(all.r8), sizeof about};
            if (result == 0 && ::process_vm_writev(pid, &here, 1, &there, 1, 0) != static_cast<ssize_t>(sizeof about)) result = -EFAULT;
        }
        all.orig_rax = ~0ull;
        all.rax = static_cast<unsigned long long>(result);
    }
    ::ptrace(PTRACE_SETREGSET, pid, reinterpret_cast<void*>(NT_PRSTATUS), &part);
#endif
}

std::uint32_t trap_of(int signal, int code) noexcept {
    switch (signal) {
    case SIGSEGV: return code == SI_KERNEL ? 13 : 14;   // general protection; page fault
    case SIGBUS: return code == BUS_ADRALN ? 17 : 14;
    case SIGILL: return 6;
    case SIGTRAP: return code == TRAP_TRACE ? 1 : 3;
    case SIGFPE: return code == FPE_INTDIV || code == FPE_INTOVF ? 0 : code == SI_KERNEL ? 16 : 19;
    case SIGSYS: return 254;
    case SIGXCPU: return 32;
    default: return 253;
    }
}

// One range; false when the kernel cannot say.
static bool scan_range(int pagemap, std::uint64_t start, std::uint64_t end, std::span<const RunOrder::Buffer> shared, PageCount& count) noexcept {
    PageRegion found[128];
    while (start < end) {
        ScanArgument scan{};
        scan.size = sizeof scan;
        scan.start = start;
        scan.end = end;
        scan.vec = reinterpret_cast<std::uint64_t>(found);
        scan.vec_len = sizeof found / sizeof found[0];
        scan.category_anyof_mask = page_is_present | page_is_swapped;
        scan.return_mask = page_is_file | page_is_zero;
        const int regions = ::ioctl(pagemap, pagemap_scan, &scan);
        if (regions < 0) return false;
        for (int i = 0; i < regions; ++i) {
            const PageRegion& region = found[i];
            const std::uint64_t pages = (region.end - region.start) / page;
            count.accessed += pages - pages_in(region.start, region.end, shared, [](const RunOrder::Buffer& buffer) { return !buffer.counted; });
            if ((region.categories & (page_is_file | page_is_zero)) == 0) {
                count.written += pages;
            } else if ((region.categories & page_is_file) != 0) {
                count.written += pages_in(region.start, region.end, shared, [](const RunOrder::Buffer& buffer) { return buffer.writable; });
            }
        }
        if (scan.walk_end <= start) break;
        start = scan.walk_end;
    }
    return true;
}

PageCount count_pages(int pagemap, const std::vector<std::pair<std::uint64_t, std::uint64_t>>& before, std::span<const RunOrder::Buffer> shared) noexcept {
    PageCount count;
    if (pagemap < 0) return count;
    std::uint64_t start = 0;
    bool known = true;
    for (const auto& [first, last] : before) {
        if (first >= highest) break;
        known = known && scan_range(pagemap, start, first, shared, count);
        start = last;
    }
    count.known = known && scan_range(pagemap, start, highest, shared, count);
    return count;
}

int read_memory_of(std::int32_t pid, std::uint64_t address, std::span<std::byte> out) noexcept {
    const iovec here{out.data(), out.size()};
    const iovec there{reinterpret_cast<void*>(address), out.size()};
    const ssize_t got = ::process_vm_readv(pid, &here, 1, &there, 1, 0);
    return got == static_cast<ssize_t>(out.size()) ? 0 : got < 0 ? errno : EIO;
}

}  // namespace teal::box
