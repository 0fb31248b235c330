/*
 * Timeouts have one meaning: tests each kind of value in each parameter, field and variable that
 * is a timeout. All calls here return immediately if the value is accepted.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <inttypes.h>
#include <unistd.h>

static dist_store_t *store;
static dist_group_t *group;
static dist_work_t *done;
static int n_groups;

/* The reaction of a function to DIST_NO_WAIT. */
enum no_wait { NO_WAIT_REFUSED, NO_WAIT_ACCEPTED, NO_WAIT_RETURNS_EARLY };

struct row {
    const char *function;
    const char *name;
    dist_status_t (*call)(int64_t timeout_ms);
    enum no_wait no_wait;
};

static dist_status_t release_group(dist_status_t status, dist_group_t **new_group)
{
    CHECK((status == DIST_OK) == (*new_group != NULL));
    CHECK_OK(dist_group_release(*new_group));
    return status;
}

static dist_status_t init_with_timeouts(int64_t timeout_ms, int64_t connect_timeout_ms)
{
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    dist_store_t *custom = new_store();
    dist_status_t status;
    options.store = custom;
    options.fields = DIST_FIELD_RANK;
    options.world_size = 1;
    options.timeout_ms = timeout_ms;
    options.connect_timeout_ms = connect_timeout_ms;
    status = dist_init(&options);
    if (status == DIST_OK) {
        CHECK_OK(dist_finalize());
    }
    CHECK_OK(dist_store_release(custom));
    return status;
}

static dist_status_t init(int64_t timeout_ms)
{
    return init_with_timeouts(timeout_ms, 0);
}

static dist_status_t init_connect(int64_t timeout_ms)
{
    return init_with_timeouts(0, timeout_ms);
}

static dist_status_t create_with_timeouts(int64_t timeout_ms, int64_t connect_timeout_ms, dist_group_t **out)
{
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    char name[32];
    sprintf(name, "group-%d", n_groups++);
    options.store = store;
    options.name = name;
    options.fields = DIST_FIELD_RANK;
    options.world_size = 1;
    options.timeout_ms = timeout_ms;
    options.connect_timeout_ms = connect_timeout_ms;
    return dist_group_create(&options, out);
}

static dist_status_t create(int64_t timeout_ms)
{
    dist_group_t *out = NULL;
    return release_group(create_with_timeouts(timeout_ms, 0, &out), &out);
}

static dist_status_t create_connect(int64_t timeout_ms)
{
    dist_group_t *out = NULL;
    return release_group(create_with_timeouts(0, timeout_ms, &out), &out);
}

static dist_status_t new_group_with_timeouts(int64_t timeout_ms, int64_t connect_timeout_ms, int splits)
{
    dist_group_new_options_t options = DIST_GROUP_NEW_OPTIONS_INIT;
    dist_group_t *out = NULL;
    options.timeout_ms = timeout_ms;
    options.connect_timeout_ms = connect_timeout_ms;
    return release_group(splits ? dist_group_split(group, 0, 0, &options, &out)
                           : dist_group_new(group, NULL, 0, &options, &out), &out);
}

static dist_status_t new_group(int64_t timeout_ms)
{
    return new_group_with_timeouts(timeout_ms, 0, 0);
}

static dist_status_t new_group_connect(int64_t timeout_ms)
{
    return new_group_with_timeouts(0, timeout_ms, 0);
}

static dist_status_t split(int64_t timeout_ms)
{
    return new_group_with_timeouts(timeout_ms, 0, 1);
}

static dist_status_t split_connect(int64_t timeout_ms)
{
    return new_group_with_timeouts(0, timeout_ms, 1);
}

static dist_status_t shrink_with_timeouts(int64_t timeout_ms, int64_t connect_timeout_ms)
{
    dist_shrink_options_t options = DIST_SHRINK_OPTIONS_INIT;
    dist_group_t *old = NULL, *out = NULL;
    dist_status_t status;
    REQUIRE_OK(create_with_timeouts(LIMIT_MS, LIMIT_MS, &old));
    options.timeout_ms = timeout_ms;
    options.connect_timeout_ms = connect_timeout_ms;
    status = release_group(dist_group_shrink(old, &options, &out), &out);
    CHECK_OK(dist_group_release(old));
    return status;
}

static dist_status_t shrink(int64_t timeout_ms)
{
    return shrink_with_timeouts(timeout_ms, 0);
}

static dist_status_t shrink_connect(int64_t timeout_ms)
{
    return shrink_with_timeouts(0, timeout_ms);
}

static dist_status_t group_set(int64_t timeout_ms)
{
    return dist_group_set_timeout(group, timeout_ms);
}

static dist_status_t create_tcp_store(int64_t timeout_ms)
{
    dist_store_tcp_options_t options = DIST_STORE_TCP_OPTIONS_INIT;
    dist_store_t *out = NULL;
    dist_status_t status;
    options.host = "127.0.0.1";
    options.is_server = 1;
    options.timeout_ms = timeout_ms;
    status = dist_store_tcp_create(&options, &out);
    CHECK_OK(dist_store_release(out));
    return status;
}

static dist_status_t create_file_store(int64_t timeout_ms)
{
    dist_store_file_options_t options = DIST_STORE_FILE_OPTIONS_INIT;
    dist_store_t *out = NULL;
    dist_status_t status;
    char path[64];
    sprintf(path, "/tmp/dist-timeouts-%ld-%d", (long)getpid(), n_groups++);
    options.timeout_ms = timeout_ms;
    status = dist_store_file_create(path, 1, &options, &out);
    CHECK_OK(dist_store_release(out));
    return status;
}

static dist_status_t store_set(int64_t timeout_ms)
{
    return dist_store_set_timeout(store, timeout_ms);
}

static dist_status_t store_wait(int64_t timeout_ms)
{
    const char *key = timeout_ms == DIST_NO_WAIT ? "absent" : "key";
    return dist_store_wait(store, &key, NULL, 1, timeout_ms);
}

static dist_status_t store_barrier(int64_t timeout_ms)
{
    return dist_store_barrier(store, "barrier", DIST_TERMINATED, 1, timeout_ms);
}

static dist_status_t blocking_call(int64_t timeout_ms)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    options.timeout_ms = timeout_ms;
    return dist_barrier(group, &options, NULL);
}

static dist_status_t asynchronous_call(int64_t timeout_ms)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    dist_work_t *work = NULL;
    dist_status_t status;
    options.timeout_ms = timeout_ms;
    status = dist_barrier(group, &options, &work);
    CHECK(work == NULL || dist_work_wait(work, 0) == DIST_OK);
    CHECK_OK(dist_work_release(work));
    return status;
}

static dist_status_t monitored_barrier(int64_t timeout_ms)
{
    return dist_monitored_barrier(group, timeout_ms, 0, NULL, NULL);
}

static dist_status_t work_wait(int64_t timeout_ms)
{
    return dist_work_wait(done, timeout_ms);
}

static dist_status_t work_synchronize(int64_t timeout_ms)
{
    return dist_work_synchronize(done, timeout_ms);
}

static int32_t succeed(int32_t rank, void *arg)
{
    (void)arg;
    return rank;
}

static dist_status_t spawn_join(int64_t timeout_ms)
{
    dist_spawn_options_t options = DIST_SPAWN_OPTIONS_INIT;
    options.join_timeout_ms = timeout_ms;
    return dist_spawn(succeed, NULL, 1, &options);
}

static dist_status_t spawn_grace(int64_t timeout_ms)
{
    dist_spawn_options_t options = DIST_SPAWN_OPTIONS_INIT;
    options.grace_ms = timeout_ms;
    return dist_spawn(succeed, NULL, 1, &options);
}

static dist_status_t init_with_variable(const char *name, int64_t timeout_ms)
{
    dist_group_t *out = NULL;
    char text[32];
    dist_status_t status;
    sprintf(text, "%" PRId64, timeout_ms);
    REQUIRE(setenv(name, text, 1) == 0);
    status = create_with_timeouts(0, 0, &out);
    if (strcmp(name, "DIST_TIMEOUT_MS") == 0 && status == DIST_OK) {
        int64_t expected = timeout_ms == 0 ? 1800000 : timeout_ms == INT64_MAX ? DIST_WAIT_FOREVER : timeout_ms;
        CHECK(dist_group_get_timeout(out) == expected);
    }
    REQUIRE(unsetenv(name) == 0);
    return release_group(status, &out);
}

static dist_status_t init_with_timeout_variable(int64_t timeout_ms)
{
    return init_with_variable("DIST_TIMEOUT_MS", timeout_ms);
}

static dist_status_t init_with_connect_variable(int64_t timeout_ms)
{
    return init_with_variable("DIST_CONNECT_TIMEOUT_MS", timeout_ms);
}

/* These rows run first, since their process must not have used groups or stores. */
static const struct row spawn_rows[] = {
    { "dist_spawn", "join_timeout_ms", spawn_join, NO_WAIT_REFUSED },
    { "dist_spawn", "grace_ms", spawn_grace, NO_WAIT_ACCEPTED },
};

static const struct row rows[] = {
    { "dist_init", "timeout_ms", init, NO_WAIT_REFUSED },
    { "dist_init", "connect_timeout_ms", init_connect, NO_WAIT_REFUSED },
    { "dist_group_create", "timeout_ms", create, NO_WAIT_REFUSED },
    { "dist_group_create", "connect_timeout_ms", create_connect, NO_WAIT_REFUSED },
    { "dist_group_new", "timeout_ms", new_group, NO_WAIT_REFUSED },
    { "dist_group_new", "connect_timeout_ms", new_group_connect, NO_WAIT_REFUSED },
    { "dist_group_split", "timeout_ms", split, NO_WAIT_REFUSED },
    { "dist_group_split", "connect_timeout_ms", split_connect, NO_WAIT_REFUSED },
    { "dist_group_shrink", "timeout_ms", shrink, NO_WAIT_REFUSED },
    { "dist_group_shrink", "connect_timeout_ms", shrink_connect, NO_WAIT_REFUSED },
    { "dist_group_set_timeout", "timeout_ms", group_set, NO_WAIT_REFUSED },
    { "dist_store_tcp_create", "timeout_ms", create_tcp_store, NO_WAIT_REFUSED },
    { "dist_store_file_create", "timeout_ms", create_file_store, NO_WAIT_REFUSED },
    { "dist_store_wait", "timeout_ms", store_wait, NO_WAIT_RETURNS_EARLY },
    { "dist_store_barrier", "timeout_ms", store_barrier, NO_WAIT_REFUSED },
    { "dist_store_set_timeout", "timeout_ms", store_set, NO_WAIT_ACCEPTED },
    { "dist_barrier", "timeout_ms", blocking_call, NO_WAIT_REFUSED },
    { "dist_barrier", "timeout_ms", asynchronous_call, NO_WAIT_REFUSED },
    { "dist_monitored_barrier", "timeout_ms", monitored_barrier, NO_WAIT_ACCEPTED },
    { "dist_work_wait", "timeout_ms", work_wait, NO_WAIT_ACCEPTED },
    { "dist_work_synchronize", "timeout_ms", work_synchronize, NO_WAIT_ACCEPTED },
    { "dist_group_create", "DIST_TIMEOUT_MS", init_with_timeout_variable, NO_WAIT_REFUSED },
    { "dist_group_create", "DIST_CONNECT_TIMEOUT_MS", init_with_connect_variable, NO_WAIT_REFUSED },
};

static void check_refused(const struct row *row, int64_t value)
{
    char text[32];
    CHECK_STATUS(row->call(value), DIST_ERR_INVALID_ARGUMENT);
    CHECK_MESSAGE(row->function);
    CHECK_MESSAGE(row->name);
    sprintf(text, "%" PRId64, value);
    CHECK_MESSAGE(value == DIST_NO_WAIT && row->name[0] != 'D' ? "DIST_NO_WAIT" : text);
}

static void check_all_values(const struct row *row)
{
    static const int64_t accepted[] = { 0, DIST_WAIT_FOREVER, 30000, INT64_MAX };
    static const int64_t wrong[] = { -3, -1000, INT64_MIN };
    int before = checks.failed;
    size_t i;
    for (i = 0; i < sizeof(accepted) / sizeof(accepted[0]); i++) {
        CHECK_OK(row->call(accepted[i]));
    }
    for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        check_refused(row, wrong[i]);
    }
    switch (row->no_wait) {
    case NO_WAIT_REFUSED:
        check_refused(row, DIST_NO_WAIT);
        break;
    case NO_WAIT_ACCEPTED:
        CHECK_OK(row->call(DIST_NO_WAIT));
        break;
    case NO_WAIT_RETURNS_EARLY:
        CHECK_STATUS(row->call(DIST_NO_WAIT), DIST_ERR_TIMEOUT);
        break;
    }
    if (checks.failed != before) {
        printf("  in %s(%s)\n", row->function, row->name);
    }
}

/* A store of the caller receives a number of milliseconds or DIST_WAIT_FOREVER, never 0 or
 * DIST_NO_WAIT. */
static int64_t received_ms;

static dist_status_t custom_wait(void *user, const char *const *keys, size_t n, int64_t timeout_ms)
{
    (void)user;
    (void)keys;
    (void)n;
    received_ms = timeout_ms;
    return DIST_OK;
}

static dist_status_t custom_check(void *user, const char *const *keys, size_t n, int32_t *all_present,
                                  int64_t timeout_ms)
{
    *all_present = 1;
    return custom_wait(user, keys, n, timeout_ms);
}

static dist_status_t custom_set(void *user, const char *key, const void *value, size_t len, int64_t timeout_ms)
{
    (void)value;
    (void)len;
    return custom_wait(user, &key, 1, timeout_ms);
}

static dist_status_t custom_get(void *user, const char *key, dist_store_sink_fn sink, void *sink_arg,
                                int64_t timeout_ms)
{
    sink(sink_arg, "v", 1);
    return custom_wait(user, &key, 1, timeout_ms);
}

static dist_status_t custom_add(void *user, const char *key, int64_t amount, int64_t *result, int64_t timeout_ms)
{
    *result = amount;
    return custom_wait(user, &key, 1, timeout_ms);
}

static dist_status_t custom_delete(void *user, const char *key, int32_t *deleted, int64_t timeout_ms)
{
    *deleted = 1;
    return custom_wait(user, &key, 1, timeout_ms);
}

static void custom_store_gets_milliseconds(void)
{
    dist_store_vtable_t functions = DIST_STORE_VTABLE_INIT;
    const char *key = "key";
    dist_store_t *custom = NULL;
    functions.set = custom_set;
    functions.get = custom_get;
    functions.add = custom_add;
    functions.wait = custom_wait;
    functions.check = custom_check;
    functions.delete_key = custom_delete;
    REQUIRE_OK(dist_store_custom_create(&functions, NULL, &custom));
    CHECK_OK(dist_store_wait(custom, &key, NULL, 1, 0));
    CHECK(received_ms > 0 && received_ms <= 300000);
    CHECK_OK(dist_store_wait(custom, &key, NULL, 1, DIST_WAIT_FOREVER));
    CHECK(received_ms == DIST_WAIT_FOREVER);
    CHECK_OK(dist_store_wait(custom, &key, NULL, 1, INT64_MAX));
    CHECK(received_ms == DIST_WAIT_FOREVER);
    CHECK_OK(dist_store_wait(custom, &key, NULL, 1, DIST_NO_WAIT));
    CHECK(received_ms > 0 && received_ms <= 1000);
    CHECK_OK(dist_store_set_timeout(custom, DIST_NO_WAIT));
    CHECK_OK(dist_store_set(custom, key, DIST_TERMINATED, "v", 1));
    CHECK(received_ms > 0 && received_ms <= 300000);
    CHECK_OK(dist_store_release(custom));
}

int main(void)
{
    size_t i;
    for (i = 0; i < sizeof(spawn_rows) / sizeof(spawn_rows[0]); i++) {
        check_all_values(&spawn_rows[i]);
    }
    store = new_store();
    CHECK_OK(dist_store_set(store, "key", DIST_TERMINATED, "v", 1));
    REQUIRE_OK(create_with_timeouts(LIMIT_MS, LIMIT_MS, &group));
    REQUIRE_OK(dist_barrier(group, NULL, &done));
    for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        check_all_values(&rows[i]);
    }
    custom_store_gets_milliseconds();
    CHECK_OK(dist_work_release(done));
    CHECK_OK(dist_group_release(group));
    CHECK_OK(dist_store_release(store));
    return check_report();
}
