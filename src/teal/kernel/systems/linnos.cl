// linnos as a device task: 31 digits → 256 ReLU (→ 256 ReLU, LINNOS_MORE times) → 2, argmax, in 64-bit integers.
// Weights: b0[256] … b_last[2] w0[31][256] … w_last[256][2].
//
// Workers share an item: each has some of the 256 units. LINNOS_TILE items are taken together, so that a weight is read once for
// all of them. A single worker (a CPU) runs along the units instead, which its compiler turns into vectors.
// Scratch, in longs: two hidden layers of LINNOS_TILE items. `workers` is a power of two, at most 256.

#define LINNOS_TILE 4

// h = in·w + b, then ReLU: `inputs` values of each item, from `x` (bytes) or from `from`.
#define LINNOS_LAYER(inputs, VALUE)                                                          \
    if (workers == 1) {                                                                      \
        for (uint item = 0; item < items; ++item) {                                          \
            TEAL_LOCAL long* h = to + item * 256;                                            \
            for (int j = 0; j < 256; ++j) h[j] = b[j];                                       \
            for (uint k = 0; k < inputs; ++k) {                                              \
                long value = VALUE;                                                          \
                for (int j = 0; j < 256; ++j) h[j] += value * w[k * 256 + j];                \
            }                                                                                \
            for (int j = 0; j < 256; ++j) h[j] = h[j] > 0 ? h[j] : 0;                        \
        }                                                                                    \
    } else {                                                                                 \
        for (uint j = worker; j < 256; j += workers) {                                       \
            long sum[LINNOS_TILE];                                                           \
            for (uint item = 0; item < LINNOS_TILE; ++item) sum[item] = b[j];                \
            for (uint k = 0; k < inputs; ++k) {                                              \
                long weight = w[k * 256 + j];                                                \
                for (uint item = 0; item < LINNOS_TILE; ++item)                              \
                    if (item < items) sum[item] += weight * (VALUE);                         \
            }                                                                                \
            for (uint item = 0; item < LINNOS_TILE; ++item)                                  \
                if (item < items) to[item * 256 + j] = sum[item] > 0 ? sum[item] : 0;        \
        }                                                                                    \
    }                                                                                        \
    TEAL_BARRIER();

TEAL_TASK void teal_task(TEAL_GLOBAL const uchar* weights, TEAL_GLOBAL const uchar* in, TEAL_GLOBAL uchar* out0, TEAL_GLOBAL uchar* out1,
                         uint batch, uint worker, uint workers, TEAL_LOCAL uchar* scratch) {
    TEAL_GLOBAL const long* biases = (TEAL_GLOBAL const long*)weights;
    TEAL_GLOBAL const long* matrices = biases + 256 * (1 + LINNOS_MORE) + 2;
    TEAL_GLOBAL long* scores = (TEAL_GLOBAL long*)out0;
    TEAL_GLOBAL int* verdict = (TEAL_GLOBAL int*)out1;
    TEAL_LOCAL long* from = (TEAL_LOCAL long*)scratch + 256 * LINNOS_TILE;
    TEAL_LOCAL long* to = (TEAL_LOCAL long*)scratch;
    for (uint first = 0; first < batch; first += LINNOS_TILE) {
        uint items = batch - first < LINNOS_TILE ? batch - first : LINNOS_TILE;
        TEAL_GLOBAL const uchar* x = in + (size_t)first * 31;
        TEAL_GLOBAL const long* b = biases;
        TEAL_GLOBAL const long* w = matrices;
        LINNOS_LAYER(31, x[item * 31 + k])
        w += 31 * 256;
        for (int more = 0; more < LINNOS_MORE; ++more) {
            TEAL_LOCAL long* swap = from;
            from = to;
            to = swap;
            b += 256;
            LINNOS_LAYER(256, from[item * 256 + k])
            w += 256 * 256;
        }
        b += 256;
        // Each worker's share of the two sums, then their sum, pairwise, in the half of the scratch that is free.
        for (uint item = 0; item < items; ++item) {
            long zero = 0;
            long one = 0;
            for (uint k = worker; k < 256; k += workers) {
                zero += to[item * 256 + k] * w[2 * k];
                one += to[item * 256 + k] * w[2 * k + 1];
            }
            from[2 * worker] = zero;
            from[2 * worker + 1] = one;
            TEAL_BARRIER();
            for (uint reach = workers / 2; reach > 0; reach /= 2) {
                if (worker < reach) {
                    from[2 * worker] += from[2 * (worker + reach)];
                    from[2 * worker + 1] += from[2 * (worker + reach) + 1];
                }
                TEAL_BARRIER();
            }
            if (worker == 0) {
                zero = from[0] + b[0];
                one = from[1] + b[1];
                scores[2 * (size_t)(first + item)] = zero;
                scores[2 * (size_t)(first + item) + 1] = one;
                verdict[first + item] = one > zero ? 1 : 0;
            }
            TEAL_BARRIER();
        }
    }
}
