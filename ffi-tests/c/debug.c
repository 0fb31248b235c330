/*
 * The debugging features: levels from the environment and at run time, the origin of an error,
 * buffers that are already in use, and NaN checks.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <math.h>
#include <unistd.h>

#define COUNT 300

static void check_levels(void)
{
    unsetenv("DIST_DEBUG_LEVEL");
    unsetenv("TORCH_DISTRIBUTED_DEBUG");
    /* The library reads the variable at the first query of the level. */
    setenv("DIST_DEBUG_LEVEL", "LOUD", 1);
    CHECK(dist_get_debug_level() == -1);
    CHECK_MESSAGE("DIST_DEBUG_LEVEL=\"LOUD\"");
    CHECK_MESSAGE("DETAIL");
    setenv("DIST_DEBUG_LEVEL", "info", 1);
    CHECK(dist_get_debug_level() == DIST_DEBUG_INFO);
    /* Later changes of the variable have no effect. */
    setenv("DIST_DEBUG_LEVEL", "DETAIL", 1);
    CHECK(dist_get_debug_level() == DIST_DEBUG_INFO);
    CHECK_OK(dist_set_debug_level_from_env());
    CHECK(dist_get_debug_level() == DIST_DEBUG_DETAIL);
    unsetenv("DIST_DEBUG_LEVEL");
    setenv("TORCH_DISTRIBUTED_DEBUG", "Info", 1);
    CHECK_OK(dist_set_debug_level_from_env());
    CHECK(dist_get_debug_level() == DIST_DEBUG_INFO);
    setenv("TORCH_DISTRIBUTED_DEBUG", "2", 1);
    CHECK_REFUSED(dist_set_debug_level_from_env(), DIST_ERR_INVALID_ARGUMENT,
                  "TORCH_DISTRIBUTED_DEBUG=\"2\"");
    CHECK(dist_get_debug_level() == DIST_DEBUG_INFO);
    unsetenv("TORCH_DISTRIBUTED_DEBUG");
    CHECK_OK(dist_set_debug_level_from_env());
    CHECK(dist_get_debug_level() == DIST_DEBUG_OFF);
    CHECK_REFUSED(dist_set_debug_level(3), DIST_ERR_INVALID_ARGUMENT, "debug level 3");
    CHECK_REFUSED(dist_set_debug_level(-1), DIST_ERR_INVALID_ARGUMENT, "debug level -1");
    CHECK_OK(dist_set_debug_level(DIST_DEBUG_DETAIL));
    CHECK(dist_get_debug_level() == DIST_DEBUG_DETAIL);
    CHECK_OK(dist_set_debug_level(DIST_DEBUG_OFF));
}

/* The function is not static, so that it has a symbol. */
dist_status_t failing_call(void);

dist_status_t failing_call(void)
{
    dist_status_t status = dist_set_log_level(77);
    /* Code after the call prevents a tail call. */
    CHECK(status == DIST_ERR_INVALID_ARGUMENT);
    return status;
}

static void check_backtraces(void)
{
    const char *message;
    CHECK_STATUS(failing_call(), DIST_ERR_INVALID_ARGUMENT);
    CHECK(strcmp(dist_last_error_backtrace(), "") == 0);
    CHECK_OK(dist_set_debug_level(DIST_DEBUG_DETAIL));
    CHECK_STATUS(failing_call(), DIST_ERR_INVALID_ARGUMENT);
    CHECK(strstr(dist_last_error_backtrace(), "dist_set_log_level") != NULL);
    CHECK(strstr(dist_last_error_backtrace(), "failing_call") != NULL);
    CHECK(strlen(dist_last_error_backtrace()) < 20000);
    /* The message is still one line, and a second query returns the same text. */
    message = dist_last_error();
    CHECK(strchr(message, '\n') == NULL && strstr(message, "77") != NULL);
    CHECK(dist_last_error_backtrace() == dist_last_error_backtrace());
    CHECK_OK(dist_set_debug_level(DIST_DEBUG_OFF));
}

/* The creation of a group reads the variables. */
static void check_backtrace_variables(void)
{
    static const char *const names[] = { "TORCH_SHOW_CPP_STACKTRACES", "DIST_SHOW_STACKTRACES" };
    dist_store_t *store = new_store();
    size_t i;
    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        dist_group_t *traced = NULL, *untraced = NULL;
        REQUIRE(setenv(names[i], "1", 1) == 0);
        REQUIRE_OK(join_group(store, "traced", 0, 1, &traced));
        CHECK_STATUS(failing_call(), DIST_ERR_INVALID_ARGUMENT);
        CHECK(strstr(dist_last_error_backtrace(), "failing_call") != NULL);
        CHECK_OK(dist_group_release(traced));
        REQUIRE(unsetenv(names[i]) == 0);
        REQUIRE_OK(join_group(store, "untraced", 0, 1, &untraced));
        CHECK_STATUS(failing_call(), DIST_ERR_INVALID_ARGUMENT);
        CHECK(strcmp(dist_last_error_backtrace(), "") == 0);
        CHECK_OK(dist_group_release(untraced));
    }
    CHECK_OK(dist_store_release(store));
}

/* One of two ranks, which are threads. */
struct rank {
    int rank;
    dist_store_t *store;
    const char *name;
    void (*body)(struct rank *me, dist_group_t *group);
};

static void *run_rank(void *argument)
{
    struct rank *me = argument;
    dist_group_t *group = NULL;
    REQUIRE_OK(join_group(me->store, me->name, me->rank, 2, &group));
    me->body(me, group);
    CHECK_OK(dist_group_release(group));
    return NULL;
}

static void run_on_two_ranks(const char *name, void (*body)(struct rank *, dist_group_t *))
{
    dist_store_t *store = new_store();
    struct rank ranks[2];
    pthread_t threads[2];
    int i;
    for (i = 0; i < 2; i++) {
        ranks[i].rank = i;
        ranks[i].store = store;
        ranks[i].name = name;
        ranks[i].body = body;
        REQUIRE(pthread_create(&threads[i], NULL, run_rank, &ranks[i]) == 0);
    }
    for (i = 0; i < 2; i++) {
        REQUIRE(pthread_join(threads[i], NULL) == 0);
    }
    CHECK_OK(dist_store_release(store));
}

/* Rank 1 has a NaN at index 222, which both ranks report. */
static void send_nan(struct rank *me, dist_group_t *group)
{
    float send[COUNT], recv[COUNT];
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    int i;
    for (i = 0; i < COUNT; i++) {
        send[i] = (float)i;
    }
    send[7] = me->rank == 0 ? INFINITY : 1.0F;
    options.flags = DIST_CALL_CHECK_NAN;
    CHECK_OK(dist_all_reduce(group, send, recv, COUNT, DIST_F32, DIST_MAX, &options, NULL));
    if (me->rank == 1) {
        send[222] = NAN;
    }
    CHECK_STATUS(dist_all_reduce(group, send, recv, COUNT, DIST_F32, DIST_MAX, &options, NULL),
                 DIST_ERR_ABORTED);
    CHECK_MESSAGE("rank 1 (pid ");
    CHECK_MESSAGE("all_reduce #2 (f32, MAX, count 300): input: element 222 is NaN");
}

/* Only the sum of the finite numbers is infinite; only a caller that checks for infinities gets
 * an error. */
static void send_overflow(struct rank *me, dist_group_t *group)
{
    double send[1] = { 1e308 }, recv[1];
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    dist_status_t status;
    (void)me;
    CHECK_OK(dist_all_reduce(group, send, recv, 1, DIST_F64, DIST_SUM, NULL, NULL));
    options.flags = DIST_CALL_CHECK_NAN;
    CHECK_OK(dist_all_reduce(group, send, recv, 1, DIST_F64, DIST_SUM, &options, NULL));
    options.flags = DIST_CALL_CHECK_INF | DIST_CALL_CANONICAL;
    status = dist_all_reduce(group, send, recv, 1, DIST_F64, DIST_SUM, &options, NULL);
    CHECK_STATUS(status, DIST_ERR_ABORTED);
    CHECK_MESSAGE(": result: element 0 is NaN or infinite");
}

/* A collective uses a buffer that a pending receive writes to. */
static void share_buffer(struct rank *me, dist_group_t *group)
{
    static int32_t buffers[2][COUNT];
    int32_t *buffer = buffers[me->rank];
    int32_t other[COUNT] = { 0 };
    dist_work_t *receive = NULL, *first = NULL, *second = NULL;
    /* Two consecutive calls on one group have a defined order. */
    CHECK_OK(dist_all_reduce(group, buffer, buffer, COUNT, DIST_I32, DIST_SUM, NULL, &first));
    CHECK_OK(dist_all_reduce(group, buffer, buffer, COUNT, DIST_I32, DIST_SUM, NULL, &second));
    CHECK_OK(dist_work_wait(first, 0));
    CHECK_OK(dist_work_wait(second, 0));
    CHECK_OK(dist_work_release(first));
    CHECK_OK(dist_work_release(second));
    CHECK_OK(dist_recv(group, buffer, COUNT, DIST_I32, 1 - me->rank, 5, NULL, NULL, &receive));
    CHECK_OK(dist_all_reduce(group, other, other, COUNT, DIST_I32, DIST_SUM, NULL, NULL));
    CHECK_STATUS(dist_all_reduce(group, other, buffer + COUNT - 1, 1, DIST_I32, DIST_SUM, NULL, NULL),
                 DIST_ERR_INVALID_ARGUMENT);
    CHECK_MESSAGE("all_reduce on group share, rank ");
    CHECK_MESSAGE("shares memory with receive from rank ");
    CHECK_MESSAGE("which has not completed");
    CHECK_STATUS(dist_work_wait(receive, 0), DIST_ERR_INVALID_ARGUMENT);
    /* The backtrace shows where the operation was issued. */
    CHECK(strstr(dist_last_error_backtrace(), "the operation was issued at") != NULL);
    CHECK(strstr(dist_last_error_backtrace(), "dist_recv") != NULL);
    CHECK_OK(dist_work_release(receive));
}

int main(void)
{
    CHECK_OK(dist_set_log_level(DIST_LOG_OFF));
    check_levels();
    check_backtraces();
    check_backtrace_variables();
    run_on_two_ranks("nan", send_nan);
    run_on_two_ranks("overflow", send_overflow);
    CHECK_OK(dist_set_debug_level(DIST_DEBUG_DETAIL));
    run_on_two_ranks("nan-in-detail", send_nan);
    run_on_two_ranks("share", share_buffer);
    return check_report();
}
