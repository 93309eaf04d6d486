/* A resident program that does what it is told, for tests of boxes: the first word of the arguments is one of actor.h's. */
#include "actor.h"

#include <duck.h>

static uint64_t counter;

static long call6(long number, const long *a) {
    long result;
    register long r10 __asm__("r10") = a[3];
    register long r8 __asm__("r8") = a[4];
    register long r9 __asm__("r9") = a[5];
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return result;
}

static int64_t copy(const duck_t *duck, const void *bytes, uint64_t count) {
    __builtin_memcpy(duck->ob, bytes, count);
    return (int64_t)count;
}

static int dive(volatile char *above) {
    volatile char here[4096];
    here[0] = above ? above[0] : 1;
    return dive(here) + here[0];
}

static void scribble(unsigned char *page, uint64_t rounds) {
    uint64_t random = 88172645463325252u;
    for (uint64_t round = 0; round < rounds; ++round)
        for (unsigned i = 0; i < 8192; i += 8) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            *(volatile uint64_t *)(page + i) = random;
        }
}

/* The kernel's struct msghdr, with room for one descriptor. */
static int64_t steal(const duck_t *duck, uint64_t rounds) {
    static char record[256], control[64];
    uint64_t part[2] = {(uint64_t)record, sizeof record};
    for (; rounds != 0; --rounds) {
        uint64_t header[7] = {0, 0, (uint64_t)part, 1, (uint64_t)control, sizeof control, 0};
        const long receive[6] = {3, (long)header, 0x40, 0, 0, 0};
        if (call6(47, receive) <= 0 || header[5] < 20) continue;
        const long fd = *(int *)(control + 16);
        const long writable[6] = {0, 4096, 3, 1, fd, 0}, readable[6] = {0, 4096, 1, 1, fd, 0};
        const long said[3] = {fd, call6(9, writable), call6(9, readable)};
        return copy(duck, said, sizeof said);
    }
    return -3;
}

static int64_t act(const duck_t *duck, const uint64_t *a, uint64_t bytes, uint32_t core) {
    switch (a[0]) {
    case act_echo: return copy(duck, a + 1, bytes - 8);
    case act_count: ++counter; return copy(duck, &counter, 8);
    case act_syscall: {
        const long result = call6((long)a[1], (const long *)(a + 2));
        return copy(duck, &result, 8);
    }
    case act_crash: *(volatile int *)a[1] = 1; return 0;
    case act_loop: for (;;) __asm__ volatile("pause");
    case act_exit: call6(231, (const long *)(a + 1)); return 0;
    case act_dive: return dive(0);
    case act_scribble: scribble((unsigned char *)a[1], a[2]); return 8;
    case act_result: return (int64_t)a[1];
    case act_log: for (uint64_t i = 0; i < a[1]; ++i) duck->log(duck, "a line of sixteen\n" + 1, 17); return 0;
    case act_allocate: {
        uint64_t got = 0;
        const long mapping[6] = {0, 1 << 20, 3, 0x22, -1, 0};
        for (; got < a[1]; got += 1 << 20) {
            const long at = call6(9, mapping);
            if (at < 0 && at > -4096) break;
            for (long i = 0; i < 1 << 20; i += 4096) *(volatile char *)(at + i) = 1;
        }
        return copy(duck, &got, 8);
    }
    case act_ib: {
        if (duck->ib == 0) return -2;
        const uint64_t said[3] = {duck->ib_bytes, *(const uint64_t *)duck->ib, (uint64_t)duck->ib};
        return copy(duck, said, 24);
    }
    case act_cores: {
        uint64_t *sums = (uint64_t *)duck->ob;
        sums[core] = core + 1;
        duck_barrier(duck);
        if (core != 0) return 0;
        uint64_t sum = 0;
        for (uint32_t i = 0; i < duck->cores; ++i) sum += sums[i];
        sums[0] = sum;
        return 8;
    }
    case act_invalid: __asm__ volatile("ud2"); return 0;
    case act_narrow: __asm__ volatile("int $0x80" ::"a"(1), "b"(0)); return 0;
    case act_jump: ((void (*)(void))a[1])(); return 0;
    case act_addresses: {
        const uint64_t said[4] = {(uint64_t)duck, (uint64_t)duck->serve, (uint64_t)duck->ob, (uint64_t)&counter};
        return copy(duck, said, 32);
    }
    case act_serve: return duck->serve(duck, (const duck_program_t *)a[1]);
    case act_sum: {
        uint64_t sum = 0;
        const uint64_t *words = (const uint64_t *)duck->ib;
        for (uint64_t i = core; i < duck->ib_bytes / 8; i += duck->cores) sum += words[i];
        return copy(duck, &sum, 8);
    }
    case act_pretend: {
        volatile uint64_t *page = (volatile uint64_t *)a[1];
        page[a[2] / 8] = page[4096 / 8];
        for (;;) __asm__ volatile("pause");
    }
    case act_steal: return steal(duck, a[1]);
    case act_forge: {
        volatile uint64_t *answer = (volatile uint64_t *)a[1], *ask = (volatile uint64_t *)a[2];
        for (const uint64_t result = a[3];;) {
            answer[1] = result;
            answer[0] = ask[0];
        }
    }
    }
    return -1000;
}

int64_t duck_call(const duck_t *duck, const void *args, uint64_t bytes, uint32_t core) {
    if (bytes < 8) return -1001;
    return act(duck, args, bytes, core);
}
