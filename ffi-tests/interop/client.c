/*
 * Tests libdist's store client with the server of another implementation: every dist_store_
 * function and its effect.
 *
 *     client PORT basics|counters|waits|queues|names|barriers|prefixes
 *     client PORT queues|mixed legacy      a server without queues
 *     client PORT mixed                    one of two processes; the other is torch_mixed.py
 */
#define _POSIX_C_SOURCE 200809L
#include "client.h"

static void check_values(dist_store_t *store)
{
    static const char binary[] = { 'a', '\0', '\n', '\xff' };
    size_t size = (size_t)1 << 20;
    char *large = malloc(size);
    dist_blob_t *blob = NULL;
    set(store, "key", "value");
    CHECK(has(store, "key", "value"));
    set(store, "key", "another");
    CHECK(has(store, "key", "another"));
    set(store, "empty", "");
    CHECK(has(store, "empty", ""));
    CHECK_OK(dist_store_set(store, "binary", DIST_TERMINATED, binary, sizeof(binary)));
    CHECK_OK(dist_store_get(store, "binary", DIST_TERMINATED, &blob));
    CHECK(holds(blob, 0, binary, sizeof(binary)));
    CHECK_OK(dist_blob_release(blob));
    REQUIRE(large != NULL);
    memset(large, 'x', size);
    CHECK_OK(dist_store_set(store, "large", DIST_TERMINATED, large, size));
    CHECK_OK(dist_store_get(store, "large", DIST_TERMINATED, &blob));
    CHECK(holds(blob, 0, large, size));
    CHECK_OK(dist_blob_release(blob));
    free(large);
}

static void check_many(dist_store_t *store)
{
    const char *keys[] = { "first", "second", "third" };
    const void *values[] = { "1", NULL, "333" };
    size_t lens[] = { 1, 0, 3 };
    dist_blob_t *blob = NULL;
    int32_t there = -1;
    CHECK_OK(dist_store_multi_set(store, keys, NULL, values, lens, 3));
    CHECK_OK(dist_store_multi_get(store, keys, NULL, 3, &blob));
    CHECK(dist_blob_count(blob) == 3);
    CHECK(holds(blob, 0, "1", 1) && holds(blob, 1, "", 0) && holds(blob, 2, "333", 3));
    CHECK_OK(dist_blob_release(blob));
    CHECK_OK(dist_store_multi_get(store, NULL, NULL, 0, &blob));
    CHECK(dist_blob_count(blob) == 0);
    CHECK_OK(dist_blob_release(blob));
    CHECK_OK(dist_store_check(store, keys, NULL, 3, &there));
    CHECK(there == 1);
    CHECK_OK(dist_store_check(store, NULL, NULL, 0, &there));
    CHECK(there == 1);
    CHECK_OK(dist_store_wait(store, keys, NULL, 3, LIMIT_MS));
    CHECK_OK(dist_store_wait(store, NULL, NULL, 0, LIMIT_MS));
}

static void basics(dist_store_t *store)
{
    char host[32] = "";
    dist_store_t *twin = NULL;
    int64_t before = -1, after = -1;
    int32_t deleted = -1;
    check_values(store);
    check_many(store);

    CHECK(swaps_to(store, "swap", "", "one", "one"));
    CHECK(swaps_to(store, "swap", "one", "two", "two"));
    CHECK(swaps_to(store, "swap", "one", "three", "two"));
    CHECK(swaps_to(store, "no such key", "expected", "new", "expected"));
    CHECK(!is_there(store, "no such key"));

    CHECK_OK(dist_store_num_keys(store, &before));
    set(store, "one more", "");
    CHECK_OK(dist_store_num_keys(store, &after));
    CHECK(after == before + 1);
    CHECK_OK(dist_store_delete_key(store, "one more", DIST_TERMINATED, &deleted));
    CHECK(deleted == 1);
    CHECK_OK(dist_store_delete_key(store, "one more", DIST_TERMINATED, &deleted));
    CHECK(deleted == 0);
    CHECK(!is_there(store, "one more"));

    CHECK_OK(dist_store_append(store, "text", DIST_TERMINATED, "ab", 2));
    CHECK_OK(dist_store_append(store, "text", DIST_TERMINATED, "cd", 2));
    CHECK(has(store, "text", "abcd"));

    CHECK_OK(dist_store_clone(store, &twin));
    CHECK_OK(dist_store_set_timeout(twin, 1234));
    CHECK(dist_store_get_timeout(twin) == 1234 && dist_store_get_timeout(store) == LIMIT_MS);
    set(twin, "key", "by the twin");
    CHECK_OK(dist_store_release(twin));
    CHECK(has(store, "key", "by the twin"));
    CHECK(dist_store_host(store, host, sizeof(host)) == sizeof("127.0.0.1"));
    CHECK(strcmp(host, "127.0.0.1") == 0);
}

static void counters(dist_store_t *store)
{
    int64_t sum = 0;
    CHECK_OK(dist_store_add(store, "counter", DIST_TERMINATED, 5, &sum));
    CHECK(sum == 5);
    CHECK_OK(dist_store_add(store, "counter", DIST_TERMINATED, -7, &sum));
    CHECK(sum == -2);
    CHECK(has(store, "counter", "-2"));
    CHECK_OK(dist_store_add(store, "counter", DIST_TERMINATED, INT64_MAX, &sum));
    CHECK(sum == INT64_MAX - 2);
    CHECK_OK(dist_store_add(store, "counter", DIST_TERMINATED, 3, &sum));
    CHECK(sum == INT64_MIN);
    set(store, "written", "41");
    CHECK_OK(dist_store_add(store, "written", DIST_TERMINATED, 1, &sum));
    CHECK(sum == 42);

    /* A torch server only closes the connection; the client must find the reason. */
    set(store, "words", "no number");
    CHECK_REFUSED(dist_store_add(store, "words", DIST_TERMINATED, 1, &sum), DIST_ERR_NOT_A_NUMBER, "words");
    CHECK(has(store, "words", "no number"));
    set(store, "empty", "");
    CHECK_REFUSED(dist_store_add(store, "empty", DIST_TERMINATED, 1, &sum), DIST_ERR_NOT_A_NUMBER, "empty");
    CHECK_OK(dist_store_add(store, "another counter", DIST_TERMINATED, 1, &sum));
    CHECK(sum == 1);
}

static void set_late(dist_store_t *store)
{
    int64_t sum = 0;
    set(store, "late", "value");
    CHECK_OK(dist_store_add(store, "late counter", DIST_TERMINATED, 7, &sum));
    CHECK_OK(dist_store_append(store, "late text", DIST_TERMINATED, "abc", 3));
}

static void wait_late(dist_store_t *store)
{
    const char *keys[] = { "late counter", "late text", "late" };
    CHECK_OK(dist_store_wait(store, keys, NULL, 3, LIMIT_MS));
    CHECK(has(store, "late", "value"));
    CHECK(has(store, "late counter", "7"));
}

/*
 * Keys that are set at the same time as they are read: a successful get must return the set
 * value, and never an empty one.
 */
enum { APPEARING = 500 };

static void set_appearing(dist_store_t *store)
{
    char key[32], asked[32];
    const char *keys[1];
    /* A separate client, whose requests interleave with the other client's requests. */
    dist_store_t *own = connect_to(dist_store_port(store), 0);
    int i;
    keys[0] = asked;
    for (i = 0; i < APPEARING; i++) {
        snprintf(key, sizeof(key), "appearing/%d", i);
        snprintf(asked, sizeof(asked), "asked for/%d", i);
        REQUIRE_OK(dist_store_wait(own, keys, NULL, 1, LIMIT_MS));
        set(own, key, "value");
    }
    CHECK_OK(dist_store_release(own));
}

static void get_appearing(dist_store_t *store)
{
    char key[32], asked[32];
    const char *keys[2];
    dist_blob_t *blob = NULL;
    int i;
    keys[0] = "present";
    keys[1] = key;
    for (i = 0; i < APPEARING; i++) {
        snprintf(key, sizeof(key), "appearing/%d", i);
        snprintf(asked, sizeof(asked), "asked for/%d", i);
        set(store, asked, "");
        if (i % 2 == 0) {
            REQUIRE(has(store, key, "value"));
        } else {
            REQUIRE_OK(dist_store_multi_get(store, keys, NULL, 2, &blob));
            REQUIRE(holds(blob, 0, "", 0) && holds(blob, 1, "value", 5));
            CHECK_OK(dist_blob_release(blob));
        }
    }
}

static void waits(dist_store_t *store)
{
    const char *keys[] = { "present", "absent one", "absent two" };
    dist_store_t *hasty = NULL;
    dist_blob_t *blob = NULL;
    set(store, "present", "");
    CHECK_OK(dist_store_wait(store, keys, NULL, 1, DIST_WAIT_FOREVER));
    CHECK_REFUSED(dist_store_wait(store, keys, NULL, 3, SHORT_MS), DIST_ERR_TIMEOUT, "absent one");
    CHECK_MESSAGE("absent two");
    CHECK(strstr(dist_last_error(), "present") == NULL);
    set(store, "absent one", "");
    CHECK_REFUSED(dist_store_wait(store, keys, NULL, 3, SHORT_MS), DIST_ERR_TIMEOUT, "absent two");
    CHECK(strstr(dist_last_error(), "absent one") == NULL);

    CHECK_OK(dist_store_clone(store, &hasty));
    CHECK_OK(dist_store_set_timeout(hasty, SHORT_MS));
    CHECK_REFUSED(dist_store_get(hasty, "nobody sets this", DIST_TERMINATED, &blob), DIST_ERR_TIMEOUT, "nobody sets this");
    CHECK(blob == NULL);
    CHECK_REFUSED(dist_store_multi_get(hasty, keys, NULL, 3, &blob), DIST_ERR_TIMEOUT, "absent two");
    CHECK_OK(dist_store_set_timeout(hasty, LIMIT_MS));
    CHECK(has(hasty, "present", ""));
    CHECK_OK(dist_store_release(hasty));
    set(store, "absent two", "");
    CHECK_OK(dist_store_wait(store, keys, NULL, 3, LIMIT_MS));

    meanwhile(store, set_late, wait_late);
    meanwhile(store, set_appearing, get_appearing);
}

static void push_late(dist_store_t *store)
{
    CHECK_OK(dist_store_queue_push(store, "late queue", DIST_TERMINATED, "late", 4));
}

static void pop_late(dist_store_t *store)
{
    dist_blob_t *blob = NULL;
    CHECK(CHECK_OK(dist_store_queue_pop(store, "late queue", DIST_TERMINATED, 1, &blob)) && is_text(blob, "late"));
}

static int pops(dist_store_t *store, int block, const char *wanted)
{
    dist_blob_t *blob = NULL;
    return CHECK_OK(dist_store_queue_pop(store, "queue", DIST_TERMINATED, block, &blob)) && is_text(blob, wanted);
}

static int queue_has(dist_store_t *store, int64_t wanted)
{
    int64_t items = -1;
    return CHECK_OK(dist_store_queue_len(store, "queue", DIST_TERMINATED, &items)) && items == wanted;
}

/* On a server without queues, the client either emulates them with keys or returns an error. */
static int queues_are_refused(dist_store_t *store)
{
    dist_blob_t *blob = NULL;
    int64_t items = -1;
    if (!server_is_legacy
        || dist_store_queue_push(store, "probe", DIST_TERMINATED, "x", 1) != DIST_ERR_UNSUPPORTED) {
        return 0;
    }
    printf("refused: %s\n", dist_last_error());
    CHECK_MESSAGE("queue");
    CHECK_REFUSED(dist_store_queue_pop(store, "probe", DIST_TERMINATED, 0, &blob), DIST_ERR_UNSUPPORTED, "queue");
    CHECK_REFUSED(dist_store_queue_len(store, "probe", DIST_TERMINATED, &items), DIST_ERR_UNSUPPORTED, "queue");
    set(store, "after the refusal", "goes on");
    CHECK(has(store, "after the refusal", "goes on"));
    return 1;
}

static void queues(dist_store_t *store)
{
    const char *name = "queue";
    dist_store_t *hasty = NULL;
    dist_blob_t *blob = NULL;
    if (queues_are_refused(store)) {
        return;
    }
    CHECK(queue_has(store, 0));
    CHECK_REFUSED(dist_store_queue_pop(store, name, DIST_TERMINATED, 0, &blob), DIST_ERR_QUEUE_EMPTY, name);
    REQUIRE_OK(dist_store_queue_push(store, name, DIST_TERMINATED, "one", 3));
    CHECK_OK(dist_store_queue_push(store, name, DIST_TERMINATED, NULL, 0));
    CHECK_OK(dist_store_queue_push(store, name, DIST_TERMINATED, "three", 5));
    CHECK(queue_has(store, 3));
    if (!server_is_legacy) {
        CHECK_OK(dist_store_wait(store, &name, NULL, 1, LIMIT_MS));
    }
    CHECK(pops(store, 1, "one") && pops(store, 0, "") && pops(store, 1, "three"));
    CHECK(queue_has(store, 0));

    CHECK_OK(dist_store_clone(store, &hasty));
    CHECK_OK(dist_store_set_timeout(hasty, SHORT_MS));
    CHECK_REFUSED(dist_store_queue_pop(hasty, name, DIST_TERMINATED, 1, &blob), DIST_ERR_TIMEOUT, name);
    CHECK_OK(dist_store_release(hasty));
    meanwhile(store, push_late, pop_late);
}

/* Returns how often a key is in a list of keys. */
static int times_listed(const dist_blob_t *keys, const char *key)
{
    int times = 0;
    size_t i;
    for (i = 0; i < dist_blob_count(keys); i++) {
        times += holds(keys, i, key, strlen(key));
    }
    return times;
}

static void names(dist_store_t *store)
{
    dist_store_t *prefixed = NULL;
    dist_blob_t *keys = NULL;
    int32_t deleted = 0;
    set(store, "listed/a", "");
    set(store, "listed/b", "");
    CHECK_OK(dist_store_list_keys(store, &keys));
    CHECK(times_listed(keys, "listed/a") == 1 && times_listed(keys, "listed/b") == 1);
    CHECK(times_listed(keys, "init/") == 0);
    CHECK_OK(dist_blob_release(keys));
    CHECK_OK(dist_store_delete_key(store, "listed/a", DIST_TERMINATED, &deleted));
    CHECK_OK(dist_store_prefix_create("listed", DIST_TERMINATED, store, &prefixed));
    CHECK_OK(dist_store_list_keys(prefixed, &keys));
    CHECK(dist_blob_count(keys) == 1 && holds(keys, 0, "b", 1));
    CHECK_OK(dist_blob_release(keys));
    CHECK_OK(dist_store_release(prefixed));
}

static void meet(dist_store_t *store)
{
    CHECK_OK(dist_store_barrier(store, "two", DIST_TERMINATED, 2, LIMIT_MS));
}

static void barriers(dist_store_t *store)
{
    CHECK_OK(dist_store_barrier(store, "nobody", DIST_TERMINATED, 0, LIMIT_MS));
    CHECK_OK(dist_store_barrier(store, "alone", DIST_TERMINATED, 1, LIMIT_MS));
    CHECK_REFUSED(dist_store_barrier(store, "too few", DIST_TERMINATED, 3, SHORT_MS), DIST_ERR_TIMEOUT, "too few");
    CHECK_MESSAGE("1 of 3");
    CHECK_REFUSED(dist_store_barrier(store, "too few", DIST_TERMINATED, 3, SHORT_MS), DIST_ERR_TIMEOUT, "2 of 3");
    CHECK_OK(dist_store_barrier(store, "too few", DIST_TERMINATED, 3, LIMIT_MS));
    CHECK_OK(dist_store_barrier(store, "too few", DIST_TERMINATED, 3, LIMIT_MS));
    meanwhile(store, meet, meet);
}

static void prefixes(dist_store_t *store)
{
    dist_store_t *inner = NULL, *outer = NULL;
    int64_t sum = 0;
    CHECK_OK(dist_store_prefix_create("inner", DIST_TERMINATED, store, &inner));
    CHECK_OK(dist_store_prefix_create("outer", DIST_TERMINATED, inner, &outer));
    set(inner, "key", "one");
    set(outer, "key", "two");
    CHECK(has(store, "inner/key", "one"));
    CHECK(has(store, "inner/outer/key", "two"));
    CHECK_OK(dist_store_add(outer, "counter", DIST_TERMINATED, 3, &sum));
    CHECK(has(store, "inner/outer/counter", "3"));
    CHECK(swaps_to(outer, "key", "two", "three", "three"));
    CHECK_OK(dist_store_append(outer, "key", DIST_TERMINATED, "+", 1));
    CHECK(has(outer, "key", "three+"));
    CHECK_OK(dist_store_barrier(inner, "alone", DIST_TERMINATED, 1, LIMIT_MS));
    CHECK(has(store, "inner/alone/num_members", "1"));
    CHECK(has(store, "inner/alone/last_member", "1"));
    CHECK_REFUSED(dist_store_barrier(outer, "too few", DIST_TERMINATED, 2, SHORT_MS), DIST_ERR_TIMEOUT, "1 of 2");
    meanwhile(outer, meet, meet);
    CHECK_OK(dist_store_release(outer));
    CHECK_OK(dist_store_release(inner));
}

static void mixed_queues(dist_store_t *store)
{
    static const char *items[] = { "1", "2", "3" };
    static const char *wanted[] = { "one", "two", "three" };
    dist_blob_t *blob = NULL;
    int i;
    for (i = 0; i < 3; i++) {
        CHECK_OK(dist_store_queue_push(store, "to torch", DIST_TERMINATED, items[i], 1));
    }
    for (i = 0; i < 3; i++) {
        CHECK(CHECK_OK(dist_store_queue_pop(store, "to dist", DIST_TERMINATED, 1, &blob)) && is_text(blob, wanted[i]));
    }
}

static void mixed(dist_store_t *store)
{
    dist_store_t *inner = NULL, *outer = NULL;
    dist_blob_t *winner = NULL, *keys = NULL;
    const void *data = NULL;
    size_t len = 0;
    int64_t sum = 0;
    int i;
    set(store, "from dist", "hello from dist");
    REQUIRE(has(store, "from torch", "hello from torch"));

    for (i = 0; i < 200; i++) {
        CHECK_OK(dist_store_add(store, "together", DIST_TERMINATED, 1, &sum));
        CHECK_OK(dist_store_append(store, "marks", DIST_TERMINATED, "d", 1));
    }
    REQUIRE_OK(dist_store_barrier(store, "counted", DIST_TERMINATED, 2, LIMIT_MS));
    CHECK(has(store, "together", "400"));

    CHECK_OK(dist_store_compare_set(store, "winner", DIST_TERMINATED, "", 0, "dist", 4, &winner));
    CHECK_OK(dist_blob_data(winner, 0, &data, &len));
    CHECK_OK(dist_store_set(store, "winner to dist", DIST_TERMINATED, data, len));
    CHECK_OK(dist_blob_release(winner));

    if (!server_is_legacy) {
        mixed_queues(store);
    }

    CHECK_OK(dist_store_prefix_create("inner", DIST_TERMINATED, store, &inner));
    CHECK_OK(dist_store_prefix_create("outer", DIST_TERMINATED, inner, &outer));
    REQUIRE_OK(dist_store_barrier(outer, "met", DIST_TERMINATED, 2, LIMIT_MS));
    CHECK_OK(dist_store_release(outer));
    CHECK_OK(dist_store_release(inner));

    CHECK_OK(dist_store_list_keys(store, &keys));
    CHECK(times_listed(keys, "from torch") == 1 && times_listed(keys, "init/") == 0);
    CHECK_OK(dist_blob_release(keys));
    CHECK_OK(dist_store_barrier(store, "end", DIST_TERMINATED, 2, LIMIT_MS));
}

static const struct section {
    const char *name;
    void (*run)(dist_store_t *);
} sections[] = {
    { "basics", basics }, { "counters", counters }, { "waits", waits },       { "queues", queues },
    { "names", names },   { "barriers", barriers }, { "prefixes", prefixes }, { "mixed", mixed },
};

int main(int argc, char **argv)
{
    const char *name = argc > 2 ? argv[2] : "";
    int port = argc > 1 ? atoi(argv[1]) : 0;
    int found = 0;
    dist_store_t *store;
    size_t i;
    server_is_legacy = argc > 3 && strcmp(argv[3], "legacy") == 0;
    store = connect_to(port, strcmp(name, "mixed") == 0 ? 2 : 0);
    for (i = 0; i < sizeof(sections) / sizeof(sections[0]); i++) {
        if (strcmp(name, sections[i].name) == 0) {
            sections[i].run(store);
            found = 1;
        }
    }
    CHECK(found);
    CHECK(dist_store_port(store) == port);
    CHECK_OK(dist_store_release(store));
    return check_report();
}
