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

static int server_is_legacy;

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

static void set(dist_store_t *store, const char *key, const char *text)
{
    CHECK_OK(dist_store_set(store, key, DIST_TERMINATED, text, strlen(text)));
}

/* Returns true if an item of a blob consists of these bytes. */
static int holds(const dist_blob_t *blob, size_t index, const void *wanted, size_t len)
{
    const void *data = NULL;
    size_t got = 0;
    return dist_blob_data(blob, index, &data, &got) == DIST_OK && got == len
           && (len == 0 || memcmp(data, wanted, len) == 0);
}

/* Returns true if a blob consists of one text; releases the blob. */
static int is_text(dist_blob_t *blob, const char *wanted)
{
    int same = dist_blob_count(blob) == 1 && holds(blob, 0, wanted, strlen(wanted));
    CHECK_OK(dist_blob_release(blob));
    return same;
}

static int has(dist_store_t *store, const char *key, const char *wanted)
{
    dist_blob_t *blob = NULL;
    return CHECK_OK(dist_store_get(store, key, DIST_TERMINATED, &blob)) && is_text(blob, wanted);
}

static int is_there(dist_store_t *store, const char *key)
{
    int32_t there = -1;
    CHECK_OK(dist_store_check(store, &key, NULL, 1, &there));
    return there;
}

static int swaps_to(dist_store_t *store, const char *key, const char *expected, const char *desired,
                    const char *wanted)
{
    dist_blob_t *blob = NULL;
    return CHECK_OK(dist_store_compare_set(store, key, DIST_TERMINATED, expected, strlen(expected), desired,
                                           strlen(desired), &blob))
           && is_text(blob, wanted);
}

/* A change to a store that another thread makes while this one waits. */
struct deed {
    dist_store_t *store;
    void (*act)(dist_store_t *);
};

static void *perform(void *arg)
{
    struct deed *deed = arg;
    deed->act(deed->store);
    return NULL;
}

static void meanwhile(dist_store_t *store, void (*act)(dist_store_t *), void (*wait)(dist_store_t *))
{
    struct deed deed;
    pthread_t thread;
    deed.store = store;
    deed.act = act;
    REQUIRE(pthread_create(&thread, NULL, perform, &deed) == 0);
    wait(store);
    REQUIRE(pthread_join(thread, NULL) == 0);
}

#endif
