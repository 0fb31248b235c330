/*
 * A model of a few parameters of odd sizes that is trained with Adam, sharded over the ranks, and
 * the same training in one process to compare it with. Gradients depend on the rank, the weights
 * and the step.
 */
#ifndef REDUCER_SHARD_H
#define REDUCER_SHARD_H

#include "ranks.h"

#include <math.h>

#define PARAMS 7
#define TOTAL (1 + 5 + 33 + 257 + 1000 + 3 + 64)
#define NEVER 0xffffu

static const size_t counts[PARAMS] = { 1, 5, 33, 257, 1000, 3, 64 };
static const char *const names[PARAMS] = { "a", "b", "c", "d", "e", "f", "g" };

enum mode { ALL_REDUCED, OWNED, REDUCER_MEMORY, SHARED };

struct trainer {
    dist_group_t *group;
    dist_reducer_t *reducer;
    dist_shard_t *shard;
    enum mode mode;
    int32_t copies;
    uint64_t flags;
    int origin; /* the rank whose gradients it computes */
    int steps; /* of the optimizer */
    float weights[TOTAL], grads[TOTAL];
};

static size_t param_offset(size_t param)
{
    size_t p, begin = 0;
    for (p = 0; p < param; p++) {
        begin += counts[p];
    }
    return begin;
}

static float initial_weight(size_t i)
{
    return (float)sin(0.7 * (double)i);
}

static float gradient_value(int origin, int step, size_t i, float weight)
{
    return (float)(tanh((double)weight - cos(0.01 * (double)i + origin)) + 0.1 * sin(step + 3.0 * origin + (double)i));
}

static void run_adam(float *w, float *m, float *v, float g, int step)
{
    *m += 0.1f * (g - *m);
    *v += 0.01f * (g * g - *v);
    *w -= 0.02f * (*m / (1 - (float)pow(0.9, step + 1))) / (sqrtf(*v / (1 - (float)pow(0.99, step + 1))) + 1e-6f);
}

/* The training in one process. */
struct reference {
    float w[TOTAL], m[TOTAL], v[TOTAL];
    int steps;
};

static void reference_init(struct reference *ref)
{
    size_t i;
    memset(ref, 0, sizeof(*ref));
    for (i = 0; i < TOTAL; i++) {
        ref->w[i] = initial_weight(i);
    }
}

/* With the mean of the gradients of the ranks whose bit is set; clipped if max_norm is not 0. */
static void reference_step(struct reference *ref, unsigned origins, double max_norm)
{
    float g[TOTAL];
    double norm = 0;
    size_t i;
    int origin, n = 0;
    for (origin = 0; origin < MOST_RANKS; origin++) {
        n += (origins >> origin & 1) != 0;
    }
    for (i = 0; i < TOTAL; i++) {
        double sum = 0;
        for (origin = 0; origin < MOST_RANKS; origin++) {
            sum += origins >> origin & 1 ? (double)gradient_value(origin, ref->steps, i, ref->w[i]) : 0;
        }
        g[i] = (float)(sum / n);
        norm += (double)g[i] * (double)g[i];
    }
    norm = sqrt(norm);
    for (i = 0; i < TOTAL; i++) {
        float factor = max_norm > 0 && norm > max_norm ? (float)(max_norm / (norm + 1e-6)) : 1;
        run_adam(&ref->w[i], &ref->m[i], &ref->v[i], factor * g[i], ref->steps);
    }
    ref->steps++;
}

static void check_weights(const struct trainer *t, const struct reference *ref)
{
    double largest = 0;
    size_t i;
    for (i = 0; i < TOTAL; i++) {
        largest = fmax(largest, fabs((double)(t->weights[i] - ref->w[i])));
    }
    if (!(largest <= 2e-5)) {
        printf("mode %d, copies %d, rank %d: off by %g\n", (int)t->mode, (int)t->copies, t->origin, largest);
    }
    CHECK(largest <= 2e-5);
}

static void make_reducer(struct trainer *t)
{
    static const dist_param_t init = DIST_PARAM_INIT;
    dist_reducer_options_t options = DIST_REDUCER_OPTIONS_INIT;
    dist_param_t params[PARAMS];
    size_t p;
    for (p = 0; p < PARAMS; p++) {
        params[p] = init;
        params[p].name = names[p];
        params[p].data = t->weights + param_offset(p);
        params[p].count = counts[p];
        params[p].dtype = DIST_F32;
        if (t->mode == OWNED) {
            params[p].grad = t->grads + param_offset(p);
        }
    }
    options.bucket_bytes = 600;
    options.first_bucket_bytes = 300;
    options.flags = t->flags | (t->mode != ALL_REDUCED ? DIST_REDUCER_SHARDED : 0) |
                    (t->mode == SHARED ? DIST_REDUCER_SHARE_GRADS : 0);
    REQUIRE_OK(dist_reducer_create(t->group, params, PARAMS, &options, &t->reducer));
}

static void make_shard(struct trainer *t)
{
    static const char *const states[2] = { "m", "v" };
    dist_shard_options_t options = DIST_SHARD_OPTIONS_INIT;
    options.states = states;
    options.n_states = 2;
    options.copies = t->copies;
    REQUIRE_OK(dist_shard_create(t->reducer, &options, &t->shard));
}

static void open_trainer(struct trainer *t, dist_group_t *group, enum mode mode, int32_t copies, uint64_t flags)
{
    size_t i;
    memset(t, 0, sizeof(*t));
    t->group = group;
    t->mode = mode;
    t->copies = copies;
    t->flags = flags;
    t->origin = dist_get_rank(group);
    for (i = 0; i < TOTAL; i++) {
        t->weights[i] = initial_weight(i);
    }
    make_reducer(t);
    make_shard(t);
}

static void close_trainer(struct trainer *t)
{
    CHECK_OK(dist_shard_release(t->shard));
    CHECK_OK(dist_reducer_release(t->reducer));
}

/* Begins a step and marks all gradients, the last parameter first. */
static void run_backward(struct trainer *t)
{
    size_t p, i;
    CHECK_OK(dist_reducer_begin(t->reducer, 0, 0));
    for (p = PARAMS; p-- > 0;) {
        void *place = NULL;
        float *grad;
        REQUIRE_OK(dist_reducer_grad(t->reducer, p, &place, NULL));
        grad = place;
        for (i = 0; i < counts[p]; i++) {
            grad[i] = gradient_value(t->origin, t->steps, param_offset(p) + i, t->weights[param_offset(p) + i]);
        }
        CHECK_OK(dist_reducer_ready(t->reducer, p));
    }
}

static void update_shard(struct trainer *t)
{
    dist_shard_range_t ranges[64];
    float *m = NULL, *v = NULL;
    size_t n = 0, r, i, count = 0;
    for (r = 0; r < 64; r++) {
        ranges[r].struct_size = sizeof(ranges[r]);
    }
    REQUIRE_OK(dist_shard_ranges(t->shard, ranges, 64, &n));
    REQUIRE(n <= 64);
    REQUIRE_OK(dist_shard_state(t->shard, 0, &m, &count));
    REQUIRE_OK(dist_shard_state(t->shard, 1, &v, NULL));
    for (r = 0; r < n; r++) {
        float *w = ranges[r].data, *g = ranges[r].grad;
        CHECK(w == t->weights + param_offset(ranges[r].param) + ranges[r].begin);
        CHECK(ranges[r].offset + ranges[r].count <= count);
        for (i = 0; i < ranges[r].count; i++) {
            run_adam(&w[i], &m[ranges[r].offset + i], &v[ranges[r].offset + i], g[i], t->steps);
        }
    }
    t->steps++;
}

#endif
