/* A resident program with thread-local variables of many alignments, for box_locals_test.cpp: each core looks at its own. The sizes are odd
   and the largest alignment is far more than a thread area has by itself, so that a wrong distance from the thread pointer shows. */
#include <duck.h>

static _Thread_local volatile char letters[3] = "ab";
static _Thread_local volatile uint64_t words[5] = {11, 12, 13, 14, 15};
static _Thread_local __attribute__((aligned(TEAL_LOCALS_ALIGN))) volatile uint32_t wide[3] = {0xabcd, 0xbcde, 0xcdef};
static _Thread_local volatile uint16_t zeros[7];
static _Thread_local volatile uint8_t last = 0x5a;

/* One bit for each thing that is wrong. */
static uint64_t look(void) {
    uint64_t wrong = 0;
    wrong |= (uint64_t)(letters[0] != 'a' || letters[1] != 'b' || letters[2] != 0) << 0;
    for (uint64_t i = 0; i < 5; ++i) wrong |= (uint64_t)(words[i] != 11 + i) << 1;
    wrong |= (uint64_t)(wide[0] != 0xabcd || wide[1] != 0xbcde || wide[2] != 0xcdef) << 2;
    wrong |= (uint64_t)(((uintptr_t)wide & (TEAL_LOCALS_ALIGN - 1)) != 0) << 3;
    for (int i = 0; i < 7; ++i) wrong |= (uint64_t)(zeros[i] != 0) << 4;
    wrong |= (uint64_t)(last != 0x5a) << 5;
    return wrong;
}

/* Into the output buffer, for each core: what was wrong, the address of its own variable, and how often it was called. */
int64_t duck_call(const duck_t *duck, const void *args, uint64_t bytes, uint32_t core) {
    (void)args, (void)bytes;
    static _Thread_local uint64_t calls;
    uint64_t *said = (uint64_t *)duck->ob + core * 3;
    if (calls == 0) said[0] = look();
    said[1] = (uint64_t)&calls;
    said[2] = ++calls;
    zeros[3] = (uint16_t)core;
    duck_barrier(duck);   /* nobody's writes are seen by another */
    said[0] |= (uint64_t)(zeros[3] != core) << 6;
    return (int64_t)(duck->cores * 24);
}
