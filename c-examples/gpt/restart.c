/*
 * Checkpoints of a distributed training: rank 0 reads and writes the file. With --zero 1 or 2,
 * dist_shard_save and dist_shard_load collect and distribute the states of the optimizer.
 */
#include "restart.h"

#include "../common/check.h"
#include "recover.h"

#include <inttypes.h>
#include <string.h>

static uint64_t get_state_format(const trainer_t *trainer)
{
    return trainer->options->zero > 0 ? STATES_SHARDED : STATES_WHOLE;
}

static void write_file(const trainer_t *trainer, const void *states, size_t bytes)
{
    checkpoint_t checkpoint = checkpoint_for_options(trainer->options);
    checkpoint.finished_steps = trainer->finished_steps;
    checkpoint.updates = trainer->updates;
    checkpoint.state_format = get_state_format(trainer);
    checkpoint.state_bytes = bytes;
    checkpoint_write(trainer->options->checkpoint, &checkpoint, trainer->model.values, trainer->model.count, states);
}

/* Rank 0 gets the states of all ranks. */
static void save_shards(trainer_t *trainer)
{
    dist_blob_t *blob;
    if (!call_succeeded(trainer, dist_shard_save(trainer->optimizer.shard, 0, &blob))) {
        return;
    }
    if (trainer->rank == 0) {
        const void *states;
        size_t bytes;
        check(dist_blob_data(blob, 0, &states, &bytes));
        write_file(trainer, states, bytes);
    }
    check(dist_blob_release(blob));
}

void restart_save(trainer_t *trainer)
{
    const optimizer_t *optimizer = &trainer->optimizer;
    optimizer_wait_all(&trainer->optimizer);
    if (optimizer->shard != NULL) {
        save_shards(trainer);
    } else if (trainer->rank == 0) {
        write_file(trainer, optimizer->states, optimizer->state_bytes);
    }
}

void restart_load_parameters(trainer_t *trainer, checkpoint_t *checkpoint, void **states)
{
    model_t *model = &trainer->model;
    const gpt_options_t *options = trainer->options;
    *checkpoint = checkpoint_for_options(options);
    checkpoint->state_format = get_state_format(trainer);
    *states = NULL;
    if (trainer->rank == 0 && options->resume &&
        checkpoint_read(options->checkpoint, checkpoint, model->values, model->count, states)) {
        printf("continues after step %" PRIu64 " from %s\n", checkpoint->finished_steps, options->checkpoint);
        fflush(stdout);
    }
}

void restart_load_states(trainer_t *trainer, checkpoint_t *checkpoint, void *states)
{
    optimizer_t *optimizer = &trainer->optimizer;
    check(dist_broadcast(trainer->group, checkpoint, sizeof *checkpoint, DIST_U8, 0, NULL, NULL));
    trainer->finished_steps = checkpoint->finished_steps;
    trainer->updates = checkpoint->updates;
    if (checkpoint->state_bytes == 0) {
        return; /* a new training */
    }
    if (optimizer->shard != NULL) {
        check(dist_shard_load(optimizer->shard, states, (size_t)checkpoint->state_bytes, 0));
    } else {
        if (trainer->rank == 0) {
            memcpy(optimizer->states, states, optimizer->state_bytes);
        }
        check(dist_broadcast(trainer->group, optimizer->states, optimizer->state_bytes, DIST_U8, 0, NULL, NULL));
    }
    free(states);
}
