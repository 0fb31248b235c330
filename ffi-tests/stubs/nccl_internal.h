/*
 * Shared declarations of the stub libnccl's files.
 *
 * A communicator has a `struct comm` in each rank, and a `struct region` in a file that all
 * ranks map. `nccl.lock` guards the local state, and threads wait on `nccl.changed`. The region
 * contains only atomics, and a bell that rings at every change.
 */
#ifndef NCCL_INTERNAL_H
#define NCCL_INTERNAL_H

#include "stub_common.h"
#include <pthread.h>
#include <stdatomic.h>

#pragma GCC visibility push(default)
#include "stub_cuda.h"
#include "stub_nccl.h"
#pragma GCC visibility pop

/* The emulated version; DIST_STUB_NCCL_VERSION changes it. A stub that is built with an old
 * version lacks the functions that the old version lacked. */
#ifndef STUB_NCCL_VERSION
#define STUB_NCCL_VERSION 23007
#endif

#define MAX_RANKS 16
#define PATH_BYTES 112
/* The bytes that a rank publishes at a time in a collective, and that one rank sends to another
 * at a time. */
#define CHUNK_BYTES ((size_t)256 << 10)
#define MESSAGE_BYTES ((size_t)64 << 10)

enum { HANDLE_COMM = 1, HANDLE_REGISTRATION = 2, HANDLE_WINDOW = 3 };

/* Steps of calls on the host and steps of operations on the device have separate counters. */
enum step_kind { STEP_HOST, STEP_DEVICE, N_STEP_KINDS };

enum kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECEIVE };

/* The arguments of a collective that all ranks must agree on. */
struct call {
    int32_t kind;
    int32_t type;
    int32_t op;
    int32_t root;
    uint64_t count;
};

/* The data that a rank publishes in a call on the host. */
struct host_data {
    int32_t color;
    int32_t key;
    uint64_t bytes;
    char path[PATH_BYTES];
};

struct rank_slot {
    _Atomic uint32_t is_taken;
    /* Set when the rank has called a collective; the ranks connect for the first one. */
    _Atomic uint32_t is_connected;
    int32_t version;
    int32_t device;
    CUuuid uuid;
    /* Step n is posted when the rank has published its data, and taken when the rank has read
     * its peers' data. */
    _Atomic uint64_t posted[N_STEP_KINDS];
    _Atomic uint64_t taken[N_STEP_KINDS];
    struct call call;
    struct host_data host_data;
};

/* A channel from one rank to another; it is full if it was filled once more than drained. */
struct channel {
    _Atomic uint64_t filled;
    _Atomic uint64_t drained;
    uint64_t count;
    int32_t type;
};

struct region {
    _Atomic uint32_t doorbell;
    uint32_t nranks;
    struct rank_slot rank_slots[MAX_RANKS];
    struct channel channels[MAX_RANKS * MAX_RANKS];
};

struct comm {
    ncclComm_t handle;
    char path[PATH_BYTES];
    int rank;
    int nranks;
    int device;
    CUcontext context;
    int is_blocking;
    int is_child;
    int is_finalized;
    struct region *_Atomic region;
    uint64_t step[N_STEP_KINDS];
    /* A value of `enum over`. */
    _Atomic int wait_state;
    /* The parent communicator while it creates this one; its abort also ends the waits of this
     * one. */
    _Atomic(struct comm *) parent;
    /* ncclInProgress, ncclSuccess, or the error. */
    _Atomic int state;
    /* The thread inside a call; 0 if there is none. */
    _Atomic uintptr_t caller;
    /* nccl.lock guards these fields: */
    int references;
    struct group *group;
    unsigned long plans_launched;
    unsigned long plans_finished;
    int shrinks;
    int registrations;
    int windows;
    int has_thread;
    pthread_t thread;
    /* Set while its operations are about to be launched, possibly on a thread of another
     * communicator. */
    int is_launching;
    struct comm *next;
    /* The number of collective calls, and the thread of the last one. */
    unsigned long collectives;
    unsigned long last_caller;
    /* Only the stream's thread uses this field, one plan after another: */
    long operations;
};

struct operation {
    struct operation *next;
    enum kind kind;
    const void *send;
    void *receive;
    size_t count;
    ncclDataType_t type;
    /* ncclSum to ncclAvg, or ncclNumOps for an operator with a factor. */
    ncclRedOp_t op;
    /* The factor, or its address on the device. */
    unsigned char factor[8];
    const void *factor_on_device;
    int root;
};

/* The operations of one communicator in one group. */
#define MAX_STREAMS 8
struct plan {
    struct plan *next;
    struct comm *comm;
    /* The stream of the operations. It waits for the other streams, and they wait for it. */
    CUstream stream;
    CUstream others[MAX_STREAMS];
    int n_others;
    struct operation *first;
    struct operation *last;
    unsigned long ticket;
};

/* Whether waits continue, or end because of a shrink or an abort of the communicator. */
enum wait_state { WAIT_CONTINUES, WAIT_SHRUNK, WAIT_ABORTED };

/* A part of a call that needs the other ranks or may run in the background. */
struct job {
    struct job *next;
    ncclResult_t (*run)(struct job *job);
    struct comm *comm;
    /* The communicator that the job creates, if any, and the output for its handle. */
    struct comm *child;
    ncclComm_t *out;
    struct plan *plan;
    int color;
    int key;
    void *buffer;
    size_t bytes;
    int flags;
    ncclWindow_t *window;
    ncclResult_t result;
    pthread_t thread;
};

extern struct nccl {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* All communicators of this process. */
    struct comm *first;
} nccl;

/* nccl_faults.c: versions, errors, and faults on request. */
int stub_version(void);
__attribute__((format(printf, 2, 3))) ncclResult_t fail(ncclResult_t error, const char *format, ...);
/* As `fail`, for misuse, which is logged and counted. */
__attribute__((format(printf, 2, 3))) ncclResult_t refuse_call(ncclResult_t error, const char *format, ...);
#define NEEDS(version) \
    do { \
        if (stub_version() < (version)) { \
            return refuse_call(ncclInvalidUsage, "%s is newer than version %d", __func__, stub_version()); \
        } \
    } while (0)
/* Returns the requested error for this call, or ncclSuccess. Every call that may fail checks it,
 * except calls that end or query a communicator. */
ncclResult_t requested_failure(const char *function);
/* Returns the requested fault of an operation, and counts the operation. */
enum fault { FAULT_NONE, FAULT_ERROR, FAULT_STALL };
enum fault next_fault(struct comm *comm, ncclResult_t *error);
int is_stalled_at_meeting(int rank);
void slow_down(void);
int has_hang_on_mismatch(void);

/* nccl_meet.c: the region of a communicator. */
ncclResult_t meet_new_path(char *path);
ncclResult_t meet_open(struct comm *comm);
void meet_remove(const char *path);
void meet_close(struct comm *comm);
void meet_notify(struct comm *comm);
int meet_is_over(struct comm *comm);
/* Sleeps until the bell has rung since `seen`, at most for REST_NS. */
uint32_t meet_doorbell(struct comm *comm);
void meet_sleep(struct comm *comm, uint32_t seen);
/* The parts of a step: after `begin` this rank may write its data, after `post` all ranks have
 * posted, after `end` they may write again. The functions return nonzero for success, and 0 if
 * the communicator was aborted. */
int meet_begin(struct comm *comm, enum step_kind step_kind);
int meet_post(struct comm *comm, enum step_kind step_kind);
/* Marks this rank as connected; waits until all ranks are, or the communicator is aborted. */
void meet_connect(struct comm *comm);
void meet_await_connected(struct comm *comm);
void meet_end(struct comm *comm, enum step_kind step_kind);
char *meet_chunk(struct comm *comm, int rank);
struct channel *meet_channel(struct comm *comm, int from, int to);
char *meet_message(struct comm *comm, int from, int to);
/* Waits until the communicator is aborted. */
void meet_hang(struct comm *comm);

/* nccl_comm.c: the life of communicators. */
/* Returns the communicator of a handle with a reference; for an invalid handle reports misuse
 * and returns NULL. */
struct comm *comm_ref(ncclComm_t handle, const char *function);
ncclResult_t comm_unref(struct comm *comm, ncclResult_t result);
/* As comm_ref, for calls that only one thread at a time may make, on a communicator that is
 * ready. */
ncclResult_t comm_claim(ncclComm_t handle, const char *function, struct comm **comm);
ncclResult_t comm_release(struct comm *comm, ncclResult_t result);
struct comm *comm_new(int rank, int nranks, int device, CUcontext context, int is_blocking);
void comm_discard(struct comm *comm);
void comm_join_thread(struct comm *comm);
/* Ends all waits on a communicator. */
void comm_interrupt(struct comm *comm, enum wait_state state);
/* Returns true if all its operations are done. */
int comm_is_idle(struct comm *comm);
/* Records an asynchronous error unless there is one already. */
void comm_fail(struct comm *comm, ncclResult_t error);
ncclResult_t comm_read_config(const ncclConfig_t *config, int *is_blocking);
ncclResult_t comm_meet(struct comm *comm);

/* nccl_group.c */
/* Returns true if the calling thread has an open group. */
int group_is_open(void);
ncclResult_t group_record_error(ncclResult_t result);
/* Runs a job now, in the background, or at the end of the group. */
ncclResult_t group_submit(struct job job);
ncclResult_t group_add(struct comm *comm, CUstream stream, struct operation operation);

/* nccl_jobs.c: the state of a communicator after a call; and the start and the end of jobs. */
void set_state(struct comm *comm, ncclResult_t result);
ncclResult_t finish_job(struct job *job, ncclResult_t result);
void *run_and_finish_job(void *job);
ncclResult_t start_job(struct job *job);
ncclResult_t run_jobs(struct job *first);
/* Returns the more serious one of two results. */
ncclResult_t worse_result(ncclResult_t a, ncclResult_t b);

/* nccl_memory.c */
ncclResult_t check_buffer(struct comm *comm, const char *description, const void *buffer, size_t bytes);
ncclResult_t find_factor(struct comm *comm, ncclRedOp_t op, ncclDataType_t type, struct operation *operation);

/* Removes the operators of a destroyed communicator. */
void drop_factors(ncclComm_t handle);

/* nccl_execute.c, nccl_messages.c: these functions run on the thread of a stream. */
void run_plan(void *plan);
int run_messages(struct comm *comm, struct operation *first);
void *host_alias(struct comm *comm, const void *pointer, size_t bytes);
/* Returns true if an operation may continue; else the function has failed it, or let it hang
 * until the abort. */
int start_operation(struct comm *comm);
/* Reports mismatching calls of two ranks, where NCCL would hang or mix them up. Returns after
 * the abort. */
void report_mismatch(struct comm *comm, int rank, const char *own_call, const char *peer_call);

/* nccl_types.c: arithmetic, n elements at a time. */
size_t type_size(ncclDataType_t type);
const char *type_name(int type);
void type_combine(ncclDataType_t type, ncclRedOp_t op, void *into, const void *from, size_t n);
void type_scale(ncclDataType_t type, void *into, const void *from, const void *factor, size_t n);
/* The factor for averages of floating types; integer sums are divided at the end. */
int type_average_factor(ncclDataType_t type, int nranks, unsigned char *factor);
void type_divide(ncclDataType_t type, void *into, int nranks, size_t n);

#endif
