/*
 * What the files of the stub libcuda share.
 *
 * One lock guards everything, and whoever waits does so on `cuda.changed` with it; work of streams runs
 * without it. A stream is a queue and a thread that works on it in order.
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

#define MOST_DEVICES 16

/* Kinds of handles. */
enum { HANDLE_STREAM = 1, HANDLE_EVENT = 2, HANDLE_CONTEXT = 3 };

struct device {
    int ordinal;
    /* Which of the machine's: CUDA_VISIBLE_DEVICES may say so. */
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
    /* Handles and work in streams that refer to it. */
    int references;
    unsigned long recorded;
    unsigned long completed;
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
    /* Of pinned memory that is copied from, when the copy was enqueued; 0 for other memory. */
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
    struct device devices[MOST_DEVICES];
    /* All that have a thread or a handle, destroyed ones that are not done among them. */
    struct stream *streams;
} cuda;

/* Takes the lock, unless this call may not be made (not initialised, after a fork, in a host function), or
 * is to fail. Every function begins with it, and ends with `leave`. */
CUresult enter(const char *function);
CUresult leave(CUresult result);
#define ENTER() \
    do { \
        CUresult refused = enter(__func__); \
        if (refused != CUDA_SUCCESS) { \
            return refused; \
        } \
    } while (0)

/* Counts and logs misuse, and gives the error back. */
__attribute__((format(printf, 2, 3))) CUresult refuse(CUresult error, const char *format, ...);

/* The device of the thread's context; NULL where there is none, or it is gone. */
struct device *current_device(CUresult *error);

/* The stream of a handle, NULL and the legacy handle among them. */
struct stream *find_stream(CUstream handle, CUresult *error);

/* Waits until everything enqueued on a device so far is done. */
void drain_device(struct device *device);

/* Leaves a piece of work on a stream; takes it over. */
void enqueue(struct stream *stream, struct work work);

/* Waits until all that is on the stream now is done. */
CUresult drain_stream(struct stream *stream);

/* Where the processor reads or writes what a pointer says, device memory or host memory. NULL where it is
 * device memory that it does not have. */
void *reach(CUdeviceptr pointer, size_t bytes);

enum place { PLACE_UNKNOWN, PLACE_DEVICE, PLACE_PINNED };
enum place place_of(CUdeviceptr pointer, size_t bytes);

/* Whether any allocation of a device is left, and how many in all. */
void count_memory(struct dist_stub_cuda_counts *counts);
int has_memory(const struct device *device);

/* This thread runs a host function. */
extern _Thread_local int is_in_host_function;

/* A release of the last context of a device: the stream NULL goes with it. */
void end_default_stream(struct device *device);

#endif
