/*
 * What the files of the stub libnccl share.
 *
 * A communicator is, in each rank, a `struct comm`, and between the ranks a `struct region` in a file that all
 * of them map. `nccl.lock` guards what is local (who waits for that does so on `nccl.changed`); in the region
 * there are atomics only, and a bell that is rung at every change.
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

/* The version that it plays, unless DIST_STUB_NCCL_VERSION says another; one that is built with an old one lacks
 * what that lacked. */
#ifndef STUB_NCCL_VERSION
#define STUB_NCCL_VERSION 23007
#endif

#define MOST_RANKS 16
#define PATH_BYTES 112
/* What a rank hands to the others at a time, and one rank to another. */
#define CHUNK_BYTES ((size_t)256 << 10)
#define MESSAGE_BYTES ((size_t)64 << 10)

enum { HANDLE_COMM = 1, HANDLE_REGISTRATION = 2, HANDLE_WINDOW = 3 };

/* Steps of calls on the host are counted apart from those of operations on the device. */
enum lane { LANE_HOST, LANE_DEVICE, LANES };

enum kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECEIVE };

/* What all ranks must say alike about a collective. */
struct call {
    int32_t kind;
    int32_t type;
    int32_t op;
    int32_t root;
    uint64_t count;
};

/* What a rank tells the others in a call on the host. */
struct note {
    int32_t color;
    int32_t key;
    uint64_t bytes;
    char path[PATH_BYTES];
};

struct seat {
    _Atomic uint32_t is_taken;
    /* It has called a collective, for the first of which ranks connect. */
    _Atomic uint32_t is_connected;
    int32_t version;
    int32_t device;
    CUuuid uuid;
    /* Step n is posted once what the others are to read is there, and taken once this rank has read theirs. */
    _Atomic uint64_t posted[LANES];
    _Atomic uint64_t taken[LANES];
    struct call call;
    struct note note;
};

/* From one rank to another: full when there is one more filling than draining. */
struct channel {
    _Atomic uint64_t filled;
    _Atomic uint64_t drained;
    uint64_t count;
    int32_t type;
};

struct region {
    _Atomic uint32_t bell;
    uint32_t nranks;
    struct seat seats[MOST_RANKS];
    struct channel channels[MOST_RANKS * MOST_RANKS];
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
    uint64_t step[LANES];
    /* One of `enum over`. */
    _Atomic int over;
    /* Another communicator whose abort ends the waits of this one: the parent, while it makes this one. */
    _Atomic(struct comm *) parent;
    /* ncclInProgress, ncclSuccess, or how it failed. */
    _Atomic int state;
    /* The thread inside a call; 0 where none is. */
    _Atomic uintptr_t caller;
    /* With nccl.lock: */
    int references;
    struct group *group;
    unsigned long plans_launched;
    unsigned long plans_done;
    int shrinks;
    int registrations;
    int windows;
    int has_thread;
    pthread_t thread;
    /* Its operations are about to be launched, on a thread that may be another communicator's. */
    int is_launching;
    struct comm *next;
    /* How many collectives were called, and by which thread the last one. */
    unsigned long collectives;
    unsigned long last_caller;
    /* By the stream's thread, one plan after another: */
    long operations;
};

struct operation {
    struct operation *next;
    enum kind kind;
    const void *send;
    void *receive;
    size_t count;
    ncclDataType_t type;
    /* ncclSum, ... ncclAvg, or ncclNumOps for one with a factor. */
    ncclRedOp_t op;
    /* The factor's value; or where it lies on the device. */
    unsigned char factor[8];
    const void *factor_on_device;
    int root;
};

/* The operations of one communicator in one group. */
#define MOST_STREAMS 8
struct plan {
    struct plan *next;
    struct comm *comm;
    /* Where they are done; the others wait for that, and it for them. */
    CUstream stream;
    CUstream others[MOST_STREAMS];
    int n_others;
    struct operation *first;
    struct operation *last;
    unsigned long ticket;
};

/* Whether waits go on: no more, because of a shrink of the communicator; no more, because of its abort. */
enum over { OVER_NO, OVER_SHRUNK, OVER_ABORTED };

/* What a call does that needs the other ranks, or may be done behind the caller's back. */
struct job {
    struct job *next;
    ncclResult_t (*run)(struct job *job);
    struct comm *comm;
    /* The communicator that it makes, if any, and where its handle goes. */
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

/* nccl_faults.c: versions, errors, faults on request. */
int stub_version(void);
__attribute__((format(printf, 2, 3))) ncclResult_t fail(ncclResult_t error, const char *format, ...);
/* The same for misuse, which is logged and counted. */
__attribute__((format(printf, 2, 3))) ncclResult_t refuse(ncclResult_t error, const char *format, ...);
#define NEEDS(version) \
    do { \
        if (stub_version() < (version)) { \
            return refuse(ncclInvalidUsage, "%s is newer than version %d", __func__, stub_version()); \
        } \
    } while (0)
/* The error that this call is to give; ncclSuccess where it is none. Asked by every call that may fail but
 * those that end communicators or ask about them. */
ncclResult_t asked_failure(const char *function);
/* How an operation is to go wrong, which is counted by that. */
enum fault { FAULT_NONE, FAULT_ERROR, FAULT_STALL };
enum fault next_fault(struct comm *comm, ncclResult_t *error);
int stalls_at_meeting(int rank);
void slow_down(void);
int mismatch_hangs(void);

/* nccl_meet.c: the region of a communicator. */
ncclResult_t meet_new_path(char *path);
ncclResult_t meet_open(struct comm *comm);
void meet_remove(const char *path);
void meet_close(struct comm *comm);
void meet_ring(struct comm *comm);
int meet_is_over(struct comm *comm);
/* Sleeps until the bell rings that showed `seen`, for a moment at most. */
uint32_t meet_bell(struct comm *comm);
void meet_sleep(struct comm *comm, uint32_t seen);
/* A step: after `begin` this rank may write what it posts, after `post` all have posted, after `end` they may
 * write again. Nonzero is success; else the communicator was aborted. */
int meet_begin(struct comm *comm, enum lane lane);
int meet_post(struct comm *comm, enum lane lane);
/* Says that this rank connects; waits until all have, or the communicator was aborted. */
void meet_connect(struct comm *comm);
void meet_await_connected(struct comm *comm);
void meet_end(struct comm *comm, enum lane lane);
char *meet_chunk(struct comm *comm, int rank);
struct channel *meet_channel(struct comm *comm, int from, int to);
char *meet_message(struct comm *comm, int from, int to);
/* Waits until the communicator is aborted. */
void meet_hang(struct comm *comm);

/* nccl_comm.c: communicators as such. */
/* The communicator of a handle, which stays while it is held; NULL with a complaint where there is none. */
struct comm *comm_hold(ncclComm_t handle, const char *function);
ncclResult_t comm_let_go(struct comm *comm, ncclResult_t result);
/* The same for calls that one thread at a time may make, on a communicator that is ready. */
ncclResult_t comm_claim(ncclComm_t handle, const char *function, struct comm **comm);
ncclResult_t comm_release(struct comm *comm, ncclResult_t result);
struct comm *comm_new(int rank, int nranks, int device, CUcontext context, int is_blocking);
void comm_unmake(struct comm *comm);
void comm_join_thread(struct comm *comm);
/* Ends what waits on a communicator. */
void comm_interrupt(struct comm *comm, enum over why);
/* Whether its operations are all done. */
int comm_is_idle(struct comm *comm);
/* An asynchronous error, if it is the first. */
void comm_fail(struct comm *comm, ncclResult_t error);
ncclResult_t comm_read_config(const ncclConfig_t *config, int *is_blocking);
ncclResult_t comm_meet(struct comm *comm);

/* nccl_group.c */
/* Whether a group of the calling thread is open. */
int group_is_open(void);
ncclResult_t group_note(ncclResult_t result);
/* Does a job now, behind the caller's back, or at the end of the group. */
ncclResult_t group_submit(struct job job);
ncclResult_t group_add(struct comm *comm, CUstream stream, struct operation operation);

/* nccl_memory.c */
ncclResult_t check_buffer(struct comm *comm, const char *what, const void *buffer, size_t bytes);
ncclResult_t find_factor(struct comm *comm, ncclRedOp_t op, ncclDataType_t type, struct operation *operation);

/* A communicator is gone, and its operators with it. */
void forget_factors(ncclComm_t handle);

/* nccl_execute.c, nccl_messages.c: on the thread of a stream. */
void run_plan(void *plan);
int run_messages(struct comm *comm, struct operation *first);
void *alias(struct comm *comm, const void *pointer, size_t bytes);
/* Whether an operation may go on; if not, it has been made to fail, or to hang until the abort. */
int begin_operation(struct comm *comm);
/* Two ranks say different things: NCCL would hang, or mix them up. Returns after the abort. */
void differ(struct comm *comm, int rank, const char *mine, const char *theirs);

/* nccl_types.c: arithmetic, n elements at a time. */
size_t type_size(ncclDataType_t type);
const char *type_name(int type);
void type_combine(ncclDataType_t type, ncclRedOp_t op, void *into, const void *from, size_t n);
void type_scale(ncclDataType_t type, void *into, const void *from, const void *factor, size_t n);
/* The factor by which averages of floating types are made; others are divided at the end. */
int type_average_factor(ncclDataType_t type, int nranks, unsigned char *factor);
void type_divide(ncclDataType_t type, void *into, int nranks, size_t n);

#endif
