/*
 * Waits for keys: the events that end a wait, and the calls that a wait must not delay.
 *
 * Two users wait for each other in turn, so that each often waits already when the other writes;
 * the tests need no sleep.
 */
#include "store_suite.h"

#include <stdio.h>
#include <string.h>

static void wait_for_no_keys_returns(struct users *u)
{
    CHECK_OK(dist_store_wait(u->a, NULL, NULL, 0, 1));
    CHECK_OK(dist_store_wait(u->a, NULL, NULL, 0, 0));
    CHECK_OK(dist_store_wait(u->a, NULL, NULL, 0, DIST_WAIT_FOREVER));
}

static void wait_for_existing_keys_returns(struct users *u)
{
    const char *keys[] = { "x", "empty", "x" };
    set_text(u->a, "x", "1");
    set_text(u->a, "empty", "");
    CHECK_OK(dist_store_wait(u->b, keys, NULL, 3, 0));
    CHECK_OK(dist_store_wait(u->a, keys, NULL, 3, 1000));
    CHECK(has_text(u->b, "x", "1"));
}

/* ---- Every kind of write wakes ---- */

#define ROUNDS 10

/* Answers each key of a sequence when it is set. */
static dist_status_t answer_keys(struct call *call)
{
    char name[64];
    const char *key = name;
    for (int64_t round = 0; round < call->argument; round++) {
        sprintf(name, "%s/%d", call->key, (int)round);
        dist_status_t status = dist_store_wait(call->store, &key, NULL, 1, 0);
        if (status == DIST_OK) {
            sprintf(name, "%s/%d/answer", call->key, (int)round);
            status = dist_store_set(call->store, name, DIST_TERMINATED, "", 0);
        }
        if (status != DIST_OK) {
            return status;
        }
    }
    return DIST_OK;
}

/* The other user waits for this user's keys, and this user waits for its answers. */
static void check_wakes_waiters(struct users *u, const char *sequence,
                                void (*write)(dist_store_t *store, const char *key))
{
    struct call other;
    char key_name[64];
    const char *key = key_name;
    start_call(&other, answer_keys, u->b, sequence, ROUNDS);
    for (int round = 0; round < ROUNDS; round++) {
        sprintf(key_name, "%s/%d", sequence, round);
        write(u->a, key_name);
        sprintf(key_name, "%s/%d/answer", sequence, round);
        CHECK_OK(dist_store_wait(u->a, &key, NULL, 1, 0));
    }
    join_call(&other);
    CHECK(other.status == DIST_OK);
}

static void write_set(dist_store_t *store, const char *key)
{
    set_text(store, key, "v");
}

static void write_empty(dist_store_t *store, const char *key)
{
    set_text(store, key, "");
}

static void write_add(dist_store_t *store, const char *key)
{
    CHECK(add_to(store, key, 1) == 1);
}

static void write_append(dist_store_t *store, const char *key)
{
    CHECK_OK(dist_store_append(store, key, DIST_TERMINATED, "v", 1));
}

static void write_multi_set(dist_store_t *store, const char *key)
{
    const char *keys[] = { "another", key };
    const void *values[] = { "v", "w" };
    size_t lens[] = { 1, 1 };
    CHECK_OK(dist_store_multi_set(store, keys, NULL, values, lens, 2));
}

static void write_compare_set(dist_store_t *store, const char *key)
{
    CHECK(compare_set_returns(store, key, "", "v", "v"));
}

static void set_wakes_waiters(struct users *u)
{
    check_wakes_waiters(u, "set", write_set);
}

static void set_of_empty_value_wakes_waiters(struct users *u)
{
    check_wakes_waiters(u, "empty", write_empty);
}

static void add_wakes_waiters(struct users *u)
{
    check_wakes_waiters(u, "add", write_add);
}

static void append_wakes_waiters(struct users *u)
{
    check_wakes_waiters(u, "append", write_append);
}

static void multi_set_wakes_waiters(struct users *u)
{
    check_wakes_waiters(u, "multi_set", write_multi_set);
}

static void compare_set_wakes_waiters(struct users *u)
{
    check_wakes_waiters(u, "compare_set", write_compare_set);
}

static void failed_compare_set_wakes_no_waiter(struct users *u)
{
    struct call waiter;
    start_call(&waiter, call_wait, u->b, "key", 200);
    for (int i = 0; i < 20; i++) {
        CHECK(compare_set_returns(u->a, "key", "something", "else", "something"));
    }
    join_call(&waiter);
    CHECK(waiter.status == DIST_ERR_TIMEOUT);
    CHECK(exists(u->a, "key") == 0);
}

static void another_key_wakes_no_waiter(struct users *u)
{
    struct call waiter;
    start_call(&waiter, call_wait, u->b, "key", 200);
    set_text(u->a, "ke", "v");
    set_text(u->a, "key2", "v");
    set_text(u->a, "key/", "v");
    CHECK(add_to(u->a, "Key", 1) == 1);
    CHECK(delete_existing(u->a, "Key") == 1);
    CHECK(delete_existing(u->a, "key") == 0);
    join_call(&waiter);
    CHECK(waiter.status == DIST_ERR_TIMEOUT);
    CHECK_OMITS(waiter.error, "key2");
}

/* ---- Several keys ---- */

static dist_status_t get_three_keys(struct call *call)
{
    const char *keys[] = { "x", "y", "x", "z" };
    dist_blob_t *blob = NULL;
    dist_status_t status = dist_store_multi_get(call->store, keys, NULL, 4, &blob);
    if (status == DIST_OK) {
        CHECK(blob_is(blob, 0, "1", 1) && blob_is(blob, 1, "2", 1) && blob_is(blob, 2, "1", 1));
        CHECK(blob_is(blob, 3, "3", 1));
        CHECK_OK(dist_blob_release(blob));
    }
    return status;
}

static dist_status_t wait_for_three_keys(struct call *call)
{
    const char *keys[] = { "z", "x", "y", "z" };
    return dist_store_wait(call->store, keys, NULL, 4, 0);
}

/* Tests each of the six orders, by both users, with one key set twice. */
static void wait_ends_with_the_last_key_in_any_order(struct users *u)
{
    static const char *const orders[] = { "xyz", "xzy", "yxz", "yzx", "zxy", "zyx" };
    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
        struct call waiter;
        struct call getter;
        start_call(&waiter, wait_for_three_keys, u->a, NULL, 0);
        start_call(&getter, get_three_keys, u->b, NULL, 0);
        for (int j = 0; j < 3; j++) {
            dist_store_t *setter = j % 2 == 0 ? u->a : u->b;
            char key[2] = { orders[i][j], '\0' };
            char value[2] = { (char)('1' + (key[0] - 'x')), '\0' };
            set_text(setter, key, value);
            if (j < 2) {
                set_text(setter, key, value);
            }
            await_writes(setter);
        }
        join_call(&waiter);
        join_call(&getter);
        CHECK(waiter.status == DIST_OK && getter.status == DIST_OK);
        CHECK(delete_existing(u->a, "x") == 1 && delete_existing(u->b, "y") == 1 && delete_existing(u->a, "z") == 1);
    }
}

static void wait_needs_every_key(struct users *u)
{
    const char *keys[] = { "x", "y" };
    struct call getter;
    CHECK_OK(dist_store_set_timeout(u->b, 200));
    start_call(&getter, get_three_keys, u->b, NULL, 0);
    set_text(u->a, "x", "1");
    set_text(u->a, "y", "2");
    CHECK_OK(dist_store_wait(u->a, keys, NULL, 2, 0));
    join_call(&getter);
    CHECK(getter.status == DIST_ERR_TIMEOUT);
    CHECK_CONTAINS(getter.error, "z\"");
}

static void get_waits_for_its_key(struct users *u)
{
    struct call getter;
    start_call(&getter, call_get, u->b, "key", 0);
    await_writes(u->a);
    set_text(u->a, "key", "come");
    join_call(&getter);
    CHECK(getter.status == DIST_OK && strcmp(getter.text, "come") == 0);
}

#define FETCHES 60

/* Fetches each key of a sequence, alternately in two ways, and answers it. */
static dist_status_t fetch_keys(struct call *call)
{
    char name[32];
    const char *key = name;
    for (int i = 0; i < FETCHES; i++) {
        dist_blob_t *blob = NULL;
        sprintf(name, "%d", i);
        dist_status_t status = i % 2 == 0 ? dist_store_get(call->store, key, DIST_TERMINATED, &blob)
                                          : dist_store_multi_get(call->store, &key, NULL, 1, &blob);
        if (status != DIST_OK) {
            return status;
        }
        CHECK(blob_is(blob, 0, "value", 5));
        CHECK_OK(dist_blob_release(blob));
        sprintf(name, "%d/answer", i);
        set_text(call->store, name, "");
    }
    return DIST_OK;
}

/* A key that is set during a get is missing or has its value, and is never empty. */
static void get_returns_a_value_set_during_the_call(struct users *u)
{
    struct call getter;
    char name[32];
    const char *key = name;
    start_call(&getter, fetch_keys, u->b, NULL, 0);
    for (int i = 0; i < FETCHES; i++) {
        sprintf(name, "%d", i);
        set_text(u->a, name, "value");
        sprintf(name, "%d/answer", i);
        CHECK_OK(dist_store_wait(u->a, &key, NULL, 1, 0));
    }
    join_call(&getter);
    CHECK(getter.status == DIST_OK);
}

static void get_waits_for_a_deleted_key(struct users *u)
{
    struct call getter;
    set_text(u->a, "key", "old");
    CHECK(delete_existing(u->a, "key") == 1);
    start_call(&getter, call_get, u->b, "key", 0);
    CHECK(exists(u->a, "key") == 0);
    set_text(u->a, "key", "new");
    join_call(&getter);
    CHECK(getter.status == DIST_OK && strcmp(getter.text, "new") == 0);
}

/* ---- Several waiters ---- */

#define WAITERS 12

static void one_key_wakes_all_its_waiters(struct users *u)
{
    struct call waiters[WAITERS];
    for (int i = 0; i < WAITERS; i++) {
        start_call(&waiters[i], i % 3 == 0 ? call_wait : call_get, i % 2 == 0 ? u->a : u->b, "key", 0);
    }
    set_text(u->a, "key", "v");
    for (int i = 0; i < WAITERS; i++) {
        join_call(&waiters[i]);
        CHECK(waiters[i].status == DIST_OK);
        CHECK(i % 3 == 0 || strcmp(waiters[i].text, "v") == 0);
    }
}

static void each_key_wakes_only_its_waiters(struct users *u)
{
    static const char *const keys[] = { "0", "1", "2", "3" };
    struct call waiters[4];
    for (int i = 0; i < 4; i++) {
        start_call(&waiters[i], call_get, i % 2 == 0 ? u->a : u->b, keys[i], 0);
    }
    for (int i = 3; i >= 0; i--) {
        set_text(u->a, keys[i], keys[i]);
        join_call(&waiters[i]);
        CHECK(waiters[i].status == DIST_OK && strcmp(waiters[i].text, keys[i]) == 0);
    }
}

/* The waits use the same handle and have no time limit. */
static void waiters_do_not_block_other_calls(struct users *u)
{
    struct call waiters[6];
    for (int i = 0; i < 6; i++) {
        start_call(&waiters[i], i == 5 ? call_pop : call_wait, u->a, "last", DIST_WAIT_FOREVER);
    }
    for (int i = 0; i < 20; i++) {
        CHECK(add_to(u->a, "n", 1) == 2 * i + 1);
        CHECK(add_to(u->b, "n", 1) == 2 * i + 2);
        set_text(u->a, "x", "v");
        CHECK(has_text(u->b, "x", "v"));
        CHECK(delete_existing(u->b, "x") == 1);
    }
    set_text(u->a, "last", "v");
    push_text(u->a, "last", "item");
    for (int i = 0; i < 6; i++) {
        join_call(&waiters[i]);
        CHECK(waiters[i].status == DIST_OK);
    }
}

static void users_alternate(struct users *u)
{
    check_wakes_waiters(u, "first", write_set);
    struct users swapped = *u;
    swapped.a = u->b;
    swapped.b = u->a;
    check_wakes_waiters(&swapped, "second", write_add);
}

static const struct check rows[] = {
    ROW(wait_for_no_keys_returns, 0),
    ROW(wait_for_existing_keys_returns, 0),
    ROW(set_wakes_waiters, 0),
    ROW(set_of_empty_value_wakes_waiters, 0),
    ROW(add_wakes_waiters, 0),
    ROW(append_wakes_waiters, 0),
    ROW(multi_set_wakes_waiters, 0),
    ROW(compare_set_wakes_waiters, 0),
    ROW(failed_compare_set_wakes_no_waiter, 0),
    ROW(another_key_wakes_no_waiter, 0),
    ROW(wait_ends_with_the_last_key_in_any_order, 0),
    ROW(wait_needs_every_key, 0),
    ROW(get_waits_for_its_key, 0),
    ROW(get_returns_a_value_set_during_the_call, 0),
    ROW(get_waits_for_a_deleted_key, 0),
    ROW(one_key_wakes_all_its_waiters, 0),
    ROW(each_key_wakes_only_its_waiters, 0),
    ROW(waiters_do_not_block_other_calls, 0),
    ROW(users_alternate, 0),
};

const struct checks wait_checks = CHECKS(rows);
