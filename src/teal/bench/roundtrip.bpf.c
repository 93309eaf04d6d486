/* What `teal bench laika` times: from an event in the kernel to a verdict that is readable in the kernel.
 *
 * An event is a getppid(2) of the bench's own process, seen at raw_tp/sys_enter. The program takes a slot, writes features,
 * sends, waits at the completion line and reads the verdict; both clocks are read in the kernel. `run_once` is the same without a
 * tracepoint around it.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "teal_bpf.h"

#define FEATURES 31
#define SAMPLES 65536

struct control {
    __u32 process;
    __u32 syscall; /* number of getppid(2) here */
    __u32 bytes;   /* of one feature: 1 digits, 4 floats */
    __u32 verdict; /* which tensor: inputs first, then outputs; its first 4 bytes are read */
    __u32 patience; /* rounds to wait, some 10 ns each */
    __u32 taken;   /* samples so far */
    __u32 lost;    /* no slot, or no answer in time */
    __u32 failed;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __uint(key_size, 4);
    __uint(value_size, sizeof(struct control));
} control SEC(".maps");

struct samples {
    __u32 ns[SAMPLES];
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __uint(key_size, 4);
    __uint(value_size, sizeof(struct samples));
} samples SEC(".maps");

static __always_inline void round_trip(struct control *to) {
    __u32 zero = 0;
    struct samples *all = bpf_map_lookup_elem(&samples, &zero);
    if (!all) return;
    const __u64 began = bpf_ktime_get_ns();
    struct teal_bpf_call call;
    if (teal_bpf_take(&call) != 0) {
        __sync_fetch_and_add(&to->lost, 1);
        return;
    }
    if (to->bytes == 1) {
        __u8 *features = teal_bpf_tensor(&call, 0, FEATURES);
        if (!features) {
            teal_bpf_drop(&call);
            return;
        }
        for (int i = 0; i < FEATURES; ++i) features[i] = (began >> i) & 7;
    } else {
        __u32 *features = teal_bpf_tensor(&call, 0, FEATURES * 4);
        if (!features) {
            teal_bpf_drop(&call);
            return;
        }
        for (int i = 0; i < FEATURES; ++i) features[i] = 0x3f800000; /* 1.0f */
    }
    const __u64 handle = teal_bpf_send(&call, 0);
    const int result = teal_bpf_wait(&call, handle, to->patience);
    if (result == TEAL_BPF_PENDING) {
        teal_bpf_leave(handle);
        __sync_fetch_and_add(&to->lost, 1);
        return;
    }
    volatile __u32 *verdict = result == TEAL_BPF_DONE && to->verdict < TEAL_BPF_TENSORS ? teal_bpf_tensor(&call, to->verdict, 4) : 0;
    if (verdict) (void)*verdict;
    else __sync_fetch_and_add(&to->failed, 1);
    const __u64 took = bpf_ktime_get_ns() - began;
    teal_bpf_release(&call);
    const __u32 at = __sync_fetch_and_add(&to->taken, 1);
    if (at < SAMPLES) all->ns[at & (SAMPLES - 1)] = (__u32)took;
}

SEC("raw_tp/sys_enter")
int on_event(struct bpf_raw_tracepoint_args *ctx) {
    __u32 zero = 0;
    struct control *to = bpf_map_lookup_elem(&control, &zero);
    if (!to || bpf_get_current_pid_tgid() >> 32 != to->process || ctx->args[1] != to->syscall) return 0;
    round_trip(to);
    return 0;
}

SEC("syscall")
int run_once(void *ctx) {
    __u32 zero = 0;
    struct control *to = bpf_map_lookup_elem(&control, &zero);
    if (to) round_trip(to);
    return 0;
}

char LICENSE[] SEC("license") = "GPL";
