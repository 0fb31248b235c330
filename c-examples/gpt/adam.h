/* AdamW: updates parameters with their gradients, means of the gradients, and means of their
 * squares. */
#ifndef GPT_ADAM_H
#define GPT_ADAM_H

#include <stddef.h>
#include <stdint.h>

/* Some parameters, one after the other. */
typedef struct adam_range {
    float *values;
    const float *gradient;
    float *mean;   /* of the gradients; zeros at first */
    float *square; /* the mean of their squares; zeros at first */
    size_t count;
    int decays; /* 1 if the values are drawn towards zero: matrices, but not biases and normalisations */
} adam_range_t;

/* `update` is the number of this update, from 1. */
void adam_update(const adam_range_t *range, double learning_rate, uint64_t update);

#endif
