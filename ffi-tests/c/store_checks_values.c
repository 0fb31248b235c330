/*
 * Values: a get returns exactly the bytes of the set, of any content and length; compare_set,
 * append and delete.
 */
#include "store_suite.h"

#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static void value_comes_back(struct users *u)
{
    set_text(u->a, "key", "value");
    CHECK(holds_text(u->a, "key", "value"));
}

static void value_is_seen_by_the_other_user(struct users *u)
{
    set_text(u->a, "from a", "1");
    CHECK(holds_text(u->b, "from a", "1"));
    set_text(u->b, "from b", "2");
    settle(u->b);
    CHECK(exists(u->a, "from b") == 1);
    CHECK(holds_text(u->a, "from b", "2"));
}

/* A process sees its own earlier changes, even of calls without a response. */
static void own_changes_are_seen_at_once(struct users *u)
{
    dist_store_t *clone = NULL;
    REQUIRE(dist_store_clone(u->a, &clone) == DIST_OK);
    const char *keys[] = { "m" };
    const void *values[] = { "mm" };
    size_t lens[] = { 2 };
    set_text(u->a, "s", "1");
    CHECK(exists(clone, "s") == 1);
    CHECK_OK(dist_store_append(clone, "s", DIST_TERMINATED, "2", 1));
    CHECK(holds_text(u->a, "s", "12"));
    CHECK_OK(dist_store_multi_set(u->a, keys, NULL, values, lens, 1));
    CHECK(was_deleted(clone, "m") == 1);
    push_text(clone, "q", "item");
    CHECK(length_of(u->a, "q") == 1);
    set_text(u->a, "n", "41");
    CHECK(sum_of(clone, "n", 1) == 42);
    CHECK_OK(dist_store_release(clone));
}

static void every_byte_comes_back(struct users *u)
{
    unsigned char bytes[256];
    for (int i = 0; i < 256; i++) {
        bytes[i] = (unsigned char)i;
    }
    CHECK_OK(dist_store_set(u->a, "bytes", DIST_TERMINATED, bytes, sizeof(bytes)));
    CHECK(holds_bytes(u->b, "bytes", bytes, sizeof(bytes)));
}

static void empty_value_is_a_value(struct users *u)
{
    CHECK_OK(dist_store_set(u->a, "empty", DIST_TERMINATED, NULL, 0));
    CHECK(exists(u->a, "empty") == 1);
    CHECK(holds_bytes(u->b, "empty", NULL, 0));
    CHECK(was_deleted(u->b, "empty") == 1);
}

static void comes_back(struct users *u, size_t len)
{
    unsigned char *bytes = pattern(len);
    CHECK_OK(dist_store_set(u->a, "long", DIST_TERMINATED, bytes, len));
    CHECK(holds_bytes(u->b, "long", bytes, len));
    free(bytes);
}

static void value_of_300_kilobytes(struct users *u)
{
    comes_back(u, 300000);
}

static void value_of_8_mebibytes(struct users *u)
{
    comes_back(u, 8 * MIB);
}

static void value_over_the_limit_is_refused(struct users *u)
{
    size_t len = u->kind->longest_value + 1;
    unsigned char *bytes = pattern(len);
    const char *keys[] = { "short", "key" };
    const void *values[] = { "s", bytes };
    size_t lens[] = { 1, len };
    dist_blob_t *blob = NULL;
    set_text(u->a, "key", "before");
    CHECK_STATUS(dist_store_set(u->a, "key", DIST_TERMINATED, bytes, len), DIST_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(dist_store_append(u->a, "key", DIST_TERMINATED, bytes, len), DIST_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(dist_store_multi_set(u->a, keys, NULL, values, lens, 2), DIST_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(dist_store_compare_set(u->a, "key", DIST_TERMINATED, "before", 6, bytes, len, &blob), DIST_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(dist_store_queue_push(u->a, "key", DIST_TERMINATED, bytes, len), DIST_ERR_INVALID_ARGUMENT);
    CHECK(blob == NULL);
    CHECK(holds_text(u->a, "key", "before"));
    CHECK(exists(u->a, "short") == 0);
    CHECK(length_of(u->a, "key") == 0);
    free(bytes);
}

static void overwriting_replaces_all_of_it(struct users *u)
{
    set_text(u->a, "key", "a long value");
    set_text(u->a, "key", "short");
    settle(u->a);
    CHECK(holds_text(u->b, "key", "short"));
    set_text(u->b, "key", "");
    CHECK(holds_text(u->b, "key", ""));
    set_text(u->b, "key", "the longest value of them all");
    settle(u->b);
    CHECK(holds_text(u->a, "key", "the longest value of them all"));
    CHECK(count_keys(u->a) == 1);
}

static void last_of_many_writes_stays(struct users *u)
{
    char text[8];
    for (int i = 0; i < 100; i++) {
        text[0] = (char)('0' + i / 10);
        text[1] = (char)('0' + i % 10);
        text[2] = '\0';
        set_text(u->a, "key", text);
    }
    settle(u->a);
    CHECK(holds_text(u->b, "key", "99"));
}

/* ---- compare_set: the five cases of c10d ---- */

static void compare_of_a_missing_key_with_nothing_stores(struct users *u)
{
    CHECK(compares(u->a, "key", "", "first", "first"));
    CHECK(holds_text(u->b, "key", "first"));
}

static void compare_of_a_missing_key_with_something_stores_nothing(struct users *u)
{
    CHECK(compares(u->a, "key", "expected", "new", "expected"));
    CHECK(exists(u->a, "key") == 0);
    CHECK(exists(u->b, "key") == 0);
}

static void compare_that_matches_stores(struct users *u)
{
    set_text(u->a, "key", "old");
    CHECK(compares(u->a, "key", "old", "new", "new"));
    CHECK(holds_text(u->b, "key", "new"));
    CHECK(compares(u->b, "key", "new", "newer", "newer"));
    CHECK(holds_text(u->a, "key", "newer"));
}

static void compare_that_differs_gives_what_is_there(struct users *u)
{
    set_text(u->a, "key", "there");
    CHECK(compares(u->a, "key", "other", "new", "there"));
    CHECK(compares(u->a, "key", "ther", "new", "there"));
    CHECK(compares(u->a, "key", "there ", "new", "there"));
    CHECK(holds_text(u->b, "key", "there"));
}

static void compare_of_a_value_with_nothing_stores_nothing(struct users *u)
{
    set_text(u->a, "key", "there");
    CHECK(compares(u->a, "key", "", "new", "there"));
    CHECK(holds_text(u->b, "key", "there"));
}

static void compare_knows_the_empty_value(struct users *u)
{
    set_text(u->a, "key", "");
    CHECK(compares(u->a, "key", "x", "new", ""));
    CHECK(compares(u->a, "key", "", "new", "new"));
    CHECK(compares(u->a, "key", "new", "", ""));
    CHECK(exists(u->a, "key") == 1);
    CHECK(holds_text(u->b, "key", ""));
}

static void compare_takes_bytes(struct users *u)
{
    unsigned char *bytes = pattern(100000);
    dist_blob_t *blob = NULL;
    CHECK_OK(dist_store_compare_set(u->a, "key", DIST_TERMINATED, NULL, 0, bytes, 99999, &blob));
    CHECK(blob_is(blob, 0, bytes, 99999));
    CHECK_OK(dist_blob_release(blob));
    CHECK_OK(dist_store_compare_set(u->b, "key", DIST_TERMINATED, bytes, 99999, bytes, 100000, &blob));
    CHECK(blob_is(blob, 0, bytes, 100000));
    CHECK_OK(dist_blob_release(blob));
    CHECK(holds_bytes(u->a, "key", bytes, 100000));
    free(bytes);
}

/* ---- append and delete ---- */

static void append_makes_a_key(struct users *u)
{
    CHECK_OK(dist_store_append(u->a, "key", DIST_TERMINATED, "made", 4));
    CHECK(holds_text(u->b, "key", "made"));
    CHECK_OK(dist_store_append(u->a, "nothing", DIST_TERMINATED, NULL, 0));
    CHECK(exists(u->a, "nothing") == 1);
    CHECK(holds_text(u->b, "nothing", ""));
}

static void append_adds_to_the_end(struct users *u)
{
    set_text(u->a, "key", "one");
    CHECK_OK(dist_store_append(u->a, "key", DIST_TERMINATED, "\0two", 4));
    settle(u->a);
    CHECK_OK(dist_store_append(u->b, "key", DIST_TERMINATED, NULL, 0));
    CHECK_OK(dist_store_append(u->b, "key", DIST_TERMINATED, "three", 5));
    settle(u->b);
    CHECK(holds_bytes(u->a, "key", "one\0twothree", 12));
}

static void append_grows_a_long_value(struct users *u)
{
    unsigned char *bytes = pattern(MIB);
    for (size_t i = 0; i < 8; i++) {
        CHECK_OK(dist_store_append(u->a, "key", DIST_TERMINATED, bytes + i * (MIB / 8), MIB / 8));
    }
    CHECK(holds_bytes(u->a, "key", bytes, MIB));
    CHECK(holds_bytes(u->b, "key", bytes, MIB));
    free(bytes);
}

static void append_goes_on_with_a_counter(struct users *u)
{
    CHECK(sum_of(u->a, "n", 4) == 4);
    CHECK_OK(dist_store_append(u->a, "n", DIST_TERMINATED, "2", 1));
    CHECK(sum_of(u->a, "n", 0) == 42);
}

static void delete_tells_whether_it_was_there(struct users *u)
{
    CHECK(was_deleted(u->a, "key") == 0);
    set_text(u->a, "key", "v");
    CHECK(was_deleted(u->a, "key") == 1);
    CHECK(was_deleted(u->a, "key") == 0);
    CHECK(was_deleted(u->b, "key") == 0);
}

static void deleted_key_is_missing_again(struct users *u)
{
    const char *key = "key";
    set_text(u->a, "key", "v");
    set_text(u->a, "stays", "v");
    CHECK(was_deleted(u->a, "key") == 1);
    CHECK(exists(u->a, "key") == 0);
    CHECK(exists(u->b, "key") == 0);
    CHECK_STATUS(dist_store_wait(u->b, &key, NULL, 1, 30), DIST_ERR_TIMEOUT);
    CHECK(holds_text(u->b, "stays", "v"));
    CHECK(count_keys(u->b) == 1);
}

static void deleted_key_begins_anew(struct users *u)
{
    CHECK(sum_of(u->a, "n", 41) == 41);
    CHECK(was_deleted(u->b, "n") == 1);
    CHECK(sum_of(u->a, "n", 1) == 1);
    set_text(u->a, "key", "old");
    CHECK(was_deleted(u->a, "key") == 1);
    CHECK_OK(dist_store_append(u->a, "key", DIST_TERMINATED, "new", 3));
    CHECK(holds_text(u->a, "key", "new"));
    CHECK(was_deleted(u->a, "key") == 1);
    CHECK(compares(u->b, "key", "", "newer", "newer"));
}

static const struct check rows[] = {
    ROW(value_comes_back, 0),
    ROW(value_is_seen_by_the_other_user, 0),
    ROW(own_changes_are_seen_at_once, 0),
    ROW(every_byte_comes_back, 0),
    ROW(empty_value_is_a_value, 0),
    ROW(value_of_300_kilobytes, 0),
    ROW(value_of_8_mebibytes, 0),
    ROW(value_over_the_limit_is_refused, HAS_VALUE_LIMIT),
    ROW(overwriting_replaces_all_of_it, 0),
    ROW(last_of_many_writes_stays, 0),
    ROW(compare_of_a_missing_key_with_nothing_stores, 0),
    ROW(compare_of_a_missing_key_with_something_stores_nothing, 0),
    ROW(compare_that_matches_stores, 0),
    ROW(compare_that_differs_gives_what_is_there, 0),
    ROW(compare_of_a_value_with_nothing_stores_nothing, 0),
    ROW(compare_knows_the_empty_value, 0),
    ROW(compare_takes_bytes, 0),
    ROW(append_makes_a_key, 0),
    ROW(append_adds_to_the_end, 0),
    ROW(append_grows_a_long_value, 0),
    ROW(append_goes_on_with_a_counter, 0),
    ROW(delete_tells_whether_it_was_there, 0),
    ROW(deleted_key_is_missing_again, 0),
    ROW(deleted_key_begins_anew, 0),
};

const struct checks value_checks = CHECKS(rows);
