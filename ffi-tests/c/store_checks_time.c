/*
 * Timeouts: their time, their source, and their messages.
 */
#include "store_suite.h"

#include <stdio.h>
#include <string.h>

#define DEFAULT_MS 300000
#define SHORT_MS 60

static void wait_times_out_in_time(struct users *u)
{
    static const int64_t times[] = { 1, 10, 150 };
    const char *key = "absent";
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        int64_t start_us = now_us();
        CHECK_STATUS(dist_store_wait(u->a, &key, NULL, 1, times[i]), DIST_ERR_TIMEOUT);
        CHECK(is_in_time(now_us() - start_us, times[i]));
    }
}

static void get_times_out_in_time(struct users *u)
{
    const char *keys[] = { "there", "absent" };
    dist_blob_t *blob = NULL;
    set_text(u->a, "there", "v");
    CHECK_OK(dist_store_set_timeout(u->a, SHORT_MS));
    int64_t start_us = now_us();
    CHECK_REFUSED(dist_store_get(u->a, "absent", DIST_TERMINATED, &blob), DIST_ERR_TIMEOUT, "absent\"");
    CHECK(is_in_time(now_us() - start_us, SHORT_MS));
    CHECK(blob == NULL);
    start_us = now_us();
    CHECK_STATUS(dist_store_multi_get(u->a, keys, NULL, 2, &blob), DIST_ERR_TIMEOUT);
    CHECK(is_in_time(now_us() - start_us, SHORT_MS));
    CHECK(blob == NULL);
}

static void pop_times_out_in_time(struct users *u)
{
    dist_blob_t *blob = NULL;
    CHECK_OK(dist_store_set_timeout(u->a, SHORT_MS));
    int64_t start_us = now_us();
    CHECK_STATUS(dist_store_queue_pop(u->a, "queue", DIST_TERMINATED, 1, &blob), DIST_ERR_TIMEOUT);
    CHECK(is_in_time(now_us() - start_us, SHORT_MS));
    CHECK(blob == NULL);
}

static void barrier_times_out_in_time(struct users *u)
{
    int64_t start_us = now_us();
    CHECK_STATUS(dist_store_barrier(u->a, "barrier", DIST_TERMINATED, 2, SHORT_MS), DIST_ERR_TIMEOUT);
    CHECK(is_in_time(now_us() - start_us, SHORT_MS));
    CHECK_OK(dist_store_set_timeout(u->b, SHORT_MS));
    start_us = now_us();
    CHECK_STATUS(dist_store_barrier(u->b, "another", DIST_TERMINATED, 2, 0), DIST_ERR_TIMEOUT);
    CHECK(is_in_time(now_us() - start_us, SHORT_MS));
}

static void timeout_names_only_the_missing_keys(struct users *u)
{
    const char *keys[] = { "is-here", "absent-1", "is-here-too", "absent-2" };
    dist_blob_t *blob = NULL;
    set_text(u->a, "is-here", "v");
    set_text(u->a, "is-here-too", "");
    CHECK_REFUSED(dist_store_wait(u->a, keys, NULL, 4, SHORT_MS), DIST_ERR_TIMEOUT, "absent-1\"");
    CHECK_CONTAINS(dist_last_error(), "absent-2\"");
    CHECK_OMITS(dist_last_error(), "is-here");
    CHECK_CONTAINS(dist_last_error(), " ms");
    CHECK_OK(dist_store_set_timeout(u->a, SHORT_MS));
    CHECK_REFUSED(dist_store_multi_get(u->a, keys, NULL, 4, &blob), DIST_ERR_TIMEOUT, "absent-1\"");
    CHECK_OMITS(dist_last_error(), "is-here");
}

static void timeout_names_some_of_many_keys(struct users *u)
{
    static char names[100][8];
    const char *keys[100];
    for (int i = 0; i < 100; i++) {
        sprintf(names[i], "k%d", i);
        keys[i] = names[i];
    }
    CHECK_REFUSED(dist_store_wait(u->a, keys, NULL, 100, SHORT_MS), DIST_ERR_TIMEOUT, "k0\", ");
    CHECK_CONTAINS(dist_last_error(), "92 more");
    CHECK_OMITS(dist_last_error(), "k50\"");
}

static void timed_out_calls_leave_no_state(struct users *u)
{
    const char *key = "late";
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(dist_store_wait(u->a, &key, NULL, 1, 5), DIST_ERR_TIMEOUT);
    }
    CHECK(count_keys(u->b) == 0);
    set_text(u->b, "late", "come");
    CHECK(has_text(u->a, "late", "come"));
    CHECK(add_to(u->a, "n", 1) == 1);
}

/* ---- Whose time-out ---- */

static void default_is_five_minutes(struct users *u)
{
    CHECK(dist_store_get_timeout(u->a) == LIMIT_MS);
    CHECK_OK(dist_store_set_timeout(u->a, 0));
    CHECK(dist_store_get_timeout(u->a) == DEFAULT_MS);
    CHECK_OK(dist_store_set_timeout(u->a, 1234));
    CHECK(dist_store_get_timeout(u->a) == 1234);
    CHECK_OK(dist_store_set_timeout(u->a, DIST_WAIT_FOREVER));
    CHECK(dist_store_get_timeout(u->a) == DIST_WAIT_FOREVER);
    CHECK_OK(dist_store_set_timeout(u->a, INT64_MAX));
    CHECK(dist_store_get_timeout(u->a) == DIST_WAIT_FOREVER);
    CHECK_OK(dist_store_set_timeout(u->a, DIST_NO_WAIT));
    CHECK(dist_store_get_timeout(u->a) == DIST_NO_WAIT);
}

static void negative_timeout_is_refused(struct users *u)
{
    const char *key = "key";
    set_text(u->a, "key", "v");
    CHECK_REFUSED(dist_store_set_timeout(u->a, -3), DIST_ERR_INVALID_ARGUMENT, "timeout_ms");
    CHECK(dist_store_get_timeout(u->a) == LIMIT_MS);
    CHECK_REFUSED(dist_store_wait(u->a, &key, NULL, 1, -5), DIST_ERR_INVALID_ARGUMENT, "timeout_ms");
    CHECK_REFUSED(dist_store_barrier(u->a, "b", DIST_TERMINATED, 1, INT64_MIN), DIST_ERR_INVALID_ARGUMENT,
                  "timeout_ms");
}

static void wait_without_timeout_polls_once(struct users *u)
{
    const char *keys[] = { "there", "absent" };
    set_text(u->a, "there", "v");
    await_writes(u->a);
    CHECK_OK(dist_store_wait(u->b, keys, NULL, 1, DIST_NO_WAIT));
    CHECK_REFUSED(dist_store_wait(u->b, keys, NULL, 2, DIST_NO_WAIT), DIST_ERR_TIMEOUT, "absent\"");
    CHECK_OMITS(dist_last_error(), "there\"");
}

/* With DIST_NO_WAIT, calls that wait look once; other calls use the normal time limit. */
static void handle_without_timeout_polls_once(struct users *u)
{
    const char *keys[] = { "there", "absent" };
    dist_blob_t *blob = NULL;
    int32_t all_present = 7;
    CHECK_OK(dist_store_set_timeout(u->a, DIST_NO_WAIT));
    set_text(u->a, "there", "v");
    CHECK(has_text(u->a, "there", "v"));
    CHECK_REFUSED(dist_store_get(u->a, "absent", DIST_TERMINATED, &blob), DIST_ERR_TIMEOUT, "absent\"");
    CHECK_OK(dist_store_wait(u->a, keys, NULL, 1, 0));
    CHECK_REFUSED(dist_store_wait(u->a, keys, NULL, 2, 0), DIST_ERR_TIMEOUT, "absent\"");
    CHECK_REFUSED(dist_store_multi_get(u->a, keys, NULL, 2, &blob), DIST_ERR_TIMEOUT, "absent\"");
    CHECK(blob == NULL);
    CHECK_OK(dist_store_multi_get(u->a, keys, NULL, 1, &blob));
    CHECK_OK(dist_blob_release(blob));
    CHECK_OK(dist_store_check(u->a, keys, NULL, 2, &all_present));
    CHECK(all_present == 0);
    CHECK(add_to(u->a, "n", 2) == 2);
}

static void pop_without_timeout_polls_once(struct users *u)
{
    dist_blob_t *blob = NULL;
    CHECK_OK(dist_store_set_timeout(u->a, DIST_NO_WAIT));
    CHECK_REFUSED(dist_store_queue_pop(u->a, "queue", DIST_TERMINATED, 1, &blob), DIST_ERR_TIMEOUT, "queue\"");
    CHECK_STATUS(dist_store_queue_pop(u->a, "queue", DIST_TERMINATED, 0, &blob), DIST_ERR_QUEUE_EMPTY);
    push_text(u->a, "queue", "item");
    CHECK_OK(dist_store_queue_pop(u->a, "queue", DIST_TERMINATED, 1, &blob));
    CHECK_OK(dist_blob_release(blob));
}

/* Such a barrier would count its caller without a wait. */
static void barrier_without_timeout_is_refused(struct users *u)
{
    CHECK_REFUSED(dist_store_barrier(u->a, "b", DIST_TERMINATED, 1, DIST_NO_WAIT), DIST_ERR_INVALID_ARGUMENT,
                  "DIST_NO_WAIT");
    CHECK_OK(dist_store_set_timeout(u->b, DIST_NO_WAIT));
    CHECK_STATUS(dist_store_barrier(u->b, "b", DIST_TERMINATED, 1, 0), DIST_ERR_INVALID_ARGUMENT);
    CHECK(count_keys(u->a) == 0);
    CHECK_OK(dist_store_barrier(u->b, "b", DIST_TERMINATED, 1, SHORT_MS));
}

static void call_timeout_overrides_the_default(struct users *u)
{
    const char *key = "absent";
    /* A longer timeout than the handle's. */
    CHECK_OK(dist_store_set_timeout(u->a, 1));
    int64_t start_us = now_us();
    CHECK_STATUS(dist_store_wait(u->a, &key, NULL, 1, SHORT_MS), DIST_ERR_TIMEOUT);
    CHECK(is_in_time(now_us() - start_us, SHORT_MS));
    /* 0 selects the handle's timeout. */
    CHECK_OK(dist_store_set_timeout(u->a, 2 * SHORT_MS));
    start_us = now_us();
    CHECK_STATUS(dist_store_wait(u->a, &key, NULL, 1, 0), DIST_ERR_TIMEOUT);
    CHECK(is_in_time(now_us() - start_us, 2 * SHORT_MS));
    /* A shorter timeout than the handle's. */
    CHECK_OK(dist_store_set_timeout(u->a, LIMIT_MS));
    start_us = now_us();
    CHECK_STATUS(dist_store_wait(u->a, &key, NULL, 1, SHORT_MS), DIST_ERR_TIMEOUT);
    CHECK(is_in_time(now_us() - start_us, SHORT_MS));
}

static void infinite_wait_ends_when_the_key_is_set(struct users *u)
{
    struct call waiters[3];
    CHECK_OK(dist_store_set_timeout(u->b, DIST_WAIT_FOREVER));
    start_call(&waiters[0], call_wait, u->a, "key", DIST_WAIT_FOREVER);
    start_call(&waiters[1], call_wait, u->b, "key", 0);
    start_call(&waiters[2], call_get, u->b, "key", 0);
    set_text(u->a, "key", "v");
    for (int i = 0; i < 3; i++) {
        join_call(&waiters[i]);
        CHECK(waiters[i].status == DIST_OK);
    }
    CHECK(add_to(u->b, "n", 1) == 1);
}

static void clone_has_its_own_timeout(struct users *u)
{
    const char *key = "absent";
    dist_store_t *clone = NULL;
    CHECK_OK(dist_store_set_timeout(u->a, 7777));
    REQUIRE(dist_store_clone(u->a, &clone) == DIST_OK);
    CHECK(dist_store_get_timeout(clone) == 7777);
    CHECK_OK(dist_store_set_timeout(clone, SHORT_MS));
    CHECK(dist_store_get_timeout(u->a) == 7777);
    CHECK_OK(dist_store_set_timeout(u->a, LIMIT_MS));
    CHECK(dist_store_get_timeout(clone) == SHORT_MS);
    int64_t start_us = now_us();
    CHECK_STATUS(dist_store_wait(clone, &key, NULL, 1, 0), DIST_ERR_TIMEOUT);
    CHECK(is_in_time(now_us() - start_us, SHORT_MS));
    CHECK_OK(dist_store_release(clone));
}

static void prefix_store_inherits_the_timeout(struct users *u)
{
    dist_store_t *prefixed = NULL;
    CHECK_OK(dist_store_set_timeout(u->a, 4321));
    REQUIRE(dist_store_prefix_create("p", DIST_TERMINATED, u->a, &prefixed) == DIST_OK);
    CHECK(dist_store_get_timeout(prefixed) == 4321);
    CHECK_OK(dist_store_set_timeout(prefixed, 1));
    CHECK(dist_store_get_timeout(u->a) == 4321);
    CHECK_OK(dist_store_release(prefixed));
}

/* Each waiting thread has its own deadline. */
static void waiters_have_separate_deadlines(struct users *u)
{
    struct call waiters[4];
    for (int i = 0; i < 4; i++) {
        start_call(&waiters[i], call_wait, i % 2 == 0 ? u->a : u->b, "absent", 40 * (4 - i));
    }
    for (int i = 0; i < 4; i++) {
        join_call(&waiters[i]);
        CHECK(waiters[i].status == DIST_ERR_TIMEOUT);
        CHECK(is_in_time(waiters[i].elapsed_us, 40 * (4 - i)));
    }
}

static const struct check rows[] = {
    ROW(wait_times_out_in_time, 0),
    ROW(get_times_out_in_time, 0),
    ROW(pop_times_out_in_time, 0),
    ROW(barrier_times_out_in_time, 0),
    ROW(timeout_names_only_the_missing_keys, 0),
    ROW(timeout_names_some_of_many_keys, 0),
    ROW(timed_out_calls_leave_no_state, 0),
    ROW(default_is_five_minutes, 0),
    ROW(negative_timeout_is_refused, 0),
    ROW(wait_without_timeout_polls_once, 0),
    ROW(handle_without_timeout_polls_once, 0),
    ROW(pop_without_timeout_polls_once, 0),
    ROW(barrier_without_timeout_is_refused, 0),
    ROW(call_timeout_overrides_the_default, 0),
    ROW(infinite_wait_ends_when_the_key_is_set, 0),
    ROW(clone_has_its_own_timeout, 0),
    ROW(prefix_store_inherits_the_timeout, 0),
    ROW(waiters_have_separate_deadlines, 0),
};

const struct checks time_checks = CHECKS(rows);
