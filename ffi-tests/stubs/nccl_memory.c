/*
 * Memory management of the stub libnccl: its allocations, registrations, windows, and the
 * factors of operators that a caller made.
 */
#include "nccl_internal.h"

#include <stdlib.h>
#include <string.h>

struct block {
    struct block *next;
    void *start;
    size_t bytes;
};

struct registration {
    struct comm *comm;
};

struct factor {
    struct factor *next;
    ncclRedOp_t op;
    ncclComm_t comm;
    ncclDataType_t type;
    const void *on_device;
    unsigned char value[8];
};

/* nccl.lock guards these lists. */
static struct block *blocks;
static struct factor *factors;
static int n_factors_made;

ncclResult_t check_buffer(struct comm *comm, const char *description, const void *buffer, size_t bytes)
{
    int device = -1;
    if (bytes == 0) {
        return ncclSuccess;
    }
    if (buffer == NULL || dist_stub_cuda_alias(buffer, bytes) == NULL) {
        return refuse_call(ncclInvalidArgument, "%s: a buffer is not %zu bytes of device memory", description, bytes);
    }
    cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (CUdeviceptr)(uintptr_t)buffer);
    if (device != comm->device) {
        return refuse_call(ncclInvalidArgument, "%s: a buffer is on device %d, and the communicator on device %d",
                           description, device, comm->device);
    }
    return ncclSuccess;
}

#if STUB_NCCL_VERSION >= 21900

ncclResult_t ncclMemAlloc(void **pointer, size_t bytes)
{
    NEEDS(21900);
    CUdeviceptr start;
    ncclResult_t result = requested_failure(__func__);
    if (result != ncclSuccess) {
        return result;
    }
    struct block *block = malloc(sizeof *block);
    if (pointer == NULL || block == NULL || cuMemAlloc_v2(&start, bytes) != CUDA_SUCCESS) {
        free(block);
        return fail(ncclUnhandledCudaError, "ncclMemAlloc: there are no %zu bytes", bytes);
    }
    *pointer = (void *)(uintptr_t)start;
    pthread_mutex_lock(&nccl.lock);
    *block = (struct block){ blocks, *pointer, bytes };
    blocks = block;
    pthread_mutex_unlock(&nccl.lock);
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *pointer)
{
    NEEDS(21900);
    pthread_mutex_lock(&nccl.lock);
    struct block **link = &blocks;
    while (*link != NULL && (*link)->start != pointer) {
        link = &(*link)->next;
    }
    struct block *block = *link;
    if (block != NULL) {
        *link = block->next;
    }
    pthread_mutex_unlock(&nccl.lock);
    if (block == NULL) {
        return refuse_call(ncclInvalidArgument, "ncclMemFree of what ncclMemAlloc did not give, or of freed memory");
    }
    free(block);
    CUresult error = cuMemFree_v2((CUdeviceptr)(uintptr_t)pointer);
    return error == CUDA_SUCCESS ? ncclSuccess : fail(ncclUnhandledCudaError, "ncclMemFree: CUDA error %d", (int)error);
}

static int *registration_count(struct comm *comm, int kind)
{
    return kind == HANDLE_WINDOW ? &comm->windows : &comm->registrations;
}

static void *add_registration(struct comm *comm, int kind)
{
    struct registration *registration = malloc(sizeof *registration);
    if (registration == NULL) {
        abort();
    }
    registration->comm = comm;
    pthread_mutex_lock(&nccl.lock);
    ++*registration_count(comm, kind);
    pthread_mutex_unlock(&nccl.lock);
    return stub_handle_new(kind, registration);
}

static ncclResult_t remove_registration(struct comm *comm, int kind, void *handle, const char *function)
{
    struct registration *registration = stub_handle_find(kind, handle);
    if (registration == NULL || registration->comm != comm) {
        return refuse_call(ncclInvalidArgument, "%s of what is not registered with the communicator", function);
    }
    stub_handle_take(kind, handle);
    pthread_mutex_lock(&nccl.lock);
    --*registration_count(comm, kind);
    pthread_mutex_unlock(&nccl.lock);
    free(registration);
    return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm_handle, void *buffer, size_t bytes, void **handle)
{
    NEEDS(21900);
    struct comm *comm;
    ncclResult_t result = comm_claim(comm_handle, __func__, &comm);
    if (result != ncclSuccess) {
        return result;
    }
    if (handle == NULL || bytes == 0) {
        return comm_release(comm, refuse_call(ncclInvalidArgument, "ncclCommRegister of %zu bytes", bytes));
    }
    result = check_buffer(comm, __func__, buffer, bytes);
    if (result == ncclSuccess) {
        *handle = add_registration(comm, HANDLE_REGISTRATION);
    }
    return comm_release(comm, result);
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm_handle, void *handle)
{
    NEEDS(21900);
    /* A failed communicator is valid here as well. */
    struct comm *comm = comm_ref(comm_handle, __func__);
    return comm == NULL ? ncclInvalidArgument
                        : comm_unref(comm, remove_registration(comm, HANDLE_REGISTRATION, handle, __func__));
}

#endif

#if STUB_NCCL_VERSION >= 22700

static int is_own_memory(const char *buffer, size_t bytes)
{
    int is_own = 0;
    pthread_mutex_lock(&nccl.lock);
    for (const struct block *block = blocks; block != NULL; block = block->next) {
        const char *start = block->start;
        is_own |= buffer >= start && buffer < start + block->bytes && bytes <= block->bytes - (size_t)(buffer - start);
    }
    pthread_mutex_unlock(&nccl.lock);
    return is_own;
}

/* All ranks must register, and with the same size. */
static ncclResult_t run_window(struct job *job)
{
    struct comm *comm = job->comm;
    ncclResult_t result = ncclSuccess;
    if (!meet_begin(comm, STEP_HOST)) {
        return fail(ncclInternalError, "aborted while a window was registered");
    }
    comm->region->rank_slots[comm->rank].host_data = (struct host_data){ .key = job->flags, .bytes = job->bytes };
    if (!meet_post(comm, STEP_HOST)) {
        return fail(ncclInternalError, "aborted while a window was registered");
    }
    for (int rank = 0; rank < comm->nranks && result == ncclSuccess; rank++) {
        const struct host_data *host_data = &comm->region->rank_slots[rank].host_data;
        if (host_data->bytes != job->bytes || host_data->key != job->flags) {
            result = refuse_call(ncclInvalidArgument, "rank %d registers a window of %zu bytes, rank %d one of %zu",
                                 comm->rank, job->bytes, rank, (size_t)host_data->bytes);
        }
    }
    meet_end(comm, STEP_HOST);
    if (result == ncclSuccess) {
        *job->window = add_registration(comm, HANDLE_WINDOW);
    }
    return result;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t handle, void *buffer, size_t bytes, ncclWindow_t *window, int flags)
{
    NEEDS(22700);
    struct comm *comm;
    ncclResult_t result = comm_claim(handle, __func__, &comm);
    if (result != ncclSuccess) {
        return group_record_error(result);
    }
    if (window == NULL || bytes == 0 || (flags & ~NCCL_WIN_COLL_SYMMETRIC) != 0) {
        result = refuse_call(ncclInvalidArgument, "ncclCommWindowRegister of %zu bytes with flags %d", bytes, flags);
    } else if (!is_own_memory(buffer, bytes)) {
        result = refuse_call(ncclInvalidArgument, "ncclCommWindowRegister of memory that ncclMemAlloc did not give");
    } else {
        result = check_buffer(comm, __func__, buffer, bytes);
    }
    if (result == ncclSuccess) {
        *window = NULL;
        result = group_submit((struct job){
            .run = run_window, .comm = comm, .bytes = bytes, .flags = flags, .window = window });
        /* As in NCCL, only ncclCommGetAsyncError reports that the call continues in the
         * background. */
        result = result == ncclInProgress ? ncclSuccess : result;
    }
    return group_record_error(comm_release(comm, result));
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm_handle, ncclWindow_t window)
{
    NEEDS(22700);
    struct comm *comm = comm_ref(comm_handle, __func__);
    return comm == NULL ? ncclInvalidArgument
                        : comm_unref(comm, remove_registration(comm, HANDLE_WINDOW, window, __func__));
}

#endif

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t handle)
{
    struct comm *comm;
    ncclResult_t result = comm_claim(handle, __func__, &comm);
    if (result != ncclSuccess) {
        return result;
    }
    int is_device = residence == ncclScalarDevice;
    if (op == NULL || scalar == NULL || type_size(type) == 0 || (!is_device && residence != ncclScalarHostImmediate)) {
        return comm_release(comm, refuse_call(ncclInvalidArgument, "ncclRedOpCreatePreMulSum of type %d", (int)type));
    }
    result = is_device ? check_buffer(comm, __func__, scalar, type_size(type)) : ncclSuccess;
    if (result != ncclSuccess) {
        return comm_release(comm, result);
    }
    struct factor *factor = calloc(1, sizeof *factor);
    if (factor == NULL) {
        abort();
    }
    factor->comm = handle;
    factor->type = type;
    factor->on_device = is_device ? scalar : NULL;
    if (!is_device) {
        memcpy(factor->value, scalar, type_size(type));
    }
    pthread_mutex_lock(&nccl.lock);
    factor->op = (ncclRedOp_t)(ncclNumOps + n_factors_made++);
    factor->next = factors;
    factors = factor;
    *op = factor->op;
    pthread_mutex_unlock(&nccl.lock);
    return comm_release(comm, ncclSuccess);
}

/* Returns the link to the factor of an operator of this communicator; the caller holds the lock. */
static struct factor **find_factor_link(ncclComm_t comm, ncclRedOp_t op)
{
    struct factor **link = &factors;
    while (*link != NULL && ((*link)->op != op || (*link)->comm != comm)) {
        link = &(*link)->next;
    }
    return link;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t handle)
{
    struct comm *comm = comm_ref(handle, __func__);
    if (comm == NULL) {
        return ncclInvalidArgument;
    }
    pthread_mutex_lock(&nccl.lock);
    struct factor **link = find_factor_link(handle, op);
    struct factor *factor = *link;
    if (factor != NULL) {
        *link = factor->next;
    }
    pthread_mutex_unlock(&nccl.lock);
    free(factor);
    return comm_unref(comm, factor != NULL
                                ? ncclSuccess
                                : refuse_call(ncclInvalidArgument, "ncclRedOpDestroy of what is no operator of "
                                                                   "the communicator, or is gone"));
}

ncclResult_t find_factor(struct comm *comm, ncclRedOp_t op, ncclDataType_t type, struct operation *operation)
{
    pthread_mutex_lock(&nccl.lock);
    const struct factor *factor = *find_factor_link(comm->handle, op);
    int is_it = factor != NULL && factor->type == type;
    if (is_it) {
        operation->op = ncclNumOps;
        operation->factor_on_device = factor->on_device;
        memcpy(operation->factor, factor->value, sizeof operation->factor);
    }
    pthread_mutex_unlock(&nccl.lock);
    return is_it ? ncclSuccess
                 : refuse_call(ncclInvalidArgument, "an operator of another communicator or type, or one that is gone");
}

void drop_factors(ncclComm_t handle)
{
    pthread_mutex_lock(&nccl.lock);
    for (struct factor **link = &factors; *link != NULL;) {
        struct factor *factor = *link;
        if (factor->comm == handle) {
            *link = factor->next;
            free(factor);
        } else {
            link = &factor->next;
        }
    }
    pthread_mutex_unlock(&nccl.lock);
}
