/* A DuckInfo program that does what the first byte of its stdin says. */
#include <duckinfo.h>

static int system_call(long number, long argument) {
#if defined(__x86_64__)
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(argument) : "rcx", "r11", "memory");
    return (int)result;
#else
    return (int)(number + argument);
#endif
}

int duck_main(duckinfo_t *info) {
    const char *in = (const char *)(uintptr_t)info->stdin_ptr;
    switch (info->stdin_size ? in[0] : 0) {
    case 'c': duckinfo_print(info, in + 1, info->stdin_size - 1); duckinfo_complain(info, "!", 1); return 5;
    case 'b': ((uint64_t *)(uintptr_t)info->OB_ptr)[0] += ((const uint64_t *)(uintptr_t)info->IB_ptr)[1]; return 0;
    case 'w': info->stdout_size = info->stdout_limit + 1; return 0;
    case 'i': *(volatile char *)(uintptr_t)info->IB_ptr = 1; return 0;
    case 'a': return system_call(200, 6);
    case 's': return system_call(39, 0);
    case 'k': return system_call((unsigned char)in[1] | (unsigned char)in[2] << 8, 0);
    case 'l': for (;;) __asm__ volatile("" ::: "memory");
    case 'm': *(volatile char *)((uintptr_t)info + 8192) = 1; return 0;   /* behind its region */
    }
    return -1;
}
