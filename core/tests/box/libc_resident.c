/* A resident program with a libc: what it keeps lies on the heap. */
#include <duck.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *kept;
static _Thread_local int calls;

int duck_init(const duck_t *duck) {
    kept = malloc(100);
    return kept == NULL || duck->abi != DUCK_ABI;
}

int64_t duck_call(const duck_t *duck, const void *args, uint64_t bytes, uint32_t core) {
    (void)core;
    ++calls;
    if (bytes >= 100) return -1;
    memcpy(kept, args, bytes);
    kept[bytes] = 0;
    printf("goes nowhere\n");
    return snprintf(duck->ob, duck->ob_bytes, "%s %d", kept, calls);
}

void duck_exit(const duck_t *duck) {
    (void)duck;
    free(kept);
}

DUCK_MAIN
