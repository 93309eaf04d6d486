#include "box/inline.hpp"

#include <cerrno>
#include <csignal>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "box/inside/gate.hpp"
#include "box/inside/serve.hpp"
#include "box/inside/thread_pointer.hpp"
#include "box/yard_state.hpp"
#include "cpu/clock.hpp"
#include "queue/wait.hpp"

namespace teal::box {
namespace {

constexpr std::uint64_t page = 4096, tcb_bytes = 4096;

std::atomic<bool> occupied{false};   // acq_rel: whoever takes it sees what the one before has unmapped
std::mutex current_mutex;            // guards what follows
const Session::State* current = nullptr;   // whose program is in its loop

// The dynamic linker looks for a function at its first call, with what libc keeps for a thread: not with the program's thread pointer.
void bind_early(std::byte* at, std::size_t bytes) noexcept {
    std::memset(at, 0, bytes);
    std::memcpy(at, at + bytes / 2, bytes / 2);
}

// ---- the thread that is lent to the program ---------------------------------------------------------------------------

void* here[5];                       // where it left our code; one at a time
int left_status = 0;
std::uint64_t own_pointer = 0;

void come_back(int status) noexcept {
    left_status = status;
    set_thread_pointer(own_pointer);
    __builtin_longjmp(here, 1);
}

// Returns what serve() ended with.
[[gnu::noinline]] int run_program(std::uint64_t entry, std::uint64_t stack, std::uint64_t pointer) noexcept {
    own_pointer = thread_pointer();
    if (__builtin_setjmp(here) == 0) {
        set_thread_pointer(pointer);
        teal_enter(entry, stack, 0);
    }
    return left_status;
}

// ---- its memory -------------------------------------------------------------------------------------------------------

int protection_of(std::uint32_t bits) noexcept {
    return ((bits & elf::readable) != 0 ? PROT_READ : 0) | ((bits & elf::writable) != 0 ? PROT_WRITE : 0) | ((bits & elf::executable) != 0 ? PROT_EXEC : 0);
}

// Mappings that are taken away together.
class Mappings {
public:
    Mappings() = default;
    ~Mappings() {
        for (const auto& [address, bytes] : all_) ::munmap(reinterpret_cast<void*>(address), bytes);
    }
    Mappings(const Mappings&) = delete;
    Mappings& operator=(const Mappings&) = delete;
    // Where nothing is yet.
    void add(std::uint64_t address, std::uint64_t bytes, int protection, int flags, int fd, const char* what) {
        void* at = ::mmap(reinterpret_cast<void*>(address), bytes, protection, flags | MAP_FIXED_NOREPLACE, fd, 0);
        if (at == MAP_FAILED) {
            const std::string hint = errno == EEXIST ? "; this process has something there: link the program as position-independent (-static-pie)" : "";
            throw Error(Code::invalid_argument, system_message(("an inline program: " + std::string(what)).c_str(), errno) + hint);
        }
        all_.emplace_back(address, bytes);
    }

private:
    std::vector<std::pair<std::uint64_t, std::uint64_t>> all_;
};

void map_image(const Image& image, Mappings& mappings) {
    std::uint64_t first = layout::highest_program, end = 0;
    for (const elf::Step& step : image.steps) {
        if ((step.address | step.bytes | step.offset) % page != 0 || step.bytes == 0 || step.address < layout::lowest_program ||
            step.address >= layout::highest_program || step.bytes > layout::highest_program - step.address)
            throw Error(Code::invalid_argument, "an inline program: a mapping outside of what a program may have");
        first = std::min(first, step.address);
        end = std::max(end, step.address + step.bytes);
    }
    if (first >= end) throw Error(Code::invalid_argument, "an inline program without anything to map");
    mappings.add(first, end - first, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, "its place");
    for (const elf::Step& step : image.steps) {
        void* at = reinterpret_cast<void*>(step.address);
        const int protection = protection_of(step.protection);
        int result = 0;
        switch (step.what) {
        case elf::Step::What::map:
            result = ::mmap(at, step.bytes, protection, MAP_PRIVATE | MAP_FIXED, image.fd, static_cast<off_t>(step.offset)) == MAP_FAILED ? -1 : 0;
            break;
        case elf::Step::What::zeros:
            result = ::mmap(at, step.bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED ? -1 : 0;
            break;
        case elf::Step::What::protect: result = ::mprotect(at, step.bytes, protection); break;
        case elf::Step::What::unmap: result = ::mprotect(at, step.bytes, PROT_NONE); break;
        case elf::Step::What::discard: result = ::madvise(at, step.bytes, MADV_DONTNEED); break;
        }
        if (result != 0) throw Error(Code::quota_exceeded, system_message("an inline program: mapping it", errno));
    }
}

// As a box makes one (inside/become.cpp).
std::uint64_t make_thread_area(const Image& image, Mappings& mappings) {
    const std::uint64_t align = image.tls_align < 64 ? 64 : image.tls_align, asked = image.tls_align == 0 ? 1 : image.tls_align;
    const std::uint64_t variables = (image.tls_bytes + asked - 1) / asked * asked;
    mappings.add(layout::tls, round_up(variables + 2 * align + tcb_bytes, page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, "its thread area");
#if defined(__x86_64__)
    const std::uint64_t pointer = layout::tls + (variables + align - 1) / align * align, first = pointer - variables;
    std::memcpy(reinterpret_cast<void*>(pointer), &pointer, 8);
    std::memcpy(reinterpret_cast<void*>(pointer + 16), &pointer, 8);
#else
    const std::uint64_t pointer = layout::tls, first = pointer + (16 + asked - 1) / asked * asked;
#endif
    if (image.tls_file_bytes != 0 && image.tls_file_bytes <= image.tls_bytes)
        std::memcpy(reinterpret_cast<void*>(first), reinterpret_cast<const void*>(image.tls_address), image.tls_file_bytes);
    return pointer;
}

struct Program {
    std::shared_ptr<Session::State> session;
    Descriptor socket;                  // the program's end
    std::unique_ptr<Mappings> mappings;
    std::uint64_t entry = 0, stack = 0, pointer = 0;
};

// Takes the slot with it, and gives it back when the program has left its loop.
void run(Program program) noexcept {
    const int status = run_program(program.entry, program.stack, program.pointer);
    end_inline();
    program.mappings.reset();
    program.socket.reset();
    {
        const std::lock_guard lock(current_mutex);
        current = nullptr;
    }
    occupied.store(false, std::memory_order_release);
    program.session->finish((status & 0xff) << 8, false);   // as wait4() would say it; a session that was let go has its end already
}

Program place(const SessionOrder& order, std::shared_ptr<Session::State> session) {
    Program program;
    program.session = std::move(session);
    program.mappings = std::make_unique<Mappings>();
    const SessionFacts& facts = program.session->facts;
    program.mappings->add(layout::control, facts.region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, program.session->control.get(), "its session's region");
    map_image(order.image, *program.mappings);
    const std::uint64_t room = round_up(order.stack_bytes, page), end = order.image.stack_end != 0 ? order.image.stack_end : layout::stack_top(0);
    program.mappings->add(end - room, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, "its stack");
    program.stack = end - order.image.stack.size();
    std::memcpy(reinterpret_cast<void*>(program.stack), order.image.stack.data(), order.image.stack.size());
    program.pointer = make_thread_area(order.image, *program.mappings);
    program.entry = order.image.entry;
    return program;
}

void check(const SessionOrder& order) {
    if (order.cores != 1) throw Error(Code::invalid_argument, "an inline program on " + std::to_string(order.cores) + " cores; it has one");
    if (order.image.narrow) throw Error(Code::invalid_argument, "an inline program of 32-bit code; this process is not");
    if (order.direct.fd >= 0) throw Error(Code::invalid_argument, "direct calls of an inline program; it has no socket");
    if (order.image.stack.size() > round_up(order.stack_bytes, page)) throw Error(Code::invalid_argument, "an initial stack that does not fit the stack");
}

void start(Program program) {
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);   // a handler of this process must not run with the program's thread pointer
    try {
        std::thread(run, std::move(program)).detach();
    } catch (...) {
        ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

std::shared_ptr<Session> open_inline(const SessionOrder& order) {
    check(order);
    if (occupied.exchange(true, std::memory_order_acq_rel))
        throw Error(Code::busy, "an inline program runs in this process already, or is still in a call of a session that has ended; there is room for one");
    std::shared_ptr<Session::State> session;
    try {
        if (gate_page == 0 && !make_gate()) throw Error(Code::internal_error, system_message("a page for system calls", errno));
        session = make_session(order);
        session->idle_ns = order.idle_ns;
        int pair[2];
        if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) throw Error(Code::quota_exceeded, system_message("socketpair", errno));
        session->box.socket.reset(pair[0]);
        Descriptor theirs(pair[1]);
        session->fate->box_pid = session->facts.box_pid = static_cast<std::uint32_t>(::getpid());
        session->fate->alive_ns.store(0, std::memory_order_relaxed);   // nobody watches over it
        session->let_go = [state = session.get()] {
            {
                const std::lock_guard lock(current_mutex);
                if (current == state) {   // and not the one after it
                    stop_inline();
                    state->page->order.seq.fetch_add(1, std::memory_order_seq_cst);   // SYNC: pairs with the acquire in await_work(): it looks once more
                    futex_wake(low_word(&state->page->ask.seq), INT32_MAX);
                }
            }
            state->finish(0, false);
        };
        Program program = place(order, session);
        program.socket = std::move(theirs);
        begin_inline(come_back, program.socket.get());
        prepare_duck(become_message(order, session->facts));
        std::byte scratch[64];
        bind_early(scratch, order.cores * sizeof scratch);
        {
            const std::lock_guard lock(current_mutex);
            current = session.get();
        }
        start(std::move(program));
    } catch (...) {
        {
            const std::lock_guard lock(current_mutex);
            current = nullptr;
        }
        occupied.store(false, std::memory_order_release);
        throw;
    }
    await_ready(*session, order.start_limit_ns);
    return std::make_shared<Session>(session);
}

}  // namespace teal::box
