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
        int64_t began_us = now_us();
        CHECK_STATUS(dist_store_wait(u->a, &key, NULL, 1, times[i]), DIST_ERR_TIMEOUT);
        CHECK(in_time(now_us() - began_us, times[i]));
    }
}

static void get_times_out_in_time(struct users *u)
{
    const char *keys[] = { "there", "absent" };
    dist_blob_t *blob = NULL;
    set_text(u->a, "there", "v");
    CHECK_OK(dist_store_set_timeout(u->a, SHORT_MS));
    int64_t began_us = now_us();
    CHECK_REFUSED(dist_store_get(u->a, "absent", DIST_TERMINATED, &blob), DIST_ERR_TIMEOUT, "absent\"");
    CHECK(in_time(now_us() - began_us, SHORT_MS));
    CHECK(blob == NULL);
    began_us = now_us();
    CHECK_STATUS(dist_store_multi_get(u->a, keys, NULL, 2, &blob), DIST_ERR_TIMEOUT);
    CHECK(in_time(now_us() - began_us, SHORT_MS));
    CHECK(blob == NULL);
}

static void pop_times_out_in_time(struct users *u)
{
    dist_blob_t *blob = NULL;
    CHECK_OK(dist_store_set_timeout(u->a, SHORT_MS));
    int64_t began_us = now_us();
    CHECK_STATUS(dist_store_queue_pop(u->a, "queue", DIST_TERMINATED, 1, &blob), DIST_ERR_TIMEOUT);
    CHECK(in_time(now_us() - began_us, SHORT_MS));
    CHECK(blob == NULL);
}

static void barrier_times_out_in_time(struct users *u)
{
    int64_t began_us = now_us();
    CHECK_STATUS(dist_store_barrier(u->a, "barrier", DIST_TERMINATED, 2, SHORT_MS), DIST_ERR_TIMEOUT);
    CHECK(in_time(now_us() - began_us, SHORT_MS));
    CHECK_OK(dist_store_set_timeout(u->b, SHORT_MS));
    began_us = now_us();
    CHECK_STATUS(dist_store_barrier(u->b, "another", DIST_TERMINATED, 2, 0), DIST_ERR_TIMEOUT);
    CHECK(in_time(now_us() - began_us, SHORT_MS));
}

static void time_out_names_the_missing_keys_only(struct users *u)
{
    const char *keys[] = { "is-here", "absent-1", "is-here-too", "absent-2" };
    dist_blob_t *blob = NULL;
    set_text(u->a, "is-here", "v");
    set_text(u->a, "is-here-too", "");
    CHECK_REFUSED(dist_store_wait(u->a, keys, NULL, 4, SHORT_MS), DIST_ERR_TIMEOUT, "absent-1\"");
    CHECK_SAYS(dist_last_error(), "absent-2\"");
    CHECK_DOES_NOT_SAY(dist_last_error(), "is-here");
    CHECK_SAYS(dist_last_error(), " ms");
    CHECK_OK(dist_store_set_timeout(u->a, SHORT_MS));
    CHECK_REFUSED(dist_store_multi_get(u->a, keys, NULL, 4, &blob), DIST_ERR_TIMEOUT, "absent-1\"");
    CHECK_DOES_NOT_SAY(dist_last_error(), "is-here");
}

static void time_out_names_some_of_many(struct users *u)
{
    static char names[100][8];
    const char *keys[100];
    for (int i = 0; i < 100; i++) {
        sprintf(names[i], "k%d", i);
        keys[i] = names[i];
    }
    CHECK_REFUSED(dist_store_wait(u->a, keys, NULL, 100, SHORT_MS), DIST_ERR_TIMEOUT, "k0\", ");
    CHECK_SAYS(dist_last_error(), "92 more");
    CHECK_DOES_NOT_SAY(dist_last_error(), "k50\"");
}

static void what_timed_out_leaves_nothing_behind(struct users *u)
{
    const char *key = "late";
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(dist_store_wait(u->a, &key, NULL, 1, 5), DIST_ERR_TIMEOUT);
    }
    CHECK(count_keys(u->b) == 0);
    set_text(u->b, "late", "come");
    CHECK(holds_text(u->a, "late", "come"));
    CHECK(sum_of(u->a, "n", 1) == 1);
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

static void negative_time_out_is_refused(struct users *u)
{
    const char *key = "key";
    set_text(u->a, "key", "v");
    CHECK_REFUSED(dist_store_set_timeout(u->a, -3), DIST_ERR_INVALID_ARGUMENT, "timeout_ms");
    CHECK(dist_store_get_timeout(u->a) == LIMIT_MS);
    CHECK_REFUSED(dist_store_wait(u->a, &key, NULL, 1, -5), DIST_ERR_INVALID_ARGUMENT, "timeout_ms");
    CHECK_REFUSED(dist_store_barrier(u->a, "b", DIST_TERMINATED, 1, INT64_MIN), DIST_ERR_INVALID_ARGUMENT,
                  "timeout_ms");
}

static void wait_without_time_looks_once(struct users *u)
{
    const char *keys[] = { "there", "absent" };
    set_text(u->a, "there", "v");
    settle(u->a);
    CHECK_OK(dist_store_wait(u->b, keys, NULL, 1, DIST_NO_WAIT));
    CHECK_REFUSED(dist_store_wait(u->b, keys, NULL, 2, DIST_NO_WAIT), DIST_ERR_TIMEOUT, "absent\"");
    CHECK_DOES_NOT_SAY(dist_last_error(), "there\"");
}

/* With DIST_NO_WAIT, calls that wait look once; other calls use the normal time limit. */
static void handle_without_time_looks_once(struct users *u)
{
    const char *keys[] = { "there", "absent" };
    dist_blob_t *blob = NULL;
    int32_t all_present = 7;
    CHECK_OK(dist_store_set_timeout(u->a, DIST_NO_WAIT));
    set_text(u->a, "there", "v");
    CHECK(holds_text(u->a, "there", "v"));
    CHECK_REFUSED(dist_store_get(u->a, "absent", DIST_TERMINATED, &blob), DIST_ERR_TIMEOUT, "absent\"");
    CHECK_OK(dist_store_wait(u->a, keys, NULL, 1, 0));
    CHECK_REFUSED(dist_store_wait(u->a, keys, NULL, 2, 0), DIST_ERR_TIMEOUT, "absent\"");
    CHECK_REFUSED(dist_store_multi_get(u->a, keys, NULL, 2, &blob), DIST_ERR_TIMEOUT, "absent\"");
    CHECK(blob == NULL);
    CHECK_OK(dist_store_multi_get(u->a, keys, NULL, 1, &blob));
    CHECK_OK(dist_blob_release(blob));
    CHECK_OK(dist_store_check(u->a, keys, NULL, 2, &all_present));
    CHECK(all_present == 0);
    CHECK(sum_of(u->a, "n", 2) == 2);
}

static void pop_without_time_looks_once(struct users *u)
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
static void barrier_without_time_is_refused(struct users *u)
{
    CHECK_REFUSED(dist_store_barrier(u->a, "b", DIST_TERMINATED, 1, DIST_NO_WAIT), DIST_ERR_INVALID_ARGUMENT,
                  "DIST_NO_WAIT");
    CHECK_OK(dist_store_set_timeout(u->b, DIST_NO_WAIT));
    CHECK_STATUS(dist_store_barrier(u->b, "b", DIST_TERMINATED, 1, 0), DIST_ERR_INVALID_ARGUMENT);
    CHECK(count_keys(u->a) == 0);
    CHECK_OK(dist_store_barrier(u->b, "b", DIST_TERMINATED, 1, SHORT_MS));
}

static void calls_own_time_out_goes_first(struct users *u)
{
    const char *key = "absent";
    /* A longer timeout than the handle's. */
    CHECK_OK(dist_store_set_timeout(u->a, 1));
    int64_t began_us = now_us();
    CHECK_STATUS(dist_store_wait(u->a, &key, NULL, 1, SHORT_MS), DIST_ERR_TIMEOUT);
    CHECK(in_time(now_us() - began_us, SHORT_MS));
    /* 0 selects the handle's timeout. */
    CHECK_OK(dist_store_set_timeout(u->a, 2 * SHORT_MS));
    began_us = now_us();
    CHECK_STATUS(dist_store_wait(u->a, &key, NULL, 1, 0), DIST_ERR_TIMEOUT);
    CHECK(in_time(now_us() - began_us, 2 * SHORT_MS));
    /* A shorter timeout than the handle's. */
    CHECK_OK(dist_store_set_timeout(u->a, LIMIT_MS));
    began_us = now_us();
    CHECK_STATUS(dist_store_wait(u->a, &key, NULL, 1, SHORT_MS), DIST_ERR_TIMEOUT);
    CHECK(in_time(now_us() - began_us, SHORT_MS));
}

static void forever_ends_when_the_key_comes(struct users *u)
{
    struct aside waiters[3];
    CHECK_OK(dist_store_set_timeout(u->b, DIST_WAIT_FOREVER));
    begin(&waiters[0], waiting, u->a, "key", DIST_WAIT_FOREVER);
    begin(&waiters[1], waiting, u->b, "key", 0);
    begin(&waiters[2], getting, u->b, "key", 0);
    set_text(u->a, "key", "v");
    for (int i = 0; i < 3; i++) {
        end(&waiters[i]);
        CHECK(waiters[i].status == DIST_OK);
    }
    CHECK(sum_of(u->b, "n", 1) == 1);
}

static void clone_has_a_time_out_of_its_own(struct users *u)
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
    int64_t began_us = now_us();
    CHECK_STATUS(dist_store_wait(clone, &key, NULL, 1, 0), DIST_ERR_TIMEOUT);
    CHECK(in_time(now_us() - began_us, SHORT_MS));
    CHECK_OK(dist_store_release(clone));
}

static void prefix_begins_with_the_time_out_below(struct users *u)
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
static void waiters_time_out_each_in_its_time(struct users *u)
{
    struct aside waiters[4];
    for (int i = 0; i < 4; i++) {
        begin(&waiters[i], waiting, i % 2 == 0 ? u->a : u->b, "absent", 40 * (4 - i));
    }
    for (int i = 0; i < 4; i++) {
        end(&waiters[i]);
        CHECK(waiters[i].status == DIST_ERR_TIMEOUT);
        CHECK(in_time(waiters[i].took_us, 40 * (4 - i)));
    }
}

static const struct check rows[] = {
    ROW(wait_times_out_in_time, 0),
    ROW(get_times_out_in_time, 0),
    ROW(pop_times_out_in_time, 0),
    ROW(barrier_times_out_in_time, 0),
    ROW(time_out_names_the_missing_keys_only, 0),
    ROW(time_out_names_some_of_many, 0),
    ROW(what_timed_out_leaves_nothing_behind, 0),
    ROW(default_is_five_minutes, 0),
    ROW(negative_time_out_is_refused, 0),
    ROW(wait_without_time_looks_once, 0),
    ROW(handle_without_time_looks_once, 0),
    ROW(pop_without_time_looks_once, 0),
    ROW(barrier_without_time_is_refused, 0),
    ROW(calls_own_time_out_goes_first, 0),
    ROW(forever_ends_when_the_key_comes, 0),
    ROW(clone_has_a_time_out_of_its_own, 0),
    ROW(prefix_begins_with_the_time_out_below, 0),
    ROW(waiters_time_out_each_in_its_time, 0),
};

const struct checks time_checks = CHECKS(rows);
