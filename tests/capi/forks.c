/* forks.c ADDRESS: a child of fork() is told to begin anew, can, and the parent notices nothing. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static laika_model_t identity;

static laika_status_t call(void) {
    uint8_t a[64] = {3}, b[64] = {0};
    laika_tensor_t in = vector_of(a, LAIKA_UINT8, 64), out = vector_of(b, LAIKA_UINT8, 64);
    const laika_status_t status = laika_infer(identity, &in, 1, &out, 1);
    if (status == LAIKA_OK) CHECK(b[0] == 3);
    return status;
}

static int child(const char *address, laika_shm_t shm, uint8_t *data) {
    laika_shm_t other;
    laika_model_t model;
    CHECK_ERROR(call(), LAIKA_ERR_FORKED, "call laika_init in the child");
    CHECK_STATUS(laika_shm_alloc(64, LAIKA_SHM_INPUT, &other), LAIKA_ERR_FORKED);
    CHECK_STATUS(laika_shm_free(shm), LAIKA_ERR_FORKED);
    CHECK_STATUS(laika_model_load("builtin:sum", 0, &model), LAIKA_ERR_FORKED);
    CHECK_STATUS(laika_model_unload(identity), LAIKA_ERR_FORKED);
    CHECK_STATUS(laika_finalize(), LAIKA_ERR_FORKED);
    CHECK(data[0] == 77); /* the pages are there */
    NEED(laika_init(address, LAIKA_INIT_DEFAULT));
    CHECK_STATUS(call(), LAIKA_ERR_HANDLE); /* a handle of the parent's */
    CHECK_STATUS(laika_shm_free(shm), LAIKA_ERR_HANDLE);
    NEED(laika_model_load("builtin:identity", 0, &identity));
    CHECK_OK(call());
    CHECK_OK(laika_finalize());
    CHECK_STATUS(call(), LAIKA_ERR_NOT_INITIALIZED);
    return check_summary();
}

static void *busy(void *stop) { /* so that the fork finds locks held */
    while (!atomic_load((atomic_int *)stop)) {
        laika_shm_t shm;
        CHECK_OK(call());
        CHECK_OK(laika_shm_alloc(64, LAIKA_SHM_INPUT, &shm));
        CHECK_OK(laika_shm_free(shm));
    }
    return NULL;
}

int main(int argc, char **argv) {
    (void)argc;
    NEED(laika_init(argv[1], LAIKA_INIT_DEFAULT));
    NEED(laika_model_load("builtin:identity", 0, &identity));
    laika_shm_t shm;
    uint8_t *data = shared(64, &shm);
    data[0] = 77;
    atomic_int stop = 0;
    pthread_t threads[2];
    for (int i = 0; i < 2; ++i) pthread_create(&threads[i], NULL, busy, &stop);
    for (int i = 0; i < 10; ++i) {
        fflush(NULL);
        const pid_t pid = fork();
        if (pid == 0) {
            if (i % 2) _exit(0); /* says nothing, and leaves */
            const int failed = child(argv[1], shm, data);
            fflush(NULL);
            _exit(failed);
        }
        int status = -1;
        CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        CHECK_OK(call());
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
    CHECK_OK(laika_shm_free(shm));
    CHECK_OK(laika_finalize());
    return check_summary();
}
