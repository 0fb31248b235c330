/*
 * What the tests of groups on devices share: ranks that are threads, each with a device, and memory there. The devices are those of
 * the stubs, or real ones: what only a stub can do is asked for where has_stubs() says so.
 */
#ifndef RANKS_H
#define RANKS_H

#include "../c/check.h"
#include "../stubs/stub_cuda.h"
#include "../stubs/stub_nccl.h"

#define MOST_RANKS 4

#pragma weak dist_stub_cuda_alias
#pragma weak dist_stub_cuda_capture
#pragma weak dist_stub_cuda_count
#pragma weak dist_stub_nccl
#pragma weak dist_stub_nccl_alive
#pragma weak dist_stub_nccl_groups
#pragma weak dist_stub_nccl_misuses
#pragma weak dist_stub_nccl_windows

struct rank {
    int rank;
    int size;
    const char *backend;
    const char *backend_options;
    /* The GPU of its thread, and the one that its group is told; -1 for none. Several ranks have one where there are too few. */
    int gpu;
    int device;
    int64_t timeout_ms;
    dist_store_t *store;
    CUcontext context;
    CUstream stream;
    dist_group_t *group;
    void (*body)(struct rank *self);
};

/* Runs a body on so many ranks, unless DIST_TEST_MOST_RANKS says that there are fewer, in a group that is made before and released afterwards. */
void on_ranks(int size, const char *backend, void (*body)(struct rank *self));

/* The same with options of the back end. Where these end in "host_id=", every two ranks have a host of their own. */
void on_ranks_with(int size, const char *backend, const char *backend_options, void (*body)(struct rank *self));

/* The same without a group: the body makes one, if any. `change` may change a rank's fields first. */
void on_bare_ranks(int size, const char *backend, void (*change)(struct rank *self), void (*body)(struct rank *self));

/* Runs a body on this process, which is one rank of a launcher's job: its default group is over that back end. */
void on_job(const char *backend, const char *backend_options, void (*body)(struct rank *self));

/* Makes a rank's group. */
dist_status_t make_group(struct rank *self, const char *name, dist_group_t **group);

/* Memory of the calling thread's device, with these bytes in it; NULL for garbage. */
void *device_memory(size_t bytes, const void *filled_with);
void free_device(void *pointer);

/* Writes and reads it. */
void write_device(struct rank *self, void *into, const void *from, size_t bytes);
void read_device(struct rank *self, void *into, const void *from, size_t bytes);

/* Options of a call that goes to the rank's own stream. */
dist_call_options_t on_stream(const struct rank *self);

/* Whether the program is linked with the stubs; 1 or 0. */
unsigned long has_stubs(void);

/* How many groups of operations NCCL was given, as far as anybody knows. */
unsigned long launched_groups(void);

/* Nothing is left, and nothing was misused. */
void check_nothing_left(void);

#endif
