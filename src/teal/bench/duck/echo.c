/* The program that calls are timed with: its answer is its arguments. */
#include <duck.h>

int64_t duck_call(const duck_t *duck, const void *args, uint64_t bytes, uint32_t core) {
    (void)core;
    if (bytes > duck->ob_bytes) return -1;
    const uint8_t *from = args;
    uint8_t *to = duck->ob;
    for (uint64_t i = 0; i < bytes; ++i) to[i] = from[i];
    return (int64_t)bytes;
}
