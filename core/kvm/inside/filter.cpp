// What a process that runs one guest may ask of Linux: a seccomp filter.
//
// Theory of operation. An allow-list. Whoever breaks out of the guest into this process finds: KVM's ioctls (the descriptors of one
// machine), memory that is never executable, futexes, and the socket of the yard. No files, no network, no other process. What is not
// listed ends the process, except what a C library tries and does without.
#include "box/inside/filter.hpp"

#include <cerrno>
#include <cstddef>
#include <vector>

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace teal::box {
namespace {

constexpr int plain_calls[] = {
    SYS_futex, SYS_exit, SYS_exit_group, SYS_rt_sigreturn, SYS_sched_yield, SYS_brk, SYS_munmap, SYS_madvise, SYS_getpid, SYS_gettid,
    SYS_clock_gettime, SYS_nanosleep, SYS_clock_nanosleep,
    SYS_set_robust_list, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_close, SYS_sched_setaffinity, SYS_sched_getaffinity, SYS_restart_syscall,
    SYS_fstat, SYS_newfstatat, SYS_ftruncate, SYS_memfd_create, SYS_recvmsg, SYS_sendto, SYS_getrandom, SYS_rseq,
    SYS_read, SYS_pread64, SYS_lseek, SYS_write, SYS_timer_create, SYS_timer_settime, SYS_timer_delete, SYS_getrusage,   // judged runs
};
// To be told that there is none of it.
constexpr int absent_calls[] = {SYS_clone3, SYS_openat, SYS_readlink, SYS_prctl};

constexpr std::uint32_t at_number = offsetof(seccomp_data, nr), at_arch = offsetof(seccomp_data, arch);
constexpr std::uint32_t argument(unsigned index) { return static_cast<std::uint32_t>(offsetof(seccomp_data, args)) + 8 * index; }

using Code = std::vector<sock_filter>;

void add(Code& code, std::uint16_t what, std::uint32_t value, std::uint8_t yes = 0, std::uint8_t no = 0) { code.push_back({what, yes, no, value}); }

void give_for(Code& code, int number, std::uint32_t action) {
    add(code, BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 1);
    add(code, BPF_RET | BPF_K, action);
}

// Allowed if an argument has all of `with` and none of `without`.
void allow_bits(Code& code, int number, unsigned index, std::uint32_t with, std::uint32_t without) {
    add(code, BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 6);
    add(code, BPF_LD | BPF_W | BPF_ABS, argument(index));
    add(code, BPF_ALU | BPF_AND | BPF_K, with | without);
    add(code, BPF_JMP | BPF_JEQ | BPF_K, with, 1, 0);
    add(code, BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    add(code, BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    add(code, BPF_LD | BPF_W | BPF_ABS, at_number);
}

// Allowed if an argument has this value.
void allow_value(Code& code, int number, unsigned index, std::uint32_t value) {
    add(code, BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 5);
    add(code, BPF_LD | BPF_W | BPF_ABS, argument(index));
    add(code, BPF_JMP | BPF_JEQ | BPF_K, value, 1, 0);
    add(code, BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    add(code, BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    add(code, BPF_LD | BPF_W | BPF_ABS, at_number);
}

}  // namespace

int install_filter(BoxKind) noexcept {
    Code code;
    add(code, BPF_LD | BPF_W | BPF_ABS, at_arch);
    add(code, BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
    add(code, BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    add(code, BPF_LD | BPF_W | BPF_ABS, at_number);
    for (const int number : plain_calls) give_for(code, number, SECCOMP_RET_ALLOW);
    for (const int number : absent_calls) give_for(code, number, SECCOMP_RET_ERRNO | ENOSYS);
    // KVM's ioctls have 0xae in their second byte; no other descriptor here has any that matters.
    add(code, BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 6);
    add(code, BPF_LD | BPF_W | BPF_ABS, argument(1));
    add(code, BPF_ALU | BPF_AND | BPF_K, 0xff00);
    add(code, BPF_JMP | BPF_JEQ | BPF_K, 0xae00, 1, 0);
    add(code, BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOTTY);
    add(code, BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    add(code, BPF_LD | BPF_W | BPF_ABS, at_number);
    allow_bits(code, SYS_mmap, 2, 0, PROT_EXEC);
    allow_bits(code, SYS_mprotect, 2, 0, PROT_EXEC);
    allow_bits(code, SYS_clone, 0, CLONE_VM | CLONE_THREAD | CLONE_SIGHAND, 0);
    allow_value(code, SYS_fcntl, 1, F_DUPFD_CLOEXEC);
    allow_value(code, SYS_tgkill, 0, static_cast<std::uint32_t>(::getpid()));
    add(code, BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
    return ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0 ? 0 : errno;
}

}  // namespace teal::box
