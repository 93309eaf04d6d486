/* events.c ADDRESS: calls that wait for events. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>

static laika_model_t identity;

static void waits_for_all(void) {
    enum { n = 7 };
    laika_event_t events[n];
    int64_t value = 5, made = 0;
    laika_tensor_t in = {&value, LAIKA_INT64, 0, {0}}, out = {&made, LAIKA_INT64, 0, {0}};
    laika_call_t call;
    for (int i = 0; i < n; ++i) NEED(laika_event_create(&events[i]));
    NEED(laika_infer_after(identity, &in, 1, &out, 1, events, n, &call));
    for (int i = 0; i < n; ++i) {
        int64_t other = i, answer = -1; /* others pass it by */
        laika_tensor_t in2 = {&other, LAIKA_INT64, 0, {0}}, out2 = {&answer, LAIKA_INT64, 0, {0}};
        CHECK_OK(laika_infer(identity, &in2, 1, &out2, 1));
        CHECK(answer == i);
        CHECK_ERROR(laika_wait(call, 0), LAIKA_ERR_TIMEOUT, "the call goes on");
        CHECK_ERROR(laika_event_wait(events[i], 0), LAIKA_ERR_TIMEOUT, "not come within 0 ns");
        CHECK_OK(laika_event_signal(events[i]));
        CHECK_OK(laika_event_signal(events[i]));
        CHECK_OK(laika_event_wait(events[i], -1));
    }
    CHECK_OK(laika_wait(call, -1));
    CHECK(made == 5);
    for (int i = 0; i < n; ++i) CHECK_OK(laika_event_destroy(events[i]));
}

static void will_not_come(void) {
    laika_event_t event;
    int64_t value = 5, made = 7;
    laika_tensor_t in = {&value, LAIKA_INT64, 0, {0}}, out = {&made, LAIKA_INT64, 0, {0}};
    laika_call_t call;
    NEED(laika_event_create(&event));
    NEED(laika_infer_after(identity, &in, 1, &out, 1, &event, 1, &call));
    CHECK_OK(laika_event_destroy(event));
    CHECK_ERROR(laika_wait(call, -1), LAIKA_ERR_CANCELLED, "will not come");
    CHECK(made == 7);
    CHECK_ERROR(laika_event_signal(event), LAIKA_ERR_HANDLE, "not an event");
    CHECK_STATUS(laika_event_wait(event, -1), LAIKA_ERR_HANDLE);
    CHECK_STATUS(laika_event_destroy(event), LAIKA_ERR_HANDLE);
    CHECK_STATUS(laika_infer_after(identity, &in, 1, &out, 1, &event, 1, &call), LAIKA_ERR_HANDLE);
    /* A call that is cancelled while it waits. */
    NEED(laika_event_create(&event));
    NEED(laika_infer_after(identity, &in, 1, &out, 1, &event, 1, &call));
    CHECK_OK(laika_cancel(call));
    CHECK_OK(laika_event_signal(event));
    CHECK_OK(laika_event_destroy(event));
    CHECK(made == 7);
}

static void misuse(void) {
    laika_event_t events[8] = {{0}};
    int64_t value = 5, made = 0;
    laika_tensor_t in = {&value, LAIKA_INT64, 0, {0}}, out = {&made, LAIKA_INT64, 0, {0}};
    laika_call_t call;
    CHECK_STATUS(laika_event_create(NULL), LAIKA_ERR_POINTER);
    CHECK_STATUS(laika_infer_after(identity, &in, 1, &out, 1, NULL, 1, &call), LAIKA_ERR_POINTER);
    CHECK_STATUS(laika_infer_after(identity, &in, 1, &out, 1, events, 1, &call), LAIKA_ERR_HANDLE);
    CHECK_ERROR(laika_infer_after(identity, &in, 1, &out, 1, events, 8, &call), LAIKA_ERR_INVALID, "at most 7");
    NEED(laika_infer_after(identity, &in, 1, &out, 1, NULL, 0, &call));
    CHECK_OK(laika_wait(call, -1));
}

static void *signals(void *event) {
    laika_event_signal(*(laika_event_t *)event);
    return NULL;
}

static void from_another_thread(void) {
    for (int round = 0; round < 200; ++round) {
        laika_event_t event;
        int64_t value = round, made = -1;
        laika_tensor_t in = {&value, LAIKA_INT64, 0, {0}}, out = {&made, LAIKA_INT64, 0, {0}};
        laika_call_t call;
        pthread_t thread;
        NEED(laika_event_create(&event));
        NEED(laika_infer_after(identity, &in, 1, &out, 1, &event, 1, &call));
        pthread_create(&thread, NULL, signals, &event);
        CHECK_OK(laika_event_wait(event, -1));
        CHECK_OK(laika_wait(call, -1));
        CHECK(made == round);
        pthread_join(thread, NULL);
        CHECK_OK(laika_event_destroy(event));
    }
}

int main(int argc, char **argv) {
    (void)argc;
    laika_event_t left;
    CHECK_STATUS(laika_event_create(&left), LAIKA_ERR_NOT_INITIALIZED);
    NEED(laika_init(argv[1], LAIKA_INIT_DEFAULT));
    NEED(laika_model_load("builtin:identity", 0, &identity));
    waits_for_all();
    will_not_come();
    misuse();
    from_another_thread();
    NEED(laika_event_create(&left)); /* laika_finalize takes it along */
    CHECK_OK(laika_finalize());
    CHECK_STATUS(laika_event_signal(left), LAIKA_ERR_NOT_INITIALIZED);
    return check_summary();
}
