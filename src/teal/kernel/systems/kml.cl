// kml as a device task: normalise 5 → 15 → 5 → 4, all linear, argmax. An item a worker; no scratch.
// Weights: b0[15] b1[5] b2[4] mean[5] std[5] w0[5][15] w1[15][5] w2[5][4].

TEAL_TASK void teal_task(TEAL_GLOBAL const uchar* weights, TEAL_GLOBAL const uchar* in, TEAL_GLOBAL uchar* out0, TEAL_GLOBAL uchar* out1,
                         uint batch, uint worker, uint workers, TEAL_LOCAL uchar* scratch) {
    TEAL_GLOBAL const float* b0 = (TEAL_GLOBAL const float*)weights;
    TEAL_GLOBAL const float* b1 = b0 + 15;
    TEAL_GLOBAL const float* b2 = b0 + 20;
    TEAL_GLOBAL const float* mean = b0 + 24;
    TEAL_GLOBAL const float* deviation = b0 + 29;
    TEAL_GLOBAL const float* w0 = b0 + 34;
    TEAL_GLOBAL const float* w1 = b0 + 109;
    TEAL_GLOBAL const float* w2 = b0 + 184;
    TEAL_GLOBAL const float* x = (TEAL_GLOBAL const float*)in;
    TEAL_GLOBAL float* scores = (TEAL_GLOBAL float*)out0;
    TEAL_GLOBAL int* verdict = (TEAL_GLOBAL int*)out1;
    for (uint item = worker; item < batch; item += workers) {
        float h[15];
        float g[5];
        float s[4];
        for (int j = 0; j < 15; ++j) h[j] = b0[j];
        for (int k = 0; k < 5; ++k) {
            float value = (x[(size_t)item * 5 + k] - mean[k]) / deviation[k];
            for (int j = 0; j < 15; ++j) h[j] += value * w0[k * 15 + j];
        }
        for (int j = 0; j < 5; ++j) g[j] = b1[j];
        for (int k = 0; k < 15; ++k)
            for (int j = 0; j < 5; ++j) g[j] += h[k] * w1[k * 5 + j];
        for (int j = 0; j < 4; ++j) s[j] = b2[j];
        for (int k = 0; k < 5; ++k)
            for (int j = 0; j < 4; ++j) s[j] += g[k] * w2[k * 4 + j];
        int best = 0;
        for (int j = 0; j < 4; ++j) {
            if (s[j] > s[best]) best = j;
            scores[(size_t)item * 4 + j] = s[j];
        }
        verdict[item] = best;
    }
}
