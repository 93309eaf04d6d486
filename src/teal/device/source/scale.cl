// The smallest task that can be wrong: out0[i] = in[i] * weights[0], for batch floats. out1 is not written.
TEAL_TASK void teal_task(TEAL_GLOBAL const uchar* weights, TEAL_GLOBAL const uchar* in, TEAL_GLOBAL uchar* out0, TEAL_GLOBAL uchar* out1, uint batch,
                         uint worker, uint workers, TEAL_LOCAL uchar* scratch) {
    const float factor = *(TEAL_GLOBAL const float*)weights;
    for (uint i = worker; i < batch; i += workers) ((TEAL_GLOBAL float*)out0)[i] = ((TEAL_GLOBAL const float*)in)[i] * factor;
}
