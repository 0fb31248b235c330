/* The update of the parameters with the reduced gradients: every rank updates all of them. */
#ifndef GPT_OPTIMIZER_H
#define GPT_OPTIMIZER_H

#include "model.h"

#include <dist.h>

typedef struct optimizer {
    const model_t *model;
    dist_reducer_t *reducer;
    float *states; /* the means of all parameters, then the squares (see adam.h) */
} optimizer_t;

/* The optimizer borrows the model and the reducer. */
void optimizer_create(optimizer_t *optimizer, const model_t *model, dist_reducer_t *reducer);
void optimizer_release(optimizer_t *optimizer);

/*
 * Scales the reduced gradients so that their norm is at most `max_norm`, and returns the norm before that. Every rank computes
 * it without communication.
 */
double optimizer_clip(optimizer_t *optimizer, double max_norm);

/* `update` is the number of this update, from 1. */
void optimizer_update(optimizer_t *optimizer, double learning_rate, uint64_t update);

#endif
