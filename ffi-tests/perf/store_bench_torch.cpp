/* torch's part of the store benchmark (store_bench.h): torch's server, and its client without
 * Python. */
#include "store_bench.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <string>
#include <vector>

struct store {
    c10d::TCPStore tcp;
};

struct keys {
    std::vector<std::string> names;
};

struct value {
    std::vector<uint8_t> bytes;
};

static struct store *create_store(const c10d::TCPStoreOptions &options)
{
    try {
        return new store{ c10d::TCPStore("127.0.0.1", options) };
    } catch (const std::exception &problem) {
        fail(problem.what());
        return nullptr;
    }
}

static struct store *store_serve(int *port)
{
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    struct store *store = create_store(options);
    *port = store->tcp.getPort();
    return store;
}

static struct store *store_open(int port)
{
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port);
    options.waitWorkers = false;
    return create_store(options);
}

static void store_close(struct store *store)
{
    delete store;
}

static struct keys *keys_new(const char *const *names, size_t n)
{
    return new keys{ std::vector<std::string>(names, names + n) };
}

static struct value *value_new(size_t bytes)
{
    return new value{ std::vector<uint8_t>(bytes, 'x') };
}

static void store_set(struct store *store, struct keys *keys, size_t index, struct value *value)
{
    store->tcp.set(keys->names[index], value->bytes);
}

static void store_confirm(struct store *store)
{
    store->tcp.getNumKeys();
}

static size_t store_get(struct store *store, struct keys *keys, size_t index)
{
    return store->tcp.get(keys->names[index]).size();
}

static size_t store_multi_get(struct store *store, struct keys *keys)
{
    size_t total = 0;
    for (const auto &bytes : store->tcp.multiGet(keys->names)) {
        total += bytes.size();
    }
    return total;
}

static void store_add(struct store *store, struct keys *keys)
{
    store->tcp.add(keys->names[0], 1);
}

static void store_wait(struct store *store, struct keys *keys)
{
    store->tcp.wait(keys->names);
}

static int store_check(struct store *store, struct keys *keys)
{
    return store->tcp.check(keys->names);
}
