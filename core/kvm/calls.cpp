#include "kvm/calls.hpp"

#if defined(__x86_64__)

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <limits>

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "kvm/fuse.hpp"

namespace teal::kvm {
namespace {

constexpr std::uint64_t most_at_once = 0x7fff'f000;   // as in Linux
constexpr std::uint64_t most_vectors = 1024;
constexpr std::int64_t only_process = 1234;           // the reference's process number

std::uint64_t page_up(std::uint64_t value) noexcept { return (value + page_bytes - 1) & ~(page_bytes - 1); }

// Questions whose answer is always the same. False: not one of them.
bool fixed_answer(std::uint64_t number, std::int64_t& result) noexcept {
    switch (number) {
    case SYS_close:
    case SYS_rt_sigaction:
    case SYS_rt_sigprocmask:
    case SYS_sigaltstack:
    case SYS_sched_yield:
    case SYS_madvise:
    case SYS_set_robust_list:
    case SYS_poll:
        result = 0;
        return true;
    case SYS_getpid:
    case SYS_gettid:
    case SYS_set_tid_address:
        result = only_process;
        return true;
    case SYS_getppid:
        result = 1;
        return true;
    case SYS_getuid:
    case SYS_geteuid:
    case SYS_getgid:
    case SYS_getegid:
        result = 1000;
        return true;
    case SYS_ioctl:
        result = -ENOTTY;
        return true;
    case SYS_open:
    case SYS_openat:
    case SYS_access:
    case SYS_readlink:
    case SYS_readlinkat:
    case SYS_stat:
        result = -ENOENT;
        return true;
    default:
        return false;
    }
}

// What a program of a judged run may ask, and a resident one, which has no files at all, may not.
bool for_judged_only(std::uint64_t number) noexcept {
    switch (number) {
    case SYS_read: case SYS_readv: case SYS_open: case SYS_openat: case SYS_access: case SYS_readlink: case SYS_readlinkat:
    case SYS_stat: case SYS_fstat: case SYS_newfstatat: case SYS_statx: case SYS_lseek: case SYS_pread64:
    case SYS_ioctl: case SYS_poll: case SYS_getppid: case SYS_prlimit64:
        return true;
    default:
        return false;
    }
}

}  // namespace

Calls::Calls(Guest& guest, box::Abi abi, const Files& files, std::uint64_t heap, std::uint64_t heap_bytes) noexcept
    : guest_(&guest), abi_(abi), in_(files.in), heap_(heap), heap_end_(heap + heap_bytes), break_(heap), lowest_map_(heap + heap_bytes),
      began_ns_(thread_cpu_ns()) {
    outputs_[0].fd = files.out;
    outputs_[0].limit = files.out_limit;
    outputs_[1].fd = files.err;
    outputs_[1].limit = files.err_limit;
}

End Calls::answer(unsigned core, const Event& event) noexcept {
    core_ = core;
    kvm_regs& registers = guest_->core(core).registers();
    std::uint64_t number = registers.rax;
    if (event.what == Event::What::int80) {              // 32-bit: exit is all there is
        const auto status = static_cast<std::int32_t>(registers.rbx);
        return (number & 0xffff'ffff) == 1 ? End{true, 255, status, 0} : End{true, 254, 0, 0};
    }
    if (number == SYS_exit || (number == SYS_exit_group && abi_ == box::Abi::linux_static)) {
        const auto status = static_cast<std::int32_t>(registers.rdi);
        return {true, 255, abi_ == box::Abi::linux_static ? status & 0xff : status, 0};   // who waits for a process gets eight bits
    }
    const bool kills = number == SYS_tkill || number == SYS_tgkill || number == SYS_kill;
    const bool itself = registers.rdi == static_cast<std::uint64_t>(only_process);
    if ((kills && itself) || (number == SYS_tkill && abi_ == box::Abi::duckinfo)) {
        const auto sent = static_cast<std::int32_t>(number == SYS_tgkill ? registers.rdx : registers.rsi);
        return {true, 253, 0, abi_ == box::Abi::duckinfo ? SIGSYS : sent};
    }
    if (abi_ == box::Abi::duckinfo) {
        return {true, 254, 0, SIGSYS};
    }
    const std::uint64_t arguments[6] = {registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9};
    registers.rax = static_cast<std::uint64_t>(kills ? -EPERM : linux_call(number, arguments));
    guest_->core(core).resume(event.rip, event.rsp, event.rflags);
    return {};
}

std::int64_t Calls::linux_call(std::uint64_t number, const std::uint64_t (&a)[6]) noexcept {
    if (resident_ && for_judged_only(number)) {
        unknown_ += 1;
        return -ENOSYS;
    }
    std::int64_t result = 0;
    if (fixed_answer(number, result)) {
        return result;
    }
    switch (number) {
    case SYS_read:
        return a[0] == 0 ? read_input(a[1], a[2]) : -EBADF;
    case SYS_write:
        return write_output(a[0], a[1], a[2]);
    case SYS_pread64:
        return a[0] == 0 ? read_input_at(a[1], std::min(a[2], most_at_once), a[3]) : -EBADF;
    case SYS_lseek: {
        const off_t at = a[0] == 0 ? ::lseek(in_, static_cast<off_t>(a[1]), static_cast<int>(a[2])) : -1;
        return at >= 0 ? at : a[0] == 0 ? -errno : -ESPIPE;
    }
    case SYS_readv:
        return vector(a[0], a[1], a[2], false);
    case SYS_writev:
        return vector(a[0], a[1], a[2], true);
    case SYS_brk:
        return set_break(a[0]);
    case SYS_mmap:
        return map(a);
    case SYS_munmap:
        return unmap(a[0], a[1]);
    case SYS_mremap:
        return -ENOMEM;
    case SYS_mprotect:
        return (a[2] & PROT_EXEC) != 0 ? -EACCES : 0;   // pages keep what the file said; none becomes code
    default:
        return ask_system(number, a);
    }
}

std::int64_t Calls::ask_system(std::uint64_t number, const std::uint64_t (&a)[6]) noexcept {
    switch (number) {
    case SYS_fstat:
        return describe_file(a[0], a[1]);
    case SYS_newfstatat:
    case SYS_statx: {
        char first = 1;                                  // fstat by another name, if the path is empty
        if (!guest_->read(a[1], &first, 1) || first != 0) return -ENOENT;
        return number == SYS_statx ? describe_more(a[0], a[4]) : describe_file(a[0], a[2]);
    }
    case SYS_clock_gettime:
        return tell_time(a[0], a[1]);
    case SYS_nanosleep:
        return sleep(1, 0, a[0]);
    case SYS_clock_nanosleep:
        return sleep(a[0], a[1], a[2]);
    case SYS_clock_getres: {
        const std::int64_t resolution[2] = {0, 1};
        return a[1] == 0 || guest_->write(a[1], resolution, sizeof resolution) ? 0 : -EFAULT;
    }
    case SYS_arch_prctl:
        return set_base(a[0], a[1]);
    case SYS_uname:
        return name_system(a[0]);
    case SYS_getrandom:
        return random(a[0], a[1]);
    case SYS_futex: {                                    // one thread: nobody to wake, and nobody who would
        const std::uint64_t operation = a[1] & 0x7f;
        return operation == 0 || operation == 9 ? -EAGAIN : 0;
    }
    case SYS_prlimit64: {
        if ((a[0] != 0 && a[0] != static_cast<std::uint64_t>(only_process)) || a[2] != 0) return -EPERM;
        const std::uint64_t limits[2] = {a[1] == 3 ? 8u << 20 : ~std::uint64_t{0}, ~std::uint64_t{0}};
        return a[3] == 0 || guest_->write(a[3], limits, sizeof limits) ? 0 : -EFAULT;
    }
    default:
        unknown_ += 1;
        return -ENOSYS;
    }
}

std::int64_t Calls::read_input(std::uint64_t to, std::uint64_t bytes) noexcept {
    bytes = std::min(bytes, most_at_once);
    std::int64_t total = 0;
    while (bytes > 0) {
        const auto piece = guest_->reach(to, bytes, true);
        if (piece.empty()) {
            return total > 0 ? total : -EFAULT;
        }
        const ssize_t got = in_ < 0 ? 0 : ::read(in_, piece.data(), piece.size());
        if (got < 0) {
            return total > 0 ? total : -EIO;
        }
        total += got;
        if (static_cast<std::size_t>(got) < piece.size()) {
            break;
        }
        to += piece.size();
        bytes -= piece.size();
    }
    return total;
}

std::int64_t Calls::read_input_at(std::uint64_t to, std::uint64_t bytes, std::uint64_t offset) noexcept {
    std::int64_t total = 0;
    while (bytes > 0) {
        const auto piece = guest_->reach(to, bytes, true);
        if (piece.empty()) return total > 0 ? total : -EFAULT;
        const ssize_t got = ::pread(in_, piece.data(), piece.size(), static_cast<off_t>(offset));
        if (got < 0) return total > 0 ? total : -errno;
        total += got;
        if (static_cast<std::size_t>(got) < piece.size()) break;
        to += piece.size();
        offset += piece.size();
        bytes -= piece.size();
    }
    return total;
}

std::int64_t Calls::write_output(std::uint64_t fd, std::uint64_t from, std::uint64_t bytes) noexcept {
    if (fd != 1 && fd != 2) {
        return -EBADF;
    }
    Output& output = outputs_[fd - 1];
    bytes = std::min(bytes, most_at_once);
    std::int64_t total = 0;
    while (bytes > 0) {
        const auto piece = guest_->reach(from, bytes, false);
        if (piece.empty()) {
            return total > 0 ? total : -EFAULT;
        }
        const std::uint64_t room = output.limit - std::min(output.limit, output.bytes);
        const std::uint64_t kept = std::min<std::uint64_t>(piece.size(), room);
        output.truncated = output.truncated || kept < piece.size();
        for (std::uint64_t done = 0; output.fd >= 0 && done < kept;) {
            const ssize_t put = ::write(output.fd, piece.data() + done, kept - done);
            if (put <= 0 && errno != EINTR) return -EIO;
            done += put > 0 ? static_cast<std::uint64_t>(put) : 0;
        }
        output.bytes += kept;
        total += static_cast<std::int64_t>(piece.size());   // what is over the limit is taken and thrown away
        from += piece.size();
        bytes -= piece.size();
    }
    return total;
}

std::int64_t Calls::vector(std::uint64_t fd, std::uint64_t list, std::uint64_t count, bool write) noexcept {
    if (count > most_vectors) {
        return -EINVAL;
    }
    std::int64_t total = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
        std::uint64_t piece[2] = {};
        if (!guest_->read(list + i * sizeof piece, piece, sizeof piece)) {
            return total > 0 ? total : -EFAULT;
        }
        const std::int64_t done = write ? write_output(fd, piece[0], piece[1]) : fd == 0 ? read_input(piece[0], piece[1]) : -EBADF;
        if (done < 0) {
            return total > 0 ? total : done;
        }
        total += done;
        if (static_cast<std::uint64_t>(done) < piece[1]) {
            break;
        }
    }
    return total;
}

void Calls::zero(std::uint64_t from, std::uint64_t to) noexcept {
    while (from < to) {
        const auto piece = guest_->reach(from, to - from, true);
        if (piece.empty()) return;
        std::memset(piece.data(), 0, piece.size());
        from += piece.size();
    }
}

std::int64_t Calls::set_break(std::uint64_t to) noexcept {
    if (to >= heap_ && to <= lowest_map_) {
        if (to < break_) zero(to, break_);
        break_ = to;
    } else if (to > lowest_map_) {
        memory_refused_ = true;
    }
    return static_cast<std::int64_t>(break_);
}

// Where it shall be is a wish only. Standard input is mapped as a copy: nobody writes to it while the program runs.
std::int64_t Calls::map(const std::uint64_t (&a)[6]) noexcept {
    const std::uint64_t bytes = a[1], protection = a[2], flags = a[3];
    const bool input = (flags & MAP_ANONYMOUS) == 0;
    if (input && a[4] != 0) {
        return -EBADF;
    }
    if ((flags & (MAP_GROWSDOWN | MAP_HUGETLB | MAP_LOCKED)) != 0) {
        return -EPERM;
    }
    if ((protection & PROT_EXEC) != 0 || (input && (flags & MAP_SHARED) != 0 && (protection & PROT_WRITE) != 0)) {
        return -EACCES;
    }
    if ((flags & MAP_FIXED) != 0 || (!input && (flags & MAP_SHARED) != 0) || bytes == 0 || (input && a[5] % page_bytes != 0)) {
        return -EINVAL;
    }
    const std::uint64_t size = bytes > heap_end_ - heap_ ? heap_end_ : page_up(bytes);
    if (size > lowest_map_ - page_up(break_)) {
        memory_refused_ = true;
        return -ENOMEM;
    }
    lowest_map_ -= size;
    if (input) {
        if (const std::int64_t got = read_input_at(lowest_map_, bytes, a[5]); got < 0) {
            lowest_map_ += size;
            return got;
        }
    }
    return static_cast<std::int64_t>(lowest_map_);
}

// Room comes back when the map that was made last goes; the others stay as they are until the program ends.
std::int64_t Calls::unmap(std::uint64_t address, std::uint64_t bytes) noexcept {
    if (address % page_bytes != 0 || bytes == 0) {
        return -EINVAL;
    }
    if (address == lowest_map_ && bytes <= heap_end_ - lowest_map_) {
        zero(address, address + page_up(bytes));
        lowest_map_ += page_up(bytes);
    }
    return 0;
}

std::int64_t Calls::describe_file(std::uint64_t fd, std::uint64_t to) noexcept {
    if (fd > 2) {
        return -EBADF;
    }
    const struct stat about = file(fd);
    return guest_->write(to, &about, sizeof about) ? 0 : -EFAULT;
}

std::int64_t Calls::describe_more(std::uint64_t fd, std::uint64_t to) noexcept {
    if (fd > 2) {
        return -EBADF;
    }
    const struct stat about = file(fd);
    struct statx more {};
    more.stx_mask = STATX_TYPE | STATX_MODE | STATX_NLINK | STATX_SIZE;
    more.stx_mode = static_cast<std::uint16_t>(about.st_mode);
    more.stx_nlink = static_cast<std::uint32_t>(about.st_nlink);
    more.stx_size = static_cast<std::uint64_t>(about.st_size);
    more.stx_blksize = static_cast<std::uint32_t>(about.st_blksize);
    return guest_->write(to, &more, sizeof more) ? 0 : -EFAULT;
}

// Standard input is a file, which programs may map when they know how long it is; what they write goes away like into a pipe.
struct stat Calls::file(std::uint64_t fd) const noexcept {
    struct stat about {};
    about.st_mode = S_IFIFO | 0600;
    struct stat input {};
    if (fd == 0 && ::fstat(in_, &input) == 0) {
        about.st_mode = (input.st_mode & S_IFMT) | 0400;
        about.st_size = input.st_size;
    }
    about.st_nlink = 1;
    about.st_blksize = static_cast<blksize_t>(page_bytes);
    return about;
}

// In a judged run every clock says the CPU time used so far, which does not depend on when the run is.
std::int64_t Calls::tell_time(std::uint64_t clock, std::uint64_t to) noexcept {
    const std::uint64_t ns = thread_cpu_ns() - began_ns_;
    timespec time{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    if (resident_ && (clock > 11 || ::clock_gettime(static_cast<clockid_t>(clock), &time) != 0)) {
        return -EINVAL;
    }
    return guest_->write(to, &time, sizeof time) ? 0 : -EFAULT;
}

// As long as it asks for, or until the fuse has blown; nothing is told about the rest.
std::int64_t Calls::sleep(std::uint64_t clock, std::uint64_t flags, std::uint64_t from) noexcept {
    timespec time{};
    if (!guest_->read(from, &time, sizeof time)) {
        return -EFAULT;
    }
    if (flags != 0 || clock > 1 || time.tv_sec < 0 || time.tv_nsec < 0 || time.tv_nsec > 999'999'999) {
        return -EINVAL;
    }
    for (;;) {
        const auto seconds = static_cast<std::uint64_t>(time.tv_sec), rest = static_cast<std::uint64_t>(time.tv_nsec);
        const std::uint64_t asked = seconds < 1'000'000'000 ? seconds * 1'000'000'000 + rest : std::numeric_limits<std::uint64_t>::max();
        const std::uint64_t began = wall_ns();
        const bool done = ::nanosleep(&time, &time) == 0;
        if (fuse_ != nullptr) fuse_->slept(std::min(wall_ns() - began, asked));   // what is more it waited for a CPU
        if (done) return 0;
        if (fuse_ == nullptr || fuse_->wall_over()) return -EINTR;
    }
}

std::int64_t Calls::set_base(std::uint64_t code, std::uint64_t value) noexcept {
    constexpr std::uint64_t set_gs = 0x1001, set_fs = 0x1002, get_fs = 0x1003, get_gs = 0x1004;
    Core& core = guest_->core(core_);
    if (code == get_fs || code == get_gs) {
        const std::uint64_t base = code == get_fs ? core.special().fs.base : core.special().gs.base;
        return guest_->write(value, &base, sizeof base) ? 0 : -EFAULT;
    }
    if (value >> 47 != 0 || (code != set_fs && code != set_gs)) {
        return code == set_fs || code == set_gs ? -EPERM : -EINVAL;
    }
    if (code == set_fs) {
        core.set_fs_base(value);
    } else {
        core.set_gs_base(value);
    }
    return 0;
}

std::int64_t Calls::name_system(std::uint64_t to) noexcept {
    utsname name{};
    std::strcpy(name.sysname, "Linux");
    std::strcpy(name.nodename, "duck");
    std::strcpy(name.release, "6.0.0");                  // new enough for every C library
    std::strcpy(name.version, "teal");
    std::strcpy(name.machine, "x86_64");
    return guest_->write(to, &name, sizeof name) ? 0 : -EFAULT;
}

// The same bytes in every run.
std::int64_t Calls::random(std::uint64_t to, std::uint64_t bytes) noexcept {
    bytes = std::min<std::uint64_t>(bytes, 256);
    for (std::uint64_t i = 0; i < bytes; ++i) {
        random_ ^= random_ << 13;
        random_ ^= random_ >> 7;
        random_ ^= random_ << 17;
        const auto byte = static_cast<std::uint8_t>(random_);
        if (!guest_->write(to + i, &byte, 1)) return -EFAULT;
    }
    return static_cast<std::int64_t>(bytes);
}

}  // namespace teal::kvm

#endif
