/* Image in, class out: which digit is on it.
 *
 *     export PKG_CONFIG_PATH=$(teal config --pkgconfig)
 *     cc digit.c $(pkg-config --cflags --libs laika) -o digit
 *     teal serve &
 *     ./digit digits.onnx digit-7.pgm
 *
 * The image is a PNM file (P2, P3, P5, P6) of any size, light ink on dark ground, the digit filling it; many tools make one:
 * `convert photo.png -negate photo.pgm`. It is shrunk to 8 x 8 pixels straight into the model's input.
 */
#include <laika.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

enum { side = 8, most = 1 << 13 };

static void need(laika_status_t status) {
    if (status == LAIKA_OK) return;
    fprintf(stderr, "digit: %s\n", laika_last_error());
    exit(1);
}

static void broken(const char *what) {
    fprintf(stderr, "digit: %s; expected a PNM image of at most %d x %d pixels\n", what, most, most);
    exit(1);
}

/* The next number of a header or of a plain (P2, P3) image; comments run to the end of their line. */
static int number(FILE *file, int largest) {
    int c = getc(file), value = 0;
    while (isspace(c) || c == '#') {
        if (c == '#')
            while (c != '\n' && c != EOF) c = getc(file);
        c = getc(file);
    }
    if (!isdigit(c)) broken("not a number where one should be");
    for (; isdigit(c); c = getc(file))
        if ((value = value * 10 + (c - '0')) > largest) broken("a number that is too large");
    return value; /* the one whitespace character behind it is read, as the format wants */
}

/* Averages the image into side x side numbers from 0 to 1. */
static void read_image(const char *path, float *pixels) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) broken("cannot be opened");
    const int magic = getc(file), kind = getc(file) - '0';
    if (magic != 'P' || kind < 2 || kind > 6 || kind == 4) broken("not P2, P3, P5 or P6");
    const int width = number(file, most), height = number(file, most), largest = number(file, 65535);
    if (width == 0 || height == 0 || largest == 0) broken("nothing in it");
    const int colours = kind == 3 || kind == 6 ? 3 : 1;
    float sums[side * side] = {0}, weights[side * side] = {0};
    for (int y = 0; y < height; ++y)
        for (int x = 0; x < width; ++x) {
            float light = 0;
            for (int i = 0; i < colours; ++i) {
                int value = kind < 4 ? number(file, 65535) : getc(file);
                if (kind > 4 && largest > 255) value = value << 8 | getc(file);
                if (value < 0) broken("cut short");
                light += (float)value / (float)(colours * largest);
            }
            const int cell = y * side / height * side + x * side / width;
            sums[cell] += light;
            weights[cell] += 1;
        }
    fclose(file);
    for (int i = 0; i < side * side; ++i) pixels[i] = weights[i] > 0 ? sums[i] / weights[i] : 0;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: digit MODEL IMAGE\n");
        return 2;
    }
    laika_model_t model;
    laika_shm_t shm;
    void *memory;
    need(laika_init(NULL, LAIKA_INIT_DEFAULT));
    need(laika_model_load(argv[1], LAIKA_MODEL_DEFAULT, &model));
    need(laika_shm_alloc(4096, LAIKA_SHM_INPUT | LAIKA_SHM_OUTPUT, &shm));
    need(laika_shm_map(shm, &memory));
    float *pixels = memory, *scores = pixels + side * side;
    read_image(argv[2], pixels);
    const laika_tensor_t in = {pixels, LAIKA_FLOAT32, 2, {1, side * side}};
    laika_tensor_t out = {scores, LAIKA_FLOAT32, 2, {1, 10}};
    need(laika_infer(model, &in, 1, &out, 1));
    int best = 0;
    for (int i = 1; i < 10; ++i)
        if (scores[i] > scores[best]) best = i;
    printf("a %d (%.0f %%)\n", best, 100 * scores[best]);
    need(laika_finalize());
    return 0;
}
