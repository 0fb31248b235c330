/*
 * Shared declarations of the stub libcuda's files.
 *
 * One lock guards all state, and threads wait on `cuda.changed` with it. The work in streams
 * runs without the lock. A stream is a queue with a thread that executes it in order.
 */
#ifndef CUDA_INTERNAL_H
#define CUDA_INTERNAL_H

#include "stub_common.h"
#include <pthread.h>
#include <stdarg.h>
#include <sys/types.h>

#pragma GCC visibility push(default)
#include "stub_cuda.h"
#pragma GCC visibility pop

#define MAX_DEVICES 16

/* Kinds of handles. */
enum { HANDLE_STREAM = 1, HANDLE_EVENT = 2, HANDLE_CONTEXT = 3 };

struct device {
    int ordinal;
    /* The number of the machine's device; CUDA_VISIBLE_DEVICES may map it. */
    int physical;
    int retained;
    CUcontext context;
    struct stream *default_stream;
    size_t memory_used;
};

struct event {
    CUevent handle;
    struct device *device;
    unsigned flags;
    /* The handles and the work in streams that refer to the event. */
    int references;
    unsigned long recorded;
    unsigned long completed;
    /* The time at which the stream reached the event, in nanoseconds. */
    unsigned long long reached_ns;
};

enum work_kind { WORK_COPY, WORK_FILL, WORK_FUNCTION, WORK_RECORD, WORK_WAIT };

struct work {
    struct work *next;
    enum work_kind kind;
    struct event *event;
    unsigned long version;
    CUhostFn function;
    void *argument;
    CUdeviceptr to;
    CUdeviceptr from;
    size_t bytes;
    /* The checksum of pinned source memory at the time of the copy call; 0 for other memory. */
    unsigned long long sum;
};

struct stream {
    CUstream handle;
    struct device *device;
    struct stream *next;
    int priority;
    int is_capturing;
    int is_destroyed;
    int has_thread;
    int has_ended;
    pthread_t thread;
    pthread_cond_t arrived;
    struct work *first;
    struct work *last;
    unsigned long enqueued;
    unsigned long finished;
    CUresult failure;
};

extern struct cuda {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pid_t process;
    _Atomic int is_initialised;
    int n_devices;
    struct device devices[MAX_DEVICES];
    /* All streams that have a thread or a handle, including destroyed streams with unfinished
     * work. */
    struct stream *streams;
} cuda;

/* Takes the lock. Returns an error if the call is forbidden here (before initialisation, after a
 * fork, in a host function) or must fail on request. Every function begins with it and ends with
 * `leave_call`. */
CUresult enter_call(const char *function);
CUresult leave_call(CUresult result);
#define ENTER() \
    do { \
        CUresult refused = enter_call(__func__); \
        if (refused != CUDA_SUCCESS) { \
            return refused; \
        } \
    } while (0)

/* Counts and logs misuse, and returns the error. */
__attribute__((format(printf, 2, 3))) CUresult refuse_call(CUresult error, const char *format, ...);

/* Returns the device of the thread's context; NULL if there is none or it was released. */
struct device *current_device(CUresult *error);

/* Returns the stream of a handle, including NULL and the legacy handle. */
struct stream *find_stream(CUstream handle, CUresult *error);

/* Waits until all work that is enqueued on a device is done. */
void drain_device(struct device *device);

/* Enqueues work on a stream, which takes ownership of it. */
void enqueue(struct stream *stream, struct work work);

/* Waits until all work that is now on the stream is done. */
CUresult drain_stream(struct stream *stream);

/* Returns the address at which the processor can access the memory, whether device or host
 * memory. Returns NULL for device memory outside of an allocation. */
void *host_address(CUdeviceptr pointer, size_t bytes);

enum memory_place { PLACE_UNKNOWN, PLACE_DEVICE, PLACE_PINNED };
enum memory_place memory_place_of(CUdeviceptr pointer, size_t bytes);

/* Counts the remaining allocations: whether a device has any, and the total. */
void count_memory(struct dist_stub_cuda_counts *counts);
int has_memory(const struct device *device);

/* Set while this thread runs a host function. */
extern _Thread_local int is_in_host_function;

/* Destroys the default stream when the last context of a device is released. */
void destroy_default_stream(struct device *device);

#endif
