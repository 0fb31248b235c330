/*
 * A custom store whose clients make one request at a time, as over one connection: a wait blocks
 * all other requests of its client. With the function `clone`, a wait on one handle does not block
 * a clone of the handle. With `interrupt`, a rank that waits for others waits once for the whole
 * time. Without both, the library polls and lets no wait time out, since the store might write a
 * line into a log each time.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include "nap.h"

#include <errno.h>
#include <time.h>

#define CAPACITY 2048
#define LATE_MS 1500

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct {
        char key[128];
        char value[1024];
        size_t len;
        int is_used;
    } entries[CAPACITY];
    int clients, waits, timed_out, interrupted;
} table = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, { { "", "", 0, 0 } }, 0, 0, 0, 0 };

struct client {
    pthread_mutex_t connection; /* held during each request */
    int is_interrupted;
};

static struct client *new_client(void)
{
    struct client *client = calloc(1, sizeof(*client));
    REQUIRE(client != NULL && pthread_mutex_init(&client->connection, NULL) == 0);
    pthread_mutex_lock(&table.lock);
    table.clients++;
    pthread_mutex_unlock(&table.lock);
    return client;
}

static void begin(struct client *client)
{
    pthread_mutex_lock(&client->connection);
    pthread_mutex_lock(&table.lock);
}

static dist_status_t end(struct client *client, dist_status_t status)
{
    pthread_mutex_unlock(&table.lock);
    pthread_mutex_unlock(&client->connection);
    return status;
}

static int find(const char *key)
{
    int i;
    for (i = 0; i < CAPACITY; i++) {
        if (table.entries[i].is_used && strcmp(table.entries[i].key, key) == 0) {
            return i;
        }
    }
    return -1;
}

static dist_status_t put(const char *key, const void *value, size_t len)
{
    int at = find(key);
    if (at < 0) {
        for (at = 0; at < CAPACITY && table.entries[at].is_used; at++) {
        }
    }
    if (at == CAPACITY || len > sizeof(table.entries[0].value) || strlen(key) >= sizeof(table.entries[0].key)) {
        return DIST_ERR_OUT_OF_MEMORY;
    }
    strcpy(table.entries[at].key, key);
    memcpy(table.entries[at].value, value, len);
    table.entries[at].len = len;
    table.entries[at].is_used = 1;
    pthread_cond_broadcast(&table.changed);
    return DIST_OK;
}

static int are_all_present(const char *const *keys, size_t n)
{
    size_t i;
    for (i = 0; i < n && find(keys[i]) >= 0; i++) {
    }
    return i == n;
}

static dist_status_t await_keys(struct client *client, const char *const *keys, size_t n, int64_t timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(timeout_ms / 1000) + 1;
    table.waits++;
    while (!are_all_present(keys, n)) {
        if (client->is_interrupted) {
            client->is_interrupted = 0;
            table.interrupted++;
            return DIST_ERR_ABORTED;
        }
        if (pthread_cond_timedwait(&table.changed, &table.lock, &until) == ETIMEDOUT) {
            table.timed_out++;
            return DIST_ERR_TIMEOUT;
        }
    }
    return DIST_OK;
}

static dist_status_t set(void *user, const char *key, const void *value, size_t len, int64_t timeout_ms)
{
    (void)timeout_ms;
    begin(user);
    return end(user, put(key, value, len));
}

static dist_status_t get(void *user, const char *key, void (*sink)(void *, const void *, size_t), void *sink_arg,
                         int64_t timeout_ms)
{
    dist_status_t status = DIST_OK;
    begin(user);
    if (find(key) < 0) {
        status = await_keys(user, &key, 1, timeout_ms);
    }
    if (status == DIST_OK) {
        sink(sink_arg, table.entries[find(key)].value, table.entries[find(key)].len);
    }
    return end(user, status);
}

static dist_status_t add(void *user, const char *key, int64_t amount, int64_t *result, int64_t timeout_ms)
{
    char text[32];
    int at;
    (void)timeout_ms;
    begin(user);
    at = find(key);
    *result = amount;
    if (at >= 0) {
        memcpy(text, table.entries[at].value, table.entries[at].len);
        text[table.entries[at].len] = '\0';
        *result += strtol(text, NULL, 10);
    }
    sprintf(text, "%ld", (long)*result);
    return end(user, put(key, text, strlen(text)));
}

static dist_status_t wait_for(void *user, const char *const *keys, size_t n, int64_t timeout_ms)
{
    begin(user);
    return end(user, await_keys(user, keys, n, timeout_ms));
}

static dist_status_t check_keys(void *user, const char *const *keys, size_t n, int32_t *all_present, int64_t timeout_ms)
{
    (void)timeout_ms;
    begin(user);
    *all_present = are_all_present(keys, n);
    return end(user, DIST_OK);
}

static dist_status_t delete_key(void *user, const char *key, int32_t *deleted, int64_t timeout_ms)
{
    int at;
    (void)timeout_ms;
    begin(user);
    at = find(key);
    *deleted = at >= 0;
    if (at >= 0) {
        table.entries[at].is_used = 0;
    }
    return end(user, DIST_OK);
}

static void destroy(void *user)
{
    pthread_mutex_lock(&table.lock);
    table.clients--;
    pthread_mutex_unlock(&table.lock);
    free(user);
}

static dist_status_t clone_client(void *user, void **copy, int64_t timeout_ms)
{
    (void)user;
    CHECK(timeout_ms > 0);
    *copy = new_client();
    return DIST_OK;
}

static void interrupt(void *user)
{
    struct client *client = user;
    pthread_mutex_lock(&table.lock);
    client->is_interrupted = 1;
    pthread_cond_broadcast(&table.changed);
    pthread_mutex_unlock(&table.lock);
}

enum ability { BASIC, CLONES, INTERRUPTS };

static dist_store_t *make_store(enum ability ability)
{
    dist_store_vtable_t f = DIST_STORE_VTABLE_INIT;
    dist_store_t *store = NULL;
    f.set = set;
    f.get = get;
    f.add = add;
    f.wait = wait_for;
    f.check = check_keys;
    f.delete_key = delete_key;
    f.destroy = destroy;
    if (ability >= CLONES) {
        f.clone = clone_client;
    }
    if (ability >= INTERRUPTS) {
        f.interrupt = interrupt;
    }
    REQUIRE_OK(dist_store_custom_create(&f, new_client(), &store));
    return store;
}

static int read_count(const int *count)
{
    int value;
    pthread_mutex_lock(&table.lock);
    value = *count;
    pthread_mutex_unlock(&table.lock);
    return value;
}

static void *wait_for_key(void *store)
{
    const char *key = "late";
    CHECK_OK(dist_store_wait(store, &key, NULL, 1, LIMIT_MS));
    return NULL;
}

static void wait_does_not_block_a_clone(enum ability ability)
{
    dist_store_t *store = make_store(ability), *copy = NULL;
    pthread_t thread;
    int32_t deleted = 0;
    int before = read_count(&table.waits), round;
    REQUIRE_OK(dist_store_clone(store, &copy));
    REQUIRE(pthread_create(&thread, NULL, wait_for_key, store) == 0);
    for (round = 0; read_count(&table.waits) == before; round++) {
        REQUIRE(round < LIMIT_MS);
        nap_ms(1);
    }
    CHECK_OK(dist_store_set(copy, "late", DIST_TERMINATED, "v", 1));
    REQUIRE(pthread_join(thread, NULL) == 0);
    CHECK_OK(dist_store_delete_key(copy, "late", DIST_TERMINATED, &deleted));
    CHECK(deleted == 1);
    CHECK_OK(dist_store_release(copy));
    CHECK_OK(dist_store_release(store));
    CHECK(table.timed_out == 0);
}

struct rank {
    dist_store_t *store;
    int rank;
};

static void *join_and_reduce(void *arg)
{
    const struct rank *me = arg;
    dist_group_t *group = NULL;
    float x = 1;
    if (me->rank == 1) {
        nap_ms(LATE_MS);
    }
    REQUIRE_OK(join_group(me->store, "late", me->rank, 2, &group));
    CHECK_OK(dist_all_reduce(group, &x, &x, 1, DIST_F32, DIST_SUM, NULL, NULL));
    CHECK(x == 2);
    CHECK_OK(dist_group_release(group));
    return NULL;
}

/* Forms a group whose rank 1 comes late. */
static void late_rank_is_awaited(enum ability ability)
{
    struct rank ranks[2];
    pthread_t thread;
    int round, waits = read_count(&table.waits);
    ranks[0].store = make_store(ability);
    ranks[1].store = make_store(ability);
    ranks[0].rank = 0;
    ranks[1].rank = 1;
    REQUIRE(pthread_create(&thread, NULL, join_and_reduce, &ranks[1]) == 0);
    join_and_reduce(&ranks[0]);
    REQUIRE(pthread_join(thread, NULL) == 0);
    CHECK_OK(dist_store_release(ranks[0].store));
    CHECK_OK(dist_store_release(ranks[1].store));
    /* The threads of interrupted waits end soon. */
    for (round = 0; read_count(&table.clients) > 0 && round < LIMIT_MS; round++) {
        nap_ms(1);
    }
    CHECK(read_count(&table.clients) == 0);
    CHECK(table.timed_out == 0);
    /* Rank 0 waits once for the entries, and not once per slice of its 1.5 seconds. */
    CHECK(ability == INTERRUPTS ? read_count(&table.waits) > waits : 1);
}

/* A rank whose group cannot be formed stops waiting, although the store would wait longer. */
static void failed_wait_is_interrupted(void)
{
    dist_store_t *store = make_store(INTERRUPTS), *other = make_store(INTERRUPTS);
    dist_group_t *group = NULL;
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    int round;
    options.store = store;
    options.name = "never";
    options.fields = DIST_FIELD_RANK;
    options.rank = 0;
    options.world_size = 2;
    options.connect_timeout_ms = 300;
    CHECK_STATUS(dist_group_create(&options, &group), DIST_ERR_TIMEOUT);
    CHECK_MESSAGE("rank 1");
    CHECK_OK(dist_store_release(store));
    CHECK_OK(dist_store_release(other));
    for (round = 0; read_count(&table.clients) > 0 && round < LIMIT_MS; round++) {
        nap_ms(1);
    }
    CHECK(read_count(&table.clients) == 0);
    CHECK(table.interrupted > 0);
}

int main(void)
{
    enum ability ability;
    for (ability = BASIC; ability <= INTERRUPTS; ability++) {
        late_rank_is_awaited(ability);
    }
    wait_does_not_block_a_clone(CLONES);
    wait_does_not_block_a_clone(INTERRUPTS);
    failed_wait_is_interrupted();
    return check_report();
}
