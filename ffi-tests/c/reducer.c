/*
 * The reducer between ranks that are threads: the gradients after a step, missing parameters,
 * votes, clipping, and updates by bucket. Layouts, buffers and values that all ranks must have are
 * in reducer_layouts.c, random combinations in reducer_random.c.
 */
#include "reducer_model.h"

static void step_with(const struct rank *me, uint64_t flags, int own_grads)
{
    struct model m;
    dist_reducer_t *reducer;
    uint64_t all_votes = 99;
    double mean = (me->size - 1) / 2.0;
    int step;
    size_t p;
    make_model(&m, me->rank, own_grads);
    reducer = make_reducer(me, &m, flags, DIST_DIVIDE_WORLD, DIST_MISSING_ERROR);
    CHECK(m.data[2][7] == 7 && m.running_mean[1] == 0);
    for (step = 0; step < 4; step++) {
        REQUIRE_OK(dist_reducer_begin(reducer, 0, 0));
        for (p = 0; p < PARAMS; p++) {
            /* Each rank marks the parameters in another order. */
            size_t param = (p + (size_t)(me->rank + step)) % PARAMS;
            fill(reducer, param, (float)(me->rank + step));
            CHECK_OK(dist_reducer_ready(reducer, param));
        }
        CHECK_OK(dist_reducer_end(reducer, DIST_VOTE_COMMIT, &all_votes, NULL));
        CHECK(all_votes == DIST_VOTE_COMMIT);
        for (p = 0; p < PARAMS; p++) {
            CHECK(has(reducer, p, mean + step, 1));
        }
    }
    CHECK_OK(dist_reducer_release(reducer));
    free_model(&m);
}

static void every_kind(const struct rank *me)
{
    static const uint64_t flags[] = { 0, DIST_REDUCER_RETRYABLE, DIST_REDUCER_CANONICAL, DIST_REDUCER_MOVE_GRADS,
                                      DIST_REDUCER_STATIC_GRAPH, DIST_REDUCER_UNEVEN, DIST_REDUCER_BROADCAST_BUFFERS };
    size_t f;
    for (f = 0; f < sizeof(flags) / sizeof(flags[0]); f++) {
        step_with(me, flags[f], 0);
        step_with(me, flags[f], 1);
    }
}

/* Gradients are reduced where they are: the addresses stay the same, and no byte is copied. */
static void no_copies(const struct rank *me)
{
    dist_reducer_stats_t stats = DIST_REDUCER_STATS_INIT;
    struct model m;
    dist_reducer_t *reducer;
    void *before = NULL, *after = NULL, *result = NULL;
    size_t p;
    make_model(&m, me->rank, 0);
    reducer = make_reducer(me, &m, 0, DIST_DIVIDE_WORLD, DIST_MISSING_ERROR);
    REQUIRE_OK(dist_reducer_grad(reducer, 2, &before, NULL));
    CHECK(before != NULL && (uintptr_t)before % 64 == 0);
    REQUIRE_OK(dist_reducer_begin(reducer, 0, 0));
    for (p = 0; p < PARAMS; p++) {
        fill(reducer, p, 1);
        CHECK_OK(dist_reducer_ready(reducer, p));
    }
    REQUIRE_OK(dist_reducer_end(reducer, DIST_VOTE_COMMIT, NULL, NULL));
    REQUIRE_OK(dist_reducer_grad(reducer, 2, &after, NULL));
    REQUIRE_OK(dist_reducer_result(reducer, 2, &result, NULL));
    CHECK(before == after && before == result);
    REQUIRE_OK(dist_reducer_stats(reducer, &stats));
    CHECK(stats.bytes_copied == 0 && stats.bytes_reduced >= sizeof(float) * 1305);
    CHECK(stats.steps == 1 && stats.n_buckets == 2 && stats.rebuilds == 0 && stats.step_ns > 0);
    CHECK_OK(dist_reducer_release(reducer));
    free_model(&m);
}

/* The caller's own gradients: a bucket with one of them is reduced in place, too. */
static void one_own_gradient(const struct rank *me)
{
    dist_reducer_stats_t stats = DIST_REDUCER_STATS_INIT;
    dist_param_t param = DIST_PARAM_INIT;
    dist_reducer_t *reducer = NULL;
    float data[2] = { 0, 0 }, grad[2];
    param.name = "only";
    param.data = data;
    param.grad = grad;
    param.count = 2;
    param.dtype = DIST_F32;
    REQUIRE_OK(dist_reducer_create(me->group, &param, 1, NULL, &reducer));
    grad[0] = grad[1] = (float)me->rank;
    REQUIRE_OK(dist_reducer_begin(reducer, 0, 0));
    CHECK_OK(dist_reducer_ready(reducer, 0));
    REQUIRE_OK(dist_reducer_end(reducer, DIST_VOTE_COMMIT, NULL, NULL));
    CHECK(grad[1] == (float)(me->size - 1) / 2);
    REQUIRE_OK(dist_reducer_stats(reducer, &stats));
    CHECK(stats.bytes_copied == 0);
    CHECK_OK(dist_reducer_release(reducer));
}

/* A rank that does not mark a parameter: all ranks get an error with the name and the rank, and
 * can go on. */
static void forgotten_parameter(const struct rank *me)
{
    struct model m;
    dist_reducer_t *reducer;
    uint64_t all_votes = 99;
    char text[64];
    int step;
    size_t p;
    make_model(&m, me->rank, 0);
    reducer = make_reducer(me, &m, 0, DIST_DIVIDE_NONE, DIST_MISSING_ERROR);
    sprintf(text, "\"head\" were not marked on rank %d", me->size - 1);
    for (step = 0; step < 2; step++) {
        REQUIRE_OK(dist_reducer_begin(reducer, 0, 0));
        for (p = 0; p < PARAMS; p++) {
            if (step == 1 || p != 3 || me->rank != me->size - 1) {
                fill(reducer, p, 1);
                CHECK_OK(dist_reducer_ready(reducer, p));
            }
        }
        if (step == 0) {
            CHECK_REFUSED(dist_reducer_end(reducer, DIST_VOTE_COMMIT, &all_votes, NULL), DIST_ERR_INVALID_ARGUMENT, text);
        } else {
            CHECK_OK(dist_reducer_end(reducer, DIST_VOTE_COMMIT, &all_votes, NULL));
        }
        CHECK(all_votes == DIST_VOTE_COMMIT);
    }
    CHECK(has(reducer, 2, me->size, me->size));
    CHECK_OK(dist_reducer_release(reducer));
    free_model(&m);
}

/* A rank that gives up in the middle of a step votes against it, and need not mark anything. */
static void votes(const struct rank *me)
{
    struct model m;
    dist_reducer_t *reducer;
    uint64_t all_votes = 0, mine = me->rank == 0 ? DIST_VOTE_ERROR : me->rank == 2 ? 256 : DIST_VOTE_COMMIT;
    size_t p;
    make_model(&m, me->rank, 0);
    reducer = make_reducer(me, &m, 0, DIST_DIVIDE_WORLD, DIST_MISSING_ERROR);
    REQUIRE_OK(dist_reducer_begin(reducer, 0, 0));
    for (p = 0; p < PARAMS && me->rank != 0; p++) {
        CHECK_OK(dist_reducer_ready(reducer, p));
    }
    CHECK_OK(dist_reducer_end(reducer, mine, &all_votes, NULL));
    CHECK(all_votes == (me->size > 2 ? DIST_VOTE_ERROR + 256 : DIST_VOTE_ERROR));
    CHECK_OK(dist_reducer_release(reducer));
    free_model(&m);
}

/* The norm of all gradients together, and gradients scaled to a norm. */
static void clipping(const struct rank *me)
{
    struct model m;
    dist_reducer_t *reducer;
    double norm = 0, wanted = 0;
    size_t p, i;
    make_model(&m, me->rank, 1);
    reducer = make_reducer(me, &m, 0, DIST_DIVIDE_WORLD, DIST_MISSING_SKIP);
    REQUIRE_OK(dist_reducer_begin(reducer, 0, 0));
    for (p = 1; p < PARAMS; p++) { /* all but "embed", which keeps its gradient */
        fill(reducer, p, 2);
        CHECK_OK(dist_reducer_ready(reducer, p));
    }
    fill(reducer, 0, 50);
    REQUIRE_OK(dist_reducer_end(reducer, DIST_VOTE_COMMIT, NULL, NULL));
    for (p = 1; p < PARAMS; p++) {
        void *grad = NULL;
        size_t count = 0;
        REQUIRE_OK(dist_reducer_result(reducer, p, &grad, &count));
        CHECK(count == counts[p] && has(reducer, p, 2, 1));
        for (i = 0; i < count; i++) {
            /* The average may differ from the exact one in its last bits. */
            double element = (double)((float *)grad)[i];
            wanted += element * element;
        }
    }
    wanted = sqrt(wanted);
    CHECK_OK(dist_reducer_clip(reducer, INFINITY, 2, &norm));
    CHECK(fabs(norm - wanted) < 1e-9 * wanted && has(reducer, 2, 2, 1));
    CHECK_OK(dist_reducer_clip(reducer, INFINITY, INFINITY, &norm));
    CHECK(norm == 8);
    CHECK_OK(dist_reducer_clip(reducer, wanted / 4, 2, &norm));
    CHECK(fabs(norm - wanted) < 1e-9 * wanted && has(reducer, 2, 0.5, 0.25) && has(reducer, 0, 50, 1));
    CHECK_OK(dist_reducer_clip(reducer, 1000 * wanted, 2, &norm));
    CHECK(fabs(norm - wanted / 4) < 1e-5 * wanted && has(reducer, 2, 0.5, 0.25));
    CHECK_OK(dist_reducer_release(reducer));
    free_model(&m);
}

struct update {
    struct model *m;
    size_t updated;
};

static void update_bucket(const dist_bucket_t *bucket, void *user)
{
    struct update *update = user;
    size_t n, i;
    for (n = 0; n < bucket->n_params; n++) {
        const float *grad = (const float *)bucket->data + bucket->offsets[n];
        for (i = 0; i < counts[bucket->params[n]]; i++) {
            update->m->data[bucket->params[n]][i] -= grad[i];
        }
        update->updated++;
    }
    CHECK(bucket->index < bucket->n_buckets && bucket->dtype == DIST_F32 && bucket->struct_size == sizeof(*bucket));
}

/* The optimizer runs bucket by bucket, and is done at the end of the step. */
static void updates_by_bucket(const struct rank *me)
{
    struct model m;
    struct update update;
    dist_reducer_t *reducer;
    size_t p, step;
    make_model(&m, me->rank, 0);
    update.m = &m;
    update.updated = 0;
    reducer = make_reducer(me, &m, 0, DIST_DIVIDE_NONE, DIST_MISSING_ERROR);
    REQUIRE_OK(dist_reducer_on_bucket(reducer, update_bucket, &update));
    for (step = 1; step <= 3; step++) {
        REQUIRE_OK(dist_reducer_begin(reducer, 0, 0));
        for (p = PARAMS; p-- > 0;) {
            fill(reducer, p, 1);
            CHECK_OK(dist_reducer_ready_many(reducer, &p, 1));
        }
        REQUIRE_OK(dist_reducer_end(reducer, DIST_VOTE_COMMIT, NULL, NULL));
        CHECK(update.updated == step * PARAMS);
        CHECK(m.data[3][7] == 7 - (float)(step * (size_t)me->size) && m.data[3][1] == 1 - 2 * (float)(step * (size_t)me->size));
    }
    CHECK_OK(dist_reducer_release(reducer));
    free_model(&m);
}

int main(void)
{
    run_everywhere(every_kind);
    run_everywhere(no_copies);
    run_everywhere(one_own_gradient);
    run_everywhere(forgotten_parameter);
    run_everywhere(votes);
    run_everywhere(clipping);
    run_everywhere(updates_by_bucket);
    return check_report();
}
