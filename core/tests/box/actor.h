/* What box_actor.c can be told to do: the first word of a call's arguments. What follows it in brackets are the next words. */
#ifndef TEAL_TESTS_ACTOR_H
#define TEAL_TESTS_ACTOR_H

enum {
    act_echo = 1,   /* […] into the output buffer */
    act_count,      /* how often it was called so */
    act_syscall,    /* [number, six arguments] its result */
    act_crash,      /* [address] writes there */
    act_loop,       /* for ever */
    act_exit,       /* [status] */
    act_dive,       /* the stack overflows */
    act_scribble,   /* [address, rounds] random bytes over two pages */
    act_result,     /* [result] */
    act_log,        /* [lines] */
    act_allocate,   /* [bytes] touches memory until there is no more; how much it got */
    act_ib,         /* size, first word, address */
    act_cores,      /* the sum of 1 … cores, through a barrier */
    act_invalid,    /* ud2 */
    act_narrow,     /* int 0x80 */
    act_jump,       /* [address] */
    act_addresses,  /* duck, serve, ob, a variable of its own */
    act_serve,      /* [program] serve() again */
    act_sum,        /* of the input buffer's words */
    act_steal,      /* [rounds] takes an order off the box's socket itself; its descriptor, and what mapping it writable gave */
    act_pretend,    /* [control page, offset of the answer's seq] answers itself once, and goes on for ever */
    act_forge       /* [answer line, ask line, result] answers whatever is asked with that result, for ever, and never returns */
};

#endif
