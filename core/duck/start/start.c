/* Start-up code of resident programs (duck.h): what runs before duck_init().
 *
 * Theory of operation. The kernel, or the box, puts argc, argv, the environment and the auxiliary vector on the stack, as for every program. This
 * code moves a position-independent program to where it lies, runs constructors, finds the duck_t (AT_TEAL), and hands the program's
 * functions over to serve(). The functions that compilers call without being asked come with it
 * (called.h). Freestanding: compiled for each program by `teal duck cc`. With -DDUCK_LIBC it is only main(), and a libc does the rest.
 */
#include "duck.h"

#ifdef DUCK_LIBC

DUCK_MAIN

#else

#include <stddef.h>

DUCK_NOTE;

extern int duck_init(const duck_t *duck) __attribute__((weak));
extern void duck_exit(const duck_t *duck) __attribute__((weak));

/* Made by the linker. */
#define HIDDEN __attribute__((visibility("hidden")))
typedef void (*constructor)(void);
extern const constructor __preinit_array_start[] HIDDEN __attribute__((weak));
extern const constructor __preinit_array_end[] HIDDEN __attribute__((weak));
extern const constructor __init_array_start[] HIDDEN __attribute__((weak));
extern const constructor __init_array_end[] HIDDEN __attribute__((weak));

/* _start hands over where the program lies and its dynamic section (none: 0), found without a relocation. */

#if defined(__x86_64__)
__asm__(".pushsection .text._start, \"ax\"\n"
        ".globl _start\n.type _start, @function\n"
        "_start:\n"
        ".weak _DYNAMIC\n.hidden _DYNAMIC\n.weak __ehdr_start\n.hidden __ehdr_start\n"
        "    xorl %ebp, %ebp\n"
        "    movq %rsp, %rdi\n"
        "    leaq __ehdr_start(%rip), %rsi\n"
        "    leaq _DYNAMIC(%rip), %rdx\n"
        "    andq $-16, %rsp\n"
        "    call duck_start_\n"
        "    hlt\n"
        ".size _start, .-_start\n.popsection");
enum { call_write = 1, call_exit = 231, relative = 8 };

static long system_call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
__asm__(".pushsection .text._start, \"ax\"\n"
        ".globl _start\n.type _start, %function\n"
        "_start:\n"
        ".weak _DYNAMIC\n.hidden _DYNAMIC\n.weak __ehdr_start\n.hidden __ehdr_start\n"
        "    mov x29, #0\n"
        "    mov x30, #0\n"
        "    mov x0, sp\n"
        "    adrp x1, __ehdr_start\n    add x1, x1, :lo12:__ehdr_start\n"
        "    adrp x2, _DYNAMIC\n    add x2, x2, :lo12:_DYNAMIC\n"
        "    and sp, x0, #-16\n"
        "    bl duck_start_\n"
        "    brk #1\n"
        ".size _start, .-_start\n.popsection");
enum { call_write = 64, call_exit = 94, relative = 1027 };

static long system_call(long number, long a, long b, long c) {
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
}
#else
#error "start.c: x86-64 or aarch64"
#endif

static _Noreturn void leave(int status) {
    for (;;) system_call(call_exit, status, 0, 0);
}

static _Noreturn void complain(const char *text, size_t bytes) {
    system_call(call_write, 2, (long)text, (long)bytes);
    leave(125);
}
#define COMPLAIN(text) complain(text, sizeof(text) - 1)

/* A static position-independent program has relocations of one kind only: base + addend. */
static void relocate(uintptr_t base, const intptr_t *dynamic) {
    enum { dt_rela = 7, dt_relasz = 8 };
    if (!dynamic) return;
    const intptr_t *rela = 0;
    size_t bytes = 0;
    for (const intptr_t *entry = dynamic; entry[0] != 0; entry += 2) {
        if (entry[0] == dt_rela) rela = (const intptr_t *)(base + (uintptr_t)entry[1]);
        if (entry[0] == dt_relasz) bytes = (size_t)entry[1];
    }
    for (size_t i = 0; rela && i < bytes / 24; ++i, rela += 3) {
        if ((uint32_t)rela[1] != relative) COMPLAIN("duck: a relocation that start.c does not know: link with -no-pie\n");
        *(uintptr_t *)(base + (uintptr_t)rela[0]) = base + (uintptr_t)rela[2];
    }
}

static void construct(const constructor *first, const constructor *last) {
    for (; first != last; ++first) (*first)();
}

__attribute__((used)) _Noreturn void duck_start_(uintptr_t *stack, uintptr_t base, const intptr_t *dynamic);
_Noreturn void duck_start_(uintptr_t *stack, uintptr_t base, const intptr_t *dynamic) {
    relocate(base, dynamic);
    const duck_t *duck = duck_find((char *const *)(void *)(stack + 1));
    if (!duck) COMPLAIN("duck: this program is called in a duck: teal duck run PROGRAM\n");
    if (duck->abi < DUCK_ABI) COMPLAIN("duck: this duck is older than the program's duck.h: update Teal there\n");
    construct(__preinit_array_start, __preinit_array_end);
    construct(__init_array_start, __init_array_end);
    const duck_program_t program = {DUCK_ABI, sizeof program, duck_init, duck_call, duck_exit};
    leave(duck->serve(duck, &program));
}

#include "called.h"

#ifdef DUCK_RUST
/* Named in the tables of the core library, which was compiled to unwind; nothing here does. */
WEAK void rust_eh_personality(void) { __builtin_trap(); }
#endif

#endif
