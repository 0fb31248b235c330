/*
 * A store that the caller implements: a small table with a lock. Two ranks use it to form a
 * group and reduce. Then the test makes its functions fail in every possible way.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <errno.h>
#include <time.h>

#define CAPACITY 128
#define MAX_KEY_BYTES 128
#define MAX_VALUE_BYTES 1024

struct entry {
    char key[MAX_KEY_BYTES];
    char value[MAX_VALUE_BYTES];
    size_t len;
    int is_used;
};

struct table {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct entry entries[CAPACITY];
    int destroyed;
    /* The status that the functions return instead of their normal result; DIST_OK for none. */
    dist_status_t failure;
    int returns_no_value;
};

static struct table table = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, { { "", "", 0, 0 } },
                              0, DIST_OK, 0 };

static struct entry *find_entry(struct table *t, const char *key)
{
    size_t i;
    for (i = 0; i < CAPACITY; i++) {
        if (t->entries[i].is_used && strcmp(t->entries[i].key, key) == 0) {
            return &t->entries[i];
        }
    }
    return NULL;
}

static dist_status_t put_entry(struct table *t, const char *key, const void *value, size_t len)
{
    struct entry *entry = find_entry(t, key);
    size_t i;
    for (i = 0; entry == NULL && i < CAPACITY; i++) {
        if (!t->entries[i].is_used) {
            entry = &t->entries[i];
        }
    }
    if (entry == NULL || len > MAX_VALUE_BYTES || strlen(key) >= MAX_KEY_BYTES) {
        return DIST_ERR_OUT_OF_MEMORY;
    }
    strcpy(entry->key, key);
    memcpy(entry->value, value, len);
    entry->len = len;
    entry->is_used = 1;
    pthread_cond_broadcast(&t->changed);
    return DIST_OK;
}

static int are_all_present(struct table *t, const char *const *keys, size_t n)
{
    size_t i;
    for (i = 0; i < n; i++) {
        if (find_entry(t, keys[i]) == NULL) {
            return 0;
        }
    }
    return 1;
}

static dist_status_t await_keys(struct table *t, const char *const *keys, size_t n, int64_t timeout_ms)
{
    struct timespec until;
    CHECK(timeout_ms > 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(timeout_ms / 1000);
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    while (!are_all_present(t, keys, n)) {
        if (pthread_cond_timedwait(&t->changed, &t->lock, &until) == ETIMEDOUT) {
            return are_all_present(t, keys, n) ? DIST_OK : DIST_ERR_TIMEOUT;
        }
    }
    return DIST_OK;
}

static dist_status_t set(void *user, const char *key, const void *value, size_t len, int64_t timeout_ms)
{
    struct table *t = user;
    dist_status_t status;
    CHECK(timeout_ms > 0);
    pthread_mutex_lock(&t->lock);
    status = t->failure == DIST_OK ? put_entry(t, key, value, len) : t->failure;
    pthread_mutex_unlock(&t->lock);
    return status;
}

static dist_status_t get(void *user, const char *key, void (*sink)(void *, const void *, size_t),
                         void *sink_arg, int64_t timeout_ms)
{
    struct table *t = user;
    struct entry *entry;
    dist_status_t status;
    pthread_mutex_lock(&t->lock);
    status = t->failure == DIST_OK ? await_keys(t, &key, 1, timeout_ms) : t->failure;
    if (status == DIST_OK && !t->returns_no_value) {
        entry = find_entry(t, key);
        sink(sink_arg, entry->value, entry->len);
    }
    pthread_mutex_unlock(&t->lock);
    return status;
}

static dist_status_t add(void *user, const char *key, int64_t amount, int64_t *result, int64_t timeout_ms)
{
    struct table *t = user;
    struct entry *entry;
    char text[32];
    dist_status_t status;
    CHECK(timeout_ms > 0);
    pthread_mutex_lock(&t->lock);
    entry = find_entry(t, key);
    *result = amount;
    if (entry != NULL) {
        memcpy(text, entry->value, entry->len);
        text[entry->len] = '\0';
        *result += strtoll(text, NULL, 10);
    }
    snprintf(text, sizeof(text), "%lld", (long long)*result);
    status = t->failure == DIST_OK ? put_entry(t, key, text, strlen(text)) : t->failure;
    pthread_mutex_unlock(&t->lock);
    return status;
}

static dist_status_t wait_for(void *user, const char *const *keys, size_t n, int64_t timeout_ms)
{
    struct table *t = user;
    dist_status_t status;
    pthread_mutex_lock(&t->lock);
    status = t->failure == DIST_OK ? await_keys(t, keys, n, timeout_ms) : t->failure;
    pthread_mutex_unlock(&t->lock);
    return status;
}

static dist_status_t check(void *user, const char *const *keys, size_t n, int32_t *all_present,
                           int64_t timeout_ms)
{
    struct table *t = user;
    CHECK(timeout_ms > 0);
    pthread_mutex_lock(&t->lock);
    *all_present = are_all_present(t, keys, n);
    pthread_mutex_unlock(&t->lock);
    return t->failure;
}

static dist_status_t delete_key(void *user, const char *key, int32_t *deleted, int64_t timeout_ms)
{
    struct table *t = user;
    struct entry *entry;
    CHECK(timeout_ms > 0);
    pthread_mutex_lock(&t->lock);
    entry = find_entry(t, key);
    *deleted = entry != NULL;
    if (entry != NULL) {
        entry->is_used = 0;
    }
    pthread_mutex_unlock(&t->lock);
    return t->failure;
}

static void destroy(void *user)
{
    ((struct table *)user)->destroyed++;
}

static dist_store_vtable_t make_functions(void)
{
    dist_store_vtable_t f = DIST_STORE_VTABLE_INIT;
    f.set = set;
    f.get = get;
    f.add = add;
    f.wait = wait_for;
    f.check = check;
    f.delete_key = delete_key;
    f.destroy = destroy;
    return f;
}

static void values_are_read_back(dist_store_t *store)
{
    static const char *const keys[2] = { "counter", "absent" };
    dist_blob_t *blob = NULL;
    const void *data = NULL;
    size_t len = 0;
    int64_t sum = 0;
    int32_t flag = 7;
    CHECK_OK(dist_store_set(store, "key", DIST_TERMINATED, "va\0ue", 5));
    CHECK_OK(dist_store_get(store, "key", DIST_TERMINATED, &blob));
    CHECK_OK(dist_blob_data(blob, 0, &data, &len));
    CHECK(len == 5 && memcmp(data, "va\0ue", 6) == 0);
    CHECK_OK(dist_blob_release(blob));
    CHECK_OK(dist_store_add(store, "counter", DIST_TERMINATED, 5, &sum));
    CHECK_OK(dist_store_add(store, "counter", DIST_TERMINATED, -7, &sum));
    CHECK(sum == -2);
    CHECK_OK(dist_store_check(store, keys, NULL, 1, &flag));
    CHECK(flag == 1);
    CHECK_OK(dist_store_check(store, keys, NULL, 2, &flag));
    CHECK(flag == 0);
    CHECK_REFUSED(dist_store_wait(store, keys, NULL, 2, 20), DIST_ERR_TIMEOUT, "absent");
    CHECK_OK(dist_store_delete_key(store, "counter", DIST_TERMINATED, &flag));
    CHECK(flag == 1);
    CHECK_OK(dist_store_delete_key(store, "counter", DIST_TERMINATED, &flag));
    CHECK(flag == 0);
    CHECK_STATUS(dist_store_num_keys(store, &sum), DIST_ERR_UNSUPPORTED);
    CHECK_STATUS(dist_store_append(store, "key", DIST_TERMINATED, "x", 1), DIST_ERR_UNSUPPORTED);
    CHECK_STATUS(dist_store_compare_set(store, "key", DIST_TERMINATED, "a", 1, "b", 1, &blob), DIST_ERR_UNSUPPORTED);
    CHECK_STATUS(dist_store_list_keys(store, &blob), DIST_ERR_UNSUPPORTED);
    CHECK(dist_store_port(store) == -1 && dist_store_host(store, NULL, 0) == 0);
}

/* The library returns the functions' statuses; an unknown status becomes a back-end error. */
static void failures_of_functions_are_returned(dist_store_t *store)
{
    dist_blob_t *blob = NULL;
    int32_t flag;
    table.failure = DIST_ERR_CONNECTION;
    CHECK_REFUSED(dist_store_set(store, "key", DIST_TERMINATED, "v", 1), DIST_ERR_CONNECTION, "set of the caller's");
    CHECK_STATUS(dist_store_get(store, "key", DIST_TERMINATED, &blob), DIST_ERR_CONNECTION);
    CHECK_STATUS(dist_store_delete_key(store, "nothing", DIST_TERMINATED, &flag), DIST_ERR_CONNECTION);
    table.failure = 4711;
    CHECK_REFUSED(dist_store_set(store, "key", DIST_TERMINATED, "v", 1), DIST_ERR_BACKEND, "4711");
    table.failure = DIST_OK;
    table.returns_no_value = 1;
    CHECK_REFUSED(dist_store_get(store, "key", DIST_TERMINATED, &blob), DIST_ERR_BACKEND, "succeeded without a value");
    table.returns_no_value = 0;
    CHECK(blob == NULL);
}

static void missing_functions_are_refused(void)
{
    dist_store_vtable_t f = make_functions();
    dist_store_t *store = NULL;
    int destroyed = table.destroyed;
#define CHECK_WITHOUT(function) \
    f = make_functions(); \
    f.function = NULL; \
    CHECK_REFUSED(dist_store_custom_create(&f, NULL, &store), DIST_ERR_INVALID_ARGUMENT, #function)
    CHECK_WITHOUT(set);
    CHECK_WITHOUT(get);
    CHECK_WITHOUT(add);
    CHECK_WITHOUT(wait);
    CHECK_WITHOUT(check);
    CHECK_WITHOUT(delete_key);
    CHECK(store == NULL && table.destroyed == destroyed);
    /* Both destroy and the user pointer are optional. */
    f = make_functions();
    f.destroy = NULL;
    CHECK_OK(dist_store_custom_create(&f, NULL, &store));
    CHECK_OK(dist_store_release(store));
    CHECK(table.destroyed == destroyed);
}

static void reduce_on_group(dist_store_t *store, int rank)
{
    dist_group_t *group = NULL;
    int64_t x[3];
    int i;
    for (i = 0; i < 3; i++) {
        x[i] = (rank + 1) * (i + 1);
    }
    REQUIRE_OK(join_group(store, "custom", rank, 2, &group));
    CHECK_OK(dist_all_reduce(group, x, x, 3, DIST_I64, DIST_SUM, NULL, NULL));
    CHECK(x[0] == 3 && x[1] == 6 && x[2] == 9);
    CHECK_OK(dist_group_release(group));
}

static void *run_second_rank(void *store)
{
    reduce_on_group(store, 1);
    return NULL;
}

int main(void)
{
    dist_store_vtable_t f = make_functions();
    dist_store_t *store = NULL;
    dist_store_t *prefixed = NULL;
    pthread_t thread;
    REQUIRE_OK(dist_store_custom_create(&f, &table, &store));
    values_are_read_back(store);
    failures_of_functions_are_returned(store);
    missing_functions_are_refused();
    REQUIRE(pthread_create(&thread, NULL, run_second_rank, store) == 0);
    reduce_on_group(store, 0);
    REQUIRE(pthread_join(thread, NULL) == 0);
    CHECK_OK(dist_store_prefix_create("p", DIST_TERMINATED, store, &prefixed));
    CHECK_OK(dist_store_release(store));
    CHECK(table.destroyed == 0);
    CHECK_OK(dist_store_set(prefixed, "key", DIST_TERMINATED, "v", 1));
    CHECK(find_entry(&table, "p/key") != NULL);
    CHECK_OK(dist_store_release(prefixed));
    CHECK(table.destroyed == 1);
    return check_report();
}
