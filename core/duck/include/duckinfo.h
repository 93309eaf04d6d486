/* duckinfo.h: programs for the DuckInfo interface, version 0.04 (40), of JudgeDuck-OS.
 *
 * Theory of operation. A program of this kind gets no system but one page that says where everything lies: its input is in memory when it starts,
 * its output is bytes that it leaves in memory together with their count. The page is found through the auxiliary vector (AT_DUCK). The only
 * thing that it may ask of anybody is to end: exit, or abort. `teal duck cc --abi duckinfo prog.c` compiles a program that defines
 *
 *     int duck_main(duckinfo_t *info) {
 *         duckinfo_print(info, "hello\n", 6);
 *         return 0;
 *     }
 *
 * and `--abi duckinfo32` makes the same one for i386. The fields and their order are the interface's; everything else here is Teal's.
 */
#ifndef TEAL_DUCKINFO_H
#define TEAL_DUCKINFO_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DUCKINFO_VERSION 40u
#define AT_DUCK 0x6b637564u /* "duck" */

#if defined(__x86_64__)
typedef uint64_t duckinfo_word;
#elif defined(__i386__)
typedef uint32_t duckinfo_word;
#else
#error "duckinfo.h: x86-64 or i386"
#endif

typedef struct __attribute__((packed)) duckinfo {
    duckinfo_word abi_version;   /* 40 */
    duckinfo_word stdin_ptr;     /* all of stdin, read-only */
    duckinfo_word stdin_size;
    duckinfo_word stdout_ptr;
    duckinfo_word stdout_limit;
    duckinfo_word stdout_size;   /* the program says how much it wrote; what exceeds the limit is cut off */
    duckinfo_word stderr_ptr;
    duckinfo_word stderr_limit;
    duckinfo_word stderr_size;
    duckinfo_word IB_ptr;        /* input buffer, read-only */
    duckinfo_word IB_limit;
    duckinfo_word OB_ptr;        /* output buffer: keeps what it had from run to run unless it is cleared */
    duckinfo_word OB_limit;
    uint64_t tsc_frequency;      /* Hz */
} duckinfo_t;

/* What a program defines; what it returns is its exit status. */
int duck_main(duckinfo_t *info);

/* Appends to stdout (stderr) as much as there is room for; returns how much that was. */
static inline duckinfo_word duckinfo_append_(duckinfo_word ptr, duckinfo_word limit, duckinfo_word size, const void *bytes, duckinfo_word count) {
    if (size > limit) size = limit;
    if (count > limit - size) count = limit - size;
    __builtin_memcpy((char *)(uintptr_t)ptr + size, bytes, count);
    return count;
}
static inline duckinfo_word duckinfo_print(duckinfo_t *info, const void *bytes, duckinfo_word count) {
    count = duckinfo_append_(info->stdout_ptr, info->stdout_limit, info->stdout_size, bytes, count);
    info->stdout_size += count;
    return count;
}
static inline duckinfo_word duckinfo_complain(duckinfo_t *info, const void *bytes, duckinfo_word count) {
    count = duckinfo_append_(info->stderr_ptr, info->stderr_limit, info->stderr_size, bytes, count);
    info->stderr_size += count;
    return count;
}

/* A decimal number and what follows it. */
static inline void duckinfo_print_number(duckinfo_t *info, uint64_t value, char after) {
    char text[24];
    unsigned at = sizeof text;
    text[--at] = after;
    do {
        text[--at] = (char)('0' + (uint32_t)(value % 10));
        value /= 10;
    } while (value != 0);
    duckinfo_print(info, text + at, sizeof text - at);
}

static inline __attribute__((noreturn)) void duckinfo_exit(int status) {
#if defined(__x86_64__)
    __asm__ volatile("syscall" : : "a"(60L), "D"((long)status) : "rcx", "r11", "memory");
#else
    __asm__ volatile("int $0x80" : : "a"(1), "b"(status) : "memory");
#endif
    __builtin_trap();
}

/* Ticks since the program was started. */
static inline uint64_t duckinfo_ticks(void) {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}

#ifdef __cplusplus
}
#endif

#endif
