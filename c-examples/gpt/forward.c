/* The forward pass. */
#include "pass.h"

/* The values of a tensor, which other ranks may still be sending. */
static const float *get_values(const pass_t *pass, size_t tensor)
{
    pass->hooks.use_values(pass->hooks.user, tensor);
    return pass->model->tensors[tensor].values;
}

/* The two functions take the index of the weight. The bias is the next tensor. */
static void normalise(const pass_t *pass, size_t weight, float *y, row_stats_t *stats, const float *x)
{
    const size_t width = pass->model->shape.width;
    const float *scales = get_values(pass, weight);
    const float *shifts = get_values(pass, weight + 1);
    layer_norm_forward(y, stats, x, scales, shifts, pass->sequences * pass->model->shape.context, width);
}

static void multiply(const pass_t *pass, size_t weight, float *y, const float *x)
{
    const int64_t *extents = pass->model->tensors[weight].extents;
    const float *matrix = get_values(pass, weight);
    const float *bias = get_values(pass, weight + 1);
    linear_forward(y, x, matrix, bias, pass->sequences * pass->model->shape.context, (size_t)extents[0], (size_t)extents[1]);
}

/* y += x: the residual stream goes around a layer, which computes the change. */
static void add_residual(float *y, const float *x, size_t count)
{
    add_scaled(y, 1.0f, x, count);
}

static void layer_forward(pass_t *pass, size_t index, const float *input)
{
    const model_shape_t *shape = &pass->model->shape;
    const attention_shape_t attention = {pass->sequences, shape->context, shape->heads, shape->width};
    const size_t count = pass->sequences * shape->context * shape->width;
    layer_activations_t *layer = &pass->layers[index];

    normalise(pass, layer_tensor(index, NORM_1_WEIGHT), layer->norm_1, layer->stats_1, input);
    multiply(pass, layer_tensor(index, QKV_WEIGHT), layer->qkv, layer->norm_1);
    attention_forward(layer->attended, layer->probabilities, layer->qkv, &attention);
    multiply(pass, layer_tensor(index, PROJECTION_WEIGHT), layer->middle, layer->attended);
    add_residual(layer->middle, input, count);

    normalise(pass, layer_tensor(index, NORM_2_WEIGHT), layer->norm_2, layer->stats_2, layer->middle);
    multiply(pass, layer_tensor(index, WIDEN_WEIGHT), layer->wide, layer->norm_2);
    gelu_forward(layer->activated, layer->wide, 4 * count);
    multiply(pass, layer_tensor(index, NARROW_WEIGHT), layer->output, layer->activated);
    add_residual(layer->output, layer->middle, count);
}

double pass_forward(pass_t *pass)
{
    const model_shape_t *shape = &pass->model->shape;
    const size_t rows = pass->sequences * shape->context;
    const float *tokens = get_values(pass, TOKEN_EMBEDDING);
    const float *positions = get_values(pass, POSITION_EMBEDDING);
    embed_forward(pass->embedded, tokens, positions, pass->inputs, rows, shape->context, shape->width);
    const float *stream = pass->embedded;
    for (size_t layer = 0; layer < shape->layers; layer++) {
        layer_forward(pass, layer, stream);
        stream = pass->layers[layer].output;
    }
    normalise(pass, final_tensor(pass->model, FINAL_NORM_WEIGHT), pass->normed, pass->final_stats, stream);
    unembed_forward(pass->logits, pass->normed, tokens, rows, shape->width, shape->tokens);
    return cross_entropy_forward(pass->logits, pass->targets, rows, shape->tokens);
}
