/*
 * Calls of the stub libnccl up to their group: checks the arguments as far as possible without
 * the other ranks.
 */
#include "nccl_internal.h"

struct arguments {
    const char *function;
    ncclComm_t comm;
    CUstream stream;
    struct operation operation;
};

/* Returns the number of blocks of `count` elements that the rank sends or receives. */
static size_t blocks(const struct comm *comm, enum kind kind, int is_sent)
{
    size_t n = (size_t)comm->nranks;
    switch (kind) {
    case ALL_GATHER:
        return is_sent ? 1 : n;
    case REDUCE_SCATTER:
        return is_sent ? n : 1;
    case SEND:
        return is_sent;
    case RECEIVE:
        return !is_sent;
    default:
        return 1;
    }
}

static int overlap(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

/* Checks both buffers: they must not overlap, except as the operation in place allows. */
static ncclResult_t check_buffers(struct comm *comm, const char *function, const struct operation *it)
{
    size_t bytes = it->count * type_size(it->type);
    size_t sent = bytes * blocks(comm, it->kind, 1);
    size_t received = bytes * blocks(comm, it->kind, 0);
    if (it->kind == REDUCE && comm->rank != it->root) {
        received = 0;
    }
    if (it->kind == BROADCAST && comm->rank != it->root) {
        sent = 0;
    }
    ncclResult_t result = check_buffer(comm, function, it->send, sent);
    result = result == ncclSuccess ? check_buffer(comm, function, it->receive, received) : result;
    if (result != ncclSuccess || sent == 0 || received == 0) {
        return result;
    }
    const char *send = it->send;
    char *receive = it->receive;
    const char *in_place = it->kind == ALL_GATHER ? receive + (size_t)comm->rank * bytes : receive;
    const char *sends = it->kind == REDUCE_SCATTER ? send + (size_t)comm->rank * bytes : send;
    if (overlap(send, sent, receive, received) && sends != in_place) {
        return refuse(ncclInvalidArgument, "%s: the buffers overlap, and not as in place", function);
    }
    return ncclSuccess;
}

static ncclResult_t check_device(struct comm *comm, const char *function)
{
    CUdevice device;
    if (group_is_open()) {
        return ncclSuccess;
    }
    if (cuCtxGetDevice(&device) != CUDA_SUCCESS) {
        return refuse(ncclUnhandledCudaError, "%s on a thread without a device", function);
    }
    if (device != comm->device) {
        return refuse(ncclInvalidUsage, "%s: device %d is current, and the communicator is of device %d", function,
                      device, comm->device);
    }
    return ncclSuccess;
}

static ncclResult_t check_stream(struct comm *comm, const char *function, CUstream *stream)
{
    CUcontext context = NULL;
    if (*stream == NULL || *stream == CU_STREAM_LEGACY) {
        *stream = dist_stub_cuda_default_stream(comm->device);
    }
    if (cuStreamGetCtx(*stream, &context) != CUDA_SUCCESS) {
        return fail(ncclUnhandledCudaError, "%s: the stream is none", function);
    }
    if (context != comm->context) {
        return refuse(ncclInvalidUsage, "%s: the stream is of another device than the communicator", function);
    }
    return ncclSuccess;
}

static ncclResult_t check_values(struct comm *comm, const char *function, struct operation *it)
{
    int has_root = it->kind == REDUCE || it->kind == BROADCAST || it->kind == SEND || it->kind == RECEIVE;
    int is_new = it->type >= ncclFloat8e4m3 && stub_version() < 22400;
    if (type_size(it->type) == 0 || is_new) {
        return refuse(ncclInvalidArgument, "%s: version %d has no type %d", function, stub_version(), (int)it->type);
    }
    if (has_root && (it->root < 0 || it->root >= comm->nranks)) {
        return refuse(ncclInvalidArgument, "%s: there is no rank %d among %d", function, it->root, comm->nranks);
    }
    if (it->count > (size_t)1 << 40) {
        return refuse(ncclInvalidArgument, "%s: %zu elements", function, it->count);
    }
    int is_folded = it->kind == ALL_REDUCE || it->kind == REDUCE || it->kind == REDUCE_SCATTER;
    if (comm->nranks == 1 && is_folded && it->type >= ncclFloat8e4m3 && it->op >= ncclAvg) {
        /* As in NCCL, whose kernel for one rank does not scale these types. */
        return fail(ncclInvalidArgument, "%s: one rank alone has no factor for type %d", function, (int)it->type);
    }
    if (it->op >= ncclNumOps) {
        return find_factor(comm, it->op, it->type, it);
    }
    return (int)it->op < 0 ? refuse(ncclInvalidArgument, "%s: there is no operation %d", function, (int)it->op)
                           : ncclSuccess;
}

static ncclResult_t check_and_add(struct comm *comm, struct arguments *arguments)
{
    const char *function = arguments->function;
    struct operation *it = &arguments->operation;
    if (comm->is_finalized) {
        return refuse(ncclInvalidUsage, "%s on a communicator that was finalized", function);
    }
    ncclResult_t result = check_device(comm, function);
    result = result == ncclSuccess ? check_stream(comm, function, &arguments->stream) : result;
    result = result == ncclSuccess ? check_values(comm, function, it) : result;
    result = result == ncclSuccess ? check_buffers(comm, function, it) : result;
    int is_message = it->kind == SEND || it->kind == RECEIVE;
    if (result != ncclSuccess || (it->count == 0 && !is_message)) {
        /* As in NCCL, a collective without elements does not start. */
        return result;
    }
    return group_add(comm, arguments->stream, *it);
}

/* Submits one call as its own group. */
static ncclResult_t submit(struct arguments arguments)
{
    struct comm *comm;
    ncclResult_t result = comm_claim(arguments.comm, arguments.function, &comm);
    if (result != ncclSuccess) {
        return group_note(result);
    }
    if (group_is_open()) {
        return comm_release(comm, group_note(check_and_add(comm, &arguments)));
    }
    ncclResult_t checked = check_device(comm, arguments.function);
    ncclGroupStart();
    group_note(checked == ncclSuccess ? check_and_add(comm, &arguments) : checked);
    result = ncclGroupEnd();
    return comm_release(comm, result);
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    return submit((struct arguments){
        __func__, comm, stream,
        { .kind = ALL_REDUCE, .send = send, .receive = receive, .count = count, .type = type, .op = op } });
}

ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
    return submit((struct arguments){
        __func__, comm, stream,
        { .kind = REDUCE, .send = send, .receive = receive, .count = count, .type = type, .op = op, .root = root } });
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    return submit((struct arguments){
        __func__, comm, stream,
        { .kind = BROADCAST, .send = send, .receive = receive, .count = count, .type = type, .root = root } });
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    return submit((struct arguments){
        __func__, comm, stream,
        { .kind = REDUCE_SCATTER, .send = send, .receive = receive, .count = count, .type = type, .op = op } });
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    return submit((struct arguments){
        __func__, comm, stream,
        { .kind = ALL_GATHER, .send = send, .receive = receive, .count = count, .type = type } });
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return submit((struct arguments){
        __func__, comm, stream, { .kind = SEND, .send = send, .count = count, .type = type, .root = peer } });
}

ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return submit((struct arguments){
        __func__, comm, stream, { .kind = RECEIVE, .receive = receive, .count = count, .type = type, .root = peer } });
}
