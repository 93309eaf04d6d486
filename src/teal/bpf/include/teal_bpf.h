/* A BPF program as a client of a Teal pool: features in, verdict out, in the very pages the worker computes on.
 *
 * Theory of operation. A session's memory is one memory-mappable BPF array (`teal_memory`): what a session region holds
 * (ring, completion lines), then the producer block below, then the tensors. User space prepares the slots (memory,
 * descriptor block, one warm-up call each); a program only
 *   take()s a free slot, writes its inputs in place, and send()s 64 bytes;
 *   later, in this event or in another one, on this CPU or another, poll()s its completion line, reads the outputs in
 *   place and release()s the slot.
 * Nothing waits and nothing is locked: programs on all CPUs, and programs that interrupt each other on one CPU, share a
 * session. send() takes its place in the ring with one fetch-and-add; there is always room, because the ring has more
 * places than the session has slots. An entry that is passed by a later one is waited for by the worker, which
 * reads in order.
 *
 * A worker that sleeps is woken through `teal_bell`, a BPF ring buffer on which a thread of the process that opened the session
 * waits (a BPF program cannot wake a futex, and a futex cannot lie in a BPF map).
 *
 * Memory order: BPF's atomic operations that return a value are full barriers on every architecture (kernel documentation,
 * bpf/standardization and LKMM); every pairing below uses one of them, so that -mcpu=v3 is enough.
 *
 * For C and C++ without __bpf__ this file is the layout alone. Needs: the kernel's <linux/bpf.h> or vmlinux.h, and
 * <bpf/bpf_helpers.h>, included before. Licence of this file: Apache-2.0; programs that use GPL-only helpers
 * choose their own.
 */
#ifndef TEAL_BPF_H
#define TEAL_BPF_H

#ifndef __bpf__
#include <linux/types.h>
#endif

#define TEAL_BPF_MAGIC 0x4c4f525046504254ULL /* "TBPFPROL" */
#define TEAL_BPF_ABI 1u
#define TEAL_BPF_TENSORS 12          /* inputs and outputs of one slot together */
#define TEAL_BPF_MOST_SLOTS 1024u

/* How a request stands: what teal_bpf_poll() returns. Numbers from 4 on are those of queue/request.hpp. */
enum teal_bpf_result {
    TEAL_BPF_STALE = -3,   /* the handle's slot belongs to another request by now */
    TEAL_BPF_FULL = -2,    /* take(): every slot is out */
    TEAL_BPF_CLOSED = -1,  /* the session has been closed; its host, or the process that opened it, is gone */
    TEAL_BPF_PENDING = 0,
    TEAL_BPF_DONE = 4,     /* outputs are there */
    TEAL_BPF_FAILED = 5,   /* the kernel failed, its worker died, the model is not loaded: do without a verdict */
    TEAL_BPF_CANCELLED = 6,
    TEAL_BPF_EXPIRED = 7,  /* its deadline passed */
};

/* Low byte of teal_bpf_slot.word; the upper 24 bits are the generation. */
enum teal_bpf_slot_state { TEAL_BPF_SLOT_FREE = 0, TEAL_BPF_SLOT_TAKEN = 1, TEAL_BPF_SLOT_SENT = 2, TEAL_BPF_SLOT_LEFT = 3 };

enum teal_bpf_producer_state { TEAL_BPF_OPEN = 1, TEAL_BPF_SHUT = 2 };

struct teal_bpf_tensor {
    __u32 offset; /* from the start of the map's value; a multiple of 64 */
    __u32 bytes;
};

struct teal_bpf_slot { /* 128 bytes */
    __u32 word;  /* generation << 8 | teal_bpf_slot_state */
    __u32 seen;  /* written by poll() for its barrier */
    __u32 stamp; /* of the descriptor block; region and block: where that is, in the session's numbering */
    __u32 region;
    __u32 block_low;
    __u32 block_high;
    __u32 pad[2];
    struct teal_bpf_tensor tensors[TEAL_BPF_TENSORS]; /* the inputs, then the outputs, in the model's order */
};

struct teal_bpf_producer { /* then: teal_bpf_slot[slots], at teal_bpf_layout.slots_at */
    __u64 magic;
    __u32 abi;
    __u32 slots;
    __u32 pad0[12];
    __u32 state; /* teal_bpf_producer_state; written by user space */
    __u32 pad1[15];
    __u32 head; /* next place in the ring */
    __u32 pad2[15];
    __u32 next; /* where take() starts to look */
    __u32 pad3[15];
    __u64 full; /* take() found no slot */
    __u64 shut; /* take() found the session closed */
    __u64 bells; /* times that send() had to have the worker woken */
    __u64 left; /* leave(): given up before or without reading */
    __u64 failed; /* poll() saw an end other than done */
    __u64 pad4[3];
};

/* Patched into the program before it is loaded, so that the verifier knows these numbers. */
struct teal_bpf_layout {
    __u32 abi;
    __u32 bytes;     /* of the map's value */
    __u32 slot_mask; /* slots - 1; their number is a power of two */
    __u32 ring_mask;
    __u32 ring_at;   /* offsets from the start of the map's value: first place of the ring, … */
    __u32 lines_at;
    __u32 producer_at;
    __u32 slots_at;
    __u32 need_wake_at;
    __u32 model;     /* index of its name in the pool */
    __u32 version;   /* 0: the current one */
    __s32 priority;
};

/* A place of the ring: struct RingSlot with a struct RequestEntry in it. */
struct teal_bpf_entry {
    __u32 sequence;
    __u16 op;
    __u16 flags;
    __u32 slot;
    __u32 generation;
    __u32 model;
    __u32 version;
    __s32 priority;
    __u32 stamp;
    __u32 region;
    __u32 reserved;
    __u32 offset_low;
    __u32 offset_high;
    __u32 deadline_low;
    __u32 deadline_high;
    __u32 submitted_low; /* 0: a BPF program has no tick counter to read; the queue times begin when a worker takes the entry */
    __u32 submitted_high;
};

/* struct CompletionLine */
struct teal_bpf_line {
    __u64 word; /* generation:24 state:8 | reason:16 flags:16 */
    __u64 times;
    __u32 waiting;
    __u32 released;
    __u32 version;
    __u32 detail;
    __u64 copied_in;
    __u64 copied_out;
    __u64 pad[2];
};

#ifdef __bpf__

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __uint(key_size, 4);
    __uint(value_size, 4096); /* the loader puts the session's map in its place */
} teal_memory SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096);
} teal_bell SEC(".maps");

const volatile struct teal_bpf_layout teal_layout SEC(".rodata.teal") = {0};

/* One request, as long as it is in this program's hands. */
struct teal_bpf_call {
    char *memory;
    struct teal_bpf_slot *slot;
    __u32 index;
};

#define TEAL_BPF_READ(place) (*(volatile __typeof__(place) *)&(place))
#define TEAL_BPF_TRIES 32

/* A pointer to `bytes` bytes at `offset`, or 0: the check that the verifier wants to see. */
static __always_inline void *teal_bpf_at(char *memory, __u64 offset, __u64 bytes) {
    if (bytes > teal_layout.bytes || offset > teal_layout.bytes - bytes) return 0;
    return memory + offset;
}

static __always_inline struct teal_bpf_producer *teal_bpf_producer_of(char *memory) {
    return teal_bpf_at(memory, teal_layout.producer_at, sizeof(struct teal_bpf_producer));
}

static __always_inline struct teal_bpf_slot *teal_bpf_slot_of(char *memory, __u32 index) {
    const __u64 at = (__u64)(index & teal_layout.slot_mask & (TEAL_BPF_MOST_SLOTS - 1)) * sizeof(struct teal_bpf_slot);
    return teal_bpf_at(memory, teal_layout.slots_at + at, sizeof(struct teal_bpf_slot));
}

static __always_inline struct teal_bpf_line *teal_bpf_line_of(char *memory, __u32 index) {
    const __u64 at = (__u64)(index & teal_layout.slot_mask & (TEAL_BPF_MOST_SLOTS - 1)) * sizeof(struct teal_bpf_line);
    return teal_bpf_at(memory, teal_layout.lines_at + at, sizeof(struct teal_bpf_line));
}

static __always_inline char *teal_bpf_memory(void) {
    __u32 zero = 0;
    return bpf_map_lookup_elem(&teal_memory, &zero);
}

static __always_inline int teal_bpf_ended(__u64 word, __u32 generation) {
    return ((__u32)word >> 8) == generation && (word & 0xff) >= TEAL_BPF_DONE;
}

/* Has the worker side let go of the slot? (ClientSession::quiescent() in host/client.cpp) */
static __always_inline int teal_bpf_quiescent(struct teal_bpf_line *line, __u32 generation) {
    const __u64 word = TEAL_BPF_READ(line->word);
    return (teal_bpf_ended(word, generation) && (word >> 48 & 1)) || TEAL_BPF_READ(line->released) == generation;
}

/* Takes a free slot: 0, TEAL_BPF_FULL or TEAL_BPF_CLOSED. Give it back: send() and later release(), leave(), or drop(). */
static __always_inline int teal_bpf_take(struct teal_bpf_call *call) {
    char *memory = teal_bpf_memory();
    struct teal_bpf_producer *producer = memory ? teal_bpf_producer_of(memory) : 0;
    if (!producer) return TEAL_BPF_CLOSED;
    if (TEAL_BPF_READ(producer->state) != TEAL_BPF_OPEN) {
        __sync_fetch_and_add(&producer->shut, 1);
        return TEAL_BPF_CLOSED;
    }
    __u32 index = __sync_fetch_and_add(&producer->next, 1);
    for (int i = 0; i < TEAL_BPF_TRIES; ++i, ++index) {
        struct teal_bpf_slot *slot = teal_bpf_slot_of(memory, index);
        struct teal_bpf_line *line = teal_bpf_line_of(memory, index);
        if (!slot || !line) return TEAL_BPF_CLOSED;
        const __u32 word = TEAL_BPF_READ(slot->word);
        const __u32 state = word & 0xff;
        if (state != TEAL_BPF_SLOT_FREE && (state != TEAL_BPF_SLOT_LEFT || !teal_bpf_quiescent(line, word >> 8))) continue;
        /* SYNC: full barrier; pairs with the one in release(): who had the slot before has read its outputs. */
        if (__sync_val_compare_and_swap(&slot->word, word, (word & ~0xffu) | TEAL_BPF_SLOT_TAKEN) != word) continue;
        call->memory = memory;
        call->slot = slot;
        call->index = index & teal_layout.slot_mask;
        return 0;
    }
    __sync_fetch_and_add(&producer->full, 1);
    return TEAL_BPF_FULL;
}

/* Tensor `which` (inputs first, then outputs), or 0 when it has fewer than `bytes` bytes, a constant. */
static __always_inline void *teal_bpf_tensor(struct teal_bpf_call *call, __u32 which, __u64 bytes) {
    struct teal_bpf_slot *slot = call->slot;
    if (which >= TEAL_BPF_TENSORS || TEAL_BPF_READ(slot->tensors[which].bytes) < bytes) return 0;
    return teal_bpf_at(call->memory, TEAL_BPF_READ(slot->tensors[which].offset) & ~63u, bytes);
}

/* Gives a taken slot back unused. */
static __always_inline void teal_bpf_drop(struct teal_bpf_call *call) {
    __sync_lock_test_and_set(&call->slot->word, (call->slot->word & ~0xffu) | TEAL_BPF_SLOT_FREE);
}

static __always_inline void teal_bpf_ring_bell(struct teal_bpf_producer *producer, __u32 *need_wake) {
    /* SYNC: we have published (a full barrier), then look; Worker::sleep_leading() raises it (an exchange), then looks at the
     * ring: one of the two sees the other. */
    if (TEAL_BPF_READ(*need_wake) == 0 || __sync_lock_test_and_set(need_wake, 0) == 0) return;
    __u64 nothing = 0;
    __sync_fetch_and_add(&producer->bells, 1);
    bpf_ringbuf_output(&teal_bell, &nothing, sizeof nothing, BPF_RB_FORCE_WAKEUP);
}

/* Publishes the request. `deadline_ns`: by bpf_ktime_get_ns(), or 0. Returns the handle for poll(), never 0; 0: refused. */
static __always_inline __u64 teal_bpf_send(struct teal_bpf_call *call, __u64 deadline_ns) {
    struct teal_bpf_slot *slot = call->slot;
    struct teal_bpf_producer *producer = teal_bpf_producer_of(call->memory);
    __u32 *need_wake = teal_bpf_at(call->memory, teal_layout.need_wake_at, sizeof(__u32));
    if (!producer || !need_wake) return 0;
    __u32 generation = ((TEAL_BPF_READ(slot->word) >> 8) + 1) & 0xffffff;
    if (generation == 0) generation = 1;
    TEAL_BPF_READ(slot->word) = generation << 8 | TEAL_BPF_SLOT_SENT;
    const __u32 position = __sync_fetch_and_add(&producer->head, 1);
    const __u64 place = (__u64)(position & teal_layout.ring_mask & (4 * TEAL_BPF_MOST_SLOTS - 1)) * sizeof(struct teal_bpf_entry);
    struct teal_bpf_entry *entry = teal_bpf_at(call->memory, teal_layout.ring_at + place, sizeof(struct teal_bpf_entry));
    if (!entry) return 0;
    entry->op = 0;
    entry->flags = 0;
    entry->slot = call->index;
    entry->generation = generation;
    entry->model = teal_layout.model;
    entry->version = teal_layout.version;
    entry->priority = teal_layout.priority;
    entry->stamp = TEAL_BPF_READ(slot->stamp);
    entry->region = TEAL_BPF_READ(slot->region);
    entry->reserved = 0;
    entry->offset_low = TEAL_BPF_READ(slot->block_low);
    entry->offset_high = TEAL_BPF_READ(slot->block_high);
    entry->deadline_low = (__u32)deadline_ns;
    entry->deadline_high = (__u32)(deadline_ns >> 32);
    entry->submitted_low = 0;
    entry->submitted_high = 0;
    /* SYNC: full barrier; pairs with the acquire in RingConsumer::peek(): features and entry are visible with it. */
    __sync_lock_test_and_set(&entry->sequence, position + 1);
    teal_bpf_ring_bell(producer, need_wake);
    return (__u64)generation << 32 | call->index;
}

/* How the request stands: PENDING, DONE, FAILED, CANCELLED, EXPIRED; STALE. Ended: outputs are at teal_bpf_tensor(call, …). */
static __always_inline int teal_bpf_poll(struct teal_bpf_call *call, __u64 handle) {
    const __u32 generation = (__u32)(handle >> 32);
    char *memory = teal_bpf_memory();
    if (!memory) return TEAL_BPF_STALE;
    struct teal_bpf_slot *slot = teal_bpf_slot_of(memory, (__u32)handle);
    struct teal_bpf_line *line = teal_bpf_line_of(memory, (__u32)handle);
    struct teal_bpf_producer *producer = teal_bpf_producer_of(memory);
    if (!slot || !line || !producer || TEAL_BPF_READ(slot->word) != (generation << 8 | TEAL_BPF_SLOT_SENT)) return TEAL_BPF_STALE;
    call->memory = memory;
    call->slot = slot;
    call->index = (__u32)handle & teal_layout.slot_mask;
    const __u64 word = TEAL_BPF_READ(line->word);
    if (!teal_bpf_ended(word, generation)) return TEAL_BPF_PENDING;
    /* SYNC: full barrier; pairs with the release in end_request(): outputs are read after the word. */
    __sync_lock_test_and_set(&slot->seen, 1);
    const int state = (int)(word & 0xff);
    /* A reason, or shapes that were not planned: the outputs are not where they should be. */
    if (state == TEAL_BPF_DONE && (word >> 32 & ~(1ULL << 16)) == 0) return TEAL_BPF_DONE;
    __sync_fetch_and_add(&producer->failed, 1);
    return state == TEAL_BPF_DONE ? TEAL_BPF_FAILED : state;
}

/* After poll() said that it has ended, and the outputs were read: the slot is free for the next request. */
static __always_inline void teal_bpf_release(struct teal_bpf_call *call) {
    const __u32 word = TEAL_BPF_READ(call->slot->word);
    struct teal_bpf_line *line = teal_bpf_line_of(call->memory, call->index);
    const __u32 next = line && teal_bpf_quiescent(line, word >> 8) ? TEAL_BPF_SLOT_FREE : TEAL_BPF_SLOT_LEFT;
    /* SYNC: full barrier; pairs with the one in take(). */
    __sync_val_compare_and_swap(&call->slot->word, word, (word & ~0xffu) | next);
}

/* Does without the verdict: cancels what still waits; the slot is free once the worker has let go of it. */
static __always_inline void teal_bpf_leave(__u64 handle) {
    const __u32 generation = (__u32)(handle >> 32);
    char *memory = teal_bpf_memory();
    if (!memory) return;
    struct teal_bpf_slot *slot = teal_bpf_slot_of(memory, (__u32)handle);
    struct teal_bpf_line *line = teal_bpf_line_of(memory, (__u32)handle);
    struct teal_bpf_producer *producer = teal_bpf_producer_of(memory);
    const __u32 sent = generation << 8 | TEAL_BPF_SLOT_SENT;
    if (!slot || !line || !producer || TEAL_BPF_READ(slot->word) != sent) return;
    const __u64 word = TEAL_BPF_READ(line->word);
    const int running = ((__u32)word >> 8) == generation; /* claimed, or ended: too late to cancel */
    /* SYNC: full barrier; pairs with end_request() and claim_request(): one of us ends it. 6: Reason::client_cancelled. */
    if (!running) __sync_val_compare_and_swap(&line->word, word, 6ULL << 32 | (generation << 8 | TEAL_BPF_CANCELLED));
    __sync_val_compare_and_swap(&slot->word, sent, generation << 8 | TEAL_BPF_SLOT_LEFT);
    __sync_fetch_and_add(&producer->left, 1);
}

struct teal_bpf_wait_context {
    struct teal_bpf_call call;
    __u64 handle;
    int result;
};

static long teal_bpf_wait_round(__u32 round, struct teal_bpf_wait_context *wait) {
    (void)round;
    char *memory = teal_bpf_memory();
    struct teal_bpf_line *line = memory ? teal_bpf_line_of(memory, (__u32)wait->handle) : 0;
    if (!line) return 1;
    for (int i = 0; i < 8; ++i)
        if (teal_bpf_ended(TEAL_BPF_READ(line->word), (__u32)(wait->handle >> 32))) return 1;
    return 0;
}

/* poll(), again and again, at most `rounds` times 8 looks (about 10 ns a round): for decisions that are worth microseconds
 * of this CPU, and for measurements. Kernel 5.17 or later. */
static __always_inline int teal_bpf_wait(struct teal_bpf_call *call, __u64 handle, __u32 rounds) {
    struct teal_bpf_wait_context wait = {.handle = handle};
    bpf_loop(rounds, teal_bpf_wait_round, &wait, 0);
    return teal_bpf_poll(call, handle);
}

#endif /* __bpf__ */
#endif /* TEAL_BPF_H */
