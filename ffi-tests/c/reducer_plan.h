/*
 * The plan of a random training (reducer_random.h), and its oracle. A seed decides on the model,
 * the options, and the parameters that each rank uses in each step, on votes, and on failures of
 * the group. All values are small integers, so that sums are exact.
 */
#ifndef REDUCER_PLAN_H
#define REDUCER_PLAN_H

#include "check.h"

#include <math.h>

#define RANKS 4
#define PARAMS 24
#define STEPS 6
#define MICRO 3

struct random {
    uint64_t state;
};

static uint64_t next_random(struct random *r)
{
    uint64_t word = r->state += 0x9e3779b97f4a7c15u;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
    return word ^ (word >> 31);
}

static size_t random_below(struct random *r, size_t limit)
{
    return (size_t)(next_random(r) % limit);
}

static struct random seeded_random(uint64_t seed, uint64_t a, uint64_t b)
{
    struct random r;
    r.state = seed * 1000003u + a * 10007u + b;
    next_random(&r);
    return r;
}

/* How a rank treats a parameter in a step. */
enum use { USED, MARKED_UNUSED, LEFT_OUT };

struct param_plan {
    char name[16];
    size_t count;
    dist_dtype_t dtype;
    int is_owned;
    int is_frozen;
    uint64_t tag;
    int marks; /* in each step, for static graphs */
};

/* The plan of all ranks, equal on each of them. */
struct plan {
    uint64_t seed;
    int size;
    int n_params;
    int n_steps;
    struct param_plan params[PARAMS];
    dist_reducer_options_t options;
    int is_static;
    int is_uneven;
    int is_retryable;
    /* The number of steps for which each rank has data. */
    int steps_of[RANKS];
    int micro[STEPS]; /* steps without communication before each step */
    enum use uses[STEPS][MICRO + 1][RANKS][PARAMS];
    double weight[STEPS][RANKS];
    uint64_t vote[STEPS][RANKS];
    /* In this step, this rank forgets this parameter; -1 for none. */
    int forgetful_step, forgetful_rank, forgotten_param;
    /* After this step, or in it, this rank aborts the group; -1 for none. */
    int abort_step, abort_rank, abort_after;
    int has_function;
    int has_hook;
    int threads;
};

static size_t element_size(dist_dtype_t dtype)
{
    return dtype == DIST_F64 || dtype == DIST_I64 ? 8 : dtype == DIST_F16 || dtype == DIST_BF16 ? 2 : 4;
}

static int is_integer(dist_dtype_t dtype)
{
    return dtype == DIST_I32 || dtype == DIST_I64;
}

/* The contribution of a rank to an element in a step without or with communication. */
static double contribution_of(const struct plan *plan, int step, int micro, int rank, int param, size_t i)
{
    uint64_t mix = plan->seed * 31 + (uint64_t)(step * 7 + micro * 3 + rank * 11 + param * 5) + i * 13;
    return (double)(mix % 9) - 4;
}

static uint16_t to_half(double value)
{
    /* Integers with few bits, and zero. */
    uint16_t sign = value < 0 ? 0x8000 : 0;
    int exponent = 0;
    double fraction;
    if (value == 0) {
        return 0;
    }
    fraction = frexp(fabs(value), &exponent);
    return (uint16_t)(sign | ((exponent + 14) << 10) | ((int)(fraction * 2048) & 0x3ff));
}

static double half_value(uint16_t bits)
{
    int exponent = (bits >> 10) & 31;
    double fraction = bits & 0x3ff;
    double value = exponent == 0 ? ldexp(fraction, -24) : ldexp(fraction + 1024, exponent - 25);
    return exponent == 31 ? (double)INFINITY : bits & 0x8000 ? -value : value;
}

static void store_element(dist_dtype_t dtype, void *at, size_t i, double value)
{
    float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    if (dtype == DIST_F32) {
        ((float *)at)[i] = f;
    } else if (dtype == DIST_F64) {
        ((double *)at)[i] = value;
    } else if (dtype == DIST_I32) {
        ((int32_t *)at)[i] = (int32_t)value;
    } else if (dtype == DIST_I64) {
        ((int64_t *)at)[i] = (int64_t)value;
    } else if (dtype == DIST_BF16) {
        ((uint16_t *)at)[i] = (uint16_t)(bits >> 16);
    } else {
        ((uint16_t *)at)[i] = to_half(value);
    }
}

static double load_element(dist_dtype_t dtype, const void *at, size_t i)
{
    uint32_t bits;
    float f;
    if (dtype == DIST_F32) {
        return ((const float *)at)[i];
    } else if (dtype == DIST_F64) {
        return ((const double *)at)[i];
    } else if (dtype == DIST_I32) {
        return ((const int32_t *)at)[i];
    } else if (dtype == DIST_I64) {
        return (double)((const int64_t *)at)[i];
    } else if (dtype == DIST_BF16) {
        bits = (uint32_t)((const uint16_t *)at)[i] << 16;
        memcpy(&f, &bits, sizeof(f));
        return f;
    }
    return half_value(((const uint16_t *)at)[i]);
}

static void plan_params(struct plan *plan, struct random *r, int host_only)
{
    static const dist_dtype_t dtypes[] = { DIST_F32, DIST_F32, DIST_F32, DIST_F64, DIST_F16, DIST_BF16, DIST_I32, DIST_I64 };
    int has_integers = !plan->has_hook && !plan->is_uneven && (plan->options.divide == DIST_DIVIDE_WORLD || plan->options.divide == DIST_DIVIDE_NONE);
    int one_kind = random_below(r, 2) == 0, owned = random_below(r, 3) != 0, p;
    for (p = 0; p < plan->n_params; p++) {
        struct param_plan *param = &plan->params[p];
        size_t scale = random_below(r, 12);
        sprintf(param->name, "p%d", p);
        param->count = scale == 0 ? 0 : scale < 6 ? 1 + random_below(r, 10) : scale < 11 ? 1 + random_below(r, 3000) : 1 + random_below(r, 40000);
        param->dtype = dtypes[one_kind ? 0 : random_below(r, has_integers ? 8 : 6)];
        param->is_owned = one_kind ? owned : random_below(r, 2) == 0;
        param->is_frozen = random_below(r, 12) == 0;
        param->tag = random_below(r, 8) == 0 ? 1 + random_below(r, 2) : 0;
        param->marks = 1 + (int)random_below(r, 3);
    }
    if (host_only && random_below(r, 50) == 0) {
        plan->params[0].count = 1 + random_below(r, (50u << 20) / element_size(plan->params[0].dtype));
    }
}

static void plan_uses(struct plan *plan, struct random *r)
{
    int step, micro, rank, p;
    int unused_in = 2 + (int)random_below(r, 6), leaves_out = plan->options.missing != DIST_MISSING_ERROR;
    for (step = 0; step < plan->n_steps; step++) {
        plan->micro[step] = plan->is_static ? 0 : (int)random_below(r, 2) * (int)random_below(r, MICRO + 1);
        for (micro = 0; micro <= MICRO; micro++) {
            for (rank = 0; rank < plan->size; rank++) {
                for (p = 0; p < plan->n_params; p++) {
                    enum use unused = leaves_out && random_below(r, 2) ? LEFT_OUT : MARKED_UNUSED;
                    plan->uses[step][micro][rank][p] = random_below(r, (size_t)unused_in) == 0 ? unused : USED;
                    if (plan->is_static && step > 0) {
                        plan->uses[step][micro][rank][p] = plan->uses[0][micro][rank][p];
                    }
                }
            }
        }
        for (rank = 0; rank < plan->size; rank++) {
            plan->weight[step][rank] = (double)random_below(r, 5);
            plan->vote[step][rank] = random_below(r, 12) == 0 ? 1 + random_below(r, 7) : DIST_VOTE_COMMIT;
        }
    }
}

static struct plan *new_plan(uint64_t seed, int host_only)
{
    static const dist_reducer_options_t init = DIST_REDUCER_OPTIONS_INIT;
    struct random r = seeded_random(seed, 1, 2);
    struct plan *plan = calloc(1, sizeof(*plan));
    int rank;
    REQUIRE(plan != NULL);
    plan->seed = seed;
    plan->size = 1 + (int)random_below(&r, RANKS);
    plan->n_params = (int)random_below(&r, PARAMS + 1);
    plan->n_steps = 1 + (int)random_below(&r, STEPS);
    plan->options = init;
    plan->options.bucket_bytes = random_below(&r, 3) == 0 ? 0 : 1 + random_below(&r, 20000);
    plan->options.first_bucket_bytes = random_below(&r, 2) == 0 ? 0 : 1 + random_below(&r, 2000);
    plan->options.divide = (int32_t)random_below(&r, 4);
    plan->options.missing = (int32_t)random_below(&r, 3);
    plan->is_static = random_below(&r, 5) == 0;
    plan->is_uneven = random_below(&r, 5) == 0;
    plan->is_retryable = random_below(&r, 3) == 0;
    plan->options.flags = (plan->is_static ? DIST_REDUCER_STATIC_GRAPH : 0) | (plan->is_uneven ? DIST_REDUCER_UNEVEN : 0) |
                          (plan->is_retryable ? DIST_REDUCER_RETRYABLE : 0) |
                          (random_below(&r, 2) ? DIST_REDUCER_MOVE_GRADS : 0) | (random_below(&r, 4) ? 0 : DIST_REDUCER_FIXED_LAYOUT) |
                          (random_below(&r, 4) || !host_only ? 0 : DIST_REDUCER_CANONICAL) |
                          (random_below(&r, 4) ? 0 : DIST_REDUCER_BROADCAST_BUFFERS);
    plan->has_hook = host_only && random_below(&r, 4) == 0;
    plan_params(plan, &r, host_only);
    plan_uses(plan, &r);
    for (rank = 0; rank < RANKS; rank++) {
        plan->steps_of[rank] = plan->is_uneven ? (int)random_below(&r, (size_t)plan->n_steps + 1) : plan->n_steps;
    }
    plan->forgetful_step = plan->forgetful_rank = plan->forgotten_param = plan->abort_step = -1;
    if (plan->options.missing == DIST_MISSING_ERROR && !plan->is_static && plan->n_params > 0 && random_below(&r, 4) == 0) {
        plan->forgetful_step = (int)random_below(&r, (size_t)plan->n_steps);
        plan->forgetful_rank = (int)random_below(&r, (size_t)plan->size);
        plan->forgotten_param = (int)random_below(&r, (size_t)plan->n_params);
    }
    if (plan->is_retryable && !plan->is_uneven && plan->n_steps > 1 && plan->size > 1 && random_below(&r, 2) == 0) {
        plan->abort_step = (int)random_below(&r, (size_t)plan->n_steps - 1);
        plan->abort_rank = (int)random_below(&r, (size_t)plan->size);
        plan->abort_after = (int)random_below(&r, 3);
    }
    plan->has_function = random_below(&r, 2) == 0;
    plan->threads = 1 + (int)random_below(&r, 2);
    return plan;
}

static int has_data(const struct plan *plan, int step, int rank)
{
    return step < plan->steps_of[rank];
}

/* Returns true if a rank used a parameter in a step or in the preceding steps without
 * communication. */
static int uses(const struct plan *plan, int step, int rank, int p)
{
    int micro, used = 0;
    for (micro = 0; micro <= plan->micro[step]; micro++) {
        used |= plan->uses[step][micro][rank][p] == USED;
    }
    return used && has_data(plan, step, rank);
}

static int is_forgotten(const struct plan *plan, int step, int rank, int p)
{
    return step == plan->forgetful_step && rank == plan->forgetful_rank && p == plan->forgotten_param;
}

/* Returns the sum that a rank has in a gradient before the step communicates. */
static double contribution(const struct plan *plan, int step, int rank, int p, size_t i)
{
    double sum = 0;
    int micro;
    for (micro = 0; micro <= plan->micro[step]; micro++) {
        if (plan->uses[step][micro][rank][p] == USED) {
            sum += contribution_of(plan, step, micro, rank, p, i);
        }
    }
    return sum;
}

/* Returns the element that all ranks with this parameter must get. */
static double expected_element(const struct plan *plan, int step, int p, size_t i)
{
    double sum = 0, weights = 0, active = 0;
    int rank;
    for (rank = 0; rank < plan->size; rank++) {
        double factor = plan->options.divide == DIST_DIVIDE_WEIGHTED ? plan->weight[step][rank] : 1;
        if (has_data(plan, step, rank)) {
            active += 1;
            weights += plan->weight[step][rank];
            sum += uses(plan, step, rank, p) ? factor * contribution(plan, step, rank, p, i) : 0;
        }
    }
    switch (plan->options.divide) {
    case DIST_DIVIDE_NONE:
        return sum;
    case DIST_DIVIDE_INITIAL:
        return sum / plan->size;
    case DIST_DIVIDE_WEIGHTED:
        return weights > 0 ? sum / weights : 0;
    default:
        return is_integer(plan->params[p].dtype) ? trunc(sum / active) : sum / active;
    }
}

static int is_close(const struct plan *plan, dist_dtype_t dtype, double actual, double expected)
{
    double scale = fabs(expected) + 16 * plan->size;
    double relative_error = dtype == DIST_F64 ? 1e-13 : dtype == DIST_F32 ? 1e-6 : dtype == DIST_F16 ? 4e-3 : 3e-2;
    return is_integer(dtype) ? actual == expected : fabs(actual - expected) <= relative_error * scale;
}

#endif
