/* meets.c ADDRESS: does what a program does, whatever the host says. It need not succeed; it must come to its end. */
#include "check.h"

int main(int argc, char **argv) {
    (void)argc;
    laika_model_t model;
    laika_shm_t shm;
    void *data;
    size_t count;
    laika_spec_t specs[4];
    laika_status_t status = laika_init(argv[1], LAIKA_INIT_DEFAULT);
    printf("init %d %s\n", (int)status, laika_last_error());
    if (status == LAIKA_OK) {
        status = laika_shm_alloc(4096, LAIKA_SHM_INPUT | LAIKA_SHM_OUTPUT, &shm);
        printf("alloc %d %s\n", (int)status, laika_last_error());
        if (status == LAIKA_OK && laika_shm_map(shm, &data) == LAIKA_OK) memset(data, 1, 4096);
        status = laika_model_load("anything", LAIKA_MODEL_DEFAULT, &model);
        printf("load %d %s\n", (int)status, laika_last_error());
        if (status == LAIKA_OK) {
            laika_model_inputs(model, specs, 4, &count);
            laika_model_outputs(model, specs, 4, &count);
            float x[4] = {0}, y[4];
            laika_tensor_t in = vector_of(x, LAIKA_FLOAT32, 4), out = vector_of(y, LAIKA_FLOAT32, 4);
            laika_call_t call;
            if (laika_infer_async(model, &in, 1, &out, 1, &call) == LAIKA_OK && laika_wait(call, 1000000) == LAIKA_ERR_TIMEOUT) laika_cancel(call);
            laika_model_unload(model);
        }
        laika_finalize();
    }
    return check_summary();
}
