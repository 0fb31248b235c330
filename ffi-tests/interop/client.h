/*
 * Short forms of store calls and their checks, and a change that is made during a wait, for
 * client.c.
 */
#ifndef CLIENT_H
#define CLIENT_H

#include "../c/check.h"

/* The timeout of calls that cannot succeed; all other calls have LIMIT_MS, since the machine may
 * be busy. */
#define SHORT_MS 300

static int is_legacy_server;

static dist_store_t *connect_to(int port, int world_size)
{
    dist_store_tcp_options_t options = DIST_STORE_TCP_OPTIONS_INIT;
    dist_store_t *store = NULL;
    options.host = "127.0.0.1";
    options.port = port;
    options.world_size = world_size;
    options.timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_store_tcp_create(&options, &store));
    return store;
}

static void set_text(dist_store_t *store, const char *key, const char *text)
{
    CHECK_OK(dist_store_set(store, key, DIST_TERMINATED, text, strlen(text)));
}

/* Returns true if an item of a blob consists of these bytes. */
static int item_equals(const dist_blob_t *blob, size_t index, const void *expected, size_t len)
{
    const void *data = NULL;
    size_t actual_len = 0;
    return dist_blob_data(blob, index, &data, &actual_len) == DIST_OK && actual_len == len
           && (len == 0 || memcmp(data, expected, len) == 0);
}

/* Returns true if a blob consists of one text; releases the blob. */
static int is_text(dist_blob_t *blob, const char *expected)
{
    int same = dist_blob_count(blob) == 1 && item_equals(blob, 0, expected, strlen(expected));
    CHECK_OK(dist_blob_release(blob));
    return same;
}

static int has_text(dist_store_t *store, const char *key, const char *expected)
{
    dist_blob_t *blob = NULL;
    return CHECK_OK(dist_store_get(store, key, DIST_TERMINATED, &blob)) && is_text(blob, expected);
}

static int has_key(dist_store_t *store, const char *key)
{
    int32_t is_present = -1;
    CHECK_OK(dist_store_check(store, &key, NULL, 1, &is_present));
    return is_present;
}

static int compare_set_returns(dist_store_t *store, const char *key, const char *expected, const char *desired,
                    const char *result)
{
    dist_blob_t *blob = NULL;
    return CHECK_OK(dist_store_compare_set(store, key, DIST_TERMINATED, expected, strlen(expected), desired,
                                           strlen(desired), &blob))
           && is_text(blob, result);
}

/* A change to a store that another thread makes while this one waits. */
struct background_change {
    dist_store_t *store;
    void (*change)(dist_store_t *);
};

static void *run_change(void *arg)
{
    struct background_change *background_change = arg;
    background_change->change(background_change->store);
    return NULL;
}

static void run_while_waiting(dist_store_t *store, void (*change)(dist_store_t *), void (*wait)(dist_store_t *))
{
    struct background_change background_change;
    pthread_t thread;
    background_change.store = store;
    background_change.change = change;
    REQUIRE(pthread_create(&thread, NULL, run_change, &background_change) == 0);
    wait(store);
    REQUIRE(pthread_join(thread, NULL) == 0);
}

#endif
