/* chains.c ADDRESS: calls that wait for calls. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>

static laika_model_t identity, sleeper;

/* Each call makes what the next one takes. */
static void in_a_row(void) {
    enum { n = 40 };
    laika_shm_t shm;
    int64_t *data = shared(sizeof(int64_t) * (n + 1), &shm);
    for (int round = 0; round < 5; ++round) {
        laika_tensor_t tensors[n + 1];
        laika_call_t calls[n];
        for (int i = 0; i <= n; ++i) tensors[i] = (laika_tensor_t){&data[i], LAIKA_INT64, 0, {0}}, data[i] = -1;
        data[0] = 1000 * (round + 1);
        for (int i = 0; i < n; ++i)
            NEED(laika_infer_after_all(i == 0 ? sleeper : identity, &tensors[i], 1, &tensors[i + 1], 1, NULL, 0, i == 0 ? NULL : &calls[i - 1], i == 0 ? 0 : 1, &calls[i]));
        for (int i = 0; i < n; ++i) CHECK_OK(laika_wait(calls[round % 2 ? i : n - 1 - i], -1));
        CHECK(data[n] == 1000 * (round + 1));
    }
    CHECK_OK(laika_shm_free(shm));
}

static void for_several(void) {
    enum { n = 6 };
    int64_t us[n], made[n], last = 1, answer = 0;
    laika_tensor_t in, out;
    laika_call_t calls[n], call;
    laika_event_t event;
    NEED(laika_event_create(&event));
    for (int i = 0; i < n; ++i) {
        us[i] = 500 * (n - i);
        in = vector_of(&us[i], LAIKA_INT64, 1), out = vector_of(&made[i], LAIKA_INT64, 1);
        in.ndim = out.ndim = 0;
        NEED(laika_infer_async(sleeper, &in, 1, &out, 1, &calls[i]));
    }
    in = vector_of(&last, LAIKA_INT64, 1), out = vector_of(&answer, LAIKA_INT64, 1);
    NEED(laika_infer_after_all(identity, &in, 1, &out, 1, &event, 1, calls, n, &call));
    for (int i = 0; i < n; ++i) CHECK_OK(laika_wait(calls[i], -1));
    CHECK_STATUS(laika_wait(call, 1000000), LAIKA_ERR_TIMEOUT); /* the event has not come */
    CHECK_OK(laika_event_signal(event));
    CHECK_OK(laika_wait(call, -1));
    CHECK(answer == 1);
    CHECK_OK(laika_event_destroy(event));
}

/* A line that is waited for is about no other call meanwhile, however many follow. */
static void lines_are_kept(void) {
    laika_event_t event;
    int64_t value = 1, made = 0, last = 2, answer = 0;
    laika_tensor_t in = vector_of(&value, LAIKA_INT64, 1), out = vector_of(&made, LAIKA_INT64, 1);
    laika_tensor_t in2 = vector_of(&last, LAIKA_INT64, 1), out2 = vector_of(&answer, LAIKA_INT64, 1);
    laika_call_t call, waits;
    NEED(laika_event_create(&event));
    NEED(laika_infer_async(identity, &in, 1, &out, 1, &call));
    NEED(laika_infer_after_all(identity, &in2, 1, &out2, 1, &event, 1, &call, 1, &waits));
    CHECK_OK(laika_wait(call, -1));
    for (int i = 0; i < 50; ++i) CHECK_OK(laika_infer(identity, &in, 1, &out, 1)); /* of the same shape */
    int64_t bad = -1;
    laika_tensor_t wrong = {&bad, LAIKA_INT64, 0, {0}}, none = {&made, LAIKA_INT64, 0, {0}};
    CHECK_STATUS(laika_infer(sleeper, &wrong, 1, &none, 1), LAIKA_ERR_KERNEL); /* and one that fails */
    CHECK_OK(laika_event_signal(event));
    CHECK_OK(laika_wait(waits, -1));
    CHECK(answer == 2);
    CHECK_OK(laika_event_destroy(event));
}

static void ends_badly(void) {
    int64_t bad = -1, made = 7, value = 5, answer = 7;
    laika_tensor_t in = {&bad, LAIKA_INT64, 0, {0}}, out = {&made, LAIKA_INT64, 0, {0}};
    laika_tensor_t in2 = {&value, LAIKA_INT64, 0, {0}}, out2 = {&answer, LAIKA_INT64, 0, {0}};
    laika_call_t failing, waits, further;
    NEED(laika_infer_async(sleeper, &in, 1, &out, 1, &failing));
    NEED(laika_infer_after_all(identity, &in2, 1, &out2, 1, NULL, 0, &failing, 1, &waits));
    NEED(laika_infer_after_all(identity, &in2, 1, &out2, 1, NULL, 0, &waits, 1, &further));
    CHECK_STATUS(laika_wait(failing, -1), LAIKA_ERR_KERNEL);
    CHECK_ERROR(laika_wait(waits, -1), LAIKA_ERR_CANCELLED, "did not end well");
    CHECK_ERROR(laika_wait(further, -1), LAIKA_ERR_CANCELLED, "did not end well");
    CHECK(answer == 7);
    /* One that is cancelled. */
    bad = 50000;
    NEED(laika_infer_async(sleeper, &in, 1, &out, 1, &failing));
    NEED(laika_infer_after_all(identity, &in2, 1, &out2, 1, NULL, 0, &failing, 1, &waits));
    CHECK_OK(laika_cancel(failing));
    CHECK_STATUS(laika_wait(waits, -1), LAIKA_ERR_CANCELLED);
    /* One that goes before what it waits for. */
    NEED(laika_infer_async(sleeper, &in, 1, &out, 1, &failing));
    NEED(laika_infer_after_all(identity, &in2, 1, &out2, 1, NULL, 0, &failing, 1, &waits));
    CHECK_OK(laika_cancel(waits));
    CHECK_OK(laika_wait(failing, -1));
    CHECK(made == 50000 && answer == 7);
}

static void misuse(void) {
    int64_t value = 5, made = 0;
    laika_tensor_t in = {&value, LAIKA_INT64, 0, {0}}, out = {&made, LAIKA_INT64, 0, {0}};
    laika_call_t none = {0}, foreign = {12345}, call, calls[8] = {{0}};
    laika_event_t events[4] = {{0}};
    CHECK_ERROR(laika_infer_after_all(identity, &in, 1, &out, 1, NULL, 0, NULL, 1, &call), LAIKA_ERR_POINTER, "calls: NULL");
    CHECK(call.id == 0);
    CHECK_ERROR(laika_infer_after_all(identity, &in, 1, &out, 1, NULL, 0, &none, 1, &call), LAIKA_ERR_HANDLE, "calls[0]");
    CHECK_STATUS(laika_infer_after_all(identity, &in, 1, &out, 1, NULL, 0, &foreign, 1, &call), LAIKA_ERR_HANDLE);
    CHECK_ERROR(laika_infer_after_all(identity, &in, 1, &out, 1, NULL, 0, calls, 8, &call), LAIKA_ERR_INVALID, "at most 7");
    CHECK_STATUS(laika_infer_after_all(identity, &in, 1, &out, 1, events, 4, calls, 4, &call), LAIKA_ERR_INVALID);
    CHECK_STATUS(laika_infer_after_all(identity, &in, 1, &out, 1, events, SIZE_MAX, calls, SIZE_MAX, &call), LAIKA_ERR_INVALID);
    CHECK_STATUS(laika_infer_after_all(identity, &in, 1, &out, 1, NULL, 1, calls, 0, &call), LAIKA_ERR_POINTER);
    CHECK_STATUS(laika_infer_after_all(identity, &in, 1, &out, 1, NULL, 0, NULL, 0, NULL), LAIKA_ERR_POINTER);
    NEED(laika_infer_async(identity, &in, 1, &out, 1, &call));
    CHECK_OK(laika_wait(call, -1));
    calls[0] = call; /* has ended and was waited for */
    CHECK_STATUS(laika_infer_after_all(identity, &in, 1, &out, 1, NULL, 0, calls, 1, &call), LAIKA_ERR_HANDLE);
    NEED(laika_infer_after_all(identity, &in, 1, &out, 1, NULL, 0, NULL, 0, &call)); /* for nothing */
    CHECK_OK(laika_wait(call, -1));
}

static void *chains(void *seed) {
    int64_t values[4] = {0, -1, -1, -1};
    const int64_t first = (int64_t)(intptr_t)seed;
    laika_shm_t shm;
    int64_t *data = shared(sizeof values, &shm);
    for (int round = 0; round < 100; ++round) {
        laika_call_t calls[3];
        laika_tensor_t tensors[4];
        for (int i = 0; i < 4; ++i) tensors[i] = vector_of(&data[i], LAIKA_INT64, 1);
        data[0] = first + round;
        for (int i = 0; i < 3; ++i) NEED(laika_infer_after_all(identity, &tensors[i], 1, &tensors[i + 1], 1, NULL, 0, &calls[i > 0 ? i - 1 : 0], i > 0, &calls[i]));
        for (int i = 3; i-- > 0;) CHECK_OK(laika_wait(calls[i], -1));
        CHECK(data[3] == first + round);
    }
    CHECK_OK(laika_shm_free(shm));
    return NULL;
}

static void from_threads(void) {
    enum { n = 4 };
    pthread_t threads[n];
    for (intptr_t i = 0; i < n; ++i) pthread_create(&threads[i], NULL, chains, (void *)(i * 1000 + 1));
    for (int i = 0; i < n; ++i) pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    laika_call_t call, left;
    int64_t us = 20000, made = 0;
    laika_tensor_t in = {&us, LAIKA_INT64, 0, {0}}, out = {&made, LAIKA_INT64, 0, {0}};
    CHECK_STATUS(laika_infer_after_all(identity, &in, 1, &out, 1, NULL, 0, NULL, 0, &call), LAIKA_ERR_NOT_INITIALIZED);
    NEED(laika_init(argv[1], LAIKA_INIT_DEFAULT));
    NEED(laika_model_load("builtin:identity", 0, &identity));
    NEED(laika_model_load("builtin:sleep", 0, &sleeper));
    in_a_row();
    for_several();
    lines_are_kept();
    ends_badly();
    misuse();
    from_threads();
    NEED(laika_infer_async(sleeper, &in, 1, &out, 1, &call)); /* laika_finalize takes both along */
    NEED(laika_infer_after_all(identity, &in, 1, &out, 1, NULL, 0, &call, 1, &left));
    CHECK_OK(laika_finalize());
    CHECK_STATUS(laika_wait(left, -1), LAIKA_ERR_NOT_INITIALIZED);
    return check_summary();
}
