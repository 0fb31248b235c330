/*
 * Counters, calls with many keys, and threads that make the same calls concurrently.
 */
#include "store_suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Counters ---- */

static void counter_begins_at_0(struct users *u)
{
    CHECK(add_to(u->a, "n", 5) == 5);
    CHECK(add_to(u->b, "n", 1) == 6);
    CHECK(add_to(u->a, "zero", 0) == 0);
    CHECK(has_text(u->b, "zero", "0"));
}

static void counter_goes_below_0(struct users *u)
{
    CHECK(add_to(u->a, "n", -7) == -7);
    CHECK(has_text(u->b, "n", "-7"));
    CHECK(add_to(u->b, "n", 10) == 3);
    CHECK(has_text(u->a, "n", "3"));
}

static void counter_wraps_around(struct users *u)
{
    CHECK(add_to(u->a, "up", INT64_MAX) == INT64_MAX);
    CHECK(add_to(u->a, "up", 1) == INT64_MIN);
    CHECK(has_text(u->b, "up", "-9223372036854775808"));
    CHECK(add_to(u->b, "up", -1) == INT64_MAX);
    CHECK(add_to(u->a, "down", INT64_MIN) == INT64_MIN);
    CHECK(add_to(u->a, "down", INT64_MIN) == 0);
}

static void counter_is_text(struct users *u)
{
    set_text(u->a, "n", "41");
    CHECK(add_to(u->a, "n", 1) == 42);
    CHECK(has_text(u->b, "n", "42"));
    CHECK(compare_set_returns(u->b, "n", "42", "100", "100"));
    CHECK(add_to(u->a, "n", 1) == 101);
    set_text(u->a, "n", "-5");
    CHECK(add_to(u->a, "n", 0) == -5);
}

/* A number is parsed like by C's strtoll. */
static void number_ignores_leading_blanks_and_trailing_text(struct users *u)
{
    static const struct {
        const char *text;
        int64_t sum;
    } cases[] = { { " 12abc", 13 }, { "\t\n\v\f\r 7", 8 }, { "+7", 8 }, { "-2 3", -1 }, { "007", 8 }, { "5.9", 6 } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        set_text(u->a, "n", cases[i].text);
        CHECK(add_to(u->a, "n", 1) == cases[i].sum);
    }
    CHECK(has_text(u->b, "n", "6"));
}

static void non_number_is_refused_and_unchanged(struct users *u)
{
    static const char *const texts[] = { "text", "", " ", "-", "+-1", "x1", "9223372036854775808", "\xff" };
    int64_t sum = 77;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        set_text(u->a, "no number", texts[i]);
        CHECK_REFUSED(dist_store_add(u->a, "no number", DIST_TERMINATED, 1, &sum), DIST_ERR_NOT_A_NUMBER, "add");
        CHECK(has_text(u->a, "no number", texts[i]));
    }
    CHECK(sum == 77);
    /* Both users can still use the store. */
    CHECK(add_to(u->a, "n", 1) == 1);
    CHECK(add_to(u->b, "n", 1) == 2);
    CHECK(has_text(u->b, "no number", "\xff"));
}

/* ---- Many keys at once ---- */

static void multi_set_sets_all(struct users *u)
{
    const char *keys[] = { "a", "b", "empty" };
    const void *values[] = { "1", "\0002", NULL };
    size_t lens[] = { 1, 2, 0 };
    set_text(u->a, "b", "before");
    CHECK_OK(dist_store_multi_set(u->a, keys, NULL, values, lens, 3));
    CHECK(has_text(u->a, "a", "1"));
    CHECK(has_bytes(u->b, "b", "\0002", 2));
    CHECK(has_text(u->b, "empty", ""));
}

static void multi_set_of_one_key_twice_keeps_the_last(struct users *u)
{
    const char *keys[] = { "k", "other", "k" };
    const void *values[] = { "first", "o", "last" };
    size_t lens[] = { 5, 1, 4 };
    CHECK_OK(dist_store_multi_set(u->a, keys, NULL, values, lens, 3));
    await_writes(u->a);
    CHECK(has_text(u->b, "k", "last"));
}

static void multi_get_keeps_order_and_duplicates(struct users *u)
{
    const char *keys[] = { "b", "empty", "a", "b" };
    dist_blob_t *blob = NULL;
    set_text(u->a, "a", "1");
    set_text(u->a, "b", "22");
    set_text(u->a, "empty", "");
    await_writes(u->a);
    CHECK_OK(dist_store_multi_get(u->b, keys, NULL, 4, &blob));
    CHECK(dist_blob_count(blob) == 4);
    CHECK(blob_is(blob, 0, "22", 2) && blob_is(blob, 1, "", 0));
    CHECK(blob_is(blob, 2, "1", 1) && blob_is(blob, 3, "22", 2));
    CHECK_OK(dist_blob_release(blob));
}

static void multi_calls_without_keys_succeed(struct users *u)
{
    dist_blob_t *blob = NULL;
    CHECK_OK(dist_store_multi_set(u->a, NULL, NULL, NULL, NULL, 0));
    CHECK_OK(dist_store_multi_get(u->a, NULL, NULL, 0, &blob));
    CHECK(blob != NULL && dist_blob_count(blob) == 0);
    CHECK_OK(dist_blob_release(blob));
    CHECK(count_keys(u->a) == 0);
}

#define KEYS 1000

static void thousand_keys_in_one_call(struct users *u)
{
    static char names[KEYS][16];
    const char *keys[KEYS];
    const void *values[KEYS];
    size_t lens[KEYS];
    dist_blob_t *blob = NULL;
    int32_t all_present = 0;
    for (int i = 0; i < KEYS; i++) {
        sprintf(names[i], "%d", i);
        keys[i] = names[i];
        values[i] = names[i];
        lens[i] = strlen(names[i]);
    }
    CHECK_OK(dist_store_multi_set(u->a, keys, NULL, values, lens, KEYS));
    CHECK_OK(dist_store_wait(u->b, keys, NULL, KEYS, 0));
    CHECK_OK(dist_store_check(u->b, keys, NULL, KEYS, &all_present));
    CHECK(all_present == 1);
    CHECK_OK(dist_store_multi_get(u->b, keys, NULL, KEYS, &blob));
    int right = 0;
    for (size_t i = 0; i < KEYS; i++) {
        right += blob_is(blob, i, names[i], lens[i]) != 0;
    }
    CHECK(right == KEYS);
    CHECK_OK(dist_blob_release(blob));
    CHECK(count_keys(u->a) == KEYS);
    CHECK(lists_exactly(u->b, keys, KEYS));
    CHECK(delete_existing(u->a, "500") == 1);
    CHECK_OK(dist_store_check(u->b, keys, NULL, KEYS, &all_present));
    CHECK(all_present == 0);
}

static void check_is_true_only_if_all_keys_exist(struct users *u)
{
    const char *keys[] = { "there", "there too", "absent", "there" };
    int32_t all_present = -1;
    set_text(u->a, "there", "1");
    set_text(u->a, "there too", "2");
    await_writes(u->a);
    CHECK_OK(dist_store_check(u->b, keys, NULL, 2, &all_present));
    CHECK(all_present == 1);
    CHECK_OK(dist_store_check(u->b, keys, NULL, 3, &all_present));
    CHECK(all_present == 0);
    CHECK_OK(dist_store_check(u->b, keys + 2, NULL, 2, &all_present));
    CHECK(all_present == 0);
    CHECK_OK(dist_store_check(u->b, NULL, NULL, 0, &all_present));
    CHECK(all_present == 1);
}

/* ---- Many threads at once ---- */

#define THREADS 8
#define TIMES 50

static dist_status_t add_repeatedly(struct call *call)
{
    int64_t sum;
    for (int64_t i = 0; i < call->argument; i++) {
        dist_status_t status = dist_store_add(call->store, call->key, DIST_TERMINATED, 1, &sum);
        if (status != DIST_OK) {
            return status;
        }
    }
    return DIST_OK;
}

static dist_status_t append_repeatedly(struct call *call)
{
    for (int64_t i = 0; i < call->argument; i++) {
        dist_status_t status = dist_store_append(call->store, "text", DIST_TERMINATED, call->key, strlen(call->key));
        if (status != DIST_OK) {
            return status;
        }
    }
    return DIST_OK;
}

/* Adds 1 with compare_set only, `argument` times. The value contains the thread's name, since the
 * count alone does not show which thread stored it. */
static dist_status_t increment_by_compare_set(struct call *call)
{
    char now[64] = "0";
    char next[64];
    for (int64_t done = 0; done < call->argument; done += strcmp(now, next) == 0) {
        dist_blob_t *blob = NULL;
        const void *data = NULL;
        size_t len = 0;
        sprintf(next, "%d by %p", atoi(now) + 1, (void *)call);
        dist_status_t status =
            dist_store_compare_set(call->store, call->key, DIST_TERMINATED, now, strlen(now), next, strlen(next),
                                   &blob);
        if (status != DIST_OK) {
            return status;
        }
        CHECK_OK(dist_blob_data(blob, 0, &data, &len));
        sprintf(now, "%.*s", (int)len, (const char *)data);
        CHECK_OK(dist_blob_release(blob));
    }
    return DIST_OK;
}

/* Half of the threads use the first user, half the second. */
static void run_on_threads(struct users *u, call_fn_t function, const char *key)
{
    struct call threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        start_call(&threads[i], function, i % 2 == 0 ? u->a : u->b, key, TIMES);
    }
    for (int i = 0; i < THREADS; i++) {
        join_call(&threads[i]);
        CHECK(threads[i].status == DIST_OK && threads[i].error[0] == '\0');
    }
}

static void concurrent_adds_are_not_lost(struct users *u)
{
    run_on_threads(u, add_repeatedly, "n");
    CHECK(add_to(u->a, "n", 0) == THREADS * TIMES);
}

static void concurrent_appends_are_not_lost(struct users *u)
{
    dist_blob_t *blob = NULL;
    const void *data = NULL;
    size_t len = 0;
    run_on_threads(u, append_repeatedly, "<piece>");
    await_writes(u->b);
    await_writes(u->a);
    CHECK_OK(dist_store_get(u->a, "text", DIST_TERMINATED, &blob));
    CHECK_OK(dist_blob_data(blob, 0, &data, &len));
    CHECK(len == THREADS * TIMES * strlen("<piece>"));
    const char *text = data;
    size_t n_whole = 0;
    for (size_t at = 0; at + 7 <= len; at += 7) {
        n_whole += memcmp(text + at, "<piece>", 7) == 0;
    }
    CHECK(n_whole == THREADS * TIMES);
    CHECK_OK(dist_blob_release(blob));
}

static void one_of_many_compare_sets_wins(struct users *u)
{
    set_text(u->a, "n", "0");
    await_writes(u->a);
    run_on_threads(u, increment_by_compare_set, "n");
    /* The number at the start of the value is its value. */
    CHECK(add_to(u->b, "n", 0) == THREADS * TIMES);
}

static const struct check number_rows[] = {
    ROW(counter_begins_at_0, 0),
    ROW(counter_goes_below_0, 0),
    ROW(counter_wraps_around, 0),
    ROW(counter_is_text, 0),
    ROW(number_ignores_leading_blanks_and_trailing_text, 0),
    ROW(non_number_is_refused_and_unchanged, 0),
};

static const struct check batch_rows[] = {
    ROW(multi_set_sets_all, 0),
    ROW(multi_set_of_one_key_twice_keeps_the_last, 0),
    ROW(multi_get_keeps_order_and_duplicates, 0),
    ROW(multi_calls_without_keys_succeed, 0),
    ROW(thousand_keys_in_one_call, 0),
    ROW(check_is_true_only_if_all_keys_exist, 0),
    ROW(concurrent_adds_are_not_lost, 0),
    ROW(concurrent_appends_are_not_lost, 0),
    ROW(one_of_many_compare_sets_wins, 0),
};

const struct checks number_checks = CHECKS(number_rows);
const struct checks batch_checks = CHECKS(batch_rows);
