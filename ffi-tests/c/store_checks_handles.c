/*
 * Store handles: the effect of a release on other handles, released handles, and outputs of
 * failed calls.
 */
#include "store_suite.h"

#include <string.h>

static dist_store_t *clone_store(dist_store_t *store)
{
    dist_store_t *clone = NULL;
    REQUIRE(dist_store_clone(store, &clone) == DIST_OK);
    return clone;
}

static void clone_is_the_same_store(struct users *u)
{
    dist_store_t *clone = clone_store(u->a);
    CHECK(clone != u->a);
    set_text(u->a, "key", "v");
    CHECK(has_text(clone, "key", "v"));
    CHECK(add_to(clone, "n", 2) == 2);
    CHECK(add_to(u->a, "n", 1) == 3);
    push_text(clone, "queue", "item");
    CHECK(pop_returns(u->a, "queue", "item"));
    CHECK_OK(dist_store_release(clone));
}

static void clone_outlives_the_original(struct users *u)
{
    dist_store_t *first = clone_store(u->a);
    dist_store_t *clone = clone_store(first);
    set_text(first, "key", "v");
    CHECK_OK(dist_store_release(first));
    CHECK(has_text(clone, "key", "v"));
    CHECK(add_to(clone, "n", 1) == 1);
    CHECK_OK(dist_store_release(clone));
    CHECK(has_text(u->a, "key", "v"));
    CHECK(has_text(u->b, "n", "1"));
}

static void waiter_outlives_the_handle(struct users *u)
{
    struct call waiter;
    dist_store_t *clone = clone_store(u->a);
    start_call(&waiter, call_get, clone, "key", 0);
    /* If the handle is released before the other thread uses it, the thread gets an error. */
    CHECK_OK(dist_store_release(clone));
    set_text(u->a, "key", "v");
    join_call(&waiter);
    CHECK(waiter.status == DIST_OK || waiter.status == DIST_ERR_INVALID_HANDLE);
    CHECK(waiter.status != DIST_OK || strcmp(waiter.text, "v") == 0);
}

static void check_all_calls_refused(dist_store_t *store)
{
    const char *key = "key";
    const void *value = "v";
    size_t len = 1;
    int64_t number = 0;
    int32_t flag = 0;
    dist_blob_t *blob = NULL;
    dist_store_t *other = NULL;
    char text[16];
#define CHECK_CALL_REFUSED(call) CHECK_STATUS(call, DIST_ERR_INVALID_HANDLE)
    CHECK_CALL_REFUSED(dist_store_clone(store, &other));
    CHECK_CALL_REFUSED(dist_store_prefix_create("p", DIST_TERMINATED, store, &other));
    CHECK_CALL_REFUSED(dist_store_set(store, key, DIST_TERMINATED, value, len));
    CHECK_CALL_REFUSED(dist_store_get(store, key, DIST_TERMINATED, &blob));
    CHECK_CALL_REFUSED(dist_store_add(store, key, DIST_TERMINATED, 1, &number));
    CHECK_CALL_REFUSED(dist_store_compare_set(store, key, DIST_TERMINATED, value, len, value, len, &blob));
    CHECK_CALL_REFUSED(dist_store_wait(store, &key, NULL, 1, 10));
    CHECK_CALL_REFUSED(dist_store_check(store, &key, NULL, 1, &flag));
    CHECK_CALL_REFUSED(dist_store_num_keys(store, &number));
    CHECK_CALL_REFUSED(dist_store_list_keys(store, &blob));
    CHECK_CALL_REFUSED(dist_store_delete_key(store, key, DIST_TERMINATED, &flag));
    CHECK_CALL_REFUSED(dist_store_append(store, key, DIST_TERMINATED, value, len));
    CHECK_CALL_REFUSED(dist_store_multi_get(store, &key, NULL, 1, &blob));
    CHECK_CALL_REFUSED(dist_store_multi_set(store, &key, NULL, &value, &len, 1));
    CHECK_CALL_REFUSED(dist_store_queue_push(store, key, DIST_TERMINATED, value, len));
    CHECK_CALL_REFUSED(dist_store_queue_pop(store, key, DIST_TERMINATED, 0, &blob));
    CHECK_CALL_REFUSED(dist_store_queue_len(store, key, DIST_TERMINATED, &number));
    CHECK_CALL_REFUSED(dist_store_barrier(store, key, DIST_TERMINATED, 1, 10));
    CHECK_CALL_REFUSED(dist_store_set_timeout(store, 10));
    CHECK(dist_store_get_timeout(store) == 0);
    CHECK(dist_store_port(store) == -1);
    CHECK(dist_store_host(store, text, sizeof(text)) == 0);
    CHECK(blob == NULL && other == NULL);
}

static void released_handle_is_refused(struct users *u)
{
    dist_store_t *clone = clone_store(u->a);
    CHECK_OK(dist_store_release(clone));
    check_all_calls_refused(clone);
    CHECK_STATUS(dist_store_release(clone), DIST_ERR_INVALID_HANDLE);
    CHECK(count_keys(u->a) == 0);
}

static void null_is_refused_but_may_be_released(struct users *u)
{
    check_all_calls_refused(NULL);
    CHECK_OK(dist_store_release(NULL));
    CHECK(count_keys(u->a) == 0);
}

static void failure_leaves_null(struct users *u)
{
    const char *keys[] = { "absent" };
    dist_blob_t *blob;
    dist_store_t *other = u->b;
    CHECK_OK(dist_store_set_timeout(u->a, 20));
#define CHECK_LEAVES_NULL(call, expected) \
    blob = (dist_blob_t *)(void *)&keys; \
    CHECK_STATUS(call, expected); \
    CHECK(blob == NULL)
    CHECK_LEAVES_NULL(dist_store_get(u->a, "absent", DIST_TERMINATED, &blob), DIST_ERR_TIMEOUT);
    CHECK_LEAVES_NULL(dist_store_multi_get(u->a, keys, NULL, 1, &blob), DIST_ERR_TIMEOUT);
    CHECK_LEAVES_NULL(dist_store_queue_pop(u->a, "absent", DIST_TERMINATED, 1, &blob), DIST_ERR_TIMEOUT);
    CHECK_LEAVES_NULL(dist_store_queue_pop(u->a, "absent", DIST_TERMINATED, 0, &blob), DIST_ERR_QUEUE_EMPTY);
    CHECK_LEAVES_NULL(dist_store_get(u->a, NULL, DIST_TERMINATED, &blob), DIST_ERR_INVALID_ARGUMENT);
    CHECK_LEAVES_NULL(dist_store_compare_set(u->a, "k", DIST_TERMINATED, NULL, 1, NULL, 0, &blob),
                      DIST_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(dist_store_prefix_create(NULL, DIST_TERMINATED, u->a, &other), DIST_ERR_INVALID_ARGUMENT);
    CHECK(other == NULL);
}

static void null_value_needs_length_zero(struct users *u)
{
    const char *key = "key";
    const void *value = NULL;
    size_t len = 1;
    CHECK_REFUSED(dist_store_set(u->a, "key", DIST_TERMINATED, NULL, 1), DIST_ERR_INVALID_ARGUMENT, "value");
    CHECK_REFUSED(dist_store_append(u->a, "key", DIST_TERMINATED, NULL, 1), DIST_ERR_INVALID_ARGUMENT, "value");
    CHECK_REFUSED(dist_store_queue_push(u->a, "key", DIST_TERMINATED, NULL, 1), DIST_ERR_INVALID_ARGUMENT, "value");
    CHECK_REFUSED(dist_store_multi_set(u->a, &key, NULL, &value, &len, 1), DIST_ERR_INVALID_ARGUMENT, "values");
    CHECK(exists(u->a, "key") == 0);
    CHECK(queue_length(u->a, "key") == 0);
}

static void address_is_reported(struct users *u)
{
    char host[64] = "";
    dist_store_t *prefixed = NULL;
    CHECK(dist_store_port(u->a) > 0);
    CHECK(dist_store_port(u->b) == dist_store_port(u->a));
    CHECK(dist_store_host(u->a, host, sizeof(host)) == sizeof("127.0.0.1"));
    CHECK(strcmp(host, "127.0.0.1") == 0);
    CHECK(dist_store_host(u->a, NULL, 0) == sizeof("127.0.0.1"));
    REQUIRE(dist_store_prefix_create("p", DIST_TERMINATED, u->b, &prefixed) == DIST_OK);
    CHECK(dist_store_port(prefixed) == dist_store_port(u->a));
    CHECK_OK(dist_store_release(prefixed));
}

static void store_without_address_reports_none(struct users *u)
{
    char host[64] = "untouched";
    CHECK(dist_store_port(u->a) == -1);
    CHECK(dist_store_host(u->a, host, sizeof(host)) == 0);
    CHECK(strcmp(host, "untouched") == 0);
}

static const struct check rows[] = {
    ROW(clone_is_the_same_store, 0),
    ROW(clone_outlives_the_original, 0),
    ROW(waiter_outlives_the_handle, 0),
    ROW(released_handle_is_refused, 0),
    ROW(null_is_refused_but_may_be_released, 0),
    ROW(failure_leaves_null, 0),
    ROW(null_value_needs_length_zero, 0),
    ROW(address_is_reported, HAS_ADDRESS),
    ROW(store_without_address_reports_none, HAS_NO_ADDRESS),
};

const struct checks handle_checks = CHECKS(rows);
