/*
 * The collectives of the back end in backend_store.c: each rank has set its data in the store,
 * and reads its result when all ranks have done so.
 */
#include "backend_store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int needs_all_counts(int32_t kind)
{
    return kind != DIST_KIND_GATHER_V && kind != DIST_KIND_SCATTER_V && kind != DIST_KIND_ALL_TO_ALL_V;
}

static dist_status_t check_same_call(const dist_backend_operation_t *operation, int rank, const struct bytes *peer_data,
                                     dist_backend_outcome_t *outcome)
{
    struct header peer_call = read_header(peer_data);
    char text[256];
    if (peer_call.kind == operation->kind && peer_call.dtype == operation->dtype && peer_call.op == operation->op
        && peer_call.root == operation->root && (!needs_all_counts(operation->kind) ||
                                                 peer_call.count == operation->count)) {
        return DIST_OK;
    }
    snprintf(text, sizeof(text),
             "rank %d called operation %d (type %d, operator %d, root %d, count %" PRIu64
             "), and this rank %d (%d, %d, %d, %zu)",
             rank, (int)peer_call.kind, (int)peer_call.dtype, (int)peer_call.op, (int)peer_call.root,
             peer_call.count, (int)operation->kind, (int)operation->dtype, (int)operation->op, (int)operation->root,
             operation->count);
    return fail(outcome, DIST_ERR_MISMATCH, rank, text);
}

/* Returns the destination of the data from rank `from`; its length is 0 if this rank does not
 * need the data. */
static struct bytes destination_for(const dist_backend_operation_t *operation, int from)
{
    size_t element = element_size(operation->dtype), len = operation->count * element;
    struct bytes destination = { operation->recv, 0 };
    switch (operation->kind) {
    case DIST_KIND_ALL_GATHER:
    case DIST_KIND_GATHER:
    case DIST_KIND_ALL_TO_ALL:
        destination.data += operation->recv == NULL ? 0 : (size_t)from * len;
        destination.len = operation->recv == NULL ? 0 : len;
        break;
    case DIST_KIND_ALL_GATHER_V:
    case DIST_KIND_GATHER_V:
    case DIST_KIND_ALL_TO_ALL_V:
        if (operation->recv_counts != NULL && operation->recv_counts[from] > 0) {
            destination.data += operation->recv_displs[from];
            destination.len = operation->recv_counts[from] * element;
        }
        break;
    case DIST_KIND_BROADCAST:
    case DIST_KIND_SCATTER:
        destination.len = from == operation->root && operation->recv != NULL ? len : 0;
        break;
    case DIST_KIND_SCATTER_V:
        destination.len = from == operation->root ? operation->recv_count * element : 0;
        break;
    default: /* a barrier; a reduction, which has one destination for all ranks */
        break;
    }
    return destination;
}

static int needs_data_from(const dist_backend_operation_t *operation, int from, const struct communicator *comm)
{
    switch (operation->kind) {
    case DIST_KIND_GATHER:
    case DIST_KIND_GATHER_V:
        return operation->root == comm->rank;
    case DIST_KIND_BROADCAST:
        return operation->root == from && from != comm->rank;
    case DIST_KIND_SCATTER:
    case DIST_KIND_SCATTER_V:
        return operation->root == from;
    default:
        return operation->kind != DIST_KIND_BARRIER;
    }
}

/* Processes the data of one rank; the ranks come in rank order. */
static dist_status_t process_rank_data(const struct communicator *comm, const dist_backend_operation_t *operation,
                                       int from, const struct bytes *peer_data, dist_backend_outcome_t *outcome)
{
    struct bytes block = find_block(peer_data, (size_t)comm->rank), destination = destination_for(operation, from);
    char text[160];
    if (operation->op >= 0) { /* a reduction */
        size_t count = operation->kind == DIST_KIND_REDUCE_SCATTER_V ? operation->recv_count : operation->count;
        if (operation->recv == NULL || (operation->kind == DIST_KIND_SCAN && from > comm->rank)
            || (operation->kind == DIST_KIND_EXSCAN && from >= comm->rank)) {
            return DIST_OK;
        }
        destination.data = operation->recv;
        destination.len = count * element_size(operation->dtype);
        if (block.len == destination.len) {
            /* An average adds vectors that are divided already, so that no sum overflows. */
            if (operation->op == DIST_AVG) {
                scale_elements(operation->dtype, block.data, count, 1.0 / comm->size);
            }
            reduce_elements(operation->dtype, operation->op, destination.data, block.data, count, from == 0);
        }
    } else if (!needs_data_from(operation, from, comm)) {
        return DIST_OK;
    } else if (block.len == destination.len && block.len > 0) {
        memcpy(destination.data, block.data, block.len);
    }
    if (block.len == destination.len) {
        return DIST_OK;
    }
    snprintf(text, sizeof(text), "rank %d has %zu bytes for this rank, which expects %zu", from, block.len,
             destination.len);
    return fail(outcome, DIST_ERR_MISMATCH, from, text);
}

/* The last rank that has read all data removes the keys. */
static void leave_collective(const struct communicator *comm, const dist_backend_operation_t *operation)
{
    char key[KEY_BYTES];
    int64_t n_finished = 0;
    int r;
    snprintf(key, KEY_BYTES, "gone/%" PRIu64 ".%" PRIu64, operation->sequence, operation->part);
    if (comm->host->store_add(comm->host->context, key, 1, &n_finished, STORE_TIMEOUT_MS) == DIST_OK &&
        n_finished == comm->size) {
        comm->host->store_delete(comm->host->context, key, STORE_TIMEOUT_MS);
        for (r = 0; r < comm->size; r++) {
            format_call_key(key, operation, r);
            comm->host->store_delete(comm->host->context, key, STORE_TIMEOUT_MS);
        }
    }
}

dist_status_t poll_collective(struct communicator *comm, struct request *request, dist_backend_outcome_t *outcome)
{
    const dist_backend_operation_t *operation = &request->operation;
    dist_status_t status = DIST_OK;
    char key[KEY_BYTES];
    int r;
    for (; request->n_arrived < comm->size; request->n_arrived++) {
        format_call_key(key, operation, request->n_arrived);
        if (!key_exists(comm, key)) {
            return DIST_IN_PROGRESS;
        }
    }
    /* All calls are compared before any data is written. */
    for (r = 0; r < 2 * comm->size && status == DIST_OK; r++) {
        struct bytes peer_data;
        format_call_key(key, operation, r % comm->size);
        status = get_value(comm, key, &peer_data);
        if (status != DIST_OK) {
            return fail_store_call(outcome, status);
        }
        status = r < comm->size ? check_same_call(operation, r, &peer_data, outcome)
                                : process_rank_data(comm, operation, r - comm->size, &peer_data, outcome);
        free(peer_data.data);
    }
    if (status == DIST_OK) {
        leave_collective(comm, operation);
    }
    return status;
}
