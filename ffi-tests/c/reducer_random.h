/*
 * Random trainings against an oracle. A seed decides on the plan (reducer_plan.h), and on the
 * order and the threads of the marks. The ranks are threads of the test.
 *
 * The program that includes this file defines where parameters and gradients are stored (the
 * memory_ functions).
 */
#ifndef REDUCER_RANDOM_H
#define REDUCER_RANDOM_H

#include "reducer_plan.h"

#define UNTOUCHED (-7.0)

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
        is_first &= t->plan->uses[step][m][t->rank][p] != USED;
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
    struct trainer *t;
    int step, micro, first, stride;
    int order[PARAMS];
    int is_last; /* the step communicates */
};

static void *mark_main(void *arg)
{
    struct marks *marks = arg;
    struct trainer *t = marks->t;
    const struct plan *plan = t->plan;
    int n;
    for (n = marks->first; n < plan->n_params; n += marks->stride) {
        int p = marks->order[n], m;
        enum use use = plan->uses[marks->step][marks->micro][t->rank][p];
        int times = plan->is_static && marks->is_last ? plan->params[p].marks : 1;
        if (plan->params[p].is_frozen || (marks->is_last && is_forgotten(plan, marks->step, t->rank, p))) {
            continue;
        }
        if (use == USED) {
            for (m = 0; m < times; m++) {
                CHECK_OK(dist_reducer_ready(t->reducer, (size_t)p));
            }
        } else if (use == MARKED_UNUSED && marks->is_last && !uses(plan, marks->step, t->rank, p)) {
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
    marks[0].t = t;
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
        if (plan->uses[step][micro][t->rank][p] == USED && !plan->params[p].is_frozen) {
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
        if (!uses(plan, step, t->rank, p) && !param->is_frozen) {
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
        used |= uses(plan, step, other, p) && !is_forgotten(plan, step, other, p);
    }
    if (used) {
        return 0;
    }
    if (knows_graph(plan, step)) {
        return 1; /* a parameter that the graph does not use counts as marked unused */
    }
    return plan->options.missing == DIST_MISSING_SKIP || plan->uses[step][plan->micro[step]][rank][p] == MARKED_UNUSED;
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
               !plan->params[plan->forgotten_param].is_frozen && plan->vote[step][plan->forgetful_rank] == DIST_VOTE_COMMIT;
    for (micro = 0; is_wrong && micro < plan->micro[step]; micro++) {
        is_wrong = plan->uses[step][micro][plan->forgetful_rank][plan->forgotten_param] != USED;
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
