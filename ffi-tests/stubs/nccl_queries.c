/* Queries of a communicator of the stub libnccl: its state and its properties. */
#include "nccl_internal.h"

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t *error)
{
    struct comm *comm = comm_ref(handle, __func__);
    if (comm == NULL || error == NULL) {
        return comm == NULL ? ncclInvalidArgument
                            : comm_unref(comm, refuse_call(ncclInvalidArgument, "ncclCommGetAsyncError(NULL)"));
    }
    uintptr_t nobody = 0;
    if (!comm->is_blocking && !atomic_compare_exchange_strong(&comm->caller, &nobody, (uintptr_t)pthread_self())) {
        /* NCCL joins its launching thread in this call and frees the thread's state; two
         * concurrent calls would do so twice. */
        return comm_unref(comm,
                          refuse_call(ncclInvalidUsage, "%s while another thread is inside a call on it", __func__));
    }
    stub_sleep_us(stub_env_number("DIST_STUB_NCCL_CALL_US", 0));
    *error = (ncclResult_t)atomic_load(&comm->state);
    return comm->is_blocking ? comm_unref(comm, ncclSuccess) : comm_release(comm, ncclSuccess);
}

/* Returns a property of a communicator after its ranks have met. */
static ncclResult_t get_property(ncclComm_t handle, const char *function, int *value,
                                 int (*property)(const struct comm *comm))
{
    struct comm *comm = comm_ref(handle, function);
    if (comm == NULL) {
        return ncclInvalidArgument;
    }
    if (value == NULL || atomic_load(&comm->state) == ncclInProgress) {
        return comm_unref(comm, refuse_call(ncclInvalidArgument, "%s %s", function,
                                            value == NULL ? "with NULL" : "before the call before it is done"));
    }
    *value = property(comm);
    return comm_unref(comm, ncclSuccess);
}

static int get_nranks(const struct comm *comm)
{
    return comm->nranks;
}

static int get_rank(const struct comm *comm)
{
    return comm->rank;
}

static int get_device(const struct comm *comm)
{
    return comm->device;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    return get_property(comm, __func__, count, get_nranks);
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    return get_property(comm, __func__, rank, get_rank);
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    return get_property(comm, __func__, device, get_device);
}
