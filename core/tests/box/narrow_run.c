/* An ordinary static program for i386. */
static long call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
    return result;
}

void _start(void);
void _start(void) {
    static int variable = 40;
    variable += 2;
    call(4, 1, (long)"narrow", 6);
    if (call(5, (long)"/etc/passwd", 0, 0) != -38 || call(2, 0, 0, 0) != -38) call(252, 1, 0, 0);
    call(252, variable, 0, 0);
}
