/*
 * Tests the example of a back end (c-examples/backend_store) with every call of the library: first
 * with its own operations, then with operations that the library composes from a few of them.
 *
 *   backend_store PLUGIN    ranks are threads; PLUGIN is the shared object
 */
#include "check.h"

#include <math.h>

#define MAX_RANKS 4
#define N 5

/* The operations that the example declares: all, or a few from which the library composes the
 * others. */
#define BIT(kind) (1 << (kind))
static const struct {
    const char *options;
    const char *barrier;
} variants[] = {
    { "", "\"barrier\":\"own\"" },
    /* all_reduce, all_gather, all_gather_v, messages */
    { "only=0x100000209", "\"barrier\":\"made of all_reduce\"" },
    /* reduce, broadcast, barrier, messages */
    { "only=0x100000026", "\"barrier\":\"own\"" },
    /* reduce, broadcast, all_gather, scatter_v, gather_v, all_to_all, all_to_all_v,
     * reduce_scatter_v and messages */
    { "only=0x100003d0e", "\"barrier\":\"made of all_gather\"" },
};
#define VARIANTS ((int)(sizeof(variants) / sizeof(variants[0])))

struct rank {
    dist_store_t *store;
    dist_group_t *group;
    int rank, size, variant;
};

static int32_t input_value(int rank, int i)
{
    return 100 * rank + i + 1;
}

static int has_reduce_scatter(const struct rank *me)
{
    /* The library composes these from all_reduce, which the last two variants lack. */
    return me->variant < 2;
}

static void check_reductions(const struct rank *me)
{
    int32_t own[MAX_RANKS * N], result[MAX_RANKS * N];
    int i, wrong = 0, r, n = me->size;
    for (i = 0; i < n * N; i++) {
        own[i] = input_value(me->rank, i);
    }
    CHECK_OK(dist_all_reduce(me->group, own, result, N, DIST_I32, DIST_SUM, NULL, NULL));
    for (i = 0; i < N; i++) {
        wrong += result[i] != 100 * n * (n - 1) / 2 + n * (i + 1);
    }
    for (r = 0; r < n; r++) {
        memset(result, 0, sizeof(result));
        CHECK_OK(dist_reduce(me->group, own, result, N, DIST_I32, DIST_MAX, r, NULL, NULL));
        for (i = 0; i < N; i++) {
            wrong += result[i] != (me->rank == r ? input_value(n - 1, i) : 0);
        }
    }
    CHECK(wrong == 0);
}

/* The example has averages of floats, also if the sum overflows. It refuses averages of integers,
 * and the error names the operator, the type and the back end. */
static void check_averages(const struct rank *me)
{
    double large[2] = { 1.5e308, 2.0 }, mean[2];
    int32_t own = 2000000000, result = 0;
    int n = me->size;
    large[1] = n * (me->rank + 1);
    CHECK_OK(dist_all_reduce(me->group, large, mean, 2, DIST_F64, DIST_AVG, NULL, NULL));
    CHECK(fabs(mean[0] / 1.5e308 - 1) < 1e-15 && fabs(mean[1] - n * (n + 1) / 2.0) < 1e-12);
    CHECK_STATUS(dist_backend_supports(me->group, DIST_KIND_ALL_REDUCE, DIST_I32, DIST_AVG, DIST_DEVICE_HOST),
                 DIST_ERR_UNSUPPORTED);
    CHECK_REFUSED(dist_all_reduce(me->group, &own, &result, 1, DIST_I32, DIST_AVG, NULL, NULL), DIST_ERR_UNSUPPORTED,
                  "AVG");
    CHECK_MESSAGE("i32");
    CHECK_MESSAGE("store");
    CHECK(result == 0);
}

static void check_scaled_sums(const struct rank *me)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    double own = me->rank + 1, result = 0;
    options.premul_scale = 0.5;
    CHECK_OK(dist_all_reduce(me->group, &own, &result, 1, DIST_F64, DIST_PREMUL_SUM, &options, NULL));
    CHECK(result == 0.25 * me->size * (me->size + 1));
}

/* Pairs of digits and a power of ten; the digits of lower ranks come first. */
static void append_digits(const void *lower, void *inout, size_t count, size_t elem_bytes, void *user)
{
    const int32_t *before = lower;
    int32_t *next = inout;
    size_t i;
    CHECK(elem_bytes == 2 * sizeof(*next) && user == NULL);
    for (i = 0; i < 2 * count; i += 2) {
        next[i] = before[i] * next[i + 1] + next[i];
        next[i + 1] *= before[i + 1];
    }
}

/* Without prefix reductions the library reduces after an all_gather, which the third variant
 * lacks. */
static void check_prefix_reductions(const struct rank *me)
{
    int32_t own[N], result[N], wrong = 0;
    dist_status_t status = me->variant == 2 ? DIST_ERR_UNSUPPORTED : DIST_OK;
    int i, r = me->rank;
    for (i = 0; i < N; i++) {
        own[i] = input_value(r, i);
        result[i] = -1;
    }
    CHECK_STATUS(dist_exscan(me->group, own, result, N, DIST_I32, DIST_SUM, NULL, NULL), status);
    for (i = 0; i < N && status == DIST_OK; i++) {
        wrong += result[i] != (r == 0 ? -1 : 100 * r * (r - 1) / 2 + r * (i + 1));
    }
    CHECK_STATUS(dist_scan(me->group, own, own, N, DIST_I32, DIST_SUM, NULL, NULL), status);
    for (i = 0; i < N && status == DIST_OK; i++) {
        wrong += own[i] != 100 * r * (r + 1) / 2 + (r + 1) * (i + 1);
    }
    CHECK(wrong == 0);
}

static dist_op_t op;

static void check_operators(const struct rank *me)
{
    int32_t own[N][2], result[N][2], all = 0, wrong = 0;
    int i, r;
    for (i = 0; i < N; i++) {
        own[i][0] = me->rank + 1;
        own[i][1] = 10;
    }
    for (r = 0; r < me->size; r++) {
        all = 10 * all + r + 1;
    }
    CHECK_OK(dist_all_reduce(me->group, own, result, N, DIST_OPAQUE, op, NULL, NULL));
    for (i = 0; i < N; i++) {
        wrong += result[i][0] != all;
    }
    CHECK_OK(dist_reduce(me->group, own, result, N, DIST_I64, op, 0, NULL, NULL));
    CHECK_OK(dist_scan(me->group, own, own, N, DIST_OPAQUE, op, NULL, NULL));
    for (r = 0, all = 0; r <= me->rank; r++) {
        all = 10 * all + r + 1;
    }
    for (i = 0; i < N; i++) {
        wrong += own[i][0] != all;
    }
    CHECK(wrong == 0);
}

static void check_reduce_scatters(const struct rank *me)
{
    int32_t own[MAX_RANKS * N], result[N];
    const void *sends[MAX_RANKS];
    size_t counts[MAX_RANKS];
    int i, r, wrong = 0, n = me->size;
    dist_status_t status = has_reduce_scatter(me) ? DIST_OK : DIST_ERR_UNSUPPORTED;
    for (i = 0; i < n * N; i++) {
        own[i] = input_value(me->rank, i);
    }
    CHECK_STATUS(dist_backend_supports(me->group, DIST_KIND_REDUCE_SCATTER, DIST_I32, DIST_SUM, DIST_DEVICE_HOST),
                 status);
    CHECK_STATUS(dist_reduce_scatter(me->group, own, result, N, DIST_I32, DIST_SUM, NULL, NULL), status);
    if (status != DIST_OK) {
        CHECK_MESSAGE("reduce_scatter (i32, SUM)");
        CHECK_MESSAGE("store");
    }
    for (i = 0; i < N && status == DIST_OK; i++) {
        wrong += result[i] != 100 * n * (n - 1) / 2 + n * (me->rank * N + i + 1);
    }
    for (r = 0; r < n; r++) {
        sends[n - 1 - r] = own + r * N;
        counts[r] = (size_t)r + 1;
    }
    if (me->variant == 2) {
        return;
    }
    CHECK_OK(dist_reduce_scatter_v(me->group, sends, counts, result, DIST_I32, DIST_SUM, NULL, NULL));
    for (i = 0; i <= me->rank; i++) {
        wrong += result[i] != 100 * n * (n - 1) / 2 + n * ((n - 1 - me->rank) * N + i + 1);
    }
    CHECK(wrong == 0);
}

static void check_copies(const struct rank *me)
{
    int32_t own[MAX_RANKS * N], result[MAX_RANKS * N];
    int i, r, wrong = 0, n = me->size;
    for (i = 0; i < n * N; i++) {
        own[i] = input_value(me->rank, i);
    }
    for (r = 0; r < n; r++) {
        memcpy(result, own, sizeof(result));
        CHECK_OK(dist_broadcast(me->group, result, N, DIST_I32, r, NULL, NULL));
        for (i = 0; i < N; i++) {
            wrong += result[i] != input_value(r, i);
        }
        memset(result, 0, sizeof(result));
        CHECK_OK(dist_gather(me->group, own, result, N, DIST_I32, r, NULL, NULL));
        for (i = 0; i < n * N; i++) {
            wrong += result[i] != (me->rank == r ? input_value(i / N, i % N) : 0);
        }
        CHECK_OK(dist_scatter(me->group, own, result, N, DIST_I32, r, NULL, NULL));
        for (i = 0; i < N; i++) {
            wrong += result[i] != input_value(r, me->rank * N + i);
        }
    }
    memset(result, 0, sizeof(result));
    memcpy(result + me->rank * N, own, N * sizeof(*result));
    CHECK_OK(dist_all_gather(me->group, result + me->rank * N, result, N, DIST_I32, NULL, NULL));
    for (i = 0; i < n * N; i++) {
        wrong += result[i] != input_value(i / N, i % N);
    }
    CHECK_OK(dist_all_to_all(me->group, own, result, N, DIST_I32, NULL, NULL));
    for (i = 0; i < n * N; i++) {
        wrong += result[i] != input_value(i / N, me->rank * N + i % N);
    }
    CHECK(wrong == 0);
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
}

/* Blocks of 1, 2, 3 ... elements whose addresses are in another order. */
static void check_blocks(const struct rank *me)
{
    int32_t own[MAX_RANKS * N], result[MAX_RANKS * N];
    const void *sends[MAX_RANKS];
    void *recvs[MAX_RANKS];
    size_t counts[MAX_RANKS], same[MAX_RANKS];
    int i, r, wrong = 0, n = me->size;
    for (i = 0; i < n * N; i++) {
        own[i] = input_value(me->rank, i);
    }
    for (r = 0; r < n; r++) {
        sends[r] = own + (n - 1 - r) * N;
        recvs[r] = result + (n - 1 - r) * N;
        counts[r] = (size_t)r;
        same[r] = (size_t)me->rank;
    }
    memset(result, 0, sizeof(result));
    CHECK_OK(dist_all_gather_v(me->group, own, recvs, counts, DIST_I32, NULL, NULL));
    for (r = 0; r < n; r++) {
        for (i = 0; i < N; i++) {
            wrong += ((int32_t *)recvs[r])[i] != (i < r ? input_value(r, i) : 0);
        }
    }
    memset(result, 0, sizeof(result));
    CHECK_OK(dist_gather_v(me->group, own, (size_t)me->rank, recvs, counts, DIST_I32, n - 1, NULL, NULL));
    for (r = 0; r < n; r++) {
        for (i = 0; i < N; i++) {
            wrong += ((int32_t *)recvs[r])[i] != (i < r && me->rank == n - 1 ? input_value(r, i) : 0);
        }
    }
    memset(result, 0, sizeof(result));
    CHECK_OK(dist_scatter_v(me->group, sends, counts, result, (size_t)me->rank, DIST_I32, 0, NULL, NULL));
    for (i = 0; i < N; i++) {
        wrong += result[i] != (i < me->rank ? input_value(0, (n - 1 - me->rank) * N + i) : 0);
    }
    memset(result, 0, sizeof(result));
    /* Each rank sends r elements to rank r, so a rank receives its own number of elements from
     * each peer. */
    CHECK_OK(dist_all_to_all_v(me->group, sends, counts, recvs, same, DIST_I32, NULL, NULL));
    for (r = 0; r < n; r++) {
        for (i = 0; i < N; i++) {
            wrong += ((int32_t *)recvs[r])[i] != (i < me->rank ? input_value(r, (n - 1 - me->rank) * N + i) : 0);
        }
    }
    CHECK(wrong == 0);
}

static void check_messages(const struct rank *me)
{
    int next = (me->rank + 1) % me->size, before = (me->rank + me->size - 1) % me->size, i;
    int64_t first = 0, second = 0;
    int64_t own[2];
    dist_recv_status_t status = DIST_RECV_STATUS_INIT;
    dist_work_t *works[3];
    dist_blob_t *blob = NULL;
    const void *data;
    size_t len;
    own[0] = 10 + me->rank;
    own[1] = 20 + me->rank;
    /* Tag 2 is received first, though it was sent last. */
    CHECK_OK(dist_recv(me->group, &second, 1, DIST_I64, DIST_ANY_SOURCE, 2, NULL, NULL, &works[0]));
    CHECK_OK(dist_send(me->group, &own[0], 1, DIST_I64, next, 1, NULL, &works[1]));
    CHECK_OK(dist_send(me->group, &own[1], 1, DIST_I64, next, 2, NULL, &works[2]));
    for (i = 0; i < 3; i++) {
        CHECK_OK(dist_work_wait(works[i], LIMIT_MS));
    }
    CHECK(dist_work_source(works[0]) == before && dist_work_tag(works[0]) == 2);
    for (i = 0; i < 3; i++) {
        CHECK_OK(dist_work_release(works[i]));
    }
    CHECK_OK(dist_recv(me->group, &first, 1, DIST_I64, before, DIST_ANY_TAG, &status, NULL, NULL));
    CHECK(first == 10 + before && second == 20 + before && status.source == before && status.tag == 1);
    CHECK_OK(dist_send_bytes(me->group, "any length", 10, next, 3, NULL, &works[0]));
    CHECK_OK(dist_recv_bytes(me->group, &blob, 64, before, 3, NULL, NULL, NULL));
    CHECK_OK(dist_work_wait(works[0], LIMIT_MS));
    CHECK_OK(dist_work_release(works[0]));
    CHECK_OK(dist_blob_data(blob, 0, &data, &len));
    CHECK(len == 10 && memcmp(data, "any length", 10) == 0);
    CHECK_OK(dist_blob_release(blob));
}

/* If a receive cannot take a message (too long, or another type), the message stays for the next
 * one. */
static void check_refused_receives(const struct rank *me)
{
    int32_t own[2] = { 1, 2 };
    int32_t small = 0;
    float other[2];
    if (me->rank != 0) {
        return;
    }
    CHECK_OK(dist_send(me->group, own, 2, DIST_I32, 0, 9, NULL, NULL));
    CHECK_REFUSED(dist_recv(me->group, &small, 1, DIST_I32, 0, 9, NULL, NULL, NULL), DIST_ERR_MISMATCH, "longer");
    CHECK_REFUSED(dist_recv(me->group, other, 2, DIST_F32, 0, 9, NULL, NULL, NULL), DIST_ERR_MISMATCH, "type");
    own[0] = 0;
    CHECK_OK(dist_recv(me->group, own, 2, DIST_I32, 0, 9, NULL, NULL, NULL));
    CHECK(small == 0 && own[0] == 1);
}

static void check_works(const struct rank *me)
{
    int32_t own[8], result[8];
    dist_work_t *works[8];
    dist_group_t *child = NULL;
    int i;
    for (i = 0; i < 8; i++) {
        own[i] = me->rank + i;
        CHECK_OK(dist_all_reduce(me->group, &own[i], &result[i], 1, DIST_I32, DIST_SUM, NULL, &works[i]));
    }
    for (i = 0; i < 8; i++) {
        CHECK_OK(dist_work_wait(works[i], LIMIT_MS));
        CHECK_OK(dist_work_release(works[i]));
        CHECK(result[i] == me->size * (me->size - 1) / 2 + me->size * i);
    }
    CHECK_OK(dist_monitored_barrier(me->group, LIMIT_MS, 0, NULL, NULL));
    /* A subgroup, which meets over this group's messages, has the same back end. */
    CHECK_OK(dist_group_split(me->group, me->rank % 2, me->rank, NULL, &child));
    CHECK_OK(dist_all_reduce(child, &own[1], &result[1], 1, DIST_I32, DIST_MIN, NULL, NULL));
    CHECK(result[1] == me->rank % 2 + 1);
    CHECK_OK(dist_group_release(child));
}

static void check_description(const struct rank *me)
{
    dist_blob_t *json = NULL;
    const void *text = "";
    size_t len = 0;
    char name[16] = "", copy[16384];
    CHECK(dist_group_backend(me->group, name, sizeof(name)) == 6 && strcmp(name, "store") == 0);
    CHECK_OK(dist_group_describe(me->group, &json));
    CHECK_OK(dist_blob_data(json, 0, &text, &len));
    len = len < sizeof(copy) ? len : sizeof(copy) - 1;
    memcpy(copy, text, len);
    copy[len] = '\0';
    CHECK(strstr(copy, variants[me->variant].barrier) != NULL && strstr(copy, "everything in the group's store") != NULL);
    CHECK_OK(dist_blob_release(json));
}

static void check_refusals(const struct rank *me)
{
    uint16_t half[N] = { 0 };
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    int32_t one = 1;
    CHECK_REFUSED(dist_all_reduce(me->group, half, half, N, DIST_F16, DIST_SUM, NULL, NULL), DIST_ERR_UNSUPPORTED,
                  "all_reduce (f16, SUM)");
    CHECK_MESSAGE("store");
    CHECK_REFUSED(dist_backend_supports(me->group, DIST_KIND_ALL_REDUCE, DIST_I32, DIST_SUM, 0), DIST_ERR_UNSUPPORTED,
                  "host memory");
    CHECK_OK(dist_backend_supports(me->group, DIST_KIND_BROADCAST, DIST_F16, 0, DIST_DEVICE_HOST));
    options.algorithm = "ring";
    CHECK_REFUSED(dist_all_reduce(me->group, &one, &one, 1, DIST_I32, DIST_SUM, &options, NULL), DIST_ERR_UNSUPPORTED,
                  "ring");
    /* None of these errors has affected the group. */
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
}

static void *run_rank(void *arg)
{
    struct rank *me = arg;
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    options.store = me->store;
    options.name = "over-a-store";
    options.fields = DIST_FIELD_RANK;
    options.rank = me->rank;
    options.world_size = me->size;
    options.backend = "Store";
    options.backend_options = variants[me->variant].options;
    options.connect_timeout_ms = LIMIT_MS;
    options.timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_group_create(&options, &me->group));
    check_description(me);
    check_reductions(me);
    check_averages(me);
    check_scaled_sums(me);
    check_reduce_scatters(me);
    check_prefix_reductions(me);
    check_operators(me);
    check_copies(me);
    check_blocks(me);
    check_messages(me);
    check_refused_receives(me);
    check_works(me);
    check_refusals(me);
    CHECK_OK(dist_group_release(me->group));
    return NULL;
}

static void run_ranks(int size, int variant)
{
    struct rank ranks[MAX_RANKS];
    pthread_t running[MAX_RANKS];
    dist_store_t *store = new_store();
    int64_t left = -1;
    int r;
    for (r = 0; r < size; r++) {
        ranks[r].store = store;
        ranks[r].group = NULL;
        ranks[r].rank = r;
        ranks[r].size = size;
        ranks[r].variant = variant;
        REQUIRE(pthread_create(&running[r], NULL, run_rank, &ranks[r]) == 0);
    }
    for (r = 0; r < size; r++) {
        REQUIRE(pthread_join(running[r], NULL) == 0);
    }
    CHECK_OK(dist_store_num_keys(store, &left));
    printf("%d ranks, variant %d: %d keys are left\n", size, variant, (int)left);
    CHECK_OK(dist_store_release(store));
}

int main(int argc, char **argv)
{
    int size, variant;
    REQUIRE(argc == 2);
    CHECK(!dist_backend_is_available("store"));
    REQUIRE_OK(dist_backend_load(argv[1]));
    CHECK(dist_backend_is_available("STORE"));
    CHECK_REFUSED(dist_backend_load(argv[1]), DIST_ERR_INVALID_ARGUMENT, "\"store\" already");
    CHECK_OK(dist_op_create("append", append_digits, sizeof(int32_t[2]), 0, NULL, &op));
    for (size = 1; size <= MAX_RANKS; size++) {
        for (variant = 0; variant < VARIANTS; variant++) {
            run_ranks(size, variant);
        }
    }
    CHECK_OK(dist_op_release(op));
    return check_report();
}
