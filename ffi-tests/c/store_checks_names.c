/*
 * Key names, counts and lists of keys, and prefixes.
 */
#include "store_suite.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Each of these names is a separate key, visible to both users, and listed as it was given. */
static void check_keys_are_distinct(struct users *u, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        set_text(i % 2 == 0 ? u->a : u->b, names[i], names[i]);
    }
    await_writes(u->a);
    await_writes(u->b);
    for (size_t i = 0; i < n; i++) {
        CHECK(exists(u->a, names[i]) == 1);
        CHECK(has_text(u->a, names[i], names[i]));
        CHECK(has_text(u->b, names[i], names[i]));
    }
    CHECK(count_keys(u->a) == (int64_t)n);
    CHECK(lists_exactly(u->b, names, n));
    CHECK(delete_existing(u->b, names[0]) == 1);
    CHECK(lists_exactly(u->a, names + 1, n - 1));
}

static void empty_key_is_a_key(struct users *u)
{
    const char *const names[] = { "", "x" };
    CHECK(exists(u->a, "") == 0);
    check_keys_are_distinct(u, names, COUNT(names));
    CHECK(add_to(u->a, "", 3) == 3);
    CHECK(has_text(u->b, "", "3"));
}

static void slashes_have_no_meaning(struct users *u)
{
    const char *const names[] = { "a", "a/", "a/b", "/a", "/", "//", "a//b", "a/b/", "a/b/c/d/e/f" };
    check_keys_are_distinct(u, names, COUNT(names));
}

static void any_byte_may_be_in_a_key(struct users *u)
{
    const char *const names[] = { "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\xff\xfe", "\xc3", "\x01", "\x7f", "\r",
                                  "line\nline", " ", "a b", "a\tb", "\"quoted\"", "back\\slash" };
    check_keys_are_distinct(u, names, COUNT(names));
}

/* Names that a store may use itself, or may confuse by its own encoding. */
static void similar_names_are_distinct(struct users *u)
{
    const char *const names[] = { "key", "Key", "KEY", "key ", " key", "%", "%25", "%2F", "%2f", ".", "..", "./key",
                                  "~", "*", "init/", "lock", "new", "queue", "keys/key", "key%", "0", "00", "-1", "+" };
    check_keys_are_distinct(u, names, COUNT(names));
}

static void keys_of_many_lengths_are_accepted(struct users *u)
{
    static const size_t lengths[] = { 1, 63, 64, 65, 127, 128, 129, 254, 255, 256, 257, 1000 };
    char *names[COUNT(lengths)];
    for (size_t i = 0; i < COUNT(lengths); i++) {
        names[i] = malloc(lengths[i] + 1);
        REQUIRE(names[i] != NULL);
        /* Half of the names consist of bytes that some stores encode with more bytes. */
        memset(names[i], i % 2 == 0 ? 'k' : '/', lengths[i]);
        names[i][lengths[i]] = '\0';
    }
    check_keys_are_distinct(u, (const char *const *)names, COUNT(lengths));
    for (size_t i = 0; i < COUNT(lengths); i++) {
        free(names[i]);
    }
}

static void check_key_length_refused(struct users *u, size_t len)
{
    char *name = malloc(len + 1);
    const char *keys[2];
    int64_t sum;
    int32_t flag;
    dist_blob_t *blob = NULL;
    REQUIRE(name != NULL);
    memset(name, 'k', len);
    name[len] = '\0';
    keys[0] = "ok";
    keys[1] = name;
    set_text(u->a, "ok", "v");
    CHECK_STATUS(dist_store_set(u->a, name, DIST_TERMINATED, "v", 1), DIST_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(dist_store_get(u->a, name, DIST_TERMINATED, &blob), DIST_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(dist_store_add(u->a, name, DIST_TERMINATED, 1, &sum), DIST_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(dist_store_check(u->a, keys, NULL, 2, &flag), DIST_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(dist_store_wait(u->a, keys, NULL, 2, 0), DIST_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(dist_store_append(u->a, name, DIST_TERMINATED, "v", 1), DIST_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(dist_store_delete_key(u->a, name, DIST_TERMINATED, &flag), DIST_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(dist_store_compare_set(u->a, name, DIST_TERMINATED, "", 0, "v", 1, &blob), DIST_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(dist_store_queue_push(u->a, name, DIST_TERMINATED, "v", 1), DIST_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(dist_store_queue_pop(u->a, name, DIST_TERMINATED, 0, &blob), DIST_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(dist_store_queue_pop(u->a, name, DIST_TERMINATED, 1, &blob), DIST_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(dist_store_queue_len(u->a, name, DIST_TERMINATED, &sum), DIST_ERR_INVALID_ARGUMENT);
    CHECK(blob == NULL);
    CHECK(count_keys(u->a) == 1);
    CHECK(has_text(u->a, "ok", "v"));
    free(name);
}

static void key_at_the_limit_is_accepted(struct users *u)
{
    char *name = malloc(u->kind->max_key_len + 1);
    REQUIRE(name != NULL);
    memset(name, '.', u->kind->max_key_len);
    name[u->kind->max_key_len] = '\0';
    const char *const names[] = { name, "." };
    check_keys_are_distinct(u, names, COUNT(names));
    free(name);
}

static void key_over_the_limit_is_refused(struct users *u)
{
    check_key_length_refused(u, u->kind->max_key_len + 1);
}

/* Such a long key indicates a missing terminator, so every store refuses it. */
static void key_of_a_mebibyte_is_refused(struct users *u)
{
    check_key_length_refused(u, ((size_t)1 << 20) + 1);
}

/* ---- Keys with a length ---- */

/* The bytes of a key end where the length says, not at a terminator. */
static void key_ends_at_its_length(struct users *u)
{
    static const char text[] = "keys";
    const char *keys[] = { text, text, "k" };
    const size_t lens[] = { 3, DIST_TERMINATED, DIST_TERMINATED };
    const void *const values[] = { "a", "b", "c" };
    const size_t value_lens[] = { 1, 1, 1 };
    dist_blob_t *blob = NULL;
    int32_t flag = 7;
    int64_t number = 0;
    CHECK_OK(dist_store_multi_set(u->a, keys, lens, values, value_lens, 3));
    await_writes(u->a);
    CHECK(has_text(u->b, "key", "a") && has_text(u->b, "keys", "b") && has_text(u->b, "k", "c"));
    CHECK_OK(dist_store_multi_get(u->b, keys, lens, 3, &blob));
    CHECK(dist_blob_count(blob) == 3);
    CHECK_OK(dist_blob_release(blob));
    CHECK_OK(dist_store_set(u->a, text, 2, "d", 1));
    CHECK_OK(dist_store_append(u->a, text, 2, "e", 1));
    await_writes(u->a);
    CHECK(has_text(u->b, "ke", "de"));
    CHECK_OK(dist_store_get(u->a, text, 2, &blob));
    CHECK_OK(dist_blob_release(blob));
    CHECK_OK(dist_store_compare_set(u->a, text, 2, "de", 2, "7", 1, &blob));
    CHECK_OK(dist_blob_release(blob));
    CHECK_OK(dist_store_add(u->a, text, 2, 1, &number));
    CHECK(number == 8);
    CHECK_OK(dist_store_check(u->a, keys, lens, 3, &flag));
    CHECK(flag == 1);
    CHECK_OK(dist_store_delete_key(u->a, text, 2, &flag));
    CHECK(flag == 1 && exists(u->b, "ke") == 0);
    CHECK_OK(dist_store_wait(u->b, keys, lens, 3, LIMIT_MS));
    CHECK_OK(dist_store_queue_push(u->a, text, 2, "i", 1));
    CHECK(queue_length(u->a, "ke") == 1);
    CHECK_OK(dist_store_queue_len(u->a, text, 2, &number));
    CHECK(number == 1);
    CHECK_OK(dist_store_queue_pop(u->a, text, 2, 0, &blob));
    CHECK_OK(dist_blob_release(blob));
    CHECK_OK(dist_store_barrier(u->a, text, 2, 1, LIMIT_MS));
}

static void zero_length_key_is_the_empty_key(struct users *u)
{
    CHECK_OK(dist_store_set(u->a, NULL, 0, "v", 1));
    await_writes(u->a);
    CHECK(has_text(u->b, "", "v"));
    CHECK_REFUSED(dist_store_set(u->a, NULL, 1, "v", 1), DIST_ERR_INVALID_ARGUMENT, "key");
    CHECK_REFUSED(dist_store_set(u->a, NULL, DIST_TERMINATED, "v", 1), DIST_ERR_INVALID_ARGUMENT, "key");
    CHECK_STATUS(dist_store_set(u->a, "k", ((size_t)1 << 20) + 1, "v", 1), DIST_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(dist_store_set(u->a, "k", DIST_TERMINATED - 1, "v", 1), DIST_ERR_INVALID_ARGUMENT);
    CHECK(count_keys(u->a) == 1);
}

static void zero_byte_is_part_of_a_key(struct users *u)
{
    static const char text[] = "a\0b";
    dist_blob_t *blob = NULL;
    const void *data = NULL;
    size_t len = 0;
    dist_store_t *prefixed = NULL;
    int32_t flag = 0;
    CHECK_OK(dist_store_set(u->a, text, 3, "v", 1));
    await_writes(u->a);
    CHECK(exists(u->b, "a") == 0);
    CHECK_OK(dist_store_get(u->b, text, 3, &blob));
    CHECK_OK(dist_blob_release(blob));
    CHECK_OK(dist_store_list_keys(u->b, &blob));
    CHECK(dist_blob_count(blob) == 1);
    CHECK_OK(dist_blob_data(blob, 0, &data, &len));
    CHECK(len == 3 && memcmp(data, text, 3) == 0);
    CHECK_OK(dist_blob_release(blob));
    /* The length also applies to a prefix. */
    REQUIRE(dist_store_prefix_create(text, 2, u->a, &prefixed) == DIST_OK);
    CHECK_OK(dist_store_set(prefixed, "k", DIST_TERMINATED, "w", 1));
    await_writes(prefixed);
    CHECK_OK(dist_store_delete_key(u->b, "a\0/k", 4, &flag));
    CHECK(flag == 1);
    CHECK_OK(dist_store_release(prefixed));
    CHECK_STATUS(dist_store_wait(u->b, (const char *[]){ text }, (const size_t[]){ 2 }, 1, 5), DIST_ERR_TIMEOUT);
    CHECK_CONTAINS(dist_last_error(), "a\\x00\"");
}

/* A store of the caller receives C strings. */
static void zero_byte_in_a_key_is_refused(struct users *u)
{
    CHECK_REFUSED(dist_store_set(u->a, "a\0b", 3, "v", 1), DIST_ERR_INVALID_ARGUMENT, "a\\x00b");
    CHECK_CONTAINS(dist_last_error(), "zero byte");
    CHECK(count_keys(u->a) == 0);
}

/* ---- Counting and listing ---- */

static void fresh_store_is_empty(struct users *u)
{
    CHECK(count_keys(u->a) == 0);
    CHECK(count_keys(u->b) == 0);
    CHECK(lists_exactly(u->a, NULL, 0));
    CHECK(lists_exactly(u->b, NULL, 0));
}

static void key_counts_once_however_it_is_created(struct users *u)
{
    const char *keys[] = { "multi_set", "set", "add", "append", "compare_set" };
    const void *values[] = { "v" };
    size_t lens[] = { 1 };
    for (int twice = 0; twice < 2; twice++) {
        CHECK_OK(dist_store_multi_set(u->a, keys, NULL, values, lens, 1));
        set_text(u->a, "set", "v");
        CHECK(add_to(u->a, "add", 1) == twice + 1);
        CHECK_OK(dist_store_append(u->a, "append", DIST_TERMINATED, "v", 1));
        CHECK(compare_set_returns(u->a, "compare_set", twice ? "v" : "", "v", "v"));
        CHECK(count_keys(u->a) == 5);
        CHECK(count_keys(u->b) == 5);
        CHECK(lists_exactly(u->b, keys, 5));
    }
}

static void reads_create_no_keys(struct users *u)
{
    const char *keys[] = { "x", "y" };
    int32_t all_present;
    CHECK(exists(u->a, "x") == 0);
    CHECK_OK(dist_store_check(u->a, keys, NULL, 2, &all_present));
    CHECK_STATUS(dist_store_wait(u->a, keys, NULL, 2, 10), DIST_ERR_TIMEOUT);
    CHECK(delete_existing(u->a, "x") == 0);
    CHECK(compare_set_returns(u->a, "x", "something", "else", "something"));
    CHECK(queue_length(u->a, "x") == 0);
    CHECK(count_keys(u->a) == 0);
    CHECK(lists_exactly(u->b, NULL, 0));
}

static void count_and_list_agree(struct users *u)
{
    const char *keys[] = { "a", "b", "c", "d" };
    for (size_t i = 0; i < COUNT(keys); i++) {
        set_text(i % 2 == 0 ? u->a : u->b, keys[i], "v");
        await_writes(i % 2 == 0 ? u->a : u->b);
        CHECK(count_keys(u->a) == (int64_t)i + 1);
        CHECK(lists_exactly(u->b, keys, i + 1));
    }
    for (size_t i = COUNT(keys); i > 0; i--) {
        CHECK(delete_existing(u->a, keys[i - 1]) == 1);
        CHECK(count_keys(u->b) == (int64_t)i - 1);
        CHECK(lists_exactly(u->a, keys, i - 1));
    }
}

/* ---- Prefixes ---- */

static dist_store_t *make_prefix_store(const char *prefix, dist_store_t *store)
{
    dist_store_t *prefixed = NULL;
    REQUIRE(dist_store_prefix_create(prefix, DIST_TERMINATED, store, &prefixed) == DIST_OK);
    return prefixed;
}

static void prefix_store_adds_prefix_and_slash(struct users *u)
{
    dist_store_t *p = make_prefix_store("p", u->a);
    set_text(p, "key", "v");
    await_writes(p);
    CHECK(has_text(u->b, "p/key", "v"));
    set_text(u->b, "p/other", "w");
    await_writes(u->b);
    CHECK(has_text(p, "other", "w"));
    CHECK(exists(p, "p/key") == 0);
    CHECK(exists(u->a, "key") == 0);
    CHECK_OK(dist_store_release(p));
}

static void prefixes_are_isolated(struct users *u)
{
    dist_store_t *p = make_prefix_store("p", u->a);
    dist_store_t *q = make_prefix_store("q", u->b);
    set_text(u->a, "key", "below");
    set_text(p, "key", "p's");
    set_text(q, "key", "q's");
    await_writes(u->a);
    CHECK(has_text(u->b, "key", "below"));
    CHECK(has_text(p, "key", "p's"));
    CHECK(has_text(q, "key", "q's"));
    CHECK(add_to(p, "n", 1) == 1);
    CHECK(add_to(q, "n", 5) == 5);
    CHECK(delete_existing(p, "key") == 1);
    CHECK(delete_existing(p, "key") == 0);
    CHECK(has_text(q, "key", "q's"));
    push_text(p, "queue", "p's");
    CHECK(queue_length(p, "queue") == 1);
    CHECK(queue_length(q, "queue") == 0);
    CHECK_OK(dist_store_release(p));
    CHECK_OK(dist_store_release(q));
}

/* A prefix does not match keys of a longer prefix that begins with it. */
static void listing_strips_the_prefix(struct users *u)
{
    dist_store_t *p = make_prefix_store("p", u->a);
    const char *const in_p[] = { "", "key", "a/b", "p/key" };
    const char *const in_all[] = { "p/", "p/key", "p/a/b", "p/p/key", "p", "pp/key", "key" };
    for (size_t i = 0; i < COUNT(in_p); i++) {
        set_text(p, in_p[i], "v");
    }
    set_text(u->a, "p", "v");
    set_text(u->a, "pp/key", "v");
    set_text(u->a, "key", "v");
    await_writes(u->a);
    CHECK(lists_exactly(p, in_p, COUNT(in_p)));
    CHECK(lists_exactly(u->b, in_all, COUNT(in_all)));
    CHECK(count_keys(p) == (int64_t)COUNT(in_all));
    CHECK_OK(dist_store_release(p));
}

static void innermost_prefix_comes_first(struct users *u)
{
    dist_store_t *inner = make_prefix_store("inner", u->a);
    dist_store_t *outer = make_prefix_store("outer", inner);
    set_text(outer, "key", "v");
    await_writes(outer);
    CHECK(has_text(inner, "outer/key", "v"));
    CHECK(has_text(u->b, "inner/outer/key", "v"));
    CHECK(exists(u->b, "outer/inner/key") == 0);
    const char *const keys[] = { "key" };
    CHECK(lists_exactly(outer, keys, 1));
    CHECK_OK(dist_store_release(outer));
    CHECK_OK(dist_store_release(inner));
}

static void prefix_with_trailing_slash_gets_another(struct users *u)
{
    dist_store_t *p = make_prefix_store("p/", u->a);
    dist_store_t *nothing = make_prefix_store("", u->a);
    set_text(p, "key", "v");
    set_text(nothing, "key", "w");
    await_writes(u->a);
    CHECK(has_text(u->b, "p//key", "v"));
    CHECK(has_text(u->b, "/key", "w"));
    CHECK_OK(dist_store_release(p));
    CHECK_OK(dist_store_release(nothing));
}

static void prefix_keeps_its_store_alive(struct users *u)
{
    dist_store_t *clone = NULL;
    REQUIRE(dist_store_clone(u->a, &clone) == DIST_OK);
    dist_store_t *p = make_prefix_store("p", clone);
    CHECK_OK(dist_store_release(clone));
    set_text(p, "key", "v");
    CHECK(has_text(p, "key", "v"));
    dist_store_t *q = make_prefix_store("q", p);
    CHECK_OK(dist_store_release(p));
    CHECK(add_to(q, "n", 1) == 1);
    CHECK(has_text(u->b, "p/q/n", "1"));
    CHECK_OK(dist_store_release(q));
}

static void messages_name_key_and_prefix(struct users *u)
{
    dist_store_t *p = make_prefix_store("the-prefix", u->a);
    const char *key = "odd\n\"key\"";
    int64_t sum;
    CHECK_REFUSED(dist_store_wait(p, &key, NULL, 1, 10), DIST_ERR_TIMEOUT, "the-prefix");
    CHECK_CONTAINS(dist_last_error(), "odd\\n\\\"key\\\"");
    set_text(p, "text", "abc");
    CHECK_REFUSED(dist_store_add(p, "text", DIST_TERMINATED, 1, &sum), DIST_ERR_NOT_A_NUMBER, "add");
    CHECK_OK(dist_store_release(p));
}

static const struct check rows[] = {
    ROW(empty_key_is_a_key, 0),
    ROW(slashes_have_no_meaning, 0),
    ROW(any_byte_may_be_in_a_key, 0),
    ROW(similar_names_are_distinct, 0),
    ROW(keys_of_many_lengths_are_accepted, 0),
    ROW(key_at_the_limit_is_accepted, HAS_KEY_LIMIT),
    ROW(key_over_the_limit_is_refused, HAS_KEY_LIMIT),
    ROW(key_of_a_mebibyte_is_refused, 0),
    ROW(key_ends_at_its_length, 0),
    ROW(zero_length_key_is_the_empty_key, 0),
    ROW(zero_byte_is_part_of_a_key, HAS_ZERO_BYTES),
    ROW(zero_byte_in_a_key_is_refused, HAS_C_STRINGS),
    ROW(fresh_store_is_empty, 0),
    ROW(key_counts_once_however_it_is_created, 0),
    ROW(reads_create_no_keys, 0),
    ROW(count_and_list_agree, 0),
    ROW(prefix_store_adds_prefix_and_slash, 0),
    ROW(prefixes_are_isolated, 0),
    ROW(listing_strips_the_prefix, 0),
    ROW(innermost_prefix_comes_first, 0),
    ROW(prefix_with_trailing_slash_gets_another, 0),
    ROW(prefix_keeps_its_store_alive, 0),
    ROW(messages_name_key_and_prefix, 0),
};

const struct checks name_checks = CHECKS(rows);
