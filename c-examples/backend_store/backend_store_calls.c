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

static dist_status_t compare(const dist_backend_operation_t *what, int rank, const struct bytes *all,
                             dist_backend_outcome_t *outcome)
{
    struct header theirs = header_of(all);
    char text[256];
    if (theirs.kind == what->kind && theirs.dtype == what->dtype && theirs.op == what->op && theirs.root == what->root
        && (!needs_all_counts(what->kind) || theirs.count == what->count)) {
        return DIST_OK;
    }
    snprintf(text, sizeof(text),
             "rank %d called operation %d (type %d, operator %d, root %d, count %" PRIu64
             "), and this rank %d (%d, %d, %d, %zu)",
             rank, (int)theirs.kind, (int)theirs.dtype, (int)theirs.op, (int)theirs.root, theirs.count, (int)what->kind,
             (int)what->dtype, (int)what->op, (int)what->root, what->count);
    return fail(outcome, DIST_ERR_MISMATCH, rank, text);
}

/* Returns the destination of the data from rank `from`; its length is 0 if this rank does not
 * need the data. */
static struct bytes place_for(const dist_backend_operation_t *what, int from)
{
    size_t element = size_of(what->dtype), len = what->count * element;
    struct bytes place = { what->recv, 0 };
    switch (what->kind) {
    case DIST_KIND_ALL_GATHER:
    case DIST_KIND_GATHER:
    case DIST_KIND_ALL_TO_ALL:
        place.data += what->recv == NULL ? 0 : (size_t)from * len;
        place.len = what->recv == NULL ? 0 : len;
        break;
    case DIST_KIND_ALL_GATHER_V:
    case DIST_KIND_GATHER_V:
    case DIST_KIND_ALL_TO_ALL_V:
        if (what->recv_counts != NULL && what->recv_counts[from] > 0) {
            place.data += what->recv_displs[from];
            place.len = what->recv_counts[from] * element;
        }
        break;
    case DIST_KIND_BROADCAST:
    case DIST_KIND_SCATTER:
        place.len = from == what->root && what->recv != NULL ? len : 0;
        break;
    case DIST_KIND_SCATTER_V:
        place.len = from == what->root ? what->recv_count * element : 0;
        break;
    default: /* a barrier; a reduction, which has one destination for all ranks */
        break;
    }
    return place;
}

static int is_wanted(const dist_backend_operation_t *what, int from, const struct part *part)
{
    switch (what->kind) {
    case DIST_KIND_GATHER:
    case DIST_KIND_GATHER_V:
        return what->root == part->rank;
    case DIST_KIND_BROADCAST:
        return what->root == from && from != part->rank;
    case DIST_KIND_SCATTER:
    case DIST_KIND_SCATTER_V:
        return what->root == from;
    default:
        return what->kind != DIST_KIND_BARRIER;
    }
}

/* Processes the data of one rank; the ranks come in rank order. */
static dist_status_t absorb(const struct part *part, const dist_backend_operation_t *what, int from,
                            const struct bytes *all, dist_backend_outcome_t *outcome)
{
    struct bytes block = block_to(all, (size_t)part->rank), place = place_for(what, from);
    char text[160];
    if (what->op >= 0) { /* a reduction */
        size_t count = what->kind == DIST_KIND_REDUCE_SCATTER_V ? what->recv_count : what->count;
        if (what->recv == NULL || (what->kind == DIST_KIND_SCAN && from > part->rank)
            || (what->kind == DIST_KIND_EXSCAN && from >= part->rank)) {
            return DIST_OK;
        }
        place.data = what->recv;
        place.len = count * size_of(what->dtype);
        if (block.len == place.len) {
            fold(what->dtype, what->op, place.data, block.data, count, from == 0);
        }
    } else if (!is_wanted(what, from, part)) {
        return DIST_OK;
    } else if (block.len == place.len && block.len > 0) {
        memcpy(place.data, block.data, block.len);
    }
    if (block.len == place.len) {
        return DIST_OK;
    }
    snprintf(text, sizeof(text), "rank %d has %zu bytes for this rank, which expects %zu", from, block.len, place.len);
    return fail(outcome, DIST_ERR_MISMATCH, from, text);
}

/* The last rank that has read all data removes the keys. */
static void leave_call(const struct part *part, const dist_backend_operation_t *what)
{
    char key[KEY_BYTES];
    int64_t gone = 0;
    int r;
    snprintf(key, KEY_BYTES, "gone/%" PRIu64 ".%" PRIu64, what->sequence, what->part);
    if (part->host->store_add(part->host->context, key, 1, &gone, SOON_MS) == DIST_OK && gone == part->size) {
        part->host->store_delete(part->host->context, key, SOON_MS);
        for (r = 0; r < part->size; r++) {
            key_of(key, what, r);
            part->host->store_delete(part->host->context, key, SOON_MS);
        }
    }
}

dist_status_t look_at_call(struct part *part, struct request *request, dist_backend_outcome_t *outcome)
{
    const dist_backend_operation_t *what = &request->what;
    dist_status_t status = DIST_OK;
    char key[KEY_BYTES];
    int r;
    for (; request->seen < part->size; request->seen++) {
        key_of(key, what, request->seen);
        if (!is_there(part, key)) {
            return DIST_IN_PROGRESS;
        }
    }
    /* All calls are compared before any data is written. */
    for (r = 0; r < 2 * part->size && status == DIST_OK; r++) {
        struct bytes all;
        key_of(key, what, r % part->size);
        status = get(part, key, &all);
        if (status != DIST_OK) {
            return store_failed(outcome, status);
        }
        status = r < part->size ? compare(what, r, &all, outcome)
                                : absorb(part, what, r - part->size, &all, outcome);
        free(all.data);
    }
    if (status == DIST_OK) {
        if (what->op == DIST_AVG && what->recv != NULL) {
            size_t count = what->kind == DIST_KIND_REDUCE_SCATTER_V ? what->recv_count : what->count;
            divide(what->dtype, what->recv, count, part->size);
        }
        leave_call(part, what);
    }
    return status;
}
