/* A rank of the training, and its steps. */
#ifndef GPT_TRAINER_H
#define GPT_TRAINER_H

#include "model.h"
#include "optimizer.h"
#include "options.h"
#include "pass.h"

#include <dist.h>

typedef struct trainer {
    const gpt_options_t *options;
    dist_group_t *group; /* the ranks that are left */
    int rank, size;      /* in this group */
    int world_rank;      /* in the world */
    model_t model;
    pass_t pass;
    dist_reducer_t *reducer;
    optimizer_t optimizer;
    uint64_t finished_steps;
    uint64_t updates; /* finished steps that changed the parameters */
    uint64_t max_finished_steps; /* of all ranks when the group last changed */
    int is_first_micro_batch; /* of a step: the gradients begin at zero */
    double loss;       /* of the last step: the mean over its sequences; NaN if it is not known */
    double own_loss;   /* of the last step: the sum over the positions of this rank */
    double own_positions;
} trainer_t;

/* Creates the model and its reducer in `group`, and continues from a checkpoint if the options
 * say so. */
void trainer_create(trainer_t *trainer, dist_group_t *group, const gpt_options_t *options);
void trainer_release(trainer_t *trainer);

/* Trains to the last step, prints losses, and writes checkpoints. */
void trainer_run(trainer_t *trainer);

/* Returns 1 if all ranks have the same parameters. Rank 0 prints the differences, or the result
 * of the training. */
int trainer_report(trainer_t *trainer);

#endif
