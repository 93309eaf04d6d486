/* Radix sort of `rounds` 32-bit numbers, a byte a pass: streams to 256 places. */
#include "benchset.h"

int duck_main(duckinfo_t *info) {
    const uint64_t count = work_of(info).rounds;
    uint32_t *from = free_memory(), *to = from + count;
    uint64_t state = 88172645463325252u, sum = 0;
    for (uint64_t i = 0; i < count; ++i) from[i] = (uint32_t)next_random(&state);
    for (unsigned shift = 0; shift < 32; shift += 8) {
        uint64_t place[257] = {0};
        for (uint64_t i = 0; i < count; ++i) ++place[(from[i] >> shift & 255) + 1];
        for (unsigned i = 0; i < 256; ++i) place[i + 1] += place[i];
        for (uint64_t i = 0; i < count; ++i) to[place[from[i] >> shift & 255]++] = from[i];
        uint32_t *kept = from;
        from = to;
        to = kept;
    }
    for (uint64_t i = 0; i < count; ++i) {
        if (i > 0 && from[i - 1] > from[i]) return 1;
        sum += from[i] * (i + 1);
    }
    return answer(info, sum);
}
