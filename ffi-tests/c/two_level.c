/*
 * Two-level groups of ranks that are threads on emulated hosts. The tests check the results of all
 * operations on equal and unequal hosts, the calls that are not available, and the failure of one
 * rank. They also check the names of groups, and maps without a device.
 */
#include "check.h"

#define MOST_RANKS 5
#define MOST_COUNT 30011
#define UNSUPPORTED DIST_ERR_UNSUPPORTED
#define NAME "inside=native,between=native"

/* The hosts of the ranks: ranks with the same letter are on one host. */
static const char *const layouts[] = { "a", "aa", "ab", "aabb", "abab", "aaab", "abb", "abaa", "ababb", "abcab" };
#define LAYOUTS (sizeof(layouts) / sizeof(layouts[0]))

/* Around the length from which the ranks of a host divide a vector, and longer than a piece. */
static const size_t counts[] = { 0, 1, 7, 1000, 16384, 16387, MOST_COUNT };
#define COUNTS (sizeof(counts) / sizeof(counts[0]))

struct rank {
    dist_store_t *store;
    dist_group_t *group;
    const char *layout;
    const char *backend;
    int rank;
    int size;
    void (*body)(const struct rank *me);
};

static void *rank_main(void *arg)
{
    struct rank *me = arg;
    char options_text[32];
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    sprintf(options_text, "host_id=%c", me->layout[me->rank]);
    options.store = me->store;
    options.name = "ranks";
    options.fields = DIST_FIELD_RANK;
    options.rank = me->rank;
    options.world_size = me->size;
    options.backend = me->backend;
    options.backend_options = options_text;
    options.connect_timeout_ms = LIMIT_MS;
    options.timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_group_create(&options, &me->group));
    me->body(me);
    CHECK_OK(dist_group_release(me->group));
    return NULL;
}

static void run_ranks(const char *layout, const char *backend, void (*body)(const struct rank *me))
{
    struct rank ranks[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    dist_store_t *store = new_store();
    int size = (int)strlen(layout);
    int r;
    for (r = 0; r < size; r++) {
        struct rank rank = { store, NULL, layout, backend, r, size, body };
        ranks[r] = rank;
        REQUIRE(pthread_create(&threads[r], NULL, rank_main, &ranks[r]) == 0);
    }
    for (r = 0; r < size; r++) {
        REQUIRE(pthread_join(threads[r], NULL) == 0);
    }
    CHECK_OK(dist_store_release(store));
}

/* The element that a rank contributes; sums of it are exact in all types. */
static int32_t input(int rank, size_t index)
{
    return (rank + 1) * (int32_t)(index % 7 + 1);
}

static int32_t sum_of(int size, size_t index)
{
    return size * (size + 1) / 2 * (int32_t)(index % 7 + 1);
}

static void check_values(const struct rank *me, const char *call, const int32_t *found, int from, size_t first, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) {
        int32_t expected = from < 0 ? sum_of(me->size, first + i) : input(from, i);
        if (!CHECK(found[i] == expected)) {
            printf("  %s of %lu: rank %d of %s, element %lu: %ld, not %ld\n", call, (unsigned long)count, me->rank,
                   me->layout, (unsigned long)i, (long)found[i], (long)expected);
            return;
        }
    }
}

static void check_count(const struct rank *me, size_t count)
{
    size_t all = count * (size_t)me->size + 1;
    size_t own = count * (size_t)me->rank;
    int32_t *send = calloc(all, sizeof(*send));
    int32_t *recv = calloc(all, sizeof(*recv));
    size_t i;
    int root;
    int r;
    REQUIRE(send != NULL && recv != NULL);
    for (i = 0; i < all; i++) {
        send[i] = input(me->rank, i);
    }
    CHECK_OK(dist_all_reduce(me->group, send, recv, count, DIST_I32, DIST_SUM, NULL, NULL));
    check_values(me, "all_reduce", recv, -1, 0, count);
    for (root = 0; root < me->size; root++) {
        memset(recv, 0, all * sizeof(*recv));
        CHECK_OK(dist_reduce(me->group, send, recv, count, DIST_I32, DIST_SUM, root, NULL, NULL));
        check_values(me, "reduce", recv, -1, 0, me->rank == root ? count : 0);
        memcpy(recv, send, all * sizeof(*recv));
        CHECK_OK(dist_broadcast(me->group, recv, count, DIST_I32, root, NULL, NULL));
        check_values(me, "broadcast", recv, root, 0, count);
    }
    CHECK_OK(dist_reduce_scatter(me->group, send, recv, count, DIST_I32, DIST_SUM, NULL, NULL));
    check_values(me, "reduce_scatter", recv, -1, own, count);
    CHECK_OK(dist_all_gather(me->group, send, recv, count, DIST_I32, NULL, NULL));
    for (r = 0; r < me->size; r++) {
        check_values(me, "all_gather", recv + (size_t)r * count, r, 0, count);
    }
    /* The same in place. */
    memcpy(recv + own, send, count * sizeof(*recv));
    CHECK_OK(dist_all_gather(me->group, recv + own, recv, count, DIST_I32, NULL, NULL));
    for (r = 0; r < me->size; r++) {
        check_values(me, "all_gather in place", recv + (size_t)r * count, r, 0, count);
    }
    memcpy(recv, send, all * sizeof(*recv));
    CHECK_OK(dist_reduce_scatter(me->group, recv, recv + own, count, DIST_I32, DIST_SUM, NULL, NULL));
    check_values(me, "reduce_scatter in place", recv + own, -1, own, count);
    CHECK_OK(dist_all_reduce(me->group, send, send, count, DIST_I32, DIST_SUM, NULL, NULL));
    check_values(me, "all_reduce in place", send, -1, 0, count);
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
    free(send);
    free(recv);
}

/* Averages and factors change the inputs only once, and an average does not overflow. */
static void check_averages(const struct rank *me)
{
    float values[9];
    float huge = 3e38f;
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    int i;
    for (i = 0; i < 9; i++) {
        values[i] = (float)(me->rank * me->size);
    }
    CHECK_OK(dist_all_reduce(me->group, values, values, 9, DIST_F32, DIST_AVG, NULL, NULL));
    for (i = 0; i < 9; i++) {
        float expected = (float)(me->size * (me->size - 1) / 2);
        CHECK(values[i] > expected - 0.01f && values[i] < expected + 0.01f);
    }
    CHECK_OK(dist_all_reduce(me->group, &huge, &huge, 1, DIST_F32, DIST_AVG, NULL, NULL));
    CHECK(huge > 2.9e38f && huge < 3.1e38f);
    options.premul_scale = me->rank + 1;
    values[0] = 1;
    CHECK_OK(dist_all_reduce(me->group, values, values, 1, DIST_F32, DIST_PREMUL_SUM, &options, NULL));
    CHECK(values[0] == (float)(me->size * (me->size + 1) / 2));
    CHECK_REFUSED(dist_all_reduce(me->group, values, values, 1, DIST_I32, DIST_AVG, NULL, NULL), UNSUPPORTED, "use SUM");
}

/* All ranks have the same bits, although the sums are not exact. */
static void check_equal_bits(const struct rank *me)
{
    static const size_t count = MOST_COUNT;
    float *values = calloc(count, sizeof(*values));
    float *first = calloc(count, sizeof(*first));
    size_t i;
    REQUIRE(values != NULL && first != NULL);
    for (i = 0; i < count; i++) {
        values[i] = 1.0f / (float)(i % 101 + 3 + (size_t)me->rank * 7);
    }
    CHECK_OK(dist_all_reduce(me->group, values, values, count, DIST_F32, DIST_SUM, NULL, NULL));
    memcpy(first, values, count * sizeof(*values));
    CHECK_OK(dist_broadcast(me->group, first, count, DIST_F32, 0, NULL, NULL));
    CHECK(memcmp(first, values, count * sizeof(*values)) == 0);
    free(values);
    free(first);
}

static void check_refusals(const struct rank *me)
{
    int32_t values[4 * MOST_RANKS] = { 0 };
    int32_t other[4 * MOST_RANKS] = { 0 };
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    CHECK_REFUSED(dist_gather(me->group, values, other, 4, DIST_I32, 0, NULL, NULL), UNSUPPORTED, "use all_gather");
    CHECK_MESSAGE(NAME);
    CHECK_MESSAGE("dist_group_new");
    CHECK_REFUSED(dist_all_to_all(me->group, values, other, 4, DIST_I32, NULL, NULL), UNSUPPORTED, "send and recv");
    CHECK_REFUSED(dist_scan(me->group, values, other, 4, DIST_I32, DIST_SUM, NULL, NULL), UNSUPPORTED, "scan");
    CHECK_REFUSED(dist_backend_supports(me->group, DIST_KIND_SCATTER, DIST_I32, 0, DIST_DEVICE_HOST), UNSUPPORTED, "broadcast");
    CHECK_OK(dist_backend_supports(me->group, DIST_KIND_REDUCE, DIST_BF16, DIST_AVG, DIST_DEVICE_HOST));
    options.algorithm = "ring";
    CHECK_REFUSED(dist_all_reduce(me->group, values, other, 4, DIST_I32, DIST_SUM, &options, NULL), UNSUPPORTED, "ring");
    /* None of these errors has affected the group. */
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
}

static void check_messages_and_works(const struct rank *me)
{
    dist_work_t *works[6];
    int32_t values[6];
    int32_t got = -1;
    dist_work_t *sent = NULL;
    int i;
    CHECK_OK(dist_send(me->group, &me->rank, 1, DIST_I32, (me->rank + 1) % me->size, 5, NULL, &sent));
    CHECK_OK(dist_recv(me->group, &got, 1, DIST_I32, (me->rank + me->size - 1) % me->size, 5, NULL, NULL, NULL));
    CHECK(got == (me->rank + me->size - 1) % me->size);
    CHECK_OK(dist_work_wait(sent, LIMIT_MS));
    CHECK_OK(dist_work_release(sent));
    for (i = 0; i < 6; i++) {
        values[i] = me->rank + i;
        REQUIRE_OK(dist_all_reduce(me->group, &values[i], &values[i], 1, DIST_I32, DIST_MAX, NULL, &works[i]));
    }
    for (i = 0; i < 6; i++) {
        CHECK_OK(dist_work_wait(works[i], LIMIT_MS));
        CHECK_OK(dist_work_release(works[i]));
        CHECK(values[i] == me->size - 1 + i);
    }
}

/* Returns whether the description of a group contains a text. */
static int describes(dist_group_t *group, const char *text)
{
    dist_blob_t *json = NULL;
    const void *data = NULL;
    size_t len = 0;
    char *copy = NULL;
    int is_found;
    REQUIRE_OK(dist_group_describe(group, &json));
    REQUIRE_OK(dist_blob_data(json, 0, &data, &len));
    copy = calloc(len + 1, 1);
    REQUIRE(copy != NULL);
    memcpy(copy, data, len);
    is_found = strstr(copy, text) != NULL;
    free(copy);
    CHECK_OK(dist_blob_release(json));
    return is_found;
}

static void check_name(const struct rank *me, const char *expected, const char *description)
{
    char name[80] = "";
    CHECK(dist_group_backend(me->group, name, sizeof(name)) == strlen(expected) + 1);
    if (!CHECK(strcmp(name, expected) == 0)) {
        printf("  %s\n", name);
    }
    CHECK(describes(me->group, description));
}

static void check_group(const struct rank *me)
{
    size_t i;
    dist_group_t *child = NULL;
    for (i = 0; i < COUNTS; i++) {
        check_count(me, counts[i]);
    }
    check_averages(me);
    check_equal_bits(me);
    check_refusals(me);
    check_messages_and_works(me);
    check_name(me, NAME, "\"inside the host\"");
    /* A group of the ranks in reverse order has the same back end, and other hosts' leaders. */
    CHECK_OK(dist_group_split(me->group, 0, me->size - me->rank, NULL, &child));
    struct rank reversed = *me;
    reversed.group = child;
    reversed.rank = me->size - 1 - me->rank;
    check_count(&reversed, 17);
    CHECK(describes(child, NAME));
    CHECK_OK(dist_group_release(child));
}

static void check_one_host(const struct rank *me)
{
    check_count(me, 17);
    check_averages(me);
    check_refusals(me);
    check_name(me, NAME, "two-level");
}

/* The last rank aborts the group. The other ranks wait in steps inside hosts and between hosts. */
static void check_abort(const struct rank *me)
{
    static const char reason[] = "enough of this";
    int32_t value = 1;
    if (me->rank == me->size - 1) {
        CHECK_OK(dist_group_abort(me->group, reason));
    }
    CHECK_REFUSED(dist_all_reduce(me->group, &value, &value, 1, DIST_I32, DIST_SUM, NULL, NULL), DIST_ERR_ABORTED, reason);
    CHECK_REFUSED(dist_barrier(me->group, NULL, NULL), DIST_ERR_ABORTED, reason);
}

/* One rank is late; the others name it by its number in the two-level group. */
static void check_late_rank(const struct rank *me)
{
    int late = me->size - 1;
    int32_t value = 1;
    char name[40];
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    dist_culprit_t culprit;
    memset(&culprit, 0, sizeof(culprit));
    culprit.struct_size = sizeof(culprit);
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
    sprintf(name, "rank %d (pid ", late);
    options.timeout_ms = 300;
    if (me->rank == late) {
        /* This rank waits until the group has failed. */
        CHECK_STATUS(dist_recv(me->group, &value, 1, DIST_I32, 0, 9, NULL, NULL, NULL), DIST_ERR_TIMEOUT);
        return;
    }
    CHECK_REFUSED(dist_all_reduce(me->group, &value, &value, 1, DIST_I32, DIST_SUM, &options, NULL), DIST_ERR_TIMEOUT, name);
    CHECK_OK(dist_group_culprit(me->group, &culprit));
    CHECK(culprit.rank == late);
}

static void check_native(const struct rank *me)
{
    int32_t sum = 1;
    CHECK_OK(dist_all_reduce(me->group, &sum, &sum, 1, DIST_I32, DIST_SUM, NULL, NULL));
    CHECK(sum == me->size);
    check_name(me, me->backend, "\"backend\":\"native\"");
}

static void check_names(void)
{
    dist_group_t *group = NULL;
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    dist_store_t *store = new_store();
    options.store = store;
    options.name = "names";
    options.fields = DIST_FIELD_RANK;
    options.world_size = 1;
    options.backend = "inside=native";
    CHECK_REFUSED(dist_group_create(&options, &group), DIST_ERR_INVALID_ARGUMENT, "between=NAME");
    options.backend = "inside=native,between=unheard-of";
    CHECK_REFUSED(dist_group_create(&options, &group), DIST_ERR_NOT_FOUND, "unheard-of");
    options.backend = "cpu:unheard-of";
    CHECK_REFUSED(dist_group_create(&options, &group), DIST_ERR_NOT_FOUND, "unheard-of");
    options.backend = NAME;
    options.backend_options = "between.unheard_of=1";
    CHECK_REFUSED(dist_group_create(&options, &group), DIST_ERR_INVALID_ARGUMENT, "unheard_of");
    CHECK_OK(dist_store_release(store));
    CHECK(dist_backend_is_available("cpu:gloo") == 1 && dist_backend_is_available(NAME) == 1);
    CHECK(dist_backend_is_available("inside=native,between=nccl") == 0);
    run_ranks("aa", "gloo", check_native);
    run_ranks("aa", "native", check_native);
    run_ranks("ab", "cpu:gloo", check_native);
    run_ranks("a", "cpu:native", check_native);
}

int main(void)
{
    size_t i;
    check_names();
    for (i = 0; i < LAYOUTS; i++) {
        int has_hosts = strchr(layouts[i], 'b') != NULL;
        run_ranks(layouts[i], NAME, has_hosts ? check_group : check_one_host);
    }
    run_ranks("aabb", NAME, check_abort);
    run_ranks("aaab", NAME, check_abort);
    run_ranks("aaab", NAME, check_late_rank);
    run_ranks("abab", NAME, check_late_rank);
    return check_report();
}
