/* `rounds` exceptions: page faults, one for each page that is touched for the first time. */
#include "benchset.h"

int duck_main(duckinfo_t *info) {
    const uint64_t count = work_of(info).rounds;
    volatile char *memory = free_memory();
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; ++i) {
        sum += (uint64_t)(unsigned char)memory[i * 4096] + i;
        memory[i * 4096] = 1;
    }
    return answer(info, sum);
}
