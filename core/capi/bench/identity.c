/* Times laika_infer on builtin:identity, whole calls as a C program makes them, and prints one line of JSON.
 *
 *     laika-bench ADDRESS BYTES CALLS CORE [turns]
 *
 * Theory of operation: three ways. in_place: input and output are the same shared memory, which identity's signature allows, so that
 * nothing but the call itself passes between the cores, as in Teal's other identity figures. moved: the output is other shared
 * memory, so that the worker fetches and writes the bytes. copied: both lie on the heap, one counted copy each way. Every call is timed
 * by itself with CLOCK_MONOTONIC; what reading it twice costs is measured too and stated, not subtracted. The input is written anew
 * before each call, outside of the time. CORE -1: wherever the system puts it. turns: before and after each way a line "begin" or
 * "end" is printed and a line is read, so that whoever started this can tell what each way costs.
 */
#define _GNU_SOURCE
#include <laika.h>

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int turns;

static void turn(const char *which) {
    if (!turns) return;
    printf("%s\n", which);
    fflush(stdout);
    if (getchar() == EOF) exit(1);
}

static int by_size(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void need(laika_status_t status) {
    if (status == LAIKA_OK) return;
    fprintf(stderr, "laika-bench: %s\n", laika_last_error());
    exit(1);
}

static void print_times(const char *name, uint64_t *times, size_t n) {
    qsort(times, n, sizeof *times, by_size);
    printf("\"%s\": {\"p50_ns\": %" PRIu64 ", \"p99_ns\": %" PRIu64 ", \"p999_ns\": %" PRIu64 ", \"min_ns\": %" PRIu64 "}", name, times[n / 2],
           times[n - n / 100 - 1], times[n - n / 1000 - 1], times[0]);
}

static void measure(laika_model_t model, unsigned char *in, unsigned char *out, int64_t bytes, uint64_t *times, size_t n) {
    const laika_tensor_t input = {in, LAIKA_UINT8, 1, {bytes}};
    laika_tensor_t output = {out, LAIKA_UINT8, 1, {bytes}};
    turn("begin");
    for (size_t i = 0; i < n + n / 10; ++i) { /* the first tenth warms up */
        in[0] = (unsigned char)i;
        const uint64_t start = now();
        const laika_status_t status = laika_infer(model, &input, 1, &output, 1);
        const uint64_t end = now();
        need(status);
        if (out[0] != in[0]) {
            fprintf(stderr, "laika-bench: a wrong answer\n");
            exit(1);
        }
        if (i >= n / 10) times[i - n / 10] = end - start;
    }
    turn("end");
}

int main(int argc, char **argv) {
    if (argc != 5 && (argc != 6 || strcmp(argv[5], "turns") != 0)) {
        fprintf(stderr, "usage: laika-bench ADDRESS BYTES CALLS CORE [turns]\n");
        return 2;
    }
    const int64_t bytes = strtoll(argv[2], NULL, 10);
    const size_t n = strtoul(argv[3], NULL, 10);
    const int core = atoi(argv[4]);
    if (bytes < 1 || n < 1000) {
        fprintf(stderr, "laika-bench: expected BYTES >= 1 and CALLS >= 1000\n");
        return 2;
    }
    if (core >= 0) {
        cpu_set_t only;
        CPU_ZERO(&only);
        CPU_SET((size_t)core, &only);
        if (sched_setaffinity(0, sizeof only, &only) != 0) {
            perror("laika-bench: sched_setaffinity");
            return 1;
        }
    }
    laika_model_t model;
    laika_shm_t shm;
    void *shared;
    const size_t half = ((size_t)bytes + 4095) / 4096 * 4096;
    need(laika_init(argv[1], LAIKA_INIT_DEFAULT));
    need(laika_model_load("builtin:identity", LAIKA_MODEL_DEFAULT, &model));
    need(laika_shm_alloc(2 * half, LAIKA_SHM_INPUT | LAIKA_SHM_OUTPUT, &shm));
    need(laika_shm_map(shm, &shared));
    uint64_t *times = malloc(3 * n * sizeof *times), clock[1001];
    unsigned char *own = calloc(2, (size_t)bytes);
    if (times == NULL || own == NULL) return 1;
    for (int i = 0; i < 1001; ++i) {
        const uint64_t start = now();
        clock[i] = now() - start;
    }
    uint64_t *in_place = times, *moved = times + n, *copied = times + 2 * n;
    laika_statistics_t before, after;
    turns = argc == 6;
    measure(model, shared, shared, bytes, in_place, n);
    measure(model, shared, (unsigned char *)shared + half, bytes, moved, n);
    need(laika_statistics(&before, sizeof before));
    measure(model, own, own + bytes, bytes, copied, n);
    need(laika_statistics(&after, sizeof after));
    printf("{\"bytes\": %" PRId64 ", \"calls\": %zu, \"warm\": %zu, ", bytes, n, n / 10);
    print_times("clock", clock, 1001);
    printf(", ");
    print_times("in_place", in_place, n);
    printf(", ");
    print_times("moved", moved, n);
    printf(", ");
    print_times("copied", copied, n);
    printf(", \"copies_shared\": %" PRIu64 ", \"copies_copied\": %" PRIu64 "}\n", before.copies_in + before.copies_out, after.copies_in + after.copies_out);
    need(laika_finalize());
    free(times);
    free(own);
    return 0;
}
