// The loop of a resident program in a guest: what duck->serve() is there.
//
// Theory of operation. As core/box/inside/serve.cpp, which see; here without any library, and with LoopCall instead of Linux. Linked to one
// address as a flat file without data: all state is in the LoopState page. Whatever is wrong with what it reads harms its own session only.
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include <duck.h>

#include "box/control.hpp"
#include "kvm/serve_page.hpp"

namespace {

using namespace teal;
using kvm::LoopCall;
using kvm::LoopState;

constexpr std::uint64_t control_at = 0x6000'0000'0000;   // box::layout::control, duck: checked where they are filled
constexpr std::uint64_t duck_at = 0x6fff'0000'0000;

box::ControlPage* control() noexcept { return reinterpret_cast<box::ControlPage*>(control_at); }
duck_t* duck() noexcept { return reinterpret_cast<duck_t*>(duck_at); }
LoopState* state() noexcept { return reinterpret_cast<LoopState*>(kvm::loop_state); }

long ask(LoopCall number, std::uint64_t argument = 0) noexcept {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(argument) : "rcx", "r11", "memory");
    return result;
}

void relax() noexcept { __builtin_ia32_pause(); }

void copy(char* to, const char* from, std::uint64_t bytes) noexcept {
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

void log(const duck_t*, const char* text, std::uint64_t bytes) {
    const std::uint64_t size = state()->log_bytes;
    if (size == 0 || bytes == 0) return;
    if (bytes > size) {
        text += bytes - size;
        bytes = size;
    }
    while (state()->rest.log_lock.exchange(1, std::memory_order_acquire) != 0) relax();   // SYNC: pairs with the release below
    box::LogLine& line = control()->log;
    const std::uint64_t at = line.written.load(std::memory_order_relaxed);
    char* ring = reinterpret_cast<char*>(control_at + state()->log_offset);
    const std::uint64_t start = at & (size - 1);
    const std::uint64_t first = bytes < size - start ? bytes : size - start;
    copy(ring + start, text, first);
    copy(ring, text + first, bytes - first);
    std::uint64_t end = at + bytes;
    if (text[bytes - 1] != '\n') ring[end++ & (size - 1)] = '\n';   // each call is a line
    line.written.store(end, std::memory_order_release);   // SYNC: pairs with the acquire in Session::log()
    state()->rest.log_lock.store(0, std::memory_order_release);   // SYNC: pairs with the exchange above
}

void yield() { ask(LoopCall::yield); }

// The thread's own pointer lies at its beginning (the x86-64 convention for thread-local variables).
std::uint64_t thread_pointer() noexcept {
    std::uint64_t pointer;
    __asm__ volatile("mov %%fs:0, %0" : "=r"(pointer));
    return pointer;
}

const duck_program_t* program() noexcept { return static_cast<const duck_program_t*>(state()->rest.program); }

std::int64_t run_call(std::uint64_t bytes) noexcept {
    if (bytes > state()->args_bytes) return -EINVAL;
    const void* args = control()->ask.args;
    const std::uint32_t cores = duck()->cores;
    auto& go = state()->go;
    if (cores > 1) {
        go.args = args;
        go.bytes = bytes;
        state()->back.left.store(cores - 1, std::memory_order_relaxed);
        go.seq.fetch_add(1, std::memory_order_seq_cst);   // SYNC: pairs with the acquire in await_go(); before the look at sleepers
        if (go.sleepers.load(std::memory_order_seq_cst) != 0) ask(LoopCall::wake_go);
    }
    const std::int64_t result = program()->call(duck(), args, bytes, 0);
    if (cores > 1)
        for (std::uint32_t round = 1; state()->back.left.load(std::memory_order_acquire) != 0; ++round) {   // SYNC: pairs with fetch_sub in core_loop()
            relax();
            if ((round & 0xffff) == 0) yield();
        }
    return result;
}

void clear_output() noexcept {
    void* at = duck()->ob;
    std::uint64_t bytes = duck()->ob_bytes;
    __asm__ volatile("rep stosb" : "+D"(at), "+c"(bytes) : "a"(0) : "memory");
}

// What the caller may do by itself: go over to another one of those that are mapped.
std::int64_t use_ib() noexcept {
    if (control()->ask.bytes != sizeof(std::uint64_t)) return -EINVAL;
    std::uint64_t id = 0;
    copy(reinterpret_cast<char*>(&id), reinterpret_cast<const char*>(control()->ask.args), sizeof id);
    const kvm::LoopIb* found = nullptr;
    for (const kvm::LoopIb& ib : state()->ibs) {
        if (ib.virt != 0 && ib.id == id) found = &ib;
    }
    if (id != 0 && found == nullptr) return -ENOENT;
    duck()->ib = id == 0 ? nullptr : reinterpret_cast<const void*>(found->virt);
    duck()->ib_bytes = id == 0 ? 0 : found->bytes;
    return 0;
}

void answer_ask(std::uint64_t seq) noexcept {
    box::AnswerLine& answer = control()->answer;
    const std::uint64_t began = duck_ticks();
    const box::AskOp op = control()->ask.op;
    std::int64_t result = -ENOSYS;
    if (op == box::AskOp::call) {
        result = run_call(control()->ask.bytes);
    } else if (op == box::AskOp::clear) {
        clear_output();
        result = 0;
    } else if (op == box::AskOp::map) {
        result = use_ib();
    }
    answer.result = result;
    answer.began = began;
    answer.done = duck_ticks();
    // SYNC: pairs with the acquire in Caller::look(). An exchange: the look at `sleeps` must not come before it.
    answer.seq.exchange(seq, std::memory_order_seq_cst);
    if (answer.sleeps.load(std::memory_order_relaxed) != 0) ask(LoopCall::wake_answer);
}

// Waits until the ask or the order line differs from what was seen last.
void await_work(std::uint64_t asks_seen) noexcept {
    box::AskLine& line = control()->ask;
    box::OrderLine& orders = control()->order;
    const std::uint64_t start = duck_ticks();
    for (std::uint32_t round = 1;; ++round) {
        if (line.seq.load(std::memory_order_acquire) != asks_seen) return;   // SYNC: pairs with the exchange in Caller::submit_in_place()
        if (orders.seq.load(std::memory_order_acquire) != state()->rest.orders_seen) return;   // SYNC: pairs with the release in Session::order()
        relax();
        if ((round & 63) != 0) continue;
        if (duck_ticks() - start > state()->idle_ticks) break;
        // The caller waits for this very CPU: it cannot ask while we look whether it has. Where we are is said when a core enters the guest.
        if ((round & 1023) == 64 && line.cpu != 0 && control()->answer.cpu.load(std::memory_order_relaxed) == line.cpu) yield();
    }
    line.sleeps.store(1, std::memory_order_seq_cst);   // before the looks: whoever writes seq after them sees it
    if (line.seq.load(std::memory_order_seq_cst) == asks_seen && orders.seq.load(std::memory_order_seq_cst) == state()->rest.orders_seen)
        ask(LoopCall::sleep_ask, asks_seen);
    line.sleeps.store(0, std::memory_order_relaxed);
}

void set_state(box::BoxState value, std::int32_t status) noexcept {
    box::OrderDoneLine& line = control()->order_done;
    line.status = status;
    line.state.store(static_cast<std::uint32_t>(value), std::memory_order_release);   // SYNC: pairs with the acquire in Yard::open()
    ask(LoopCall::wake_state);
}

int serve(const duck_t* given, const duck_program_t* served) {
    auto& rest = state()->rest;
    if (rest.served != 0 || given != duck() || served == nullptr || served->abi != DUCK_ABI || served->bytes < sizeof(duck_program_t) ||
        served->call == nullptr) {
        set_state(box::BoxState::refused, EINVAL);
        return 64;
    }
    rest.served = 1;
    rest.program = served;
    rest.main_thread = thread_pointer();
    if (served->init != nullptr)
        if (const int status = served->init(duck()); status != 0) {
            set_state(box::BoxState::refused, status);
            return status;
        }
    set_state(box::BoxState::ready, 0);
    std::uint64_t asks_seen = 0;
    for (bool closing = false; !closing;) {
        await_work(asks_seen);
        const std::uint64_t orders = control()->order.seq.load(std::memory_order_acquire);   // SYNC: pairs with the release in Session::order()
        if (orders != rest.orders_seen) {
            closing = ask(LoopCall::take_orders) != 0;
            rest.orders_seen = orders;
        }
        const std::uint64_t asks = control()->ask.seq.load(std::memory_order_acquire);   // SYNC: pairs with the exchange in Caller::submit_in_place()
        if (asks != asks_seen && !closing) {
            answer_ask(asks);
            asks_seen = asks;
        }
    }
    if (program()->exit != nullptr) program()->exit(duck());
    set_state(box::BoxState::ended, 0);
    return 0;
}

void await_go(std::uint64_t seen) noexcept {
    auto& go = state()->go;
    const std::uint64_t start = duck_ticks();
    const std::uint64_t patience = seen == 0 ? 0 : state()->idle_ticks;
    for (std::uint32_t round = 1;; ++round) {
        if (go.seq.load(std::memory_order_acquire) != seen) return;   // SYNC: pairs with fetch_add in run_call()
        relax();
        if ((round & 63) == 0 && duck_ticks() - start > patience) break;
    }
    go.sleepers.fetch_add(1, std::memory_order_seq_cst);
    while (go.seq.load(std::memory_order_seq_cst) == seen) ask(LoopCall::sleep_go, seen);
    go.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

// What the stack protector compares with has to be the same on all cores.
void take_over_guards() noexcept {
    const std::uint64_t mine = thread_pointer(), main = state()->rest.main_thread;
    if (main == 0) return;
    copy(reinterpret_cast<char*>(mine + 0x28), reinterpret_cast<const char*>(main + 0x28), 16);
}

[[noreturn]] void core_loop(std::uint64_t core) noexcept {
    for (std::uint64_t seen = 0;;) {
        await_go(seen);
        if (seen == 0) take_over_guards();
        ++seen;
        program()->call(duck(), state()->go.args, state()->go.bytes, static_cast<std::uint32_t>(core));
        state()->back.left.fetch_sub(1, std::memory_order_release);   // SYNC: pairs with the acquire in run_call()
    }
}

}  // namespace

// The table at the beginning: distances, so that nothing has to be relocated.
extern "C" {
[[gnu::visibility("hidden"), gnu::used]] int loop_serve(const duck_t* given, const duck_program_t* served) { return serve(given, served); }
[[gnu::visibility("hidden"), gnu::used]] void loop_yield() { yield(); }
[[gnu::visibility("hidden"), gnu::used]] void loop_log(const duck_t* given, const char* text, std::uint64_t bytes) { log(given, text, bytes); }
[[gnu::visibility("hidden"), gnu::used]] void loop_core(std::uint64_t core) { core_loop(core); }
}
__asm__(".pushsection .table, \"a\"\nloop_table:\n"
        ".quad 0x50414d4c45455401\n"
        ".quad loop_serve - loop_table\n.quad loop_yield - loop_table\n.quad loop_log - loop_table\n.quad loop_core - loop_table\n.popsection");
