/* Sorts the uint32 numbers of the input buffer into the output buffer, which has to have room for them twice (radix sort wants to move
 * them to and fro). All cores take part: each counts and moves its own stretch of the numbers.
 *
 *     teal duck cc sort.c -o sort.elf -O 3
 *     teal duck run sort.elf --ib numbers.bin --ob 16M --cores 2 < /dev/null > sorted.bin
 *
 *     with teal.Duck() as duck, duck.open("sort.elf", cores=2, ob=2 * numbers.nbytes) as sort:
 *         sort.map(numbers)
 *         sorted = np.frombuffer(sort.call(), np.uint32)
 */
#include <duck.h>

enum { most_cores = 64, digit_bits = 8, digits = 1 << digit_bits };
static uint64_t place[most_cores][digits]; /* first how many of each digit, then where the next one goes */

static void turn_counts_to_places(uint32_t cores) {
    uint64_t at = 0;
    for (uint32_t digit = 0; digit < digits; ++digit)
        for (uint32_t core = 0; core < cores; ++core) {
            const uint64_t count = place[core][digit];
            place[core][digit] = at;
            at += count;
        }
}

int64_t duck_call(const duck_t *duck, const void *args, uint64_t bytes, uint32_t core) {
    (void)args;
    if (bytes != 0 || duck->cores > most_cores) return -1;
    const uint64_t count = duck->ib_bytes / 4;
    if (duck->ob_bytes / 8 < count) return -2; /* no room: the same answer on every core, so nobody waits for anybody */
    uint32_t *const halves[2] = {duck->ob, (uint32_t *)duck->ob + count};
    const uint64_t begin = count * core / duck->cores, end = count * (core + 1) / duck->cores;
    for (uint32_t pass = 0; pass < 4; ++pass) {
        const uint32_t *const from = pass == 0 ? duck->ib : halves[pass & 1];
        uint32_t *const to = halves[(pass & 1) ^ 1];
        const uint32_t shift = pass * digit_bits;
        uint64_t *const mine = place[core];
        for (uint32_t digit = 0; digit < digits; ++digit) mine[digit] = 0;
        for (uint64_t i = begin; i < end; ++i) ++mine[from[i] >> shift & (digits - 1)];
        duck_barrier(duck);
        if (core == 0) turn_counts_to_places(duck->cores);
        duck_barrier(duck);
        for (uint64_t i = begin; i < end; ++i) to[mine[from[i] >> shift & (digits - 1)]++] = from[i];
        duck_barrier(duck);
    }
    return (int64_t)(count * 4); /* four passes: they lie in the first half again */
}
