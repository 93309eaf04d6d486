/* strings.c ADDRESS JOIN.onnx PICK.onnx: tensors of strings.
 * JOIN: a, b string (n) -> y = a + b, (n), and rows, how many, int64. PICK: x string (n), keep bool (n) -> y = those kept, (unknown). */
#include "check.h"

static laika_bytes_t text(const char *s) { return (laika_bytes_t){s, strlen(s)}; }

static laika_tensor_t strings_of(laika_bytes_t *elements, int64_t n) { return vector_of(elements, LAIKA_BYTES, n); }

static int is(laika_bytes_t found, const void *bytes, size_t size) {
    return found.size == size && found.data != NULL && memcmp(found.data, bytes, size) == 0 && ((const char *)found.data)[size] == 0;
}

static void there_and_back(laika_model_t identity) {
    const laika_statistics_t before = statistics();
    for (int round = 0; round < 50; ++round) {
        char long_one[600];
        memset(long_one, 'a' + round % 26, sizeof long_one);
        laika_bytes_t in[6] = {text("one"), text(""), {"zero\0inside", 11}, text("gr\xc3\xbcn"), {NULL, 0}, {long_one, (size_t)round * 12}}, out[6];
        laika_tensor_t x = {in, LAIKA_BYTES, 2, {2, 3}}, y = {out, LAIKA_BYTES, 1, {6}};
        memset(out, 0x5a, sizeof out);
        NEED(laika_infer(identity, &x, 1, &y, 1));
        CHECK(y.dtype == LAIKA_BYTES && y.ndim == 2 && y.shape[0] == 2 && y.shape[1] == 3);
        for (int i = 0; i < 6; ++i) CHECK(is(out[i], in[i].data == NULL ? "" : in[i].data, in[i].size));
        CHECK_OK(laika_bytes_free(&y));
        CHECK(out[0].data == NULL && out[5].size == 0);
        CHECK_OK(laika_bytes_free(&y)); /* nothing is there any more */
    }
    const laika_statistics_t after = statistics();
    CHECK(after.copies_in == before.copies_in + 50);
    CHECK(after.copies_out == before.copies_out + 50);
    CHECK(after.prepared - before.prepared <= 3); /* rooms of 256, 512 and 1024 bytes */
}

static void none_and_one(laika_model_t identity) {
    laika_tensor_t nothing = {NULL, LAIKA_BYTES, 1, {0}}, made = {NULL, LAIKA_BYTES, 1, {0}};
    CHECK_OK(laika_infer(identity, &nothing, 1, &made, 1));
    CHECK_OK(laika_bytes_free(&made));
    laika_bytes_t in = text("alone"), out;
    laika_tensor_t x = {&in, LAIKA_BYTES, 0, {0}}, y = {&out, LAIKA_BYTES, 0, {0}};
    CHECK_OK(laika_infer(identity, &x, 1, &y, 1));
    CHECK(is(out, "alone", 5));
    CHECK_OK(laika_bytes_free(&y));
}

/* Larger than anybody expected: the host has them, and the next call has room. */
static void large(laika_model_t join) {
    enum { n = 3, size = 100000 };
    char *block = malloc(size);
    memset(block, 'x', size);
    for (int round = 0; round < 3; ++round) {
        laika_bytes_t a[n] = {{block, size}, text(""), text("left")}, b[n] = {{block, size}, text("right"), text("")}, y[n];
        int64_t rows = 0;
        laika_tensor_t in[2] = {strings_of(a, n), strings_of(b, n)}, out[2] = {strings_of(y, n), {&rows, LAIKA_INT64, 0, {0}}};
        NEED(laika_infer(join, in, 2, out, 2));
        CHECK(rows == n);
        CHECK(y[0].size == 2 * size && memcmp(y[0].data, block, size) == 0);
        CHECK(is(y[1], "right", 5) && is(y[2], "left", 4));
        CHECK_OK(laika_bytes_free(&out[0]));
    }
    free(block);
}

static void too_many(laika_model_t pick) {
    laika_bytes_t x[4] = {text("a"), text("b"), text("c"), text("d")}, y[4] = {{NULL, 7}};
    uint8_t keep[4] = {1, 0, 1, 1};
    laika_tensor_t in[2] = {strings_of(x, 4), vector_of(keep, LAIKA_BOOL, 4)}, out = strings_of(y, 2);
    CHECK_ERROR(laika_infer(pick, in, 2, &out, 1), LAIKA_ERR_TOO_SMALL, "room for 2 strings");
    CHECK(out.shape[0] == 3 && y[0].data == NULL && y[0].size == 7); /* nothing was written */
    CHECK_OK(laika_infer(pick, in, 2, &out, 1));
    CHECK(is(y[0], "a", 1) && is(y[1], "c", 1) && is(y[2], "d", 1));
    CHECK_OK(laika_bytes_free(&out));
    keep[2] = keep[3] = 0; /* fewer than there is room for */
    CHECK_OK(laika_infer(pick, in, 2, &out, 1));
    CHECK(out.shape[0] == 1 && is(y[0], "a", 1));
    CHECK_OK(laika_bytes_free(&out));
}

static void asynchronous(laika_model_t identity) {
    enum { n = 8 };
    laika_bytes_t in[n], out[n];
    laika_tensor_t x[n], y[n];
    laika_call_t calls[n];
    char words[n][32];
    for (int i = 0; i < n; ++i) {
        snprintf(words[i], sizeof words[i], "word %d", i);
        in[i] = text(words[i]);
        x[i] = strings_of(&in[i], 1), y[i] = strings_of(&out[i], 1);
        NEED(laika_infer_async(identity, &x[i], 1, &y[i], 1, &calls[i]));
        in[i] = text("changed since");
    }
    for (int i = n; i-- > 0;) {
        CHECK_OK(laika_wait(calls[i], -1));
        CHECK(is(out[i], words[i], strlen(words[i])));
        CHECK_OK(laika_bytes_free(&y[i]));
    }
}

static void misuse(laika_model_t identity, laika_model_t sum, laika_model_t join) {
    laika_bytes_t good = text("good"), made = {0}, bad[2] = {text("x"), {NULL, 5}};
    laika_tensor_t x = strings_of(&good, 1), y = strings_of(&made, 1);
    double total = 0;
    laika_tensor_t number = {&total, LAIKA_FLOAT64, 0, {0}};
    CHECK_ERROR(laika_infer(sum, &x, 1, &number, 1), LAIKA_ERR_INVALID, "inputs[0].dtype: BYTES");
    CHECK_ERROR(laika_infer(identity, &x, 1, &number, 1), LAIKA_ERR_INVALID, "outputs[0].dtype: float64");
    laika_tensor_t any = {&total, LAIKA_DTYPE_NONE, 1, {8}};
    CHECK_ERROR(laika_infer(identity, &x, 1, &any, 1), LAIKA_ERR_INVALID, "give LAIKA_BYTES");
    CHECK_ERROR(laika_infer(identity, &number, 1, &y, 1), LAIKA_ERR_INVALID, "outputs[0].dtype: BYTES");
    x.data = NULL;
    CHECK_ERROR(laika_infer(identity, &x, 1, &y, 1), LAIKA_ERR_POINTER, "an array of 1 laika_bytes_t");
#ifndef __SANITIZE_ADDRESS__ /* whose own report is better */
    x.data = (void *)8;
    CHECK_STATUS(laika_infer(identity, &x, 1, &y, 1), LAIKA_ERR_POINTER);
#endif
    x = strings_of(bad, 2);
    y.shape[0] = 2;
    CHECK_ERROR(laika_infer(identity, &x, 1, &y, 1), LAIKA_ERR_POINTER, "string 1 is NULL");
    bad[1] = (laika_bytes_t){&good, UINT64_MAX};
    CHECK_ERROR(laika_infer(identity, &x, 1, &y, 1), LAIKA_ERR_QUOTA, "more than 2^46");
    x.shape[0] = INT64_MAX;
    CHECK_STATUS(laika_infer(identity, &x, 1, &y, 1), LAIKA_ERR_INVALID);
    x.shape[0] = (int64_t)1 << 58;
    CHECK_STATUS(laika_infer(identity, &x, 1, &y, 1), LAIKA_ERR_QUOTA);
    x.shape[0] = -1;
    CHECK_ERROR(laika_infer(identity, &x, 1, &y, 1), LAIKA_ERR_INVALID, "inputs[0].shape[0]: -1");
    x = strings_of(&good, 1), y = strings_of(NULL, 1);
    CHECK_ERROR(laika_infer(identity, &x, 1, &y, 1), LAIKA_ERR_POINTER, "outputs[0].data: NULL");
    y.dtype = LAIKA_BYTES + 1;
    CHECK_ERROR(laika_infer(identity, &x, 1, &y, 1), LAIKA_ERR_INVALID, "expected a laika_dtype_t");
    laika_tensor_t two[2] = {strings_of(&good, 1), strings_of(bad, 2)}, out[2] = {strings_of(&made, 1), {&total, LAIKA_INT64, 0, {0}}};
    bad[1] = text("y");
    CHECK_STATUS(laika_infer(join, two, 2, out, 2), LAIKA_ERR_INVALID);
}

static void bad_frees(laika_model_t identity) {
    laika_bytes_t good = text("good"), made = {0}, kept;
    laika_tensor_t x = strings_of(&good, 1), y = strings_of(&made, 1);
    CHECK_STATUS(laika_bytes_free(NULL), LAIKA_ERR_POINTER);
    CHECK_ERROR(laika_bytes_free(&x), LAIKA_ERR_POINTER, "not those of a call");
    CHECK(good.size == 4);
    NEED(laika_infer(identity, &x, 1, &y, 1));
    kept = made;
    CHECK_OK(laika_bytes_free(&y));
    made = kept; /* freed, and given once more */
    CHECK_ERROR(laika_bytes_free(&y), LAIKA_ERR_POINTER, "were given back");
    y.dtype = LAIKA_UINT8;
    CHECK_ERROR(laika_bytes_free(&y), LAIKA_ERR_INVALID, "expected LAIKA_BYTES");
    y = strings_of(NULL, 1);
    CHECK_STATUS(laika_bytes_free(&y), LAIKA_ERR_POINTER);
    y.ndim = 99;
    CHECK_STATUS(laika_bytes_free(&y), LAIKA_ERR_INVALID);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    laika_model_t identity, sum, join, pick;
    laika_spec_t specs[2];
    size_t count = 0;
    NEED(laika_init(argv[1], LAIKA_INIT_DEFAULT));
    NEED(laika_model_load("builtin:identity", 0, &identity));
    NEED(laika_model_load("builtin:sum", 0, &sum));
    NEED(laika_model_load(argv[2], 0, &join));
    NEED(laika_model_load(argv[3], 0, &pick));
    CHECK_OK(laika_model_inputs(join, specs, 2, &count));
    CHECK(count == 2 && specs[0].dtype == LAIKA_BYTES && specs[1].dtype == LAIKA_BYTES);
    there_and_back(identity);
    none_and_one(identity);
    large(join);
    too_many(pick);
    asynchronous(identity);
    misuse(identity, sum, join);
    bad_frees(identity);
    laika_bytes_t in = text("outlives"), out;
    laika_tensor_t x = strings_of(&in, 1), y = strings_of(&out, 1);
    NEED(laika_infer(identity, &x, 1, &y, 1));
    CHECK_OK(laika_finalize());
    CHECK(is(out, "outlives", 8));
    CHECK_OK(laika_bytes_free(&y));
    return check_summary();
}
