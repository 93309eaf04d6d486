/* signals.c ADDRESS: a signal a millisecond interrupts nothing. */
#define _GNU_SOURCE
#include "check.h"

#include <signal.h>
#include <sys/time.h>

static volatile sig_atomic_t seen;
static void on_alarm(int number) {
    (void)number;
    ++seen;
}

int main(int argc, char **argv) {
    (void)argc;
    struct sigaction action = {0}; /* without SA_RESTART */
    action.sa_handler = on_alarm;
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &every, NULL);
    for (int round = 0; round < 5; ++round) {
        laika_model_t sleeper;
        laika_shm_t shm;
        NEED(laika_init(argv[1], LAIKA_INIT_DEFAULT));
        NEED(laika_model_load("builtin:sleep", 0, &sleeper));
        shared(8 << 20, &shm);
        for (int i = 0; i < 5; ++i) {
            int64_t us = 5000, made = 0;
            laika_tensor_t in = {&us, LAIKA_INT64, 0, {0}}, out = {&made, LAIKA_INT64, 0, {0}};
            CHECK_OK(laika_infer(sleeper, &in, 1, &out, 1));
            CHECK(made == 5000);
        }
        CHECK_OK(laika_shm_free(shm));
        CHECK_OK(laika_model_unload(sleeper));
        CHECK_OK(laika_finalize());
    }
    CHECK(seen > 50);
    return check_summary();
}
