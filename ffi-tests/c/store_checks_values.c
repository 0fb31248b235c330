/*
 * Values: a get returns exactly the bytes of the set, of any content and length; compare_set,
 * append and delete.
 */
#include "store_suite.h"

#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static void value_is_read_back(struct users *u)
{
    set_text(u->a, "key", "value");
    CHECK(has_text(u->a, "key", "value"));
}

static void value_is_visible_to_the_other_user(struct users *u)
{
    set_text(u->a, "from a", "1");
    CHECK(has_text(u->b, "from a", "1"));
    set_text(u->b, "from b", "2");
    await_writes(u->b);
    CHECK(exists(u->a, "from b") == 1);
    CHECK(has_text(u->a, "from b", "2"));
}

/* A process sees its own earlier changes, even of calls without a response. */
static void own_changes_are_visible_immediately(struct users *u)
{
    dist_store_t *clone = NULL;
    REQUIRE(dist_store_clone(u->a, &clone) == DIST_OK);
    const char *keys[] = { "m" };
    const void *values[] = { "mm" };
    size_t lens[] = { 2 };
    set_text(u->a, "s", "1");
    CHECK(exists(clone, "s") == 1);
    CHECK_OK(dist_store_append(clone, "s", DIST_TERMINATED, "2", 1));
    CHECK(has_text(u->a, "s", "12"));
    CHECK_OK(dist_store_multi_set(u->a, keys, NULL, values, lens, 1));
    CHECK(delete_existing(clone, "m") == 1);
    push_text(clone, "q", "item");
    CHECK(queue_length(u->a, "q") == 1);
    set_text(u->a, "n", "41");
    CHECK(add_to(clone, "n", 1) == 42);
    CHECK_OK(dist_store_release(clone));
}

static void all_byte_values_are_read_back(struct users *u)
{
    unsigned char bytes[256];
    for (int i = 0; i < 256; i++) {
        bytes[i] = (unsigned char)i;
    }
    CHECK_OK(dist_store_set(u->a, "bytes", DIST_TERMINATED, bytes, sizeof(bytes)));
    CHECK(has_bytes(u->b, "bytes", bytes, sizeof(bytes)));
}

static void empty_value_is_a_value(struct users *u)
{
    CHECK_OK(dist_store_set(u->a, "empty", DIST_TERMINATED, NULL, 0));
    CHECK(exists(u->a, "empty") == 1);
    CHECK(has_bytes(u->b, "empty", NULL, 0));
    CHECK(delete_existing(u->b, "empty") == 1);
}

static void check_round_trip(struct users *u, size_t len)
{
    unsigned char *bytes = make_pattern(len);
    CHECK_OK(dist_store_set(u->a, "long", DIST_TERMINATED, bytes, len));
    CHECK(has_bytes(u->b, "long", bytes, len));
    free(bytes);
}

static void value_of_300_kilobytes(struct users *u)
{
    check_round_trip(u, 300000);
}

static void value_of_8_mebibytes(struct users *u)
{
    check_round_trip(u, 8 * MIB);
}

static void value_over_the_limit_is_refused(struct users *u)
{
    size_t len = u->kind->max_value_len + 1;
    unsigned char *bytes = make_pattern(len);
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
    CHECK(has_text(u->a, "key", "before"));
    CHECK(exists(u->a, "short") == 0);
    CHECK(queue_length(u->a, "key") == 0);
    free(bytes);
}

static void overwrite_replaces_the_whole_value(struct users *u)
{
    set_text(u->a, "key", "a long value");
    set_text(u->a, "key", "short");
    await_writes(u->a);
    CHECK(has_text(u->b, "key", "short"));
    set_text(u->b, "key", "");
    CHECK(has_text(u->b, "key", ""));
    set_text(u->b, "key", "the longest value of them all");
    await_writes(u->b);
    CHECK(has_text(u->a, "key", "the longest value of them all"));
    CHECK(count_keys(u->a) == 1);
}

static void last_of_many_writes_wins(struct users *u)
{
    char text[8];
    for (int i = 0; i < 100; i++) {
        text[0] = (char)('0' + i / 10);
        text[1] = (char)('0' + i % 10);
        text[2] = '\0';
        set_text(u->a, "key", text);
    }
    await_writes(u->a);
    CHECK(has_text(u->b, "key", "99"));
}

/* ---- compare_set: the five cases of c10d ---- */

static void compare_set_of_missing_key_with_empty_stores(struct users *u)
{
    CHECK(compare_set_returns(u->a, "key", "", "first", "first"));
    CHECK(has_text(u->b, "key", "first"));
}

static void compare_set_of_missing_key_with_value_fails(struct users *u)
{
    CHECK(compare_set_returns(u->a, "key", "expected", "new", "expected"));
    CHECK(exists(u->a, "key") == 0);
    CHECK(exists(u->b, "key") == 0);
}

static void matching_compare_set_stores(struct users *u)
{
    set_text(u->a, "key", "old");
    CHECK(compare_set_returns(u->a, "key", "old", "new", "new"));
    CHECK(has_text(u->b, "key", "new"));
    CHECK(compare_set_returns(u->b, "key", "new", "newer", "newer"));
    CHECK(has_text(u->a, "key", "newer"));
}

static void differing_compare_set_returns_the_value(struct users *u)
{
    set_text(u->a, "key", "there");
    CHECK(compare_set_returns(u->a, "key", "other", "new", "there"));
    CHECK(compare_set_returns(u->a, "key", "ther", "new", "there"));
    CHECK(compare_set_returns(u->a, "key", "there ", "new", "there"));
    CHECK(has_text(u->b, "key", "there"));
}

static void compare_set_of_value_with_empty_fails(struct users *u)
{
    set_text(u->a, "key", "there");
    CHECK(compare_set_returns(u->a, "key", "", "new", "there"));
    CHECK(has_text(u->b, "key", "there"));
}

static void compare_set_matches_an_empty_value(struct users *u)
{
    set_text(u->a, "key", "");
    CHECK(compare_set_returns(u->a, "key", "x", "new", ""));
    CHECK(compare_set_returns(u->a, "key", "", "new", "new"));
    CHECK(compare_set_returns(u->a, "key", "new", "", ""));
    CHECK(exists(u->a, "key") == 1);
    CHECK(has_text(u->b, "key", ""));
}

static void compare_set_compares_all_bytes(struct users *u)
{
    unsigned char *bytes = make_pattern(100000);
    dist_blob_t *blob = NULL;
    CHECK_OK(dist_store_compare_set(u->a, "key", DIST_TERMINATED, NULL, 0, bytes, 99999, &blob));
    CHECK(blob_is(blob, 0, bytes, 99999));
    CHECK_OK(dist_blob_release(blob));
    CHECK_OK(dist_store_compare_set(u->b, "key", DIST_TERMINATED, bytes, 99999, bytes, 100000, &blob));
    CHECK(blob_is(blob, 0, bytes, 100000));
    CHECK_OK(dist_blob_release(blob));
    CHECK(has_bytes(u->a, "key", bytes, 100000));
    free(bytes);
}

/* ---- append and delete ---- */

static void append_creates_a_key(struct users *u)
{
    CHECK_OK(dist_store_append(u->a, "key", DIST_TERMINATED, "made", 4));
    CHECK(has_text(u->b, "key", "made"));
    CHECK_OK(dist_store_append(u->a, "nothing", DIST_TERMINATED, NULL, 0));
    CHECK(exists(u->a, "nothing") == 1);
    CHECK(has_text(u->b, "nothing", ""));
}

static void append_adds_to_the_end(struct users *u)
{
    set_text(u->a, "key", "one");
    CHECK_OK(dist_store_append(u->a, "key", DIST_TERMINATED, "\0two", 4));
    await_writes(u->a);
    CHECK_OK(dist_store_append(u->b, "key", DIST_TERMINATED, NULL, 0));
    CHECK_OK(dist_store_append(u->b, "key", DIST_TERMINATED, "three", 5));
    await_writes(u->b);
    CHECK(has_bytes(u->a, "key", "one\0twothree", 12));
}

static void append_grows_a_long_value(struct users *u)
{
    unsigned char *bytes = make_pattern(MIB);
    for (size_t i = 0; i < 8; i++) {
        CHECK_OK(dist_store_append(u->a, "key", DIST_TERMINATED, bytes + i * (MIB / 8), MIB / 8));
    }
    CHECK(has_bytes(u->a, "key", bytes, MIB));
    CHECK(has_bytes(u->b, "key", bytes, MIB));
    free(bytes);
}

static void append_extends_a_counter(struct users *u)
{
    CHECK(add_to(u->a, "n", 4) == 4);
    CHECK_OK(dist_store_append(u->a, "n", DIST_TERMINATED, "2", 1));
    CHECK(add_to(u->a, "n", 0) == 42);
}

static void delete_reports_if_the_key_existed(struct users *u)
{
    CHECK(delete_existing(u->a, "key") == 0);
    set_text(u->a, "key", "v");
    CHECK(delete_existing(u->a, "key") == 1);
    CHECK(delete_existing(u->a, "key") == 0);
    CHECK(delete_existing(u->b, "key") == 0);
}

static void deleted_key_is_missing_again(struct users *u)
{
    const char *key = "key";
    set_text(u->a, "key", "v");
    set_text(u->a, "stays", "v");
    CHECK(delete_existing(u->a, "key") == 1);
    CHECK(exists(u->a, "key") == 0);
    CHECK(exists(u->b, "key") == 0);
    CHECK_STATUS(dist_store_wait(u->b, &key, NULL, 1, 30), DIST_ERR_TIMEOUT);
    CHECK(has_text(u->b, "stays", "v"));
    CHECK(count_keys(u->b) == 1);
}

static void deleted_key_may_be_set_again(struct users *u)
{
    CHECK(add_to(u->a, "n", 41) == 41);
    CHECK(delete_existing(u->b, "n") == 1);
    CHECK(add_to(u->a, "n", 1) == 1);
    set_text(u->a, "key", "old");
    CHECK(delete_existing(u->a, "key") == 1);
    CHECK_OK(dist_store_append(u->a, "key", DIST_TERMINATED, "new", 3));
    CHECK(has_text(u->a, "key", "new"));
    CHECK(delete_existing(u->a, "key") == 1);
    CHECK(compare_set_returns(u->b, "key", "", "newer", "newer"));
}

static const struct check rows[] = {
    ROW(value_is_read_back, 0),
    ROW(value_is_visible_to_the_other_user, 0),
    ROW(own_changes_are_visible_immediately, 0),
    ROW(all_byte_values_are_read_back, 0),
    ROW(empty_value_is_a_value, 0),
    ROW(value_of_300_kilobytes, 0),
    ROW(value_of_8_mebibytes, 0),
    ROW(value_over_the_limit_is_refused, HAS_VALUE_LIMIT),
    ROW(overwrite_replaces_the_whole_value, 0),
    ROW(last_of_many_writes_wins, 0),
    ROW(compare_set_of_missing_key_with_empty_stores, 0),
    ROW(compare_set_of_missing_key_with_value_fails, 0),
    ROW(matching_compare_set_stores, 0),
    ROW(differing_compare_set_returns_the_value, 0),
    ROW(compare_set_of_value_with_empty_fails, 0),
    ROW(compare_set_matches_an_empty_value, 0),
    ROW(compare_set_compares_all_bytes, 0),
    ROW(append_creates_a_key, 0),
    ROW(append_adds_to_the_end, 0),
    ROW(append_grows_a_long_value, 0),
    ROW(append_extends_a_counter, 0),
    ROW(delete_reports_if_the_key_existed, 0),
    ROW(deleted_key_is_missing_again, 0),
    ROW(deleted_key_may_be_set_again, 0),
};

const struct checks value_checks = CHECKS(rows);
