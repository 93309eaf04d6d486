/* dies.c ADDRESS: prints "waiting" in the middle of a call; the test then kills the host. */
#include "check.h"

int main(int argc, char **argv) {
    (void)argc;
    laika_model_t sleeper, model;
    laika_shm_t shm, other;
    NEED(laika_init(argv[1], LAIKA_INIT_DEFAULT));
    NEED(laika_model_load("builtin:sleep", 0, &sleeper));
    int64_t *data = shared(64, &shm), us = 60000000, made = 0;
    laika_tensor_t in = {&us, LAIKA_INT64, 0, {0}}, out = {&made, LAIKA_INT64, 0, {0}};
    laika_call_t call;
    NEED(laika_infer_async(sleeper, &in, 1, &out, 1, &call));
    puts("waiting");
    fflush(stdout);
    CHECK_STATUS(laika_infer(sleeper, &in, 1, &out, 1), LAIKA_ERR_HOST_GONE);
    CHECK_STATUS(laika_wait(call, -1), LAIKA_ERR_HOST_GONE);
    CHECK_STATUS(laika_infer(sleeper, &in, 1, &out, 1), LAIKA_ERR_HOST_GONE);
    CHECK_STATUS(laika_model_load("builtin:sum", 0, &model), LAIKA_ERR_HOST_GONE);
    CHECK_STATUS(laika_shm_alloc(64, LAIKA_SHM_INPUT, &other), LAIKA_ERR_HOST_GONE);
    data[0] = 1; /* memory stays until it is given up */
    CHECK_OK(laika_shm_free(shm));
    CHECK_OK(laika_model_unload(sleeper));
    CHECK_OK(laika_finalize());
    CHECK_STATUS(laika_init(argv[1], LAIKA_INIT_DEFAULT), LAIKA_ERR_NO_HOST);
    return check_summary();
}
