// Prelude for CUDA (NVRTC): what the words of a task mean here. Host memory is read through volatile loads with system-wide
// fences; a task must not mark its pointers __restrict__, or the compiler reads them through a cache that is not coherent.
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#define TEAL_TASK static __device__
#define TEAL_KERNEL extern "C" __global__
#define TEAL_DEVICE __device__
#define TEAL_GLOBAL
#define TEAL_LOCAL
#define TEAL_SHARED __shared__
#define TEAL_ALIGNED __align__(64)
#define TEAL_GROUP ((uint)blockIdx.x)
#define TEAL_WORKER ((uint)threadIdx.x)
#define TEAL_WORKERS ((uint)blockDim.x)
#define TEAL_BARRIER() __syncthreads()
static __device__ void teal_store(volatile uint* p, uint value) {
    __threadfence_system();
    *p = value;
}
static __device__ ulong teal_clock() {
    ulong ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}
#define TEAL_PEEK(p) (*(volatile uint*)(p))
#define TEAL_ACQUIRE() __threadfence_system()
#define TEAL_STORE(p, v) teal_store((volatile uint*)(p), (v))
#define TEAL_FENCE() __threadfence_system()
#define TEAL_CLOCK(polls) teal_clock()
#define TEAL_RELAX(n) __nanosleep(32u * (n))
