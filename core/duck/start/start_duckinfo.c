/* Start-up code of DuckInfo programs (duckinfo.h): finds the page, calls duck_main(), exits with what it returns.
 *
 * Freestanding, x86-64 and i386; compiled for each program by `teal duck cc --abi duckinfo` (`duckinfo32`).
 */
#include "duckinfo.h"

#include "called.h"

/* By this note a loader knows a DuckInfo program. */
__asm__(".pushsection .note.teal, \"a\"\n.balign 4\n.long 5, 4, 2\n.asciz \"Teal\"\n.balign 4\n.long 40\n.popsection");

typedef void (*constructor)(void);
extern const constructor __init_array_start[] __attribute__((visibility("hidden"), weak));
extern const constructor __init_array_end[] __attribute__((visibility("hidden"), weak));

#if defined(__x86_64__)
__asm__(".pushsection .text._start, \"ax\"\n"
        ".globl _start\n.type _start, @function\n"
        "_start:\n"
        "    xorl %ebp, %ebp\n"
        "    movq %rsp, %rdi\n"
        "    andq $-16, %rsp\n"
        "    call duckinfo_start_\n"
        "    hlt\n"
        ".size _start, .-_start\n.popsection");
#else
__asm__(".pushsection .text._start, \"ax\"\n"
        ".globl _start\n.type _start, @function\n"
        "_start:\n"
        "    xorl %ebp, %ebp\n"
        "    movl %esp, %eax\n"
        "    andl $-16, %esp\n"
        "    subl $12, %esp\n"
        "    pushl %eax\n"
        "    call duckinfo_start_\n"
        "    hlt\n"
        ".size _start, .-_start\n.popsection");
#endif

__attribute__((used, noreturn)) void duckinfo_start_(const duckinfo_word *stack);
void duckinfo_start_(const duckinfo_word *stack) {
    const duckinfo_word *entry = stack + 1 + stack[0] + 1; /* behind argv */
    while (*entry != 0) ++entry;                           /* and the environment */
    for (++entry; entry[0] != 0 && entry[0] != AT_DUCK; entry += 2) {}
    if (entry[0] != AT_DUCK) duckinfo_exit(125); /* nobody gave it a page: run it with teal judge */
    for (const constructor *at = __init_array_start; at != __init_array_end; ++at) (*at)();
    duckinfo_exit(duck_main((duckinfo_t *)(uintptr_t)entry[1]));
}
