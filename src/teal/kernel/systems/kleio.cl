// kleio as a device task: 6 pages of 621 → LSTM 256 → LSTM 256 → 621, softmax, argmax.
// Weights: b0[1024] b1[1024] b2[621] u0[256][1024] u1[256][1024] w0[621][1024] w1[256][1024] w2[256][621].
//
// Workers share an item: each has some of the columns. KLEIO_TILE items are taken together, so that a weight is read once for all
// of them. A single worker (a CPU) runs along the columns instead, which its compiler turns into vectors.
// Scratch, in floats, for each item of a tile: gates[1024] h1[256] h2[256] c1[256] c2[256]. `workers` is a power of two, ≤ 256.

#define KLEIO_TILE 4
#define KLEIO_UNITS 256
#define KLEIO_GATES 1024
#define KLEIO_PAGES 621

TEAL_TASK float kleio_sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
TEAL_TASK float kleio_tanh(float x) { return 2.0f / (1.0f + exp(-2.0f * x)) - 1.0f; }

// out[item][column] += h[item]·w, for this worker's columns; out and h in scratch, rows of 1,024 and 256.
TEAL_TASK void kleio_multiply(TEAL_LOCAL float* out, TEAL_LOCAL const float* h, TEAL_GLOBAL const float* w, uint columns, uint items,
                              uint worker, uint workers) {
    if (workers == 1) {
        for (uint item = 0; item < items; ++item) {
            TEAL_LOCAL float* row = out + item * KLEIO_GATES;
            for (uint k = 0; k < KLEIO_UNITS; ++k) {
                float value = h[item * KLEIO_UNITS + k];
                for (uint column = 0; column < columns; ++column) row[column] += value * w[k * columns + column];
            }
        }
        return;
    }
    for (uint column = worker; column < columns; column += workers) {
        float sum[KLEIO_TILE];
        for (uint item = 0; item < KLEIO_TILE; ++item) sum[item] = 0.0f;
        for (uint k = 0; k < KLEIO_UNITS; ++k) {
            float weight = w[k * columns + column];
            for (uint item = 0; item < KLEIO_TILE; ++item) sum[item] += weight * h[item * KLEIO_UNITS + k];
        }
        for (uint item = 0; item < items; ++item) out[item * KLEIO_GATES + column] += sum[item];
    }
}

// Gates → cell and hidden state, for this worker's units. The gates are complete; h is written after everybody has read it.
TEAL_TASK void kleio_step(TEAL_LOCAL const float* gates, TEAL_LOCAL float* h, TEAL_LOCAL float* c, uint items, uint worker, uint workers) {
    for (uint item = 0; item < items; ++item) {
        TEAL_LOCAL const float* row = gates + item * KLEIO_GATES;
        for (uint j = worker; j < KLEIO_UNITS; j += workers) {
            float cell = kleio_sigmoid(row[KLEIO_UNITS + j]) * c[item * KLEIO_UNITS + j] + kleio_sigmoid(row[j]) * kleio_tanh(row[2 * KLEIO_UNITS + j]);
            c[item * KLEIO_UNITS + j] = cell;
            h[item * KLEIO_UNITS + j] = kleio_sigmoid(row[3 * KLEIO_UNITS + j]) * kleio_tanh(cell);
        }
    }
}

TEAL_TASK void teal_task(TEAL_GLOBAL const uchar* weights, TEAL_GLOBAL const uchar* in, TEAL_GLOBAL uchar* out0, TEAL_GLOBAL uchar* out1,
                         uint batch, uint worker, uint workers, TEAL_LOCAL uchar* scratch) {
    TEAL_GLOBAL const float* b0 = (TEAL_GLOBAL const float*)weights;
    TEAL_GLOBAL const float* b1 = b0 + KLEIO_GATES;
    TEAL_GLOBAL const float* b2 = b1 + KLEIO_GATES;
    TEAL_GLOBAL const float* u0 = b2 + KLEIO_PAGES;
    TEAL_GLOBAL const float* u1 = u0 + KLEIO_UNITS * KLEIO_GATES;
    TEAL_GLOBAL const float* w0 = u1 + KLEIO_UNITS * KLEIO_GATES;
    TEAL_GLOBAL const float* w1 = w0 + KLEIO_PAGES * KLEIO_GATES;
    TEAL_GLOBAL const float* w2 = w1 + KLEIO_UNITS * KLEIO_GATES;
    TEAL_GLOBAL const int* x = (TEAL_GLOBAL const int*)in;
    TEAL_GLOBAL float* scores = (TEAL_GLOBAL float*)out0;
    TEAL_GLOBAL int* verdict = (TEAL_GLOBAL int*)out1;
    TEAL_LOCAL float* gates = (TEAL_LOCAL float*)scratch;
    TEAL_LOCAL float* h1 = gates + KLEIO_TILE * KLEIO_GATES;
    TEAL_LOCAL float* h2 = h1 + KLEIO_TILE * KLEIO_UNITS;
    TEAL_LOCAL float* c1 = h2 + KLEIO_TILE * KLEIO_UNITS;
    TEAL_LOCAL float* c2 = c1 + KLEIO_TILE * KLEIO_UNITS;
    for (uint first = 0; first < batch; first += KLEIO_TILE) {
        uint items = batch - first < KLEIO_TILE ? batch - first : KLEIO_TILE;
        for (uint i = worker; i < 4 * KLEIO_TILE * KLEIO_UNITS; i += workers) h1[i] = 0.0f;
        for (uint t = 0; t < 6; ++t) {
            for (uint item = 0; item < items; ++item) {
                int page = x[(size_t)(first + item) * 6 + t];  // out of range: no access, a row of zeros
                TEAL_GLOBAL const float* row = w0 + (size_t)(page >= 0 && page < KLEIO_PAGES ? page : 0) * KLEIO_GATES;
                float known = page >= 0 && page < KLEIO_PAGES ? 1.0f : 0.0f;
                for (uint column = worker; column < KLEIO_GATES; column += workers)
                    gates[item * KLEIO_GATES + column] = b0[column] + known * row[column];
            }
            TEAL_BARRIER();
            if (t > 0) kleio_multiply(gates, h1, u0, KLEIO_GATES, items, worker, workers);
            TEAL_BARRIER();
            kleio_step(gates, h1, c1, items, worker, workers);
            TEAL_BARRIER();
            for (uint item = 0; item < items; ++item)
                for (uint column = worker; column < KLEIO_GATES; column += workers) gates[item * KLEIO_GATES + column] = b1[column];
            TEAL_BARRIER();
            kleio_multiply(gates, h1, w1, KLEIO_GATES, items, worker, workers);
            if (t > 0) kleio_multiply(gates, h2, u1, KLEIO_GATES, items, worker, workers);
            TEAL_BARRIER();
            kleio_step(gates, h2, c2, items, worker, workers);
            TEAL_BARRIER();
        }
        for (uint item = 0; item < items; ++item)
            for (uint column = worker; column < KLEIO_PAGES; column += workers) gates[item * KLEIO_GATES + column] = b2[column];
        TEAL_BARRIER();
        kleio_multiply(gates, h2, w2, KLEIO_PAGES, items, worker, workers);
        TEAL_BARRIER();
        // Softmax: the largest of each worker's share and where it is, then of all of them, then the same with the sums. h1 and c1
        // are free by now and as long as the workers are many.
        for (uint item = 0; item < items; ++item) {
            TEAL_LOCAL float* row = gates + item * KLEIO_GATES;
            TEAL_LOCAL float* values = h1;
            TEAL_LOCAL int* places = (TEAL_LOCAL int*)c1;
            int best = (int)worker;
            for (uint j = worker; j < KLEIO_PAGES; j += workers)
                if (row[j] > row[best]) best = (int)j;
            values[worker] = row[best];
            places[worker] = best;
            TEAL_BARRIER();
            for (uint reach = workers / 2; reach > 0; reach /= 2) {
                if (worker < reach) {
                    float other = values[worker + reach];
                    int place = places[worker + reach];
                    if (other > values[worker] || (other == values[worker] && place < places[worker])) {
                        values[worker] = other;
                        places[worker] = place;
                    }
                }
                TEAL_BARRIER();
            }
            float largest = values[0];
            best = places[0];
            TEAL_BARRIER();
            float sum = 0.0f;
            for (uint j = worker; j < KLEIO_PAGES; j += workers) {
                row[j] = exp(row[j] - largest);
                sum += row[j];
            }
            values[worker] = sum;
            TEAL_BARRIER();
            for (uint reach = workers / 2; reach > 0; reach /= 2) {
                if (worker < reach) values[worker] += values[worker + reach];
                TEAL_BARRIER();
            }
            sum = values[0];
            for (uint j = worker; j < KLEIO_PAGES; j += workers) scores[(size_t)(first + item) * KLEIO_PAGES + j] = row[j] / sum;
            if (worker == 0) verdict[first + item] = best;
            TEAL_BARRIER();
        }
    }
}
