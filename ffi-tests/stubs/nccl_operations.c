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
static size_t count_blocks(const struct comm *comm, enum kind kind, int is_sent)
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

static int do_overlap(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

/* Checks both buffers: they must not overlap, except as the operation in place allows. */
static ncclResult_t check_buffers(struct comm *comm, const char *function, const struct operation *operation)
{
    size_t bytes = operation->count * type_size(operation->type);
    size_t sent = bytes * count_blocks(comm, operation->kind, 1);
    size_t received = bytes * count_blocks(comm, operation->kind, 0);
    if (operation->kind == REDUCE && comm->rank != operation->root) {
        received = 0;
    }
    if (operation->kind == BROADCAST && comm->rank != operation->root) {
        sent = 0;
    }
    ncclResult_t result = check_buffer(comm, function, operation->send, sent);
    result = result == ncclSuccess ? check_buffer(comm, function, operation->receive, received) : result;
    if (result != ncclSuccess || sent == 0 || received == 0) {
        return result;
    }
    const char *send = operation->send;
    char *receive = operation->receive;
    const char *in_place = operation->kind == ALL_GATHER ? receive + (size_t)comm->rank * bytes : receive;
    const char *sends = operation->kind == REDUCE_SCATTER ? send + (size_t)comm->rank * bytes : send;
    if (do_overlap(send, sent, receive, received) && sends != in_place) {
        return refuse_call(ncclInvalidArgument, "%s: the buffers overlap, and not as in place", function);
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
        return refuse_call(ncclUnhandledCudaError, "%s on a thread without a device", function);
    }
    if (device != comm->device) {
        return refuse_call(ncclInvalidUsage, "%s: device %d is current, and the communicator is of device %d", function,
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
        return refuse_call(ncclInvalidUsage, "%s: the stream is of another device than the communicator", function);
    }
    return ncclSuccess;
}

static ncclResult_t check_values(struct comm *comm, const char *function, struct operation *operation)
{
    int has_root = operation->kind == REDUCE || operation->kind == BROADCAST || operation->kind == SEND ||
                   operation->kind == RECEIVE;
    int is_new = operation->type >= ncclFloat8e4m3 && stub_version() < 22400;
    if (type_size(operation->type) == 0 || is_new) {
        return refuse_call(ncclInvalidArgument, "%s: version %d has no type %d", function, stub_version(),
                           (int)operation->type);
    }
    if (has_root && (operation->root < 0 || operation->root >= comm->nranks)) {
        return refuse_call(ncclInvalidArgument, "%s: there is no rank %d among %d", function, operation->root,
                           comm->nranks);
    }
    if (operation->count > (size_t)1 << 40) {
        return refuse_call(ncclInvalidArgument, "%s: %zu elements", function, operation->count);
    }
    int is_folded = operation->kind == ALL_REDUCE || operation->kind == REDUCE || operation->kind == REDUCE_SCATTER;
    if (comm->nranks == 1 && is_folded && operation->type >= ncclFloat8e4m3 && operation->op >= ncclAvg) {
        /* As in NCCL, whose kernel for one rank does not scale these types. */
        return fail(ncclInvalidArgument, "%s: one rank alone has no factor for type %d", function,
                    (int)operation->type);
    }
    if (operation->op >= ncclNumOps) {
        return find_factor(comm, operation->op, operation->type, operation);
    }
    return (int)operation->op < 0
        ? refuse_call(ncclInvalidArgument, "%s: there is no operation %d", function, (int)operation->op)
                           : ncclSuccess;
}

static ncclResult_t check_and_add(struct comm *comm, struct arguments *arguments)
{
    const char *function = arguments->function;
    struct operation *operation = &arguments->operation;
    if (comm->is_finalized) {
        return refuse_call(ncclInvalidUsage, "%s on a communicator that was finalized", function);
    }
    ncclResult_t result = check_device(comm, function);
    result = result == ncclSuccess ? check_stream(comm, function, &arguments->stream) : result;
    result = result == ncclSuccess ? check_values(comm, function, operation) : result;
    result = result == ncclSuccess ? check_buffers(comm, function, operation) : result;
    int is_message = operation->kind == SEND || operation->kind == RECEIVE;
    if (result != ncclSuccess || (operation->count == 0 && !is_message)) {
        /* As in NCCL, a collective without elements does not start. */
        return result;
    }
    return group_add(comm, arguments->stream, *operation);
}

/* Submits one call as its own group. */
static ncclResult_t submit_alone(struct arguments arguments)
{
    struct comm *comm;
    ncclResult_t result = comm_claim(arguments.comm, arguments.function, &comm);
    if (result != ncclSuccess) {
        return group_record_error(result);
    }
    if (group_is_open()) {
        return comm_release(comm, group_record_error(check_and_add(comm, &arguments)));
    }
    ncclResult_t checked = check_device(comm, arguments.function);
    ncclGroupStart();
    group_record_error(checked == ncclSuccess ? check_and_add(comm, &arguments) : checked);
    result = ncclGroupEnd();
    return comm_release(comm, result);
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    return submit_alone((struct arguments){
        __func__, comm, stream,
        { .kind = ALL_REDUCE, .send = send, .receive = receive, .count = count, .type = type, .op = op } });
}

ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
    return submit_alone((struct arguments){
        __func__, comm, stream,
        { .kind = REDUCE, .send = send, .receive = receive, .count = count, .type = type, .op = op, .root = root } });
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    return submit_alone((struct arguments){
        __func__, comm, stream,
        { .kind = BROADCAST, .send = send, .receive = receive, .count = count, .type = type, .root = root } });
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    return submit_alone((struct arguments){
        __func__, comm, stream,
        { .kind = REDUCE_SCATTER, .send = send, .receive = receive, .count = count, .type = type, .op = op } });
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    return submit_alone((struct arguments){
        __func__, comm, stream,
        { .kind = ALL_GATHER, .send = send, .receive = receive, .count = count, .type = type } });
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return submit_alone((struct arguments){
        __func__, comm, stream, { .kind = SEND, .send = send, .count = count, .type = type, .root = peer } });
}

ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return submit_alone((struct arguments){
        __func__, comm, stream, { .kind = RECEIVE, .receive = receive, .count = count, .type = type, .root = peer } });
}
