/* Sums of rows of float32, each row times a vector: reads all of the weights once. What gemv.c does in a duck and limit.c in plain threads. */
#include <stdint.h>

#include <duck_cpu.h>

typedef float lanes __attribute__((vector_size(32), aligned(4), may_alias));

/* So many floats ahead, a page: the CPU's own prefetching ends at each page. */
#define ROWS_AHEAD 1024

DUCK_TARGET_AVX2 static void rows_wide(const float *w, const float *x, float *y, uint64_t rows, uint64_t columns) {
    for (uint64_t row = 0; row < rows; ++row, w += columns) {
        lanes sums[4] = {{0}, {0}, {0}, {0}};
        for (uint64_t i = 0; i < columns; i += 32) {
            __builtin_prefetch(w + i + ROWS_AHEAD);
            __builtin_prefetch(w + i + ROWS_AHEAD + 16);
            for (int k = 0; k < 4; ++k) sums[k] += *(const lanes *)(w + i + k * 8) * *(const lanes *)(x + i + k * 8);
        }
        sums[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        float sum = 0;
        for (int k = 0; k < 8; ++k) sum += sums[0][k];
        y[row] = sum;
    }
}
