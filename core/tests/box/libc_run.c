/* An ordinary static program with a libc: reads numbers, sorts them on the heap, prints them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int before(const void *a, const void *b) {
    const int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int count = 0, room = 1;
    int *numbers = malloc(sizeof *numbers);
    for (int number; scanf("%d", &number) == 1; numbers[count++] = number)
        if (count == room) numbers = realloc(numbers, (size_t)(room *= 2) * sizeof *numbers);
    qsort(numbers, (size_t)count, sizeof *numbers, before);
    for (int i = 0; i < count; ++i) printf("%d\n", numbers[i]);
    char *large = malloc(32 << 20);
    memset(large, 1, 32 << 20);
    free(large);
    fprintf(stderr, "%s %s %s\n", argc > 1 ? argv[1] : "-", getenv("SEED") ? getenv("SEED") : "-", clock() >= 0 ? "clock" : "-");
    if (argc > 1 && strcmp(argv[1], "abort") == 0) abort();
    return 3;
}
