/* Causal self-attention with several heads: a position sees itself and the positions before it,
 * in its own sequence. */
#ifndef GPT_ATTENTION_H
#define GPT_ATTENTION_H

#include <stddef.h>

typedef struct attention_shape {
    size_t sequences;
    size_t context; /* positions of a sequence */
    size_t heads;
    size_t width; /* of a row; each head has width / heads numbers of it */
} attention_shape_t;

/* The number of probabilities. */
size_t attention_probabilities(const attention_shape_t *shape);

/* A row of `qkv` has the query, the key and the value of a position, 3 * width numbers. A row of
 * `y` has width numbers. */
void attention_forward(float *y, float *probabilities, const float *qkv, const attention_shape_t *shape);

/* `scratch` has room for one number per position of a sequence. */
void attention_backward(float *d_qkv, const float *d_y, const float *probabilities, const float *qkv, float *scratch,
                        const attention_shape_t *shape);

#endif
