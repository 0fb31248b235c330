/*
 * The update of the parameters with the reduced gradients.
 *
 *   - With --zero 0 every rank updates all parameters.
 *   - With --zero 1 every rank updates its shard of the parameters and has the optimizer's states
 *     of this shard only. Then it sends its shard to the other ranks.
 *   - With --zero 2 it also gets the reduced gradients of its shard only.
 */
#ifndef GPT_OPTIMIZER_H
#define GPT_OPTIMIZER_H

#include "model.h"
#include "options.h"

#include <dist.h>

typedef struct optimizer {
    const gpt_options_t *options;
    const model_t *model;
    dist_reducer_t *reducer;
    float *states;       /* with --zero 0: the means of all parameters, then the squares (see adam.h) */
    size_t state_bytes;  /* of these */
    dist_shard_t *shard; /* with --zero 1 and 2 */
    dist_work_t *gather; /* NULL, or the operation that sends the parameters */
} optimizer_t;

/* The optimizer borrows the options, the model and the reducer. */
void optimizer_create(optimizer_t *optimizer, const gpt_options_t *options, const model_t *model, dist_reducer_t *reducer);
void optimizer_release(optimizer_t *optimizer);

/* Scales the reduced gradients so that their norm is at most --clip. Returns the norm before
 * that. */
double optimizer_clip(optimizer_t *optimizer);

/* Updates the parameters of this rank. `update` is the number of this update, from 1. */
void optimizer_update(optimizer_t *optimizer, uint64_t update);

/*
 * Sends the updated parameters to all ranks: in the background, or with --survive until they are
 * there. After a failure the ranks that are left call it again.
 */
dist_status_t optimizer_gather(optimizer_t *optimizer);

/* Waits for the values of one tensor, or of all of them. */
void optimizer_wait(optimizer_t *optimizer, size_t tensor);
void optimizer_wait_all(optimizer_t *optimizer);

#endif
