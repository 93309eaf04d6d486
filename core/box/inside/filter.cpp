// Theory of operation. An allow-list: a call that is not on it fails with ENOSYS, as on a kernel that does not have it (programs with a libc
// try things and do without), and in a DuckInfo run it ends the program. Calls that need no look at their arguments come first, so that the kernel
// can remember the answer and does not run the filter for them; then those with a look at one argument; then the gate (gate.hpp).
//
// What the looks refuse: executable memory (mmap, mprotect), shared anonymous and downward growing memory and huge pages (their limits are not the box's),
// mappings that move (mremap), advice about pages that others have too (madvise), signals to anybody else, messages from anywhere but the
// box's own sockets. Of the one that is connected to a client elsewhere exactly two calls may be made, and they come first of all, because
// they are made for each of its calls: recvfrom() and sendto() without an address and without any flag but MSG_DONTWAIT.
#include "box/inside/filter.hpp"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "box/inside/gate.hpp"

namespace teal::box {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t native_arch = AUDIT_ARCH_X86_64;
#else
constexpr std::uint32_t native_arch = AUDIT_ARCH_AARCH64;
#endif

constexpr int plain_calls[] = {
    SYS_futex, SYS_exit, SYS_exit_group, SYS_rt_sigreturn, SYS_sched_yield, SYS_brk, SYS_munmap, SYS_getpid, SYS_gettid,
    SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday, SYS_nanosleep, SYS_clock_nanosleep,
    SYS_set_tid_address, SYS_set_robust_list, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_sigaltstack, SYS_getrandom, SYS_close, SYS_uname,
    SYS_sched_getaffinity, SYS_getcpu, SYS_restart_syscall,
#if defined(SYS_rseq)
    SYS_rseq,
#endif
#if defined(SYS_time)
    SYS_time,
#endif
};
// By number in the i386 table: what a static 32-bit program of a judged run asks for.
constexpr int narrow_calls[] = {1 /* exit */, 252 /* exit_group */, 45 /* brk */, 91 /* munmap */, 243 /* set_thread_area */, 258 /* set_tid_address */,
    173 /* rt_sigreturn */, 174 /* rt_sigaction */, 175 /* rt_sigprocmask */, 20 /* getpid */, 224 /* gettid */, 265 /* clock_gettime */,
    403 /* clock_gettime64 */, 78 /* gettimeofday */, 13 /* time */, 122 /* uname */, 355 /* getrandom */, 311 /* set_robust_list */,
    386 /* rseq */, 168 /* poll */};
constexpr int narrow_read[] = {3 /* read */, 145 /* readv */, 19 /* lseek */, 140 /* _llseek */, 180 /* pread64 */};
constexpr int narrow_write[] = {4 /* write */, 146 /* writev */};
constexpr int narrow_mmap2 = 192, narrow_mprotect = 125, narrow_fstat64 = 197, narrow_madvise = 219;

constexpr std::uint32_t at_number = offsetof(seccomp_data, nr);
constexpr std::uint32_t at_arch = offsetof(seccomp_data, arch);
constexpr std::uint32_t at_ip = offsetof(seccomp_data, instruction_pointer);
constexpr std::uint32_t high(int argument) { return static_cast<std::uint32_t>(offsetof(seccomp_data, args)) + 8u * static_cast<std::uint32_t>(argument) + 4u; }
constexpr std::uint32_t low(int argument) { return static_cast<std::uint32_t>(offsetof(seccomp_data, args)) + 8u * static_cast<std::uint32_t>(argument); }

class Assembler {
public:
    void load(std::uint32_t offset) noexcept { add(BPF_LD | BPF_W | BPF_ABS, offset, 0, 0); }
    void give(std::uint32_t action) noexcept { add(BPF_RET | BPF_K, action, 0, 0); }
    void allow_number(int number) noexcept {
        add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 1);
        give(SECCOMP_RET_ALLOW);
    }
    // A block for one call: entered with its number loaded, jumped over otherwise; the number is loaded again after it.
    std::size_t begin_call(int number) noexcept {
        add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 0);
        return count_ - 1;
    }
    void end_call(std::size_t at) noexcept { code_[at].jf = static_cast<std::uint8_t>(count_ - at - 1); }
    // Leaves the block with `action` if the low half of an argument has any of / is not / is above …
    void refuse_bits(int argument, std::uint32_t bits, std::uint32_t action) noexcept {
        load(low(argument));
        add(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1);
        give(action);
    }
    void refuse_all_bits(int argument, std::uint32_t bits, std::uint32_t action) noexcept {
        load(low(argument));
        add(BPF_ALU | BPF_AND | BPF_K, bits, 0, 0);
        add(BPF_JMP | BPF_JEQ | BPF_K, bits, 0, 1);
        give(action);
    }
    void refuse_unless(int argument, std::uint32_t value, std::uint32_t action) noexcept {
        load(low(argument));
        add(BPF_JMP | BPF_JEQ | BPF_K, value, 1, 0);
        give(action);
    }
    void refuse_value(int argument, std::uint32_t value, std::uint32_t action) noexcept {
        load(low(argument));
        add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
        give(action);
    }
    void refuse_unless_within(int argument, std::uint32_t least, std::uint32_t most, std::uint32_t action) noexcept {
        load(low(argument));
        add(BPF_JMP | BPF_JGE | BPF_K, least, 0, 1);
        add(BPF_JMP | BPF_JGT | BPF_K, most, 0, 1);
        give(action);
    }
    void add(std::uint16_t code, std::uint32_t k, std::uint8_t jt, std::uint8_t jf) noexcept {
        if (count_ < sizeof code_ / sizeof code_[0]) code_[count_] = {code, jt, jf, k};
        ++count_;
    }
    [[nodiscard]] std::size_t count() const noexcept { return count_; }
    [[nodiscard]] sock_filter* code() noexcept { return code_; }
    [[nodiscard]] bool fits() const noexcept { return count_ <= sizeof code_ / sizeof code_[0]; }
    sock_filter& at(std::size_t index) noexcept { return code_[index]; }

private:
    sock_filter code_[512] = {};
    std::size_t count_ = 0;
};

constexpr std::uint32_t deny = SECCOMP_RET_ERRNO | EPERM;
constexpr std::uint32_t unknown = SECCOMP_RET_ERRNO | ENOSYS;

// Calls from the gate are allowed, whatever they are.
void allow_gate(Assembler& a) noexcept {
    const std::uint64_t gate_at = gate_page;
    a.load(at_ip + 4);
    a.add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(gate_at >> 32), 0, 4);
    a.load(at_ip);
    a.add(BPF_JMP | BPF_JGE | BPF_K, static_cast<std::uint32_t>(gate_at), 0, 2);
    a.add(BPF_JMP | BPF_JGE | BPF_K, static_cast<std::uint32_t>(gate_at + gate_bytes), 1, 0);
    a.give(SECCOMP_RET_ALLOW);
}

void memory_calls(Assembler& a, int map, int protect, bool files) noexcept {
    std::size_t block = a.begin_call(map);
    // The gate maps program pages: its calls must pass, so a refusal here goes on to the gate's own look.
    a.refuse_bits(2, PROT_EXEC, deny);
    a.refuse_bits(3, MAP_GROWSDOWN | MAP_HUGETLB | MAP_LOCKED, deny);
    a.refuse_all_bits(3, MAP_SHARED | MAP_ANONYMOUS, deny);
    if (!files) a.refuse_all_bits(3, MAP_ANONYMOUS, SECCOMP_RET_ALLOW);   // no descriptors to map but stdin
    if (!files) a.refuse_unless(4, 0, deny);
    a.give(SECCOMP_RET_ALLOW);
    a.end_call(block);
    block = a.begin_call(protect);
    a.refuse_bits(2, PROT_EXEC, deny);
    a.give(SECCOMP_RET_ALLOW);
    a.end_call(block);
}

// What says how the box's own memory will be used. Not what takes pages of files away, merges them with those of others or pushes them out of
// memory: input buffers have the same pages in all sessions.
void advice(Assembler& a, int number) noexcept {
    const std::size_t block = a.begin_call(number);
    a.refuse_unless_within(2, 0, 23 /* MADV_POPULATE_WRITE */, deny);
    for (const std::uint32_t refused : {9u /* REMOVE */, 12u /* MERGEABLE */, 20u /* COLD */, 21u /* PAGEOUT */}) a.refuse_value(2, refused, deny);
    a.give(SECCOMP_RET_ALLOW);
    a.end_call(block);
}

void signals_to_self(Assembler& a) noexcept {
    const auto self = static_cast<std::uint32_t>(getpid());
    for (const int number : {static_cast<int>(SYS_tgkill), static_cast<int>(SYS_tkill), static_cast<int>(SYS_kill)}) {
        const std::size_t block = a.begin_call(number);
        a.refuse_unless(0, self, deny);
        a.give(SECCOMP_RET_ALLOW);
        a.end_call(block);
    }
}

void one_descriptor(Assembler& a, int number, std::uint32_t least, std::uint32_t most) noexcept {
    const std::size_t block = a.begin_call(number);
    a.refuse_unless_within(0, least, most, SECCOMP_RET_ERRNO | EBADF);
    a.give(SECCOMP_RET_ALLOW);
    a.end_call(block);
}

// Where it does not match, the search goes on: start-up makes such calls from the gate.
void packets(Assembler& a) noexcept {
    for (const int number : {static_cast<int>(SYS_recvfrom), static_cast<int>(SYS_sendto)}) {
        const std::size_t block = a.begin_call(number);
        const std::uint32_t wanted[][2] = {{low(0), direct_socket}, {low(3), MSG_DONTWAIT}, {low(4), 0}, {high(4), 0}, {low(5), 0}, {high(5), 0}};
        constexpr std::uint8_t each = 2, checks = 6;
        for (std::uint8_t i = 0; i < checks; ++i) {
            a.load(wanted[i][0]);
            a.add(BPF_JMP | BPF_JEQ | BPF_K, wanted[i][1], 0, static_cast<std::uint8_t>((checks - 1 - i) * each + 1));
        }
        a.give(SECCOMP_RET_ALLOW);
        a.load(at_number);
        a.end_call(block);
    }
}

// fstat() as C libraries make it (glibc 2.33 to 2.38, Zig): with a path, which no filter can read. The tracer of the run looks at it (describe_files()).
[[maybe_unused]] void described(Assembler& a, int number, int flags) noexcept {
    const std::size_t block = a.begin_call(number);
    a.load(low(flags));
    a.add(BPF_JMP | BPF_JSET | BPF_K, AT_EMPTY_PATH, 1, 0);
    a.give(unknown);
    a.refuse_unless_within(0, 0, 2, SECCOMP_RET_ERRNO | EBADF);
    a.give(SECCOMP_RET_TRACE);
    a.end_call(block);
}

void looks(Assembler& a, BoxKind kind) noexcept {
    memory_calls(a, SYS_mmap, SYS_mprotect, kind == BoxKind::resident);
    std::size_t block = a.begin_call(SYS_mremap);
    a.refuse_unless(3, 0, deny);
    a.give(SECCOMP_RET_ALLOW);
    a.end_call(block);
    advice(a, SYS_madvise);
    signals_to_self(a);
#if defined(SYS_arch_prctl)
    block = a.begin_call(SYS_arch_prctl);   // ARCH_SET_GS … ARCH_GET_GS, ARCH_GET_XCOMP_SUPP … ARCH_REQ_XCOMP_PERM
    a.load(low(0));
    a.add(BPF_JMP | BPF_JGE | BPF_K, 0x1001, 0, 4);
    a.add(BPF_JMP | BPF_JGT | BPF_K, 0x1004, 0, 2);
    a.add(BPF_JMP | BPF_JGE | BPF_K, 0x1021, 0, 2);
    a.add(BPF_JMP | BPF_JGT | BPF_K, 0x1023, 1, 0);
    a.give(SECCOMP_RET_ALLOW);
    a.give(deny);
    a.end_call(block);
#endif
    if (kind == BoxKind::resident) {
        one_descriptor(a, SYS_recvmsg, box_socket, box_socket);
        block = a.begin_call(SYS_ppoll);   // of its sockets, while there is nothing to do: it has none but those
        a.refuse_unless(1, 2, unknown);
        a.give(SECCOMP_RET_ALLOW);
        a.end_call(block);
    } else {
        // Programs in Rust look first whether the three descriptors are open, and abort if they cannot.
#if defined(SYS_poll)
        a.allow_number(SYS_poll);
#endif
        a.allow_number(SYS_ppoll);
        one_descriptor(a, SYS_read, 0, 0);
        one_descriptor(a, SYS_readv, 0, 0);
        one_descriptor(a, SYS_lseek, 0, 0);
        one_descriptor(a, SYS_pread64, 0, 0);
        one_descriptor(a, SYS_preadv, 0, 0);
        one_descriptor(a, SYS_fstat, 0, 2);
#if defined(__x86_64__)
        described(a, SYS_newfstatat, 3);
        described(a, SYS_statx, 2);
#endif
    }
    one_descriptor(a, SYS_write, 1, 2);
    one_descriptor(a, SYS_writev, 1, 2);
}

[[maybe_unused]] void narrow(Assembler& a, BoxKind kind) noexcept {   // i386, on x86-64 only
    a.load(at_number);
    if (kind == BoxKind::duckinfo_run) {
        for (const int number : {1, 243}) a.allow_number(number);
        a.give(SECCOMP_RET_KILL_PROCESS);
        return;
    }
    for (const int number : narrow_calls) a.allow_number(number);
    memory_calls(a, narrow_mmap2, narrow_mprotect, false);
    advice(a, narrow_madvise);
    for (const int number : narrow_read) one_descriptor(a, number, 0, 0);
    for (const int number : narrow_write) one_descriptor(a, number, 1, 2);
    one_descriptor(a, narrow_fstat64, 0, 2);
    a.give(unknown);
}

void native(Assembler& a, BoxKind kind) noexcept {
    a.load(at_number);
    if (kind == BoxKind::duckinfo_run) {
        a.allow_number(SYS_exit);
        // What start-up does after the gate is gone: one munmap, of the gate's page itself.
        const std::size_t block = a.begin_call(SYS_munmap);
        a.refuse_unless(0, static_cast<std::uint32_t>(gate_page), SECCOMP_RET_KILL_PROCESS);
        a.give(SECCOMP_RET_ALLOW);
        a.end_call(block);
        allow_gate(a);
        a.give(SECCOMP_RET_KILL_PROCESS);
        return;
    }
    if (kind == BoxKind::resident) packets(a);
    for (const int number : plain_calls) a.allow_number(number);
    allow_gate(a);
    a.load(at_number);
    looks(a, kind);
    a.give(unknown);
}

}  // namespace

int install_filter(BoxKind kind) noexcept {
    static Assembler a;
    a = Assembler{};
    a.load(at_arch);
    a.add(BPF_JMP | BPF_JEQ | BPF_K, native_arch, 1, 0);
    a.add(BPF_JMP | BPF_JA, 0, 0, 0);   // a conditional jump would not reach that far
    const std::size_t other_arch = a.count() - 1;
    native(a, kind);
    a.at(other_arch).k = static_cast<std::uint32_t>(a.count() - other_arch - 1);
#if defined(__x86_64__)
    if (kind != BoxKind::resident) {
        a.load(at_arch);
        a.add(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_I386, 1, 0);
        a.give(SECCOMP_RET_KILL_PROCESS);
        narrow(a, kind);
    }
#endif
    a.give(SECCOMP_RET_KILL_PROCESS);
    if (!a.fits()) return E2BIG;
    sock_fprog program{static_cast<unsigned short>(a.count()), a.code()};
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0) return errno;
    return 0;
}

}  // namespace teal::box
