// One width of linnos; see systems/linnos.cpp.
typedef std::int16_t Shorts __attribute__((vector_size(TEAL_BYTES)));
typedef std::int16_t HalfShorts __attribute__((vector_size(TEAL_BYTES / 2)));
typedef std::int32_t HalfInts __attribute__((vector_size(TEAL_BYTES / 2)));
typedef std::int64_t Longs __attribute__((vector_size(TEAL_BYTES)));
typedef std::int16_t QuarterShorts __attribute__((vector_size(TEAL_BYTES / 4)));

constexpr std::size_t long_lanes = lanes / 2;

template <typename Vector, typename T>
TEAL_FN void fetch(Vector& v, const T* from) noexcept {
    __builtin_memcpy(&v, from, sizeof v);
}
template <typename Vector, typename T>
TEAL_FN void leave(T* to, const Vector& v) noexcept {
    __builtin_memcpy(to, &v, sizeof v);
}

// a0·b0 + a1·b1 of each pair of int16. Faster here, with an addition, than the one instruction of VNNI.
TEAL_FN Ints products(Ints a, Ints b) noexcept {
#if TEAL_RUNG == 2
    return (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif TEAL_RUNG == 1
    return (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
    return (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    return ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

// sums[row][unit] = Σ pieces[row][k]·w[k][unit], for `rows` rows and as many panels as leave registers over.
template <std::size_t rows>
TEAL_FN void tile(const LinnosLayer& layer, const std::int16_t* pieces, std::int32_t* sums, std::size_t panel) noexcept {
    constexpr std::size_t panels = (lanes == 16 ? 16 : 8) / rows;
    const std::size_t pairs = layer.pairs();
    const std::int16_t* weights = layer.packed.data() + panel * pairs * lanes * 2;
    Ints total[rows][panels] = {};
    for (std::size_t pair = 0; pair < pairs; ++pair) {
        Ints w[panels];
#pragma GCC unroll 16
        for (std::size_t p = 0; p < panels; ++p) fetch(w[p], weights + (p * pairs + pair) * lanes * 2);
#pragma GCC unroll 4
        for (std::size_t r = 0; r < rows; ++r) {
            std::int32_t two;
            __builtin_memcpy(&two, pieces + r * linnos_hidden + 2 * pair, sizeof two);
            const Ints both = Ints{} + two;
#pragma GCC unroll 16
            for (std::size_t p = 0; p < panels; ++p) total[r][p] += products(both, w[p]);
        }
    }
#pragma GCC unroll 4
    for (std::size_t r = 0; r < rows; ++r)
#pragma GCC unroll 16
        for (std::size_t p = 0; p < panels; ++p) leave(sums + r * linnos_hidden + (panel + p) * lanes, total[r][p]);
}

template <std::size_t rows>
TEAL_FN void strip(const LinnosLayer& layer, const std::int16_t* pieces, std::int32_t* sums, std::size_t first, std::size_t last) noexcept {
    constexpr std::size_t panels = (lanes == 16 ? 16 : 8) / rows;
    for (std::size_t panel = 0; panel < linnos_hidden / lanes; panel += panels)
        for (std::size_t row = first; row + rows <= last; row += rows) tile<rows>(layer, pieces + row * linnos_hidden, sums + row * linnos_hidden, panel);
}

TEAL_FN void multiply(const LinnosLayer& layer, const std::int16_t* pieces, std::int32_t* sums, std::size_t rows) noexcept {
    const std::size_t fours = rows / 4 * 4;
    const std::size_t twos = rows / 2 * 2;
    strip<4>(layer, pieces, sums, 0, fours);
    strip<2>(layer, pieces, sums, fours, twos);
    strip<1>(layer, pieces, sums, twos, rows);
}

// The sums of a layer become the inputs of the next: pieces of 15 bits, or int64 when the next layer is not narrow (pieces 0).
template <unsigned pieces>
TEAL_FN void hand_on_pieces(const LinnosLayer& layer, LinnosScratch& s, std::size_t items) noexcept {
    for (std::size_t item = 0; item < items; ++item) {
        for (std::size_t j = 0; j < linnos_hidden; j += lanes) {
            Ints v;
            Ints b;
            fetch(v, s.sums + item * linnos_hidden + j);
            fetch(b, layer.bias32.data() + j);
            v += b;
            v = v > 0 ? v : Ints{};
#pragma GCC unroll 3
            for (unsigned p = 0; p < pieces; ++p) {
                leave(s.pieces + (item * pieces + p) * linnos_hidden + j, __builtin_convertvector(v & piece_mask, HalfShorts));
                v >>= piece_bits;
            }
            if (pieces == 0)
                for (std::size_t lane = 0; lane < lanes; ++lane) s.values[item * linnos_hidden + j + lane] = v[lane];
        }
    }
}

TEAL_FN void hand_on_small(const LinnosLayer& layer, const LinnosLayer& next, LinnosScratch& s, std::size_t items) noexcept {
    switch (next.pieces) {  // 31 bits are three pieces at most
        case 0: return hand_on_pieces<0>(layer, s, items);
        case 1: return hand_on_pieces<1>(layer, s, items);
        case 2: return hand_on_pieces<2>(layer, s, items);
        default: return hand_on_pieces<3>(layer, s, items);
    }
}

TEAL_FN Longs whole_sum(const LinnosLayer& layer, const std::int32_t* sums, std::size_t j) noexcept {
    Longs v;
    fetch(v, layer.bias + j);
    for (unsigned p = 0; p < layer.pieces; ++p) {
        HalfInts part;
        fetch(part, sums + p * linnos_hidden + j);
        v += __builtin_convertvector(part, Longs) << (p * piece_bits);
    }
    return v > 0 ? v : Longs{};
}

TEAL_FN void hand_on(const LinnosLayer& layer, const LinnosLayer& next, LinnosScratch& s, std::size_t items) noexcept {
    for (std::size_t item = 0; item < items; ++item) {
        for (std::size_t j = 0; j < linnos_hidden; j += long_lanes) {
            Longs v;
            if (layer.narrow()) v = whole_sum(layer, s.sums + item * layer.pieces * linnos_hidden, j);
            else fetch(v, s.values + item * linnos_hidden + j);
            if (next.pieces == 0) leave(s.values + item * linnos_hidden + j, v);
            for (unsigned p = 0; p < next.pieces; ++p) {
                leave(s.pieces + (item * next.pieces + p) * linnos_hidden + j, __builtin_convertvector(v & piece_mask, QuarterShorts));
                v >>= piece_bits;
            }
        }
    }
}

// A hidden layer in int64, for weights that do not fit: values → values.
TEAL_FN void hidden_wide(const LinnosLayer& layer, LinnosScratch& s, std::size_t items) noexcept {
    for (std::size_t item = 0; item < items; ++item) {
        std::int64_t* values = s.values + item * linnos_hidden;
        for (std::size_t j = 0; j < linnos_hidden; j += long_lanes) {
            Longs v;
            fetch(v, layer.bias + j);
            for (std::size_t k = 0; k < layer.inputs; ++k) {
                Longs w;
                fetch(w, layer.weights + k * linnos_hidden + j);
                v += w * values[k];
            }
            leave(s.wide + j, v > 0 ? v : Longs{});
        }
        __builtin_memcpy(values, s.wide, sizeof s.wide);
    }
}

// Sum of all lanes: halves onto each other.
TEAL_FN std::int32_t sum_of(Ints v) noexcept {
#if TEAL_RUNG == 2
    v += __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
#elif TEAL_RUNG == 1
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
#else
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1);
#endif
    return v[0] + v[1];
}

TEAL_FN void score(const LinnosLayer& layer, const LinnosScratch& s, std::size_t item, std::int64_t out[2]) noexcept {
    for (std::size_t unit = 0; unit < 2; ++unit) {
        std::int64_t total = layer.bias[unit];
        for (unsigned p = 0; p < layer.pieces; ++p) {
            Ints part{};
#pragma GCC unroll 8
            for (std::size_t k = 0; k < linnos_hidden; k += 2 * lanes) {
                Ints a;
                Ints w;
                fetch(a, s.pieces + (item * layer.pieces + p) * linnos_hidden + k);
                fetch(w, layer.packed.data() + unit * linnos_hidden + k);
                part += products(a, w);
            }
            total += static_cast<std::int64_t>(sum_of(part)) << (p * piece_bits);
        }
        if (!layer.narrow())
            for (std::size_t k = 0; k < linnos_hidden; ++k) total += s.values[item * linnos_hidden + k] * layer.weights[2 * k + unit];
        out[unit] = total;
    }
}

// 31 bytes of each item, as the first layer wants them.
TEAL_FN void take(const LinnosLayer& layer, const std::uint8_t* x, LinnosScratch& s, std::size_t items) noexcept {
    typedef std::uint8_t Bytes __attribute__((vector_size(16)));
    typedef std::int16_t Sixteen __attribute__((vector_size(32)));
    for (std::size_t item = 0; item < items; ++item) {
        Bytes head;
        Bytes tail;
        fetch(head, x + item * linnos_inputs);
        fetch(tail, x + item * linnos_inputs + 15);  // the byte in the middle is read twice; the kernel takes the second
        std::int16_t digits[32] = {};
        leave(digits, __builtin_convertvector(head, Sixteen));
        leave(digits + 15, __builtin_convertvector(tail, Sixteen));
        if (layer.narrow()) __builtin_memcpy(s.pieces + item * linnos_hidden, digits, sizeof digits);
        else
            for (std::size_t k = 0; k < linnos_inputs; ++k) s.values[item * linnos_hidden + k] = digits[k];
    }
}

TEAL_ENTRY void run(const LinnosLayers& layers, LinnosScratch& s, const std::uint8_t* x, std::int64_t* scores, std::int32_t* verdict, std::uint64_t batch) noexcept {
    for (std::uint64_t first = 0; first < batch; first += linnos_block) {
        const std::size_t items = batch - first < linnos_block ? batch - first : linnos_block;
        take(layers.layer[0], x + first * linnos_inputs, s, items);
        for (std::size_t l = 0; l + 1 < layers.count; ++l) {
            const LinnosLayer& layer = layers.layer[l];
            const LinnosLayer& next = layers.layer[l + 1];
            if (layer.narrow()) multiply(layer, s.pieces, s.sums, items * layer.pieces);
            else hidden_wide(layer, s, items);
            if (layer.small) hand_on_small(layer, next, s, items);
            else hand_on(layer, next, s, items);
        }
        for (std::size_t item = 0; item < items; ++item) {
            std::int64_t pair[2];
            score(layers.layer[layers.count - 1], s, item, pair);
            if (scores != nullptr) __builtin_memcpy(scores + 2 * (first + item), pair, sizeof pair);
            if (verdict != nullptr) verdict[first + item] = pair[1] > pair[0];
        }
    }
}
