/* Arithmetic that waits for itself: nothing but the core's clock. */
#include "benchset.h"

int duck_main(duckinfo_t *info) {
    const work_t work = work_of(info);
    uint64_t x = 1;
    for (uint64_t i = 0; i < work.rounds; ++i) x = x * 6364136223846793005u + i;
    return answer(info, x);
}
