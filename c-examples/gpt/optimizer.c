/*
 * Clips the gradients and updates the parameters: all of them on every rank, or this rank's
 * shard. With shards, dist_shard_gather then sends the updated parameters to all ranks.
 */
#include "optimizer.h"

#include "../common/check.h"
#include "adam.h"
#include "memory.h"

#include <math.h>

/* The numbers of the states. */
enum { STATE_MEAN, STATE_SQUARE, N_STATES };

static void create_shard(optimizer_t *optimizer)
{
    static const char *const names[N_STATES] = {"mean", "square"};
    dist_shard_options_t shard_options = DIST_SHARD_OPTIONS_INIT;
    shard_options.states = names;
    shard_options.n_states = N_STATES;
    shard_options.copies = (int32_t)optimizer->options->copies;
    check(dist_shard_create(optimizer->reducer, &shard_options, &optimizer->shard));
}

void optimizer_create(optimizer_t *optimizer, const gpt_options_t *options, const model_t *model, dist_reducer_t *reducer)
{
    optimizer->options = options;
    optimizer->model = model;
    optimizer->reducer = reducer;
    if (options->zero > 0) {
        create_shard(optimizer);
    } else {
        optimizer->states = allocate(N_STATES * model->count, sizeof *optimizer->states);
        optimizer->state_bytes = N_STATES * model->count * sizeof *optimizer->states;
    }
}

void optimizer_release(optimizer_t *optimizer)
{
    optimizer_wait_all(optimizer);
    check(dist_shard_release(optimizer->shard));
    free(optimizer->states);
}

static float *reduced_gradient(const optimizer_t *optimizer, size_t tensor)
{
    void *gradient;
    check(dist_reducer_result(optimizer->reducer, tensor, &gradient, NULL));
    return gradient;
}

/* Every rank has all gradients, and computes the norm without the others. */
static double clip_locally(optimizer_t *optimizer)
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
        /* An operation between the end of a step and the update could end on some ranks and fail
         * on others. */
        return clip_locally(optimizer);
    }
    double norm;
    check(dist_reducer_clip(optimizer->reducer, optimizer->options->clip, 2.0, &norm));
    return norm;
}

static void update_all(optimizer_t *optimizer, uint64_t update)
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

/* Returns this rank's ranges, which the caller frees. They change with the group. */
static dist_shard_range_t *own_ranges(const optimizer_t *optimizer, size_t *n)
{
    check(dist_shard_ranges(optimizer->shard, NULL, 0, n));
    dist_shard_range_t *ranges = allocate(*n, sizeof *ranges);
    for (size_t i = 0; i < *n; i++) {
        ranges[i] = (dist_shard_range_t)DIST_SHARD_RANGE_INIT;
    }
    check(dist_shard_ranges(optimizer->shard, ranges, *n, n));
    return ranges;
}

static void update_shard(optimizer_t *optimizer, uint64_t update)
{
    float *states[N_STATES];
    for (size_t state = 0; state < N_STATES; state++) {
        check(dist_shard_state(optimizer->shard, state, &states[state], NULL));
    }
    size_t n;
    dist_shard_range_t *own = own_ranges(optimizer, &n);
    for (size_t i = 0; i < n; i++) {
        adam_range_t range;
        range.values = own[i].data;
        range.gradient = own[i].grad;
        range.mean = states[STATE_MEAN] + own[i].offset;
        range.square = states[STATE_SQUARE] + own[i].offset;
        range.count = own[i].count;
        range.decays = optimizer->model->tensors[own[i].param].dimensions == 2;
        adam_update(&range, optimizer->options->learning_rate, update);
    }
    free(own);
}

void optimizer_update(optimizer_t *optimizer, uint64_t update)
{
    if (optimizer->shard != NULL) {
        update_shard(optimizer, update);
    } else {
        update_all(optimizer, update);
    }
}

dist_status_t optimizer_gather(optimizer_t *optimizer)
{
    if (optimizer->shard == NULL) {
        return DIST_OK;
    }
    if (optimizer->options->survive) {
        return dist_shard_gather(optimizer->shard, NULL);
    }
    optimizer_wait_all(optimizer);
    return dist_shard_gather(optimizer->shard, &optimizer->gather);
}

void optimizer_wait(optimizer_t *optimizer, size_t tensor)
{
    if (optimizer->gather != NULL) {
        check(dist_shard_wait(optimizer->shard, tensor));
    }
}

void optimizer_wait_all(optimizer_t *optimizer)
{
    if (optimizer->gather != NULL) {
        check(dist_work_wait(optimizer->gather, 0));
        check(dist_work_release(optimizer->gather));
        optimizer->gather = NULL;
    }
}
