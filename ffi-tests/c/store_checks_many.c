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
    CHECK(sum_of(u->a, "n", 5) == 5);
    CHECK(sum_of(u->b, "n", 1) == 6);
    CHECK(sum_of(u->a, "zero", 0) == 0);
    CHECK(holds_text(u->b, "zero", "0"));
}

static void counter_goes_below_0(struct users *u)
{
    CHECK(sum_of(u->a, "n", -7) == -7);
    CHECK(holds_text(u->b, "n", "-7"));
    CHECK(sum_of(u->b, "n", 10) == 3);
    CHECK(holds_text(u->a, "n", "3"));
}

static void counter_wraps_around(struct users *u)
{
    CHECK(sum_of(u->a, "up", INT64_MAX) == INT64_MAX);
    CHECK(sum_of(u->a, "up", 1) == INT64_MIN);
    CHECK(holds_text(u->b, "up", "-9223372036854775808"));
    CHECK(sum_of(u->b, "up", -1) == INT64_MAX);
    CHECK(sum_of(u->a, "down", INT64_MIN) == INT64_MIN);
    CHECK(sum_of(u->a, "down", INT64_MIN) == 0);
}

static void counter_is_text(struct users *u)
{
    set_text(u->a, "n", "41");
    CHECK(sum_of(u->a, "n", 1) == 42);
    CHECK(holds_text(u->b, "n", "42"));
    CHECK(compares(u->b, "n", "42", "100", "100"));
    CHECK(sum_of(u->a, "n", 1) == 101);
    set_text(u->a, "n", "-5");
    CHECK(sum_of(u->a, "n", 0) == -5);
}

/* A number is parsed like by C's strtoll. */
static void number_may_have_blanks_before_and_text_behind(struct users *u)
{
    static const struct {
        const char *text;
        int64_t sum;
    } cases[] = { { " 12abc", 13 }, { "\t\n\v\f\r 7", 8 }, { "+7", 8 }, { "-2 3", -1 }, { "007", 8 }, { "5.9", 6 } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        set_text(u->a, "n", cases[i].text);
        CHECK(sum_of(u->a, "n", 1) == cases[i].sum);
    }
    CHECK(holds_text(u->b, "n", "6"));
}

static void what_is_no_number_is_refused_and_stays(struct users *u)
{
    static const char *const texts[] = { "text", "", " ", "-", "+-1", "x1", "9223372036854775808", "\xff" };
    int64_t sum = 77;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        set_text(u->a, "no number", texts[i]);
        CHECK_REFUSED(dist_store_add(u->a, "no number", DIST_TERMINATED, 1, &sum), DIST_ERR_NOT_A_NUMBER, "add");
        CHECK(holds_text(u->a, "no number", texts[i]));
    }
    CHECK(sum == 77);
    /* Both users can still use the store. */
    CHECK(sum_of(u->a, "n", 1) == 1);
    CHECK(sum_of(u->b, "n", 1) == 2);
    CHECK(holds_text(u->b, "no number", "\xff"));
}

/* ---- Many keys at once ---- */

static void multi_set_sets_all(struct users *u)
{
    const char *keys[] = { "a", "b", "empty" };
    const void *values[] = { "1", "\0002", NULL };
    size_t lens[] = { 1, 2, 0 };
    set_text(u->a, "b", "before");
    CHECK_OK(dist_store_multi_set(u->a, keys, NULL, values, lens, 3));
    CHECK(holds_text(u->a, "a", "1"));
    CHECK(holds_bytes(u->b, "b", "\0002", 2));
    CHECK(holds_text(u->b, "empty", ""));
}

static void multi_set_keeps_the_last_of_two(struct users *u)
{
    const char *keys[] = { "k", "other", "k" };
    const void *values[] = { "first", "o", "last" };
    size_t lens[] = { 5, 1, 4 };
    CHECK_OK(dist_store_multi_set(u->a, keys, NULL, values, lens, 3));
    settle(u->a);
    CHECK(holds_text(u->b, "k", "last"));
}

static void multi_get_keeps_the_order_and_repeats(struct users *u)
{
    const char *keys[] = { "b", "empty", "a", "b" };
    dist_blob_t *blob = NULL;
    set_text(u->a, "a", "1");
    set_text(u->a, "b", "22");
    set_text(u->a, "empty", "");
    settle(u->a);
    CHECK_OK(dist_store_multi_get(u->b, keys, NULL, 4, &blob));
    CHECK(dist_blob_count(blob) == 4);
    CHECK(blob_is(blob, 0, "22", 2) && blob_is(blob, 1, "", 0));
    CHECK(blob_is(blob, 2, "1", 1) && blob_is(blob, 3, "22", 2));
    CHECK_OK(dist_blob_release(blob));
}

static void multi_get_and_set_of_nothing(struct users *u)
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
    CHECK(lists(u->b, keys, KEYS));
    CHECK(was_deleted(u->a, "500") == 1);
    CHECK_OK(dist_store_check(u->b, keys, NULL, KEYS, &all_present));
    CHECK(all_present == 0);
}

static void check_asks_for_all_keys(struct users *u)
{
    const char *keys[] = { "there", "there too", "absent", "there" };
    int32_t all_present = -1;
    set_text(u->a, "there", "1");
    set_text(u->a, "there too", "2");
    settle(u->a);
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

static dist_status_t counting(struct aside *aside)
{
    int64_t sum;
    for (int64_t i = 0; i < aside->number; i++) {
        dist_status_t status = dist_store_add(aside->store, aside->key, DIST_TERMINATED, 1, &sum);
        if (status != DIST_OK) {
            return status;
        }
    }
    return DIST_OK;
}

static dist_status_t appending(struct aside *aside)
{
    for (int64_t i = 0; i < aside->number; i++) {
        dist_status_t status = dist_store_append(aside->store, "text", DIST_TERMINATED, aside->key, strlen(aside->key));
        if (status != DIST_OK) {
            return status;
        }
    }
    return DIST_OK;
}

/* Adds 1 with compare_set only, `number` times. The value contains the thread's name, since the
 * count alone does not show which thread stored it. */
static dist_status_t incrementing(struct aside *aside)
{
    char now[64] = "0";
    char next[64];
    for (int64_t done = 0; done < aside->number; done += strcmp(now, next) == 0) {
        dist_blob_t *blob = NULL;
        const void *data = NULL;
        size_t len = 0;
        sprintf(next, "%d by %p", atoi(now) + 1, (void *)aside);
        dist_status_t status =
            dist_store_compare_set(aside->store, aside->key, DIST_TERMINATED, now, strlen(now), next, strlen(next), &blob);
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
static void all_do(struct users *u, act_t act, const char *key)
{
    struct aside threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        begin(&threads[i], act, i % 2 == 0 ? u->a : u->b, key, TIMES);
    }
    for (int i = 0; i < THREADS; i++) {
        end(&threads[i]);
        CHECK(threads[i].status == DIST_OK && threads[i].error[0] == '\0');
    }
}

static void concurrent_adds_are_not_lost(struct users *u)
{
    all_do(u, counting, "n");
    CHECK(sum_of(u->a, "n", 0) == THREADS * TIMES);
}

static void many_threads_append_without_loss(struct users *u)
{
    dist_blob_t *blob = NULL;
    const void *data = NULL;
    size_t len = 0;
    all_do(u, appending, "<piece>");
    settle(u->b);
    settle(u->a);
    CHECK_OK(dist_store_get(u->a, "text", DIST_TERMINATED, &blob));
    CHECK_OK(dist_blob_data(blob, 0, &data, &len));
    CHECK(len == THREADS * TIMES * strlen("<piece>"));
    const char *text = data;
    size_t whole = 0;
    for (size_t at = 0; at + 7 <= len; at += 7) {
        whole += memcmp(text + at, "<piece>", 7) == 0;
    }
    CHECK(whole == THREADS * TIMES);
    CHECK_OK(dist_blob_release(blob));
}

static void one_of_many_compares_wins(struct users *u)
{
    set_text(u->a, "n", "0");
    settle(u->a);
    all_do(u, incrementing, "n");
    /* The number at the start of the value is its value. */
    CHECK(sum_of(u->b, "n", 0) == THREADS * TIMES);
}

static const struct check number_rows[] = {
    ROW(counter_begins_at_0, 0),
    ROW(counter_goes_below_0, 0),
    ROW(counter_wraps_around, 0),
    ROW(counter_is_text, 0),
    ROW(number_may_have_blanks_before_and_text_behind, 0),
    ROW(what_is_no_number_is_refused_and_stays, 0),
};

static const struct check batch_rows[] = {
    ROW(multi_set_sets_all, 0),
    ROW(multi_set_keeps_the_last_of_two, 0),
    ROW(multi_get_keeps_the_order_and_repeats, 0),
    ROW(multi_get_and_set_of_nothing, 0),
    ROW(thousand_keys_in_one_call, 0),
    ROW(check_asks_for_all_keys, 0),
    ROW(concurrent_adds_are_not_lost, 0),
    ROW(many_threads_append_without_loss, 0),
    ROW(one_of_many_compares_wins, 0),
};

const struct checks number_checks = CHECKS(number_rows);
const struct checks batch_checks = CHECKS(batch_rows);
