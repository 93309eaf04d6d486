// One width of mllb; see systems/mllb.cpp.

TEAL_ENTRY void run(const MllbWeights& w, const float* x, float* scores, std::int32_t* verdict, std::uint64_t batch) noexcept {
    each_block<15>(x, batch, [&](const float* rows, std::uint64_t first, std::uint64_t items) TEAL_TARGET {
        Floats columns[16];
        Floats h[10];
        Floats score[1];
        columns_of<15>(rows, columns);
        dense<15, 10>(columns, w.w0, w.b0, h);
        for (Floats& unit : h) unit = positive(unit);
        dense<10, 1>(h, w.w1, w.b1, score);
        put(scores, score[0], first, items);
        put(verdict, -(score[0] > 0.5F), first, items);
    });
}
