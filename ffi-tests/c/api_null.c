/* The process, its memory, stores, groups and back ends with NULL for every pointer (null.h). */
#include "null.h"

#include <dist_backend.h>

static dist_store_t *store;
static dist_group_t *group;
static dist_blob_t *blob;

static void check_without_a_world(void)
{
    /* dist_init reads all options from the environment; the error names the missing variable. */
    ACCEPTED(dist_init, options, dist_init(NULL), ARGUMENT);
    CHECK_MESSAGE("MASTER_ADDR");
}

/* The ranks run in forks of this process, which has not created a group yet. */
static int32_t succeed(int32_t rank, void *arg)
{
    return rank != 0 || arg != NULL;
}

static void check_spawn(void)
{
    dist_spawn_options_t options = DIST_SPAWN_OPTIONS_INIT;
    REFUSED(dist_spawn, function, dist_spawn(NULL, &options, 1, &options), ARGUMENT);
    ACCEPTED(dist_spawn, arg, dist_spawn(succeed, NULL, 1, &options), DIST_OK);
    ACCEPTED(dist_spawn, options, dist_spawn(succeed, NULL, 1, NULL), DIST_OK);
}

static void check_process(void)
{
    dist_blob_t *json = NULL;
    REFUSED(dist_last_error_copy, buf, dist_last_error_copy(NULL, 8), 0);
    CHECK(dist_last_error_copy(NULL, 0) > 1);
    REFUSED(dist_backend_is_available, name, dist_backend_is_available(NULL), 0);
    ACCEPTED(dist_flight_recorder_dump, group, dist_flight_recorder_dump(NULL, &json), DIST_OK);
    CHECK_OK(dist_blob_release(json));
    REFUSED(dist_flight_recorder_dump, json, dist_flight_recorder_dump(group, NULL), ARGUMENT);
    REFUSED(dist_backend_supports, group,
            dist_backend_supports(NULL, DIST_KIND_ALL_REDUCE, DIST_F32, DIST_SUM, DIST_DEVICE_HOST), HANDLE);
    REFUSED(dist_get_rank, group, dist_get_rank(NULL), -1);
    REFUSED(dist_get_world_size, group, dist_get_world_size(NULL), -1);
    REFUSED(dist_trace_start, path, dist_trace_start(NULL), ARGUMENT);
    ACCEPTED(dist_set_log_callback, function, dist_set_log_callback(NULL, &store), DIST_OK);
    ACCEPTED(dist_set_log_callback, user, dist_set_log_callback(NULL, NULL), DIST_OK);
}

static void check_memory(void)
{
    int local = 0;
    void *ptr = &local;
    REFUSED(dist_mem_alloc, group, dist_mem_alloc(NULL, 8, DIST_DEVICE_HOST, &ptr), HANDLE);
    CHECK_OK(dist_mem_free(ptr));
    REFUSED(dist_mem_alloc, ptr, dist_mem_alloc(group, 8, DIST_DEVICE_HOST, NULL), ARGUMENT);
    ACCEPTED(dist_mem_free, ptr, dist_mem_free(NULL), DIST_OK);
    REFUSED(dist_mem_register, group, dist_mem_register(NULL, &local, sizeof local), HANDLE);
    REFUSED(dist_mem_register, ptr, dist_mem_register(group, NULL, 8), ARGUMENT);
    REFUSED(dist_mem_deregister, ptr, dist_mem_deregister(group, NULL), ARGUMENT);
    REFUSED(dist_mem_deregister, group, dist_mem_deregister(NULL, &local), HANDLE);
}

static void check_blobs(void)
{
    const void *data = &store;
    size_t len = 7;
    REFUSED(dist_blob_count, blob, dist_blob_count(NULL), 0);
    REFUSED(dist_blob_data, blob, dist_blob_data(NULL, 0, &data, &len), HANDLE);
    CHECK(data == NULL);
    REFUSED(dist_blob_data, data, dist_blob_data(blob, 0, NULL, &len), ARGUMENT);
    REFUSED(dist_blob_data, len_bytes, dist_blob_data(blob, 0, &data, NULL), ARGUMENT);
    CHECK(data == NULL);
    ACCEPTED(dist_blob_release, blob, dist_blob_release(NULL), DIST_OK);
}

static void check_store_constructors(void)
{
    static const dist_store_tcp_options_t tcp = DIST_STORE_TCP_OPTIONS_INIT;
    static const dist_store_vtable_t functions = DIST_STORE_VTABLE_INIT;
    dist_store_t *out = store;
    REFUSED(dist_store_tcp_create, options, dist_store_tcp_create(NULL, &out), ARGUMENT);
    CHECK(out == NULL);
    REFUSED(dist_store_tcp_create, out, dist_store_tcp_create(&tcp, NULL), ARGUMENT);
    REFUSED(dist_store_tcp_create, host, dist_store_tcp_create(&tcp, &out), ARGUMENT);
    out = store;
    REFUSED(dist_store_file_create, path, dist_store_file_create(NULL, 1, NULL, &out), ARGUMENT);
    CHECK(out == NULL);
    REFUSED(dist_store_file_create, out, dist_store_file_create("file", 1, NULL, NULL), ARGUMENT);
    /* A negative world size is refused; the Rust tests create file stores. */
    ACCEPTED(dist_store_file_create, options, dist_store_file_create("file", -1, NULL, &out), ARGUMENT);
    CHECK_MESSAGE("world_size");
    REFUSED(dist_store_hash_create, out, dist_store_hash_create(NULL), ARGUMENT);
    REFUSED(dist_store_prefix_create, prefix, dist_store_prefix_create(NULL, DIST_TERMINATED, store, &out), ARGUMENT);
    out = store;
    REFUSED(dist_store_prefix_create, inner, dist_store_prefix_create("p", DIST_TERMINATED, NULL, &out), HANDLE);
    CHECK(out == NULL);
    REFUSED(dist_store_prefix_create, out, dist_store_prefix_create("p", DIST_TERMINATED, store, NULL), ARGUMENT);
    out = store;
    REFUSED(dist_store_clone, store, dist_store_clone(NULL, &out), HANDLE);
    CHECK(out == NULL);
    REFUSED(dist_store_clone, out, dist_store_clone(store, NULL), ARGUMENT);
    out = store;
    REFUSED(dist_store_custom_create, functions, dist_store_custom_create(NULL, &store, &out), ARGUMENT);
    CHECK(out == NULL);
    REFUSED(dist_store_custom_create, out, dist_store_custom_create(&functions, &store, NULL), ARGUMENT);
    /* An empty table is refused whatever `user` is; store_custom.c makes a store without one. */
    ACCEPTED(dist_store_custom_create, user, dist_store_custom_create(&functions, NULL, &out), ARGUMENT);
    CHECK_MESSAGE("set");
}

static void check_backends(void)
{
    dist_backend_vtable_t functions = DIST_BACKEND_VTABLE_INIT;
    REFUSED(dist_backend_register, name, dist_backend_register(NULL, &functions, &functions), ARGUMENT);
    REFUSED(dist_backend_register, functions, dist_backend_register("null", NULL, &functions), ARGUMENT);
    /* An empty table is refused whatever `user` is; backend_trouble.c registers one without it. */
    ACCEPTED(dist_backend_register, user, dist_backend_register("null", &functions, NULL), ARGUMENT);
    CHECK_MESSAGE("create");
    REFUSED(dist_backend_load, path, dist_backend_load(NULL), ARGUMENT);
}

static void check_store_values(void)
{
    dist_blob_t *out = blob;
    int64_t sum = 0;
    REFUSED(dist_store_set, store, dist_store_set(NULL, "k", DIST_TERMINATED, "v", 1), HANDLE);
    REFUSED(dist_store_set, key, dist_store_set(store, NULL, DIST_TERMINATED, "v", 1), ARGUMENT);
    REFUSED(dist_store_set, value, dist_store_set(store, "k", DIST_TERMINATED, NULL, 1), ARGUMENT);
    CHECK_OK(dist_store_set(store, "k", DIST_TERMINATED, NULL, 0));
    CHECK_OK(dist_store_set(store, NULL, 0, "v", 1));
    REFUSED(dist_store_get, store, dist_store_get(NULL, "k", DIST_TERMINATED, &out), HANDLE);
    CHECK(out == NULL);
    REFUSED(dist_store_get, key, dist_store_get(store, NULL, DIST_TERMINATED, &out), ARGUMENT);
    REFUSED(dist_store_get, out, dist_store_get(store, "k", DIST_TERMINATED, NULL), ARGUMENT);
    REFUSED(dist_store_add, store, dist_store_add(NULL, "n", DIST_TERMINATED, 1, &sum), HANDLE);
    REFUSED(dist_store_add, key, dist_store_add(store, NULL, DIST_TERMINATED, 1, &sum), ARGUMENT);
    REFUSED(dist_store_add, out, dist_store_add(store, "n", DIST_TERMINATED, 1, NULL), ARGUMENT);
    CHECK_OK(dist_store_add(store, "n", DIST_TERMINATED, 0, &sum));
    CHECK(sum == 0);
    REFUSED(dist_store_compare_set, store,
            dist_store_compare_set(NULL, "k", DIST_TERMINATED, "a", 1, "b", 1, &out), HANDLE);
    REFUSED(dist_store_compare_set, key,
            dist_store_compare_set(store, NULL, DIST_TERMINATED, "a", 1, "b", 1, &out), ARGUMENT);
    REFUSED(dist_store_compare_set, expected,
            dist_store_compare_set(store, "k", DIST_TERMINATED, NULL, 1, "b", 1, &out), ARGUMENT);
    REFUSED(dist_store_compare_set, desired,
            dist_store_compare_set(store, "k", DIST_TERMINATED, "a", 1, NULL, 1, &out), ARGUMENT);
    REFUSED(dist_store_compare_set, out,
            dist_store_compare_set(store, "k", DIST_TERMINATED, "a", 1, "b", 1, NULL), ARGUMENT);
    REFUSED(dist_store_append, store, dist_store_append(NULL, "k", DIST_TERMINATED, "v", 1), HANDLE);
    REFUSED(dist_store_append, key, dist_store_append(store, NULL, DIST_TERMINATED, "v", 1), ARGUMENT);
    REFUSED(dist_store_append, value, dist_store_append(store, "k", DIST_TERMINATED, NULL, 1), ARGUMENT);
    CHECK_OK(dist_store_append(store, "k", DIST_TERMINATED, NULL, 0));
}

static void check_store_keys(void)
{
    static const char *const keys[2] = { "k", "n" };
    static const char *const holed[2] = { "k", NULL };
    int32_t flag = 0;
    int64_t n = 0;
    REFUSED(dist_store_wait, store, dist_store_wait(NULL, keys, NULL, 2, 1), HANDLE);
    REFUSED(dist_store_wait, keys, dist_store_wait(store, NULL, NULL, 2, 1), ARGUMENT);
    REFUSED(dist_store_wait, keys, dist_store_wait(store, holed, NULL, 2, 1), ARGUMENT);
    CHECK_OK(dist_store_wait(store, NULL, NULL, 0, 1));
    ACCEPTED(dist_store_wait, key_lens_bytes, dist_store_wait(store, keys, NULL, 1, 1), DIST_OK);
    REFUSED(dist_store_check, store, dist_store_check(NULL, keys, NULL, 2, &flag), HANDLE);
    REFUSED(dist_store_check, keys, dist_store_check(store, NULL, NULL, 2, &flag), ARGUMENT);
    REFUSED(dist_store_check, keys, dist_store_check(store, holed, NULL, 2, &flag), ARGUMENT);
    REFUSED(dist_store_check, all_present, dist_store_check(store, keys, NULL, 2, NULL), ARGUMENT);
    CHECK_OK(dist_store_check(store, NULL, NULL, 0, &flag));
    ACCEPTED(dist_store_check, key_lens_bytes, dist_store_check(store, keys, NULL, 2, &flag), DIST_OK);
    CHECK(flag == 1);
    REFUSED(dist_store_num_keys, store, dist_store_num_keys(NULL, &n), HANDLE);
    REFUSED(dist_store_num_keys, out, dist_store_num_keys(store, NULL), ARGUMENT);
    REFUSED(dist_store_delete_key, store, dist_store_delete_key(NULL, "k", DIST_TERMINATED, &flag), HANDLE);
    REFUSED(dist_store_delete_key, key, dist_store_delete_key(store, NULL, DIST_TERMINATED, &flag), ARGUMENT);
    REFUSED(dist_store_delete_key, deleted, dist_store_delete_key(store, "k", DIST_TERMINATED, NULL), ARGUMENT);
    CHECK_OK(dist_store_check(store, keys, NULL, 1, &flag));
    CHECK(flag == 1);
}

static void check_store_queues(void)
{
    dist_blob_t *out = blob;
    int64_t n = 7;
    REFUSED(dist_store_list_keys, store, dist_store_list_keys(NULL, &out), HANDLE);
    CHECK(out == NULL);
    REFUSED(dist_store_list_keys, out, dist_store_list_keys(store, NULL), ARGUMENT);
    REFUSED(dist_store_queue_push, store, dist_store_queue_push(NULL, "q", DIST_TERMINATED, "v", 1), HANDLE);
    REFUSED(dist_store_queue_push, key, dist_store_queue_push(store, NULL, DIST_TERMINATED, "v", 1), ARGUMENT);
    REFUSED(dist_store_queue_push, value, dist_store_queue_push(store, "q", DIST_TERMINATED, NULL, 1), ARGUMENT);
    CHECK_OK(dist_store_queue_push(store, "q", DIST_TERMINATED, NULL, 0));
    out = blob;
    REFUSED(dist_store_queue_pop, store, dist_store_queue_pop(NULL, "q", DIST_TERMINATED, 0, &out), HANDLE);
    CHECK(out == NULL);
    REFUSED(dist_store_queue_pop, key, dist_store_queue_pop(store, NULL, DIST_TERMINATED, 0, &out), ARGUMENT);
    REFUSED(dist_store_queue_pop, out, dist_store_queue_pop(store, "q", DIST_TERMINATED, 0, NULL), ARGUMENT);
    REFUSED(dist_store_queue_len, store, dist_store_queue_len(NULL, "q", DIST_TERMINATED, &n), HANDLE);
    REFUSED(dist_store_queue_len, key, dist_store_queue_len(store, NULL, DIST_TERMINATED, &n), ARGUMENT);
    REFUSED(dist_store_queue_len, out, dist_store_queue_len(store, "q", DIST_TERMINATED, NULL), ARGUMENT);
    CHECK_OK(dist_store_queue_len(store, "q", DIST_TERMINATED, &n));
    CHECK(n == 1);
    REFUSED(dist_store_barrier, store, dist_store_barrier(NULL, "b", DIST_TERMINATED, 1, 1), HANDLE);
    REFUSED(dist_store_barrier, key, dist_store_barrier(store, NULL, DIST_TERMINATED, 1, 1), ARGUMENT);
}

static void check_store_batches(void)
{
    static const char *const keys[2] = { "k", "n" };
    static const void *const values[2] = { "1", "2" };
    static const void *const holed[2] = { "1", NULL };
    static const size_t lens[2] = { 1, 1 };
    dist_blob_t *out = blob;
    REFUSED(dist_store_multi_get, store, dist_store_multi_get(NULL, keys, NULL, 2, &out), HANDLE);
    CHECK(out == NULL);
    REFUSED(dist_store_multi_get, keys, dist_store_multi_get(store, NULL, NULL, 2, &out), ARGUMENT);
    REFUSED(dist_store_multi_get, out, dist_store_multi_get(store, keys, NULL, 2, NULL), ARGUMENT);
    CHECK_OK(dist_store_multi_get(store, NULL, NULL, 0, &out));
    CHECK(dist_blob_count(out) == 0);
    CHECK_OK(dist_blob_release(out));
    ACCEPTED(dist_store_multi_get, key_lens_bytes, dist_store_multi_get(store, keys, NULL, 2, &out), DIST_OK);
    CHECK_OK(dist_blob_release(out));
    REFUSED(dist_store_multi_set, store, dist_store_multi_set(NULL, keys, NULL, values, lens, 2), HANDLE);
    REFUSED(dist_store_multi_set, keys, dist_store_multi_set(store, NULL, NULL, values, lens, 2), ARGUMENT);
    REFUSED(dist_store_multi_set, values, dist_store_multi_set(store, keys, NULL, NULL, lens, 2), ARGUMENT);
    REFUSED(dist_store_multi_set, values, dist_store_multi_set(store, keys, NULL, holed, lens, 2), ARGUMENT);
    REFUSED(dist_store_multi_set, lens_bytes, dist_store_multi_set(store, keys, NULL, values, NULL, 2), ARGUMENT);
    CHECK_OK(dist_store_multi_set(store, NULL, NULL, NULL, NULL, 0));
    ACCEPTED(dist_store_multi_set, key_lens_bytes, dist_store_multi_set(store, keys, NULL, values, lens, 2), DIST_OK);
}

static void check_store_properties(void)
{
    char text[64];
    dist_store_tcp_options_t options = DIST_STORE_TCP_OPTIONS_INIT;
    dist_store_t *tcp = NULL;
    options.host = "127.0.0.1";
    options.is_server = 1;
    options.timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_store_tcp_create(&options, &tcp));
    REFUSED(dist_store_set_timeout, store, dist_store_set_timeout(NULL, 5), HANDLE);
    REFUSED(dist_store_get_timeout, store, dist_store_get_timeout(NULL), 0);
    REFUSED(dist_store_port, store, dist_store_port(NULL), -1);
    REFUSED(dist_store_host, store, dist_store_host(NULL, text, sizeof(text)), 0);
    REFUSED(dist_store_host, buf, dist_store_host(tcp, NULL, 8), 0);
    CHECK(dist_store_host(tcp, NULL, 0) == sizeof("127.0.0.1"));
    ACCEPTED(dist_store_release, store, dist_store_release(NULL), DIST_OK);
    CHECK_OK(dist_store_release(tcp));
}

static void check_new_groups(void)
{
    static const int32_t ranks[] = { 0 };
    int32_t copy[1];
    dist_group_new_options_t options = DIST_GROUP_NEW_OPTIONS_INIT;
    dist_group_t *out = NULL;
    REFUSED(dist_group_new, parent, dist_group_new(NULL, ranks, 1, &options, &out), HANDLE);
    CHECK_OK(dist_group_release(out));
    ACCEPTED(dist_group_new, ranks, dist_group_new(group, NULL, 0, &options, &out), DIST_OK);
    CHECK_OK(dist_group_release(out));
    REFUSED(dist_group_new, ranks, dist_group_new(group, NULL, 1, &options, &out), ARGUMENT);
    CHECK(out == NULL);
    ACCEPTED(dist_group_new, options, dist_group_new(group, ranks, 1, NULL, &out), DIST_OK);
    CHECK_OK(dist_group_release(out));
    REFUSED(dist_group_new, out, dist_group_new(group, ranks, 1, &options, NULL), ARGUMENT);
    REFUSED(dist_group_split, parent, dist_group_split(NULL, 0, 0, &options, &out), HANDLE);
    CHECK_OK(dist_group_release(out));
    ACCEPTED(dist_group_split, options, dist_group_split(group, 0, 0, NULL, &out), DIST_OK);
    CHECK_OK(dist_group_release(out));
    REFUSED(dist_group_split, out, dist_group_split(group, 0, 0, &options, NULL), ARGUMENT);
    REFUSED(dist_group_ranks, group, dist_group_ranks(NULL, copy, 1), 0);
    REFUSED(dist_group_ranks, out, dist_group_ranks(group, NULL, 1), 0);
    CHECK(dist_group_ranks(group, NULL, 0) == 1);
    REFUSED(dist_group_rank_from_global, group, dist_group_rank_from_global(NULL, 0), -1);
    REFUSED(dist_group_rank_to_global, group, dist_group_rank_to_global(NULL, 0), -1);
}

static void check_groups(void)
{
    char text[64];
    dist_culprit_t culprit = DIST_CULPRIT_INIT;
    dist_work_t *work = NULL;
    dist_blob_t *json = blob;
    dist_group_t *out = group;
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    REFUSED(dist_group_create, options, dist_group_create(NULL, &out), ARGUMENT);
    CHECK(out == NULL);
    REFUSED(dist_group_create, out, dist_group_create(&options, NULL), ARGUMENT);
    options.fields = DIST_FIELD_RANK;
    options.world_size = 1;
    REFUSED(dist_group_create, store, dist_group_create(&options, &out), HANDLE);
    options.store = store;
    REFUSED(dist_group_create, name, dist_group_create(&options, &out), ARGUMENT);
    ACCEPTED(dist_group_release, group, dist_group_release(NULL), DIST_OK);
    REFUSED(dist_group_culprit, group, dist_group_culprit(NULL, &culprit), HANDLE);
    REFUSED(dist_group_culprit, out, dist_group_culprit(group, NULL), ARGUMENT);
    REFUSED(dist_group_sequence, group, dist_group_sequence(NULL), 0);
    REFUSED(dist_group_fd, group, dist_group_fd(NULL), -1);
    REFUSED(dist_group_take_done, group, dist_group_take_done(NULL, &work, 1), 0);
    REFUSED(dist_group_take_done, out, dist_group_take_done(group, NULL, 1), 0);
    REFUSED(dist_group_error, group, dist_group_error(NULL, text, sizeof(text)), 0);
    REFUSED(dist_group_error, buf, dist_group_error(group, NULL, 8), 0);
    CHECK(dist_group_error(group, NULL, 0) == 1);
    REFUSED(dist_group_set_timeout, group, dist_group_set_timeout(NULL, LIMIT_MS), HANDLE);
    REFUSED(dist_group_get_timeout, group, dist_group_get_timeout(NULL), 0);
    REFUSED(dist_group_name, group, dist_group_name(NULL, text, sizeof(text)), 0);
    REFUSED(dist_group_name, buf, dist_group_name(group, NULL, 8), 0);
    REFUSED(dist_group_backend, group, dist_group_backend(NULL, text, sizeof(text)), 0);
    REFUSED(dist_group_backend, buf, dist_group_backend(group, NULL, 8), 0);
    REFUSED(dist_group_local_rank, group, dist_group_local_rank(NULL), -1);
    REFUSED(dist_group_local_size, group, dist_group_local_size(NULL), -1);
    REFUSED(dist_group_host_index, group, dist_group_host_index(NULL), -1);
    REFUSED(dist_group_host_count, group, dist_group_host_count(NULL), -1);
    REFUSED(dist_group_describe, group, dist_group_describe(NULL, &json), HANDLE);
    CHECK_OK(dist_blob_release(json));
    REFUSED(dist_group_describe, json, dist_group_describe(group, NULL), ARGUMENT);
    check_new_groups();
}

/* Last, since nothing runs on these groups any more afterwards. */
static void check_shrunk_groups(void)
{
    dist_shrink_options_t options = DIST_SHRINK_OPTIONS_INIT;
    dist_group_t *out = NULL;
    REFUSED(dist_group_shrink, group, dist_group_shrink(NULL, &options, &out), HANDLE);
    CHECK_OK(dist_group_release(out));
    ACCEPTED(dist_group_shrink, options, dist_group_shrink(group, NULL, &out), DIST_OK);
    CHECK_OK(dist_group_release(out));
    REFUSED(dist_group_shrink, out, dist_group_shrink(group, &options, NULL), ARGUMENT);
}

static void check_aborts(void)
{
    ACCEPTED(dist_group_abort, reason, dist_group_abort(group, NULL), DIST_OK);
    CHECK_STATUS(dist_barrier(group, NULL, NULL), DIST_ERR_ABORTED);
    REFUSED(dist_group_abort, group, dist_group_abort(NULL, "as asked"), HANDLE);
    CHECK_OK(dist_barrier(dist_world(), NULL, NULL));
    CHECK_OK(dist_group_abort(dist_world(), "as asked"));
    CHECK_REFUSED(dist_barrier(dist_world(), NULL, NULL), DIST_ERR_ABORTED, "as asked");
    check_shrunk_groups();
}

int main(void)
{
    static const char *const keys[1] = { "k" };
    check_without_a_world();
    check_spawn();
    start_world();
    store = new_store();
    REQUIRE_OK(dist_store_set(store, "k", DIST_TERMINATED, "v", 1));
    REQUIRE_OK(dist_store_multi_get(store, keys, NULL, 1, &blob));
    REQUIRE_OK(join_group(store, "null", 0, 1, &group));
    check_process();
    check_memory();
    check_blobs();
    check_backends();
    check_store_constructors();
    check_store_values();
    check_store_keys();
    check_store_queues();
    check_store_batches();
    check_store_properties();
    check_groups();
    check_aborts();
    CHECK_OK(dist_group_release(group));
    CHECK_OK(dist_blob_release(blob));
    CHECK_OK(dist_store_release(store));
    CHECK_OK(dist_finalize());
    return check_report();
}
