/*
 * A multi-layer perceptron with one hidden layer (ReLU) and a softmax over the classes, and SGD with momentum.
 *
 * All weights lie in one flat array, and so do the gradients: that is what makes a single all-reduce enough to sum
 * them over the ranks. This file knows nothing about libdist.
 */
#ifndef MLP_H
#define MLP_H

#include "digits_data.h"
#include "rng.h"

#include <stddef.h>

typedef struct mlp {
    size_t hidden;  /* hidden units */
    size_t count;   /* weights in all */
    float *weights; /* [pixels][hidden], [hidden] biases, [hidden][classes], [classes] biases */
    float *momentum;
    float *activation; /* [hidden]: scratch */
    float *delta;      /* [hidden]: scratch */
} mlp_t;

/* All weights zero. Returns 0, or -1 where memory is lacking. `mlp_free` may follow in both cases. */
int mlp_create(mlp_t *mlp, size_t hidden);
void mlp_free(mlp_t *mlp);

/* Draws the initial weights. */
void mlp_initialise(mlp_t *mlp, rng_t *rng);

/* Adds the gradient of one digit's loss to `gradient` (mlp->count numbers) and returns the loss. */
float mlp_accumulate(mlp_t *mlp, const digit_t *digit, float *gradient);

/* One step of SGD with momentum; `gradient` is a sum over `rows` digits. */
void mlp_step(mlp_t *mlp, const float *gradient, float rows, float learning_rate);

/* The class that the network finds most likely. */
int mlp_classify(mlp_t *mlp, const digit_t *digit);

/* A 64-bit hash (FNV-1a) of the weights' bits. */
uint64_t mlp_hash(const mlp_t *mlp);

#endif
