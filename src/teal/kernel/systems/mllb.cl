// mllb as a device task: 15 → 10 ReLU → 1, > 0.5. An item a worker; no scratch.
// Weights: b0[10] b1[1] w0[15][10] w1[10].

TEAL_TASK void teal_task(TEAL_GLOBAL const uchar* weights, TEAL_GLOBAL const uchar* in, TEAL_GLOBAL uchar* out0, TEAL_GLOBAL uchar* out1,
                         uint batch, uint worker, uint workers, TEAL_LOCAL uchar* scratch) {
    TEAL_GLOBAL const float* b0 = (TEAL_GLOBAL const float*)weights;
    TEAL_GLOBAL const float* w0 = b0 + 11;
    TEAL_GLOBAL const float* w1 = b0 + 161;
    TEAL_GLOBAL const float* x = (TEAL_GLOBAL const float*)in;
    TEAL_GLOBAL float* scores = (TEAL_GLOBAL float*)out0;
    TEAL_GLOBAL int* verdict = (TEAL_GLOBAL int*)out1;
    for (uint item = worker; item < batch; item += workers) {
        float h[10];
        for (int j = 0; j < 10; ++j) h[j] = b0[j];
        for (int k = 0; k < 15; ++k) {
            float value = x[(size_t)item * 15 + k];
            for (int j = 0; j < 10; ++j) h[j] += value * w0[k * 10 + j];
        }
        float score = b0[10];
        for (int j = 0; j < 10; ++j) score += (h[j] > 0.0f ? h[j] : 0.0f) * w1[j];
        scores[item] = score;
        verdict[item] = score > 0.5f ? 1 : 0;
    }
}
