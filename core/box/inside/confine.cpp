#include "box/inside/confine.hpp"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <grp.h>

namespace teal::box {
namespace {

// linux/landlock.h, which the headers here may be too old for.
struct LandlockRules {
    std::uint64_t access_fs, access_net, scoped;
};
constexpr std::uint32_t landlock_version_flag = 1;
#if !defined(SYS_landlock_create_ruleset)
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_restrict_self 446
#endif
#if !defined(SECCOMP_GET_ACTION_AVAIL)
#define SECCOMP_GET_ACTION_AVAIL 2
#endif

constexpr std::uint32_t first_user = 2'000'000'000;   // of boxes, where we are root: users that nobody is

// Denies everything that this version knows.
int landlock() noexcept {
    const long version = syscall(SYS_landlock_create_ruleset, nullptr, 0, landlock_version_flag);
    if (version < 0) return -errno;
    static constexpr int fs_bits[] = {0, 13, 14, 15, 15, 16};   // by version
    LandlockRules rules{};
    rules.access_fs = (std::uint64_t{1} << fs_bits[version < 5 ? version : 5]) - 1;
    if (version >= 4) rules.access_net = 3;
    if (version >= 6) rules.scoped = 3;
    const std::size_t size = version >= 6 ? 24 : version >= 4 ? 16 : 8;
    const long fd = syscall(SYS_landlock_create_ruleset, &rules, size, 0);
    if (fd < 0) return -errno;
    const long done = syscall(SYS_landlock_restrict_self, fd, 0);
    const int error = errno;
    close(static_cast<int>(fd));
    return done < 0 ? -error : static_cast<int>(version);
}

int empty_root() noexcept {
    if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return errno;
    const char* const places[] = {"/tmp", "/dev", "/proc"};
    int error = ENOENT;
    for (const char* place : places) {
        if (mount("teal", place, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k,nr_inodes=2,mode=0555") != 0) {
            error = errno;
            continue;
        }
        if (chdir(place) != 0 || syscall(SYS_pivot_root, ".", ".") != 0 || umount2(".", MNT_DETACH) != 0 || chdir("/") != 0) return errno;
        mount(nullptr, "/", nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr);
        return 0;
    }
    return error;
}

void limit(int what, std::uint64_t value) noexcept {
    const rlimit both{value, value};
    setrlimit(static_cast<__rlimit_resource_t>(what), &both);
}

// The process that stays outside: it lives as long as the namespace's init process does.
[[noreturn]] void wait_outside(pid_t inner) noexcept {
    close_range(0, ~0u, 0);
    int status = 0;
    while (waitpid(inner, &status, 0) < 0 && errno == EINTR) {
    }
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

}  // namespace

void enter_namespaces(HelloMessage& hello, bool use_namespaces) noexcept {
    hello.user_namespace = hello.other_namespaces = EOPNOTSUPP;
    if (!use_namespaces) return;
    constexpr int others = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET;
    if (geteuid() == 0 && unshare(others) == 0) {
        hello.user_namespace = -1;
        hello.other_namespaces = 0;
    } else {
        hello.user_namespace = unshare(CLONE_NEWUSER | others) == 0 ? 0 : errno;
        hello.other_namespaces = hello.user_namespace;
    }
    if (hello.other_namespaces != 0) return;
    const pid_t inner = fork();
    if (inner < 0) _exit(70);
    if (inner > 0) wait_outside(inner);
    // The outer process may have been killed before this took hold: then it is not our parent any more.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

void confine_zygote(HelloMessage& hello) noexcept {
    hello.fixed_addresses = (personality(0xffffffff) & ADDR_NO_RANDOMIZE) != 0;
    hello.oom = ENOENT;
    if (const int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC); fd >= 0) {
        hello.oom = write(fd, "1000", 4) == 4 ? 0 : errno;   // rather a box than anybody else
        close(fd);
    }
    hello.root_directory = hello.other_namespaces == 0 ? empty_root() : EOPNOTSUPP;
    hello.no_new_privileges = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 ? 0 : errno;
    hello.landlock = landlock();
    std::uint32_t action = SECCOMP_RET_KILL_PROCESS;
    hello.seccomp = syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0 ? 0 : errno;
    hello.own_user = hello.user_namespace != 0 && geteuid() == 0;
    limit(RLIMIT_CORE, 1);   // 0 would not keep a machine that pipes dumps into a program from doing so; 1 means no dump at all
    limit(RLIMIT_MEMLOCK, 0);
    limit(RLIMIT_MSGQUEUE, 0);
    limit(RLIMIT_SIGPENDING, 64);
}

int confine_box(const HelloMessage& hello, std::uint32_t number) noexcept {
    if (hello.own_user) {
        const std::uint32_t user = first_user + number % 100'000'000;
        if (setgroups(0, nullptr) != 0 || setresgid(user, user, user) != 0 || setresuid(user, user, user) != 0) return errno;
    }
    // After the change of user, which would undo it.
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return errno;
    limit(RLIMIT_NOFILE, 32);
    limit(RLIMIT_NPROC, 4096);   // of threads: they are counted a user, which may have many boxes. Making one takes the gate in any case
    return 0;
}

}  // namespace teal::box
