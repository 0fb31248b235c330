/*
 * The forward and the backward pass over some sequences.
 *
 * The passes call the functions of pass_hooks_t at the places where a trainer of several ranks has
 * to act. They know nothing about libdist.
 */
#ifndef GPT_PASS_H
#define GPT_PASS_H

#include "attention.h"
#include "layers.h"
#include "model.h"

/* The functions that the passes call. `tensor` is an index in the tensors of the model. */
typedef struct pass_hooks {
    /* The forward pass is about to read the values of this tensor for the first time. */
    void (*use_values)(void *user, size_t tensor);
    /* Returns the array to which the backward pass adds the gradient of this tensor. */
    float *(*open_gradient)(void *user, size_t tensor);
    /* The gradient of this tensor is complete. */
    void (*close_gradient)(void *user, size_t tensor);
    void *user;
} pass_hooks_t;

/* The data of a layer that the backward pass needs. */
typedef struct layer_activations {
    float *norm_1, *qkv, *probabilities, *attended;
    float *middle; /* of the residual stream, after attention */
    float *norm_2, *wide, *activated;
    float *output; /* of the residual stream, after the layer */
    row_stats_t *stats_1, *stats_2;
} layer_activations_t;

typedef struct pass {
    const model_t *model;
    pass_hooks_t hooks;
    size_t capacity;  /* sequences for which there is memory */
    size_t sequences; /* that the passes compute */
    uint8_t *inputs, *targets;
    layer_activations_t *layers;
    float *embedded, *normed;
    row_stats_t *final_stats;
    float *logits; /* after the forward pass these are probabilities */
    float *d_stream, *d_row, *d_wide, *d_scores; /* gradients within the backward pass */
    float *memory; /* of all of these */
} pass_t;

/* A pass without memory. It borrows the model. Release with pass_free. */
pass_t pass_create(const model_t *model, pass_hooks_t hooks);
void pass_free(pass_t *pass);

/* Makes room for `capacity` sequences, if there is less. */
void pass_reserve(pass_t *pass, size_t capacity);

/* Sets the next sequence: context + 1 tokens. Set pass->sequences to 0 first. */
void pass_add_sequence(pass_t *pass, const uint8_t *tokens);

/* Returns the sum of the losses of all positions. */
double pass_forward(pass_t *pass);

/* Computes the gradients of `factor` times that sum. */
void pass_backward(pass_t *pass, float factor);

#endif
