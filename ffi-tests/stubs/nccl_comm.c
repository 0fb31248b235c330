/*
 * Communicators of the stub libnccl: creation from a unique id, finalize, destroy and abort.
 *
 * A communicator lives as long as it has a handle, a call on it is in progress, or an operation
 * of it is in a stream. Destroy or abort ends its handle, which is never valid again.
 */
#include "nccl_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ID_MARK "dist stub "

struct nccl nccl = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL };

/* The folders of ids that this process made, until ranks meet there. */
#define MAX_PATHS 1024
static struct {
    pid_t process;
    char paths[MAX_PATHS][PATH_BYTES];
    unsigned n_made;
} ids;

__attribute__((destructor)) static void remove_folders(void)
{
    /* Meetings that took place have removed their folders; in the other folders no rank will
     * answer. */
    for (unsigned i = 0; i < MAX_PATHS && ids.process == getpid(); i++) {
        if (ids.paths[i][0] != '\0') {
            meet_remove(ids.paths[i]);
        }
    }
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    if (id == NULL) {
        return refuse_call(ncclInvalidArgument, "ncclGetUniqueId(NULL)");
    }
    char path[PATH_BYTES];
    ncclResult_t result = requested_failure(__func__);
    result = result == ncclSuccess ? meet_new_path(path) : result;
    if (result == ncclSuccess) {
        memset(id, 0, sizeof *id);
        snprintf(id->internal, sizeof id->internal, ID_MARK "%s", path);
        pthread_mutex_lock(&nccl.lock);
        ids.process = getpid();
        memcpy(ids.paths[ids.n_made++ % MAX_PATHS], path, PATH_BYTES);
        pthread_mutex_unlock(&nccl.lock);
    }
    return result;
}

struct comm *comm_new(int rank, int nranks, int device, CUcontext context, int is_blocking)
{
    struct comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL) {
        abort();
    }
    comm->rank = rank;
    comm->nranks = nranks;
    comm->device = device;
    comm->context = context;
    comm->is_blocking = is_blocking;
    comm->references = 1;
    atomic_store(&comm->state, ncclInProgress);
    comm->handle = stub_handle_new(HANDLE_COMM, comm);
    pthread_mutex_lock(&nccl.lock);
    comm->next = nccl.first;
    nccl.first = comm;
    pthread_mutex_unlock(&nccl.lock);
    return comm;
}

ncclResult_t comm_unref(struct comm *comm, ncclResult_t result)
{
    pthread_mutex_lock(&nccl.lock);
    int is_last = --comm->references == 0;
    struct comm **memory_place = &nccl.first;
    while (is_last && *memory_place != comm) {
        memory_place = &(*memory_place)->next;
    }
    if (is_last) {
        *memory_place = comm->next;
    }
    pthread_mutex_unlock(&nccl.lock);
    if (is_last) {
        drop_factors(comm->handle);
        meet_close(comm);
        free(comm);
    }
    return result;
}

static struct comm *ref_comm(ncclComm_t handle, int removes_handle)
{
    pthread_mutex_lock(&nccl.lock);
    struct comm *comm = removes_handle ? stub_handle_take(HANDLE_COMM, handle) : stub_handle_find(HANDLE_COMM, handle);
    /* If the handle is taken, its reference passes to the caller. */
    if (comm != NULL && !removes_handle) {
        comm->references++;
    }
    pthread_mutex_unlock(&nccl.lock);
    return comm;
}

struct comm *comm_ref(ncclComm_t handle, const char *function)
{
    struct comm *comm = ref_comm(handle, 0);
    if (comm == NULL) {
        refuse_call(ncclInvalidArgument, "%s on %s", function,
                    handle == NULL ? "no communicator" : "what is no communicator, or was destroyed or aborted");
    }
    return comm;
}

ncclResult_t comm_claim(ncclComm_t handle, const char *function, struct comm **out)
{
    struct comm *comm = comm_ref(handle, function);
    if (comm == NULL) {
        return ncclInvalidArgument;
    }
    uintptr_t nobody = 0;
    if (!atomic_compare_exchange_strong(&comm->caller, &nobody, (uintptr_t)pthread_self())) {
        return comm_unref(comm, refuse_call(ncclInvalidUsage, "%s while another thread is inside a call on it",
                                            function));
    }
    ncclResult_t state = (ncclResult_t)atomic_load(&comm->state);
    if (atomic_load(&comm->wait_state) != WAIT_CONTINUES) {
        state = refuse_call(ncclInvalidUsage, "%s on a communicator whose operations were ended", function);
    } else if (state == ncclInProgress) {
        state = refuse_call(ncclInvalidArgument, "%s before the call before it is done", function);
    } else if (state != ncclSuccess) {
        fail(state, "%s on a communicator that has failed", function);
    } else {
        state = requested_failure(function);
    }
    if (state != ncclSuccess) {
        return comm_release(comm, state);
    }
    stub_sleep_us(stub_env_number("DIST_STUB_NCCL_CALL_US", 0));
    *out = comm;
    return ncclSuccess;
}

ncclResult_t comm_release(struct comm *comm, ncclResult_t result)
{
    atomic_store(&comm->caller, 0);
    return comm_unref(comm, result);
}

void comm_join_thread(struct comm *comm)
{
    pthread_mutex_lock(&nccl.lock);
    while (comm->is_launching) {
        pthread_cond_wait(&nccl.changed, &nccl.lock);
    }
    int has_thread = comm->has_thread;
    comm->has_thread = 0;
    pthread_mutex_unlock(&nccl.lock);
    if (has_thread) {
        pthread_join(comm->thread, NULL);
    }
}

void comm_interrupt(struct comm *comm, enum wait_state state)
{
    pthread_mutex_lock(&nccl.lock);
    atomic_store(&comm->wait_state, state);
    pthread_cond_broadcast(&nccl.changed);
    pthread_mutex_unlock(&nccl.lock);
    meet_notify(comm);
}

int comm_is_idle(struct comm *comm)
{
    pthread_mutex_lock(&nccl.lock);
    int is_idle = comm->plans_finished == comm->plans_launched;
    pthread_mutex_unlock(&nccl.lock);
    return is_idle;
}

void comm_fail(struct comm *comm, ncclResult_t error)
{
    int state = atomic_load(&comm->state);
    while ((state == ncclSuccess || state == ncclInProgress)
           && !atomic_compare_exchange_weak(&comm->state, &state, error)) {
    }
}

void comm_discard(struct comm *comm)
{
    if (ref_comm(comm->handle, 1) != NULL) {
        comm_unref(comm, ncclSuccess);
    }
}

/* The maximum size of the structure in a version. */
static size_t config_bytes(unsigned version)
{
    return version < 21700   ? 24
           : version < 22600 ? 48
           : version < 22700 ? 56
           : version < 22800 ? 72
           : version < 23000 ? 80
           : version < 23100 ? 96
                             : 120;
}

ncclResult_t comm_read_config(const ncclConfig_t *config, int *is_blocking)
{
    if (config == NULL) {
        return ncclSuccess;
    }
    if (config->magic != NCCL_API_MAGIC) {
        return refuse_call(ncclInvalidArgument, "a configuration that was not initialised");
    }
    if (config->version > (unsigned)stub_version() || config->size > config_bytes(config->version)) {
        return refuse_call(ncclInvalidArgument,
                           "a configuration of version %u and %zu bytes, which version %d does not know",
                           config->version, config->size, stub_version());
    }
    if (config->blocking != NCCL_CONFIG_UNDEF_INT) {
        if (config->blocking != 0 && config->blocking != 1) {
            return refuse_call(ncclInvalidArgument, "a configuration with blocking = %d", config->blocking);
        }
        *is_blocking = config->blocking;
    }
    return ncclSuccess;
}

static int have_all_arrived(struct comm *comm)
{
    for (int rank = 0; rank < comm->nranks; rank++) {
        if (atomic_load(&comm->region->rank_slots[rank].is_taken) == 0) {
            return 0;
        }
    }
    return 1;
}

/* Two ranks on one device, or ranks with different versions, cannot work together. */
static ncclResult_t check_ranks(struct comm *comm)
{
    const char *several = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    int may_share = stub_version() >= 23000 && several != NULL && strcmp(several, "1") == 0;
    for (int rank = 0; rank < comm->nranks; rank++) {
        struct rank_slot *rank_slot = &comm->region->rank_slots[rank];
        if (rank_slot->version != stub_version()) {
            return fail(ncclInvalidUsage, "rank %d has version %d, rank %d has version %d", rank, rank_slot->version,
                        comm->rank, stub_version());
        }
        for (int other = 0; other < rank && !may_share; other++) {
            if (memcmp(&rank_slot->uuid, &comm->region->rank_slots[other].uuid, sizeof rank_slot->uuid) == 0) {
                return fail(ncclInvalidUsage, "duplicate GPU: rank %d and rank %d are both on device %d", other, rank,
                            rank_slot->device);
            }
        }
    }
    return ncclSuccess;
}

ncclResult_t comm_meet(struct comm *comm)
{
    ncclResult_t result = ncclSuccess;
    if (!comm->is_child && is_stalled_at_meeting(comm->rank)) {
        while (!meet_is_over(comm)) {
            stub_sleep_us(1000);
        }
    } else {
        result = meet_open(comm);
    }
    while (result == ncclSuccess && !meet_is_over(comm)) {
        uint32_t seen = meet_doorbell(comm);
        if (have_all_arrived(comm)) {
            break;
        }
        meet_sleep(comm, seen);
    }
    if (result == ncclSuccess) {
        meet_remove(comm->path);
        result = meet_is_over(comm) ? fail(ncclInternalError, "aborted while the ranks met") : check_ranks(comm);
    }
    return result;
}

static ncclResult_t run_init(struct job *job)
{
    return comm_meet(job->comm);
}

static ncclResult_t init_comm(ncclComm_t *out, int nranks, const ncclUniqueId *id, int rank, const ncclConfig_t *config)
{
    int is_blocking = 1;
    ncclResult_t result = requested_failure(config == NULL ? "ncclCommInitRank" : "ncclCommInitRankConfig");
    result = result == ncclSuccess ? comm_read_config(config, &is_blocking) : result;
    if (result != ncclSuccess) {
        return result;
    }
    if (out == NULL || nranks < 1 || nranks > MAX_RANKS || rank < 0 || rank >= nranks) {
        return refuse_call(ncclInvalidArgument, "rank %d of %d; the stub has at most %d ranks", rank, nranks,
                           MAX_RANKS);
    }
    const char *path = id->internal + strlen(ID_MARK);
    size_t room = sizeof id->internal - strlen(ID_MARK);
    if (memcmp(id->internal, ID_MARK, strlen(ID_MARK)) != 0 || strnlen(path, room) >= PATH_BYTES) {
        return refuse_call(ncclInvalidArgument, "a unique id that ncclGetUniqueId did not make");
    }
    CUcontext context = NULL;
    CUdevice device;
    if (cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == NULL || cuCtxGetDevice(&device) != CUDA_SUCCESS) {
        return refuse_call(ncclUnhandledCudaError, "a communicator is made on a thread without a device");
    }
    struct comm *comm = comm_new(rank, nranks, device, context, is_blocking);
    memcpy(comm->path, path, strlen(path) + 1);
    *out = comm->handle;
    return group_submit((struct job){ .run = run_init, .comm = comm, .child = comm, .out = out });
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
    return group_record_error(init_comm(comm, nranks, &id, rank, NULL));
}

#if STUB_NCCL_VERSION >= 21400
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    NEEDS(21400);
    return group_record_error(init_comm(comm, nranks, &id, rank, config));
}
#endif

/* Waits for the operations in this rank's streams, and then for the other ranks. */
static ncclResult_t run_finalize(struct job *job)
{
    struct comm *comm = job->comm;
    pthread_mutex_lock(&nccl.lock);
    while (comm->plans_finished < comm->plans_launched && !meet_is_over(comm)) {
        pthread_cond_wait(&nccl.changed, &nccl.lock);
    }
    pthread_mutex_unlock(&nccl.lock);
    int have_all = meet_begin(comm, STEP_HOST) && meet_post(comm, STEP_HOST);
    meet_end(comm, STEP_HOST);
    return have_all ? ncclSuccess : fail(ncclInternalError, "aborted while the ranks parted");
}

#if STUB_NCCL_VERSION >= 21400
ncclResult_t ncclCommFinalize(ncclComm_t handle)
{
    NEEDS(21400);
    struct comm *comm;
    ncclResult_t result = comm_claim(handle, __func__, &comm);
    if (result != ncclSuccess) {
        return group_record_error(result);
    }
    if (comm->is_finalized || group_is_open()) {
        result = refuse_call(ncclInvalidUsage, "ncclCommFinalize %s", comm->is_finalized ? "twice" : "in a group");
    } else {
        comm->is_finalized = 1;
        result = group_submit((struct job){ .run = run_finalize, .comm = comm });
    }
    return group_record_error(comm_release(comm, result));
}
#endif

/* Removes the handle and releases its resources. */
static ncclResult_t end_comm(struct comm *comm, ncclResult_t result)
{
    if (ref_comm(comm->handle, 1) == NULL) {
        return comm_unref(comm, refuse_call(ncclInvalidArgument, "a communicator is ended on two threads"));
    }
    comm_join_thread(comm);
    if (comm->region == NULL) {
        /* No other rank will meet this one. */
        meet_remove(comm->path);
    }
    comm_unref(comm, ncclSuccess);
    return comm_unref(comm, result);
}

/* NCCL frees device memory here, which waits for all work of the device. */
static void free_memory(const struct comm *comm)
{
    CUcontext popped;
    CUdeviceptr memory = 0;
    if (cuCtxPushCurrent_v2(comm->context) == CUDA_SUCCESS) {
        if (cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS) {
            cuMemFree_v2(memory);
        }
        cuCtxPopCurrent_v2(&popped);
    }
}

ncclResult_t ncclCommDestroy(ncclComm_t handle)
{
    struct comm *comm = comm_ref(handle, __func__);
    if (comm == NULL) {
        return ncclInvalidArgument;
    }
    ncclResult_t state = (ncclResult_t)atomic_load(&comm->state);
    if (atomic_load(&comm->wait_state) != WAIT_CONTINUES) {
        return end_comm(comm, ncclSuccess);
    }
    const char *obstacle = comm->group != NULL                 ? "a group with its operations is open"
                           : atomic_load(&comm->caller) != 0 ? "another thread is inside a call on it"
                           : state == ncclInProgress           ? "the call before it is not done"
                                                               : NULL;
    if (obstacle != NULL) {
        return comm_unref(comm, refuse_call(ncclInvalidArgument, "ncclCommDestroy while %s", obstacle));
    }
    if (state != ncclSuccess) {
        comm_interrupt(comm, WAIT_ABORTED);
        return end_comm(comm,
                        refuse_call(state, "a communicator that has failed is destroyed, where it must be aborted"));
    }
    if (!comm->is_finalized) {
        struct job job = { .comm = comm };
        state = run_finalize(&job);
    }
    if (comm->registrations != 0 || comm->windows != 0) {
        refuse_call(ncclInvalidUsage, "a communicator is destroyed with %d registrations and %d windows",
                    comm->registrations, comm->windows);
    }
    free_memory(comm);
    return end_comm(comm, state);
}

ncclResult_t ncclCommAbort(ncclComm_t handle)
{
    struct comm *comm = comm_ref(handle, __func__);
    if (comm == NULL) {
        return ncclInvalidArgument;
    }
    comm_interrupt(comm, WAIT_ABORTED);
    return end_comm(comm, ncclSuccess);
}
