// Prelude for OpenCL C: what the words of a task mean here. TEAL_CLANG: the compiler takes clang's builtins (PoCL and Intel's
// CPU runtime do), so that loads, stores and fences are those of the machine. Otherwise OpenCL 2.0's atomics at TEAL_SCOPE, the
// widest scope the device offers. TEAL_ALONE: one work-item a group (CPU devices); there is nobody to wait for.
#define TEAL_TASK static
#define TEAL_KERNEL __kernel
#define TEAL_DEVICE
#define TEAL_GLOBAL __global
#define TEAL_LOCAL __local
#define TEAL_SHARED __local
#define TEAL_ALIGNED __attribute__((aligned(64)))
#define TEAL_GROUP ((uint)get_group_id(0))
#ifdef TEAL_ALONE
#define TEAL_WORKER 0u
#define TEAL_WORKERS 1u
#define TEAL_BARRIER() ((void)0)
#else
#define TEAL_WORKER ((uint)get_local_id(0))
#define TEAL_WORKERS ((uint)get_local_size(0))
#define TEAL_BARRIER() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#endif
#ifdef TEAL_CLANG
#define TEAL_PEEK(p) __atomic_load_n((volatile __global uint*)(p), __ATOMIC_RELAXED)
#define TEAL_ACQUIRE() __atomic_thread_fence(__ATOMIC_ACQUIRE)
#define TEAL_STORE(p, v) __atomic_store_n((volatile __global uint*)(p), (v), __ATOMIC_RELEASE)
#define TEAL_FENCE() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define TEAL_CLOCK(polls) ((ulong)__builtin_readcyclecounter())
#if defined(__x86_64__) || defined(TEAL_X86)
#define TEAL_PAUSE() __asm__ volatile("pause" ::: "memory")
#else
#define TEAL_PAUSE() __asm__ volatile("" ::: "memory")
#endif
#else
#define TEAL_PEEK(p) atomic_load_explicit((volatile __global atomic_uint*)(p), memory_order_relaxed, TEAL_SCOPE)
#define TEAL_ACQUIRE() atomic_work_item_fence(CLK_GLOBAL_MEM_FENCE, memory_order_acquire, TEAL_SCOPE)
#define TEAL_STORE(p, v) atomic_store_explicit((volatile __global atomic_uint*)(p), (v), memory_order_release, TEAL_SCOPE)
#define TEAL_FENCE() atomic_work_item_fence(CLK_GLOBAL_MEM_FENCE, memory_order_seq_cst, TEAL_SCOPE)
#define TEAL_CLOCK(polls) (polls)
#define TEAL_PAUSE() mem_fence(CLK_LOCAL_MEM_FENCE)
#endif
#define TEAL_RELAX(n) for (uint teal_i = 0; teal_i < (n); ++teal_i) TEAL_PAUSE()
