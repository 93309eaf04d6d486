/* C = A B in float32. The arguments are three uint32 (m, k, n); the input buffer is A (m x k) and behind it B (k x n), the answer is C (m x n).
 * Every core takes its share of the rows of C.
 *
 *     teal duck cc matmul.c -o matmul.elf -O 3
 *
 *     with teal.Duck() as duck, duck.open("matmul.elf", cores=2, ob=4 * m * n) as matmul:
 *         matmul.map(np.concatenate([a.ravel(), b.ravel()]))
 *         c = np.frombuffer(matmul.call(np.array([m, k, n], np.uint32)), np.float32).reshape(m, n)
 *
 * A tile of C of four rows and two vectors stays in registers while it is summed up, which is what a matrix product is made of. Wide vectors
 * are chosen when the program starts, as in gemv.c.
 */
#include <duck.h>
#include <duck_cpu.h>

typedef struct product {
    const float *a, *b;
    float *c;
    uint64_t k, n;
} product;

static void one(const product *p, uint64_t row, uint64_t column) {
    float sum = 0;
    for (uint64_t i = 0; i < p->k; ++i) sum += p->a[row * p->k + i] * p->b[i * p->n + column];
    p->c[row * p->n + column] = sum;
}

#define DEFINE_ROWS(name, target, width)                                                                   \
    target static void name(const product *p, uint64_t row, uint64_t end) {                               \
        typedef float lanes __attribute__((vector_size(width), aligned(4), may_alias));                   \
        enum { lane = (width) / 4, rows = 4, vectors = 2 };                                               \
        uint64_t column = 0;                                                                              \
        for (; row + rows <= end; row += rows) {                                                          \
            for (column = 0; column + vectors * lane <= p->n; column += vectors * lane) {                 \
                lanes sums[rows][vectors] = {{{0}, {0}}, {{0}, {0}}, {{0}, {0}}, {{0}, {0}}};             \
                for (uint64_t i = 0; i < p->k; ++i) {                                                     \
                    const float *b = p->b + i * p->n + column;                                            \
                    for (int r = 0; r < rows; ++r)                                                        \
                        for (int v = 0; v < vectors; ++v)                                                 \
                            sums[r][v] += p->a[(row + (uint64_t)r) * p->k + i] * *(const lanes *)(b + v * lane); \
                }                                                                                         \
                for (int r = 0; r < rows; ++r)                                                            \
                    for (int v = 0; v < vectors; ++v) *(lanes *)(p->c + (row + (uint64_t)r) * p->n + column + v * lane) = sums[r][v]; \
            }                                                                                             \
            for (uint64_t r = row; r < row + rows; ++r)                                                   \
                for (uint64_t rest = column; rest < p->n; ++rest) one(p, r, rest);                        \
        }                                                                                                 \
        for (; row < end; ++row)                                                                          \
            for (column = 0; column < p->n; ++column) one(p, row, column);                                \
    }

DEFINE_ROWS(rows_base, , 16)
DEFINE_ROWS(rows_avx2, DUCK_TARGET_AVX2, 32)
DEFINE_ROWS(rows_avx512, DUCK_TARGET_AVX512, 64)

static void (*rows_best)(const product *p, uint64_t row, uint64_t end) = rows_base;

int duck_init(const duck_t *duck) {
    (void)duck;
    const duck_isa_t isa = duck_isa();
    rows_best = isa == DUCK_AVX512 ? rows_avx512 : isa == DUCK_AVX2 ? rows_avx2 : rows_base;
    return 0;
}

int64_t duck_call(const duck_t *duck, const void *args, uint64_t bytes, uint32_t core) {
    if (bytes != 12) return -1;
    const uint32_t *shape = args;
    const uint64_t m = shape[0], k = shape[1], n = shape[2];
    const uint64_t most = duck->ib_bytes / 4, room = duck->ob_bytes / 4;
    if (m == 0 || k == 0 || n == 0) return -2;
    if (m > most / k || n > most / k || (m + n) * k > most) return -3; /* A and B are not all there */
    if (m > room / n) return -4;                                       /* no room for C */
    const float *a = duck->ib;
    const product p = {a, a + m * k, duck->ob, k, n};
    const uint64_t tiles = (m + 3) / 4;
    const uint64_t begin = tiles * core / duck->cores * 4, wanted = tiles * (core + 1) / duck->cores * 4;
    rows_best(&p, begin, wanted < m ? wanted : m);
    return (int64_t)(m * n * 4);
}
