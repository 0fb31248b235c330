/*
 * The layers of a transformer except attention: functions on arrays, without state.
 *
 * An array has rows, one after the other. A row belongs to one position of one sequence. In a
 * backward function, `d_x` is the gradient of the loss for `x`. Gradients of parameters are added
 * to what the array has; gradients of inputs are overwritten, except by layer_norm_backward.
 */
#ifndef GPT_LAYERS_H
#define GPT_LAYERS_H

#include <stddef.h>
#include <stdint.h>

/* The data of a normalised row that the backward pass needs. */
typedef struct row_stats {
    float mean;
    float scale; /* 1 / standard deviation */
} row_stats_t;

float dot_product(const float *a, const float *b, size_t count);

/* y += factor * x */
void add_scaled(float *restrict y, float factor, const float *restrict x, size_t count);

/* x[row] = token_values[tokens[row]] + position_values[row % context] */
void embed_forward(float *x, const float *token_values, const float *position_values, const uint8_t *tokens, size_t rows,
                   size_t context, size_t width);
void embed_backward(float *d_token_values, float *d_position_values, const float *d_x, const uint8_t *tokens, size_t rows,
                    size_t context, size_t width);

/* Each row gets mean 0 and variance 1, and is then multiplied by `weight` and moved by `bias`. */
void layer_norm_forward(float *y, row_stats_t *stats, const float *x, const float *weight, const float *bias, size_t rows,
                        size_t width);
/* Adds to d_x, since the input also goes around the layer. */
void layer_norm_backward(float *d_x, float *d_weight, float *d_bias, const float *d_y, const float *x, const row_stats_t *stats,
                         const float *weight, size_t rows, size_t width);

/* y = x * weight + bias, with a weight of inputs x outputs. */
void linear_forward(float *y, const float *x, const float *weight, const float *bias, size_t rows, size_t inputs,
                    size_t outputs);
void linear_backward(float *d_x, float *d_weight, float *d_bias, const float *d_y, const float *x, const float *weight,
                     size_t rows, size_t inputs, size_t outputs);

/* logits[row][token] = the dot product of x[row] and values[token], the embedding of the token */
void unembed_forward(float *logits, const float *x, const float *values, size_t rows, size_t width, size_t tokens);
void unembed_backward(float *d_x, float *d_values, const float *d_logits, const float *x, const float *values, size_t rows,
                      size_t width, size_t tokens);

/* The Gaussian error linear unit, approximated with tanh as in GPT-2. */
void gelu_forward(float *y, const float *x, size_t count);
/* d_y may be d_x. */
void gelu_backward(float *d_x, const float *d_y, const float *x, size_t count);

/* Replaces logits by probabilities. Returns the sum over the rows of the cross-entropy with the
 * targets. */
double cross_entropy_forward(float *logits, const uint8_t *targets, size_t rows, size_t tokens);
/* Replaces probabilities by the gradients of the logits, where the loss is `factor` times that
 * sum. */
void cross_entropy_backward(float *probabilities, const uint8_t *targets, float factor, size_t rows, size_t tokens);

/* Replaces `count` numbers by probabilities. */
void softmax(float *values, size_t count);

/* Computes the gradient of the numbers before softmax. d_values may be d_probabilities. */
void softmax_backward(float *d_values, const float *d_probabilities, const float *probabilities, size_t count);

#endif
