/* A walk through `size` bytes, a cache line at a time, in an order that no prefetcher knows: each step waits for the one before. */
#include "benchset.h"

#define LINE 64u

int duck_main(duckinfo_t *info) {
    const work_t work = work_of(info);
    const uint64_t lines = work.size / LINE;
    if (lines < 2) return 2;
    char *memory = free_memory();
    /* One cycle through all lines (Sattolo). */
    for (uint64_t i = 0; i < lines; ++i) *(uint64_t *)(memory + i * LINE) = i;
    uint64_t state = 88172645463325252u;
    for (uint64_t i = lines - 1; i > 0; --i) {
        const uint64_t j = next_random(&state) % i;
        const uint64_t kept = *(uint64_t *)(memory + i * LINE);
        *(uint64_t *)(memory + i * LINE) = *(uint64_t *)(memory + j * LINE);
        *(uint64_t *)(memory + j * LINE) = kept;
    }
    uint64_t at = 0, sum = 0;
    for (uint64_t i = 0; i < work.rounds; ++i) {
        at = *(uint64_t *)(memory + at * LINE);
        sum += at;
    }
    return answer(info, sum);
}
