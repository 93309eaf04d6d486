// One width of kleio; see systems/kleio.cpp.

TEAL_FN Floats exp_of(Floats x) noexcept {
    constexpr float rounder = 12582912.0F;  // 1.5·2^23: adding it leaves a whole number in the low bits
    x = x < -87.0F ? all(-87.0F) : x;
    x = x > 88.0F ? all(88.0F) : x;
    const Floats shifted = fma(x, all(1.44269504F), all(rounder));
    const Floats n = shifted - rounder;
    Floats r = fma(n, all(-0.693359375F), x);  // ln 2 in two parts, the first of few bits
    r = fma(n, all(2.12194440e-4F), r);
    Floats p = all(1.0F / 720);  // |r| ≤ 0.35: the next term is below 2e-7
    p = fma(p, r, all(1.0F / 120));
    p = fma(p, r, all(1.0F / 24));
    p = fma(p, r, all(1.0F / 6));
    p = fma(p, r, all(0.5F));
    p = fma(p, r, all(1.0F));
    p = fma(p, r, all(1.0F));
    const Ints bits = ((Ints)shifted - (Ints)all(rounder) + 127) << 23;
    return p * (Floats)bits;
}

TEAL_FN Floats sigmoid(Floats x) noexcept { return 1.0F / (1.0F + exp_of(-x)); }
TEAL_FN Floats tanh_of(Floats x) noexcept { return 2.0F * sigmoid(x + x) - 1.0F; }

// out = start + a·w for `rows` rows of 256 and `panels` vectors of columns.
template <std::size_t rows, std::size_t panels>
TEAL_FN void tile(const Product& p, std::size_t row, std::size_t column) noexcept {
    const float* a = p.a + row * p.a_stride;
    const float* w = p.w + column;
    Floats total[rows][panels];
#pragma GCC unroll 6
    for (std::size_t r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (std::size_t v = 0; v < panels; ++v) total[r][v] = load(p.start + (row + r) * p.start_stride + column + v * lanes);
    for (std::size_t k = 0; k < kleio_units; ++k) {
        Floats weights[panels];
#pragma GCC unroll 8
        for (std::size_t v = 0; v < panels; ++v) weights[v] = load(w + k * p.columns + v * lanes);
#pragma GCC unroll 6
        for (std::size_t r = 0; r < rows; ++r) {
            const Floats x = all(a[r * p.a_stride + k]);
#pragma GCC unroll 8
            for (std::size_t v = 0; v < panels; ++v) total[r][v] = fma(x, weights[v], total[r][v]);
        }
    }
#pragma GCC unroll 6
    for (std::size_t r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (std::size_t v = 0; v < panels; ++v) store(p.out + (row + r) * p.out_stride + column + v * lanes, total[r][v]);
}

// All columns: the last panel overlaps the one before when they do not divide, which is why `start` is not `out` then.
template <std::size_t rows, std::size_t panels>
TEAL_FN void strip(const Product& p, std::size_t first, std::size_t last) noexcept {
    constexpr std::size_t width = panels * lanes;
    for (std::size_t column = 0; column < p.columns; column += width) {
        const std::size_t at = column + width <= p.columns ? column : p.columns - width;
        for (std::size_t row = first; row + rows <= last; row += rows) tile<rows, panels>(p, row, at);
    }
}

TEAL_ENTRY void multiply(const Product& p, std::size_t rows) noexcept {
    constexpr std::size_t panels = lanes == 16 ? 4 : 2;
    const std::size_t sixes = rows / 6 * 6;
    strip<6, panels>(p, 0, sixes);
    switch (rows - sixes) {
        case 1: return strip<1, 8>(p, sixes, rows);
        case 2: return strip<2, panels>(p, sixes, rows);
        case 3: return strip<3, panels>(p, sixes, rows);
        case 4: return strip<4, panels>(p, sixes, rows);
        case 5: return strip<5, panels>(p, sixes, rows);
        default: return;
    }
}

// Gates → cell and hidden state of one item. `first`: there is no cell yet.
TEAL_FN void step(const float* gates, float* cell, float* hidden, bool first) noexcept {
    for (std::size_t j = 0; j < kleio_units; j += lanes) {
        const Floats i = sigmoid(load(gates + j));
        const Floats g = tanh_of(load(gates + 2 * kleio_units + j));
        const Floats o = sigmoid(load(gates + 3 * kleio_units + j));
        Floats c = i * g;
        if (!first) c = fma(sigmoid(load(gates + kleio_units + j)), load(cell + j), c);
        store(cell + j, c);
        store(hidden + j, o * tanh_of(c));
    }
}

// The one-hot product: a row of w0, or none.
TEAL_FN void gather(const KleioWeights& w, std::int32_t page, float* gates) noexcept {
    const bool known = page >= 0 && page < static_cast<std::int32_t>(kleio_pages);
    const float* row = w.w0 + static_cast<std::size_t>(known ? page : 0) * kleio_gates;
    for (std::size_t j = 0; j < kleio_gates; j += lanes) store(gates + j, known ? load(w.b0 + j) + load(row + j) : load(w.b0 + j));
}

TEAL_ENTRY void first_layer(const KleioWeights& w, KleioScratch& s, const std::int32_t* x, std::size_t items) noexcept {
    constexpr std::size_t stride = kleio_steps * kleio_units;
    for (std::size_t t = 0; t < kleio_steps; ++t) {
        for (std::size_t item = 0; item < items; ++item) gather(w, *static_cast<const volatile std::int32_t*>(x + item * kleio_steps + t), s.gates + item * kleio_gates);
        if (t > 0) multiply({s.first + (t - 1) * kleio_units, stride, w.u0, kleio_gates, s.gates, kleio_gates, s.gates, kleio_gates}, items);
        for (std::size_t item = 0; item < items; ++item)
            step(s.gates + item * kleio_gates, s.cell + item * kleio_units, s.first + item * stride + t * kleio_units, t == 0);
    }
}

TEAL_ENTRY void second_layer(const KleioWeights& w, KleioScratch& s, std::size_t items) noexcept {
    constexpr std::size_t h_stride = kleio_steps * kleio_units;
    const bool together = items <= kleio_together;  // all steps' inputs in one product, which reads w1 once
    const std::size_t stride = together ? kleio_steps * kleio_gates : kleio_gates;
    if (together) multiply({s.first, kleio_units, w.w1, kleio_gates, w.b1, 0, s.gates, kleio_gates}, items * kleio_steps);
    for (std::size_t t = 0; t < kleio_steps; ++t) {
        float* gates = s.gates + (together ? t * kleio_gates : 0);
        if (!together) multiply({s.first + t * kleio_units, h_stride, w.w1, kleio_gates, w.b1, 0, gates, stride}, items);
        if (t > 0) multiply({s.second, kleio_units, w.u1, kleio_gates, gates, stride, gates, stride}, items);
        for (std::size_t item = 0; item < items; ++item) step(gates + item * stride, s.cell + item * kleio_units, s.second + item * kleio_units, t == 0);
    }
}

// Index of the largest; then the logits become probabilities.
TEAL_FN std::int32_t softmax(float* logits) noexcept {
    std::int32_t best = 0;
    for (std::int32_t j = 1; j < static_cast<std::int32_t>(kleio_pages); ++j)
        if (logits[j] > logits[best]) best = j;
    const float largest = logits[best];
    Floats total{};
    for (std::size_t j = kleio_pages; j < kleio_row; ++j) logits[j] = largest - 200.0F;  // counts for nothing below
    for (std::size_t j = 0; j < kleio_row; j += lanes) {
        const Floats power = exp_of(load(logits + j) - largest);
        store(logits + j, power);
        total += power;
    }
    float sum = 0.0F;
    for (std::size_t lane = 0; lane < lanes; ++lane) sum += total[lane];
    for (std::size_t j = 0; j < kleio_row; j += lanes) store(logits + j, load(logits + j) / sum);
    return best;
}

TEAL_ENTRY void run(const KleioWeights& w, KleioScratch& s, const std::int32_t* x, float* scores, std::int32_t* verdict, std::uint64_t batch) noexcept {
    for (std::uint64_t first = 0; first < batch; first += kleio_block) {
        const std::size_t items = batch - first < kleio_block ? batch - first : kleio_block;
        first_layer(w, s, x + first * kleio_steps, items);
        second_layer(w, s, items);
        multiply({s.second, kleio_units, w.w2, kleio_pages, w.b2, 0, s.gates, kleio_row}, items);
        for (std::size_t item = 0; item < items; ++item) {
            const std::int32_t best = softmax(s.gates + item * kleio_row);
            if (verdict != nullptr) verdict[first + item] = best;
            if (scores != nullptr) __builtin_memcpy(scores + (first + item) * kleio_pages, s.gates + item * kleio_row, kleio_pages * sizeof(float));
        }
    }
}
