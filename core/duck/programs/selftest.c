/* What `teal duck selftest` runs, and the tests of the duck: one resident program that does what its first byte of arguments says. */
#include <duck.h>

static uint64_t calls;
static uint32_t marks[64];

static int64_t copy(void *to, const uint8_t *from, uint64_t bytes) {
    uint8_t *out = to;
    for (uint64_t i = 0; i < bytes; ++i) out[i] = from[i];
    return (int64_t)bytes;
}

static int64_t put(const duck_t *duck, uint64_t value) { return copy(duck->ob, (const uint8_t *)&value, sizeof value); }

/* The bytes of the input buffer, added up by all cores together. */
static int64_t sum(const duck_t *duck, uint32_t core) {
    static uint64_t parts[64];
    const uint8_t *ib = duck->ib;
    uint64_t total = 0;
    const uint64_t share = duck->ib_bytes / duck->cores, first = core * share;
    const uint64_t last = core + 1 == duck->cores ? duck->ib_bytes : first + share;
    for (uint64_t i = first; i < last; ++i) total += ib[i];
    parts[core] = total;
    duck_barrier(duck);
    if (core != 0) return 0;
    total = 0;
    for (uint32_t i = 0; i < duck->cores; ++i) total += parts[i];
    return put(duck, total);
}

static int64_t forbidden(void) {
#if defined(__x86_64__)
    int64_t result = 41; /* socket(AF_INET, SOCK_STREAM, 0) */
    __asm__ volatile("syscall" : "+a"(result) : "D"(2L), "S"(1L), "d"(0L) : "rcx", "r11", "memory");
    return result;
#else
    return -1;
#endif
}

static void leave(int status) {
#if defined(__x86_64__)
    int64_t number = 231;
    __asm__ volatile("syscall" : "+a"(number) : "D"((long)status) : "rcx", "r11", "memory");
#else
    (void)status;
    __builtin_trap();
#endif
}

int duck_init(const duck_t *duck) {
    duck->log(duck, "selftest is here\n", 17);
    return 0;
}

int64_t duck_call(const duck_t *duck, const void *args, uint64_t bytes, uint32_t core) {
    const uint8_t *text = args;
    const uint8_t what = bytes == 0 ? 'e' : text[0];
    if (what == 's') return sum(duck, core);
    if (what == 'm') { /* who is there? */
        marks[core] = 1;
        duck_barrier(duck);
        uint64_t there = 0;
        for (uint32_t i = 0; i < duck->cores; ++i) there += marks[i];
        duck_barrier(duck);
        marks[core] = 0;
        return core == 0 ? put(duck, there) : 0;
    }
    if (core != 0) return 0;
    switch (what) {
        case 'e': return bytes > duck->ob_bytes ? -7 : copy(duck->ob, text, bytes);
        case 'c': return put(duck, ++calls);
        case 'n': return -(int64_t)(bytes > 1 ? text[1] : 1);
        case 'i': return put(duck, duck->ib_bytes);
        case 'p': { /* nanoseconds that it took to count them */
            const uint64_t until = duck_clock_ns(duck) + (bytes > 1 ? text[1] : 1) * 1000000u;
            while (duck_clock_ns(duck) < until) {
            }
            return put(duck, until);
        }
        case 'l': duck->log(duck, (const char *)text + 1, bytes - 1); return 0;
        case 'w': ((volatile uint8_t *)duck->ib)[0] = 1; return 0; /* is not allowed */
        case 'x': *(volatile int *)8 = 1; return 0;                 /* dies */
        case 'f': for (;;) __asm__ volatile("" ::: "memory");       /* never returns */
        case 'k': return put(duck, (uint64_t)forbidden());
        case 'q': leave(3); return 0;
        default: return -1;
    }
}
