/* calls.c ADDRESS DYNAMIC.onnx GROWING.onnx: answers are right, wherever the tensors lie, and copies are counted.
 * DYNAMIC: x float32 (n, 3) -> y = x + x, (n, 3), and s, the sum, a scalar. GROWING: x float32 (n) -> y = those above 0, (unknown). */
#include "check.h"

static void in_place(laika_model_t identity) {
    laika_shm_t shm;
    uint8_t *data = shared(4096, &shm);
    for (int i = 0; i < 64; ++i) data[i] = (uint8_t)(i + 1);
    laika_tensor_t in = vector_of(data, LAIKA_UINT8, 64), out = vector_of(data + 1024, LAIKA_UINT8, 64);
    const laika_statistics_t before = statistics();
    for (int i = 0; i < 100; ++i) {
        data[0] = (uint8_t)i;
        CHECK_OK(laika_infer(identity, &in, 1, &out, 1));
        CHECK(memcmp(data, data + 1024, 64) == 0);
    }
    /* The same memory for both: nothing moves. */
    laika_tensor_t same = in;
    CHECK_OK(laika_infer(identity, &in, 1, &same, 1));
    const laika_statistics_t after = statistics();
    CHECK(after.copies_in == before.copies_in);
    CHECK(after.copies_out == before.copies_out);
    CHECK(after.calls == before.calls + 101);
    CHECK(after.prepared == before.prepared + 2);
    CHECK_OK(laika_shm_unmap(shm));
    CHECK_OK(laika_shm_free(shm));
}

static void copied(laika_model_t identity) {
    float a[256], b[256];
    for (int i = 0; i < 256; ++i) a[i] = (float)i, b[i] = 0;
    laika_tensor_t in = vector_of(a, LAIKA_FLOAT32, 256), out = vector_of(b, LAIKA_FLOAT32, 256);
    const laika_statistics_t before = statistics();
    CHECK_OK(laika_infer(identity, &in, 1, &out, 1));
    CHECK(memcmp(a, b, sizeof a) == 0);
    /* Another address, the same preparation. */
    float *c = malloc(sizeof a), *d = malloc(sizeof a);
    for (int i = 0; i < 256; ++i) c[i] = (float)-i;
    in.data = c;
    out.data = d;
    CHECK_OK(laika_infer(identity, &in, 1, &out, 1));
    CHECK(memcmp(c, d, sizeof a) == 0);
    const laika_statistics_t after = statistics();
    CHECK(after.copies_in == before.copies_in + 2);
    CHECK(after.bytes_in == before.bytes_in + 2 * sizeof a);
    CHECK(after.copies_out == before.copies_out + 2);
    CHECK(after.bytes_out == before.bytes_out + 2 * sizeof a);
    CHECK(after.prepared == before.prepared + 1);
    free(c);
    free(d);
}

/* One end in shared memory, the other not. */
static void mixed(laika_model_t identity) {
    laika_shm_t shm;
    double *data = shared(sizeof(double) * 64, &shm), other[64];
    for (int i = 0; i < 64; ++i) data[i] = i, other[i] = 0;
    laika_tensor_t in = vector_of(data, LAIKA_FLOAT64, 64), out = vector_of(other, LAIKA_FLOAT64, 64);
    const laika_statistics_t before = statistics();
    CHECK_OK(laika_infer(identity, &in, 1, &out, 1));
    CHECK(memcmp(data, other, sizeof other) == 0);
    for (int i = 0; i < 64; ++i) other[i] = -i;
    CHECK_OK(laika_infer(identity, &out, 1, &in, 1));
    CHECK(memcmp(data, other, sizeof other) == 0);
    const laika_statistics_t after = statistics();
    CHECK(after.copies_in == before.copies_in + 1);
    CHECK(after.copies_out == before.copies_out + 1);
    CHECK_OK(laika_shm_free(shm));
}

static void shapes_and_dtypes(laika_model_t identity, laika_model_t sum) {
    static const int sizes[] = {0, 1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 4, 8, 8, 16, 2, 1, 1};
    for (int dtype = 1; dtype <= LAIKA_FLOAT8_E5M2; ++dtype) {
        _Alignas(16) unsigned char a[16 * 24], b[16 * 24];
        for (size_t i = 0; i < sizeof a; ++i) a[i] = (unsigned char)(i & 1), b[i] = 9;
        laika_tensor_t in = {a, dtype, 3, {2, 3, 4}}, out = {b, dtype, 1, {24}};
        CHECK_OK(laika_infer(identity, &in, 1, &out, 1));
        CHECK(memcmp(a, b, (size_t)sizes[dtype] * 24) == 0);
        CHECK(out.ndim == 3 && out.shape[0] == 2 && out.shape[1] == 3 && out.shape[2] == 4); /* told what it is */
        if (sizes[dtype] < 16) CHECK(b[sizes[dtype] * 24] == 9);
    }
    int64_t scalar = 42, answer = 0;
    laika_tensor_t in = {&scalar, LAIKA_INT64, 0, {0}}, out = {&answer, LAIKA_INT64, 0, {0}};
    CHECK_OK(laika_infer(identity, &in, 1, &out, 1));
    CHECK(answer == 42);
    /* No elements: no address is needed. */
    double total = 1;
    laika_tensor_t nothing = {NULL, LAIKA_FLOAT32, 2, {0, 7}}, made = {&total, LAIKA_FLOAT64, 0, {0}};
    CHECK_OK(laika_infer(sum, &nothing, 1, &made, 1));
    CHECK(total == 0);
    laika_tensor_t empty = {NULL, LAIKA_FLOAT32, 2, {0, 7}};
    CHECK_OK(laika_infer(identity, &nothing, 1, &empty, 1));
}

static void many_shapes(laika_model_t sum) { /* more than are kept prepared */
    float x[128];
    for (int i = 0; i < 128; ++i) x[i] = 1;
    for (int round = 0; round < 3; ++round)
        for (int n = 1; n <= 100; ++n) {
            double total = 0;
            laika_tensor_t in = vector_of(x, LAIKA_FLOAT32, n), out = {&total, LAIKA_FLOAT64, 0, {0}};
            CHECK_OK(laika_infer(sum, &in, 1, &out, 1));
            CHECK(total == n);
        }
}

static void large(laika_model_t sum, laika_model_t identity) {
    const int64_t n = 3 << 20;
    laika_shm_t shm;
    float *x = shared((size_t)n * sizeof *x, &shm);
    CHECK((uintptr_t)x % 4096 == 0);
    CHECK(x[0] == 0 && x[n - 1] == 0);
    for (int64_t i = 0; i < n; ++i) x[i] = 1;
    double total = 0;
    laika_tensor_t in = vector_of(x, LAIKA_FLOAT32, n), out = {&total, LAIKA_FLOAT64, 0, {0}};
    CHECK_OK(laika_infer(sum, &in, 1, &out, 1));
    CHECK(total == (double)n);
    float *y = malloc((size_t)n * sizeof *y);
    laika_tensor_t elsewhere = vector_of(y, LAIKA_FLOAT32, n);
    CHECK_OK(laika_infer(identity, &in, 1, &elsewhere, 1));
    CHECK(y[0] == 1 && y[n - 1] == 1);
    y[5] = 2;
    CHECK_OK(laika_infer(sum, &elsewhere, 1, &out, 1));
    CHECK(total == (double)n + 1);
    free(y);
    const uint64_t held = statistics().shm_bytes;
    CHECK_OK(laika_shm_free(shm));
    CHECK(statistics().shm_bytes <= held);
}

static void dynamic(const char *path) {
    laika_model_t model;
    NEED(laika_model_load(path, LAIKA_MODEL_DEFAULT, &model));
    laika_spec_t specs[4];
    size_t count = 0;
    CHECK_OK(laika_model_inputs(model, specs, 4, &count));
    CHECK(count == 1 && strcmp(specs[0].name, "x") == 0 && specs[0].dtype == LAIKA_FLOAT32 && specs[0].ndim == 2);
    CHECK(specs[0].shape[0] == -1 && specs[0].shape[1] == 3 && specs[0].optional == 0);
    CHECK_OK(laika_model_outputs(model, specs, 1, &count));
    CHECK(count == 2 && strcmp(specs[0].name, "y") == 0);
    for (int64_t n = 1; n < 5; ++n) {
        float x[15], y[15] = {0}, s = 0, expected = 0;
        for (int i = 0; i < 15; ++i) x[i] = (float)i;
        for (int i = 0; i < 3 * n; ++i) expected += x[i];
        laika_tensor_t in = {x, LAIKA_FLOAT32, 2, {n, 3}};
        laika_tensor_t out[2] = {{y, LAIKA_FLOAT32, 1, {15}}, {&s, LAIKA_FLOAT32, 0, {0}}};
        CHECK_OK(laika_infer(model, &in, 1, out, 2));
        CHECK(s == expected && y[2] == 4 && out[0].ndim == 2 && out[0].shape[0] == n && out[0].shape[1] == 3);
    }
    float x[6] = {0}, y[6], s;
    laika_tensor_t in = {x, LAIKA_FLOAT32, 2, {2, 3}}, out[2] = {{y, LAIKA_FLOAT32, 1, {5}}, {&s, LAIKA_FLOAT32, 0, {0}}};
    CHECK_ERROR(laika_infer(model, &in, 1, out, 2), LAIKA_ERR_TOO_SMALL, "outputs[0].shape: 20 bytes, output 'y' of shape (2, 3) needs 24");
    laika_tensor_t wrong = {x, LAIKA_FLOAT32, 2, {3, 2}};
    CHECK_ERROR(laika_infer(model, &wrong, 1, out, 2), LAIKA_ERR_INVALID, "inputs[0].shape[1]: 2, input 'x' expects 3");
    CHECK_OK(laika_model_unload(model));
}

/* What the output's size is only the run can tell. */
static void growing(const char *path) {
    laika_model_t model;
    NEED(laika_model_load(path, LAIKA_MODEL_DEFAULT, &model));
    laika_shm_t shm;
    float *room = shared(1 << 20, &shm), x[3000], y[3000];
    for (int where = 0; where < 2; ++where)
        for (int keep = 0; keep <= 3000; keep += 1000) {
            for (int i = 0; i < 3000; ++i) x[i] = i < keep ? (float)(i + 1) : -1, y[i] = 0;
            float *made = where ? room : y;
            laika_tensor_t in = vector_of(x, LAIKA_FLOAT32, 3000), out = vector_of(made, LAIKA_FLOAT32, 3000);
            CHECK_OK(laika_infer(model, &in, 1, &out, 1));
            CHECK(out.ndim == 1 && out.shape[0] == keep && out.dtype == LAIKA_FLOAT32);
            CHECK(keep == 0 || (made[0] == 1 && made[keep - 1] == (float)keep));
            /* Too little memory: told how much, and nothing was written beyond. */
            laika_tensor_t little = vector_of(made, LAIKA_FLOAT32, 10);
            memset(made, 0, 4000);
            const laika_status_t status = laika_infer(model, &in, 1, &little, 1);
            CHECK_STATUS(status, keep <= 10 ? LAIKA_OK : LAIKA_ERR_TOO_SMALL);
            CHECK(little.shape[0] == keep && made[10] == 0);
            if (keep > 10) CHECK(strstr(laika_last_error(), "outputs[0]: 40 bytes, model 'growing-") != NULL);
            CHECK_OK(laika_infer(model, &in, 1, &out, 1)); /* out.shape is what was made: as much room as needed */
        }
    laika_tensor_t in = vector_of(x, LAIKA_FLOAT32, 3000), any = {y, LAIKA_DTYPE_NONE, 1, {sizeof y}};
    CHECK_OK(laika_infer(model, &in, 1, &any, 1)); /* of no dtype: the shape counts bytes */
    CHECK(any.dtype == LAIKA_FLOAT32 && any.shape[0] == 3000);
    CHECK_OK(laika_model_unload(model));
    CHECK_OK(laika_shm_free(shm));
}

int main(int argc, char **argv) {
    NEED(laika_init(argv[1], LAIKA_INIT_DEFAULT));
    CHECK(laika_version() == LAIKA_VERSION);
    laika_model_t identity, sum;
    NEED(laika_model_load("builtin:identity", LAIKA_MODEL_DEFAULT, &identity));
    NEED(laika_model_load("builtin:sum", LAIKA_MODEL_DEFAULT, &sum));
    in_place(identity);
    copied(identity);
    mixed(identity);
    shapes_and_dtypes(identity, sum);
    many_shapes(sum);
    large(sum, identity);
    if (argc > 3) {
        dynamic(argv[2]);
        growing(argv[3]);
    }
    CHECK_OK(laika_model_unload(sum));
    CHECK_OK(laika_finalize());
    return check_summary();
}
