/* What the tests drive by hand: one step of a request at a time, what goes in and what came out in a map of one. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "teal_bpf.h"

/* The same as in core/host/bpf_session.cpp, here as the BPF compiler lays it out. */
_Static_assert(sizeof(struct teal_bpf_entry) == 64 && sizeof(struct teal_bpf_line) == 64, "lines");
_Static_assert(sizeof(struct teal_bpf_slot) == 128 && sizeof(struct teal_bpf_producer) == 320, "producer");
_Static_assert(sizeof(struct teal_bpf_layout) == 48, "layout");
_Static_assert(__builtin_offsetof(struct teal_bpf_line, released) == 20, "released");
_Static_assert(__builtin_offsetof(struct teal_bpf_entry, submitted_high) == 60, "entry");

#define TABLE 64

struct desk {
    __u64 handle;
    __u64 deadline_in; /* ns from now; 0: none */
    __u64 out;
    __s64 in; /* 8 bytes for tensor 0 */
    __s32 result;
    __u32 process; /* whose getppid(2) counts as an event */
    __u32 syscall;
    __u32 rounds;
    __u64 right, wrong, refused;
    __u64 cells[TABLE];   /* handles of events that nobody has looked after yet */
    __u32 asked[TABLE];   /* by slot: which k */
    __u32 floats[TABLE];  /* bits of k as a float, twice in tensor 0 … */
    __u64 doubles[TABLE]; /* … and of their sum as a double */
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __uint(key_size, 4);
    __uint(value_size, sizeof(struct desk));
} desk SEC(".maps");

static __always_inline struct desk *the_desk(void) {
    __u32 zero = 0;
    return bpf_map_lookup_elem(&desk, &zero);
}

SEC("syscall")
int send_one(void *ctx) {
    struct desk *d = the_desk();
    if (!d) return 0;
    struct teal_bpf_call call;
    d->handle = 0;
    d->result = teal_bpf_take(&call);
    if (d->result != 0) return 0;
    __s64 *in = teal_bpf_tensor(&call, 0, sizeof *in);
    if (!in) {
        teal_bpf_drop(&call);
        d->result = -100;
        return 0;
    }
    *in = d->in;
    d->handle = teal_bpf_send(&call, d->deadline_in ? bpf_ktime_get_ns() + d->deadline_in : 0);
    return 0;
}

SEC("syscall")
int take_one(void *ctx) {
    struct desk *d = the_desk();
    struct teal_bpf_call call;
    if (d) d->result = teal_bpf_take(&call);
    return 0;
}

SEC("syscall")
int drop_one(void *ctx) {
    struct desk *d = the_desk();
    struct teal_bpf_call call;
    if (!d) return 0;
    d->result = teal_bpf_take(&call);
    if (d->result == 0) teal_bpf_drop(&call);
    return 0;
}

static __always_inline void look(struct desk *d, struct teal_bpf_call *call) {
    __u64 *out = d->result == TEAL_BPF_DONE ? teal_bpf_tensor(call, 1, sizeof *out) : 0;
    if (out) d->out = *out;
}

SEC("syscall")
int poll_one(void *ctx) {
    struct desk *d = the_desk();
    if (!d) return 0;
    struct teal_bpf_call call;
    d->result = teal_bpf_poll(&call, d->handle);
    look(d, &call);
    return 0;
}

SEC("syscall")
int finish_one(void *ctx) {
    struct desk *d = the_desk();
    if (!d) return 0;
    struct teal_bpf_call call;
    d->result = teal_bpf_wait(&call, d->handle, d->rounds);
    look(d, &call);
    if (d->result >= TEAL_BPF_DONE) teal_bpf_release(&call);
    return 0;
}

SEC("syscall")
int leave_one(void *ctx) {
    struct desk *d = the_desk();
    if (d) teal_bpf_leave(d->handle);
    return 0;
}

static __always_inline void check(struct desk *d, __u64 handle, __u64 *cell) {
    struct teal_bpf_call call;
    const int result = teal_bpf_poll(&call, handle);
    if (result == TEAL_BPF_PENDING) {
        if (__sync_val_compare_and_swap(cell, 0, handle) == 0) return;
        teal_bpf_leave(handle); /* another event has put its own there */
        __sync_fetch_and_add(&d->refused, 1);
        return;
    }
    __u64 *out = result == TEAL_BPF_DONE ? teal_bpf_tensor(&call, 1, sizeof *out) : 0;
    const __u32 k = d->asked[handle & (TABLE - 1)];
    if (out && *out == d->doubles[k & (TABLE - 1)]) __sync_fetch_and_add(&d->right, 1);
    else __sync_fetch_and_add(&d->wrong, 1);
    if (result > 0) teal_bpf_release(&call);
}

static __always_inline void ask(struct desk *d, __u64 *cell) {
    const __u32 k = bpf_get_prandom_u32() & (TABLE - 1);
    struct teal_bpf_call call;
    __u32 *in = 0;
    if (teal_bpf_take(&call) == 0) in = teal_bpf_tensor(&call, 0, 2 * sizeof *in);
    if (!in) {
        __sync_fetch_and_add(&d->refused, 1);
        return;
    }
    in[0] = in[1] = d->floats[k];
    d->asked[call.index & (TABLE - 1)] = k;
    check(d, teal_bpf_send(&call, 0), cell);
}

/* Any number of these at once, on all CPUs: each takes up an answer that another one may have asked for, or asks. */
SEC("raw_tp/sys_enter")
int on_event(struct bpf_raw_tracepoint_args *ctx) {
    struct desk *d = the_desk();
    if (!d || bpf_get_current_pid_tgid() >> 32 != d->process || ctx->args[1] != d->syscall) return 0;
    __u64 *cell = &d->cells[bpf_get_prandom_u32() & (TABLE - 1)];
    const __u64 handle = __sync_lock_test_and_set(cell, 0);
    if (handle) check(d, handle, cell);
    else ask(d, cell);
    return 0;
}

SEC("syscall")
int sweep(void *ctx) {
    struct desk *d = the_desk();
    if (!d) return 0;
    d->result = 0;
    for (int i = 0; i < TABLE; ++i) {
        const __u64 handle = __sync_lock_test_and_set(&d->cells[i], 0);
        if (handle) check(d, handle, &d->cells[i]);
        if (d->cells[i]) ++d->result;
    }
    return 0;
}

char LICENSE[] SEC("license") = "GPL";
