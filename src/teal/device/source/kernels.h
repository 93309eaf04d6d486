// The two kernels around a task, for every device: teal_launch (one run of one task) and teal_resident (stays, polls the
// lines of a directory, runs what they ask for). Compiled after a prelude and the task. Layouts: core/device/line.hpp.
//
// A look across a bus costs a microsecond, so a scan takes as few as it can: one word for version and quit, one for each line.
// Everything else of the directory is copied when its version changes, and what has been done is kept beside the copy.
#define TEAL_REGIONS 64
// X(number) for each region, in octal: arguments of a kernel cannot be an array.
#define TEAL_EIGHT(X, n) X(0##n##0) X(0##n##1) X(0##n##2) X(0##n##3) X(0##n##4) X(0##n##5) X(0##n##6) X(0##n##7)
#define TEAL_EACH_REGION(X) \
    TEAL_EIGHT(X, 0) TEAL_EIGHT(X, 1) TEAL_EIGHT(X, 2) TEAL_EIGHT(X, 3) TEAL_EIGHT(X, 4) TEAL_EIGHT(X, 5) TEAL_EIGHT(X, 6) TEAL_EIGHT(X, 7)
#define TEAL_PARAMETER(i) , TEAL_GLOBAL uchar* r##i
#define TEAL_TAKE(i) copy.regions[i] = r##i;
#define TEAL_CAPACITY 256u
#define TEAL_LEAVE 0xffffffffu
#define TEAL_PARKED 0u
#define TEAL_RESIDENT 1u

#ifndef TEAL_U32
#define TEAL_U32(p, byte) (*(volatile TEAL_GLOBAL uint*)((p) + (byte)))
#define TEAL_U64(p, byte) (*(volatile TEAL_GLOBAL ulong*)((p) + (byte)))
#endif
#define TEAL_ENTRY(d, i) ((d) + 128 + 64 * (ulong)(i))
#define TEAL_LEDGER(d, i) TEAL_U32(d, 128 + 64 * (ulong)TEAL_CAPACITY + 4 * (ulong)(i))

// One launch: each group of workers takes `items` items of the batch; strides are bytes an item in in, out0, out1.
TEAL_KERNEL void teal_launch(TEAL_GLOBAL uchar* weights, ulong weights_at, TEAL_GLOBAL uchar* in, ulong in_at, TEAL_GLOBAL uchar* out0, ulong out0_at,
                             TEAL_GLOBAL uchar* out1, ulong out1_at, uint batch, uint items, ulong in_stride, ulong out0_stride, ulong out1_stride) {
    TEAL_SHARED uchar scratch[TEAL_SCRATCH_BYTES] TEAL_ALIGNED;
    const ulong first = (ulong)TEAL_GROUP * items;
    if (first >= batch) return;
    const uint left = batch - (uint)first;
    teal_task(weights + weights_at, in + in_at + first * in_stride, out0 + out0_at + first * out0_stride, out1 + out1_at + first * out1_stride,
              left < items ? left : items, TEAL_WORKER, TEAL_WORKERS, scratch);
}

// What a device sees of a region: answers eight words at `at` with their complement 32 bytes further on, and says the time.
TEAL_KERNEL void teal_probe(TEAL_GLOBAL uchar* region, ulong at) {
    if (TEAL_WORKER != 0 || TEAL_GROUP != 0) return;
    for (uint i = 0; i < 8; ++i) TEAL_U32(region, at + 32 + 4 * i) = ~TEAL_U32(region, at + 4 * i);
    TEAL_U64(region, at + 64) = TEAL_CLOCK(0);
}

// The kernel's copy of the directory; written by worker 0 only, read by all after a barrier.
typedef struct {
    ulong idle;
    uint backoff;
    uint count;
    uint version;
    uint job;  // the entry to run, or TEAL_LEAVE
    uint done[TEAL_CAPACITY];
    uint batch[TEAL_CAPACITY];
    TEAL_GLOBAL uchar* regions[TEAL_REGIONS];   // null: a number not in use
    TEAL_GLOBAL uchar* line[TEAL_CAPACITY];     // null: not active
    TEAL_GLOBAL uchar* part[TEAL_CAPACITY][4];  // weights, in, out0, out1; null: names a region that is not there
} TealCopy;

static TEAL_DEVICE void teal_read(TEAL_GLOBAL uchar* directory, TEAL_LOCAL TealCopy* copy) {
    const uint count = TEAL_U32(directory, 16);
    copy->idle = TEAL_U64(directory, 24);
    copy->backoff = TEAL_U32(directory, 32);
    copy->count = count < TEAL_CAPACITY ? count : TEAL_CAPACITY;
    for (uint i = 0; i < copy->count; ++i) {
        TEAL_GLOBAL uchar* entry = TEAL_ENTRY(directory, i);
        const ulong table = TEAL_U64(entry, 16);  // region numbers, one a byte
        const uint at = (uint)(table & 255u);
        copy->line[i] = TEAL_U32(entry, 0) && at < TEAL_REGIONS && copy->regions[at] ? copy->regions[at] + TEAL_U64(entry, 8) : 0;
        copy->batch[i] = TEAL_U32(entry, 4);
        copy->done[i] = TEAL_LEDGER(directory, i);
        for (uint k = 0; k < 4; ++k) {
            const uint number = (uint)(table >> (8 * k + 8)) & 255u;
            copy->part[i][k] = number < TEAL_REGIONS && copy->regions[number] ? copy->regions[number] + TEAL_U64(entry, 24 + 8 * k) : 0;
        }
    }
}

// Says of all lines, and of the kernel, that it is there or not.
static TEAL_DEVICE void teal_mark(TEAL_GLOBAL uchar* directory, TEAL_LOCAL TealCopy* copy, uint state) {
    const uint epoch = TEAL_U32(directory, 20);
    for (uint i = 0; i < copy->count; ++i) {
        TEAL_GLOBAL uchar* line = copy->line[i];
        if (!line) continue;
        TEAL_U32(line, 64 + 12) = epoch;
        TEAL_STORE(line + 64 + 8, state);
    }
    TEAL_U32(directory, 64 + 8) = epoch;
    TEAL_STORE(directory + 64 + 4, state);
}

// The next entry from `cursor` on whose client has asked for a generation that is not done; TEAL_LEAVE: none.
static TEAL_DEVICE uint teal_scan(TEAL_LOCAL TealCopy* copy, uint cursor, uint* generation) {
    const uint count = copy->count;
    if (cursor >= count) cursor = 0;
    for (uint k = 0, i = cursor; k < count; ++k) {
        if (copy->line[i]) {
            const uint asked = TEAL_PEEK(copy->line[i]);
            if (asked != copy->done[i]) {
                TEAL_ACQUIRE();
                *generation = asked;
                return i;
            }
        }
        if (++i == count) i = 0;
    }
    return TEAL_LEAVE;
}

// Waits for a request; TEAL_LEAVE: none came within the idle time, or the worker wants the kernel to leave.
static TEAL_DEVICE uint teal_wait(TEAL_GLOBAL uchar* directory, TEAL_LOCAL TealCopy* copy, uint cursor, uint* generation, ulong* polls) {
    const ulong since = TEAL_CLOCK(*polls);
    for (uint quiet = 0;; ++quiet) {
        const ulong news = TEAL_U64(directory, 8);
        uint found = teal_scan(copy, cursor, generation);
        const uint quit = (uint)(news >> 32);
        if ((uint)news != copy->version) {
            TEAL_ACQUIRE();
            teal_read(directory, copy);
            copy->version = (uint)news;
            teal_mark(directory, copy, TEAL_RESIDENT);
            TEAL_STORE(directory + 64, copy->version);
            if (!quit) continue;  // `found` was an entry of the old copy
        }
        if (found != TEAL_LEAVE && !quit) return found;
        ++*polls;
        if ((quiet & 1023u) == 1023u) TEAL_U64(directory, 64 + 24) = *polls;
        if (quit || ((quiet & 15u) == 15u && TEAL_CLOCK(*polls) - since >= copy->idle)) {
            // The handshake of line.hpp: parked, fence, one more look at everything, new lines included.
            teal_mark(directory, copy, TEAL_PARKED);
            TEAL_FENCE();
            if (quit) return TEAL_LEAVE;
            const uint fresh = (uint)TEAL_U64(directory, 8) != copy->version;
            found = teal_scan(copy, cursor, generation);
            if (found == TEAL_LEAVE && !fresh) return TEAL_LEAVE;
            teal_mark(directory, copy, TEAL_RESIDENT);
            if (!fresh) return found;
        }
        const uint rest = quiet >> 10;
        TEAL_RELAX(1 + (rest < copy->backoff ? rest : copy->backoff));
    }
}

static TEAL_DEVICE void teal_answer(TEAL_GLOBAL uchar* directory, TEAL_LOCAL TealCopy* copy, uint number, uint generation, uint status, ulong runs) {
    TEAL_GLOBAL uchar* line = copy->line[number];
    TEAL_U32(line, 64 + 4) = status;
    TEAL_STORE(line + 64, generation);
    copy->done[number] = generation;
    TEAL_LEDGER(directory, number) = generation;
    TEAL_U64(directory, 64 + 16) = runs;
}

TEAL_KERNEL void teal_resident(TEAL_GLOBAL uchar* directory TEAL_EACH_REGION(TEAL_PARAMETER)) {
    TEAL_SHARED uchar scratch[TEAL_SCRATCH_BYTES] TEAL_ALIGNED;
    TEAL_SHARED TealCopy copy;
    // Only worker 0 polls and answers; the others wait at the barrier.
    const uint leads = TEAL_WORKER == 0;
    uint cursor = 0, generation = 0;
    ulong polls = TEAL_U64(directory, 64 + 24), runs = TEAL_U64(directory, 64 + 16);
    if (leads) {
        TEAL_EACH_REGION(TEAL_TAKE)
        copy.count = 0;
        copy.version = TEAL_U32(directory, 8) - 1;
    }
    for (;;) {
        if (leads) copy.job = teal_wait(directory, &copy, cursor, &generation, &polls);
        TEAL_BARRIER();
        const uint number = copy.job;
        if (number == TEAL_LEAVE) break;
        TEAL_GLOBAL uchar* weights = copy.part[number][0];
        TEAL_GLOBAL uchar* in = copy.part[number][1];
        TEAL_GLOBAL uchar* out0 = copy.part[number][2];
        TEAL_GLOBAL uchar* out1 = copy.part[number][3];
        const uint valid = weights && in && out0 && out1;
        if (valid) teal_task(weights, in, out0, out1, copy.batch[number], TEAL_WORKER, TEAL_WORKERS, scratch);
        TEAL_BARRIER();
        if (leads) {
            teal_answer(directory, &copy, number, generation, valid ? 0u : 1u, ++runs);
            cursor = number + 1;
        }
    }
    if (leads) TEAL_U64(directory, 64 + 24) = polls;
}
