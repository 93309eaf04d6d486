// Vectors of TEAL_BYTES, for the bodies in systems/*.inl; included by systems/each_isa.inl, once a width.
typedef float Floats __attribute__((vector_size(TEAL_BYTES)));
typedef std::int32_t Ints __attribute__((vector_size(TEAL_BYTES)));

constexpr std::size_t lanes = TEAL_BYTES / 4;

TEAL_FN Floats load(const float* from) noexcept {
    Floats v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}

TEAL_FN void store(float* to, Floats v) noexcept { __builtin_memcpy(to, &v, sizeof v); }
TEAL_FN void store(std::int32_t* to, Ints v) noexcept { __builtin_memcpy(to, &v, sizeof v); }

TEAL_FN Floats all(float value) noexcept { return value - Floats{}; }  // x - 0 is x, also for -0; 0 + x is not

// a·b + c
TEAL_FN Floats fma(Floats a, Floats b, Floats c) noexcept {
#if TEAL_RUNG == 2
    return _mm512_fmadd_ps(a, b, c);
#elif TEAL_RUNG == 1
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

TEAL_FN Floats positive(Floats v) noexcept { return v > 0.0F ? v : Floats{}; }  // NaN becomes 0, in every variant and the reference

// The lanes of a and b in turn: a0 b0 a1 b1 …, first the lower halves, then the upper ones.
TEAL_FN Floats interleave_low(Floats a, Floats b) noexcept {
#if TEAL_RUNG == 2
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#elif TEAL_RUNG == 1
    return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
    return __builtin_shufflevector(a, b, 0, 4, 1, 5);
#endif
}

TEAL_FN Floats interleave_high(Floats a, Floats b) noexcept {
#if TEAL_RUNG == 2
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif TEAL_RUNG == 1
    return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    return __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

// A perfect shuffle of rows × lanes values: repeated log2(lanes) times it turns `lanes` rows into columns, repeated log2(rows)
// times it turns rows of lanes into lanes of rows.
template <std::size_t rows>
TEAL_FN void shuffle(Floats* v) noexcept {
    Floats out[rows];
#pragma GCC unroll 16
    for (std::size_t i = 0; i < rows / 2; ++i) {
        out[2 * i] = interleave_low(v[i], v[i + rows / 2]);
        out[2 * i + 1] = interleave_high(v[i], v[i + rows / 2]);
    }
#pragma GCC unroll 16
    for (std::size_t i = 0; i < rows; ++i) v[i] = out[i];
}

// Columns of `lanes` rows of `width` ≤ lanes·n values each, which lie one after the other. Reads `lanes` values from each row on.
template <std::size_t width>
TEAL_FN void columns_of(const float* rows, Floats* columns) noexcept {
#pragma GCC unroll 4
    for (std::size_t first = 0; first < width; first += lanes) {
        Floats v[lanes];
#pragma GCC unroll 16
        for (std::size_t i = 0; i < lanes; ++i) v[i] = load(rows + i * width + first);
#pragma GCC unroll 4
        for (std::size_t n = lanes; n > 1; n /= 2) shuffle<lanes>(v);
#pragma GCC unroll 16
        for (std::size_t i = 0; i < lanes; ++i)
            if (first + i < width) columns[first + i] = v[i];
    }
}

// h = xW + b for `lanes` items at once, an item a lane: x has `in` columns, W is (in, out).
template <std::size_t in, std::size_t out>
TEAL_FN void dense(const Floats* x, const float* weights, const float* bias, Floats* h) noexcept {
#pragma GCC unroll 16
    for (std::size_t j = 0; j < out; ++j) h[j] = all(bias[j]);
#pragma GCC unroll 16
    for (std::size_t k = 0; k < in; ++k) {
#pragma GCC unroll 16
        for (std::size_t j = 0; j < out; ++j) h[j] = fma(x[k], all(weights[k * out + j]), h[j]);
    }
}

// Runs `block` on `lanes` items at a time: in place while what it reads beyond its rows (less than a vector) is still inside x,
// the last items in a copy. block(x, items): items ≤ lanes.
template <std::size_t width, typename Block>
TEAL_FN void each_block(const float* x, std::uint64_t batch, Block block) noexcept {
    constexpr std::uint64_t beyond = (lanes + width - 1) / width;  // items
    std::uint64_t i = 0;
    for (; i + lanes + beyond <= batch; i += lanes) block(x + i * width, i, std::uint64_t{lanes});
    while (i < batch) {
        const std::uint64_t items = batch - i < lanes ? batch - i : lanes;
        float padded[lanes * width + lanes] = {};
        __builtin_memcpy(padded, x + i * width, items * width * sizeof(float));
        block(static_cast<const float*>(padded), i, items);
        i += items;
    }
}

// The first `items` lanes to to[first], if there is a place.
template <typename T, typename Vector>
TEAL_FN void put(T* to, Vector v, std::uint64_t first, std::uint64_t items) noexcept {
    if (to != nullptr) __builtin_memcpy(to + first, &v, items == lanes ? sizeof v : items * sizeof(T));
}
