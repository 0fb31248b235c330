/*
 * Names and sizes of element types and operators, the timeout of a group, and the validity of
 * the last error.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

static void check_dtypes(void)
{
    static const struct {
        dist_dtype_t dtype;
        const char *name;
        size_t size;
    } rows[] = {
        { DIST_I8, "i8", 1 },     { DIST_U8, "u8", 1 },         { DIST_I16, "i16", 2 },  { DIST_U16, "u16", 2 },
        { DIST_I32, "i32", 4 },   { DIST_U32, "u32", 4 },       { DIST_I64, "i64", 8 },  { DIST_U64, "u64", 8 },
        { DIST_F16, "f16", 2 },   { DIST_BF16, "bf16", 2 },     { DIST_F32, "f32", 4 },  { DIST_F64, "f64", 8 },
        { DIST_C64, "c64", 8 },   { DIST_C128, "c128", 16 },    { DIST_BOOL, "bool", 1 }, { DIST_F8E4M3, "f8e4m3", 1 },
        { DIST_F8E5M2, "f8e5m2", 1 },
    };
    static const dist_dtype_t unknown[] = { -1, DIST_F8E5M2 + 1, INT32_MIN, INT32_MAX };
    size_t i;
    for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        CHECK(strcmp(dist_dtype_name(rows[i].dtype), rows[i].name) == 0);
        CHECK(dist_dtype_size(rows[i].dtype) == rows[i].size);
    }
    for (i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        CHECK(strcmp(dist_dtype_name(unknown[i]), "unknown dtype") == 0);
        CHECK(dist_dtype_size(unknown[i]) == 0);
    }
}

static void check_operators(void)
{
    static const struct {
        dist_op_t op;
        const char *name;
    } rows[] = {
        { DIST_SUM, "sum" },   { DIST_PRODUCT, "product" }, { DIST_MIN, "min" },
        { DIST_MAX, "max" },   { DIST_AVG, "avg" },         { DIST_BAND, "band" },
        { DIST_BOR, "bor" },   { DIST_BXOR, "bxor" },       { DIST_PREMUL_SUM, "premul_sum" },
    };
    static const dist_op_t unknown[] = { -1, DIST_PREMUL_SUM + 1, INT32_MIN, INT32_MAX };
    size_t i;
    for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        CHECK(strcmp(dist_op_name(rows[i].op), rows[i].name) == 0);
    }
    for (i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        CHECK(strcmp(dist_op_name(unknown[i]), "unknown op") == 0);
    }
}

static void make_call_fail(const char *host)
{
    dist_store_tcp_options_t options = DIST_STORE_TCP_OPTIONS_INIT;
    dist_store_t *store = NULL;
    options.host = host;
    options.port = 70000;
    CHECK_STATUS(dist_store_tcp_create(&options, &store), DIST_ERR_INVALID_ARGUMENT);
}

/* A message is valid until the second next failing call; successful calls do not matter. */
static void last_error_outlives_one_failure(void)
{
    const char *first, *second, *trace;
    char saved[512];
    make_call_fail("host");
    first = dist_last_error();
    strncpy(saved, first, sizeof(saved) - 1);
    saved[sizeof(saved) - 1] = 0;
    trace = dist_last_error_backtrace();
    CHECK(strcmp(trace, "") == 0);
    CHECK_STATUS(dist_group_abort((dist_group_t *)saved, NULL), DIST_ERR_INVALID_HANDLE);
    second = dist_last_error();
    CHECK(second != first);
    CHECK(strcmp(first, saved) == 0 && strstr(first, "70000") != NULL);
    CHECK(strcmp(trace, "") == 0);
    CHECK(strstr(second, "dist_group_abort") != NULL);
    CHECK(dist_is_initialized() == 0);
    CHECK(strcmp(first, saved) == 0);
    make_call_fail(NULL);
    CHECK(strstr(second, "dist_group_abort") != NULL);
    CHECK(strstr(dist_last_error(), "host is NULL") != NULL);
}

static void check_group_timeouts(void)
{
    dist_store_t *store = new_store();
    dist_group_t *group = NULL;
    CHECK(dist_group_get_timeout(dist_world()) == 0);
    REQUIRE_OK(join_group(store, "timed", 0, 1, &group));
    CHECK(dist_group_get_timeout(group) == LIMIT_MS);
    CHECK_OK(dist_group_set_timeout(group, 1234));
    CHECK(dist_group_get_timeout(group) == 1234);
    CHECK_OK(dist_group_set_timeout(group, DIST_WAIT_FOREVER));
    CHECK(dist_group_get_timeout(group) == DIST_WAIT_FOREVER);
    CHECK_OK(dist_group_set_timeout(group, 0));
    CHECK(dist_group_get_timeout(group) == 1800000);
    CHECK_OK(dist_group_release(group));
    CHECK(dist_group_get_timeout(group) == 0);
    /* A group that returns to the default uses the value from the environment. */
    REQUIRE(setenv("DIST_TIMEOUT_MS", "4321", 1) == 0);
    REQUIRE_OK(join_group(store, "defaults", 0, 1, &group));
    CHECK_OK(dist_group_set_timeout(group, 0));
    CHECK(dist_group_get_timeout(group) == 4321);
    CHECK_OK(dist_group_release(group));
    REQUIRE(unsetenv("DIST_TIMEOUT_MS") == 0);
    start_world();
    CHECK(dist_group_get_timeout(dist_world()) == LIMIT_MS);
    CHECK_OK(dist_finalize());
    CHECK_OK(dist_store_release(store));
}

int main(void)
{
    check_dtypes();
    check_operators();
    last_error_outlives_one_failure();
    check_group_timeouts();
    return check_report();
}
