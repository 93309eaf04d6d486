/* The same as classic.c for the DuckInfo interface: no system, no libc; the input is in memory when the program starts, and so is the output
 * when it ends.
 *
 *     teal duck cc duckinfo.c -o duckinfo.elf --abi duckinfo        # or --abi duckinfo32
 *     seq 1000 > numbers.txt
 *     teal judge duckinfo.elf --abi duckinfo --stdin numbers.txt --time 1s --memory 256M        # 500500
 */
#include <duckinfo.h>

int duck_main(duckinfo_t *info) {
    const char *text = (const char *)(uintptr_t)info->stdin_ptr;
    uint64_t sum = 0, number = 0;
    for (duckinfo_word i = 0; i < info->stdin_size; ++i) {
        if (text[i] >= '0' && text[i] <= '9') {
            number = number * 10 + (uint64_t)(text[i] - '0');
            continue;
        }
        sum += number;
        number = 0;
    }
    duckinfo_print_number(info, sum + number, '\n');
    return 0;
}
