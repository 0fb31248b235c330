/*
 * Forward and backward pass of the perceptron, and its SGD step. See mlp.h.
 */
#include "mlp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOMENTUM 0.9f

/* The offsets of the four parts in the flat array. */
typedef struct layout {
    size_t in, in_bias, out, out_bias;
} layout_t;

static layout_t weight_layout(size_t hidden)
{
    layout_t layout;
    layout.in = 0;
    layout.in_bias = DIGITS_PIXELS * hidden;
    layout.out = layout.in_bias + hidden;
    layout.out_bias = layout.out + hidden * DIGITS_CLASSES;
    return layout;
}

int mlp_create(mlp_t *mlp, size_t hidden)
{
    mlp->hidden = hidden;
    mlp->count = weight_layout(hidden).out_bias + DIGITS_CLASSES;
    mlp->weights = calloc(mlp->count, sizeof *mlp->weights);
    mlp->momentum = calloc(mlp->count, sizeof *mlp->momentum);
    mlp->activation = calloc(hidden, sizeof *mlp->activation);
    mlp->delta = calloc(hidden, sizeof *mlp->delta);
    return mlp->weights && mlp->momentum && mlp->activation && mlp->delta ? 0 : -1;
}

void mlp_free(mlp_t *mlp)
{
    free(mlp->weights);
    free(mlp->momentum);
    free(mlp->activation);
    free(mlp->delta);
    memset(mlp, 0, sizeof *mlp);
}

void mlp_initialise(mlp_t *mlp, rng_t *rng)
{
    layout_t layout = weight_layout(mlp->hidden);
    float in_limit = sqrtf(6.0f / DIGITS_PIXELS);
    float out_limit = sqrtf(6.0f / (float)mlp->hidden);
    for (size_t i = layout.in; i < layout.in_bias; i++) {
        mlp->weights[i] = rng_uniform(rng, in_limit);
    }
    for (size_t i = layout.out; i < layout.out_bias; i++) {
        mlp->weights[i] = rng_uniform(rng, out_limit);
    }
}

/* to += factor * from */
static void add_scaled(float *to, float factor, const float *from, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        to[i] += factor * from[i];
    }
}

/* Leaves the hidden activations in mlp->activation and the class scores in `scores`. */
static void forward(mlp_t *mlp, const digit_t *digit, float scores[DIGITS_CLASSES])
{
    const float *w = mlp->weights;
    layout_t layout = weight_layout(mlp->hidden);
    memcpy(mlp->activation, w + layout.in_bias, mlp->hidden * sizeof *w);
    for (size_t i = 0; i < DIGITS_PIXELS; i++) {
        add_scaled(mlp->activation, digit->pixels[i], w + layout.in + i * mlp->hidden, mlp->hidden);
    }
    memcpy(scores, w + layout.out_bias, DIGITS_CLASSES * sizeof *w);
    for (size_t h = 0; h < mlp->hidden; h++) {
        mlp->activation[h] = mlp->activation[h] > 0.0f ? mlp->activation[h] : 0.0f;
        add_scaled(scores, mlp->activation[h], w + layout.out + h * DIGITS_CLASSES, DIGITS_CLASSES);
    }
}

static int index_of_largest(const float scores[DIGITS_CLASSES])
{
    int best = 0;
    for (int c = 1; c < DIGITS_CLASSES; c++) {
        best = scores[c] > scores[best] ? c : best;
    }
    return best;
}

/* Turns scores into probabilities, and returns the cross entropy at `label`. */
static float softmax_loss(float scores[DIGITS_CLASSES], int label)
{
    float max_score = scores[index_of_largest(scores)];
    float at_label = scores[label] - max_score;
    float sum = 0.0f;
    for (int c = 0; c < DIGITS_CLASSES; c++) {
        scores[c] = expf(scores[c] - max_score);
        sum += scores[c];
    }
    for (int c = 0; c < DIGITS_CLASSES; c++) {
        scores[c] /= sum;
    }
    return logf(sum) - at_label;
}

float mlp_accumulate(mlp_t *mlp, const digit_t *digit, float *gradient)
{
    const float *w = mlp->weights;
    layout_t layout = weight_layout(mlp->hidden);
    float error[DIGITS_CLASSES];
    forward(mlp, digit, error);
    float loss = softmax_loss(error, digit->label);
    error[digit->label] -= 1.0f;

    add_scaled(gradient + layout.out_bias, 1.0f, error, DIGITS_CLASSES);
    for (size_t h = 0; h < mlp->hidden; h++) {
        const float *row = w + layout.out + h * DIGITS_CLASSES;
        add_scaled(gradient + layout.out + h * DIGITS_CLASSES, mlp->activation[h], error, DIGITS_CLASSES);
        mlp->delta[h] = 0.0f;
        for (int c = 0; c < DIGITS_CLASSES; c++) {
            mlp->delta[h] += mlp->activation[h] > 0.0f ? row[c] * error[c] : 0.0f;
        }
    }
    add_scaled(gradient + layout.in_bias, 1.0f, mlp->delta, mlp->hidden);
    for (size_t i = 0; i < DIGITS_PIXELS; i++) {
        add_scaled(gradient + layout.in + i * mlp->hidden, digit->pixels[i], mlp->delta, mlp->hidden);
    }
    return loss;
}

void mlp_step(mlp_t *mlp, const float *gradient, float rows, float learning_rate)
{
    for (size_t i = 0; i < mlp->count; i++) {
        mlp->momentum[i] = MOMENTUM * mlp->momentum[i] + gradient[i] / rows;
        mlp->weights[i] -= learning_rate * mlp->momentum[i];
    }
}

int mlp_classify(mlp_t *mlp, const digit_t *digit)
{
    float scores[DIGITS_CLASSES];
    forward(mlp, digit, scores);
    return index_of_largest(scores);
}

uint64_t mlp_hash(const mlp_t *mlp)
{
    const unsigned char *bytes = (const unsigned char *)mlp->weights;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < mlp->count * sizeof *mlp->weights; i++) {
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}
