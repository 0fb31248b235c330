/*
 * Random trainings against an oracle. A seed decides on the model, the options, and the parameters
 * that each rank uses in each step. It decides on the order and the threads of the marks, on
 * votes, and on failures of the group. The ranks are threads of the test. All values are small
 * integers, so that sums are exact.
 *
 * The program that includes this file defines where parameters and gradients are stored (the
 * memory_ functions).
 */
#ifndef REDUCER_RANDOM_H
#define REDUCER_RANDOM_H

#include "check.h"

#include <math.h>

#define RANKS 4
#define PARAMS 24
#define STEPS 6
#define MICRO 3
#define UNTOUCHED (-7.0)

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
    enum use param_uses[STEPS][MICRO + 1][RANKS][PARAMS];
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

/* Gradient memory of a rank, which the including program provides. */
static void *memory_new(int rank, size_t bytes);
static void memory_free(int rank, void *memory);
static void memory_write(int rank, void *to, const void *from, size_t bytes);
static void memory_read(int rank, void *to, const void *from, size_t bytes);

/* Sets the kind of memory of a parameter. */
static void memory_place(int rank, dist_param_t *param);

struct trainer {
    const struct plan *plan;
    int rank;
    dist_group_t *group;
    dist_reducer_t *reducer;
    void *own_gradients[PARAMS];
    void *data[PARAMS];
    int n_calls[PARAMS + 1];
    void *scratch; /* for one gradient */
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
        param->count = scale == 0 ? 0 : scale < 6 ? 1 + random_below(r, 10) : scale < 11 ? 1 + random_below(r, 3000)
            : 1 + random_below(r, 40000);
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
                    plan->param_uses[step][micro][rank][p] = random_below(r, (size_t)unused_in) == 0 ? unused : USED;
                    if (plan->is_static && step > 0) {
                        plan->param_uses[step][micro][rank][p] = plan->param_uses[0][micro][rank][p];
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
                          (random_below(&r, 2) ? DIST_REDUCER_MOVE_GRADS : 0) | (random_below(&r, 4) ? 0
                                                                                 : DIST_REDUCER_FIXED_LAYOUT) |
                          (random_below(&r, 4) || !host_only ? 0 : DIST_REDUCER_CANONICAL) |
                          (random_below(&r, 4) ? 0 : DIST_REDUCER_BROADCAST_BUFFERS);
    plan->has_hook = host_only && random_below(&r, 4) == 0;
    plan_params(plan, &r, host_only);
    plan_uses(plan, &r);
    for (rank = 0; rank < RANKS; rank++) {
        plan->steps_of[rank] = plan->is_uneven ? (int)random_below(&r, (size_t)plan->n_steps + 1) : plan->n_steps;
    }
    plan->forgetful_step = plan->forgetful_rank = plan->forgotten_param = plan->abort_step = -1;
    if (plan->options.missing == DIST_MISSING_ERROR && !plan->is_static && plan->n_params > 0 &&
        random_below(&r, 4) == 0) {
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
static int uses_param(const struct plan *plan, int step, int rank, int p)
{
    int micro, used = 0;
    for (micro = 0; micro <= plan->micro[step]; micro++) {
        used |= plan->param_uses[step][micro][rank][p] == USED;
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
        if (plan->param_uses[step][micro][rank][p] == USED) {
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
            sum += uses_param(plan, step, rank, p) ? factor * contribution(plan, step, rank, p, i) : 0;
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

static void *gradient_memory(struct trainer *t, int p)
{
    void *grad = NULL;
    REQUIRE_OK(dist_reducer_grad(t->reducer, (size_t)p, &grad, NULL));
    return grad;
}

/* Writes, or adds to, the gradient of a parameter. */
static void compute(struct trainer *t, int step, int micro, int p)
{
    const struct param_plan *param = &t->plan->params[p];
    int m, is_first = 1;
    size_t i, bytes = param->count * element_size(param->dtype);
    for (m = 0; m < micro; m++) {
        is_first &= t->plan->param_uses[step][m][t->rank][p] != USED;
    }
    void *grad = gradient_memory(t, p);
    if (!is_first) {
        memory_read(t->rank, t->scratch, grad, bytes);
    }
    for (i = 0; i < param->count; i++) {
        double before = is_first ? 0 : load_element(param->dtype, t->scratch, i);
        store_element(param->dtype, t->scratch, i, before + contribution_of(t->plan, step, micro, t->rank, p, i));
    }
    memory_write(t->rank, grad, t->scratch, bytes);
}

/* The parameters that a thread marks. */
struct marks {
    struct trainer *trainer;
    int step, micro, first, stride;
    int order[PARAMS];
    int is_last; /* the step communicates */
};

static void *mark_main(void *arg)
{
    struct marks *marks = arg;
    struct trainer *t = marks->trainer;
    const struct plan *plan = t->plan;
    int n;
    for (n = marks->first; n < plan->n_params; n += marks->stride) {
        int p = marks->order[n], m;
        enum use use = plan->param_uses[marks->step][marks->micro][t->rank][p];
        int times = plan->is_static && marks->is_last ? plan->params[p].marks : 1;
        if (plan->params[p].is_frozen || (marks->is_last && is_forgotten(plan, marks->step, t->rank, p))) {
            continue;
        }
        if (use == USED) {
            for (m = 0; m < times; m++) {
                CHECK_OK(dist_reducer_ready(t->reducer, (size_t)p));
            }
        } else if (use == MARKED_UNUSED && marks->is_last && !uses_param(plan, marks->step, t->rank, p)) {
            CHECK_OK(dist_reducer_unused(t->reducer, (size_t)p));
        }
    }
    return NULL;
}

/* Computes and marks the gradients of one step. */
static void run_backward(struct trainer *t, int step, int micro, int is_last)
{
    const struct plan *plan = t->plan;
    struct random r = seeded_random(plan->seed, (uint64_t)(step * 100 + micro), (uint64_t)t->rank);
    struct marks marks[2];
    pthread_t second;
    int n, p;
    marks[0].trainer = t;
    marks[0].step = step;
    marks[0].micro = micro;
    marks[0].is_last = is_last;
    marks[0].stride = plan->threads;
    for (n = 0; n < plan->n_params; n++) {
        int at = (int)random_below(&r, (size_t)n + 1);
        marks[0].order[n] = marks[0].order[at];
        marks[0].order[at] = n;
    }
    for (p = 0; p < plan->n_params; p++) {
        if (plan->param_uses[step][micro][t->rank][p] == USED && !plan->params[p].is_frozen) {
            compute(t, step, micro, p);
        }
    }
    marks[1] = marks[0];
    marks[0].first = 0;
    marks[1].first = 1;
    if (plan->threads == 2) {
        REQUIRE(pthread_create(&second, NULL, mark_main, &marks[1]) == 0);
    }
    mark_main(&marks[0]);
    if (plan->threads == 2) {
        REQUIRE(pthread_join(second, NULL) == 0);
    }
}

/* Fills the gradients that a rank does not use in a step. */
static void fill_untouched(struct trainer *t, int step)
{
    const struct plan *plan = t->plan;
    int p;
    size_t i;
    for (p = 0; p < plan->n_params; p++) {
        const struct param_plan *param = &plan->params[p];
        if (!uses_param(plan, step, t->rank, p) && !param->is_frozen) {
            for (i = 0; i < param->count; i++) {
                store_element(param->dtype, t->scratch, i, UNTOUCHED);
            }
            memory_write(t->rank, gradient_memory(t, p), t->scratch, param->count * element_size(param->dtype));
        }
    }
}

/* Returns true if the ranks know the parameters of a static graph: from the first step without a
 * vote against it. */
static int knows_graph(const struct plan *plan, int step)
{
    int earlier, rank;
    for (earlier = 0; plan->is_static && earlier < step; earlier++) {
        uint64_t votes = 0;
        for (rank = 0; rank < plan->size; rank++) {
            votes |= has_data(plan, earlier, rank) ? plan->vote[earlier][rank] : 0;
        }
        if (votes == DIST_VOTE_COMMIT) {
            return 1;
        }
    }
    return 0;
}

/* Returns true if a parameter keeps this rank's gradient. */
static int keeps_own_gradient(const struct plan *plan, int step, int rank, int p)
{
    int used = 0, other;
    for (other = 0; other < plan->size; other++) {
        used |= uses_param(plan, step, other, p) && !is_forgotten(plan, step, other, p);
    }
    if (used) {
        return 0;
    }
    if (knows_graph(plan, step)) {
        return 1; /* a parameter that the graph does not use counts as marked unused */
    }
    return plan->options.missing == DIST_MISSING_SKIP ||
           plan->param_uses[step][plan->micro[step]][rank][p] == MARKED_UNUSED;
}

static void check_results(struct trainer *t, int step)
{
    const struct plan *plan = t->plan;
    int p;
    size_t i;
    for (p = 0; p < plan->n_params; p++) {
        const struct param_plan *param = &plan->params[p];
        void *result = NULL;
        int is_kept = keeps_own_gradient(plan, step, t->rank, p);
        if (param->is_frozen) {
            continue;
        }
        REQUIRE_OK(dist_reducer_result(t->reducer, (size_t)p, &result, NULL));
        memory_read(t->rank, t->scratch, result, param->count * element_size(param->dtype));
        for (i = 0; i < param->count; i++) {
            double expected = is_kept ? UNTOUCHED : expected_element(plan, step, p, i);
            double actual = load_element(param->dtype, t->scratch, i);
            if (!is_close(plan, param->dtype, actual, expected)) {
                printf("seed %lu: rank %d of %d, step %d, %s [%lu] is %.9g, not %.9g\n", (unsigned long)plan->seed, t->rank,
                       plan->size, step, param->name, (unsigned long)i, actual, expected);
                CHECK(!"a gradient is right");
                return;
            }
        }
    }
}

static void count_bucket(const dist_bucket_t *bucket, void *user)
{
    struct trainer *t = user;
    size_t n;
    for (n = 0; n < bucket->n_params; n++) {
        t->n_calls[bucket->params[n]]++;
    }
}

/* After an abort all ranks continue in a new group. */
static void shrink_and_continue(struct trainer *t)
{
    dist_group_t *left = NULL;
    REQUIRE_OK(dist_group_shrink(t->group, NULL, &left));
    CHECK(dist_get_world_size(left) == t->plan->size);
    REQUIRE_OK(dist_reducer_regroup(t->reducer, left));
    CHECK_OK(dist_group_release(t->group));
    t->group = left;
}

static int is_argument_error(dist_status_t status)
{
    return status == DIST_OK || status == DIST_ERR_INVALID_ARGUMENT;
}

static void abort_group(struct trainer *t, int step, int after)
{
    const struct plan *plan = t->plan;
    if (step == plan->abort_step && t->rank == plan->abort_rank && after == plan->abort_after) {
        CHECK_OK(dist_group_abort(t->group, "a test"));
    }
}

static void finish_step(struct trainer *t, int step)
{
    const struct plan *plan = t->plan;
    uint64_t all_votes = 99, expected = 0;
    dist_status_t status;
    int rank, p, micro, is_wrong, is_asynchronous = !plan->has_function && (plan->seed + (uint64_t)step) % 3 == 0;
    for (rank = 0; rank < plan->size; rank++) {
        expected |= has_data(plan, step, rank) ? plan->vote[step][rank] : 0;
    }
    do {
        dist_work_t *work = NULL;
        status = dist_reducer_end(t->reducer, plan->vote[step][t->rank], &all_votes, is_asynchronous ? &work : NULL);
        if (status == DIST_OK && is_asynchronous) {
            status = dist_work_wait(work, 0);
            CHECK_OK(dist_work_release(work));
        }
        if (!is_argument_error(status)) {
            shrink_and_continue(t);
        }
    } while (!is_argument_error(status));
    is_wrong = step == plan->forgetful_step && has_data(plan, step, plan->forgetful_rank) &&
               !plan->params[plan->forgotten_param].is_frozen &&
               plan->vote[step][plan->forgetful_rank] == DIST_VOTE_COMMIT;
    for (micro = 0; is_wrong && micro < plan->micro[step]; micro++) {
        is_wrong = plan->param_uses[step][micro][plan->forgetful_rank][plan->forgotten_param] != USED;
    }
    CHECK(all_votes == expected);
    if (is_wrong) {
        CHECK(status == DIST_ERR_INVALID_ARGUMENT);
        CHECK_MESSAGE(plan->params[plan->forgotten_param].name);
        return;
    }
    CHECK_STATUS(status, DIST_OK);
    if (step != plan->forgetful_step) {
        check_results(t, step);
    }
    for (p = 0; plan->has_function && p < plan->n_params; p++) {
        int is_called = !plan->params[p].is_frozen && (!plan->is_retryable || expected == 0);
        if (!CHECK(t->n_calls[p] == is_called)) {
            printf("seed %lu: rank %d, step %d: the function was called %d times with %s\n", (unsigned long)plan->seed, t->rank, step,
                   t->n_calls[p], plan->params[p].name);
        }
    }
}

static void run_step(struct trainer *t, int step)
{
    const struct plan *plan = t->plan;
    int micro;
    fill_untouched(t, step);
    for (micro = 0; micro < plan->micro[step]; micro++) {
        CHECK_OK(dist_reducer_begin(t->reducer, 0, DIST_STEP_NO_SYNC));
        run_backward(t, step, micro, 0);
        CHECK_OK(dist_reducer_end(t->reducer, DIST_VOTE_COMMIT, NULL, NULL));
    }
    memset(t->n_calls, 0, sizeof(t->n_calls));
    CHECK_OK(dist_reducer_begin(t->reducer, plan->weight[step][t->rank], 0));
    abort_group(t, step, 0);
    run_backward(t, step, plan->micro[step], 1);
    abort_group(t, step, 1);
    finish_step(t, step);
    abort_group(t, step, 2);
}

/* A function that does the same as the reducer itself. */
static dist_status_t sum_over_ranks(dist_group_t *group, const dist_bucket_t *bucket, uint64_t *bytes_sent, void *user)
{
    (void)bytes_sent;
    (void)user;
    return dist_all_reduce(group, bucket->data, bucket->data, bucket->count, bucket->dtype, DIST_SUM, NULL, NULL);
}

static void make_reducer(struct trainer *t)
{
    static const dist_param_t init = DIST_PARAM_INIT;
    const struct plan *plan = t->plan;
    dist_reducer_options_t options = plan->options;
    dist_param_t params[PARAMS];
    size_t largest = 8;
    int p;
    for (p = 0; p < plan->n_params; p++) {
        const struct param_plan *param = &plan->params[p];
        size_t bytes = param->count * element_size(param->dtype);
        largest = bytes > largest ? bytes : largest;
        params[p] = init;
        params[p].name = param->name;
        params[p].count = param->count;
        params[p].tag = param->tag;
        params[p].flags = param->is_frozen ? DIST_PARAM_FROZEN : 0;
        params[p].dtype = param->dtype;
        params[p].data = t->data[p] = memory_new(t->rank, bytes + 1);
        memory_place(t->rank, &params[p]);
        t->own_gradients[p] = param->is_owned && !param->is_frozen ? memory_new(t->rank, bytes + 1) : NULL;
        params[p].grad = t->own_gradients[p];
    }
    t->scratch = malloc(largest);
    REQUIRE(t->scratch != NULL);
    if (plan->has_hook) {
        options.hook = "add up";
        options.hook_function = sum_over_ranks;
    }
    REQUIRE_OK(dist_reducer_create(t->group, params, (size_t)plan->n_params, &options, &t->reducer));
    if (plan->has_function) {
        CHECK_OK(dist_reducer_on_bucket(t->reducer, count_bucket, t));
    }
}

static void train(struct trainer *t)
{
    const struct plan *plan = t->plan;
    int step, largest = 0, rank, p;
    uint64_t joined = 99;
    make_reducer(t);
    meet_before_abort(t->group);
    for (step = 0; has_data(plan, step, t->rank); step++) {
        run_step(t, step);
    }
    for (rank = 0; rank < plan->size; rank++) {
        largest = plan->steps_of[rank] > largest ? plan->steps_of[rank] : largest;
    }
    if (plan->is_uneven) {
        CHECK_OK(dist_reducer_join(t->reducer, &joined));
        CHECK(joined == (uint64_t)(largest - plan->steps_of[t->rank]));
    }
    CHECK_OK(dist_reducer_release(t->reducer));
    CHECK_OK(dist_group_release(t->group));
    for (p = 0; p < plan->n_params; p++) {
        memory_free(t->rank, t->data[p]);
        if (t->own_gradients[p] != NULL) {
            memory_free(t->rank, t->own_gradients[p]);
        }
    }
    free(t->scratch);
}

#endif
