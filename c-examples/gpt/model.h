/*
 * The parameters of a model with the shape of GPT-2: embeddings of tokens and positions, layers of
 * attention and a two-layer network, and a final normalisation. The embedding of tokens is also
 * the last matrix (tied weights).
 *
 * The parameters are tensors with the names of GPT-2. This file knows nothing about libdist.
 */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include <stddef.h>
#include <stdint.h>

typedef struct model_shape {
    size_t layers;
    size_t heads;
    size_t width;   /* of a position; a multiple of heads */
    size_t context; /* positions of a sequence */
    size_t tokens;  /* different tokens */
} model_shape_t;

/* The tensors of the embeddings. */
enum { TOKEN_EMBEDDING, POSITION_EMBEDDING, EMBEDDING_TENSORS };

/* The tensors of a layer, in the order of the forward pass. Each weight is followed by its bias. */
enum {
    NORM_1_WEIGHT,
    NORM_1_BIAS,
    QKV_WEIGHT,
    QKV_BIAS,
    PROJECTION_WEIGHT,
    PROJECTION_BIAS,
    NORM_2_WEIGHT,
    NORM_2_BIAS,
    WIDEN_WEIGHT,
    WIDEN_BIAS,
    NARROW_WEIGHT,
    NARROW_BIAS,
    LAYER_TENSORS
};

/* The tensors of the final normalisation. */
enum { FINAL_NORM_WEIGHT, FINAL_NORM_BIAS, FINAL_TENSORS };

typedef struct tensor {
    char name[40];
    int64_t extents[2];
    size_t dimensions; /* 1 or 2 */
    size_t count;      /* of its elements */
    size_t block;      /* 0 for the embeddings, then 1 for each layer, and the final normalisation */
    float *values;     /* a part of the model's */
} tensor_t;

typedef struct model {
    model_shape_t shape;
    size_t n_tensors;
    tensor_t *tensors;
    size_t count;  /* parameters */
    float *values; /* of all tensors, one after the other */
} model_t;

/* All parameters are zero. Release with model_free. */
model_t model_create(model_shape_t shape);
void model_free(model_t *model);

/* Draws the first values of the parameters. */
void model_initialise(model_t *model, uint64_t seed);

/* The index of a tensor of a layer, and of the final normalisation. */
size_t layer_tensor(size_t layer, size_t tensor);
size_t final_tensor(const model_t *model, size_t tensor);

/* A 64-bit hash (FNV-1a) of the bits of all parameters. */
uint64_t model_hash(const model_t *model);

#endif
