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
    set_text(store, "key", "value");
    CHECK(has_text(store, "key", "value"));
    set_text(store, "key", "another");
    CHECK(has_text(store, "key", "another"));
    set_text(store, "empty", "");
    CHECK(has_text(store, "empty", ""));
    CHECK_OK(dist_store_set(store, "binary", DIST_TERMINATED, binary, sizeof(binary)));
    CHECK_OK(dist_store_get(store, "binary", DIST_TERMINATED, &blob));
    CHECK(item_equals(blob, 0, binary, sizeof(binary)));
    CHECK_OK(dist_blob_release(blob));
    REQUIRE(large != NULL);
    memset(large, 'x', size);
    CHECK_OK(dist_store_set(store, "large", DIST_TERMINATED, large, size));
    CHECK_OK(dist_store_get(store, "large", DIST_TERMINATED, &blob));
    CHECK(item_equals(blob, 0, large, size));
    CHECK_OK(dist_blob_release(blob));
    free(large);
}

static void check_many(dist_store_t *store)
{
    const char *keys[] = { "first", "second", "third" };
    const void *values[] = { "1", NULL, "333" };
    size_t lens[] = { 1, 0, 3 };
    dist_blob_t *blob = NULL;
    int32_t is_present = -1;
    CHECK_OK(dist_store_multi_set(store, keys, NULL, values, lens, 3));
    CHECK_OK(dist_store_multi_get(store, keys, NULL, 3, &blob));
    CHECK(dist_blob_count(blob) == 3);
    CHECK(item_equals(blob, 0, "1", 1) && item_equals(blob, 1, "", 0) && item_equals(blob, 2, "333", 3));
    CHECK_OK(dist_blob_release(blob));
    CHECK_OK(dist_store_multi_get(store, NULL, NULL, 0, &blob));
    CHECK(dist_blob_count(blob) == 0);
    CHECK_OK(dist_blob_release(blob));
    CHECK_OK(dist_store_check(store, keys, NULL, 3, &is_present));
    CHECK(is_present == 1);
    CHECK_OK(dist_store_check(store, NULL, NULL, 0, &is_present));
    CHECK(is_present == 1);
    CHECK_OK(dist_store_wait(store, keys, NULL, 3, LIMIT_MS));
    CHECK_OK(dist_store_wait(store, NULL, NULL, 0, LIMIT_MS));
}

static void check_basics(dist_store_t *store)
{
    char host[32] = "";
    dist_store_t *twin = NULL;
    int64_t before = -1, after = -1;
    int32_t deleted = -1;
    check_values(store);
    check_many(store);

    CHECK(compare_set_returns(store, "swap", "", "one", "one"));
    CHECK(compare_set_returns(store, "swap", "one", "two", "two"));
    CHECK(compare_set_returns(store, "swap", "one", "three", "two"));
    CHECK(compare_set_returns(store, "no such key", "expected", "new", "expected"));
    CHECK(!has_key(store, "no such key"));

    CHECK_OK(dist_store_num_keys(store, &before));
    set_text(store, "one more", "");
    CHECK_OK(dist_store_num_keys(store, &after));
    CHECK(after == before + 1);
    CHECK_OK(dist_store_delete_key(store, "one more", DIST_TERMINATED, &deleted));
    CHECK(deleted == 1);
    CHECK_OK(dist_store_delete_key(store, "one more", DIST_TERMINATED, &deleted));
    CHECK(deleted == 0);
    CHECK(!has_key(store, "one more"));

    CHECK_OK(dist_store_append(store, "text", DIST_TERMINATED, "ab", 2));
    CHECK_OK(dist_store_append(store, "text", DIST_TERMINATED, "cd", 2));
    CHECK(has_text(store, "text", "abcd"));

    CHECK_OK(dist_store_clone(store, &twin));
    CHECK_OK(dist_store_set_timeout(twin, 1234));
    CHECK(dist_store_get_timeout(twin) == 1234 && dist_store_get_timeout(store) == LIMIT_MS);
    set_text(twin, "key", "by the twin");
    CHECK_OK(dist_store_release(twin));
    CHECK(has_text(store, "key", "by the twin"));
    CHECK(dist_store_host(store, host, sizeof(host)) == sizeof("127.0.0.1"));
    CHECK(strcmp(host, "127.0.0.1") == 0);
}

static void check_counters(dist_store_t *store)
{
    int64_t sum = 0;
    CHECK_OK(dist_store_add(store, "counter", DIST_TERMINATED, 5, &sum));
    CHECK(sum == 5);
    CHECK_OK(dist_store_add(store, "counter", DIST_TERMINATED, -7, &sum));
    CHECK(sum == -2);
    CHECK(has_text(store, "counter", "-2"));
    CHECK_OK(dist_store_add(store, "counter", DIST_TERMINATED, INT64_MAX, &sum));
    CHECK(sum == INT64_MAX - 2);
    CHECK_OK(dist_store_add(store, "counter", DIST_TERMINATED, 3, &sum));
    CHECK(sum == INT64_MIN);
    set_text(store, "written", "41");
    CHECK_OK(dist_store_add(store, "written", DIST_TERMINATED, 1, &sum));
    CHECK(sum == 42);

    /* A torch server only closes the connection; the client must find the reason. */
    set_text(store, "words", "no number");
    CHECK_REFUSED(dist_store_add(store, "words", DIST_TERMINATED, 1, &sum), DIST_ERR_NOT_A_NUMBER, "words");
    CHECK(has_text(store, "words", "no number"));
    set_text(store, "empty", "");
    CHECK_REFUSED(dist_store_add(store, "empty", DIST_TERMINATED, 1, &sum), DIST_ERR_NOT_A_NUMBER, "empty");
    CHECK_OK(dist_store_add(store, "another counter", DIST_TERMINATED, 1, &sum));
    CHECK(sum == 1);
}

static void set_late(dist_store_t *store)
{
    int64_t sum = 0;
    set_text(store, "late", "value");
    CHECK_OK(dist_store_add(store, "late counter", DIST_TERMINATED, 7, &sum));
    CHECK_OK(dist_store_append(store, "late text", DIST_TERMINATED, "abc", 3));
}

static void wait_late(dist_store_t *store)
{
    const char *keys[] = { "late counter", "late text", "late" };
    CHECK_OK(dist_store_wait(store, keys, NULL, 3, LIMIT_MS));
    CHECK(has_text(store, "late", "value"));
    CHECK(has_text(store, "late counter", "7"));
}

/*
 * Keys that are set at the same time as they are read: a successful get must return the set
 * value, and never an empty one.
 */
enum { N_NEW_KEYS = 500 };

static void set_new_keys(dist_store_t *store)
{
    char key[32], request_key[32];
    const char *keys[1];
    /* A separate client, whose requests interleave with the other client's requests. */
    dist_store_t *own = connect_to(dist_store_port(store), 0);
    int i;
    keys[0] = request_key;
    for (i = 0; i < N_NEW_KEYS; i++) {
        snprintf(key, sizeof(key), "appearing/%d", i);
        snprintf(request_key, sizeof(request_key), "asked for/%d", i);
        REQUIRE_OK(dist_store_wait(own, keys, NULL, 1, LIMIT_MS));
        set_text(own, key, "value");
    }
    CHECK_OK(dist_store_release(own));
}

static void get_new_keys(dist_store_t *store)
{
    char key[32], request_key[32];
    const char *keys[2];
    dist_blob_t *blob = NULL;
    int i;
    keys[0] = "present";
    keys[1] = key;
    for (i = 0; i < N_NEW_KEYS; i++) {
        snprintf(key, sizeof(key), "appearing/%d", i);
        snprintf(request_key, sizeof(request_key), "asked for/%d", i);
        set_text(store, request_key, "");
        if (i % 2 == 0) {
            REQUIRE(has_text(store, key, "value"));
        } else {
            REQUIRE_OK(dist_store_multi_get(store, keys, NULL, 2, &blob));
            REQUIRE(item_equals(blob, 0, "", 0) && item_equals(blob, 1, "value", 5));
            CHECK_OK(dist_blob_release(blob));
        }
    }
}

static void check_waits(dist_store_t *store)
{
    const char *keys[] = { "present", "absent one", "absent two" };
    dist_store_t *hasty = NULL;
    dist_blob_t *blob = NULL;
    set_text(store, "present", "");
    CHECK_OK(dist_store_wait(store, keys, NULL, 1, DIST_WAIT_FOREVER));
    CHECK_REFUSED(dist_store_wait(store, keys, NULL, 3, SHORT_MS), DIST_ERR_TIMEOUT, "absent one");
    CHECK_MESSAGE("absent two");
    CHECK(strstr(dist_last_error(), "present") == NULL);
    set_text(store, "absent one", "");
    CHECK_REFUSED(dist_store_wait(store, keys, NULL, 3, SHORT_MS), DIST_ERR_TIMEOUT, "absent two");
    CHECK(strstr(dist_last_error(), "absent one") == NULL);

    CHECK_OK(dist_store_clone(store, &hasty));
    CHECK_OK(dist_store_set_timeout(hasty, SHORT_MS));
    CHECK_REFUSED(dist_store_get(hasty, "nobody sets this", DIST_TERMINATED, &blob), DIST_ERR_TIMEOUT, "nobody sets this");
    CHECK(blob == NULL);
    CHECK_REFUSED(dist_store_multi_get(hasty, keys, NULL, 3, &blob), DIST_ERR_TIMEOUT, "absent two");
    CHECK_OK(dist_store_set_timeout(hasty, LIMIT_MS));
    CHECK(has_text(hasty, "present", ""));
    CHECK_OK(dist_store_release(hasty));
    set_text(store, "absent two", "");
    CHECK_OK(dist_store_wait(store, keys, NULL, 3, LIMIT_MS));

    run_while_waiting(store, set_late, wait_late);
    run_while_waiting(store, set_new_keys, get_new_keys);
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

static int pop_returns(dist_store_t *store, int block, const char *expected)
{
    dist_blob_t *blob = NULL;
    return CHECK_OK(dist_store_queue_pop(store, "queue", DIST_TERMINATED, block, &blob)) && is_text(blob, expected);
}

static int queue_has_length(dist_store_t *store, int64_t expected)
{
    int64_t items = -1;
    return CHECK_OK(dist_store_queue_len(store, "queue", DIST_TERMINATED, &items)) && items == expected;
}

/* On a server without queues, the client either emulates them with keys or returns an error. */
static int check_queues_refused(dist_store_t *store)
{
    dist_blob_t *blob = NULL;
    int64_t items = -1;
    if (!is_legacy_server
        || dist_store_queue_push(store, "probe", DIST_TERMINATED, "x", 1) != DIST_ERR_UNSUPPORTED) {
        return 0;
    }
    printf("refused: %s\n", dist_last_error());
    CHECK_MESSAGE("queue");
    CHECK_REFUSED(dist_store_queue_pop(store, "probe", DIST_TERMINATED, 0, &blob), DIST_ERR_UNSUPPORTED, "queue");
    CHECK_REFUSED(dist_store_queue_len(store, "probe", DIST_TERMINATED, &items), DIST_ERR_UNSUPPORTED, "queue");
    set_text(store, "after the refusal", "goes on");
    CHECK(has_text(store, "after the refusal", "goes on"));
    return 1;
}

static void check_queues(dist_store_t *store)
{
    const char *name = "queue";
    dist_store_t *hasty = NULL;
    dist_blob_t *blob = NULL;
    if (check_queues_refused(store)) {
        return;
    }
    CHECK(queue_has_length(store, 0));
    CHECK_REFUSED(dist_store_queue_pop(store, name, DIST_TERMINATED, 0, &blob), DIST_ERR_QUEUE_EMPTY, name);
    REQUIRE_OK(dist_store_queue_push(store, name, DIST_TERMINATED, "one", 3));
    CHECK_OK(dist_store_queue_push(store, name, DIST_TERMINATED, NULL, 0));
    CHECK_OK(dist_store_queue_push(store, name, DIST_TERMINATED, "three", 5));
    CHECK(queue_has_length(store, 3));
    if (!is_legacy_server) {
        CHECK_OK(dist_store_wait(store, &name, NULL, 1, LIMIT_MS));
    }
    CHECK(pop_returns(store, 1, "one") && pop_returns(store, 0, "") && pop_returns(store, 1, "three"));
    CHECK(queue_has_length(store, 0));

    CHECK_OK(dist_store_clone(store, &hasty));
    CHECK_OK(dist_store_set_timeout(hasty, SHORT_MS));
    CHECK_REFUSED(dist_store_queue_pop(hasty, name, DIST_TERMINATED, 1, &blob), DIST_ERR_TIMEOUT, name);
    CHECK_OK(dist_store_release(hasty));
    run_while_waiting(store, push_late, pop_late);
}

/* Returns how often a key is in a list of keys. */
static int count_in_list(const dist_blob_t *keys, const char *key)
{
    int times = 0;
    size_t i;
    for (i = 0; i < dist_blob_count(keys); i++) {
        times += item_equals(keys, i, key, strlen(key));
    }
    return times;
}

static void check_names(dist_store_t *store)
{
    dist_store_t *prefixed = NULL;
    dist_blob_t *keys = NULL;
    int32_t deleted = 0;
    set_text(store, "listed/a", "");
    set_text(store, "listed/b", "");
    CHECK_OK(dist_store_list_keys(store, &keys));
    CHECK(count_in_list(keys, "listed/a") == 1 && count_in_list(keys, "listed/b") == 1);
    CHECK(count_in_list(keys, "init/") == 0);
    CHECK_OK(dist_blob_release(keys));
    CHECK_OK(dist_store_delete_key(store, "listed/a", DIST_TERMINATED, &deleted));
    CHECK_OK(dist_store_prefix_create("listed", DIST_TERMINATED, store, &prefixed));
    CHECK_OK(dist_store_list_keys(prefixed, &keys));
    CHECK(dist_blob_count(keys) == 1 && item_equals(keys, 0, "b", 1));
    CHECK_OK(dist_blob_release(keys));
    CHECK_OK(dist_store_release(prefixed));
}

static void enter_barrier(dist_store_t *store)
{
    CHECK_OK(dist_store_barrier(store, "two", DIST_TERMINATED, 2, LIMIT_MS));
}

static void check_barriers(dist_store_t *store)
{
    CHECK_OK(dist_store_barrier(store, "nobody", DIST_TERMINATED, 0, LIMIT_MS));
    CHECK_OK(dist_store_barrier(store, "alone", DIST_TERMINATED, 1, LIMIT_MS));
    CHECK_REFUSED(dist_store_barrier(store, "too few", DIST_TERMINATED, 3, SHORT_MS), DIST_ERR_TIMEOUT, "too few");
    CHECK_MESSAGE("1 of 3");
    CHECK_REFUSED(dist_store_barrier(store, "too few", DIST_TERMINATED, 3, SHORT_MS), DIST_ERR_TIMEOUT, "2 of 3");
    CHECK_OK(dist_store_barrier(store, "too few", DIST_TERMINATED, 3, LIMIT_MS));
    CHECK_OK(dist_store_barrier(store, "too few", DIST_TERMINATED, 3, LIMIT_MS));
    run_while_waiting(store, enter_barrier, enter_barrier);
}

static void check_prefixes(dist_store_t *store)
{
    dist_store_t *inner = NULL, *outer = NULL;
    int64_t sum = 0;
    CHECK_OK(dist_store_prefix_create("inner", DIST_TERMINATED, store, &inner));
    CHECK_OK(dist_store_prefix_create("outer", DIST_TERMINATED, inner, &outer));
    set_text(inner, "key", "one");
    set_text(outer, "key", "two");
    CHECK(has_text(store, "inner/key", "one"));
    CHECK(has_text(store, "inner/outer/key", "two"));
    CHECK_OK(dist_store_add(outer, "counter", DIST_TERMINATED, 3, &sum));
    CHECK(has_text(store, "inner/outer/counter", "3"));
    CHECK(compare_set_returns(outer, "key", "two", "three", "three"));
    CHECK_OK(dist_store_append(outer, "key", DIST_TERMINATED, "+", 1));
    CHECK(has_text(outer, "key", "three+"));
    CHECK_OK(dist_store_barrier(inner, "alone", DIST_TERMINATED, 1, LIMIT_MS));
    CHECK(has_text(store, "inner/alone/num_members", "1"));
    CHECK(has_text(store, "inner/alone/last_member", "1"));
    CHECK_REFUSED(dist_store_barrier(outer, "too few", DIST_TERMINATED, 2, SHORT_MS), DIST_ERR_TIMEOUT, "1 of 2");
    run_while_waiting(outer, enter_barrier, enter_barrier);
    CHECK_OK(dist_store_release(outer));
    CHECK_OK(dist_store_release(inner));
}

static void check_mixed_queues(dist_store_t *store)
{
    static const char *items[] = { "1", "2", "3" };
    static const char *expected[] = { "one", "two", "three" };
    dist_blob_t *blob = NULL;
    int i;
    for (i = 0; i < 3; i++) {
        CHECK_OK(dist_store_queue_push(store, "to torch", DIST_TERMINATED, items[i], 1));
    }
    for (i = 0; i < 3; i++) {
        CHECK(CHECK_OK(dist_store_queue_pop(store, "to dist", DIST_TERMINATED, 1, &blob)) && is_text(blob, expected[i]));
    }
}

static void check_mixed(dist_store_t *store)
{
    dist_store_t *inner = NULL, *outer = NULL;
    dist_blob_t *winner = NULL, *keys = NULL;
    const void *data = NULL;
    size_t len = 0;
    int64_t sum = 0;
    int i;
    set_text(store, "from dist", "hello from dist");
    REQUIRE(has_text(store, "from torch", "hello from torch"));

    for (i = 0; i < 200; i++) {
        CHECK_OK(dist_store_add(store, "together", DIST_TERMINATED, 1, &sum));
        CHECK_OK(dist_store_append(store, "marks", DIST_TERMINATED, "d", 1));
    }
    REQUIRE_OK(dist_store_barrier(store, "counted", DIST_TERMINATED, 2, LIMIT_MS));
    CHECK(has_text(store, "together", "400"));

    CHECK_OK(dist_store_compare_set(store, "winner", DIST_TERMINATED, "", 0, "dist", 4, &winner));
    CHECK_OK(dist_blob_data(winner, 0, &data, &len));
    CHECK_OK(dist_store_set(store, "winner to dist", DIST_TERMINATED, data, len));
    CHECK_OK(dist_blob_release(winner));

    if (!is_legacy_server) {
        check_mixed_queues(store);
    }

    CHECK_OK(dist_store_prefix_create("inner", DIST_TERMINATED, store, &inner));
    CHECK_OK(dist_store_prefix_create("outer", DIST_TERMINATED, inner, &outer));
    REQUIRE_OK(dist_store_barrier(outer, "met", DIST_TERMINATED, 2, LIMIT_MS));
    CHECK_OK(dist_store_release(outer));
    CHECK_OK(dist_store_release(inner));

    CHECK_OK(dist_store_list_keys(store, &keys));
    CHECK(count_in_list(keys, "from torch") == 1 && count_in_list(keys, "init/") == 0);
    CHECK_OK(dist_blob_release(keys));
    CHECK_OK(dist_store_barrier(store, "end", DIST_TERMINATED, 2, LIMIT_MS));
}

static const struct section {
    const char *name;
    void (*run)(dist_store_t *);
} sections[] = {
    { "basics", check_basics }, { "counters", check_counters }, { "waits", check_waits },       { "queues", check_queues },
    { "names", check_names },   { "barriers", check_barriers }, { "prefixes", check_prefixes }, { "mixed", check_mixed },
};

int main(int argc, char **argv)
{
    const char *name = argc > 2 ? argv[2] : "";
    int port = argc > 1 ? atoi(argv[1]) : 0;
    int found = 0;
    dist_store_t *store;
    size_t i;
    is_legacy_server = argc > 3 && strcmp(argv[3], "legacy") == 0;
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
