/*
 * Four ranks as threads of one process: compares every collective with expected values, and
 * tests an abort that releases waiting ranks.
 */
#include "check.h"

#include <sched.h>
#include <time.h>

#define RANKS 4
/* The counts: small ones, and more than the default slot holds. */
#define N_SIZES 4
static const size_t sizes[N_SIZES] = { 1, 17, 5000, 70000 };

struct rank {
    dist_store_t *store;
    dist_group_t *group;
    int rank;
};

static float input_value(int rank, size_t i)
{
    return (float)((rank + 1) * (int)(i % 100 + 1));
}

/* Returns the sum over all ranks: 1 + 2 + 3 + 4 times the index value. */
static float expected_sum(size_t i)
{
    return (float)(10 * (int)(i % 100 + 1));
}

static int are_all_equal_to(const float *x, size_t n, float (*expected)(int, size_t), int rank)
{
    size_t i;
    for (i = 0; i < n; i++) {
        if (x[i] != expected(rank, i)) {
            return 0;
        }
    }
    return 1;
}

static float rank_total(int rank, size_t i)
{
    (void)rank;
    return expected_sum(i);
}

static void fill(float *x, size_t n, int rank)
{
    size_t i;
    for (i = 0; i < n; i++) {
        x[i] = input_value(rank, i);
    }
}

static void check_reductions(const struct rank *me, size_t n, float *x, float *y)
{
    int root;
    fill(x, n, me->rank);
    CHECK_OK(dist_all_reduce(me->group, x, y, n, DIST_F32, DIST_SUM, NULL, NULL));
    CHECK(are_all_equal_to(y, n, rank_total, 0) && are_all_equal_to(x, n, input_value, me->rank));
    CHECK_OK(dist_all_reduce(me->group, x, x, n, DIST_F32, DIST_MAX, NULL, NULL));
    CHECK(are_all_equal_to(x, n, input_value, RANKS - 1));
    for (root = 0; root < RANKS; root++) {
        fill(x, n, me->rank);
        memset(y, 0, n * sizeof(*y));
        CHECK_OK(dist_reduce(me->group, x, me->rank == root ? y : NULL, n, DIST_F32, DIST_SUM, root,
                             NULL, NULL));
        CHECK(me->rank != root || are_all_equal_to(y, n, rank_total, 0));
    }
}

static void check_copies(const struct rank *me, size_t n, float *x, float *received)
{
    int root;
    int r;
    for (root = 0; root < RANKS; root++) {
        fill(x, n, me->rank);
        CHECK_OK(dist_broadcast(me->group, x, n, DIST_F32, root, NULL, NULL));
        CHECK(are_all_equal_to(x, n, input_value, root));
    }
    fill(x, n, me->rank);
    CHECK_OK(dist_all_gather(me->group, x, received, n, DIST_F32, NULL, NULL));
    for (r = 0; r < RANKS; r++) {
        CHECK(are_all_equal_to(received + (size_t)r * n, n, input_value, r));
    }
    /* In place, the own block is already at its position. */
    memset(received, 0, RANKS * n * sizeof(*received));
    fill(received + (size_t)me->rank * n, n, me->rank);
    CHECK_OK(dist_all_gather(me->group, received + (size_t)me->rank * n, received, n, DIST_F32, NULL, NULL));
    for (r = 0; r < RANKS; r++) {
        CHECK(are_all_equal_to(received + (size_t)r * n, n, input_value, r));
    }
}

static void check_scatters(const struct rank *me, size_t n, float *x, float *received)
{
    size_t i;
    int holds = 1;
    fill(received, RANKS * n, me->rank);
    CHECK_OK(dist_reduce_scatter(me->group, received, x, n, DIST_F32, DIST_SUM, NULL, NULL));
    for (i = 0; i < n; i++) {
        holds = holds && x[i] == expected_sum((size_t)me->rank * n + i);
    }
    CHECK(holds);
}

static void *all_collectives(void *arg)
{
    struct rank *me = arg;
    size_t i;
    REQUIRE_OK(join_group(me->store, "threads", me->rank, RANKS, &me->group));
    CHECK(dist_get_rank(me->group) == me->rank && dist_get_world_size(me->group) == RANKS);
    CHECK(dist_group_local_rank(me->group) == me->rank && dist_group_local_size(me->group) == RANKS);
    CHECK(dist_group_host_index(me->group) == 0 && dist_group_host_count(me->group) == 1);
    for (i = 0; i < N_SIZES; i++) {
        size_t n = sizes[i];
        float *x = malloc(n * sizeof(*x));
        float *y = malloc(n * sizeof(*y));
        float *received = malloc(RANKS * n * sizeof(*received));
        REQUIRE(x != NULL && y != NULL && received != NULL);
        check_reductions(me, n, x, y);
        check_copies(me, n, x, received);
        check_scatters(me, n, x, received);
        CHECK_OK(dist_barrier(me->group, NULL, NULL));
        free(x);
        free(y);
        free(received);
    }
    CHECK_OK(dist_all_reduce(me->group, NULL, NULL, 0, DIST_F32, DIST_SUM, NULL, NULL));
    return NULL;
}

/* Waits in a barrier that rank 3 never enters. */
static void *wait_in_barrier(void *arg)
{
    struct rank *me = arg;
    char text[256];
    CHECK_REFUSED(dist_barrier(me->group, NULL, NULL), DIST_ERR_ABORTED, "enough of it");
    CHECK_MESSAGE("rank 0");
    CHECK_REFUSED(dist_barrier(me->group, NULL, NULL), DIST_ERR_ABORTED, "enough of it");
    CHECK(dist_group_error(me->group, text, sizeof(text)) > 1);
    CHECK(strstr(text, "enough of it") != NULL);
    return NULL;
}

/* Returns true if the group's description shows this number of started operations. */
static int has_started(dist_group_t *group, const char *operations)
{
    dist_blob_t *json = NULL;
    const void *text = NULL;
    size_t len = 0;
    int found;
    REQUIRE_OK(dist_group_describe(group, &json));
    REQUIRE_OK(dist_blob_data(json, 0, &text, &len));
    found = strstr(text, operations) != NULL;
    REQUIRE_OK(dist_blob_release(json));
    return found;
}

static void run_ranks(struct rank *ranks, int n, void *(*body)(void *), void (*main_thread)(struct rank *))
{
    pthread_t threads[RANKS];
    int r;
    for (r = 0; r < n; r++) {
        REQUIRE(pthread_create(&threads[r], NULL, body, &ranks[r]) == 0);
    }
    if (main_thread != NULL) {
        main_thread(ranks);
    }
    for (r = 0; r < n; r++) {
        REQUIRE(pthread_join(threads[r], NULL) == 0);
    }
}

static int issued_before;

static void abort_groups(struct rank *ranks)
{
    time_t start = time(NULL);
    char operations[64];
    int r;
    snprintf(operations, sizeof(operations), "\"operations_issued\":%d,", issued_before + 1);
    for (r = 0; r < RANKS - 1; r++) {
        while (!has_started(ranks[r].group, operations)) {
            REQUIRE(time(NULL) - start < LIMIT_MS / 1000);
            sched_yield();
        }
    }
    CHECK_OK(dist_group_abort(ranks[0].group, "enough of it"));
    CHECK_OK(dist_group_abort(ranks[1].group, "a second reason"));
}

int main(void)
{
    struct rank ranks[RANKS];
    dist_store_t *store = new_store();
    int r;
    for (r = 0; r < RANKS; r++) {
        ranks[r].store = store;
        ranks[r].group = NULL;
        ranks[r].rank = r;
    }
    run_ranks(ranks, RANKS, all_collectives, NULL);
    /* Per size: 2 all_reduce, a reduce and a broadcast per root, 2 all_gather, reduce_scatter,
     * barrier. */
    issued_before = N_SIZES * (2 + RANKS + RANKS + 2 + 1 + 1) + 1;
    run_ranks(ranks, RANKS - 1, wait_in_barrier, abort_groups);
    CHECK_REFUSED(dist_barrier(ranks[RANKS - 1].group, NULL, NULL), DIST_ERR_ABORTED, "enough of it");
    for (r = 0; r < RANKS; r++) {
        CHECK_OK(dist_group_release(ranks[r].group));
    }
    CHECK_OK(dist_store_release(store));
    return check_report();
}
