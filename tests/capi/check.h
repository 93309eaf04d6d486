/* The smallest harness that does: a failed check prints where and what, and the test goes on. Checks may run in several threads.
 *
 *     int main(int argc, char **argv) {
 *         CHECK(1 + 1 == 2);
 *         CHECK_STATUS(laika_finalize(), LAIKA_ERR_NOT_INITIALIZED);   (prints laika_last_error() when it is another)
 *         return check_summary();
 *     }
 */
#ifndef CHECK_H
#define CHECK_H

#include <laika.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static atomic_ulong check_passed, check_failed;

static inline int check_record(int good, const char *text, const char *file, int line) {
    atomic_fetch_add(good ? &check_passed : &check_failed, 1);
    if (!good) fprintf(stderr, "%s:%d: CHECK failed: %s\n", file, line, text);
    return good;
}

static inline int check_status(laika_status_t got, laika_status_t wanted, const char *text, const char *file, int line) {
    if (check_record(got == wanted, text, file, line)) return 1;
    fprintf(stderr, "    got %d (%s), expected %d; last error: %s\n", (int)got, laika_strerror(got), (int)wanted, laika_last_error());
    return 0;
}

static inline int check_error(laika_status_t got, laika_status_t wanted, const char *words, const char *text, const char *file, int line) {
    if (!check_status(got, wanted, text, file, line)) return 0;
    const int good = strstr(laika_last_error(), words) != NULL;
    if (!good) fprintf(stderr, "    '%s' is not in: %s\n", words, laika_last_error());
    return check_record(good, text, file, line);
}

static inline int check_summary(void) {
    printf("%lu passed, %lu failed\n", atomic_load(&check_passed), atomic_load(&check_failed));
    return atomic_load(&check_failed) == 0 ? 0 : 1;
}

#define CHECK(condition) check_record(!!(condition), #condition, __FILE__, __LINE__)
#define CHECK_STATUS(call, wanted) check_status((call), (wanted), #call, __FILE__, __LINE__)
#define CHECK_OK(call) CHECK_STATUS(call, LAIKA_OK)
/* The message has these words too. */
#define CHECK_ERROR(call, wanted, words) check_error((call), (wanted), (words), #call, __FILE__, __LINE__)

/* Without this the rest of a test makes no sense. */
#define NEED(call)                                                                            \
    do {                                                                                      \
        if (!CHECK_OK(call)) exit(check_summary());                                           \
    } while (0)

static inline laika_tensor_t vector_of(void *data, laika_dtype_t dtype, int64_t n) {
    laika_tensor_t tensor = {data, dtype, 1, {n}};
    return tensor;
}

/* Mapped shared memory for both directions. */
static inline void *shared(size_t bytes, laika_shm_t *shm) {
    void *data = NULL;
    NEED(laika_shm_alloc(bytes, LAIKA_SHM_INPUT | LAIKA_SHM_OUTPUT, shm));
    NEED(laika_shm_map(*shm, &data));
    return data;
}

static inline laika_statistics_t statistics(void) {
    laika_statistics_t found = {0};
    CHECK_OK(laika_statistics(&found, sizeof found));
    return found;
}

#endif
