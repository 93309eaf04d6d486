/* misuse.c ADDRESS FILE: every mistake a C program can make gets a code and a sentence, and breaks nothing. FILE is not a model. */
#define _DEFAULT_SOURCE
#include "check.h"

#include <sys/mman.h>
#include <unistd.h>

static laika_model_t identity;

static void before_init(void) {
    laika_model_t model = {5};
    laika_shm_t shm = {5};
    laika_call_t call = {5};
    void *data;
    size_t count;
    laika_tensor_t tensor = {0};
    CHECK(strcmp(laika_last_error(), "") == 0);
    CHECK_ERROR(laika_finalize(), LAIKA_ERR_NOT_INITIALIZED, "laika_finalize: call laika_init first");
    CHECK_STATUS(laika_shm_alloc(64, LAIKA_SHM_INPUT, &shm), LAIKA_ERR_NOT_INITIALIZED);
    CHECK_STATUS(laika_shm_map(shm, &data), LAIKA_ERR_NOT_INITIALIZED);
    CHECK_STATUS(laika_shm_unmap(shm), LAIKA_ERR_NOT_INITIALIZED);
    CHECK_STATUS(laika_shm_free(shm), LAIKA_ERR_NOT_INITIALIZED);
    CHECK_STATUS(laika_model_load("builtin:sum", 0, &model), LAIKA_ERR_NOT_INITIALIZED);
    CHECK_STATUS(laika_model_unload(model), LAIKA_ERR_NOT_INITIALIZED);
    CHECK_STATUS(laika_model_inputs(model, NULL, 0, &count), LAIKA_ERR_NOT_INITIALIZED);
    CHECK_STATUS(laika_infer(model, &tensor, 1, &tensor, 1), LAIKA_ERR_NOT_INITIALIZED);
    CHECK_STATUS(laika_infer_async(model, &tensor, 1, &tensor, 1, &call), LAIKA_ERR_NOT_INITIALIZED);
    CHECK_STATUS(laika_wait(call, -1), LAIKA_ERR_NOT_INITIALIZED);
    CHECK_STATUS(laika_cancel(call), LAIKA_ERR_NOT_INITIALIZED);
}

static void init(const char *address) {
    char too_long[300];
    memset(too_long, 'a', sizeof too_long - 1);
    too_long[sizeof too_long - 1] = '\0';
    CHECK_ERROR(laika_init(address, 7), LAIKA_ERR_INVALID, "flags: 7");
    CHECK_ERROR(laika_init("", LAIKA_INIT_DEFAULT), LAIKA_ERR_INVALID, "address ''");
    CHECK_ERROR(laika_init(too_long, LAIKA_INIT_DEFAULT), LAIKA_ERR_INVALID, "1 to 100 bytes");
    CHECK_ERROR(laika_init("@teal/nobody/here", LAIKA_INIT_DEFAULT), LAIKA_ERR_NO_HOST, "start one with `teal serve`");
    CHECK_ERROR(laika_init("/nonexistent/teal.sock", LAIKA_INIT_DEFAULT), LAIKA_ERR_NO_HOST, "/nonexistent/teal.sock");
    NEED(laika_init(address, LAIKA_INIT_DEFAULT));
    CHECK_ERROR(laika_init(address, LAIKA_INIT_DEFAULT), LAIKA_ERR_INITIALIZED, "already");
    NEED(laika_model_load("builtin:identity", 0, &identity));
}

static void models(const char *not_a_model) {
    laika_model_t model = {9};
    char too_long[5000];
    memset(too_long, 'a', sizeof too_long - 1);
    too_long[sizeof too_long - 1] = '\0';
    CHECK_ERROR(laika_model_load(NULL, 0, &model), LAIKA_ERR_POINTER, "source: NULL");
    CHECK_ERROR(laika_model_load("builtin:sum", 0, NULL), LAIKA_ERR_POINTER, "model: NULL");
    CHECK_ERROR(laika_model_load("", 0, &model), LAIKA_ERR_INVALID, "source: 0 bytes");
    CHECK_ERROR(laika_model_load(too_long, 0, &model), LAIKA_ERR_INVALID, "expected 1 to 4095");
    CHECK_ERROR(laika_model_load("builtin:sum", 8, &model), LAIKA_ERR_INVALID, "flags: 8");
    CHECK_ERROR(laika_model_load("nobody-loaded-this", 0, &model), LAIKA_ERR_NOT_FOUND, "nobody-loaded-this");
    CHECK_ERROR(laika_model_load("a name with spaces", 0, &model), LAIKA_ERR_INVALID, "a name with spaces");
    CHECK_ERROR(laika_model_load("builtin:nonsense", 0, &model), LAIKA_ERR_NOT_FOUND, "nonsense");
    CHECK_ERROR(laika_model_load("/nonexistent/model.onnx", 0, &model), LAIKA_ERR_NOT_FOUND, "No such file");
    CHECK_ERROR(laika_model_load("/", 0, &model), LAIKA_ERR_INVALID, "not a regular file");
    const laika_status_t status = laika_model_load(not_a_model, 0, &model);
    CHECK(status == LAIKA_ERR_INVALID || status == LAIKA_ERR_KERNEL);
    CHECK(model.id == 0);
    CHECK_ERROR(laika_model_unload(model), LAIKA_ERR_HANDLE, "not a loaded model");
    for (uint64_t id = 1; id < (uint64_t)1 << 60; id = id * 3 + 1) {
        laika_model_t foreign = {id};
        if (id != identity.id) CHECK_STATUS(laika_model_unload(foreign), LAIKA_ERR_HANDLE);
    }
    NEED(laika_model_load("builtin:sum", 0, &model));
    CHECK_OK(laika_model_unload(model));
    CHECK_STATUS(laika_model_unload(model), LAIKA_ERR_HANDLE);
    float x = 1;
    double y;
    laika_tensor_t in = vector_of(&x, LAIKA_FLOAT32, 1), out = {&y, LAIKA_FLOAT64, 0, {0}};
    CHECK_ERROR(laika_infer(model, &in, 1, &out, 1), LAIKA_ERR_HANDLE, "unloaded already");
    size_t count = 0;
    laika_spec_t spec;
    CHECK_STATUS(laika_model_inputs(model, &spec, 1, &count), LAIKA_ERR_HANDLE);
    CHECK_STATUS(laika_model_inputs(identity, &spec, 1, NULL), LAIKA_ERR_POINTER);
    CHECK_STATUS(laika_model_outputs(identity, NULL, 1, &count), LAIKA_ERR_POINTER);
}

static laika_status_t call(laika_tensor_t in, laika_tensor_t out) { return laika_infer(identity, &in, 1, &out, 1); }

static void tensors(void) {
    uint8_t a[256] = {0}, b[256] = {0};
    const laika_tensor_t in = vector_of(a, LAIKA_UINT8, 64), out = vector_of(b, LAIKA_UINT8, 64);
    laika_tensor_t t = in, u = out;
    CHECK_ERROR(laika_infer(identity, NULL, 1, &u, 1), LAIKA_ERR_POINTER, "inputs: NULL");
    CHECK_ERROR(laika_infer(identity, &t, 1, NULL, 1), LAIKA_ERR_POINTER, "outputs: NULL");
    CHECK_ERROR(laika_infer(identity, NULL, 0, &u, 1), LAIKA_ERR_INVALID, "n_inputs: 0");
    CHECK_ERROR(laika_infer(identity, &t, SIZE_MAX, &u, 1), LAIKA_ERR_INVALID, "n_inputs");
    CHECK_ERROR(laika_infer(identity, &t, 1, &u, 2), LAIKA_ERR_INVALID, "n_outputs: 2");
    CHECK_ERROR(laika_infer_async(identity, &t, 1, &u, 1, NULL), LAIKA_ERR_POINTER, "call: NULL");
    t.data = NULL;
    CHECK_ERROR(call(t, out), LAIKA_ERR_POINTER, "inputs[0].data: NULL");
    u.data = NULL;
    CHECK_ERROR(call(in, u), LAIKA_ERR_POINTER, "outputs[0].data: NULL");
    for (int bad = -3; bad < 12; bad += bad == -1 ? 10 : 1) { /* -3 -2 -1 9 10 11 */
        t = in, u = out;
        t.ndim = bad;
        CHECK_ERROR(call(t, out), LAIKA_ERR_INVALID, "inputs[0].ndim");
        u.ndim = bad;
        CHECK_ERROR(call(in, u), LAIKA_ERR_INVALID, "outputs[0].ndim");
    }
    t = in;
    t.ndim = INT32_MAX;
    CHECK_STATUS(call(t, out), LAIKA_ERR_INVALID);
    t = in, u = out;
    t.shape[0] = -1;
    CHECK_ERROR(call(t, out), LAIKA_ERR_INVALID, "inputs[0].shape[0]: -1");
    u.shape[0] = INT64_MIN;
    CHECK_ERROR(call(in, u), LAIKA_ERR_INVALID, "outputs[0].shape[0]");
    laika_tensor_t huge = {a, LAIKA_FLOAT64, 3, {INT64_MAX, INT64_MAX, INT64_MAX}};
    CHECK_ERROR(call(huge, out), LAIKA_ERR_INVALID, "more than 2^63 bytes");
    laika_tensor_t wide = {a, LAIKA_UINT8, 1, {INT64_MAX}};
    CHECK(call(wide, wide) != LAIKA_OK); /* more than there can be */
    static const int dtypes[] = {-1, 19, 20, 255, 1 << 20, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; ++i) {
        t = in, u = out;
        t.dtype = dtypes[i];
        CHECK_ERROR(call(t, out), LAIKA_ERR_INVALID, "inputs[0].dtype");
        u.dtype = dtypes[i];
        CHECK_ERROR(call(in, u), LAIKA_ERR_INVALID, "outputs[0].dtype");
    }
    t = in, u = out;
    t.dtype = LAIKA_DTYPE_NONE;
    CHECK_ERROR(call(t, out), LAIKA_ERR_INVALID, "inputs[0].dtype");
    u.dtype = LAIKA_FLOAT32;
    CHECK_ERROR(call(in, u), LAIKA_ERR_INVALID, "outputs[0].dtype: float32, output 'y' is uint8");
    u = out;
    u.shape[0] = 63;
    CHECK_ERROR(call(in, u), LAIKA_ERR_TOO_SMALL, "63 bytes");
    CHECK_OK(call(in, out)); /* nothing is broken */
}

static void pointers(void) {
    _Alignas(16) uint8_t a[256] = {0}, b[256] = {0};
    const laika_tensor_t good = vector_of(a, LAIKA_UINT8, 64);
    const long page = sysconf(_SC_PAGESIZE);
    uint8_t *gap = mmap(NULL, (size_t)page * 3, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(gap + page, (size_t)page);
    const struct { void *data; int64_t n; } wild[] = {
        {(void *)1, 64}, {(void *)(uintptr_t)-4096, 64}, {(void *)0x7fff00000000, 64}, {(void *)((uintptr_t)1 << 60), 64},
        {gap + page - 32, 64}, /* begins well */
        {gap, page * 3},       /* ends well too */
    };
    for (size_t i = 0; i < sizeof wild / sizeof *wild; ++i) {
#if defined(__SANITIZE_ADDRESS__)
        break; /* its own report, and the end of the program, come instead */
#endif
        laika_tensor_t in = vector_of(wild[i].data, LAIKA_UINT8, wild[i].n), out = in;
        uint8_t *copy = malloc((size_t)wild[i].n);
        out.data = copy;
        CHECK_ERROR(call(in, out), LAIKA_ERR_POINTER, "inputs[0].data: 0x");
        in.data = copy;
        out.data = wild[i].data;
        memset(copy, 0, (size_t)wild[i].n);
        CHECK_ERROR(call(in, out), LAIKA_ERR_POINTER, "outputs[0].data: 0x");
        free(copy);
    }
    munmap(gap, (size_t)page);
    munmap(gap + 2 * page, (size_t)page);
    laika_tensor_t in = vector_of(a + 1, LAIKA_FLOAT32, 8), out = vector_of(b, LAIKA_FLOAT32, 8);
    CHECK_ERROR(call(in, out), LAIKA_ERR_POINTER, "inputs[0].data: is not aligned to the 4 bytes");
    in.data = a, out.data = b + 2;
    CHECK_ERROR(call(in, out), LAIKA_ERR_POINTER, "outputs[0].data: is not aligned");
    CHECK_OK(call(good, vector_of(b + 1, LAIKA_UINT8, 64)));
}

static void shared_memory(void) {
    laika_shm_t shm = {3}, input, output;
    void *data = &shm;
    uint8_t b[128] = {0};
    CHECK_ERROR(laika_shm_alloc(0, LAIKA_SHM_INPUT, &shm), LAIKA_ERR_INVALID, "bytes: 0");
    CHECK(shm.id == 0);
    CHECK_ERROR(laika_shm_alloc(64, 0, &shm), LAIKA_ERR_INVALID, "flags: 0");
    CHECK_ERROR(laika_shm_alloc(64, 4, &shm), LAIKA_ERR_INVALID, "flags: 4");
    CHECK_ERROR(laika_shm_alloc(64, LAIKA_SHM_INPUT, NULL), LAIKA_ERR_POINTER, "shm: NULL");
    CHECK_STATUS(laika_shm_alloc(SIZE_MAX, LAIKA_SHM_INPUT, &shm), LAIKA_ERR_QUOTA);
    CHECK_STATUS(laika_shm_alloc((size_t)1 << 45, LAIKA_SHM_INPUT, &shm), LAIKA_ERR_QUOTA);
    CHECK_ERROR(laika_shm_map(shm, &data), LAIKA_ERR_HANDLE, "a zero handle");
    CHECK(data == NULL);
    NEED(laika_shm_alloc(64, LAIKA_SHM_INPUT | LAIKA_SHM_OUTPUT, &shm));
    CHECK_ERROR(laika_shm_map(shm, NULL), LAIKA_ERR_POINTER, "data: NULL");
    CHECK_ERROR(laika_shm_unmap(shm), LAIKA_ERR_INVALID, "not mapped");
    NEED(laika_shm_map(shm, &data));
    void *again = NULL;
    CHECK_OK(laika_shm_map(shm, &again));
    CHECK(again == data);
    const laika_tensor_t in = vector_of(data, LAIKA_UINT8, 64), out = vector_of(b, LAIKA_UINT8, 64);
    CHECK_OK(call(in, out));
    CHECK_ERROR(call(vector_of(data, LAIKA_UINT8, 65), vector_of(b, LAIKA_UINT8, 65)), LAIKA_ERR_POINTER, "65 bytes from byte 0 on leave a shared memory of 64");
    CHECK_ERROR(call(vector_of((uint8_t *)data + 60, LAIKA_UINT8, 8), out), LAIKA_ERR_POINTER, "8 bytes from byte 60");
    CHECK_ERROR(call(vector_of((uint8_t *)data - 8, LAIKA_UINT8, 8), out), LAIKA_ERR_POINTER, "inputs[0].data");
    CHECK_ERROR(call(vector_of((uint8_t *)data + 2, LAIKA_FLOAT32, 8), vector_of(b, LAIKA_FLOAT32, 8)), LAIKA_ERR_POINTER, "aligned");
    CHECK_OK(laika_shm_unmap(shm));
    CHECK_OK(call(in, out)); /* mapped once still */
    CHECK_OK(laika_shm_unmap(shm));
    CHECK_ERROR(call(in, out), LAIKA_ERR_POINTER, "was unmapped");
    CHECK_OK(laika_shm_map(shm, &data));
    CHECK_OK(call(in, out));
    CHECK_OK(laika_shm_free(shm));
    CHECK_ERROR(call(in, out), LAIKA_ERR_POINTER, "was freed");
    CHECK_ERROR(laika_shm_free(shm), LAIKA_ERR_HANDLE, "freed already");
    CHECK_STATUS(laika_shm_map(shm, &data), LAIKA_ERR_HANDLE);
    CHECK_STATUS(laika_shm_unmap(shm), LAIKA_ERR_HANDLE);
    void *read = NULL, *write = NULL;
    NEED(laika_shm_alloc(64, LAIKA_SHM_INPUT, &input));
    NEED(laika_shm_alloc(64, LAIKA_SHM_OUTPUT, &output));
    NEED(laika_shm_map(input, &read));
    NEED(laika_shm_map(output, &write));
    CHECK_OK(call(vector_of(read, LAIKA_UINT8, 64), vector_of(write, LAIKA_UINT8, 64)));
    CHECK_ERROR(call(vector_of(write, LAIKA_UINT8, 64), out), LAIKA_ERR_INVALID, "without LAIKA_SHM_INPUT");
    CHECK_ERROR(call(out, vector_of(read, LAIKA_UINT8, 64)), LAIKA_ERR_INVALID, "without LAIKA_SHM_OUTPUT");
    CHECK_OK(laika_shm_free(input));
    CHECK_OK(laika_shm_free(output));
    laika_statistics_t numbers;
    CHECK_STATUS(laika_statistics(NULL, sizeof numbers), LAIKA_ERR_POINTER);
    CHECK_STATUS(laika_statistics(&numbers, 8), LAIKA_ERR_INVALID);
}

int main(int argc, char **argv) {
    before_init();
    init(argv[1]);
    models(argc > 2 ? argv[2] : "/dev/null");
    tensors();
    pointers();
    shared_memory();
    laika_shm_t shm;
    uint8_t *data = shared(64, &shm), b[64];
    (void)data;
    CHECK_OK(laika_finalize());
    CHECK_ERROR(laika_finalize(), LAIKA_ERR_NOT_INITIALIZED, "laika_finalize was called");
    CHECK_STATUS(call(vector_of(b, LAIKA_UINT8, 64), vector_of(b, LAIKA_UINT8, 64)), LAIKA_ERR_NOT_INITIALIZED);
    CHECK_STATUS(laika_shm_free(shm), LAIKA_ERR_NOT_INITIALIZED);
    NEED(laika_init(argv[1], LAIKA_INIT_DEFAULT)); /* and once more */
    CHECK_STATUS(call(vector_of(b, LAIKA_UINT8, 64), vector_of(b, LAIKA_UINT8, 64)), LAIKA_ERR_HANDLE); /* a handle of before */
    CHECK_STATUS(laika_shm_free(shm), LAIKA_ERR_HANDLE);
    CHECK_OK(laika_finalize());
    for (int code = -2; code < 30; ++code) CHECK(laika_strerror(code) != NULL && *laika_strerror(code) != '\0');
    return check_summary();
}
