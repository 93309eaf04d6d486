/* duck.h: native programs that stay resident in a duck and are called there.
 *
 * C11, freestanding: no libc is needed, and none of it is used here. Usable from C++ as it is, from Rust through duck.rs beside it, and from Zig
 * with @cImport. A program defines duck_call(), and if it likes duck_init() and duck_exit(); `teal duck cc prog.c -o prog.elf` compiles it and
 * links the start-up code that calls them (start.c). A program that wants a libc is linked with one (`teal duck cc --libc`), or writes DUCK_MAIN
 * at file scope and is linked as static programs are.
 *
 *     #include <duck.h>
 *     int64_t duck_call(const duck_t *duck, const void *args, uint64_t bytes, uint32_t core) {
 *         ...                     // duck->ib is read-only, duck->ob is where the answer goes
 *         return bytes_of_answer; // at the start of duck->ob; negative: failed, with that status
 *     }
 *
 * Theory of operation. The program is loaded once. Its start-up code finds a duck_t through the auxiliary vector (AT_TEAL) and hands its
 * functions over to serve(), which returns when the session is closed. A call is a line of shared memory that serve() polls; nothing else
 * happens between two calls. With several cores (SPMD) every core enters duck_call() with the same arguments and its own `core`; the
 * result of core 0 counts, and it is given when all have returned.
 *
 * With a libc: only the main thread, which is core 0, is one that the libc knows. Other cores have thread-local variables of their own, but may
 * not call into the libc (no malloc, no printf): they compute.
 */
#ifndef TEAL_DUCK_H
#define TEAL_DUCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define DUCK_EXTERN extern "C"
#else
#define DUCK_EXTERN extern
#endif

#define DUCK_ABI 1u
#define AT_TEAL 0x6c616574u /* "teal": the tag of the duck_t in the auxiliary vector */

typedef struct duck duck_t;

typedef struct duck_program {
    uint32_t abi;   /* DUCK_ABI of the header it was compiled with */
    uint32_t bytes; /* sizeof(duck_program_t) */
    int (*init)(const duck_t *duck); /* once, on core 0; not 0: the session is refused with that status. May be null. */
    int64_t (*call)(const duck_t *duck, const void *args, uint64_t bytes, uint32_t core);
    void (*exit)(const duck_t *duck); /* once, at a close that was asked for; a program that is killed is not told. May be null. */
} duck_program_t;

typedef struct duck_barrier_line {
    uint32_t arrived;
    uint32_t phase;
    uint8_t reserved[56];
} duck_barrier_line_t;

struct duck {
    uint32_t abi;           /* DUCK_ABI of the duck */
    uint32_t bytes;         /* sizeof(duck_t) of the duck: newer ducks append */
    uint32_t cores;         /* how many enter duck_call() */
    uint32_t reserved;
    const void *ib;         /* input buffer, read-only; null while none is mapped. May change between two calls, never during one. */
    uint64_t ib_bytes;
    void *ob;               /* output buffer; its contents stay from call to call unless the caller asks for zeros */
    uint64_t ob_bytes;
    uint64_t tsc_hz;        /* ticks per second of duck_ticks() */
    duck_barrier_line_t *barrier;
    int (*serve)(const duck_t *duck, const duck_program_t *program); /* what the start-up code calls; returns the exit status */
    void (*yield)(void);    /* lets another thread of this core go first */
    void (*log)(const duck_t *duck, const char *text, uint64_t bytes); /* a line for `teal duck log` */
};

/* What a program defines; duck_init() and duck_exit() only if it likes. */
int duck_init(const duck_t *duck);
int64_t duck_call(const duck_t *duck, const void *args, uint64_t bytes, uint32_t core);
void duck_exit(const duck_t *duck);

/* The duck_t in the auxiliary vector behind argv, or null: somebody ran the program by itself. */
static inline const duck_t *duck_find(char *const *argv) {
    while (*argv != 0) ++argv;
    ++argv;
    while (*argv != 0) ++argv; /* the environment */
    const uintptr_t *entry = (const uintptr_t *)(const void *)(argv + 1);
    while (entry[0] != 0 && entry[0] != AT_TEAL) entry += 2;
    return entry[0] == AT_TEAL ? (const duck_t *)entry[1] : (const duck_t *)0;
}

/* By this note a loader knows a resident program. */
#define DUCK_NOTE                                                                                                          \
    __asm__(".pushsection .note.teal, \"a\"\n.balign 4\n.long 5, 4, 1\n.asciz \"Teal\"\n.balign 4\n.long 1\n.popsection")

/* main() of a resident program with a libc. Define duck_init() and duck_exit() above it, or leave them out. */
#define DUCK_MAIN                                                                                                          \
    DUCK_NOTE;                                                                                                             \
    DUCK_EXTERN __attribute__((weak)) int duck_init(const duck_t *duck);                                                   \
    DUCK_EXTERN __attribute__((weak)) void duck_exit(const duck_t *duck);                                                  \
    int main(int argc, char **argv) {                                                                                      \
        const duck_t *duck = duck_find(argv);                                                                              \
        (void)argc;                                                                                                        \
        if (!duck || duck->abi < DUCK_ABI) return 125; /* run it in a duck: teal duck run */                               \
        const duck_program_t program = {DUCK_ABI, sizeof(duck_program_t), duck_init, duck_call, duck_exit};                \
        return duck->serve(duck, &program);                                                                                \
    }

/* Time stamp counter: the same on all cores, duck->tsc_hz per second. */
static inline uint64_t duck_ticks(void) {
#if defined(__x86_64__)
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
#elif defined(__aarch64__)
    uint64_t value;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
#else
#error "duck.h: x86-64 or aarch64"
#endif
}

/* Nanoseconds of duck_ticks(). */
static inline uint64_t duck_clock_ns(const duck_t *duck) {
    const uint64_t ticks = duck_ticks();
    const uint64_t seconds = ticks / duck->tsc_hz;
    return seconds * 1000000000u + (ticks - seconds * duck->tsc_hz) * 1000000000u / duck->tsc_hz;
}

/* Every core waits until all have come here. For use within duck_call(), by all cores the same number of times. */
static inline void duck_barrier(const duck_t *duck) {
    if (duck->cores < 2) return;
    duck_barrier_line_t *line = duck->barrier;
    const uint32_t phase = __atomic_load_n(&line->phase, __ATOMIC_RELAXED);
    /* SYNC: pairs with itself: who arrives last has seen what the others wrote before they arrived. */
    if (__atomic_add_fetch(&line->arrived, 1u, __ATOMIC_ACQ_REL) == duck->cores) {
        __atomic_store_n(&line->arrived, 0u, __ATOMIC_RELAXED);
        /* SYNC: pairs with the acquire below. */
        __atomic_store_n(&line->phase, phase + 1u, __ATOMIC_RELEASE);
        return;
    }
    for (uint32_t round = 1; __atomic_load_n(&line->phase, __ATOMIC_ACQUIRE) == phase; ++round) {
#if defined(__x86_64__)
        __asm__ volatile("pause");
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
        if ((round & 1023u) == 0) duck->yield();
    }
}

#ifdef __cplusplus
}
#endif

#endif
