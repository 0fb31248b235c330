/*
 * Collectives of the stub libnccl, executed on the thread of a stream. Piece by piece, each rank
 * publishes its part and reads the parts of its peers.
 *
 * The operations of a communicator run in the order of their launch, on any streams.
 */
#include "nccl_internal.h"

#include <stdio.h>
#include <string.h>

static const char *const names[] = {
    [ALL_REDUCE] = "all_reduce",   [REDUCE] = "reduce", [BROADCAST] = "broadcast", [ALL_GATHER] = "all_gather",
    [REDUCE_SCATTER] = "reduce_scatter", [SEND] = "send", [RECEIVE] = "receive",
};

void *host_alias(struct comm *comm, const void *pointer, size_t bytes)
{
    void *found = dist_stub_cuda_alias(pointer, bytes);
    if (found == NULL) {
        comm_fail(comm, refuse_call(ncclUnhandledCudaError, "memory was freed before an operation with it was done"));
    }
    return found;
}

int start_operation(struct comm *comm)
{
    ncclResult_t error = ncclInternalError;
    enum fault fault = next_fault(comm, &error);
    slow_down();
    if (fault == FAULT_NONE) {
        return 1;
    }
    if (fault == FAULT_ERROR) {
        comm_fail(comm, fail(error, "an asynchronous error was asked for on rank %d", comm->rank));
    }
    meet_hang(comm);
    return 0;
}

void report_mismatch(struct comm *comm, int rank, const char *own_call, const char *peer_call)
{
    ncclResult_t error =
        refuse_call(ncclInvalidUsage, "rank %d does %s where rank %d does %s", comm->rank, own_call, rank, peer_call);
    if (!has_hang_on_mismatch()) {
        comm_fail(comm, error);
    }
    meet_hang(comm);
}

static void describe_call(const struct call *call, char *text, size_t bytes)
{
    int is_known = call->kind >= 0 && call->kind <= RECEIVE;
    snprintf(text, bytes, "%s of %llu %s (operation %d, root %d)", is_known ? names[call->kind] : "something",
             (unsigned long long)call->count, type_name(call->type), call->op, call->root);
}

/* Checks that all ranks make the same call. */
static int check_same_call(struct comm *comm)
{
    struct call own_call = comm->region->rank_slots[comm->rank].call;
    for (int rank = 0; rank < comm->nranks; rank++) {
        struct call peer_call = comm->region->rank_slots[rank].call;
        if (memcmp(&own_call, &peer_call, sizeof own_call) != 0) {
            char a[128], b[128];
            describe_call(&own_call, a, sizeof a);
            describe_call(&peer_call, b, sizeof b);
            report_mismatch(comm, rank, a, b);
            return 0;
        }
    }
    return 1;
}

/* Returns the number of blocks that each rank publishes. */
static size_t published_blocks(const struct comm *comm, const struct operation *operation)
{
    return operation->kind == REDUCE_SCATTER ? (size_t)comm->nranks : 1;
}

/* Returns the number of elements of a block that are published at a time. */
static size_t elements_per_step(const struct comm *comm, const struct operation *operation)
{
    return CHUNK_BYTES / published_blocks(comm, operation) / type_size(operation->type);
}

/* Copies elements, and scales them if the operation has a factor. */
static int copy_elements(struct comm *comm, const struct operation *operation, void *into, const void *from, size_t n)
{
    unsigned char factor[8];
    int has_factor = operation->op == ncclNumOps || (operation->op == ncclAvg &&
                                                     type_average_factor(operation->type, comm->nranks, factor));
    if (operation->op == ncclNumOps && operation->factor_on_device == NULL) {
        memcpy(factor, operation->factor, sizeof factor);
    } else if (operation->op == ncclNumOps) {
        const void *value = host_alias(comm, operation->factor_on_device, type_size(operation->type));
        if (value == NULL) {
            return 0;
        }
        memcpy(factor, value, type_size(operation->type));
    }
    if (has_factor) {
        type_scale(operation->type, into, from, factor, n);
    } else {
        memcpy(into, from, n * type_size(operation->type));
    }
    return 1;
}

/* Publishes elements from `offset` on. */
static int publish_elements(struct comm *comm, const struct operation *operation, size_t offset, size_t n)
{
    size_t size = type_size(operation->type);
    size_t room = elements_per_step(comm, operation) * size;
    if (operation->kind == BROADCAST && comm->rank != operation->root) {
        return 1;
    }
    char *chunk = meet_chunk(comm, comm->rank);
    for (size_t block = 0; block < published_blocks(comm, operation); block++) {
        const char *from = (const char *)operation->send + (block * operation->count + offset) * size;
        const void *source = host_alias(comm, from, n * size);
        if (source == NULL || !copy_elements(comm, operation, chunk + block * room, source, n)) {
            return 0;
        }
    }
    return 1;
}

/* Reduces the published elements of all ranks. */
static int reduce_elements(struct comm *comm, const struct operation *operation, size_t offset, size_t n)
{
    size_t size = type_size(operation->type);
    size_t start = operation->kind == REDUCE_SCATTER ? (size_t)comm->rank * elements_per_step(comm, operation) * size
        : 0;
    void *into = host_alias(comm, (char *)operation->receive + offset * size, n * size);
    if (into == NULL) {
        return 0;
    }
    memcpy(into, meet_chunk(comm, 0) + start, n * size);
    for (int rank = 1; rank < comm->nranks; rank++) {
        type_combine(operation->type, operation->op, into, meet_chunk(comm, rank) + start, n);
    }
    unsigned char unused[8];
    if (operation->op == ncclAvg && !type_average_factor(operation->type, comm->nranks, unused)) {
        type_divide(operation->type, into, comm->nranks, n);
    }
    return 1;
}

/* Copies the published elements of one rank to their position. */
static int fetch_elements(struct comm *comm, const struct operation *operation, int rank, size_t offset, size_t n)
{
    size_t size = type_size(operation->type);
    size_t memory_place = operation->kind == ALL_GATHER ? (size_t)rank * operation->count : 0;
    void *into = host_alias(comm, (char *)operation->receive + (memory_place + offset) * size, n * size);
    if (into != NULL) {
        memcpy(into, meet_chunk(comm, rank), n * size);
    }
    return into != NULL;
}

static int take_elements(struct comm *comm, const struct operation *operation, size_t offset, size_t n)
{
    int is_done = 1;
    switch (operation->kind) {
    case ALL_GATHER:
        for (int rank = 0; rank < comm->nranks; rank++) {
            is_done &= fetch_elements(comm, operation, rank, offset, n);
        }
        return is_done;
    case BROADCAST:
        return fetch_elements(comm, operation, operation->root, offset, n);
    case REDUCE:
        return comm->rank != operation->root || reduce_elements(comm, operation, offset, n);
    default:
        return reduce_elements(comm, operation, offset, n);
    }
}

static int run_collective(struct comm *comm, const struct operation *operation)
{
    size_t room = elements_per_step(comm, operation);
    if (!start_operation(comm)) {
        return 0;
    }
    for (size_t offset = 0; offset < operation->count; offset += room) {
        size_t n = operation->count - offset < room ? operation->count - offset : room;
        if (!meet_begin(comm, STEP_DEVICE)) {
            return 0;
        }
        if (offset == 0) {
            comm->region->rank_slots[comm->rank].call = (struct call){
                .kind = operation->kind, .type = (int)operation->type, .op = (int)operation->op, .root =
                    operation->root, .count = operation->count };
        }
        int is_there = publish_elements(comm, operation, offset, n);
        if (!is_there || !meet_post(comm, STEP_DEVICE) || (offset == 0 && !check_same_call(comm)) ||
            !take_elements(comm, operation, offset, n)) {
            meet_hang(comm);
            return 0;
        }
        meet_end(comm, STEP_DEVICE);
    }
    return 1;
}

/* Waits for the plan's turn on the communicator. */
static int await_turn(const struct plan *plan)
{
    struct comm *comm = plan->comm;
    pthread_mutex_lock(&nccl.lock);
    while (comm->plans_finished != plan->ticket && !meet_is_over(comm)) {
        pthread_cond_wait(&nccl.changed, &nccl.lock);
    }
    pthread_mutex_unlock(&nccl.lock);
    return !meet_is_over(comm);
}

void run_plan(void *argument)
{
    struct plan *plan = argument;
    if (!await_turn(plan)) {
        return;
    }
    for (const struct operation *operation = plan->first; operation != NULL; operation = operation->next) {
        if (operation->kind != SEND && operation->kind != RECEIVE && !run_collective(plan->comm, operation)) {
            return;
        }
    }
    run_messages(plan->comm, plan->first);
}
