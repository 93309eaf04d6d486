/* threads.c ADDRESS ROUNDS: everything from several threads at once, and finalize under them. */
#include "check.h"

#include <pthread.h>

static laika_model_t identity, sum;
static int rounds = 2000;
static atomic_int stopped;
static uint8_t *common;

static void *calls(void *argument) { /* own tensors, in shared memory and not; and all threads on the same ones */
    const int me = (int)(intptr_t)argument;
    laika_shm_t shm;
    uint8_t *data = shared(256, &shm), a[64], b[64];
    for (int i = 0; i < rounds; ++i) {
        memset(data, me + i, 64);
        laika_tensor_t in = vector_of(data, LAIKA_UINT8, 64), out = vector_of(data + 128, LAIKA_UINT8, 64);
        CHECK_OK(laika_infer(identity, &in, 1, &out, 1));
        if (memcmp(data, data + 128, 64) != 0) CHECK(!"an answer of another call");
        memset(a, me * 3 + i, 64);
        laika_tensor_t in2 = vector_of(a, LAIKA_UINT8, 64), out2 = vector_of(b, LAIKA_UINT8, 64);
        CHECK_OK(laika_infer(identity, &in2, 1, &out2, 1));
        if (memcmp(a, b, 64) != 0) CHECK(!"an answer of another call");
        laika_tensor_t in3 = vector_of(common, LAIKA_UINT8, 64), out3 = vector_of(common + 128, LAIKA_UINT8, 64);
        CHECK_OK(laika_infer(identity, &in3, 1, &out3, 1));
    }
    CHECK_OK(laika_shm_free(shm));
    return NULL;
}

static void *loads(void *argument) {
    (void)argument;
    for (int i = 0; i < rounds / 50 + 1; ++i) {
        laika_model_t model;
        if (!CHECK_OK(laika_model_load("builtin:sum", 0, &model))) continue;
        float x[2] = {1, 2};
        double y = 0;
        laika_tensor_t in = vector_of(x, LAIKA_FLOAT32, 2), out = {&y, LAIKA_FLOAT64, 0, {0}};
        CHECK_OK(laika_infer(model, &in, 1, &out, 1));
        CHECK(y == 3);
        CHECK_OK(laika_model_unload(model));
    }
    return NULL;
}

static void *memory(void *argument) {
    (void)argument;
    for (int i = 0; i < rounds / 5 + 1; ++i) {
        laika_shm_t shm;
        float *x = shared(4096 + (size_t)(i % 7) * 1000, &shm);
        double y = 0;
        x[0] = 5;
        laika_tensor_t in = vector_of(x, LAIKA_FLOAT32, 100), out = {&y, LAIKA_FLOAT64, 0, {0}};
        CHECK_OK(laika_infer(sum, &in, 1, &out, 1));
        CHECK(y == 5);
        CHECK_OK(laika_shm_free(shm));
    }
    return NULL;
}

/* From here on somebody calls laika_finalize: until then calls work, from then on they say so. */
static void *until_the_end(void *argument) {
    (void)argument;
    uint8_t a[64] = {1}, b[64];
    laika_tensor_t in = vector_of(a, LAIKA_UINT8, 64), out = vector_of(b, LAIKA_UINT8, 64);
    for (;;) {
        const laika_status_t status = laika_infer(identity, &in, 1, &out, 1);
        if (status == LAIKA_OK) continue;
        CHECK_STATUS(status, LAIKA_ERR_NOT_INITIALIZED);
        break;
    }
    atomic_fetch_add(&stopped, 1);
    return NULL;
}

static void *sleeps(void *argument) {
    laika_model_t *sleeper = argument;
    int64_t us = 1000000, made = 0;
    laika_tensor_t in = {&us, LAIKA_INT64, 0, {0}}, out = {&made, LAIKA_INT64, 0, {0}};
    CHECK_STATUS(laika_infer(*sleeper, &in, 1, &out, 1), LAIKA_ERR_NOT_INITIALIZED);
    atomic_fetch_add(&stopped, 1);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc > 2) rounds = atoi(argv[2]);
    NEED(laika_init(argv[1], LAIKA_INIT_DEFAULT));
    NEED(laika_model_load("builtin:identity", 0, &identity));
    NEED(laika_model_load("builtin:sum", 0, &sum));
    laika_shm_t shm;
    common = shared(256, &shm);
    pthread_t threads[8];
    for (int i = 0; i < 4; ++i) pthread_create(&threads[i], NULL, calls, (void *)(intptr_t)i);
    pthread_create(&threads[4], NULL, loads, NULL);
    pthread_create(&threads[5], NULL, loads, NULL);
    pthread_create(&threads[6], NULL, memory, NULL);
    pthread_create(&threads[7], NULL, memory, NULL);
    for (int i = 0; i < 8; ++i) pthread_join(threads[i], NULL);
    CHECK(statistics().failed == 0);
    CHECK_OK(laika_shm_free(shm));

    for (int i = 0; i < 3; ++i) pthread_create(&threads[i], NULL, until_the_end, NULL);
    const uint64_t before = statistics().calls;
    while (statistics().calls < before + 100) {}
    CHECK_OK(laika_finalize());
    for (int i = 0; i < 3; ++i) pthread_join(threads[i], NULL);
    CHECK(atomic_load(&stopped) == 3);

    NEED(laika_init(argv[1], LAIKA_INIT_DEFAULT)); /* one that would sleep a second: the worker does, whoever waits */
    laika_model_t sleeper;
    NEED(laika_model_load("builtin:sleep", 0, &sleeper));
    pthread_create(&threads[0], NULL, sleeps, &sleeper);
    while (statistics().calls < 1) {}
    CHECK_OK(laika_finalize());
    pthread_join(threads[0], NULL);
    CHECK(atomic_load(&stopped) == 4);
    return check_summary();
}
