/* An ordinary static program that does what its first argument says, for tests of judged runs. No libc. */
#include <stdint.h>

static long call3(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}
static long map_anonymous(long bytes) {
    long result;
    register long r10 __asm__("r10") = 0x22;
    register long r8 __asm__("r8") = -1;
    register long r9 __asm__("r9") = 0;
    __asm__ volatile("syscall" : "=a"(result) : "a"(9), "D"(0), "S"(bytes), "d"(3), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return result;
}
static _Noreturn void leave(long status) {
    for (;;) call3(231, status, 0, 0);
}
static long length(const char *text) {
    long count = 0;
    while (text[count]) ++count;
    return count;
}
static int dive(volatile char *above) {
    volatile char here[4096];
    here[0] = above ? above[0] : 1;
    return dive(here) + here[0];
}
/* Depth of a megabyte each: a stack that may be as large as the memory. */
static int dig(int more) {
    volatile char here[1 << 20];
    for (unsigned i = 0; i < sizeof here; i += 4096) here[i] = 1;
    return (more > 0 ? dig(more - 1) : 0) + here[0];
}
static unsigned char touched[1 << 20];
static char buffer[65536];

void act(const long *stack);
void act(const long *stack) {
    const char *const *arguments = (const char *const *)(stack + 1);
    const char what = stack[0] > 1 ? arguments[1][0] : 'x';
    switch (what) {
    case 'x': leave(0);
    case '7': leave(7);
    case 'e': call3(1, 1, (long)arguments[2], length(arguments[2])); leave(0);              /* echo an argument */
    case 'v': call3(1, 1, (long)arguments[stack[0] + 1], length(arguments[stack[0] + 1])); leave(0);   /* the first environment variable */
    case 'c': for (long got; (got = call3(0, 0, (long)buffer, sizeof buffer)) > 0;) call3(1, 1, (long)buffer, got); leave(0);   /* cat */
    case 'l': for (;;) __asm__ volatile("" ::: "memory");
    case 'u': for (long used[2] = {0, 0}; used[0] == 0 && used[1] < 200000000;) call3(228, 2, (long)used, 0); leave(0);   /* 200 ms of CPU time */
    case 's': { const long nap[2] = {1000, 0}; call3(35, (long)nap, 0, 0); leave(0); }      /* sleeps */
    case 'n': *(volatile int *)0x123 = 1; leave(0);
    case 'g': *(volatile int *)0x8000000000000000 = 1; leave(0);
    case 'd': __asm__ volatile("idivl %%ecx" ::"a"(1), "d"(0), "c"(0)); leave(0);
    case 'i': __asm__ volatile("ud2"); leave(0);
    case 'a': call3(234, call3(39, 0, 0, 0), call3(186, 0, 0, 0), 6); leave(0);             /* abort */
    case 'D': leave(dig(40));                                                               /* 41 MiB of stack */
    case 'b': for (int i = 0; i < 40; ++i) {                                                /* and 40 MiB of heap before */
        const long at = map_anonymous(1 << 20);
        for (long j = 0; j < 1 << 20 && at > 0; j += 4096) *(volatile char *)(at + j) = 1;
    }
    leave(dig(40));
    case 'o': dive(0); leave(0);
    case 't': for (unsigned i = 0; i < sizeof touched; i += 4096) touched[i] = 1; leave(0); /* a megabyte */
    case 'r': { unsigned sum = 0; for (unsigned i = 0; i < sizeof touched; i += 4096) sum += *(volatile unsigned char *)(touched + i); leave((long)sum); }
    case 'm': for (long got = 0;; got += 1 << 20) {                                          /* all memory that there is */
        const long at = map_anonymous(1 << 20);
        if (at < 0) leave(got >> 20 > 255 ? 255 : got >> 20);
        for (long i = 0; i < 1 << 20; i += 4096) *(volatile char *)(at + i) = 1;
    }
    case 'w': for (int i = 0; i < 64; ++i) call3(1, 1, (long)buffer, sizeof buffer); leave(0);  /* 4 MiB of output */
    case 'E': call3(1, 2, (long)"oops", 4); leave(0);
    case 'S': call3(62, call3(39, 0, 0, 0), 19, 0); for (;;) __asm__ volatile("" ::: "memory");   /* stops itself */
    case 'B': {                                                                              /* blocks what can be blocked, and loops */
        static const long all[1] = {-1};
        register long r10 __asm__("r10") = 8;
        long result;
        __asm__ volatile("syscall" : "=a"(result) : "a"(14), "D"(0), "S"(all), "d"(0), "r"(r10) : "rcx", "r11", "memory");
        for (;;) __asm__ volatile("" ::: "memory");
    }
    case 'f': leave(call3(57, 0, 0, 0) == -38 ? 38 : 1);                                    /* fork */
    case 'p': leave(call3(41, 2, 1, 0) == -38 ? 38 : 1);                                    /* socket */
    }
    leave(99);
}

__asm__(".globl _start\n_start:\n    mov %rsp, %rdi\n    and $-16, %rsp\n    call act\n    hlt\n");
