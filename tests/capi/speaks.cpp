// speaks.cpp ADDRESS: the header from C++, and the same answers.
#include <laika.h>

#include <cstdint>
#include <cstdio>
#include <vector>

static_assert(sizeof(laika_tensor_t) == 80, "as other languages write it down");
static_assert(sizeof(laika_model_t) == 8, "one register");

int main(int, char** argv) {
    if (laika_init(argv[1], LAIKA_INIT_DEFAULT) != LAIKA_OK) {
        std::fprintf(stderr, "%s\n", laika_last_error());
        return 1;
    }
    laika_model_t model{};
    std::vector<float> x(1000, 0.5F);
    double total = 0;
    const laika_tensor_t in{x.data(), LAIKA_FLOAT32, 1, {static_cast<std::int64_t>(x.size())}};
    laika_tensor_t out{&total, LAIKA_FLOAT64, 0, {}};
    const bool good = laika_model_load("builtin:sum", LAIKA_MODEL_DEFAULT, &model) == LAIKA_OK && laika_infer(model, &in, 1, &out, 1) == LAIKA_OK && total == 500;
    std::printf("%d passed, %d failed\n", good ? 1 : 0, good ? 0 : 1);
    return laika_finalize() == LAIKA_OK && good ? 0 : 1;
}
