/* Numbers in, verdict out.
 *
 *     export PKG_CONFIG_PATH=$(teal config --pkgconfig)
 *     cc classify.c $(pkg-config --cflags --libs laika) -o classify
 *     teal serve &
 *     ./classify MODEL NUMBER...
 *
 * MODEL takes one float32 input of as many numbers as are given (a row of them, or just them) and gives scores: one number, which
 * above 0.5 means yes, or one for each class. Both tensors lie in shared memory, so that nothing is copied.
 */
#include <laika.h>
#include <stdio.h>
#include <stdlib.h>

enum { most = 4096 };

static void need(laika_status_t status) {
    if (status == LAIKA_OK) return;
    fprintf(stderr, "classify: %s\n", laika_last_error());
    exit(1);
}

int main(int argc, char **argv) {
    if (argc < 3 || argc - 2 > most) {
        fprintf(stderr, "usage: classify MODEL NUMBER...\n");
        return 2;
    }
    const int n = argc - 2;
    laika_model_t model;
    laika_shm_t shm;
    void *memory;
    laika_spec_t spec;
    size_t count;
    need(laika_init(NULL, LAIKA_INIT_DEFAULT));
    need(laika_model_load(argv[1], LAIKA_MODEL_DEFAULT, &model));
    need(laika_model_inputs(model, &spec, 1, &count));
    need(laika_shm_alloc(2 * most * sizeof(float), LAIKA_SHM_INPUT | LAIKA_SHM_OUTPUT, &shm));
    need(laika_shm_map(shm, &memory));

    float *numbers = memory, *scores = numbers + most;
    for (int i = 0; i < n; ++i) numbers[i] = strtof(argv[2 + i], NULL);
    laika_tensor_t in = {numbers, LAIKA_FLOAT32, 2, {1, n}}; /* one row */
    if (spec.ndim == 1) in = (laika_tensor_t){numbers, LAIKA_FLOAT32, 1, {n}};
    laika_tensor_t out = {scores, LAIKA_FLOAT32, 1, {most}}; /* as many as there is room for: told how many there are */
    need(laika_infer(model, &in, 1, &out, 1));

    int64_t classes = 1, best = 0;
    for (int i = 0; i < out.ndim; ++i) classes *= out.shape[i];
    for (int64_t i = 1; i < classes; ++i)
        if (scores[i] > scores[best]) best = i;
    if (classes == 1) printf("%s (%.3f)\n", scores[0] > 0.5F ? "yes" : "no", scores[0]);
    else printf("class %d of %d (%.3f)\n", (int)best, (int)classes, scores[best]);
    need(laika_finalize());
    return 0;
}
