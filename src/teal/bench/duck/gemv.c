/* Sums of rows of float32, each row times the vector in the arguments: reads all of the input buffer once, whatever its size. */
#include <duck.h>
#include <duck_cpu.h>

typedef float lanes __attribute__((vector_size(32), aligned(4), may_alias));

DUCK_TARGET_AVX2 static void rows_wide(const float *w, const float *x, float *y, uint64_t rows, uint64_t columns) {
    for (uint64_t row = 0; row < rows; ++row, w += columns) {
        lanes sums[4] = {{0}, {0}, {0}, {0}};
        for (uint64_t i = 0; i < columns; i += 32)
            for (int k = 0; k < 4; ++k) sums[k] += *(const lanes *)(w + i + k * 8) * *(const lanes *)(x + i + k * 8);
        sums[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        float sum = 0;
        for (int k = 0; k < 8; ++k) sum += sums[0][k];
        y[row] = sum;
    }
}

int duck_init(const duck_t *duck) {
    (void)duck;
    return duck_isa() >= DUCK_AVX2 ? 0 : 1;
}

int64_t duck_call(const duck_t *duck, const void *args, uint64_t bytes, uint32_t core) {
    if (bytes == 0 || bytes % 128 != 0 || duck->ib_bytes % bytes != 0) return -1;
    const uint64_t columns = bytes / 4, rows = duck->ib_bytes / bytes;
    if (rows * 4 > duck->ob_bytes) return -2;
    const uint64_t first = rows * core / duck->cores, end = rows * (core + 1) / duck->cores;
    rows_wide((const float *)duck->ib + first * columns, args, (float *)duck->ob + first, end - first, columns);
    return (int64_t)(rows * 4);
}
