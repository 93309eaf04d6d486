/* y = W x in float32: the weights W (rows x columns, row by row) are the input buffer, x are the arguments, y is the answer. What a
 * language model does for each token it makes. The weights are mapped once and read where they are; every core takes its share of the rows.
 *
 *     teal duck cc gemv.c -o gemv.elf -O 3
 *     teal duck run gemv.elf --ib weights.bin --cores 2 < x.bin > y.bin
 *
 *     with teal.Duck("host:7311", key_file="duck.key") as duck, duck.open("gemv.elf", cores=2) as gemv:
 *         gemv.map(weights)                                   # float32, (rows, columns): crosses the wire once
 *         y = np.frombuffer(gemv.call(x), np.float32)
 *
 * Wide vectors are chosen when the program starts (duck_cpu.h): there is no CPU on which this meets an instruction that it does not have.
 */
#include <duck.h>
#include <duck_cpu.h>

typedef void (*rows_function)(const float *w, const float *x, float *y, uint64_t rows, uint64_t columns);

/* The same for each width: four sums at a time, so that no addition waits for the one before it. */
#define DEFINE_ROWS(name, target, width)                                                               \
    target static void name(const float *w, const float *x, float *y, uint64_t rows, uint64_t columns) { \
        typedef float lanes __attribute__((vector_size(width), aligned(4), may_alias));                \
        enum { n = (width) / 4 };                                                                      \
        for (uint64_t row = 0; row < rows; ++row, w += columns) {                                      \
            lanes sums[4] = {{0}, {0}, {0}, {0}};                                                      \
            uint64_t i = 0;                                                                            \
            for (; i + 4 * n <= columns; i += 4 * n)                                                   \
                for (int k = 0; k < 4; ++k) sums[k] += *(const lanes *)(w + i + k * n) * *(const lanes *)(x + i + k * n); \
            sums[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);                                       \
            float sum = 0;                                                                             \
            for (int k = 0; k < n; ++k) sum += sums[0][k];                                             \
            for (; i < columns; ++i) sum += w[i] * x[i];                                               \
            y[row] = sum;                                                                              \
        }                                                                                              \
    }

DEFINE_ROWS(rows_base, , 16)
DEFINE_ROWS(rows_avx2, DUCK_TARGET_AVX2, 32)
DEFINE_ROWS(rows_avx512, DUCK_TARGET_AVX512, 64)

static rows_function rows_best = rows_base;

int duck_init(const duck_t *duck) {
    (void)duck;
    const duck_isa_t isa = duck_isa();
    rows_best = isa == DUCK_AVX512 ? rows_avx512 : isa == DUCK_AVX2 ? rows_avx2 : rows_base;
    return 0;
}

int64_t duck_call(const duck_t *duck, const void *args, uint64_t bytes, uint32_t core) {
    const uint64_t columns = bytes / 4;
    if (columns == 0 || bytes % 4 != 0) return -1;               /* no vector of float32 */
    const uint64_t rows = duck->ib_bytes / bytes;
    if (duck->ib_bytes % bytes != 0 || rows == 0) return -2;     /* no matrix of that many columns */
    if (duck->ob_bytes / 4 < rows) return -3;                    /* no room for the answer */
    /* Whole lines of the answer to each core: no line is written by two. */
    const uint64_t lines = (rows + 15) / 16;
    const uint64_t begin = lines * core / duck->cores * 16, wanted = lines * (core + 1) / duck->cores * 16;
    const uint64_t end = wanted < rows ? wanted : rows;
    if (begin < end) rows_best((const float *)duck->ib + begin * columns, args, (float *)duck->ob + begin, end - begin, columns);
    return (int64_t)(rows * 4);
}
