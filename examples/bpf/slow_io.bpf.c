/* Will this read be slow? Asked for every read of one process, in the kernel, by LinnOS's network on a Teal worker.
 *
 * At block_rq_issue the program writes LinnOS's 31 digits (requests pending now; pending and microseconds of the last four
 * reads) straight into a slot, sends it, and waits a few microseconds at most for the verdict. One that comes later is read
 * when the read completes. At block_rq_complete it also sees whether the read really was slow, and counts. It changes nothing: a
 * real policy would send a read that is going to be slow to another device instead.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "teal_bpf.h"

#define DIGITS 31
#define ROWS 16384
#define READ 0     /* the low byte of cmd_flags: REQ_OP_READ */
#define SMALL 4096 /* reads up to this are asked about; larger ones only count as pending */
#define NOT_ASKED 0xffffffffu

struct request { /* of the kernel; only what is read here, wherever it lies there */
    unsigned int cmd_flags;
    unsigned int __data_len;
} __attribute__((preserve_access_index));

struct control {
    __u32 process;  /* whose reads */
    __u32 deciding; /* 0: only write the trace */
    __u32 patience; /* rounds to wait for a verdict at issue */
    __u32 slow_us;  /* what slow is */
};

struct counts {
    __u64 reads, slow;
    __u64 in_time, late, none; /* verdicts there at issue; there at completion; never */
    __u64 right[2], wrong[2];  /* by what was predicted */
};

struct past {
    __u32 pending;
    __u32 next;
    __u32 us[4];
    __u32 queued[4];
};

struct flight {
    __u64 handle; /* 0: none, or answered */
    __u64 issued; /* by bpf_ktime_get_ns(), after the decision */
    __u32 row;
    __s32 predicted; /* -1: not yet */
    __u32 queued;
    __u32 pad;
};

struct row {
    __u8 digits[DIGITS];
    __u8 ended;
    __u32 us;         /* how long the read took */
    __u32 verdict_ns; /* from the event to the verdict, when it was there in time */
};

struct trace {
    __u32 count;
    struct row rows[ROWS];
};

#define MAP_OF_ONE(name, value) \
    struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __uint(key_size, 4); __uint(value_size, sizeof(value)); } name SEC(".maps")

MAP_OF_ONE(control, struct control);
MAP_OF_ONE(counts, struct counts);
MAP_OF_ONE(past, struct past);
MAP_OF_ONE(trace, struct trace);
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 4096); __uint(key_size, 8); __uint(value_size, sizeof(struct flight)); } flights SEC(".maps");

static __always_inline void *only(void *map) {
    __u32 zero = 0;
    return bpf_map_lookup_elem(map, &zero);
}

static __always_inline void put3(__u8 *to, __u32 value) {
    if (value > 999) value = 999;
    to[0] = value / 100;
    to[1] = value / 10 % 10;
    to[2] = value % 10;
}

static __always_inline void put4(__u8 *to, __u32 value) {
    if (value > 9999) value = 9999;
    to[0] = value / 1000;
    put3(to + 1, value % 1000);
}

static __always_inline void describe(__u8 *digits, struct past *past, __u32 queued) {
    put3(digits, queued);
    for (int i = 0; i < 4; ++i) {
        const __u32 at = (past->next + i) & 3; /* the oldest first */
        put3(digits + 3 + 3 * i, past->queued[at]);
        put4(digits + 15 + 4 * i, past->us[at]);
    }
}

/* The verdict, if it is there: what was predicted, or -1. */
static __always_inline __s32 verdict_of(struct teal_bpf_call *call, int result) {
    __s32 *verdict = result == TEAL_BPF_DONE ? teal_bpf_tensor(call, 2, sizeof *verdict) : 0;
    return verdict ? *verdict & 1 : -1;
}

static __always_inline void ask(struct control *control, struct flight *flight, struct row *row) {
    const __u64 began = bpf_ktime_get_ns();
    struct teal_bpf_call call;
    if (teal_bpf_take(&call) != 0) return;
    __u8 *digits = teal_bpf_tensor(&call, 0, DIGITS);
    if (!digits) {
        teal_bpf_drop(&call);
        return;
    }
    __builtin_memcpy(digits, row->digits, DIGITS);
    flight->handle = teal_bpf_send(&call, 0);
    const int result = teal_bpf_wait(&call, flight->handle, control->patience);
    if (result < TEAL_BPF_DONE) return;
    flight->predicted = verdict_of(&call, result);
    teal_bpf_release(&call);
    flight->handle = 0;
    row->verdict_ns = (__u32)(bpf_ktime_get_ns() - began);
}

SEC("tp_btf/block_rq_issue")
int BPF_PROG(on_issue, struct request *rq) {
    struct control *to = only(&control);
    struct counts *found = only(&counts);
    struct past *before = only(&past);
    struct trace *all = only(&trace);
    if (!to || !found || !before || !all) return 0;
    if (bpf_get_current_pid_tgid() >> 32 != to->process || (rq->cmd_flags & 0xff) != READ) return 0;
    struct flight flight = {.predicted = -1};
    flight.queued = __sync_fetch_and_add(&before->pending, 1);
    flight.row = NOT_ASKED;
    if (rq->__data_len <= SMALL) {
        flight.row = __sync_fetch_and_add(&all->count, 1);
        struct row *row = &all->rows[flight.row & (ROWS - 1)];
        describe(row->digits, before, flight.queued);
        row->ended = 0;
        row->verdict_ns = 0;
        if (to->deciding) ask(to, &flight, row);
        if (flight.predicted >= 0) __sync_fetch_and_add(&found->in_time, 1);
    }
    flight.issued = bpf_ktime_get_ns();
    const __u64 key = (__u64)rq;
    bpf_map_update_elem(&flights, &key, &flight, BPF_ANY);
    return 0;
}

static __always_inline void judge(struct counts *found, struct flight *flight, int slow) {
    if (flight->handle) {
        struct teal_bpf_call call;
        const int result = teal_bpf_poll(&call, flight->handle);
        if (result >= TEAL_BPF_DONE) {
            flight->predicted = verdict_of(&call, result);
            teal_bpf_release(&call);
            if (flight->predicted >= 0) __sync_fetch_and_add(&found->late, 1);
        } else {
            teal_bpf_leave(flight->handle);
        }
    }
    if (flight->predicted < 0) {
        __sync_fetch_and_add(&found->none, 1);
        return;
    }
    __u64 *to = flight->predicted == slow ? found->right : found->wrong;
    __sync_fetch_and_add(&to[flight->predicted & 1], 1);
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(on_complete, struct request *rq) {
    const __u64 key = (__u64)rq;
    struct flight *flight = bpf_map_lookup_elem(&flights, &key);
    struct control *to = only(&control);
    struct counts *found = only(&counts);
    struct past *before = only(&past);
    struct trace *all = only(&trace);
    if (!flight || !to || !found || !before || !all) return 0;
    const __u32 us = (__u32)((bpf_ktime_get_ns() - flight->issued) / 1000);
    const int slow = us > to->slow_us;
    __sync_fetch_and_add(&before->pending, -1);
    if (flight->row == NOT_ASKED) {
        bpf_map_delete_elem(&flights, &key);
        return 0;
    }
    const __u32 at = __sync_fetch_and_add(&before->next, 1) & 3;
    before->us[at] = us;
    before->queued[at] = flight->queued;
    struct row *row = &all->rows[flight->row & (ROWS - 1)];
    row->us = us;
    row->ended = 1;
    __sync_fetch_and_add(&found->reads, 1);
    if (slow) __sync_fetch_and_add(&found->slow, 1);
    if (to->deciding) judge(found, flight, slow);
    bpf_map_delete_elem(&flights, &key);
    return 0;
}

char LICENSE[] SEC("license") = "GPL";
