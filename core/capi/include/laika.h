/* liblaika: call models that are resident in a Teal host, from C, C++, Rust, Go or whatever can call C.
 *
 *     #include <laika.h>
 *
 *     laika_model_t model;
 *     double total = 0;
 *     float x[4] = {1, 2, 3, 4};
 *     laika_tensor_t in = {.data = x, .dtype = LAIKA_FLOAT32, .ndim = 1, .shape = {4}};
 *     laika_tensor_t out = {.data = &total, .dtype = LAIKA_FLOAT64};
 *
 *     if (laika_init(NULL, LAIKA_INIT_DEFAULT) != LAIKA_OK) { fprintf(stderr, "%s\n", laika_last_error()); return 1; }
 *     laika_model_load("builtin:sum", 0, &model);
 *     laika_infer(model, &in, 1, &out, 1);
 *     laika_finalize();
 *
 * A host must be running: `teal serve`. Nothing of Python is in this process. Build with
 *
 *     export PKG_CONFIG_PATH=$(teal config --pkgconfig)
 *     cc program.c $(pkg-config --cflags --libs laika) -o program
 *
 * Theory of operation. A call hands a request of 64 bytes to a worker through memory that both map, and waits at one cache line
 * for its end: no system call while both are awake. Tensors in memory of laika_shm_alloc are used where they are, by the worker
 * too. Tensors anywhere else are copied into such memory and back, and counted (laika_statistics). The first call with certain
 * places and shapes prepares it; the following ones with the same places and shapes only submit and wait.
 *
 * Errors. Functions return LAIKA_OK (0) or one of the codes below; laika_strerror() says what a code means, laika_last_error()
 * what was wrong in this thread's last failed call: what, where, what was expected, what to do. Nothing aborts.
 *
 * Threads. Every function may be called from any thread, at any time, also at once. What two threads must agree on between
 * themselves is their data: two calls at once that write to the same output memory leave a mixture of both. laika_last_error()
 * is per thread. laika_finalize() ends the waiting of other threads (LAIKA_ERR_NOT_INITIALIZED).
 *
 * fork. In a child of fork() everything but laika_init returns LAIKA_ERR_FORKED, and the parent notices nothing; laika_init in
 * the child connects anew. Signals: an interrupted wait goes on. Leaving without laika_finalize is fine: the host sees that the
 * process is gone and frees what it had.
 */
#ifndef LAIKA_H
#define LAIKA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. laika_version() is that of the library: equal upper 16 bits belong together. */
#define LAIKA_VERSION 0x00010001u

#define LAIKA_MAX_DIMS 8
#define LAIKA_MAX_NAME 128

typedef enum laika_status {
    LAIKA_OK = 0,
    LAIKA_ERR_INVALID = 1,          /* an argument breaks a rule: dtype, shape, number of tensors, unknown flag */
    LAIKA_ERR_POINTER = 2,          /* a pointer that is NULL, unaligned, freed, unmapped or not readable memory */
    LAIKA_ERR_HANDLE = 3,           /* not a model, shm or call of this process (any more) */
    LAIKA_ERR_NOT_INITIALIZED = 4,  /* laika_init was not called, or laika_finalize was */
    LAIKA_ERR_INITIALIZED = 5,      /* laika_init was called already; everything stays as it is */
    LAIKA_ERR_FORKED = 6,           /* initialised before fork(): call laika_init in the child */
    LAIKA_ERR_NO_HOST = 7,          /* no host to talk to: start one with `teal serve` */
    LAIKA_ERR_HOST_GONE = 8,        /* the host ended while we were connected; laika_finalize, then laika_init */
    LAIKA_ERR_VERSION = 9,          /* host and library are of different builds that do not fit */
    LAIKA_ERR_NOT_FOUND = 10,       /* no such model or file */
    LAIKA_ERR_QUOTA = 11,           /* a limit of the host or of the machine; the message has the numbers */
    LAIKA_ERR_TIMEOUT = 12,         /* laika_wait: not ended yet, the call goes on; laika_model_load: given up */
    LAIKA_ERR_CANCELLED = 13,       /* the request was ended before it was done: by laika_cancel, the host, or an unload */
    LAIKA_ERR_BUSY = 14,            /* a request still uses it */
    LAIKA_ERR_KERNEL = 15,          /* the model ran and reported an error; the message is its own */
    LAIKA_ERR_WORKER_DIED = 16,     /* the process that ran the request ended; the host replaces it: try again */
    LAIKA_ERR_TOO_SMALL = 17,       /* an output needs more bytes than its shape gives; its shape now says how many */
    LAIKA_ERR_UNSUPPORTED = 18,     /* a model that this library cannot call (more than 8 dimensions, an unknown dtype) */
    LAIKA_ERR_MEMORY = 19,          /* this process is out of memory */
    LAIKA_ERR_INTERNAL = 20         /* our fault, or the host's: please report it with the message */
} laika_status_t;

typedef enum laika_dtype {
    LAIKA_DTYPE_NONE = 0, /* in laika_spec_t: any; in an output tensor: whatever the model makes */
    LAIKA_BOOL = 1,
    LAIKA_UINT8 = 2,
    LAIKA_INT8 = 3,
    LAIKA_UINT16 = 4,
    LAIKA_INT16 = 5,
    LAIKA_UINT32 = 6,
    LAIKA_INT32 = 7,
    LAIKA_UINT64 = 8,
    LAIKA_INT64 = 9,
    LAIKA_FLOAT16 = 10,
    LAIKA_FLOAT32 = 11,
    LAIKA_FLOAT64 = 12,
    LAIKA_COMPLEX64 = 13,
    LAIKA_COMPLEX128 = 14,
    LAIKA_BFLOAT16 = 15,
    LAIKA_FLOAT8_E4M3FN = 16,
    LAIKA_FLOAT8_E5M2 = 17,
    LAIKA_BYTES = 18      /* strings: `data` is an array of laika_bytes_t */
} laika_dtype_t;

/* Flags. Unknown ones are refused. */
#define LAIKA_INIT_DEFAULT 0u
#define LAIKA_MODEL_DEFAULT 0u
#define LAIKA_MODEL_PERSISTENT 1u /* stays loaded when this process leaves, until somebody unloads it by name */
#define LAIKA_SHM_INPUT 1u        /* models may read it */
#define LAIKA_SHM_OUTPUT 2u       /* models may write it */

/* Handles are numbers: a zero one, one that was given back and one that never was are recognised, and refused. */
typedef struct laika_model { uint64_t id; } laika_model_t;
typedef struct laika_shm { uint64_t id; } laika_shm_t;
typedef struct laika_call { uint64_t id; } laika_call_t;
typedef struct laika_event { uint64_t id; } laika_event_t;

/* Elements lie one after the other, the last dimension closest (C order). ndim 0 is a scalar. */
typedef struct laika_tensor {
    void *data;           /* aligned to its dtype; in memory of laika_shm_alloc, or anywhere (copied) */
    int32_t dtype;        /* a laika_dtype_t */
    int32_t ndim;         /* 0 to LAIKA_MAX_DIMS */
    int64_t shape[LAIKA_MAX_DIMS];
} laika_tensor_t;

/* One string of a LAIKA_BYTES tensor: any bytes. In an input, no zero is needed at its end. In an output it lies in memory that the call
 * made, followed by a zero that does not count, until laika_bytes_free. */
typedef struct laika_bytes {
    const void *data;
    uint64_t size;
} laika_bytes_t;

/* Where, for the functions that end in _with. More may follow at its end: size says how much of it the caller knows. */
typedef struct laika_options {
    size_t size;          /* sizeof(laika_options_t) */
    const char *pool;     /* a pool of the host (`teal serve --pool NAME`); NULL: as without options */
} laika_options_t;

/* ---- begin and end ------------------------------------------------------------------------------------------------ */

/* Connects to a host. address: NULL for this user's (or what the environment's TEAL_HOST says), a name given to `teal serve
 * --name`, an abstract address ("@teal/1000/big") or a path. A host of another user is refused unless its address is given. */
laika_status_t laika_init(const char *address, unsigned flags);

/* The same with options (NULL: none). pool: where models and memory of this process are when they do not say; else "default". */
laika_status_t laika_init_with(const char *address, unsigned flags, const laika_options_t *options);

/* Ends every wait, unloads what only this process used, frees its shared memory: pointers into it are then invalid. */
laika_status_t laika_finalize(void);

/* ---- shared memory ------------------------------------------------------------------------------------------------ */

/* Zeroed memory that this process and the workers share. flags: LAIKA_SHM_INPUT, LAIKA_SHM_OUTPUT or both. */
laika_status_t laika_shm_alloc(size_t bytes, unsigned flags, laika_shm_t *shm);

/* The same with options. pool: whose workers share it; models in other pools get copies of tensors in it. */
laika_status_t laika_shm_alloc_with(size_t bytes, unsigned flags, const laika_options_t *options, laika_shm_t *shm);

/* Its address in this process: the same each time, aligned to 256 bytes, to a page from 4096 bytes on. Each map wants an unmap. */
laika_status_t laika_shm_map(laika_shm_t shm, void **data);

/* After the last one, tensors in it are refused. LAIKA_ERR_BUSY while a request uses it. */
laika_status_t laika_shm_unmap(laika_shm_t shm);

/* Gives the memory back, mapped or not. LAIKA_ERR_BUSY while a request uses it. (Without it, only laika_finalize would.) */
laika_status_t laika_shm_free(laika_shm_t shm);

/* ---- models ------------------------------------------------------------------------------------------------------- */

typedef struct laika_spec {
    char name[LAIKA_MAX_NAME];
    int32_t dtype;                  /* a laika_dtype_t; LAIKA_DTYPE_NONE: any */
    int32_t ndim;                   /* -1: any */
    int64_t shape[LAIKA_MAX_DIMS];  /* -1: any extent */
    uint32_t optional;              /* 1: an input whose data may be NULL */
} laika_spec_t;

/* source: the name of a loaded model; a path of a model file ("./net.onnx": whatever has a '/' or ends like a model file);
 * "builtin:identity", "builtin:sum"; "package.module:function" (own host only). A file is loaded once for all processes that
 * load the same bytes. Without LAIKA_MODEL_PERSISTENT what a load brought is unloaded when the last process that loaded it so
 * has unloaded it or is gone; models that were loaded by others (`teal load`) stay. */
laika_status_t laika_model_load(const char *source, unsigned flags, laika_model_t *model);

/* The same with options. pool: whose workers run it. A model that is loaded under this name in another pool is LAIKA_ERR_INVALID; files,
 * builtins and functions have a name of their own in each pool that is named. Without: the pool that the name is in, else laika_init's. */
laika_status_t laika_model_load_with(const char *source, unsigned flags, const laika_options_t *options, laika_model_t *model);

/* The handle ends; calls in flight finish first. */
laika_status_t laika_model_unload(laika_model_t model);

/* Signatures, so that a program need not guess shapes. Fills at most `capacity` entries; `count` is how many there are. */
laika_status_t laika_model_inputs(laika_model_t model, laika_spec_t *specs, size_t capacity, size_t *count);
laika_status_t laika_model_outputs(laika_model_t model, laika_spec_t *specs, size_t capacity, size_t *count);

/* ---- calls -------------------------------------------------------------------------------------------------------- */

/* Runs the model on the inputs, in its order, and returns when the outputs are written. The dtype and shape of an output say
 * how large its memory is; where the model makes another shape that fits, they are updated to what it made. The shape of an
 * output of strings says for how many its array has room; each call makes new memory for their bytes. */
laika_status_t laika_infer(laika_model_t model, const laika_tensor_t *inputs, size_t n_inputs, laika_tensor_t *outputs, size_t n_outputs);

/* The same without waiting. Inputs that are copied are copied now. The array `outputs` and its memory must stay until laika_wait
 * has said anything but LAIKA_ERR_TIMEOUT, inputs in shared memory must stay unchanged. */
laika_status_t laika_infer_async(laika_model_t model, const laika_tensor_t *inputs, size_t n_inputs, laika_tensor_t *outputs, size_t n_outputs,
                                 laika_call_t *call);

/* Waits at most timeout_ns nanoseconds (negative: as long as it takes; 0: only looks). LAIKA_ERR_TIMEOUT: the call goes on, wait
 * again. Anything else: the call has ended, its handle too. Two threads must not wait for one call (LAIKA_ERR_BUSY). */
laika_status_t laika_wait(laika_call_t call, int64_t timeout_ns);

/* Ends a call that nobody wants to wait for any more; its handle ends. Copied outputs are not touched any more. Shared memory of
 * the call may still be written by a worker that has begun: laika_shm_free says LAIKA_ERR_BUSY until it has let go. */
laika_status_t laika_cancel(laika_call_t call);

/* Events: what calls wait for that is no call. One comes once. Signalling costs one store, and a syscall only where somebody sleeps.
 * Not among the reference's functions: calls that wait for others on the host's side need something to wait for. */
laika_status_t laika_event_create(laika_event_t *event);

/* It has come: calls that wait for it may run. Once more is no error and does nothing. */
laika_status_t laika_event_signal(laika_event_t event);

/* As laika_wait. LAIKA_OK: it has come. */
laika_status_t laika_event_wait(laika_event_t event, int64_t timeout_ns);

/* Its handle ends. One that has not come will not come: calls that wait for it end with LAIKA_ERR_CANCELLED. */
laika_status_t laika_event_destroy(laika_event_t event);

/* laika_infer_async that begins only once all `n_after` events (at most 7) have come. */
laika_status_t laika_infer_after(laika_model_t model, const laika_tensor_t *inputs, size_t n_inputs, laika_tensor_t *outputs, size_t n_outputs,
                                 const laika_event_t *after, size_t n_after, laika_call_t *call);

/* The same, and only once all `n_calls` calls have ended well; ends with LAIKA_ERR_CANCELLED when one did otherwise. Of this process and
 * the model's pool, begun and not yet waited for to the end; at most 7 events and calls. Inputs that are copied are copied now, so
 * what a call makes for the next one has to lie in shared memory. */
laika_status_t laika_infer_after_all(laika_model_t model, const laika_tensor_t *inputs, size_t n_inputs, laika_tensor_t *outputs, size_t n_outputs,
                                     const laika_event_t *events, size_t n_events, const laika_call_t *calls, size_t n_calls, laika_call_t *call);

/* Gives back the strings that a call put into an output, and empties its elements; with the tensor as the call left it, at any time.
 * What no call put there, or was given back, is refused. */
laika_status_t laika_bytes_free(laika_tensor_t *tensor);

/* ---- what happened ------------------------------------------------------------------------------------------------ */

/* What a code means. Never NULL, never freed, for any number. */
const char *laika_strerror(int status);

/* What was wrong in this thread's last failed call, "" before the first. Valid until the next call of this thread. */
const char *laika_last_error(void);

typedef struct {
    uint64_t calls;         /* submitted */
    uint64_t failed;        /* ended otherwise than LAIKA_OK */
    uint64_t prepared;      /* calls with places or shapes not seen lately */
    uint64_t copies_in;     /* input tensors that were not in shared memory */
    uint64_t bytes_in;
    uint64_t copies_out;
    uint64_t bytes_out;
    uint64_t shm_bytes;     /* shared memory that this process has from the host now */
} laika_statistics_t;

/* Since laika_init. size: sizeof(laika_statistics_t), so that the struct may grow. */
laika_status_t laika_statistics(laika_statistics_t *statistics, size_t size);

/* The library's LAIKA_VERSION. */
uint32_t laika_version(void);

#ifdef __cplusplus
}
#endif

#endif
