/* An ordinary program, static, with a libc: adds up the numbers on its standard input. Nothing in it knows of ducks; it is judged, each run
 * from zero, with limits and a record of what it took.
 *
 *     teal duck cc classic.c -o classic.elf --abi linux
 *     seq 1000 > numbers.txt
 *     teal judge classic.elf --stdin numbers.txt --time 1s --memory 256M         # 500500
 */
#include <stdio.h>

int main(void) {
    long long sum = 0, number;
    while (scanf("%lld", &number) == 1) sum += number;
    printf("%lld\n", sum);
    return 0;
}
