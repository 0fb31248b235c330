/*
 * Operators that the caller defines, and prefix reductions, between ranks that are threads:
 * blocking, with works and in batches; refused calls; and mismatching operators.
 */
#include "check.h"

#define RANKS 3
#define COUNT 1000

struct rank {
    dist_store_t *store;
    dist_group_t *group;
    int rank;
};

/* A two-by-two matrix of integers; the product depends on the order. */
struct matrix {
    int64_t m[4];
};

static dist_op_t product; /* of matrices */
static dist_op_t larger;  /* of int32_t */

static struct matrix product_of(const struct matrix *a, const struct matrix *b)
{
    struct matrix c;
    c.m[0] = a->m[0] * b->m[0] + a->m[1] * b->m[2];
    c.m[1] = a->m[0] * b->m[1] + a->m[1] * b->m[3];
    c.m[2] = a->m[2] * b->m[0] + a->m[3] * b->m[2];
    c.m[3] = a->m[2] * b->m[1] + a->m[3] * b->m[3];
    return c;
}

static void multiply_matrices(const void *in, void *inout, size_t count, size_t elem_bytes, void *user)
{
    const struct matrix *lower = in;
    struct matrix *higher = inout;
    size_t i;
    CHECK(elem_bytes == sizeof(*lower) && user == &product);
    for (i = 0; i < count; i++) {
        higher[i] = product_of(&lower[i], &higher[i]);
    }
}

static void keep_larger(const void *in, void *inout, size_t count, size_t elem_bytes, void *user)
{
    const int32_t *lower = in;
    int32_t *higher = inout;
    size_t i;
    CHECK(elem_bytes == sizeof(*lower) && user == NULL);
    for (i = 0; i < count; i++) {
        higher[i] = lower[i] > higher[i] ? lower[i] : higher[i];
    }
}

static struct matrix input_matrix(int rank, size_t i)
{
    struct matrix m;
    m.m[0] = 1 + rank;
    m.m[1] = (int64_t)(i % 5);
    m.m[2] = rank - 1;
    m.m[3] = 2;
    return m;
}

/* Returns true if x is the product of the matrices of the ranks below `end`. */
static int is_product(const struct matrix *x, size_t n, int end)
{
    size_t i;
    int r;
    for (i = 0; i < n; i++) {
        struct matrix all = input_matrix(0, i);
        for (r = 1; r < end; r++) {
            struct matrix next = input_matrix(r, i);
            all = product_of(&all, &next);
        }
        if (memcmp(&all, &x[i], sizeof(all)) != 0) {
            return 0;
        }
    }
    return 1;
}

static void fill(struct matrix *x, size_t n, int rank)
{
    size_t i;
    for (i = 0; i < n; i++) {
        x[i] = input_matrix(rank, i);
    }
}

static void check_blocking_calls(const struct rank *me, size_t n)
{
    static const dist_call_options_t defaults = DIST_CALL_OPTIONS_INIT;
    dist_call_options_t canonical = defaults;
    struct matrix *x = malloc(n * sizeof(*x)), *y = malloc(n * sizeof(*y));
    REQUIRE(x != NULL && y != NULL);
    canonical.flags = DIST_CALL_CANONICAL;
    fill(x, n, me->rank);
    CHECK_OK(dist_all_reduce(me->group, x, y, n, DIST_OPAQUE, product, &canonical, NULL));
    CHECK(is_product(y, n, RANKS));
    memset(y, 0, n * sizeof(*y));
    CHECK_OK(dist_reduce(me->group, x, me->rank == 1 ? y : NULL, n, DIST_OPAQUE, product, 1, NULL, NULL));
    CHECK(me->rank != 1 || is_product(y, n, RANKS));
    CHECK_OK(dist_scan(me->group, x, y, n, DIST_OPAQUE, product, NULL, NULL));
    CHECK(is_product(y, n, me->rank + 1));
    memset(y, 0x5a, n * sizeof(*y));
    CHECK_OK(dist_exscan(me->group, x, y, n, DIST_OPAQUE, product, NULL, NULL));
    CHECK(me->rank == 0 ? y[n - 1].m[3] == 0x5a5a5a5a5a5a5a5aLL : is_product(y, n, me->rank));
    CHECK_OK(dist_all_reduce(me->group, x, x, n, DIST_OPAQUE, product, NULL, NULL));
    CHECK(is_product(x, n, RANKS));
    free(x);
    free(y);
}

/* Reductions with one block per rank. */
static void check_reduce_scatter(const struct rank *me)
{
    static const size_t counts[RANKS] = { 2, 0, 3 };
    const void *parts[RANKS];
    struct matrix x[RANKS * 2], y[3];
    int r;
    for (r = 0; r < RANKS; r++) {
        fill(x + 2 * r, 2, me->rank);
    }
    CHECK_OK(dist_reduce_scatter(me->group, x, y, 2, DIST_OPAQUE, product, NULL, NULL));
    CHECK(is_product(y, 2, RANKS));
    CHECK_OK(dist_reduce_scatter(me->group, x, x + 2 * me->rank, 2, DIST_OPAQUE, product, NULL, NULL));
    CHECK(is_product(x + 2 * me->rank, 2, RANKS));
    fill(x, 3, me->rank);
    parts[0] = x;
    parts[1] = NULL;
    parts[2] = x;
    CHECK_OK(dist_reduce_scatter_v(me->group, parts, counts, y, DIST_OPAQUE, product, NULL, NULL));
    CHECK(is_product(y, counts[me->rank], RANKS));
}

static void check_async_calls(const struct rank *me)
{
    struct matrix x[COUNT], y[COUNT];
    int32_t number = 7 * (me->rank + 1), largest = 0, before = -1;
    dist_work_t *works[2] = { NULL, NULL };
    fill(x, COUNT, me->rank);
    CHECK_OK(dist_scan(me->group, x, y, COUNT, DIST_OPAQUE, product, NULL, &works[0]));
    CHECK_OK(dist_all_reduce(me->group, &number, &largest, 1, DIST_I32, larger, NULL, &works[1]));
    CHECK_OK(dist_work_wait(works[1], 0));
    CHECK_OK(dist_work_wait(works[0], 0));
    CHECK(largest == 7 * RANKS && is_product(y, COUNT, me->rank + 1));
    CHECK_OK(dist_work_release(works[0]));
    CHECK_OK(dist_work_release(works[1]));
    memset(y, 0, sizeof(y));
    largest = 0;
    CHECK_OK(dist_batch_begin(NULL, 0));
    CHECK_OK(dist_all_reduce(me->group, x, y, COUNT, DIST_OPAQUE, product, NULL, NULL));
    CHECK_OK(dist_all_reduce(me->group, &number, &largest, 1, DIST_I32, larger, NULL, NULL));
    CHECK_OK(dist_exscan(me->group, &number, &before, 1, DIST_I32, DIST_SUM, NULL, NULL));
    CHECK_OK(dist_batch_end(NULL));
    CHECK(largest == 7 * RANKS && is_product(y, COUNT, RANKS));
    CHECK(before == (me->rank == 0 ? -1 : 7 * me->rank * (me->rank + 1) / 2));
}

/* Prefix reductions with the library's own operators. */
static void check_prefix_reductions(const struct rank *me)
{
    static const dist_call_options_t defaults = DIST_CALL_OPTIONS_INIT;
    dist_call_options_t scaled = defaults;
    float x[2], y[2] = { -1, -1 };
    scaled.premul_scale = 2;
    x[0] = (float)(me->rank + 1);
    x[1] = -x[0];
    CHECK_OK(dist_scan(me->group, x, y, 2, DIST_F32, DIST_PREMUL_SUM, &scaled, NULL));
    CHECK(y[0] == (float)((me->rank + 1) * (me->rank + 2)) && y[1] == -y[0]);
    y[0] = -1;
    CHECK_OK(dist_exscan(me->group, x, me->rank == 0 ? NULL : y, 2, DIST_F32, DIST_MAX, NULL, NULL));
    CHECK(y[0] == (me->rank == 0 ? -1 : (float)me->rank));
    CHECK_REFUSED(dist_scan(me->group, x, y, 2, DIST_F32, DIST_AVG, NULL, NULL), DIST_ERR_UNSUPPORTED, "AVG");
    CHECK_REFUSED(dist_scan(me->group, x, x + 1, 2, DIST_F32, DIST_SUM, NULL, NULL), DIST_ERR_INVALID_ARGUMENT,
                  "overlap");
}

/* Waits until all ranks have arrived, without the group. */
static void await_all_ranks(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t all_here = PTHREAD_COND_INITIALIZER;
    static int here;
    int round;
    pthread_mutex_lock(&lock);
    round = here / RANKS;
    if (++here % RANKS == 0) {
        pthread_cond_broadcast(&all_here);
    }
    while (here / RANKS == round) {
        pthread_cond_wait(&all_here, &lock);
    }
    pthread_mutex_unlock(&lock);
}

/* A released operator is called until its works are done; its name is free immediately. */
static void released_operator_stays_usable(const struct rank *me)
{
    static dist_op_t brief, again;
    int32_t number = me->rank, largest = -1;
    dist_work_t *work = NULL;
    if (me->rank == 0) {
        CHECK_OK(dist_op_create("brief", keep_larger, sizeof(number), DIST_OP_COMMUTATIVE, NULL, &brief));
    }
    await_all_ranks();
    if (me->rank != 2) {
        CHECK_OK(dist_all_reduce(me->group, &number, &largest, 1, DIST_OPAQUE, brief, NULL, &work));
    }
    await_all_ranks();
    if (me->rank == 0) {
        CHECK_OK(dist_op_release(brief));
        CHECK_REFUSED(dist_op_release(brief), DIST_ERR_INVALID_ARGUMENT, "released");
    }
    await_all_ranks();
    if (me->rank == 2) {
        CHECK_OK(dist_op_create("brief", keep_larger, sizeof(number), DIST_OP_COMMUTATIVE, NULL, &again));
        CHECK(again != brief);
        CHECK_OK(dist_all_reduce(me->group, &number, &largest, 1, DIST_OPAQUE, again, NULL, NULL));
        CHECK_OK(dist_op_release(again));
    } else {
        CHECK_OK(dist_work_wait(work, 0));
        CHECK_OK(dist_work_release(work));
    }
    CHECK(largest == RANKS - 1);
    CHECK_REFUSED(dist_all_reduce(me->group, &number, &largest, 1, DIST_OPAQUE, brief, NULL, NULL),
                  DIST_ERR_INVALID_ARGUMENT, "released");
}

static void check_refusals(const struct rank *me)
{
    int64_t a[4] = { 0, 0, 0, 0 }, b[4];
    CHECK_REFUSED(dist_all_reduce(me->group, a, b, 4, DIST_I64, larger, NULL, NULL), DIST_ERR_INVALID_ARGUMENT,
                  "i64 has 8");
    CHECK_REFUSED(dist_all_reduce(me->group, a, b, 4, DIST_OPAQUE, DIST_SUM, NULL, NULL), DIST_ERR_INVALID_ARGUMENT,
                  "DIST_OPAQUE");
    CHECK_OK(dist_backend_supports(me->group, DIST_KIND_EXSCAN, DIST_OPAQUE, product, DIST_DEVICE_HOST));
    CHECK_OK(dist_backend_supports(me->group, DIST_KIND_SCAN, DIST_I32, DIST_BXOR, DIST_DEVICE_HOST));
    CHECK_STATUS(dist_backend_supports(me->group, DIST_KIND_SCAN, DIST_F32, DIST_AVG, DIST_DEVICE_HOST),
                 DIST_ERR_UNSUPPORTED);
    CHECK_STATUS(dist_backend_supports(me->group, DIST_KIND_REDUCE, DIST_OPAQUE, product, 0), DIST_ERR_UNSUPPORTED);
    CHECK_STATUS(dist_broadcast(me->group, a, 1, DIST_OPAQUE, 0, NULL, NULL), DIST_ERR_INVALID_ARGUMENT);
    CHECK_REFUSED(dist_scan(me->group, a, b, SIZE_MAX / 2, DIST_OPAQUE, larger, NULL, NULL),
                  DIST_ERR_INVALID_ARGUMENT, "address space");
}

/* This test is the last one, since it fails the group. Every rank's error has both names. */
static void differing_operators_are_named(const struct rank *me)
{
    int32_t number = me->rank, largest = 0;
    dist_op_t op = larger;
    if (me->rank == 2) {
        CHECK_OK(dist_op_create("smaller", keep_larger, sizeof(number), DIST_OP_COMMUTATIVE, NULL, &op));
    }
    CHECK_STATUS(dist_all_reduce(me->group, &number, &largest, 1, DIST_I32, op, NULL, NULL), DIST_ERR_MISMATCH);
    CHECK_MESSAGE("\"smaller\"");
    CHECK_MESSAGE("\"larger\"");
    if (me->rank == 2) {
        CHECK_OK(dist_op_release(op));
    }
}

static void *run_all_checks(void *arg)
{
    struct rank *me = arg;
    REQUIRE_OK(join_group(me->store, "operators", me->rank, RANKS, &me->group));
    check_blocking_calls(me, 1);
    check_blocking_calls(me, COUNT);
    check_blocking_calls(me, 20 * COUNT);
    check_reduce_scatter(me);
    check_async_calls(me);
    check_prefix_reductions(me);
    released_operator_stays_usable(me);
    check_refusals(me);
    differing_operators_are_named(me);
    CHECK_OK(dist_group_release(me->group));
    return NULL;
}

static void check_creation(void)
{
    char name[50];
    dist_op_t op = 0;
    memset(name, 'n', sizeof(name));
    name[49] = 0;
    CHECK_REFUSED(dist_op_create("larger", keep_larger, 4, 0, NULL, &op), DIST_ERR_INVALID_ARGUMENT, "larger");
    CHECK_REFUSED(dist_op_create(name, keep_larger, 4, 0, NULL, &op), DIST_ERR_INVALID_ARGUMENT, "48");
    CHECK_REFUSED(dist_op_create("", keep_larger, 4, 0, NULL, &op), DIST_ERR_INVALID_ARGUMENT, "name");
    CHECK_REFUSED(dist_op_create("none", keep_larger, 0, 0, NULL, &op), DIST_ERR_INVALID_ARGUMENT, "elem_bytes");
    CHECK_REFUSED(dist_op_create("huge", keep_larger, 1048577, 0, NULL, &op), DIST_ERR_INVALID_ARGUMENT, "elem_bytes");
    CHECK_REFUSED(dist_op_create("odd", keep_larger, 4, 2, NULL, &op), DIST_ERR_UNSUPPORTED, "flags");
    CHECK(op == 0);
    name[48] = 0;
    CHECK_OK(dist_op_create(name, keep_larger, 1048576, 0, NULL, &op));
    CHECK_OK(dist_op_release(op));
    CHECK_STATUS(dist_op_release(op), DIST_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(dist_op_release(DIST_SUM), DIST_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(dist_op_release(-1), DIST_ERR_INVALID_ARGUMENT);
}

int main(void)
{
    struct rank ranks[RANKS];
    pthread_t threads[RANKS];
    dist_store_t *store = new_store();
    int r;
    CHECK_OK(dist_op_create("product", multiply_matrices, sizeof(struct matrix), 0, &product, &product));
    CHECK_OK(dist_op_create("larger", keep_larger, sizeof(int32_t), DIST_OP_COMMUTATIVE, NULL, &larger));
    check_creation();
    for (r = 0; r < RANKS; r++) {
        ranks[r].store = store;
        ranks[r].group = NULL;
        ranks[r].rank = r;
        REQUIRE(pthread_create(&threads[r], NULL, run_all_checks, &ranks[r]) == 0);
    }
    for (r = 0; r < RANKS; r++) {
        REQUIRE(pthread_join(threads[r], NULL) == 0);
    }
    CHECK_OK(dist_op_release(product));
    CHECK_OK(dist_op_release(larger));
    CHECK_OK(dist_store_release(store));
    return check_report();
}
