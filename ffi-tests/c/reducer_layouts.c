/*
 * The state of a reducer that all ranks share: comparison of values, layouts, the memory of
 * buckets, buffers, and the state of a rank that joins.
 */
#include "reducer_model.h"

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

int main(void)
{
    run_everywhere(parameter_differences);
    run_everywhere(layouts);
    run_everywhere(memory_of_buckets);
    run_everywhere(buffers);
    run_everywhere(a_rank_joins);
    return check_report();
}
