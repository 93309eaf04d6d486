// Theory of operation. This code runs on the program's stack, with the program's thread pointer: no libc call that could set errno, no stack protector,
// no thread-local variable. Core 0 polls the ask line and the order line. When it has an ask it hands it to the other cores
// through a line that is the box's own, runs its part, waits for theirs, and answers. The program may overwrite all of this; then only its own
// session suffers, because whoever reads the region believes nothing.
#include "box/inside/serve.hpp"

#include <duck.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "box/box.hpp"
#include "box/inside/direct.hpp"
#include "box/inside/gate.hpp"
#include "box/inside/inputs.hpp"
#include "box/inside/thread_pointer.hpp"

namespace teal::box {
namespace {

constexpr std::uint64_t page = 4096;
constexpr std::uint64_t longest_nap_s = 10;   // somebody wakes us for whatever there is to do

struct alignas(64) GoLine {
    std::atomic<std::uint64_t> seq{0};
    const void* args = nullptr;
    std::uint64_t bytes = 0;
    std::atomic<std::uint32_t> sleepers{0};
};
struct alignas(64) BackLine {
    std::atomic<std::uint32_t> left{0};
};

GoLine go;
BackLine back;
std::atomic<std::uint32_t> waiting{0};
const duck_program_t* program = nullptr;
std::uint64_t main_thread_pointer = 0;
std::uint64_t idle_ticks = 0;
std::uint64_t args_bytes = 0, log_offset = 0, log_bytes = 0;
std::uint64_t orders_seen = 0;
std::atomic<bool> closing{false};   // relaxed: read between two things to do; an inline program is told from outside
int order_socket = box_socket;
bool served = false, cpu_known = false;
void (*leave)(int) = nullptr;   // of an inline program: where serve() goes instead of back
std::atomic<std::uint32_t> log_lock{0};

ControlPage* control() noexcept { return reinterpret_cast<ControlPage*>(layout::control); }
duck_t* duck() noexcept { return reinterpret_cast<duck_t*>(layout::duck); }

void relax() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("yield");
#endif
}

// Lines that this core is about to write, or read: asked for together, they come in the time of one.
void will_write(const void* line) noexcept {
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" ::"m"(*static_cast<const char*>(line)));
#else
    __builtin_prefetch(line, 1);
#endif
}

template <class Word>
std::uint32_t* low_half(std::atomic<Word>& word) noexcept {
    return reinterpret_cast<std::uint32_t*>(&word);
}
void sleep_on(std::uint32_t* word, std::uint32_t expected, bool own) noexcept {
    timespec nap{static_cast<time_t>(longest_nap_s), 0};
    raw(SYS_futex, reinterpret_cast<long>(word), own ? FUTEX_WAIT_PRIVATE : FUTEX_WAIT, static_cast<long>(expected), reinterpret_cast<long>(&nap));
}
void wake(std::uint32_t* word, bool own) noexcept {
    raw(SYS_futex, reinterpret_cast<long>(word), own ? FUTEX_WAKE_PRIVATE : FUTEX_WAKE, 0x7fffffff);
}

void yield() { raw(SYS_sched_yield); }

void log(const duck_t*, const char* text, std::uint64_t bytes) {
    if (log_bytes == 0 || bytes == 0) return;
    if (bytes > log_bytes) {
        text += bytes - log_bytes;
        bytes = log_bytes;
    }
    while (log_lock.exchange(1, std::memory_order_acquire) != 0) relax();   // SYNC: pairs with the release below
    LogLine& line = control()->log;
    const std::uint64_t at = line.written.load(std::memory_order_relaxed);
    char* ring = reinterpret_cast<char*>(layout::control + log_offset);
    const std::uint64_t start = at & (log_bytes - 1);
    const std::uint64_t first = bytes < log_bytes - start ? bytes : log_bytes - start;
    std::memcpy(ring + start, text, first);
    std::memcpy(ring, text + first, bytes - first);
    std::uint64_t end = at + bytes;
    if (text[bytes - 1] != '\n') ring[end++ & (log_bytes - 1)] = '\n';   // each call is a line
    line.written.store(end, std::memory_order_release);   // SYNC: pairs with the acquire in Session::log()
    log_lock.store(0, std::memory_order_release);   // SYNC: pairs with the exchange above
}

int obey(const OrderMessage& order, int fd) noexcept {
    switch (order.op) {
    case OrderOp::map: return map_ib(order, fd);
    case OrderOp::unmap: unmap_ib(); return 0;
    case OrderOp::forget: return forget_ib(order.id);
    case OrderOp::close: closing.store(true, std::memory_order_relaxed); return 0;
    case OrderOp::wake: return 0;
    }
    return EINVAL;
}

// One order off the socket; false when there is none.
bool take_order() noexcept {
    OrderMessage order{};
    iovec part{&order, sizeof order};
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = space;
    header.msg_controllen = sizeof space;
    const long got = raw(SYS_recvmsg, order_socket, reinterpret_cast<long>(&header), MSG_DONTWAIT);
    if (got == 0) closing.store(true, std::memory_order_relaxed);   // the yard is gone
    if (got != sizeof order || order.magic != message_magic) return false;
    if (order.op == OrderOp::wake) return true;
    int fd = -1;
    if (header.msg_controllen >= CMSG_LEN(sizeof(int))) std::memcpy(&fd, space + CMSG_LEN(0), sizeof fd);
    OrderDoneLine& done = control()->order_done;
    done.status = obey(order, fd);
    if (fd >= 0) raw(SYS_close, fd);
    done.seq.store(order.seq, std::memory_order_release);   // SYNC: pairs with the acquire in Session::order()
    wake(low_half(done.seq), false);
    return true;
}

// What gcc's stack protector and glibc's pointers are mixed with lies there, and has to be the same on all cores.
void take_over_guards(std::uint64_t mine) noexcept {
#if defined(__x86_64__)
    if (main_thread_pointer != 0 && mine != 0)
        std::memcpy(reinterpret_cast<void*>(mine + 0x28), reinterpret_cast<const void*>(main_thread_pointer + 0x28), 16);
#else
    (void)mine;
#endif
}

std::int64_t run_call(const void* args, std::uint64_t bytes) noexcept {
    if (bytes > args_bytes) return -EINVAL;
    const std::uint32_t cores = duck()->cores;
    if (cores > 1) {
        go.args = args;
        go.bytes = bytes;
        back.left.store(cores - 1, std::memory_order_relaxed);
        go.seq.fetch_add(1, std::memory_order_seq_cst);   // SYNC: pairs with the acquire in await_go(); before the look at sleepers
        if (go.sleepers.load(std::memory_order_seq_cst) != 0) wake(low_half(go.seq), true);
    }
    const std::int64_t result = program->call(duck(), args, bytes, 0);
    if (cores > 1)
        for (std::uint32_t round = 1; back.left.load(std::memory_order_acquire) != 0; ++round) {   // SYNC: pairs with fetch_sub in serve_core()
            relax();
            if ((round & 1023) == 0) yield();
        }
    return result;
}

void answer_ask(std::uint64_t seq) noexcept {
    ControlPage* page0 = control();
    AnswerLine& answer = page0->answer;
    __builtin_prefetch(&page0->ask + 1);
    will_write(duck()->ob);
    will_write(&answer);
    const std::uint64_t began = duck_ticks();
    const AskOp op = page0->ask.op;
    const std::uint64_t bytes = page0->ask.bytes;
    std::int64_t result = -ENOSYS;
    if (op == AskOp::call) {
        result = run_call(page0->ask.args, bytes);
    } else if (op == AskOp::once) {
        result = run_once(page0->once.number, page0->ask.args, bytes, run_call);
    } else if (op == AskOp::clear) {
        std::memset(duck()->ob, 0, duck()->ob_bytes);
        result = 0;
    } else if (op == AskOp::map) {
        result = use_ib(bytes);
    }
    answer.result = result;
    answer.began = began;
    answer.done = duck_ticks();
    // SYNC: pairs with the acquire in Caller::look(). An exchange: the look at `sleeps` must not come before it.
    answer.seq.exchange(seq, std::memory_order_seq_cst);
    if (answer.sleeps.load(std::memory_order_relaxed) != 0) wake(low_half(answer.seq), false);
}

bool cpu_can_be_read() noexcept {
#if defined(__x86_64__)
    std::uint32_t a = 0x8000'0001, b = 0, c = 0, d = 0;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    return (d >> 27 & 1) != 0;
#else
    return false;
#endif
}

// Says, and returns, the CPU that this runs on, plus one; 0: not known. Linux keeps its number where rdtscp reads it.
std::uint32_t say_cpu() noexcept {
#if defined(__x86_64__)
    if (!cpu_known) return 0;
    std::uint32_t low, high, number;
    __asm__ volatile("rdtscp" : "=a"(low), "=d"(high), "=c"(number));
    std::atomic<std::uint32_t>& said = control()->answer.cpu;
    const std::uint32_t cpu = (number & 0xfff) + 1;
    if (said.load(std::memory_order_relaxed) != cpu) said.store(cpu, std::memory_order_relaxed);
    return cpu;
#else
    return 0;
#endif
}

bool shares_cpu() noexcept {
    const std::uint32_t cpu = say_cpu();
    return cpu != 0 && cpu == __atomic_load_n(&control()->ask.cpu, __ATOMIC_RELAXED);
}

// Waits until the ask or the order line differs from what was seen last.
void await_work(std::uint64_t asks_seen) noexcept {
    AskLine& ask = control()->ask;
    OrderLine& orders = control()->order;
    const std::uint64_t start = duck_ticks();
    // A caller on this very CPU cannot ask while we look whether it has. Asleep we are woken on another one, if there is one that is idle;
    // polling and giving way in turn would keep both where they are.
    bool in_the_way = shares_cpu();
    for (std::uint32_t round = 1;; ++round) {
        if (ask.seq.load(std::memory_order_acquire) != asks_seen) return;   // SYNC: pairs with the exchange in Caller::submit_in_place()
        if (orders.seq.load(std::memory_order_acquire) != orders_seen) return;   // SYNC: pairs with the release in Session::order()
        relax();
        if (in_the_way) break;
        if ((round & 63) != 0) continue;
        if (duck_ticks() - start > idle_ticks) break;
        if ((round & 1023) == 0) in_the_way = shares_cpu();
    }
    ask.sleeps.store(1, std::memory_order_seq_cst);   // before the looks: whoever writes seq after them sees it
    if (ask.seq.load(std::memory_order_seq_cst) == asks_seen && orders.seq.load(std::memory_order_seq_cst) == orders_seen)
        sleep_on(low_half(ask.seq), static_cast<std::uint32_t>(asks_seen), false);
    ask.sleeps.store(0, std::memory_order_relaxed);
}

// The same with a client elsewhere that calls directly: its packets are answered here. True: something lies on the box's own socket.
bool await_packets(std::uint64_t asks_seen) noexcept {
    AskLine& ask = control()->ask;
    OrderLine& orders = control()->order;
    std::uint64_t start = duck_ticks();
    for (std::uint32_t round = 1;; ++round) {
        const bool came = take_direct(run_call);
        if (ask.seq.load(std::memory_order_acquire) != asks_seen) return false;   // SYNC: pairs with the exchange in Caller::submit_in_place()
        if (orders.seq.load(std::memory_order_acquire) != orders_seen) return false;   // SYNC: pairs with the release in Session::order()
        if (came) {
            start = duck_ticks();
            const std::uint32_t cpu = say_cpu();
            if (cpu == 0 || cpu != direct_cpu()) continue;
            break;   // the client polls on this very CPU
        }
        if ((round & 15) != 0) continue;
        if (duck_ticks() - start > idle_ticks) break;
        if ((round & 127) == 0) yield();   // whoever shall send may be on this CPU
    }
    ask.sleeps.store(2, std::memory_order_seq_cst);   // before the looks: whoever writes seq after them sees it
    if (ask.seq.load(std::memory_order_seq_cst) == asks_seen && orders.seq.load(std::memory_order_seq_cst) == orders_seen) sleep_direct();
    ask.sleeps.store(0, std::memory_order_relaxed);
    return true;
}

void set_state(BoxState state, std::int32_t status) noexcept {
    OrderDoneLine& line = control()->order_done;
    line.status = status;
    line.state.store(static_cast<std::uint32_t>(state), std::memory_order_release);   // SYNC: pairs with the acquire in Yard::open()
    wake(low_half(line.state), false);
}

int gone(int status) {
    if (leave != nullptr) leave(status);
    return status;
}

int serve(const duck_t* given, const duck_program_t* served_program) {
    if (served || given != duck() || served_program == nullptr || served_program->abi != DUCK_ABI || served_program->bytes < sizeof(duck_program_t) ||
        served_program->call == nullptr) {
        set_state(BoxState::refused, EINVAL);
        return served ? 64 : gone(64);
    }
    served = true;
    program = served_program;
    main_thread_pointer = thread_pointer();
    if (program->init != nullptr)
        if (const int status = program->init(duck()); status != 0) {
            set_state(BoxState::refused, status);
            return gone(status);
        }
    set_state(BoxState::ready, 0);
    std::uint64_t asks_seen = 0;
    while (!closing.load(std::memory_order_relaxed)) {
        bool told = false;
        if (has_direct()) told = await_packets(asks_seen);
        else await_work(asks_seen);
        const std::uint64_t orders = control()->order.seq.load(std::memory_order_acquire);   // SYNC: pairs with the release in Session::order()
        if (told || orders != orders_seen) {
            while (take_order()) {
            }
            orders_seen = orders;
        }
        const std::uint64_t asks = control()->ask.seq.load(std::memory_order_acquire);   // SYNC: pairs with the exchange in Caller::submit_in_place()
        if (asks != asks_seen && !closing.load(std::memory_order_relaxed)) {
            answer_ask(asks);
            asks_seen = asks;
        }
    }
    if (program->exit != nullptr) program->exit(duck());
    set_state(BoxState::ended, 0);
    return gone(0);
}

void await_go(std::uint64_t seen) noexcept {
    const std::uint64_t start = duck_ticks();
    const std::uint64_t patience = seen == 0 ? 0 : idle_ticks;
    for (std::uint32_t round = 1;; ++round) {
        if (go.seq.load(std::memory_order_acquire) != seen) return;   // SYNC: pairs with fetch_add in run_call()
        relax();
        if ((round & 63) == 0 && duck_ticks() - start > patience) break;
    }
    go.sleepers.fetch_add(1, std::memory_order_seq_cst);
    while (go.seq.load(std::memory_order_seq_cst) == seen) sleep_on(low_half(go.seq), static_cast<std::uint32_t>(seen), true);
    go.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace

void prepare_duck(const BecomeMessage& m) noexcept {
    gate(SYS_mmap, layout::duck, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    duck_t* mine = duck();
    mine->abi = DUCK_ABI;
    mine->bytes = sizeof(duck_t);
    mine->cores = m.cores;
    mine->ob = reinterpret_cast<void*>(layout::control + m.ob_offset);
    mine->ob_bytes = m.ob_bytes;
    mine->tsc_hz = m.tsc_hz;
    mine->barrier = reinterpret_cast<duck_barrier_line_t*>(layout::duck + page / 2);
    mine->serve = serve;
    mine->yield = yield;
    mine->log = log;
    const std::uint64_t seconds = m.idle_ns / 1'000'000'000u;
    idle_ticks = seconds * m.tsc_hz + (m.idle_ns - seconds * 1'000'000'000u) * (m.tsc_hz / 1000u) / 1'000'000u;
    args_bytes = m.args_bytes;
    log_offset = m.log_offset;
    log_bytes = m.log_bytes;
    cpu_known = cpu_can_be_read();
}

void begin_inline(void (*left)(int), int socket) noexcept {
    leave = left;
    order_socket = socket;
    served = false;
    closing.store(false, std::memory_order_relaxed);
    orders_seen = 0;
}

void stop_inline() noexcept { closing.store(true, std::memory_order_relaxed); }

void end_inline() noexcept {
    forget_ibs();
    raw(SYS_munmap, static_cast<long>(layout::duck), static_cast<long>(page));
}

void touch_duck() noexcept {
    *const_cast<volatile bool*>(&served) = false;
    touch_ibs();
}

std::uint32_t cores_waiting() noexcept { return waiting.load(std::memory_order_acquire); }   // SYNC: pairs with fetch_add in serve_core()

void serve_core(void* argument) noexcept {
    const auto core = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(argument));
    waiting.fetch_add(1, std::memory_order_release);   // SYNC: pairs with the acquire in cores_waiting()
    std::uint64_t seen = 0;
    for (;;) {
        await_go(seen);
        if (seen == 0) take_over_guards(thread_pointer());
        ++seen;
        program->call(duck(), go.args, go.bytes, core);
        back.left.fetch_sub(1, std::memory_order_release);   // SYNC: pairs with the acquire in run_call()
    }
}

}  // namespace teal::box
