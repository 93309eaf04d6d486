#include "kernel/fiber.hpp"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <sys/mman.h>
#include <utility>

#include "base/error.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

// teal_fiber_switch(void** save, void* to): what a function keeps goes onto the stack, whose pointer goes to *save; then the same from `to`.
// teal_fiber_start: where a stack that prepare() laid out begins: calls what lies in the first kept register with the second as argument.
extern "C" void teal_fiber_switch(void** save, void* to) noexcept;
extern "C" void teal_fiber_start() noexcept;

#if defined(__x86_64__)
// Beside the registers of the System V ABI, the control words of both floating point units.
asm(R"(
    .text
    .p2align 4
    .globl teal_fiber_switch
    .hidden teal_fiber_switch
    .type teal_fiber_switch, @function
teal_fiber_switch:
    .cfi_startproc
    endbr64
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    subq $8, %rsp
    stmxcsr (%rsp)
    fnstcw 4(%rsp)
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    ldmxcsr (%rsp)
    fldcw 4(%rsp)
    addq $8, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .cfi_endproc
    .size teal_fiber_switch, .-teal_fiber_switch

    .p2align 4
    .globl teal_fiber_start
    .hidden teal_fiber_start
    .type teal_fiber_start, @function
teal_fiber_start:
    .cfi_startproc
    .cfi_undefined rip
    endbr64
    xorl %ebp, %ebp
    movq %r13, %rdi
    call *%r12
    ud2
    .cfi_endproc
    .size teal_fiber_start, .-teal_fiber_start
)");
#elif defined(__aarch64__)
asm(R"(
    .text
    .p2align 4
    .globl teal_fiber_switch
    .hidden teal_fiber_switch
    .type teal_fiber_switch, %function
teal_fiber_switch:
    .cfi_startproc
    hint #34
    sub sp, sp, #176
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mrs x9, fpcr
    str x9, [sp, #160]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldr x9, [sp, #160]
    msr fpcr, x9
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #176
    ret
    .cfi_endproc
    .size teal_fiber_switch, .-teal_fiber_switch

    .p2align 4
    .globl teal_fiber_start
    .hidden teal_fiber_start
    .type teal_fiber_start, %function
teal_fiber_start:
    .cfi_startproc
    .cfi_undefined x30
    hint #36
    mov x29, #0
    mov x0, x20
    blr x19
    brk #1
    .cfi_endproc
    .size teal_fiber_start, .-teal_fiber_start
)");
#else
#error "fiber.cpp: write teal_fiber_switch for this processor"
#endif

namespace teal {
namespace {

constexpr std::size_t guard_bytes = 64 * 1024;  // the largest page there is on aarch64

// The stack as teal_fiber_switch leaves one behind, lowest word first.
#if defined(__x86_64__)
struct Frame {
    std::uint32_t mxcsr;
    std::uint16_t x87;
    std::uint16_t pad;
    std::uint64_t r15, r14, r13, r12, rbx, rbp, rip;
    std::uint64_t above;
};
static_assert(sizeof(Frame) == 72);

Frame first_frame(void (*function)(void*) noexcept, void* argument) noexcept {
    Frame frame{};
    asm volatile("stmxcsr %0" : "=m"(frame.mxcsr));
    asm volatile("fnstcw %0" : "=m"(frame.x87));
    frame.r12 = reinterpret_cast<std::uint64_t>(function);
    frame.r13 = reinterpret_cast<std::uint64_t>(argument);
    frame.rip = reinterpret_cast<std::uint64_t>(&teal_fiber_start);
    return frame;
}
constexpr std::size_t frame_offset = 80;  // teal_fiber_start begins 64 above, where a caller must have the stack aligned to 16
#else
struct Frame {
    std::uint64_t x19, x20, x21_to_x28[8], x29, x30;
    std::uint64_t d8_to_d15[8];
    std::uint64_t fpcr, pad;
};
static_assert(sizeof(Frame) == 176);

Frame first_frame(void (*function)(void*) noexcept, void* argument) noexcept {
    Frame frame{};
    asm volatile("mrs %0, fpcr" : "=r"(frame.fpcr));
    frame.x19 = reinterpret_cast<std::uint64_t>(function);
    frame.x20 = reinterpret_cast<std::uint64_t>(argument);
    frame.x30 = reinterpret_cast<std::uint64_t>(&teal_fiber_start);
    return frame;
}
constexpr std::size_t frame_offset = sizeof(Frame);
#endif

}  // namespace

Fiber::Fiber() {
    const std::size_t bytes = guard_bytes + stack_bytes;
    void* base = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) throw Error(Code::quota_exceeded, system_message("mapping a stack", errno));
    base_ = static_cast<std::byte*>(base);
    if (::mprotect(base_ + guard_bytes, stack_bytes, PROT_READ | PROT_WRITE) != 0) {
        const int error = errno;
        ::munmap(base_, bytes);
        throw Error(Code::quota_exceeded, system_message("making a stack", error));
    }
    std::memset(base_ + bytes - 8192, 0, 8192);  // what every run touches: not at its expense
#if defined(__SANITIZE_THREAD__)
    shadow_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(base_ + guard_bytes, stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(shadow_);
#endif
    ::munmap(base_, guard_bytes + stack_bytes);
}

bool Fiber::holds(const void* address) const noexcept {
    const auto* at = static_cast<const std::byte*>(address);
    return at >= base_ + guard_bytes && at < base_ + guard_bytes + stack_bytes;
}

void Fiber::prepare(Body body, void* context) noexcept {
    body_ = body;
    context_ = context;
    done_ = false;
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(base_ + guard_bytes, stack_bytes);  // a run that was discarded never came to that
    shadow_ = nullptr;
#endif
    const Frame frame = first_frame(&Fiber::first, this);
    stack_pointer_ = base_ + guard_bytes + stack_bytes - frame_offset;
    std::memcpy(stack_pointer_, &frame, sizeof frame);
}

void Fiber::first(void* self) noexcept {
    auto& fiber = *static_cast<Fiber*>(self);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &fiber.outer_bottom_, &fiber.outer_bytes_);
#endif
    fiber.body_(fiber.context_);
    fiber.done_ = true;
    fiber.leave();
    __builtin_unreachable();
}

bool Fiber::enter() noexcept {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&outer_shadow_, base_ + guard_bytes, stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    outer_shadow_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(shadow_, 0);
#endif
    teal_fiber_switch(&outside_, stack_pointer_);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(outer_shadow_, nullptr, nullptr);
#endif
    return done_;
}

void Fiber::leave() noexcept {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(done_ ? nullptr : &shadow_, outer_bottom_, outer_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(outer_shadow_, 0);
#endif
    teal_fiber_switch(&stack_pointer_, outside_);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(shadow_, &outer_bottom_, &outer_bytes_);
#endif
}

std::unique_ptr<Fiber> Fibers::take() {
    if (free_.empty()) return std::make_unique<Fiber>();
    std::unique_ptr<Fiber> fiber = std::move(free_.back());
    free_.pop_back();
    return fiber;
}

void Fibers::give(std::unique_ptr<Fiber> fiber) noexcept {
    if (free_.capacity() == 0) free_.reserve(most_kept);
    if (free_.size() < most_kept) free_.push_back(std::move(fiber));
}

}  // namespace teal
