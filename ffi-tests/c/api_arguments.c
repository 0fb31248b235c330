/*
 * Wrong arguments of collectives: each call is refused before it has any effect, and the group
 * stays usable.
 */
#include "check.h"

#define INVALID DIST_ERR_INVALID_ARGUMENT
#define UNSUPPORTED DIST_ERR_UNSUPPORTED

static float a[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
static float b[8];

static dist_status_t reduce_all(size_t count, dist_dtype_t dtype, dist_op_t op)
{
    return dist_all_reduce(dist_world(), a, b, count, dtype, op, NULL, NULL);
}

static void check_types_and_operators(void)
{
    CHECK_REFUSED(reduce_all(1, -1, DIST_SUM), INVALID, "-1");
    CHECK_REFUSED(reduce_all(1, 17, DIST_SUM), INVALID, "17");
    CHECK_REFUSED(reduce_all(1, DIST_OPAQUE + 1, DIST_SUM), INVALID, "not a dist_dtype_t");
    CHECK_REFUSED(reduce_all(1, INT32_MAX, DIST_SUM), INVALID, "2147483647");
    CHECK_REFUSED(reduce_all(1, DIST_F32, -1), INVALID, "-1");
    CHECK_REFUSED(reduce_all(1, DIST_F32, DIST_PREMUL_SUM + 1), INVALID, "not a dist_op_t");
    CHECK_REFUSED(reduce_all(1, DIST_MAX, DIST_I32), INVALID, "swapped");
    CHECK_REFUSED(dist_broadcast(dist_world(), b, 1, 99, 0, NULL, NULL), INVALID, "99");
    CHECK_REFUSED(dist_all_gather(dist_world(), a, b, 1, 99, NULL, NULL), INVALID, "99");
    CHECK_REFUSED(dist_reduce_scatter(dist_world(), a, b, 1, 99, DIST_SUM, NULL, NULL), INVALID, "99");
    CHECK_REFUSED(dist_reduce(dist_world(), a, b, 1, 99, DIST_SUM, 0, NULL, NULL), INVALID, "99");
    /* An undefined combination is refused with an error that names it and the back end. */
    CHECK_REFUSED(reduce_all(1, DIST_F32, DIST_BAND), UNSUPPORTED, "native");
    CHECK_OK(dist_backend_supports(dist_world(), DIST_KIND_REDUCE, DIST_F16, DIST_AVG, DIST_DEVICE_HOST));
    CHECK_OK(dist_backend_supports(dist_world(), DIST_KIND_BARRIER, -1, -1, DIST_DEVICE_HOST));
    CHECK_OK(dist_backend_supports(dist_world(), DIST_KIND_SEND, DIST_C64, -1, DIST_DEVICE_HOST));
    CHECK_REFUSED(dist_backend_supports(dist_world(), DIST_KIND_REDUCE_SCATTER_V, DIST_C64, DIST_MAX,
                                        DIST_DEVICE_HOST),
                  UNSUPPORTED, "MAX is not defined on c64 elements (back end native)");
    CHECK_REFUSED(dist_backend_supports(dist_world(), DIST_KIND_ALL_REDUCE, DIST_F32, DIST_SUM, 0), UNSUPPORTED,
                  "all_reduce (f32, SUM) in memory of device 0: the back end native");
    CHECK_REFUSED(dist_backend_supports(dist_world(), 16, DIST_F32, DIST_SUM, DIST_DEVICE_HOST), INVALID, "16");
    CHECK_REFUSED(dist_backend_supports(dist_world(), DIST_KIND_SEND, 99, 0, DIST_DEVICE_HOST), INVALID, "99");
    CHECK_REFUSED(dist_backend_supports(dist_world(), DIST_KIND_SEND, DIST_F32, 0, -2), INVALID, "-2");
    CHECK_REFUSED(reduce_all(1, DIST_C64, DIST_MAX), UNSUPPORTED, "MAX");
    CHECK_REFUSED(reduce_all(1, DIST_C64, DIST_PRODUCT), UNSUPPORTED, "PRODUCT");
    CHECK_REFUSED(reduce_all(1, DIST_BOOL, DIST_AVG), UNSUPPORTED, "AVG");
    CHECK_REFUSED(reduce_all(1, DIST_I32, DIST_PREMUL_SUM), UNSUPPORTED, "PREMUL_SUM");
    CHECK_REFUSED(reduce_all(1, DIST_F32, DIST_PREMUL_SUM), INVALID, "premul_scale");
}

static void check_roots(void)
{
    static const int32_t wrong[] = { -1, 1, INT32_MAX, INT32_MIN };
    size_t i;
    for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        CHECK_REFUSED(dist_broadcast(dist_world(), b, 1, DIST_F32, wrong[i], NULL, NULL), INVALID, "root");
        CHECK_REFUSED(dist_reduce(dist_world(), a, b, 1, DIST_F32, DIST_SUM, wrong[i], NULL, NULL), INVALID,
                      "root");
    }
}

static void check_counts(void)
{
    static const size_t wrong[] = { SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 4, SIZE_MAX / 8 + 1 };
    size_t i;
    for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        CHECK_REFUSED(reduce_all(wrong[i], DIST_F64, DIST_SUM), INVALID, "address space");
        CHECK_REFUSED(dist_broadcast(dist_world(), b, wrong[i], DIST_F64, 0, NULL, NULL), INVALID, "f64");
        CHECK_REFUSED(dist_all_gather(dist_world(), a, b, wrong[i], DIST_F64, NULL, NULL), INVALID, "f64");
        CHECK_REFUSED(dist_reduce(dist_world(), a, b, wrong[i], DIST_F64, DIST_SUM, 0, NULL, NULL), INVALID,
                      "f64");
        CHECK_REFUSED(dist_reduce_scatter(dist_world(), a, b, wrong[i], DIST_F64, DIST_SUM, NULL, NULL),
                      INVALID, "f64");
    }
}

static void check_store_lengths(void)
{
    dist_store_t *store = new_store();
    CHECK_REFUSED(dist_store_set(store, "k", DIST_TERMINATED, "v", SIZE_MAX), INVALID, "address space");
    CHECK_REFUSED(dist_store_append(store, "k", DIST_TERMINATED, "v", SIZE_MAX / 2 + 1), INVALID, "address space");
    CHECK_OK(dist_store_release(store));
}

static void check_overlaps(void)
{
    CHECK_REFUSED(dist_all_reduce(dist_world(), b, b + 1, 4, DIST_F32, DIST_SUM, NULL, NULL), INVALID, "overlap");
    CHECK_REFUSED(dist_all_reduce(dist_world(), b + 1, b, 4, DIST_F32, DIST_SUM, NULL, NULL), INVALID, "overlap");
    CHECK_REFUSED(dist_reduce(dist_world(), b, b + 3, 4, DIST_F32, DIST_SUM, 0, NULL, NULL), INVALID, "overlap");
    CHECK_REFUSED(dist_all_gather(dist_world(), b, b + 1, 4, DIST_F32, NULL, NULL), INVALID, "rank * count");
    CHECK_REFUSED(dist_reduce_scatter(dist_world(), b, b + 1, 4, DIST_F32, DIST_SUM, NULL, NULL), INVALID,
                  "rank * count");
    CHECK_OK(dist_all_reduce(dist_world(), b, b + 4, 4, DIST_F32, DIST_SUM, NULL, NULL));
    CHECK_OK(dist_all_reduce(dist_world(), b, b, 4, DIST_F32, DIST_SUM, NULL, NULL));
    CHECK_OK(dist_all_gather(dist_world(), b, b, 4, DIST_F32, NULL, NULL));
    CHECK_OK(dist_reduce_scatter(dist_world(), b, b, 4, DIST_F32, DIST_SUM, NULL, NULL));
}

static void check_call_options(void)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    options.timeout_ms = -2;
    CHECK_REFUSED(dist_barrier(dist_world(), &options, NULL), INVALID, "timeout_ms");
    options.timeout_ms = DIST_WAIT_FOREVER;
    CHECK_OK(dist_barrier(dist_world(), &options, NULL));
    options.timeout_ms = 0;
    options.premul_scale = 0.5;
    CHECK_OK(dist_all_reduce(dist_world(), a, b, 8, DIST_F32, DIST_PREMUL_SUM, &options, NULL));
    CHECK(b[0] == 0.5f && b[7] == 4.0f);
    options.algorithm = "nonesuch";
    CHECK_REFUSED(dist_all_reduce(dist_world(), a, b, 8, DIST_F32, DIST_SUM, &options, NULL), INVALID, "nonesuch");
    options.algorithm = "two_shot";
    CHECK_OK(dist_all_reduce(dist_world(), a, b, 8, DIST_F32, DIST_SUM, &options, NULL));
    options.algorithm = "\xff";
    CHECK_REFUSED(dist_barrier(dist_world(), &options, NULL), INVALID, "algorithm");
}

/* Every collective gives a work, or none if it is refused. Timeout values that only waits accept
 * are refused. */
static void check_works(void)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    dist_work_t *works[6];
    dist_work_t *no_work = (dist_work_t *)a;
    uint64_t first;
    int i;
    CHECK_OK(dist_all_reduce(dist_world(), a, b, 1, DIST_F32, DIST_SUM, NULL, &works[0]));
    first = dist_work_sequence(works[0]);
    CHECK_OK(dist_reduce(dist_world(), a, b, 1, DIST_F32, DIST_SUM, 0, NULL, &works[1]));
    CHECK_OK(dist_reduce_scatter(dist_world(), a, b, 1, DIST_F32, DIST_SUM, NULL, &works[2]));
    CHECK_OK(dist_broadcast(dist_world(), b, 1, DIST_F32, 0, NULL, &works[3]));
    CHECK_OK(dist_all_gather(dist_world(), a, b, 1, DIST_F32, NULL, &works[4]));
    CHECK_OK(dist_barrier(dist_world(), NULL, &works[5]));
    for (i = 0; i < 6; i++) {
        CHECK_OK(dist_work_wait(works[i], 0));
        CHECK(dist_work_sequence(works[i]) == first + (uint64_t)i);
        CHECK_OK(dist_work_release(works[i]));
    }
    CHECK_REFUSED(dist_broadcast(dist_world(), b, 1, DIST_F32, 7, NULL, &no_work), INVALID, "root");
    CHECK(no_work == NULL);
    options.timeout_ms = DIST_NO_WAIT;
    CHECK_REFUSED(dist_barrier(dist_world(), &options, &no_work), INVALID, "DIST_NO_WAIT");
}

/* All checks run again with a group of two ranks, whose other rank makes no call. */
static void *run_second_rank(void *store)
{
    dist_group_t *group = NULL;
    float x[2] = { 1, 2 };
    REQUIRE_OK(join_group(store, "two", 1, 2, &group));
    CHECK_OK(dist_all_reduce(group, x, x, 2, DIST_F32, DIST_SUM, NULL, NULL));
    CHECK(x[0] == 2 && x[1] == 4);
    CHECK_OK(dist_group_release(group));
    return NULL;
}

static void refused_calls_have_no_effect(void)
{
    dist_store_t *store = new_store();
    dist_group_t *group = NULL;
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    pthread_t thread;
    float x[2] = { 1, 2 };
    REQUIRE(pthread_create(&thread, NULL, run_second_rank, store) == 0);
    REQUIRE_OK(join_group(store, "two", 0, 2, &group));
    options.algorithm = "nonesuch";
    CHECK_REFUSED(dist_all_reduce(group, x, x, 2, DIST_F32, DIST_SUM, &options, NULL), INVALID,
                  "nonesuch");
    CHECK_STATUS(dist_all_reduce(group, x, x, 2, DIST_F32, DIST_BOR, NULL, NULL), UNSUPPORTED);
    CHECK_STATUS(dist_broadcast(group, x, 2, DIST_F32, 2, NULL, NULL), INVALID);
    CHECK_STATUS(dist_all_gather(group, x, x, SIZE_MAX / 8, DIST_F32, NULL, NULL), INVALID);
    CHECK(dist_group_error(group, NULL, 0) == 1);
    CHECK_OK(dist_all_reduce(group, x, x, 2, DIST_F32, DIST_SUM, NULL, NULL));
    CHECK(x[0] == 2 && x[1] == 4);
    REQUIRE(pthread_join(thread, NULL) == 0);
    CHECK_OK(dist_group_release(group));
    CHECK_OK(dist_store_release(store));
}

int main(void)
{
    start_world();
    check_types_and_operators();
    check_roots();
    check_counts();
    check_store_lengths();
    check_overlaps();
    check_call_options();
    check_works();
    refused_calls_have_no_effect();
    CHECK_OK(dist_all_reduce(dist_world(), a, b, 8, DIST_F32, DIST_SUM, NULL, NULL));
    CHECK(memcmp(a, b, sizeof(a)) == 0);
    CHECK_OK(dist_finalize());
    return check_report();
}
