/* What compilers call without being asked (memcpy and so on), for programs without a libc.
 *
 * All weak, so that a program may have better ones. The compiler must not see memcpy() in the loop that is memcpy(): compiled with
 * -fno-builtin, and for gcc with what follows.
 */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-tree-loop-distribute-patterns")
#endif

#include <stddef.h>
#include <stdint.h>

#define WEAK __attribute__((weak))

WEAK void *memcpy(void *restrict to, const void *restrict from, size_t n) {
#if defined(__x86_64__) || defined(__i386__)
    void *at = to;
    __asm__ volatile("rep movsb" : "+D"(at), "+S"(from), "+c"(n) : : "memory");
#else
    for (size_t i = 0; i < n; ++i) ((char *)to)[i] = ((const char *)from)[i];
#endif
    return to;
}

WEAK void *memmove(void *to, const void *from, size_t n) {
    char *t = (char *)to;
    const char *f = (const char *)from;
    if (t <= f || t >= f + n) return memcpy(to, from, n);
    while (n >= 8) { /* from the end: they overlap */
        n -= 8;
        uint64_t word;
        __builtin_memcpy(&word, f + n, 8);
        __builtin_memcpy(t + n, &word, 8);
    }
    while (n > 0) {
        --n;
        t[n] = f[n];
    }
    return to;
}

WEAK void *memset(void *to, int value, size_t n) {
#if defined(__x86_64__) || defined(__i386__)
    void *at = to;
    __asm__ volatile("rep stosb" : "+D"(at), "+c"(n) : "a"(value) : "memory");
#else
    for (size_t i = 0; i < n; ++i) ((char *)to)[i] = (char)value;
#endif
    return to;
}

WEAK int memcmp(const void *a, const void *b, size_t n) {
    const unsigned char *x = (const unsigned char *)a, *y = (const unsigned char *)b;
    for (size_t i = 0; i < n; ++i)
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    return 0;
}

WEAK int bcmp(const void *a, const void *b, size_t n) { return memcmp(a, b, n); }

WEAK size_t strlen(const char *text) {
    size_t n = 0;
    while (text[n] != 0) ++n;
    return n;
}

/* What compilers' runtime parts ask for when something is beyond repair. */
WEAK __attribute__((noreturn)) void abort(void) { __builtin_trap(); }

/* C++: objects that live until the program ends are never destroyed, because it ends as a whole; there is no heap to give anything back to. */
WEAK __attribute__((visibility("hidden"))) void *__dso_handle = 0;
WEAK int __cxa_atexit(void (*destroy)(void *), void *object, void *dso) {
    (void)destroy, (void)object, (void)dso;
    return 0;
}
WEAK __attribute__((noreturn)) void __cxa_pure_virtual(void) { __builtin_trap(); }
WEAK void _ZdlPv(void *object) { /* operator delete(void*), named by virtual destructors */
    (void)object;
    __builtin_trap();
}
WEAK void _ZdlPvm(void *object, size_t bytes) {
    (void)object, (void)bytes;
    __builtin_trap();
}

#if defined(__i386__)
/* Division of 64 bits, where there is no 32-bit libgcc. */
static inline uint64_t divided_(uint64_t n, uint64_t d, uint64_t *rest) {
    uint64_t quotient = 0, left = 0;
    for (int bit = 63; bit >= 0; --bit) {
        left = left << 1 | (n >> bit & 1);
        if (left < d) continue;
        left -= d;
        quotient |= (uint64_t)1 << bit;
    }
    *rest = left;
    return quotient;
}
WEAK uint64_t __udivdi3(uint64_t n, uint64_t d) {
    uint64_t rest;
    return divided_(n, d, &rest);
}
WEAK uint64_t __umoddi3(uint64_t n, uint64_t d) {
    uint64_t rest;
    divided_(n, d, &rest);
    return rest;
}
WEAK int64_t __divdi3(int64_t n, int64_t d) {
    uint64_t rest;
    const uint64_t q = divided_(n < 0 ? -(uint64_t)n : (uint64_t)n, d < 0 ? -(uint64_t)d : (uint64_t)d, &rest);
    return (int64_t)((n < 0) != (d < 0) ? -q : q);
}
WEAK int64_t __moddi3(int64_t n, int64_t d) {
    uint64_t rest;
    divided_(n < 0 ? -(uint64_t)n : (uint64_t)n, d < 0 ? -(uint64_t)d : (uint64_t)d, &rest);
    return (int64_t)(n < 0 ? -rest : rest);
}
#endif
