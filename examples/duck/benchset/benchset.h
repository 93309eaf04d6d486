/* What the programs of the benchmark set share: two numbers on stdin (size, rounds), a checksum on stdout, memory of the program's region.
 *
 *     teal duck classic benchset
 */
#ifndef BENCHSET_H
#define BENCHSET_H

#include <duckinfo.h>

static inline uint64_t next_number(const char **at, const char *end) {
    uint64_t number = 0;
    while (*at != end && (**at < '0' || **at > '9')) ++*at;
    for (; *at != end && **at >= '0' && **at <= '9'; ++*at) number = number * 10 + (uint64_t)(**at - '0');
    return number;
}

typedef struct {
    uint64_t size, rounds;
} work_t;

static inline work_t work_of(const duckinfo_t *info) {
    const char *at = (const char *)(uintptr_t)info->stdin_ptr, *end = at + info->stdin_size;
    work_t work;
    work.size = next_number(&at, end);
    work.rounds = next_number(&at, end);
    return work;
}

/* The region behind the program's image: pages of zeros, up to the stack. The judge's memory limit says how many there are. */
extern char end_of_image[] __asm__("_end");
static inline void *free_memory(void) { return (void *)(((uintptr_t)end_of_image + 4095) & ~(uintptr_t)4095); }

/* xorshift64: the same numbers in every run. */
static inline uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline int answer(duckinfo_t *info, uint64_t sum) {
    duckinfo_print_number(info, sum, '\n');
    return 0;
}

#endif
