#include "kvm/resident.hpp"

#if defined(__x86_64__)

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "kvm/trap_page.hpp"

namespace teal::kvm {
namespace {

constexpr std::uint64_t most_heap = std::uint64_t{1} << 40;
constexpr std::uint64_t tls_stride = std::uint64_t{1} << 28; // as in a process box
constexpr std::uint64_t tcb_bytes = 4096;                    // more than any libc keeps before its variables
constexpr std::uint64_t own_data_bytes = 8u << 20;           // the yard adds so much to the data limit of a process box
constexpr Access data{.user = true, .write = true, .execute = false};

static_assert(box::layout::control == 0x6000'0000'0000 && box::layout::duck == 0x6fff'0000'0000, "inside/serve.cpp has these addresses too");

box::BecomeStage reached = box::BecomeStage::message;

long futex(void* word, int operation, std::uint32_t value, const timespec* nap) noexcept {
    return ::syscall(SYS_futex, word, operation, value, nap, nullptr, 0);
}
void wake(void* word) noexcept { futex(word, FUTEX_WAKE, 0x7fff'ffff, nullptr); }
void sleep_on(void* word, std::uint32_t expected) noexcept {
    const timespec nap{10, 0};                               // somebody wakes us for whatever there is to do
    futex(word, FUTEX_WAIT, expected, &nap);
}

void pin_here(std::int32_t cpu) noexcept {
    if (cpu < 0 || cpu >= CPU_SETSIZE) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<unsigned>(cpu), &one);
    ::sched_setaffinity(0, sizeof one, &one);
}

Access access_of(std::uint32_t protection) noexcept {
    return {.user = true, .write = (protection & elf::writable) != 0, .execute = (protection & elf::executable) != 0};
}

int signal_of(unsigned trap) noexcept {
    switch (trap) {
    case 0: case 16: case 19: return SIGFPE;
    case 1: case 3: return SIGTRAP;
    case 6: return SIGILL;
    case 17: return SIGBUS;
    default: return SIGSEGV;
    }
}

}  // namespace

box::BecomeStage Resident::stage() noexcept { return reached; }

Resident::Resident(Order order) : order_(std::move(order)) {
    const box::BecomeMessage& m = order_.message;
    reached = box::BecomeStage::limits;
    heap_ = system_bytes;
    for (const elf::Step& step : order_.steps) heap_ = std::max(heap_, round_up(step.address + step.bytes, page_bytes));
    guest_ = std::make_unique<Guest>(m.cores, count_tables(), 1, std::move(order_.machine));
    map_region();
    map_image();
    map_stacks();
    map_loop();
    calls_ = std::make_unique<Calls>(*guest_, box::Abi::linux_static, Calls::Files{}, heap_, heap_bytes());
    calls_->serve_resident();
    reached = box::BecomeStage::threads;
    std::vector<std::uint64_t> thread_pointers;
    for (std::uint32_t core = 0; core < m.cores; ++core) thread_pointers.push_back(make_tls(core));
    guest_->commit();
    inputs_ = std::make_unique<Inputs>(*guest_, *loop_, duck_);
    for (std::uint32_t core = 0; core < m.cores; ++core) begin_core(core, thread_pointers[core]);
    reached = box::BecomeStage::running;
}

// Core threads are in the guest: who destroys this ends the process.
Resident::~Resident() {
    for (std::thread& thread : threads_) thread.detach();
}

std::uint64_t Resident::heap_bytes() const noexcept {
    const box::BecomeMessage& m = order_.message;
    std::uint64_t used = own_data_bytes + m.stack_room * m.cores;
    for (const elf::Step& step : order_.steps) used += (step.protection & elf::writable) != 0 ? step.bytes : 0;
    const std::uint64_t left = m.data_limit > used ? std::min(m.data_limit - used, most_heap) : 0;
    return std::max(left & ~(page_bytes - 1), page_bytes);
}

// How far before the thread pointer the variables begin. Linkers count in steps of what the program asks for, not of our own alignment, and
// from an address that is like the segment's own.
std::uint64_t Resident::tls_distance() const noexcept {
    const box::BecomeMessage& m = order_.message;
    const std::uint64_t asked = std::max<std::uint64_t>(m.tls_align, 1);
    return m.tls_bytes + ((0 - m.tls_address - m.tls_bytes) & (asked - 1));
}

std::uint64_t Resident::tls_room() const noexcept {
    const std::uint64_t align = std::max<std::uint64_t>(order_.message.tls_align, 64);
    return round_up(round_up(tls_distance(), align) + tcb_bytes, page_bytes);
}

std::uint64_t Resident::count_tables() const noexcept {
    const box::BecomeMessage& m = order_.message;
    std::uint64_t count = Tables::tables_for(aperture_at, most_aperture, true) + Tables::tables_for(box::layout::duck, 3 * page_bytes) + 6;
    count += Tables::tables_for(box::layout::control, m.region_bytes, true) + 2;
    count += Tables::tables_for(heap_, heap_bytes(), true) + 2;
    for (const elf::Step& step : order_.steps) count += Tables::tables_for(step.address, step.bytes);
    const std::uint64_t stack = Tables::tables_for(box::layout::stack_top(0) - m.stack_room, m.stack_room);
    return count + m.cores * (stack + Tables::tables_for(0, tls_room()) + 2);
}

void Resident::map_region() {
    reached = box::BecomeStage::region;
    const box::BecomeMessage& m = order_.message;
    const Source region{.fd = order_.control, .shared = true, .populate = m.region_bytes <= (4u << 20)};
    control_ = reinterpret_cast<box::ControlPage*>(guest_->add(box::layout::control, m.region_bytes, data, region, true).host);
}

void Resident::map_image() {
    reached = box::BecomeStage::image;
    for (const elf::Step& step : order_.steps) {
        if (step.address < box::layout::lowest_program || step.address >= box::layout::highest_program ||
            step.bytes > box::layout::highest_program - step.address) {
            throw Error(Code::invalid_argument, "a program's pages where no program may be");
        }
        const Access access = access_of(step.protection);
        if ((access.write && access.execute) || (step.what != elf::Step::What::map && step.what != elf::Step::What::zeros)) {
            throw Error(Code::invalid_argument, "a program's pages may be written or executed, and come from its file or are zeros");
        }
        Source source;
        if (step.what == elf::Step::What::map) {
            source.fd = order_.image;
            source.offset = step.offset;
        }
        guest_->add(step.address, step.bytes, access, source);
    }
    guest_->add(heap_, heap_bytes(), data, {}, true);
}

void Resident::map_stacks() {
    reached = box::BecomeStage::stack;
    const box::BecomeMessage& m = order_.message;
    for (std::uint32_t core = 0; core < m.cores && m.stack_room != 0; ++core) {
        const std::uint64_t end = core == 0 && m.stack_end != 0 ? m.stack_end : box::layout::stack_top(core);
        guest_->add(end - m.stack_room, m.stack_room, data);
    }
    const std::uint64_t end = m.stack_end != 0 ? m.stack_end : box::layout::stack_top(0);
    if (!guest_->write(end - order_.stack.size(), order_.stack.data(), order_.stack.size())) {
        throw Error(Code::invalid_argument, "an initial stack larger than the stack");
    }
}

// The loop's code and state, the duck_t that the program sees, and room for input buffers.
void Resident::map_loop() {
    const box::BecomeMessage& m = order_.message;
    LoopTable table{};
    if (order_.loop.size() >= sizeof table) std::memcpy(&table, order_.loop.data(), sizeof table);
    if (table.magic != loop_magic) throw Error(Code::internal_error, "the guest's loop is not what was built");
    Area& code = guest_->add(loop_code, round_up(order_.loop.size(), page_bytes), {.user = true, .write = false, .execute = true});
    std::memcpy(code.host, order_.loop.data(), order_.loop.size());
    loop_ = new (guest_->add(loop_state, sizeof(LoopState), data).host) LoopState{};
    const std::uint64_t seconds = m.idle_ns / 1'000'000'000u;
    loop_->idle_ticks = seconds * m.tsc_hz + (m.idle_ns - seconds * 1'000'000'000u) * (m.tsc_hz / 1000u) / 1'000'000u;
    loop_->args_bytes = m.args_bytes;
    loop_->log_offset = m.log_offset;
    loop_->log_bytes = m.log_bytes;
    duck_ = guest_->add(box::layout::duck, page_bytes, data).host;
    duck_t duck{};
    duck.abi = DUCK_ABI;
    duck.bytes = sizeof duck;
    duck.cores = m.cores;
    duck.ob = reinterpret_cast<void*>(box::layout::control + m.ob_offset);
    duck.ob_bytes = m.ob_bytes;
    duck.tsc_hz = m.tsc_hz;
    duck.barrier = reinterpret_cast<duck_barrier_line_t*>(box::layout::duck + page_bytes / 2);
    duck.serve = reinterpret_cast<int (*)(const duck_t*, const duck_program_t*)>(loop_code + table.serve);
    duck.yield = reinterpret_cast<void (*)()>(loop_code + table.yield);
    duck.log = reinterpret_cast<void (*)(const duck_t*, const char*, std::uint64_t)>(loop_code + table.log);
    std::memcpy(duck_, &duck, sizeof duck);
}

// Variables as the image has them, then the thread pointer's own words.
std::uint64_t Resident::make_tls(std::uint32_t core) {
    const box::BecomeMessage& m = order_.message;
    const std::uint64_t align = std::max<std::uint64_t>(m.tls_align, 64);
    if (align > page_bytes || (align & (align - 1)) != 0 || m.tls_bytes > tls_stride || tls_room() > tls_stride || m.tls_file_bytes > m.tls_bytes) {
        throw Error(Code::invalid_argument, "more thread-local variables than a core has room for");
    }
    const std::uint64_t base = box::layout::tls + core * tls_stride;
    const Area& area = guest_->add(base, tls_room(), data);
    const std::uint64_t end = round_up(tls_distance(), align);           // of the variables; the thread pointer points there
    const std::uint64_t pointer = base + end;
    std::memcpy(area.host + end, &pointer, sizeof pointer);              // %fs:0
    std::memcpy(area.host + end + 16, &pointer, sizeof pointer);         // and glibc's own copy
    if (m.tls_file_bytes != 0 && !guest_->read(m.tls_address, area.host + (end - tls_distance()), m.tls_file_bytes)) {
        throw Error(Code::invalid_argument, "thread-local variables that are not in the program");
    }
    return pointer;
}

void Resident::begin_core(std::uint32_t core, std::uint64_t thread_pointer) {
    const box::BecomeMessage& m = order_.message;
    Start start;
    start.fs_base = thread_pointer;
    start.same_tsc = true;
    if (core == 0) {
        start.rip = m.entry;
        start.rsp = (m.stack_end != 0 ? m.stack_end : box::layout::stack_top(0)) - order_.stack.size();
    } else {
        LoopTable table;
        std::memcpy(&table, order_.loop.data(), sizeof table);
        start.rip = loop_code + table.core;
        start.rsp = box::layout::stack_top(core) - 8;        // as after a call
        start.rdi = core;
    }
    guest_->begin(core, start);
}

int Resident::run() {
    for (std::uint32_t core = 1; core < order_.message.cores; ++core) {
        threads_.emplace_back([this, core] {
            pin_here(order_.message.pin[core]);
            follow(core);
        });
    }
    pin_here(order_.message.pin[0]);
    follow(0);
    return 0;
}

void Resident::follow(std::uint32_t core) {
    for (;;) {
        if (core == 0) {
            const int cpu = ::sched_getcpu();
            control_->answer.cpu.store(static_cast<std::uint16_t>(cpu < 0 ? 0 : cpu + 1), std::memory_order_relaxed);
        }
        const Event event = guest_->run(core);
        if (event.what == Event::What::syscall) {
            if (!answer(core, event)) return;
        } else if (event.what == Event::What::trap) {
            die(event, signal_of(event.number));
        } else if (event.what == Event::What::int80) {
            die(event, SIGSYS);                              // as in a process box: nobody has 32-bit calls
        } else if (event.what == Event::What::stopped) {
            guest_->core(core).unstop();
        } else {
            say("teal: KVM could not run the guest\n");
            ::_exit(70);
        }
    }
}

bool Resident::answer(std::uint32_t core, const Event& event) {
    kvm_regs& registers = guest_->core(core).registers();
    const std::uint64_t number = registers.rax;
    if (number >= static_cast<std::uint64_t>(LoopCall::base) && number < static_cast<std::uint64_t>(LoopCall::end)) {
        registers.rax = answer_loop(number, registers.rdi);
        guest_->core(core).resume(event.rip, event.rsp, event.rflags);
        return true;
    }
    const std::lock_guard lock(calls_mutex_);
    const End end = calls_->answer(core, event);
    if (!end.ended) return true;
    if (end.trap != 255) {
        ::signal(SIGABRT, SIG_DFL);
        ::raise(SIGABRT);
    }
    ::_exit(end.status & 0xff);
}

std::uint64_t Resident::answer_loop(std::uint64_t number, std::uint64_t argument) {
    switch (static_cast<LoopCall>(number)) {
    case LoopCall::sleep_ask: sleep_on(&control_->ask.seq, static_cast<std::uint32_t>(argument)); return 0;
    case LoopCall::sleep_go: sleep_on(&loop_->go.seq, static_cast<std::uint32_t>(argument)); return 0;
    case LoopCall::wake_go: wake(&loop_->go.seq); return 0;
    case LoopCall::wake_answer: wake(&control_->answer.seq); return 0;
    case LoopCall::wake_state: wake(&control_->order_done.state); return 0;
    case LoopCall::take_orders: {
        const std::lock_guard lock(calls_mutex_);   // two cores of a broken program
        take_orders();
        return closing_ ? 1 : 0;
    }
    case LoopCall::yield: ::sched_yield(); return 0;
    case LoopCall::end: break;
    }
    return 0;
}

void Resident::take_orders() {
    for (;;) {
        box::OrderMessage message{};
        iovec part{&message, sizeof message};
        alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
        msghdr header{};
        header.msg_iov = &part;
        header.msg_iovlen = 1;
        header.msg_control = space;
        header.msg_controllen = sizeof space;
        const ssize_t got = ::recvmsg(order_.socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        closing_ = closing_ || got == 0;            // the yard is gone
        if (got != static_cast<ssize_t>(sizeof message) || message.magic != box::message_magic) return;
        int fd = -1;
        if (header.msg_controllen >= CMSG_LEN(sizeof(int))) std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof fd);
        const Handle owned(fd);
        box::OrderDoneLine& done = control_->order_done;
        done.status = obey(message, fd);
        done.seq.store(message.seq, std::memory_order_release);   // SYNC: pairs with the acquire in Session::order()
        wake(&done.seq);
    }
}

int Resident::obey(const box::OrderMessage& message, int fd) {
    switch (message.op) {
    case box::OrderOp::map: return inputs_->map(message, fd);
    case box::OrderOp::unmap: inputs_->unmap(); return 0;
    case box::OrderOp::forget: return inputs_->forget(message.id);
    case box::OrderOp::close: closing_ = true; return 0;
    case box::OrderOp::wake: return 0;
    }
    return EINVAL;
}

// As log() in the loop does it, should a core of the program not be just there.
void Resident::say(const char* text) noexcept {
    const std::uint64_t size = order_.message.log_bytes, bytes = std::strlen(text);
    if (size < bytes) return;
    const std::uint64_t at = control_->log.written.load(std::memory_order_relaxed);
    auto* ring = reinterpret_cast<char*>(control_) + order_.message.log_offset;
    for (std::uint64_t i = 0; i < bytes; ++i) ring[(at + i) & (size - 1)] = text[i];
    control_->log.written.store(at + bytes, std::memory_order_release);   // SYNC: pairs with the acquire in Session::log()
}

void Resident::die(const Event& event, int number) noexcept {
    char text[160];
    std::snprintf(text, sizeof text, "teal: trap %u at 0x%llx, address 0x%llx, stack 0x%llx\n", event.number,
                  static_cast<unsigned long long>(event.rip), static_cast<unsigned long long>(event.address), static_cast<unsigned long long>(event.rsp));
    say(text);
    ::signal(number, SIG_DFL);
    ::raise(number);
    ::_exit(70);
}

}  // namespace teal::kvm

#endif
