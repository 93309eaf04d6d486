/* An ordinary static program with a libc: reads numbers, sorts them on the heap, prints them. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int before(const void *a, const void *b) {
    const int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* What standard input is, by each call that says it; and that none of them looks up a path. */
static int about_files(void) {
    struct stat info;
    struct statx more;
    if (fstat(0, &info) != 0 || info.st_size != 10) return 1;
    if (syscall(SYS_newfstatat, 0, "", &info, AT_EMPTY_PATH) != 0 || info.st_size != 10) return 2;
    if (syscall(SYS_statx, 0, "", AT_EMPTY_PATH, STATX_SIZE, &more) != 0 || more.stx_size != 10) return 3;
    if (syscall(SYS_newfstatat, 3, "", &info, AT_EMPTY_PATH) != -1) return 4;
    if (syscall(SYS_newfstatat, 0, "/", &info, AT_EMPTY_PATH) != -1 || syscall(SYS_statx, 0, "/", AT_EMPTY_PATH, STATX_SIZE, &more) != -1) return 5;
    if (syscall(SYS_newfstatat, 0, "/", &info, 0) != -1 || syscall(SYS_statx, AT_FDCWD, "/", 0, STATX_SIZE, &more) != -1) return 6;
    if (syscall(SYS_statx, 0, "", AT_EMPTY_PATH, STATX_SIZE, (void *)8) != -1) return 7;
    char here[3] = "";
    if (pread(0, here, 2, 3) != 2 || strcmp(here, "1 ") != 0 || lseek(0, 0, SEEK_CUR) != 0 || lseek(0, 0, SEEK_END) != 10) return 8;
    lseek(0, 0, SEEK_SET);
    const char *mapped = mmap(NULL, 10, PROT_READ, MAP_PRIVATE, 0, 0);
    if (mapped == MAP_FAILED || memcmp(mapped, "30 1 -5 22", 10) != 0) return 9;
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "files") == 0) return about_files();
    if (argc > 1 && strcmp(argv[1], "end") == 0) return -1;
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
