/* `size` bytes written, flushed from all caches line by line, and read again; `rounds` times. */
#include "benchset.h"

#define LINE 64u

int duck_main(duckinfo_t *info) {
    const work_t work = work_of(info);
    volatile char *memory = free_memory();
    uint64_t sum = 0;
    for (uint64_t round = 0; round < work.rounds; ++round) {
        for (uint64_t at = 0; at + LINE <= work.size; at += LINE) *(volatile uint64_t *)(memory + at) = at + round;
        for (uint64_t at = 0; at + LINE <= work.size; at += LINE) __asm__ volatile("clflush (%0)" : : "r"(memory + at) : "memory");
        __asm__ volatile("mfence" : : : "memory");
        for (uint64_t at = 0; at + LINE <= work.size; at += LINE) sum += *(volatile uint64_t *)(memory + at);
    }
    return answer(info, sum);
}
