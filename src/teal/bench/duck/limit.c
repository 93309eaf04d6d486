/* What this machine can do for gemv.c at most: the same loop in plain threads, without a duck, by one core and by two.
 *
 *     limit KIND BYTES COLUMNS TRIES CPU CPU
 *
 * KIND is the memory that the weights lie in: `memfd`, mapped as a duck maps an input buffer; `anonymous`; `huge`, the same in pages of 2 MiB.
 * Two lines of TRIES times in ns: one core's, two cores'. One of each in turn.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "rows.h"

enum { most_tries = 1000, large_page = 2 << 20 };

static struct {
    const float *weights;
    float *x, *y;
    uint64_t rows, columns;
    int cpu;
} job;
static uint64_t go, back;   /* how often the second core was asked, and has answered */

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void pin(int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) exit(3);
}

static void part(uint64_t core, uint64_t cores) {
    const uint64_t first = job.rows * core / cores, end = job.rows * (core + 1) / cores;
    rows_wide(job.weights + first * job.columns, job.x, job.y + first, end - first, job.columns);
}

static void *second(void *unused) {
    pin(job.cpu);
    for (uint64_t seen = 0;; ++seen) {
        /* SYNC: pairs with the release in run(). */
        while (__atomic_load_n(&go, __ATOMIC_ACQUIRE) == seen) sched_yield();
        part(1, 2);
        /* SYNC: pairs with the acquire in run(). */
        __atomic_store_n(&back, seen + 1, __ATOMIC_RELEASE);
    }
    return unused;
}

static uint64_t run(uint64_t cores) {
    const uint64_t start = now_ns();
    if (cores == 2) __atomic_store_n(&go, go + 1, __ATOMIC_RELEASE);
    part(0, cores);
    while (__atomic_load_n(&back, __ATOMIC_ACQUIRE) != go) sched_yield();
    return now_ns() - start;
}

static const float *memory(const char *kind, uint64_t bytes) {
    const int file = strcmp(kind, "memfd") == 0 ? memfd_create("limit", MFD_CLOEXEC) : -1;
    if (file >= 0 && ftruncate(file, (off_t)bytes) != 0) exit(2);
    char *at = mmap(0, bytes + large_page, PROT_READ | PROT_WRITE, file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, file, 0);
    if (at == MAP_FAILED) exit(2);
    at += -(uintptr_t)at % large_page * (file < 0);
    if (file < 0 && madvise(at, bytes, strcmp(kind, "huge") == 0 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) != 0) exit(4);
    memset(at, 1, bytes);
    if (file < 0) return (const float *)at;
    at = mmap(0, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
    return at == MAP_FAILED ? (exit(2), (const float *)0) : (const float *)at;
}

int main(int count, char **words) {
    static uint64_t took[2][most_tries];
    if (count != 7 || duck_isa() < DUCK_AVX2) return 1;
    const uint64_t bytes = strtoull(words[2], 0, 10);
    const int tries = atoi(words[4]) < most_tries ? atoi(words[4]) : most_tries;
    job.columns = strtoull(words[3], 0, 10);
    if (job.columns == 0 || job.columns % 32 != 0 || tries < 1) return 1;
    job.rows = bytes / 4 / job.columns;
    job.cpu = atoi(words[6]);
    job.weights = memory(words[1], bytes);
    job.x = calloc(job.columns, 4), job.y = calloc(job.rows + 1, 4);
    pthread_t thread;
    if (job.x == 0 || job.y == 0 || pthread_create(&thread, 0, second, 0) != 0) return 2;
    pin(atoi(words[5]));
    run(2);
    for (int i = 0; i < tries; ++i)
        for (int cores = 1; cores <= 2; ++cores) took[cores - 1][i] = run((uint64_t)cores);
    for (int cores = 0; cores < 2; ++cores)
        for (int i = 0; i < tries; ++i) printf("%llu%c", (unsigned long long)took[cores][i], i + 1 < tries ? ' ' : '\n');
    return 0;
}
