/* Heap sort of `rounds` numbers: branches that cannot be foreseen. */
#include "benchset.h"

static void sift(uint64_t *heap, uint64_t root, uint64_t count) {
    const uint64_t value = heap[root];
    for (;;) {
        uint64_t child = 2 * root + 1;
        if (child >= count) break;
        if (child + 1 < count && heap[child + 1] > heap[child]) ++child;
        if (heap[child] <= value) break;
        heap[root] = heap[child];
        root = child;
    }
    heap[root] = value;
}

int duck_main(duckinfo_t *info) {
    const uint64_t count = work_of(info).rounds;
    uint64_t *numbers = free_memory(), state = 88172645463325252u, sum = 0;
    for (uint64_t i = 0; i < count; ++i) numbers[i] = next_random(&state);
    for (uint64_t i = count / 2; i-- > 0;) sift(numbers, i, count);
    for (uint64_t last = count; last-- > 1;) {
        const uint64_t most = numbers[0];
        numbers[0] = numbers[last];
        numbers[last] = most;
        sift(numbers, 0, last);
    }
    for (uint64_t i = 0; i < count; ++i) {
        if (i > 0 && numbers[i - 1] > numbers[i]) return 1;
        sum += numbers[i] * (i + 1);
    }
    return answer(info, sum);
}
