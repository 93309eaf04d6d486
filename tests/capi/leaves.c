/* leaves.c ADDRESS FILE HOW: exits without laika_finalize, with everything in use; HOW: exit, abort, or persistent. */
#include "check.h"

int main(int argc, char **argv) {
    (void)argc;
    laika_model_t model, sleeper;
    laika_shm_t shm;
    laika_call_t call;
    NEED(laika_init(argv[1], LAIKA_INIT_DEFAULT));
    NEED(laika_model_load(argv[2], strcmp(argv[3], "persistent") == 0 ? LAIKA_MODEL_PERSISTENT : LAIKA_MODEL_DEFAULT, &model));
    NEED(laika_model_load("builtin:sleep", LAIKA_MODEL_DEFAULT, &sleeper));
    int64_t *us = shared(1 << 20, &shm);
    us[0] = 20000;
    laika_tensor_t in = {us, LAIKA_INT64, 0, {0}}, out = {us + 1, LAIKA_INT64, 0, {0}};
    NEED(laika_infer_async(sleeper, &in, 1, &out, 1, &call));
    fflush(NULL);
    if (strcmp(argv[3], "abort") == 0) abort();
    return check_summary();
}
