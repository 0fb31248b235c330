/*
 * Communicators of the stub libnccl that are derived from a parent: by a split, in which all
 * ranks take part, or by a shrink, in which only the survivors take part.
 */
#include "nccl_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#if STUB_NCCL_VERSION >= 21800

/* Orders the ranks of one color by key and rank. Finds this rank's number, and returns the first
 * rank. */
static int find_child_rank(struct comm *parent, const struct host_data *own_data, struct comm *child)
{
    int first = parent->rank;
    child->rank = child->nranks = 0;
    for (int rank = 0; rank < parent->nranks; rank++) {
        const struct host_data *host_data = &parent->region->rank_slots[rank].host_data;
        if (host_data->color != own_data->color) {
            continue;
        }
        child->nranks++;
        child->rank += host_data->key < own_data->key || (host_data->key == own_data->key && rank < parent->rank);
        const struct host_data *first_data = &parent->region->rank_slots[first].host_data;
        if (host_data->key < first_data->key || (host_data->key == first_data->key && rank < first)) {
            first = rank;
        }
    }
    return first;
}

/* All ranks publish their color and key; then the first rank of each color publishes where they
 * meet. */
static ncclResult_t run_split(struct job *job)
{
    struct comm *parent = job->comm;
    struct host_data *host_data = &parent->region->rank_slots[parent->rank].host_data;
    struct host_data own_data = { .color = job->color, .key = job->key };
    struct comm places = { 0 };
    struct comm *child = job->child == NULL ? &places : job->child;
    if (!meet_begin(parent, STEP_HOST)) {
        return fail(ncclInternalError, "aborted in a split");
    }
    *host_data = own_data;
    if (!meet_post(parent, STEP_HOST)) {
        return fail(ncclInternalError, "aborted in a split");
    }
    int first = find_child_rank(parent, &own_data, child);
    if (job->child != NULL && first == parent->rank) {
        meet_new_path(own_data.path);
    }
    meet_end(parent, STEP_HOST);
    if (!meet_begin(parent, STEP_HOST)) {
        return fail(ncclInternalError, "aborted in a split");
    }
    *host_data = own_data;
    if (!meet_post(parent, STEP_HOST)) {
        return fail(ncclInternalError, "aborted in a split");
    }
    memcpy(child->path, parent->region->rank_slots[first].host_data.path, PATH_BYTES);
    meet_end(parent, STEP_HOST);
    return job->child == NULL ? ncclSuccess : comm_meet(job->child);
}

/* Creates an unconnected communicator for a call on its parent. */
static ncclResult_t create_child(struct comm *parent, ncclComm_t *out, const ncclConfig_t *config,
                                 struct comm **child_out)
{
    int is_blocking = parent->is_blocking;
    ncclResult_t result = comm_read_config(config, &is_blocking);
    if (result == ncclSuccess) {
        struct comm *child = comm_new(0, 1, parent->device, parent->context, is_blocking);
        child->is_child = 1;
        atomic_store(&child->parent, parent);
        *out = child->handle;
        *child_out = child;
    }
    return result;
}

ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t *out, ncclConfig_t *config)
{
    NEEDS(21800);
    struct comm *comm;
    ncclResult_t result = comm_claim(handle, __func__, &comm);
    if (result != ncclSuccess) {
        return group_record_error(result);
    }
    if (out == NULL || color < NCCL_SPLIT_NOCOLOR || comm->is_finalized) {
        return group_record_error(comm_release(comm,
                                               refuse_call(ncclInvalidArgument, "ncclCommSplit with color %d", color)));
    }
    struct comm *child = NULL;
    *out = NULL;
    if (color != NCCL_SPLIT_NOCOLOR) {
        result = create_child(comm, out, config, &child);
    }
    if (result == ncclSuccess) {
        result = group_submit((struct job){
            .run = run_split, .comm = comm, .child = child, .out = out, .color = color, .key = key });
    }
    return group_record_error(comm_release(comm, result));
}

#endif

#if STUB_NCCL_VERSION >= 22700

static ncclResult_t run_shrink(struct job *job)
{
    return comm_meet(job->child);
}

/* Returns this rank's number among the survivors; -1 if the list is invalid. */
static int rank_after_shrink(const struct comm *comm, const int *excluded, int n_excluded)
{
    int below = 0;
    for (int i = 0; i < n_excluded; i++) {
        int is_wrong = excluded[i] < 0 || excluded[i] >= comm->nranks || excluded[i] == comm->rank;
        for (int other = 0; other < i; other++) {
            is_wrong |= excluded[i] == excluded[other];
        }
        if (is_wrong) {
            return -1;
        }
        below += excluded[i] < comm->rank;
    }
    return comm->rank - below;
}

/* The survivors derive the meeting place from the number of shrinks, which is equal on all of
 * them. */
static ncclResult_t shrink(struct comm *comm, const int *excluded, int n_excluded, ncclComm_t *out,
                           const ncclConfig_t *config)
{
    int rank = out == NULL || excluded == NULL || n_excluded < 1 ? -1 : rank_after_shrink(comm, excluded, n_excluded);
    if (rank < 0) {
        return refuse_call(ncclInvalidArgument,
                           "ncclCommShrink with a list of ranks that is wrong, or names the caller");
    }
    struct comm *child = NULL;
    ncclResult_t result = create_child(comm, out, config, &child);
    if (result != ncclSuccess) {
        return result;
    }
    child->rank = rank;
    child->nranks = comm->nranks - n_excluded;
    int length = snprintf(child->path, PATH_BYTES, "%s-s%d", comm->path, ++comm->shrinks);
    if (length >= PATH_BYTES || (mkdir(child->path, 0700) != 0 && errno != EEXIST)) {
        comm_discard(child);
        *out = NULL;
        return fail(ncclSystemError, "no folder can be made beside %s", comm->path);
    }
    return group_submit((struct job){ .run = run_shrink, .comm = comm, .child = child, .out = out });
}

ncclResult_t ncclCommShrink(ncclComm_t handle, int *excluded, int n_excluded, ncclComm_t *out, ncclConfig_t *config,
                            int flags)
{
    NEEDS(22700);
    struct comm *comm;
    if (flags & NCCL_SHRINK_ABORT) {
        comm = comm_ref(handle, __func__);
        if (comm == NULL) {
            return group_record_error(ncclInvalidArgument);
        }
        comm_interrupt(comm, WAIT_SHRUNK);
        comm_join_thread(comm);
        return group_record_error(comm_unref(comm, shrink(comm, excluded, n_excluded, out, config)));
    }
    ncclResult_t result = comm_claim(handle, __func__, &comm);
    if (result != ncclSuccess) {
        return group_record_error(result);
    }
    if (comm_is_idle(comm)) {
        result = shrink(comm, excluded, n_excluded, out, config);
    } else {
        result = refuse_call(ncclInvalidUsage,
                             "ncclCommShrink while operations are under way, without NCCL_SHRINK_ABORT");
    }
    return group_record_error(comm_release(comm, result));
}

#endif
