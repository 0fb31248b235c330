/*
 * Allocates the memory of the forward and backward passes in one block. See pass.h.
 */
#include "pass.h"

#include "memory.h"

#include <string.h>

/* Memory for arrays, one after the other. Without memory it counts how much they need. */
typedef struct slab {
    float *memory;
    size_t used;
} slab_t;

static float *take_array(slab_t *slab, size_t count)
{
    float *array = slab->memory == NULL ? NULL : slab->memory + slab->used;
    slab->used += count;
    return array;
}

static row_stats_t *take_stats(slab_t *slab, size_t rows)
{
    return (row_stats_t *)(void *)take_array(slab, rows * sizeof(row_stats_t) / sizeof(float));
}

static void assign_layer_arrays(layer_activations_t *layer, slab_t *slab, size_t rows, size_t width,
                                size_t probabilities)
{
    layer->norm_1 = take_array(slab, rows * width);
    layer->qkv = take_array(slab, rows * 3 * width);
    layer->probabilities = take_array(slab, probabilities);
    layer->attended = take_array(slab, rows * width);
    layer->middle = take_array(slab, rows * width);
    layer->norm_2 = take_array(slab, rows * width);
    layer->wide = take_array(slab, rows * 4 * width);
    layer->activated = take_array(slab, rows * 4 * width);
    layer->output = take_array(slab, rows * width);
    layer->stats_1 = take_stats(slab, rows);
    layer->stats_2 = take_stats(slab, rows);
}

static void assign_arrays(pass_t *pass, slab_t *slab)
{
    const model_shape_t *shape = &pass->model->shape;
    const attention_shape_t attention = {pass->capacity, shape->context, shape->heads, shape->width};
    const size_t rows = pass->capacity * shape->context;
    for (size_t layer = 0; layer < shape->layers; layer++) {
        assign_layer_arrays(&pass->layers[layer], slab, rows, shape->width, attention_probabilities(&attention));
    }
    pass->embedded = take_array(slab, rows * shape->width);
    pass->normed = take_array(slab, rows * shape->width);
    pass->final_stats = take_stats(slab, rows);
    pass->logits = take_array(slab, rows * shape->tokens);
    pass->d_stream = take_array(slab, rows * shape->width);
    pass->d_row = take_array(slab, rows * shape->width);
    pass->d_wide = take_array(slab, rows * 4 * shape->width);
    pass->d_scores = take_array(slab, shape->context);
}

pass_t pass_create(const model_t *model, pass_hooks_t hooks)
{
    pass_t pass = {0};
    pass.model = model;
    pass.hooks = hooks;
    pass.layers = allocate(model->shape.layers, sizeof *pass.layers);
    return pass;
}

static void free_arrays(pass_t *pass)
{
    free(pass->memory);
    free(pass->targets);
    free(pass->inputs);
}

void pass_free(pass_t *pass)
{
    free_arrays(pass);
    free(pass->layers);
}

void pass_reserve(pass_t *pass, size_t capacity)
{
    if (capacity <= pass->capacity) {
        return;
    }
    free_arrays(pass);
    pass->capacity = capacity;
    pass->inputs = allocate(capacity * pass->model->shape.context, sizeof *pass->inputs);
    pass->targets = allocate(capacity * pass->model->shape.context, sizeof *pass->targets);
    slab_t slab = {NULL, 0};
    assign_arrays(pass, &slab);
    pass->memory = allocate(slab.used, sizeof *pass->memory);
    slab.memory = pass->memory;
    slab.used = 0;
    assign_arrays(pass, &slab);
}

void pass_add_sequence(pass_t *pass, const uint8_t *tokens)
{
    const size_t context = pass->model->shape.context;
    memcpy(pass->inputs + pass->sequences * context, tokens, context);
    memcpy(pass->targets + pass->sequences * context, tokens + 1, context);
    pass->sequences++;
}
