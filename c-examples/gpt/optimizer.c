#include "optimizer.h"

#include "../common/check.h"
#include "adam.h"
#include "memory.h"

#include <math.h>

void optimizer_create(optimizer_t *optimizer, const gpt_options_t *options, const model_t *model, dist_reducer_t *reducer)
{
    optimizer->options = options;
    optimizer->model = model;
    optimizer->reducer = reducer;
    optimizer->states = allocate(2 * model->count, sizeof *optimizer->states);
    optimizer->state_bytes = 2 * model->count * sizeof *optimizer->states;
}

void optimizer_release(optimizer_t *optimizer)
{
    free(optimizer->states);
}

static float *reduced_gradient(const optimizer_t *optimizer, size_t tensor)
{
    void *gradient;
    check(dist_reducer_result(optimizer->reducer, tensor, &gradient, NULL));
    return gradient;
}

/* Every rank has all gradients, and computes the norm without the others. */
static double clip_alone(optimizer_t *optimizer)
{
    const model_t *model = optimizer->model;
    double sum = 0.0;
    for (size_t tensor = 0; tensor < model->n_tensors; tensor++) {
        const float *gradient = reduced_gradient(optimizer, tensor);
        for (size_t i = 0; i < model->tensors[tensor].count; i++) {
            sum += (double)gradient[i] * (double)gradient[i];
        }
    }
    const double norm = sqrt(sum);
    const float factor = (float)(optimizer->options->clip / (norm + 1e-6));
    for (size_t tensor = 0; tensor < model->n_tensors && factor < 1.0f; tensor++) {
        float *gradient = reduced_gradient(optimizer, tensor);
        for (size_t i = 0; i < model->tensors[tensor].count; i++) {
            gradient[i] *= factor;
        }
    }
    return norm;
}

double optimizer_clip(optimizer_t *optimizer)
{
    if (optimizer->options->survive) {
        /* An operation between the end of a step and the update could end on some ranks and fail on others. */
        return clip_alone(optimizer);
    }
    double norm;
    check(dist_reducer_clip(optimizer->reducer, optimizer->options->clip, 2.0, &norm));
    return norm;
}

void optimizer_update(optimizer_t *optimizer, uint64_t update)
{
    const model_t *model = optimizer->model;
    for (size_t i = 0; i < model->n_tensors; i++) {
        const tensor_t *tensor = &model->tensors[i];
        float *means = optimizer->states + (tensor->values - model->values);
        adam_range_t range;
        range.values = tensor->values;
        range.gradient = reduced_gradient(optimizer, i);
        range.mean = means;
        range.square = means + model->count;
        range.count = tensor->count;
        range.decays = tensor->dimensions == 2;
        adam_update(&range, optimizer->options->learning_rate, update);
    }
}
