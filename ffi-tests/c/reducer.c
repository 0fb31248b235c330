/*
 * The reducer between ranks that are threads: the gradients after a step, missing parameters,
 * votes, clipping, comparison of values, layouts, and updates by bucket. Random combinations are
 * in reducer_random.c.
 */
#include "ranks.h"

#include <math.h>

#define PARAMS 4

static const size_t counts[PARAMS] = { 5, 0, 1000, 300 };
static const char *const names[PARAMS] = { "embed", "empty", "body", "head" };

/* A model. Every rank has its own copy. */
struct model {
    float *data[PARAMS];
    float *grad[PARAMS];
    float running_mean[3];
    dist_param_t params[PARAMS + 1];
};

static void make_model(struct model *m, int rank, int own_grads)
{
    static const dist_param_t init = DIST_PARAM_INIT;
    size_t p, i;
    memset(m, 0, sizeof(*m));
    for (p = 0; p < PARAMS; p++) {
        m->data[p] = malloc(sizeof(float) * (counts[p] + 1));
        m->grad[p] = own_grads ? malloc(sizeof(float) * (counts[p] + 1)) : NULL;
        REQUIRE(m->data[p] != NULL);
        for (i = 0; i < counts[p]; i++) {
            m->data[p][i] = (float)(100 * rank + (int)i);
        }
        m->params[p] = init;
        m->params[p].name = names[p];
        m->params[p].data = m->data[p];
        m->params[p].grad = m->grad[p];
        m->params[p].count = counts[p];
        m->params[p].dtype = DIST_F32;
    }
    for (i = 0; i < 3; i++) {
        m->running_mean[i] = (float)rank;
    }
    m->params[PARAMS] = init;
    m->params[PARAMS].name = "running_mean";
    m->params[PARAMS].data = m->running_mean;
    m->params[PARAMS].count = 3;
    m->params[PARAMS].dtype = DIST_F32;
    m->params[PARAMS].flags = DIST_PARAM_BUFFER;
}

static void free_model(struct model *m)
{
    size_t p;
    for (p = 0; p < PARAMS; p++) {
        free(m->data[p]);
        free(m->grad[p]);
    }
}

static dist_reducer_t *make_reducer(const struct rank *me, struct model *m, uint64_t flags, int32_t divide, int32_t missing)
{
    dist_reducer_options_t options = DIST_REDUCER_OPTIONS_INIT;
    dist_reducer_t *reducer = NULL;
    options.flags = flags;
    options.divide = divide;
    options.missing = missing;
    options.bucket_bytes = 2000;
    REQUIRE_OK(dist_reducer_create(me->group, m->params, PARAMS + 1, &options, &reducer));
    return reducer;
}

static void fill(dist_reducer_t *reducer, size_t param, float value)
{
    void *grad = NULL;
    size_t count = 99, i;
    REQUIRE_OK(dist_reducer_grad(reducer, param, &grad, &count));
    CHECK(count == counts[param]);
    for (i = 0; i < count; i++) {
        ((float *)grad)[i] = value + (float)(i % 7);
    }
}

/* Returns true if a reduced gradient has the expected values. */
static int has(dist_reducer_t *reducer, size_t param, double value, double step)
{
    void *grad = NULL;
    size_t count = 0, i;
    REQUIRE_OK(dist_reducer_result(reducer, param, &grad, &count));
    for (i = 0; i < count; i++) {
        double wanted = value + step * (double)(i % 7);
        if (fabs(((float *)grad)[i] - wanted) > 1e-5 * (1 + fabs(wanted))) {
            printf("param %lu [%lu] is %g, not %g\n", (unsigned long)param, (unsigned long)i, ((float *)grad)[i], wanted);
            return 0;
        }
    }
    return 1;
}

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
        for (i = 0; i < counts[p]; i++) {
            wanted += (2.0 + (double)(i % 7)) * (2.0 + (double)(i % 7));
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

static void parameter_differences(const struct rank *me)
{
    struct model m;
    dist_reducer_t *reducer;
    dist_blob_t *differences = NULL;
    const void *text = NULL;
    size_t len = 0;
    char wanted[80];
    make_model(&m, me->rank, 0);
    reducer = make_reducer(me, &m, 0, DIST_DIVIDE_WORLD, DIST_MISSING_ERROR);
    REQUIRE_OK(dist_reducer_check(reducer, DIST_REDUCER_PARAMS + DIST_REDUCER_BUFFERS, &differences));
    CHECK(dist_blob_count(differences) == 0);
    CHECK_OK(dist_blob_release(differences));
    if (me->rank == me->size - 1) {
        m.data[3][299] += 1;
    }
    REQUIRE_OK(dist_reducer_check(reducer, DIST_REDUCER_PARAMS, &differences));
    CHECK(dist_blob_count(differences) == (me->size > 1));
    if (me->size > 1) {
        REQUIRE_OK(dist_blob_data(differences, 0, &text, &len));
        sprintf(wanted, "parameter \"head\" of rank %d differs from that of rank 0", me->size - 1);
        CHECK(strcmp(text, wanted) == 0);
    }
    CHECK_OK(dist_blob_release(differences));
    REQUIRE_OK(dist_reducer_broadcast(reducer, me->size - 1, DIST_REDUCER_PARAMS));
    REQUIRE_OK(dist_reducer_check(reducer, DIST_REDUCER_PARAMS, &differences));
    CHECK(dist_blob_count(differences) == 0 && m.data[3][299] == 300);
    CHECK_OK(dist_blob_release(differences));
    CHECK_OK(dist_reducer_release(reducer));
    free_model(&m);
}

/* The layout follows the order of rank 0 after the first step, and is data. */
static void layouts(const struct rank *me)
{
    static const size_t order[PARAMS] = { 2, 0, 3, 1 };
    dist_reducer_options_t options = DIST_REDUCER_OPTIONS_INIT;
    dist_reducer_stats_t stats = DIST_REDUCER_STATS_INIT;
    dist_reducer_t *reducer, *second = NULL;
    dist_blob_t *first_layout = NULL, *layout = NULL, *again = NULL;
    const void *text = NULL, *same = NULL;
    size_t len = 0, same_len = 0, p;
    struct model m;
    int step;
    make_model(&m, me->rank, 1);
    reducer = make_reducer(me, &m, 0, DIST_DIVIDE_WORLD, DIST_MISSING_ERROR);
    REQUIRE_OK(dist_reducer_layout(reducer, &first_layout));
    for (step = 0; step < 3; step++) {
        REQUIRE_OK(dist_reducer_begin(reducer, 0, 0));
        for (p = 0; p < PARAMS; p++) {
            size_t param = me->rank == 0 ? order[p] : p;
            fill(reducer, param, (float)me->rank);
            CHECK_OK(dist_reducer_ready(reducer, param));
        }
        REQUIRE_OK(dist_reducer_end(reducer, DIST_VOTE_COMMIT, NULL, NULL));
        CHECK(has(reducer, 2, (me->size - 1) / 2.0, 1));
    }
    REQUIRE_OK(dist_reducer_stats(reducer, &stats));
    CHECK(stats.rebuilds == 1 && stats.n_buckets == 2);
    REQUIRE_OK(dist_reducer_layout(reducer, &layout));
    REQUIRE_OK(dist_blob_data(layout, 0, &text, &len));
    CHECK(strstr(text, "[\"body\"],[\"embed\",\"head\",\"empty\"]") != NULL);
    options.layout = text;
    options.layout_bytes = me->rank == me->size - 1 ? len : 0;
    if (me->rank != me->size - 1) {
        options.layout = NULL;
    }
    REQUIRE_OK(dist_reducer_create(me->group, m.params, PARAMS + 1, &options, &second));
    REQUIRE_OK(dist_reducer_layout(second, &again));
    REQUIRE_OK(dist_blob_data(again, 0, &same, &same_len));
    CHECK(same_len == len && memcmp(same, text, len) == 0);
    CHECK_OK(dist_blob_release(first_layout));
    CHECK_OK(dist_blob_release(layout));
    CHECK_OK(dist_blob_release(again));
    CHECK_OK(dist_reducer_release(second));
    CHECK_OK(dist_reducer_release(reducer));
    free_model(&m);
}

/* Returns true if the description of a reducer contains a text. */
static int describes(const dist_reducer_t *reducer, const char *wanted)
{
    dist_blob_t *json = NULL;
    const void *text = NULL;
    size_t len = 0;
    int has_it;
    REQUIRE_OK(dist_reducer_describe(reducer, &json));
    REQUIRE_OK(dist_blob_data(json, 0, &text, &len));
    has_it = strstr(text, wanted) != NULL;
    if (!has_it) {
        printf("\"%s\" is not in %s\n", wanted, (const char *)text);
    }
    CHECK_OK(dist_blob_release(json));
    return has_it;
}

/* Beyond the gradients, the reducer allocates one bucket, and only if it collects gradients. */
static void memory_of_buckets(const struct rank *me)
{
    dist_param_t params[32];
    static float data[32][1000], grads[MOST_RANKS][32][1000];
    static char names[32][8];
    int p, own;
    for (own = 0; own < 2; own++) {
        dist_reducer_options_t options = DIST_REDUCER_OPTIONS_INIT;
        dist_reducer_t *reducer = NULL;
        static const dist_param_t init = DIST_PARAM_INIT;
        for (p = 0; p < 32; p++) {
            params[p] = init;
            if (me->rank == 0) {
                sprintf(names[p], "p%d", p);
            }
            params[p].data = data[p];
            params[p].count = 1000;
            params[p].dtype = DIST_F32;
            params[p].grad = own ? grads[me->rank][p] : NULL;
        }
        CHECK_OK(dist_barrier(me->group, NULL, NULL));
        for (p = 0; p < 32; p++) {
            params[p].name = names[p];
        }
        options.bucket_bytes = options.first_bucket_bytes = 8000;
        options.flags = DIST_REDUCER_NO_BROADCAST;
        REQUIRE_OK(dist_reducer_create(me->group, params, 32, &options, &reducer));
        REQUIRE_OK(dist_reducer_begin(reducer, 0, 0));
        for (p = 32; p-- > 0;) {
            CHECK_OK(dist_reducer_ready(reducer, (size_t)p));
        }
        REQUIRE_OK(dist_reducer_end(reducer, DIST_VOTE_COMMIT, NULL, NULL));
        /* 2 gradients of 4000 bytes are a bucket; the second one begins at a multiple of 64. */
        CHECK(describes(reducer, own ? "\"memory_bytes\":8032," : "\"memory_bytes\":128512,"));
        CHECK_OK(dist_reducer_release(reducer));
    }
}

/* Each step begins with the buffers of rank 0. */
static void buffers(const struct rank *me)
{
    struct model m;
    dist_reducer_t *reducer;
    size_t p;
    int step;
    make_model(&m, me->rank, 0);
    reducer = make_reducer(me, &m, DIST_REDUCER_BROADCAST_BUFFERS, DIST_DIVIDE_WORLD, DIST_MISSING_ERROR);
    for (step = 0; step < 2; step++) {
        m.running_mean[2] = (float)(10 * step + me->rank);
        REQUIRE_OK(dist_reducer_begin(reducer, 0, 0));
        CHECK(m.running_mean[2] == (float)(10 * step));
        for (p = 0; p < PARAMS; p++) {
            CHECK_OK(dist_reducer_ready(reducer, p));
        }
        REQUIRE_OK(dist_reducer_end(reducer, DIST_VOTE_COMMIT, NULL, NULL));
    }
    CHECK_OK(dist_reducer_release(reducer));
    free_model(&m);
}

static void one_step(dist_reducer_t *reducer, float value)
{
    size_t p;
    REQUIRE_OK(dist_reducer_begin(reducer, 0, 0));
    for (p = 0; p < PARAMS; p++) { /* not the order of the first layout */
        fill(reducer, p, value);
        CHECK_OK(dist_reducer_ready(reducer, p));
    }
    REQUIRE_OK(dist_reducer_end(reducer, DIST_VOTE_COMMIT, NULL, NULL));
}

/* The last rank joins after two steps: it gets the other ranks' layout, values and number of
 * steps. */
static void a_rank_joins(const struct rank *me)
{
    dist_reducer_options_t options = DIST_REDUCER_OPTIONS_INIT;
    dist_reducer_stats_t stats = DIST_REDUCER_STATS_INIT;
    struct model m;
    dist_group_t *first = NULL;
    dist_reducer_t *reducer = NULL;
    int is_new = me->size > 1 && me->rank == me->size - 1;
    make_model(&m, me->rank + (is_new ? 50 : 0), 1);
    options.bucket_bytes = 2000;
    if (is_new) {
        REQUIRE_OK(dist_reducer_create(me->group, m.params, PARAMS + 1, &options, &reducer));
    } else {
        REQUIRE_OK(join_group(me->store, "first", me->rank, me->size > 1 ? me->size - 1 : 1, &first));
        REQUIRE_OK(dist_reducer_create(first, m.params, PARAMS + 1, &options, &reducer));
        one_step(reducer, 1);
        one_step(reducer, 2);
        m.data[2][1] = 77;
        REQUIRE_OK(dist_reducer_regroup(reducer, me->group));
        CHECK_OK(dist_group_release(first));
    }
    CHECK(m.data[2][1] == 77 && m.data[3][0] == 0);
    one_step(reducer, (float)me->rank);
    CHECK(has(reducer, 2, (me->size - 1) / 2.0, 1));
    REQUIRE_OK(dist_reducer_stats(reducer, &stats));
    CHECK(stats.steps == 3 && stats.n_buckets == 2);
    CHECK(describes(reducer, "[\"embed\",\"empty\",\"body\"]"));
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
    run_everywhere(parameter_differences);
    run_everywhere(layouts);
    run_everywhere(updates_by_bucket);
    run_everywhere(memory_of_buckets);
    run_everywhere(buffers);
    run_everywhere(a_rank_joins);
    return check_report();
}
