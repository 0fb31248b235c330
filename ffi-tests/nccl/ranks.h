/*
 * Helpers for the tests of groups on devices: ranks as threads, each with a device and device
 * memory. The devices are stubs or real ones; has_stubs() tells which, for checks that need a
 * stub.
 */
#ifndef RANKS_H
#define RANKS_H

#include "../c/check.h"
#include "../stubs/stub_cuda.h"
#include "../stubs/stub_nccl.h"

#define MAX_RANKS 4

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
    /* The GPU of the rank's thread, and the device in the group's options (-1 for none). If
     * there are too few GPUs, several ranks share one. */
    int gpu;
    int device;
    int64_t timeout_ms;
    dist_store_t *store;
    CUcontext context;
    CUstream stream;
    dist_group_t *group;
    void (*body)(struct rank *self);
};

/* Runs a body on `size` ranks (at most DIST_TEST_MOST_RANKS) in a group, which is created before
 * and released afterwards. */
void run_on_ranks(int size, const char *backend, void (*body)(struct rank *self));

/* As run_on_ranks, with options of the back end. If the options end in "host_id=", each pair of
 * ranks has its own host. */
void run_on_ranks_with_options(int size, const char *backend, const char *backend_options,
                               void (*body)(struct rank *self));

/* As run_on_ranks, without a group: the body creates one if needed. `change` may first change the
 * fields of a rank. */
void run_on_bare_ranks(int size, const char *backend, void (*change)(struct rank *self),
                       void (*body)(struct rank *self));

/* Runs a body on this process, which is one rank of a launcher's job; its world group uses this
 * back end. */
void run_in_job(const char *backend, const char *backend_options, void (*body)(struct rank *self));

/* Joins the world of a job of processes with a GPU of its own, if there are enough. Returns the
 * number of the GPU. */
int join_device_world(int rank, const char *backend);

/* Creates a rank's group. */
dist_status_t make_group(struct rank *self, const char *name, dist_group_t **group);

/* Allocates memory on the calling thread's device with this content; NULL for garbage. */
void *device_memory(size_t bytes, const void *content);
void free_device(void *pointer);

/* Copies between host memory and device memory. */
void write_device(struct rank *self, void *into, const void *from, size_t bytes);
void read_device(struct rank *self, void *into, const void *from, size_t bytes);

/* Returns options for a call on the rank's own stream. */
dist_call_options_t stream_options(const struct rank *self);

/* Returns 1 if the program is linked with the stubs, else 0. */
unsigned long has_stubs(void);

/* Returns the number of NCCL group launches that the stub has counted; 0 without the stub. */
unsigned long launched_groups(void);

/* Checks that all stub resources are released and that the stubs saw no misuse. */
void check_nothing_leaked(void);

#endif
