/* The shortest ordinary static program. */
void _start(void);
void _start(void) { __asm__ volatile("syscall" ::"a"(231), "D"(0)); }
