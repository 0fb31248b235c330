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

void *alias(struct comm *comm, const void *pointer, size_t bytes)
{
    void *found = dist_stub_cuda_alias(pointer, bytes);
    if (found == NULL) {
        comm_fail(comm, refuse(ncclUnhandledCudaError, "memory was freed before an operation with it was done"));
    }
    return found;
}

int begin_operation(struct comm *comm)
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

void differ(struct comm *comm, int rank, const char *mine, const char *theirs)
{
    ncclResult_t error =
        refuse(ncclInvalidUsage, "rank %d does %s where rank %d does %s", comm->rank, mine, rank, theirs);
    if (!mismatch_hangs()) {
        comm_fail(comm, error);
    }
    meet_hang(comm);
}

static void describe(const struct call *call, char *text, size_t bytes)
{
    int is_known = call->kind >= 0 && call->kind <= RECEIVE;
    snprintf(text, bytes, "%s of %llu %s (operation %d, root %d)", is_known ? names[call->kind] : "something",
             (unsigned long long)call->count, type_name(call->type), call->op, call->root);
}

/* Checks that all ranks make the same call. */
static int agree(struct comm *comm)
{
    struct call mine = comm->region->seats[comm->rank].call;
    for (int rank = 0; rank < comm->nranks; rank++) {
        struct call theirs = comm->region->seats[rank].call;
        if (memcmp(&mine, &theirs, sizeof mine) != 0) {
            char a[128], b[128];
            describe(&mine, a, sizeof a);
            describe(&theirs, b, sizeof b);
            differ(comm, rank, a, b);
            return 0;
        }
    }
    return 1;
}

/* Returns the number of blocks that each rank publishes. */
static size_t blocks_of(const struct comm *comm, const struct operation *it)
{
    return it->kind == REDUCE_SCATTER ? (size_t)comm->nranks : 1;
}

/* Returns the number of elements of a block that are published at a time. */
static size_t room_of(const struct comm *comm, const struct operation *it)
{
    return CHUNK_BYTES / blocks_of(comm, it) / type_size(it->type);
}

/* Copies elements, and scales them if the operation has a factor. */
static int copy(struct comm *comm, const struct operation *it, void *into, const void *from, size_t n)
{
    unsigned char factor[8];
    int has_factor = it->op == ncclNumOps || (it->op == ncclAvg && type_average_factor(it->type, comm->nranks, factor));
    if (it->op == ncclNumOps && it->factor_on_device == NULL) {
        memcpy(factor, it->factor, sizeof factor);
    } else if (it->op == ncclNumOps) {
        const void *value = alias(comm, it->factor_on_device, type_size(it->type));
        if (value == NULL) {
            return 0;
        }
        memcpy(factor, value, type_size(it->type));
    }
    if (has_factor) {
        type_scale(it->type, into, from, factor, n);
    } else {
        memcpy(into, from, n * type_size(it->type));
    }
    return 1;
}

/* Publishes elements from `offset` on. */
static int lay_out(struct comm *comm, const struct operation *it, size_t offset, size_t n)
{
    size_t size = type_size(it->type);
    size_t room = room_of(comm, it) * size;
    if (it->kind == BROADCAST && comm->rank != it->root) {
        return 1;
    }
    char *chunk = meet_chunk(comm, comm->rank);
    for (size_t block = 0; block < blocks_of(comm, it); block++) {
        const char *from = (const char *)it->send + (block * it->count + offset) * size;
        const void *source = alias(comm, from, n * size);
        if (source == NULL || !copy(comm, it, chunk + block * room, source, n)) {
            return 0;
        }
    }
    return 1;
}

/* Reduces the published elements of all ranks. */
static int reduce(struct comm *comm, const struct operation *it, size_t offset, size_t n)
{
    size_t size = type_size(it->type);
    size_t start = it->kind == REDUCE_SCATTER ? (size_t)comm->rank * room_of(comm, it) * size : 0;
    void *into = alias(comm, (char *)it->receive + offset * size, n * size);
    if (into == NULL) {
        return 0;
    }
    memcpy(into, meet_chunk(comm, 0) + start, n * size);
    for (int rank = 1; rank < comm->nranks; rank++) {
        type_combine(it->type, it->op, into, meet_chunk(comm, rank) + start, n);
    }
    unsigned char unused[8];
    if (it->op == ncclAvg && !type_average_factor(it->type, comm->nranks, unused)) {
        type_divide(it->type, into, comm->nranks, n);
    }
    return 1;
}

/* Copies the published elements of one rank to their position. */
static int fetch(struct comm *comm, const struct operation *it, int rank, size_t offset, size_t n)
{
    size_t size = type_size(it->type);
    size_t place = it->kind == ALL_GATHER ? (size_t)rank * it->count : 0;
    void *into = alias(comm, (char *)it->receive + (place + offset) * size, n * size);
    if (into != NULL) {
        memcpy(into, meet_chunk(comm, rank), n * size);
    }
    return into != NULL;
}

static int take(struct comm *comm, const struct operation *it, size_t offset, size_t n)
{
    int is_done = 1;
    switch (it->kind) {
    case ALL_GATHER:
        for (int rank = 0; rank < comm->nranks; rank++) {
            is_done &= fetch(comm, it, rank, offset, n);
        }
        return is_done;
    case BROADCAST:
        return fetch(comm, it, it->root, offset, n);
    case REDUCE:
        return comm->rank != it->root || reduce(comm, it, offset, n);
    default:
        return reduce(comm, it, offset, n);
    }
}

static int run_collective(struct comm *comm, const struct operation *it)
{
    size_t room = room_of(comm, it);
    if (!begin_operation(comm)) {
        return 0;
    }
    for (size_t offset = 0; offset < it->count; offset += room) {
        size_t n = it->count - offset < room ? it->count - offset : room;
        if (!meet_begin(comm, LANE_DEVICE)) {
            return 0;
        }
        if (offset == 0) {
            comm->region->seats[comm->rank].call = (struct call){
                .kind = it->kind, .type = (int)it->type, .op = (int)it->op, .root = it->root, .count = it->count };
        }
        int is_there = lay_out(comm, it, offset, n);
        if (!is_there || !meet_post(comm, LANE_DEVICE) || (offset == 0 && !agree(comm)) || !take(comm, it, offset, n)) {
            meet_hang(comm);
            return 0;
        }
        meet_end(comm, LANE_DEVICE);
    }
    return 1;
}

/* Waits for the plan's turn on the communicator. */
static int await_turn(const struct plan *plan)
{
    struct comm *comm = plan->comm;
    pthread_mutex_lock(&nccl.lock);
    while (comm->plans_done != plan->ticket && !meet_is_over(comm)) {
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
    for (const struct operation *it = plan->first; it != NULL; it = it->next) {
        if (it->kind != SEND && it->kind != RECEIVE && !run_collective(plan->comm, it)) {
            return;
        }
    }
    run_messages(plan->comm, plan->first);
}
