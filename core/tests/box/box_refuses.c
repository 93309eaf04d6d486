/* A resident program that does not want to be one. */
#include <duck.h>

int duck_init(const duck_t *duck) {
    duck->log(duck, "not today\n", 10);
    return 7;
}

int64_t duck_call(const duck_t *duck, const void *args, uint64_t bytes, uint32_t core) {
    (void)duck, (void)args, (void)bytes, (void)core;
    return 0;
}
