// One width of kml; see systems/kml.cpp.

TEAL_ENTRY void run(const KmlWeights& w, const float* x, float* scores, std::int32_t* verdict, std::uint64_t batch) noexcept {
    each_block<5>(x, batch, [&](const float* rows, std::uint64_t first, std::uint64_t items) TEAL_TARGET {
        Floats columns[2 * lanes];
        Floats h[15];
        Floats g[5];
        Floats score[4];
        columns_of<5>(rows, columns);
#pragma GCC unroll 5
        for (std::size_t k = 0; k < 5; ++k) columns[k] = (columns[k] - all(w.mean[k])) / all(w.deviation[k]);
        dense<5, 15>(columns, w.w0, w.b0, h);
        dense<15, 5>(h, w.w1, w.b1, g);
        dense<5, 4>(g, w.w2, w.b2, score);
        Floats best = score[0];
        Ints index{};
#pragma GCC unroll 3
        for (std::int32_t j = 1; j < 4; ++j) {
            const Ints above = score[j] > best;
            best = above ? score[j] : best;
            index = above ? Ints{} + j : index;
        }
        put(verdict, index, first, items);
        shuffle<4>(score);
        shuffle<4>(score);
        if (scores != nullptr) __builtin_memcpy(scores + 4 * first, score, 4 * sizeof(float) * items);
    });
}
