/* The loop of a resident guest (serve.cpp), as bytes. */
    .section .rodata
    .globl teal_loop_begin, teal_loop_end
    .balign 4096
teal_loop_begin:
    .incbin TEAL_LOOP
teal_loop_end:
    .section .note.GNU-stack, "", @progbits
