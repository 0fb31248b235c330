/*
 * The backward pass. It closes the gradient of a tensor as soon as it is complete, so that the
 * ranks reduce the gradients of one layer during the computation of the layer before it.
 */
#include "pass.h"

#include <string.h>

static float *open_gradient(const pass_t *pass, size_t tensor)
{
    return pass->hooks.open_gradient(pass->hooks.user, tensor);
}

static void close_gradient(const pass_t *pass, size_t tensor)
{
    pass->hooks.close_gradient(pass->hooks.user, tensor);
}

/* The two functions take the index of the weight. The bias is the next tensor. */
static void normalise_backward(const pass_t *pass, size_t weight, float *d_x, const float *d_y, const float *x,
                               const row_stats_t *stats)
{
    const tensor_t *tensor = &pass->model->tensors[weight];
    float *d_weight = open_gradient(pass, weight);
    float *d_bias = open_gradient(pass, weight + 1);
    layer_norm_backward(d_x, d_weight, d_bias, d_y, x, stats, tensor->values,
                        pass->sequences * pass->model->shape.context, tensor->count);
    close_gradient(pass, weight);
    close_gradient(pass, weight + 1);
}

static void multiply_backward(const pass_t *pass, size_t weight, float *d_x, const float *d_y, const float *x)
{
    const tensor_t *tensor = &pass->model->tensors[weight];
    float *d_weight = open_gradient(pass, weight);
    float *d_bias = open_gradient(pass, weight + 1);
    linear_backward(d_x, d_weight, d_bias, d_y, x, tensor->values, pass->sequences * pass->model->shape.context,
                    (size_t)tensor->extents[0], (size_t)tensor->extents[1]);
    close_gradient(pass, weight);
    close_gradient(pass, weight + 1);
}

/* Turns d_stream, the gradient of the layer's output, into that of its input. */
static void layer_backward(pass_t *pass, size_t index, const float *input)
{
    const model_shape_t *shape = &pass->model->shape;
    const attention_shape_t attention = {pass->sequences, shape->context, shape->heads, shape->width};
    const size_t wide_count = pass->sequences * shape->context * 4 * shape->width;
    const layer_activations_t *layer = &pass->layers[index];

    multiply_backward(pass, layer_tensor(index, NARROW_WEIGHT), pass->d_wide, pass->d_stream, layer->activated);
    gelu_backward(pass->d_wide, pass->d_wide, layer->wide, wide_count);
    multiply_backward(pass, layer_tensor(index, WIDEN_WEIGHT), pass->d_row, pass->d_wide, layer->norm_2);
    normalise_backward(pass, layer_tensor(index, NORM_2_WEIGHT), pass->d_stream, pass->d_row, layer->middle, layer->stats_2);

    multiply_backward(pass, layer_tensor(index, PROJECTION_WEIGHT), pass->d_row, pass->d_stream, layer->attended);
    attention_backward(pass->d_wide, pass->d_row, layer->probabilities, layer->qkv, pass->d_scores, &attention);
    multiply_backward(pass, layer_tensor(index, QKV_WEIGHT), pass->d_row, pass->d_wide, layer->norm_1);
    normalise_backward(pass, layer_tensor(index, NORM_1_WEIGHT), pass->d_stream, pass->d_row, input, layer->stats_1);
}

void pass_backward(pass_t *pass, float factor)
{
    const model_shape_t *shape = &pass->model->shape;
    const size_t rows = pass->sequences * shape->context;
    const float *tokens = pass->model->tensors[TOKEN_EMBEDDING].values;

    /* The gradient of the token embedding has two parts: of the last matrix, and at the end of
     * the first one. */
    float *d_tokens = open_gradient(pass, TOKEN_EMBEDDING);
    cross_entropy_backward(pass->logits, pass->targets, factor, rows, shape->tokens);
    unembed_backward(pass->d_row, d_tokens, pass->logits, pass->normed, tokens, rows, shape->width, shape->tokens);

    const float *stream = shape->layers > 0 ? pass->layers[shape->layers - 1].output : pass->embedded;
    memset(pass->d_stream, 0, rows * shape->width * sizeof *pass->d_stream);
    normalise_backward(pass, final_tensor(pass->model, FINAL_NORM_WEIGHT), pass->d_stream, pass->d_row, stream,
                       pass->final_stats);
    for (size_t layer = shape->layers; layer-- > 0;) {
        layer_backward(pass, layer, layer > 0 ? pass->layers[layer - 1].output : pass->embedded);
    }

    float *d_positions = open_gradient(pass, POSITION_EMBEDDING);
    embed_backward(d_tokens, d_positions, pass->d_stream, pass->inputs, rows, shape->context, shape->width);
    close_gradient(pass, POSITION_EMBEDDING);
    close_gradient(pass, TOKEN_EMBEDDING);
}
