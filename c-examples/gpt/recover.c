/*
 * Recovery after the death of a rank: the survivors shrink the group and move the reducer to it.
 * Then the caller repeats the failed call.
 */
#include "recover.h"

#include "../common/check.h"

/* The maximum time until a live rank detects the failure, in milliseconds. */
#define SHRINK_TIMEOUT_MS 30000

/*
 * Returns 1 if a rank was lost. All other failures are mistakes of the program or of the system, or
 * cannot be repeated: if all ranks with the same states have died, dist_shard_gather returns
 * DIST_ERR_NOT_FOUND.
 */
static int is_rank_loss(dist_status_t status)
{
    return status == DIST_ERR_PEER_FAILED || status == DIST_ERR_ABORTED || status == DIST_ERR_TIMEOUT ||
           status == DIST_ERR_CONNECTION;
}

int call_succeeded(const trainer_t *trainer, dist_status_t status)
{
    if (!trainer->options->survive || !is_rank_loss(status)) {
        check(status);
    }
    return status == DIST_OK;
}

int is_at_same_step(const trainer_t *trainer)
{
    return trainer->finished_steps > trainer->max_finished_steps;
}

static void shrink(trainer_t *trainer)
{
    dist_shrink_options_t options = DIST_SHRINK_OPTIONS_INIT;
    options.timeout_ms = SHRINK_TIMEOUT_MS;
    dist_group_t *survivors = NULL;
    check(dist_group_shrink(trainer->group, &options, &survivors));
    if (trainer->group != dist_world()) {
        check(dist_group_release(trainer->group));
    }
    trainer->group = survivors;
    trainer->rank = (int)dist_get_rank(survivors);
    trainer->size = (int)dist_get_world_size(survivors);
}

/* Another rank may die during these calls. */
static dist_status_t regroup(trainer_t *trainer)
{
    dist_status_t status = dist_reducer_regroup(trainer->reducer, trainer->group);
    if (status != DIST_OK) {
        return status;
    }
    trainer->max_finished_steps = trainer->finished_steps;
    return dist_all_reduce(trainer->group, &trainer->max_finished_steps, &trainer->max_finished_steps, 1, DIST_U64,
                           DIST_MAX, NULL, NULL);
}

void recover(trainer_t *trainer, dist_status_t status)
{
    const int old_size = trainer->size;
    while (!call_succeeded(trainer, status)) {
        shrink(trainer);
        status = regroup(trainer);
    }
    if (trainer->rank == 0) {
        printf("after step %llu: %d of %d ranks go on\n", (unsigned long long)trainer->finished_steps, trainer->size,
               old_size);
        fflush(stdout);
    }
}
