/*
 * Creates the tensors of the model and draws their initial values. See model.h.
 */
#include "model.h"

#include "../digits_training/rng.h"
#include "memory.h"

#include <math.h>
#include <stdio.h>

/* The standard deviation of first weights, as in GPT-2. */
#define DEVIATION 0.02

/* The name and the extents of a tensor; 0 columns for a vector. */
typedef struct tensor_kind {
    const char *name;
    size_t rows, columns;
} tensor_kind_t;

size_t layer_tensor(size_t layer, size_t tensor)
{
    return EMBEDDING_TENSORS + layer * LAYER_TENSORS + tensor;
}

size_t final_tensor(const model_t *model, size_t tensor)
{
    return layer_tensor(model->shape.layers, tensor);
}

static void add_tensor(model_t *model, size_t block, const char *prefix, tensor_kind_t kind)
{
    tensor_t *tensor = &model->tensors[model->n_tensors++];
    snprintf(tensor->name, sizeof tensor->name, "%s%s", prefix, kind.name);
    tensor->extents[0] = (int64_t)kind.rows;
    tensor->extents[1] = (int64_t)kind.columns;
    tensor->dimensions = kind.columns > 0 ? 2 : 1;
    tensor->count = kind.columns > 0 ? kind.rows * kind.columns : kind.rows;
    tensor->block = block;
    model->count += tensor->count;
}

static void add_layer(model_t *model, size_t layer)
{
    const size_t width = model->shape.width;
    const tensor_kind_t kinds[LAYER_TENSORS] = {
        {"ln_1.weight", width, 0},
        {"ln_1.bias", width, 0},
        {"attn.c_attn.weight", width, 3 * width},
        {"attn.c_attn.bias", 3 * width, 0},
        {"attn.c_proj.weight", width, width},
        {"attn.c_proj.bias", width, 0},
        {"ln_2.weight", width, 0},
        {"ln_2.bias", width, 0},
        {"mlp.c_fc.weight", width, 4 * width},
        {"mlp.c_fc.bias", 4 * width, 0},
        {"mlp.c_proj.weight", 4 * width, width},
        {"mlp.c_proj.bias", width, 0},
    };
    char prefix[16];
    snprintf(prefix, sizeof prefix, "h.%u.", (unsigned)layer);
    for (size_t i = 0; i < LAYER_TENSORS; i++) {
        add_tensor(model, 1 + layer, prefix, kinds[i]);
    }
}

model_t model_create(model_shape_t shape)
{
    model_t model = {0};
    model.shape = shape;
    model.tensors = allocate(final_tensor(&model, FINAL_TENSORS), sizeof *model.tensors);
    add_tensor(&model, 0, "", (tensor_kind_t){"wte.weight", shape.tokens, shape.width});
    add_tensor(&model, 0, "", (tensor_kind_t){"wpe.weight", shape.context, shape.width});
    for (size_t layer = 0; layer < shape.layers; layer++) {
        add_layer(&model, layer);
    }
    add_tensor(&model, 1 + shape.layers, "", (tensor_kind_t){"ln_f.weight", shape.width, 0});
    add_tensor(&model, 1 + shape.layers, "", (tensor_kind_t){"ln_f.bias", shape.width, 0});

    model.values = allocate(model.count, sizeof *model.values);
    float *values = model.values;
    for (size_t i = 0; i < model.n_tensors; i++) {
        model.tensors[i].values = values;
        values += model.tensors[i].count;
    }
    return model;
}

void model_free(model_t *model)
{
    free(model->values);
    free(model->tensors);
}

static void fill_random(tensor_t *tensor, rng_t *rng, double deviation)
{
    float limit = (float)(deviation * sqrt(3.0)); /* of a uniform distribution with this deviation */
    for (size_t i = 0; i < tensor->count; i++) {
        tensor->values[i] = rng_uniform(rng, limit);
    }
}

static void fill_with_ones(tensor_t *tensor)
{
    for (size_t i = 0; i < tensor->count; i++) {
        tensor->values[i] = 1.0f;
    }
}

void model_initialise(model_t *model, uint64_t seed)
{
    rng_t rng = {seed};
    /* Each layer adds to the residual stream twice. The smaller values keep its variance. */
    const double residual_deviation = DEVIATION / sqrt(2.0 * (double)model->shape.layers);
    fill_random(&model->tensors[TOKEN_EMBEDDING], &rng, DEVIATION);
    fill_random(&model->tensors[POSITION_EMBEDDING], &rng, DEVIATION);
    for (size_t layer = 0; layer < model->shape.layers; layer++) {
        tensor_t *tensors = &model->tensors[layer_tensor(layer, 0)];
        fill_with_ones(&tensors[NORM_1_WEIGHT]);
        fill_random(&tensors[QKV_WEIGHT], &rng, DEVIATION);
        fill_random(&tensors[PROJECTION_WEIGHT], &rng, residual_deviation);
        fill_with_ones(&tensors[NORM_2_WEIGHT]);
        fill_random(&tensors[WIDEN_WEIGHT], &rng, DEVIATION);
        fill_random(&tensors[NARROW_WEIGHT], &rng, residual_deviation);
    }
    fill_with_ones(&model->tensors[final_tensor(model, FINAL_NORM_WEIGHT)]);
}

uint64_t model_hash(const model_t *model)
{
    const unsigned char *bytes = (const unsigned char *)model->values;
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < model->count * sizeof *model->values; i++) {
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    }
    return hash;
}
