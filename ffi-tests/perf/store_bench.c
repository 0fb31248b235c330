/* libdist's part of the store benchmark (store_bench.h), with the public header only. */
#define _GNU_SOURCE
#include "store_bench.h"

#include <dist.h>

struct store {
    dist_store_t *store;
};

struct keys {
    const char **names;
    size_t n;
};

struct value {
    void *data;
    size_t len;
};

static void check(dist_status_t status)
{
    if (status != DIST_OK) {
        fail(dist_last_error());
    }
}

static struct store *create_store(const dist_store_tcp_options_t *options)
{
    struct store *store = malloc(sizeof(*store));
    require(store != NULL, "no memory");
    check(dist_store_tcp_create(options, &store->store));
    return store;
}

static struct store *store_serve(int *port)
{
    dist_store_tcp_options_t options = DIST_STORE_TCP_OPTIONS_INIT;
    struct store *store;
    options.host = "127.0.0.1";
    options.is_server = 1;
    store = create_store(&options);
    *port = dist_store_port(store->store);
    return store;
}

static struct store *store_open(int port)
{
    dist_store_tcp_options_t options = DIST_STORE_TCP_OPTIONS_INIT;
    options.host = "127.0.0.1";
    options.port = port;
    return create_store(&options);
}

static void store_close(struct store *store)
{
    check(dist_store_release(store->store));
    free(store);
}

static struct keys *keys_new(const char *const *names, size_t n)
{
    struct keys *keys = malloc(sizeof(*keys));
    size_t i;
    require(keys != NULL, "no memory");
    keys->n = n;
    keys->names = calloc(n, sizeof(*keys->names));
    require(keys->names != NULL, "no memory");
    for (i = 0; i < n; i++) {
        keys->names[i] = strdup(names[i]);
        require(keys->names[i] != NULL, "no memory");
    }
    return keys;
}

static struct value *value_new(size_t bytes)
{
    struct value *value = malloc(sizeof(*value));
    require(value != NULL, "no memory");
    value->len = bytes;
    value->data = malloc(bytes + 1);
    require(value->data != NULL, "no memory");
    memset(value->data, 'x', bytes + 1);
    return value;
}

static void store_set(struct store *store, struct keys *keys, size_t index, struct value *value)
{
    check(dist_store_set(store->store, keys->names[index], DIST_TERMINATED, value->data, value->len));
}

static void store_confirm(struct store *store)
{
    int64_t keys;
    check(dist_store_num_keys(store->store, &keys));
}

/* Reads all byte strings of a blob, releases it, and returns their total length. */
static size_t read_blob(dist_blob_t *blob, size_t n)
{
    size_t total = 0, i;
    for (i = 0; i < n; i++) {
        const void *data;
        size_t len;
        check(dist_blob_data(blob, i, &data, &len));
        total += len;
    }
    check(dist_blob_release(blob));
    return total;
}

static size_t store_get(struct store *store, struct keys *keys, size_t index)
{
    dist_blob_t *blob;
    check(dist_store_get(store->store, keys->names[index], DIST_TERMINATED, &blob));
    return read_blob(blob, 1);
}

static size_t store_multi_get(struct store *store, struct keys *keys)
{
    dist_blob_t *blob;
    check(dist_store_multi_get(store->store, keys->names, NULL, keys->n, &blob));
    return read_blob(blob, keys->n);
}

static void store_add(struct store *store, struct keys *keys)
{
    int64_t sum;
    check(dist_store_add(store->store, keys->names[0], DIST_TERMINATED, 1, &sum));
}

static void store_wait(struct store *store, struct keys *keys)
{
    check(dist_store_wait(store->store, keys->names, NULL, keys->n, 0));
}

static int store_check(struct store *store, struct keys *keys)
{
    int32_t is_present;
    check(dist_store_check(store->store, keys->names, NULL, keys->n, &is_present));
    return is_present;
}
