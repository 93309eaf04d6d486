/* The smallest resident program: greets whoever its arguments name.
 *
 *     teal duck cc hello.c -o hello.elf
 *     printf Ada | teal duck run hello.elf        # hello, Ada, for the 1st time
 *
 * Or, to call it thousands of times a second:
 *
 *     import teal
 *     with teal.Duck() as duck, duck.open("hello.elf") as hello:
 *         print(bytes(hello.call(b"Ada")))        # b'hello, Ada, for the 1st time\n'
 *         print(bytes(hello.call(b"Bo")))         # b'hello, Bo, for the 2nd time\n'
 */
#include <duck.h>

static uint64_t calls; /* a resident program keeps what it has from call to call */

static char *put(char *at, const char *end, const char *text, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes && at < end; ++i) *at++ = text[i];
    return at;
}

static char *put_number(char *at, const char *end, uint64_t value) {
    char digits[20];
    unsigned first = sizeof digits;
    do digits[--first] = (char)('0' + value % 10);
    while ((value /= 10) != 0);
    return put(at, end, digits + first, sizeof digits - first);
}

int64_t duck_call(const duck_t *duck, const void *args, uint64_t bytes, uint32_t core) {
    if (core != 0) return 0; /* with several cores all of them come here; one is enough */
    static const char *const endings[] = {"th", "st", "nd", "rd"};
    char *at = duck->ob;
    const char *end = at + duck->ob_bytes;
    ++calls;
    const uint64_t ending = calls % 10 < 4 && calls / 10 % 10 != 1 ? calls % 10 : 0;
    at = put(at, end, "hello, ", 7);
    at = put(at, end, args, bytes);
    at = put(at, end, ", for the ", 10);
    at = put_number(at, end, calls);
    at = put(at, end, endings[ending], 2);
    at = put(at, end, " time\n", 6);
    return at - (char *)duck->ob;
}
