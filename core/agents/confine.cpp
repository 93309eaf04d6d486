#include "agents/confine.hpp"

#include <cerrno>
#include <cstddef>
#include <vector>

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.hpp"

// Older headers lack what newer kernels have.
#ifndef __NR_landlock_create_ruleset
#define __NR_landlock_create_ruleset 444
#define __NR_landlock_restrict_self 446
#endif
#ifndef __NR_futex_waitv
#define __NR_futex_waitv 449
#endif
#ifndef __NR_rseq
#if defined(__x86_64__)
#define __NR_rseq 334
#else
#define __NR_rseq 293
#endif
#endif

namespace teal {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t audit_arch = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t audit_arch = AUDIT_ARCH_AARCH64;
#else
#error "confine: which system calls are there on this machine?"
#endif

constexpr std::uint32_t x32_bit = 0x40000000;  // a second set of numbers on x86-64

// Allowed with any arguments. Each line says who needs it.
constexpr int allowed[] = {
    __NR_read, __NR_write, __NR_readv, __NR_writev, __NR_close, __NR_lseek, __NR_fstat,  // Python's streams
    __NR_recvmsg, __NR_sendmsg, __NR_recvfrom, __NR_sendto, __NR_ppoll,                  // the control socket
    __NR_munmap, __NR_mremap, __NR_madvise, __NR_brk, __NR_membarrier,                   // memory
    __NR_futex, __NR_futex_waitv, __NR_set_robust_list, __NR_get_robust_list, __NR_rseq, // threads and bells
    __NR_sched_yield, __NR_sched_getaffinity, __NR_getcpu, __NR_exit, __NR_exit_group, __NR_restart_syscall,
    __NR_clock_gettime, __NR_clock_getres, __NR_clock_nanosleep, __NR_nanosleep, __NR_gettimeofday,
    __NR_rt_sigaction, __NR_rt_sigprocmask, __NR_rt_sigreturn, __NR_rt_sigpending, __NR_rt_sigtimedwait, __NR_sigaltstack,
    __NR_getpid, __NR_gettid, __NR_getppid, __NR_getuid, __NR_geteuid, __NR_getgid, __NR_getegid, __NR_getrusage, __NR_getrandom,
    __NR_times, __NR_uname, __NR_sysinfo,
#if defined(__x86_64__)
    __NR_poll, __NR_time,
#endif
};

struct LandlockRuleset {  // struct landlock_ruleset_attr, which older headers lack
    std::uint64_t files;
    std::uint64_t network;
    std::uint64_t scopes;
};

int landlock_version() noexcept {
    const long version = syscall(__NR_landlock_create_ruleset, nullptr, 0, 1 /* LANDLOCK_CREATE_RULESET_VERSION */);
    return version > 0 ? static_cast<int>(version) : 0;
}

bool filter_offered() noexcept {
    const std::uint32_t action = SECCOMP_RET_ERRNO;
    return syscall(__NR_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
}

// All that this version of Landlock can forbid, with no exception from it.
bool raise_landlock(int version) noexcept {
    LandlockRuleset rules{};
    unsigned rights = 13;                      // version 1: execute … make_sym
    if (version >= 2) ++rights;                // refer
    if (version >= 3) ++rights;                // truncate
    if (version >= 5) ++rights;                // ioctl_dev
    rules.files = (std::uint64_t{1} << rights) - 1;
    std::size_t size = sizeof rules.files;
    if (version >= 4) rules.network = 3, size += sizeof rules.network;  // bind, connect
    if (version >= 6) rules.scopes = 3, size += sizeof rules.scopes;    // abstract sockets, signals
    const long fd = syscall(__NR_landlock_create_ruleset, &rules, size, 0);
    if (fd < 0) return false;
    const bool done = syscall(__NR_landlock_restrict_self, static_cast<int>(fd), 0) == 0;
    close(static_cast<int>(fd));
    return done;
}

// Landlock and capabilities are a thread's own: the host starts agents with one thread (and libraries told to make none), the
// filter holds for all in any case.
bool drop_capabilities() noexcept {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    const __user_cap_data_struct none[2]{};
    return syscall(__NR_capset, &header, none) == 0;
}

class Filter {
public:
    Filter() {
        load(offsetof(seccomp_data, arch));
        add(BPF_JMP | BPF_JEQ | BPF_K, audit_arch, 1, 0);
        add(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
        load(offsetof(seccomp_data, nr));
        add(BPF_JMP | BPF_JGE | BPF_K, x32_bit, 0, 1);
        refuse();
    }
    void allow(int number) {
        add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 1);
        add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    // Allowed when the low half of the argument has none of these bits.
    void allow_without(int number, unsigned argument, std::uint32_t bits) {
        add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 4);
        load_argument(argument);
        add(BPF_JMP | BPF_JSET | BPF_K, bits, 1, 0);
        add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        refuse();
    }
    // Allowed when the low half of the argument is one of these.
    void allow_with(int number, unsigned argument, const std::vector<std::uint32_t>& values) {
        add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, static_cast<std::uint8_t>(values.size() * 2 + 2));
        load_argument(argument);
        for (const std::uint32_t value : values) {
            add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
            add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        }
        refuse();
    }
    void refuse(std::uint32_t error = EPERM) { add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error); }
    void fail(int number, std::uint32_t error) {
        add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 1);
        refuse(error);
    }
    [[nodiscard]] bool install() {
        const sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
        // Of all threads at once: one that was started before would be a way out.
        return syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
    }

private:
    void add(int code, std::uint32_t k, std::uint8_t yes = 0, std::uint8_t no = 0) {
        code_.push_back({static_cast<std::uint16_t>(code), yes, no, k});
    }
    void load(std::size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset)); }
    void load_argument(unsigned argument) { load(offsetof(seccomp_data, args) + argument * sizeof(std::uint64_t)); }  // little-endian

    std::vector<sock_filter> code_;
};

bool raise_filter() {
    Filter filter;
    for (const int number : allowed) filter.allow(number);
    filter.allow_without(__NR_mmap, 2, PROT_EXEC);
    filter.allow_without(__NR_mprotect, 2, PROT_EXEC);
    filter.allow_with(__NR_fcntl, 1, {F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD, F_DUPFD_CLOEXEC, 1034 /* F_GET_SEALS */});
    filter.allow_with(__NR_tgkill, 0, {static_cast<std::uint32_t>(getpid())});  // abort()
    filter.fail(__NR_clone3, ENOSYS);  // glibc then tries clone, and is refused
    filter.refuse();
    return filter.install();
}

void lacks(Walls& walls, const char* what, const char* why) {
    if (!walls.missing.empty()) walls.missing += "; ";
    walls.missing += what;
    walls.missing += ": ";
    walls.missing += why;
}

}  // namespace

Walls walls_offered() {
    Walls walls;
    walls.filter = filter_offered();
    walls.landlock = landlock_version();
    walls.capabilities = true;
    if (!walls.filter) lacks(walls, "no filter of system calls", "the kernel, or this container, does not offer seccomp filters");
    if (walls.landlock == 0) lacks(walls, "no Landlock", "the kernel is older than 5.13, or started without it");
    return walls;
}

Walls confine() {
    Walls walls = walls_offered();
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) throw Error(Code::internal_error, system_message("confine: no_new_privs", errno));
    walls.capabilities = drop_capabilities();
    if (!walls.capabilities) lacks(walls, "capabilities stay", "the kernel does not let them go");
    if (walls.landlock > 0 && !raise_landlock(walls.landlock)) {
        throw Error(Code::internal_error, system_message("confine: Landlock", errno));
    }
    if (walls.filter && !raise_filter()) throw Error(Code::internal_error, system_message("confine: seccomp", errno));
    return walls;
}

}  // namespace teal
