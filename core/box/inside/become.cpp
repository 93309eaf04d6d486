// Theory of operation. The filter is on already: all that start-up needs goes through the gate (gate.hpp), and what goes wrong is said once on the
// socket, as a stage and an errno. The message comes from the yard, which is trusted; it is checked all the same, because a mistake would
// otherwise map a program over the box. From the moment when the thread pointer is the program's, nothing of libc may be used.
#include "box/inside/become.hpp"

#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <duck.h>

#include <cerrno>
#include <csignal>
#include <ctime>
#include <cstring>
#if __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#endif

#include "box/box.hpp"
#include "box/inside/direct.hpp"
#include "box/inside/gate.hpp"
#include "box/inside/serve.hpp"

namespace teal::box {
namespace {

constexpr std::uint64_t page = 4096;
constexpr std::uint64_t tls_stride = std::uint64_t{1} << 28;
constexpr std::uint64_t tcb_bytes = 4096;   // more than any libc keeps before its variables
constexpr int most_descriptors = 4 + most_buffers;

struct Received {
    BecomeMessage message;
    elf::Step steps[most_steps];
    std::byte stack[most_stack_image];
};

alignas(16) std::byte arrived[sizeof(Received)];
Received order;
int descriptors[most_descriptors];
int descriptor_count = 0;

struct CoreStart {
    std::uint32_t core;
    std::int32_t pin;
} core_starts[most_cores];

[[noreturn]] void give_up(BecomeStage where, long error, std::uint32_t index = 0) noexcept {
    BecameMessage said{};
    said.magic = message_magic;
    said.status = static_cast<std::int32_t>(error < 0 ? -error : error);
    said.where = static_cast<std::uint32_t>(where);
    said.index = index;
    gate(SYS_sendto, box_socket, &said, sizeof said, MSG_NOSIGNAL, 0, 0);
    gate(SYS_exit_group, 70);
    __builtin_trap();
}

// The pages that start-up writes are copies by then, and not shared with the zygote: nothing of that is left for when somebody waits.
void touch_pages() noexcept {
    volatile std::byte here[3 * page];
    for (std::uint64_t i = 0; i < sizeof here; i += page) here[i] = std::byte{};
    for (std::uint64_t i = 0; i < 2 * page; i += page) const_cast<volatile std::byte&>(arrived[i]) = std::byte{};
    volatile auto* kept = reinterpret_cast<volatile std::byte*>(&order);
    for (std::uint64_t i = 0; i < 2 * page; i += page) kept[i] = std::byte{};
    for (std::uint64_t i = 0; i < 2 * page; i += page) kept[offsetof(Received, stack) + i] = std::byte{};
    const_cast<volatile int&>(descriptor_count) = 0;
    touch_duck();
}

void receive() noexcept {
    iovec part{arrived, sizeof arrived};
    alignas(cmsghdr) static char control[CMSG_SPACE(most_descriptors * sizeof(int))];
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    long got = 0;
    do {
        got = gate(SYS_recvmsg, box_socket, &header, 0);
    } while (got == -EINTR);
    if (got == 0) gate(SYS_exit_group, 0);   // the yard is gone
    if (got < static_cast<long>(sizeof(BecomeMessage))) give_up(BecomeStage::message, got < 0 ? got : EBADMSG);
    std::memcpy(&order.message, arrived, sizeof order.message);
    const BecomeMessage& m = order.message;
    if (m.magic != message_magic || m.version != message_version || m.steps > most_steps || m.stack_bytes > most_stack_image || m.cores < 1 ||
        m.cores > most_cores || m.buffers > most_buffers)
        give_up(BecomeStage::message, EBADMSG, 1);
    const std::size_t steps = m.steps * sizeof(elf::Step);
    if (got != static_cast<long>(sizeof m + steps + m.stack_bytes) || (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
        give_up(BecomeStage::message, EBADMSG, 2);
    std::memcpy(order.steps, arrived + sizeof m, steps);
    std::memcpy(order.stack, arrived + sizeof m + steps, m.stack_bytes);
    for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
        if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
        descriptor_count = static_cast<int>((item->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        std::memcpy(descriptors, CMSG_DATA(item), static_cast<std::size_t>(descriptor_count) * sizeof(int));
    }
}

long map_at(std::uint64_t address, std::uint64_t bytes, int protection, int flags, int fd, std::uint64_t offset) noexcept {
    return gate(SYS_mmap, address, bytes, protection, flags, fd, offset);
}

void need(long result, std::uint64_t address, BecomeStage where, std::uint32_t index = 0) noexcept {
    if (result < 0 && result > -4096) give_up(where, result, index);
    if (static_cast<std::uint64_t>(result) != address) give_up(where, EEXIST, index);
}

int protection_of(std::uint32_t bits) noexcept {
    return ((bits & elf::readable) != 0 ? PROT_READ : 0) | ((bits & elf::writable) != 0 ? PROT_WRITE : 0) |
           ((bits & elf::executable) != 0 ? PROT_EXEC : 0);
}

void map_image() noexcept {
    const int fd = descriptor_count > 0 ? descriptors[0] : -1;
    for (std::uint32_t i = 0; i < order.message.steps; ++i) {
        const elf::Step& step = order.steps[i];
        const bool aligned = (step.address | step.bytes | step.offset) % page == 0;
        if (!aligned || step.bytes == 0 || step.address < layout::lowest_program || step.address >= layout::highest_program ||
            step.bytes > layout::highest_program - step.address)
            give_up(BecomeStage::image, EINVAL, i);
        const int protection = protection_of(step.protection);
        if ((protection & PROT_WRITE) != 0 && (protection & PROT_EXEC) != 0) give_up(BecomeStage::image, EPERM, i);
        long result = 0;
        switch (step.what) {
        case elf::Step::What::map:
            need(map_at(step.address, step.bytes, protection, MAP_PRIVATE | MAP_FIXED, fd, step.offset), step.address, BecomeStage::image, i);
            break;
        case elf::Step::What::zeros:
            need(map_at(step.address, step.bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), step.address, BecomeStage::image, i);
            break;
        case elf::Step::What::protect: result = gate(SYS_mprotect, step.address, step.bytes, protection); break;
        case elf::Step::What::unmap: result = gate(SYS_munmap, step.address, step.bytes); break;
        case elf::Step::What::discard: result = gate(SYS_madvise, step.address, step.bytes, MADV_DONTNEED); break;
        default: result = -EINVAL;
        }
        if (result < 0) give_up(BecomeStage::image, result, i);
    }
}

void map_region() noexcept {
    const BecomeMessage& m = order.message;
    if (descriptor_count < 2) give_up(BecomeStage::descriptors, EBADF);
    const int flags = MAP_SHARED | MAP_FIXED_NOREPLACE | (m.region_bytes <= (4u << 20) ? MAP_POPULATE : 0);
    need(map_at(layout::control, m.region_bytes, PROT_READ | PROT_WRITE, flags, descriptors[1], 0), layout::control, BecomeStage::region);
}

// The socket of direct calls, and their keys: while libc's thread pointer is there. Returns the first descriptor that is not needed.
int take_direct_socket() noexcept {
    if (order.message.direct_id == 0) return box_socket + 1;
    if (descriptor_count < 3) give_up(BecomeStage::descriptors, EBADF);
    if (descriptors[2] != direct_socket)   // what is there by now was mapped, and is not needed any more
        if (const long result = gate(SYS_dup3, descriptors[2], direct_socket, 0); result < 0) give_up(BecomeStage::descriptors, result);
    if (const int error = prepare_direct(order.message); error != 0) give_up(BecomeStage::keys, error);
    return direct_socket + 1;
}

// A run's stdin, stdout and stderr, and its buffers.
void take_descriptors() noexcept {
    const BecomeMessage& m = order.message;
    if (descriptor_count < static_cast<int>(4 + m.buffers)) give_up(BecomeStage::descriptors, EBADF);
    for (int i = 0; i < 3; ++i)
        if (const long result = gate(SYS_dup3, descriptors[1 + i], i, 0); result < 0) give_up(BecomeStage::descriptors, result);
    for (std::uint32_t i = 0; i < m.buffers; ++i) {
        const BecomeMessage::Buffer& buffer = m.buffer[i];
        if ((buffer.address | buffer.bytes | buffer.offset) % page != 0 || buffer.address < layout::lowest_program ||
            buffer.address >= layout::highest_program || buffer.bytes > layout::highest_program - buffer.address)
            give_up(BecomeStage::descriptors, EINVAL, i);
        const int protection = PROT_READ | (buffer.writable != 0 ? PROT_WRITE : 0);
        need(map_at(buffer.address, buffer.bytes, protection, MAP_SHARED | MAP_FIXED_NOREPLACE, descriptors[4 + i], buffer.offset), buffer.address,
             BecomeStage::descriptors, i);
    }
}

void set_limit(int what, std::uint64_t value) noexcept {
    const rlimit64 both{value, value};
    if (const long result = gate(SYS_prlimit64, 0, what, &both, 0); result < 0) give_up(BecomeStage::limits, result, static_cast<std::uint32_t>(what));
}

void set_limits() noexcept {
    const BecomeMessage& m = order.message;
    set_limit(RLIMIT_DATA, m.data_limit);
    set_limit(RLIMIT_AS, m.space_limit);
    set_limit(RLIMIT_FSIZE, m.file_limit);
    set_limit(RLIMIT_CPU, m.cpu_limit_s);
}

void map_stacks() noexcept {
    const BecomeMessage& m = order.message;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    for (std::uint32_t core = 0; core < m.cores; ++core) {
        const std::uint64_t end = core == 0 && m.stack_end != 0 ? m.stack_end : layout::stack_top(core);
        // What a run's stack lies in may be a part of its program's own region: that one is mapped by its image.
        if (m.stack_room == 0) break;
        need(map_at(end - m.stack_room, m.stack_room, PROT_READ | PROT_WRITE, flags | MAP_FIXED_NOREPLACE, -1, 0), end - m.stack_room,
             BecomeStage::stack, core);
    }
}

// A thread area: variables as the image has them, then the thread pointer's own words (x86-64), or the other way round (aarch64).
std::uint64_t make_tls(std::uint32_t core) noexcept {
    const BecomeMessage& m = order.message;
    const std::uint64_t align = m.tls_align < 64 ? 64 : m.tls_align;
    const std::uint64_t asked = m.tls_align == 0 ? 1 : m.tls_align;  // linkers count from the thread pointer in steps of what the program asks for
    const std::uint64_t variables = (m.tls_bytes + asked - 1) / asked * asked;
    const std::uint64_t bytes = (variables + 2 * align + tcb_bytes + page - 1) / page * page;
    const std::uint64_t base = layout::tls + core * tls_stride;
    if (bytes > tls_stride || align > tls_stride) give_up(BecomeStage::threads, E2BIG, core);
    need(map_at(base, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0), base, BecomeStage::threads, core);
#if defined(__x86_64__)
    const std::uint64_t pointer = base + (variables + align - 1) / align * align;
    const std::uint64_t first = pointer - variables;
    std::memcpy(reinterpret_cast<void*>(pointer), &pointer, 8);        // x86-64: %fs:0 is the thread pointer itself
    std::memcpy(reinterpret_cast<void*>(pointer + 16), &pointer, 8);   // and glibc's THREAD_SELF
#else
    const std::uint64_t pointer = base;
    const std::uint64_t first = pointer + (16 + asked - 1) / asked * asked;
#endif
    if (m.tls_file_bytes != 0 && m.tls_file_bytes <= m.tls_bytes)
        std::memcpy(reinterpret_cast<void*>(first), reinterpret_cast<const void*>(m.tls_address), m.tls_file_bytes);
    return pointer;
}

void pin_here(std::int32_t cpu) noexcept {
    if (cpu < 0 || cpu >= 1024) return;
    unsigned long mask[1024 / 64] = {};
    mask[cpu / 64] = 1ul << (cpu % 64);
    // A CPU that this process may not use is no reason to refuse: the yard has checked what it was asked for.
    gate(SYS_sched_setaffinity, 0, sizeof mask, mask);
}

void begin_core(void* start) noexcept {
    const auto* mine = static_cast<const CoreStart*>(start);
    pin_here(mine->pin);
    serve_core(reinterpret_cast<void*>(static_cast<std::uintptr_t>(mine->core)));
}

void make_threads() noexcept {
    const BecomeMessage& m = order.message;
    constexpr unsigned long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS;
    for (std::uint32_t core = 1; core < m.cores; ++core) {
        core_starts[core] = {core, m.pin[core]};
        const long result = gate_thread(flags, reinterpret_cast<void*>(layout::stack_top(core)), reinterpret_cast<void*>(make_tls(core)),
                                             begin_core, &core_starts[core]);
        if (result < 0) give_up(BecomeStage::threads, result, core);
    }
    while (cores_waiting() + 1 < m.cores) gate(SYS_sched_yield);
}

void forget_libc() noexcept {
#if __has_include(<sys/rseq.h>) && defined(SYS_rseq) && defined(__x86_64__)
    if (__rseq_size != 0) {
        const auto* area = static_cast<const char*>(__builtin_thread_pointer()) + __rseq_offset;
        gate(SYS_rseq, area, 32, 1 /* unregister */, 0x53053053);
    }
#endif
}

std::uint64_t ns_of(const timeval& time) noexcept {
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(time.tv_usec) * 1000u;
}

// A run's counting begins here. The program has not run yet, so the yard may believe this.
void say_running() noexcept {
    BecameMessage said{};
    said.magic = message_magic;
    rusage used{};
    timespec cpu{};
    gate(SYS_getrusage, RUSAGE_SELF, &used);
    gate(SYS_clock_gettime, CLOCK_PROCESS_CPUTIME_ID, &cpu);
    said.cpu_ns = static_cast<std::uint64_t>(cpu.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(cpu.tv_nsec);
    said.user_ns = ns_of(used.ru_utime);
    said.system_ns = ns_of(used.ru_stime);
    said.voluntary_switches = static_cast<std::uint64_t>(used.ru_nvcsw);
    said.involuntary_switches = static_cast<std::uint64_t>(used.ru_nivcsw);
    said.minor_faults = static_cast<std::uint64_t>(used.ru_minflt);
    said.major_faults = static_cast<std::uint64_t>(used.ru_majflt);
    said.ticks = duck_ticks();
    if (gate(SYS_sendto, box_socket, &said, sizeof said, MSG_NOSIGNAL, 0, 0) < 0) gate(SYS_exit_group, 70);
}

// A write beyond the limit of a run's output is cut, and no reason to die.
void ignore_file_limit() noexcept {
    struct {
        void (*action)(int);
        unsigned long flags;
        void (*restorer)();
        unsigned long mask;
    } ignore{SIG_IGN, 0, nullptr, 0};
    gate(SYS_rt_sigaction, SIGXFSZ, &ignore, 0, 8);
}

void set_thread_pointer(std::uint64_t pointer) noexcept {
#if defined(__x86_64__)
    gate(SYS_arch_prctl, 0x1002 /* ARCH_SET_FS */, pointer);
#else
    __asm__ volatile("msr tpidr_el0, %0" ::"r"(pointer));
#endif
}

}  // namespace

int open_devices() noexcept { return 0; }

void become(BoxKind kind) noexcept {
    touch_pages();
    receive();
    const BecomeMessage& m = order.message;
    if (m.kind != kind) give_up(BecomeStage::message, EBADMSG, 3);
    if (kind == BoxKind::resident) {
        map_region();
    } else {
        take_descriptors();
    }
    map_image();
    map_stacks();
    const std::uint64_t end = m.stack_end != 0 ? m.stack_end : layout::stack_top(0);
    std::memcpy(reinterpret_cast<void*>(end - m.stack_bytes), order.stack, m.stack_bytes);
    std::uint64_t thread_pointer = 0;
    forget_libc();
    if (kind == BoxKind::resident) {
        thread_pointer = make_tls(0);
        prepare_duck(m);
        make_threads();
    }
    pin_here(m.pin[0]);
    set_limits();
    const int first_useless = kind == BoxKind::resident ? take_direct_socket() : box_socket + 1;
    if (const long result = gate(SYS_close_range, first_useless, ~0u, 0); result < 0) give_up(BecomeStage::descriptors, result);
    if (kind != BoxKind::resident) ignore_file_limit();
    say_running();   // the socket stays: a run has no call that could use it
    const std::uint64_t entry = m.entry, stack = end - m.stack_bytes, narrow = m.narrow;
    set_thread_pointer(thread_pointer);
    if (raw(SYS_munmap, static_cast<long>(gate_page), gate_bytes) != 0) __builtin_trap();
    teal_enter(entry, stack, narrow);
}

}  // namespace teal::box
