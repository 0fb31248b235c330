/* The update of the parameters with the reduced gradients: every rank updates all of them. */
#ifndef GPT_OPTIMIZER_H
#define GPT_OPTIMIZER_H

#include "model.h"
#include "options.h"

#include <dist.h>

typedef struct optimizer {
    const gpt_options_t *options;
    const model_t *model;
    dist_reducer_t *reducer;
    float *states;      /* the means of all parameters, then the squares (see adam.h) */
    size_t state_bytes; /* of these */
} optimizer_t;

/* The optimizer borrows the options, the model and the reducer. */
void optimizer_create(optimizer_t *optimizer, const gpt_options_t *options, const model_t *model, dist_reducer_t *reducer);
void optimizer_release(optimizer_t *optimizer);

/* Scales the reduced gradients so that their norm is at most --clip. Returns the norm before that. */
double optimizer_clip(optimizer_t *optimizer);

/* `update` is the number of this update, from 1. */
void optimizer_update(optimizer_t *optimizer, uint64_t update);

#endif
