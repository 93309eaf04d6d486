/* Sums of rows of float32, each row times the vector in the arguments: reads all of the input buffer once, whatever its size. */
#include <duck.h>

#include "rows.h"

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
