/*
 * A multi-layer perceptron with one hidden layer (ReLU) and a softmax over the classes, and SGD
 * with momentum.
 *
 * All weights are in one flat array, and so are the gradients. Therefore one all-reduce sums all
 * gradients over the ranks. This file does not depend on libdist.
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

/* Creates a network with zero weights. Returns 0, or -1 if there is no memory. The caller may
 * call `mlp_free` in both cases. */
int mlp_create(mlp_t *mlp, size_t hidden);
void mlp_free(mlp_t *mlp);

/* Draws the initial weights. */
void mlp_initialise(mlp_t *mlp, rng_t *rng);

/* Adds the gradient of one digit's loss to `gradient` (mlp->count numbers) and returns the loss. */
float mlp_accumulate(mlp_t *mlp, const digit_t *digit, float *gradient);

/* One step of SGD with momentum; `gradient` is a sum over `rows` digits. */
void mlp_step(mlp_t *mlp, const float *gradient, float rows, float learning_rate);

/* Returns the most likely class. */
int mlp_classify(mlp_t *mlp, const digit_t *digit);

/* Returns a 64-bit hash (FNV-1a) of the weights' bits. */
uint64_t mlp_hash(const mlp_t *mlp);

#endif
