/* A program whose file is a megabyte long, none of it zeros; -DTEAL_CHANGED=2 changes 4 KiB of it. */
#include <duck.h>

#ifndef TEAL_CHANGED
#define TEAL_CHANGED 1
#endif
enum { page = 4096, pages = 252 };
static const uint8_t padding[pages * page] = {[0 ... pages * page - 1] = 7};
static const uint8_t changed[page] = {[0 ... page - 1] = TEAL_CHANGED};

int64_t duck_call(const duck_t *duck, const void *args, uint64_t bytes, uint32_t core) {
    const volatile uint8_t *from = padding, *more = changed;
    (void)duck, (void)args, (void)core;
    return from[bytes % sizeof padding] + more[bytes % sizeof changed];
}
