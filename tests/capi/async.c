/* async.c ADDRESS: calls that nobody waits for at once. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <sched.h>

static laika_model_t identity, sleeper;

static void many(void) {
    enum { n = 64 };
    laika_shm_t shm;
    int64_t *data = shared(sizeof(int64_t) * 2 * n, &shm);
    laika_tensor_t in[n], out[n];
    laika_call_t calls[n];
    for (int i = 0; i < n; ++i) {
        data[i] = i + 1;
        in[i] = vector_of(&data[i], LAIKA_INT64, 1);
        out[i] = vector_of(&data[n + i], LAIKA_INT64, 1);
        NEED(laika_infer_async(identity, &in[i], 1, &out[i], 1, &calls[i]));
    }
    for (int i = n; i-- > 0;) {
        CHECK_OK(laika_wait(calls[i], -1));
        CHECK(data[n + i] == i + 1);
        CHECK_ERROR(laika_wait(calls[i], -1), LAIKA_ERR_HANDLE, "it has ended");
    }
    CHECK_OK(laika_shm_free(shm));
}

/* A copied input may change once the call is under way; a copied output is written by laika_wait alone. */
static void copied(void) {
    int64_t us = 20000, made = 0;
    laika_tensor_t in = {&us, LAIKA_INT64, 0, {0}}, out = {&made, LAIKA_INT64, 0, {0}};
    laika_call_t call;
    NEED(laika_infer_async(sleeper, &in, 1, &out, 1, &call));
    us = -1;
    CHECK_ERROR(laika_wait(call, 0), LAIKA_ERR_TIMEOUT, "the call goes on");
    CHECK_STATUS(laika_wait(call, 1000), LAIKA_ERR_TIMEOUT);
    CHECK(made == 0);
    CHECK_OK(laika_wait(call, 10000000000));
    CHECK(made == 20000);
    /* The model's own complaint. */
    CHECK_ERROR(laika_infer(sleeper, &in, 1, &out, 1), LAIKA_ERR_KERNEL, "-1 microseconds");
}

static void cancelled(void) {
    laika_shm_t shm;
    int64_t *us = shared(64, &shm), made = 7, other = 1000;
    us[0] = 100000;
    laika_tensor_t in = {us, LAIKA_INT64, 0, {0}}, out = {us + 1, LAIKA_INT64, 0, {0}};
    laika_call_t call, queued;
    NEED(laika_infer_async(sleeper, &in, 1, &out, 1, &call));
    laika_tensor_t in2 = {&other, LAIKA_INT64, 0, {0}}, out2 = {&made, LAIKA_INT64, 0, {0}};
    NEED(laika_infer_async(sleeper, &in2, 1, &out2, 1, &queued));
    CHECK_ERROR(laika_shm_free(shm), LAIKA_ERR_BUSY, "still uses");
    CHECK_STATUS(laika_shm_unmap(shm), LAIKA_ERR_BUSY);
    CHECK_OK(laika_cancel(queued));
    CHECK_STATUS(laika_wait(queued, -1), LAIKA_ERR_HANDLE);
    CHECK_STATUS(laika_cancel(queued), LAIKA_ERR_HANDLE);
    CHECK(made == 7);
    CHECK_OK(laika_cancel(call));
    laika_status_t status; /* until the worker has let go */
    while ((status = laika_shm_free(shm)) == LAIKA_ERR_BUSY) sched_yield();
    CHECK_STATUS(status, LAIKA_OK);
    CHECK_OK(laika_infer(sleeper, &in2, 1, &out2, 1));
    CHECK(made == 1000);
}

static void *waits(void *call) {
    return (void *)(intptr_t)laika_wait(*(laika_call_t *)call, -1);
}

static void waited_for_twice(void) {
    int64_t us = 50000, made = 0;
    laika_tensor_t in = {&us, LAIKA_INT64, 0, {0}}, out = {&made, LAIKA_INT64, 0, {0}};
    laika_call_t call;
    NEED(laika_infer_async(sleeper, &in, 1, &out, 1, &call));
    pthread_t threads[4];
    int ok = 0;
    for (int i = 0; i < 4; ++i) pthread_create(&threads[i], NULL, waits, &call);
    for (int i = 0; i < 4; ++i) {
        void *status;
        pthread_join(threads[i], &status);
        CHECK((intptr_t)status == LAIKA_OK || (intptr_t)status == LAIKA_ERR_BUSY || (intptr_t)status == LAIKA_ERR_HANDLE);
        ok += (intptr_t)status == LAIKA_OK;
    }
    CHECK(ok == 1);
    CHECK(made == 50000);
}

/* Unloading waits for blocking calls; asynchronous ones finish on their own. */
static void unloaded_meanwhile(void) {
    laika_model_t model;
    NEED(laika_model_load("builtin:sleep", 0, &model));
    int64_t us = 30000, made = 0;
    laika_tensor_t in = {&us, LAIKA_INT64, 0, {0}}, out = {&made, LAIKA_INT64, 0, {0}};
    laika_call_t call;
    NEED(laika_infer_async(model, &in, 1, &out, 1, &call));
    CHECK_OK(laika_model_unload(model));
    CHECK_OK(laika_wait(call, -1));
    CHECK(made == 30000);
}

int main(int argc, char **argv) {
    (void)argc;
    NEED(laika_init(argv[1], LAIKA_INIT_DEFAULT));
    NEED(laika_model_load("builtin:identity", 0, &identity));
    NEED(laika_model_load("builtin:sleep", 0, &sleeper));
    many();
    copied();
    cancelled();
    waited_for_twice();
    unloaded_meanwhile();
    /* Left in flight: finalize ends it. */
    int64_t us = 200000, made = 0;
    laika_tensor_t in = {&us, LAIKA_INT64, 0, {0}}, out = {&made, LAIKA_INT64, 0, {0}};
    laika_call_t call;
    NEED(laika_infer_async(sleeper, &in, 1, &out, 1, &call));
    CHECK_OK(laika_finalize());
    CHECK_STATUS(laika_wait(call, -1), LAIKA_ERR_NOT_INITIALIZED);
    CHECK(made == 0);
    return check_summary();
}
