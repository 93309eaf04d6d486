/* pools.c ADDRESS: pools by name. The host has "default" and "second". */
#include "check.h"

static const laika_options_t second = {sizeof(laika_options_t), "second"}, first = {sizeof(laika_options_t), "default"};

static void answers(laika_model_t identity, int64_t value) {
    int64_t made = 0;
    laika_tensor_t in = {&value, LAIKA_INT64, 0, {0}}, out = {&made, LAIKA_INT64, 0, {0}};
    CHECK_OK(laika_infer(identity, &in, 1, &out, 1));
    CHECK(made == value);
}

/* Memory is one pool's: its models use it in place, others get copies. */
static void memory(laika_model_t here, laika_model_t there) {
    laika_shm_t shm, other;
    void *mine = NULL, *theirs = NULL;
    NEED(laika_shm_alloc(256, LAIKA_SHM_INPUT | LAIKA_SHM_OUTPUT, &shm));
    NEED(laika_shm_alloc_with(256, LAIKA_SHM_INPUT | LAIKA_SHM_OUTPUT, &second, &other));
    NEED(laika_shm_map(shm, &mine));
    NEED(laika_shm_map(other, &theirs));
    for (int far = 0; far < 2; ++far) {
        int64_t *data = far ? theirs : mine;
        laika_tensor_t in = vector_of(data, LAIKA_INT64, 8), out = vector_of(data + 8, LAIKA_INT64, 8);
        for (int model = 0; model < 2; ++model) {
            for (int i = 0; i < 16; ++i) data[i] = i < 8 ? i + 1 + model : 0;
            const laika_statistics_t before = statistics();
            CHECK_OK(laika_infer(model ? there : here, &in, 1, &out, 1));
            CHECK(memcmp(data, data + 8, 64) == 0);
            const laika_statistics_t after = statistics();
            CHECK(after.copies_in - before.copies_in == (uint64_t)(far != model));
            CHECK(after.copies_out - before.copies_out == (uint64_t)(far != model));
        }
    }
    /* Checked as in any pool. */
    laika_tensor_t beyond = vector_of((char *)theirs + 128, LAIKA_INT64, 17), out = vector_of(mine, LAIKA_INT64, 17);
    CHECK_STATUS(laika_infer(here, &beyond, 1, &out, 1), LAIKA_ERR_POINTER);
    CHECK_OK(laika_shm_free(other));
    beyond.shape[0] = out.shape[0] = 8;
    CHECK_ERROR(laika_infer(here, &beyond, 1, &out, 1), LAIKA_ERR_POINTER, "freed");
    CHECK_ERROR(laika_infer(there, &beyond, 1, &out, 1), LAIKA_ERR_POINTER, "freed");
    CHECK_OK(laika_shm_free(shm));
}

static void events_and_calls(laika_model_t here, laika_model_t there) {
    int64_t value[2] = {3, 4}, made[2] = {0, 0};
    laika_tensor_t in[2], out[2];
    laika_call_t calls[2], third;
    laika_event_t event;
    for (int i = 0; i < 2; ++i) in[i] = vector_of(&value[i], LAIKA_INT64, 1), out[i] = vector_of(&made[i], LAIKA_INT64, 1);
    for (int late = 0; late < 2; ++late) { /* an event that has come, has come in every pool */
        NEED(laika_event_create(&event));
        if (late) CHECK_OK(laika_event_signal(event));
        NEED(laika_infer_after(here, &in[0], 1, &out[0], 1, &event, 1, &calls[0]));
        NEED(laika_infer_after(there, &in[1], 1, &out[1], 1, &event, 1, &calls[1]));
        if (!late) {
            for (int i = 0; i < 2; ++i) CHECK_STATUS(laika_wait(calls[i], 1000000), LAIKA_ERR_TIMEOUT);
            CHECK_OK(laika_event_signal(event));
        }
        for (int i = 0; i < 2; ++i) CHECK_OK(laika_wait(calls[i], -1));
        CHECK(made[0] == 3 && made[1] == 4);
        CHECK_OK(laika_event_destroy(event));
    }
    NEED(laika_event_create(&event)); /* will not come, in no pool */
    NEED(laika_infer_after(there, &in[1], 1, &out[1], 1, &event, 1, &calls[1]));
    CHECK_OK(laika_event_destroy(event));
    CHECK_STATUS(laika_wait(calls[1], -1), LAIKA_ERR_CANCELLED);
    NEED(laika_infer_async(here, &in[0], 1, &out[0], 1, &calls[0]));
    CHECK_ERROR(laika_infer_after_all(there, &in[1], 1, &out[1], 1, NULL, 0, calls, 1, &third), LAIKA_ERR_INVALID, "of its own pool");
    CHECK_OK(laika_wait(calls[0], -1));
}

static void misuse(void) {
    laika_model_t model = {1};
    laika_shm_t shm = {1};
    laika_options_t wrong = {3, "second"}, none = {sizeof wrong, "nobody"}, empty = {sizeof wrong, ""}, plain = {sizeof wrong, NULL};
    char longer[300];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    laika_options_t long_one = {sizeof wrong, longer};
    CHECK_ERROR(laika_model_load_with("builtin:sum", 0, &wrong, &model), LAIKA_ERR_INVALID, "options.size: 3");
    CHECK(model.id == 0);
    CHECK_ERROR(laika_model_load_with("builtin:sum", 0, &none, &model), LAIKA_ERR_NOT_FOUND, "nobody");
    CHECK_STATUS(laika_model_load_with("builtin:sum", 0, &empty, &model), LAIKA_ERR_INVALID);
    CHECK_STATUS(laika_model_load_with("builtin:sum", 0, &long_one, &model), LAIKA_ERR_INVALID);
    CHECK_STATUS(laika_model_load_with("builtin:sum", 0, &second, NULL), LAIKA_ERR_POINTER);
    CHECK_STATUS(laika_shm_alloc_with(64, LAIKA_SHM_INPUT, &none, &shm), LAIKA_ERR_NOT_FOUND);
    CHECK(shm.id == 0);
    CHECK_STATUS(laika_shm_alloc_with(64, LAIKA_SHM_INPUT, &wrong, &shm), LAIKA_ERR_INVALID);
    NEED(laika_shm_alloc_with(64, LAIKA_SHM_INPUT, &plain, &shm));
    CHECK_OK(laika_shm_free(shm));
    CHECK_STATUS(laika_init_with(NULL, 0, &second), LAIKA_ERR_INITIALIZED);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    const laika_options_t none = {sizeof none, "nobody"}, wrong = {0, NULL};
    laika_model_t here, there, again, named;
    CHECK_ERROR(laika_init_with(argv[1], LAIKA_INIT_DEFAULT, &none), LAIKA_ERR_NOT_FOUND, "nobody");
    CHECK_STATUS(laika_init_with(argv[1], LAIKA_INIT_DEFAULT, &wrong), LAIKA_ERR_INVALID);
    CHECK_STATUS(laika_shm_alloc(64, LAIKA_SHM_INPUT, &(laika_shm_t){0}), LAIKA_ERR_NOT_INITIALIZED);
    NEED(laika_init_with(argv[1], LAIKA_INIT_DEFAULT, NULL));
    NEED(laika_model_load("builtin:identity", 0, &here));
    NEED(laika_model_load_with("builtin:identity", 0, &second, &there));
    NEED(laika_model_load_with("builtin:identity", 0, &second, &again)); /* the same model */
    answers(here, 5), answers(there, 6), answers(again, 7);
    CHECK_OK(laika_model_unload(again));
    answers(there, 8);
    NEED(laika_model_load("builtin-identity-second", 0, &named)); /* by the name it has in there */
    answers(named, 9);
    CHECK_ERROR(laika_model_load_with("builtin-identity-second", 0, &first, &again), LAIKA_ERR_INVALID, "is in pool 'second'");
    answers(named, 10);
    memory(here, there);
    events_and_calls(here, there);
    misuse();
    CHECK_OK(laika_finalize());
    NEED(laika_init_with(argv[1], LAIKA_INIT_DEFAULT, &second)); /* where everything goes from now on */
    NEED(laika_model_load("builtin:spin", 0, &there));
    NEED(laika_model_load_with("builtin:identity", 0, &first, &here));
    answers(here, 11);
    int64_t us = 0, ns = -1;
    laika_tensor_t in = {&us, LAIKA_INT64, 0, {0}}, out = {&ns, LAIKA_INT64, 0, {0}};
    CHECK_OK(laika_infer(there, &in, 1, &out, 1));
    CHECK(ns >= 0);
    CHECK_OK(laika_finalize());
    return check_summary();
}
