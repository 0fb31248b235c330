/*
 * Invalid handles: released handles, handles of another type, and arbitrary numbers. Every
 * function with a handle argument refuses them without a dereference.
 */
#include "check.h"

#define HANDLE DIST_ERR_INVALID_HANDLE

static void check_group_is_refused(dist_group_t *bad)
{
    char text[8];
    float x[1] = { 0 };
    dist_blob_t *json = NULL;
    CHECK_REFUSED(dist_group_release(bad), HANDLE, "dist_group_t");
    CHECK_STATUS(dist_group_abort(bad, "no"), HANDLE);
    CHECK_STATUS(dist_group_set_timeout(bad, 5), HANDLE);
    CHECK_STATUS(dist_group_describe(bad, &json), HANDLE);
    CHECK_STATUS(dist_flight_recorder_dump(bad, &json), HANDLE);
    CHECK(json == NULL);
    CHECK(dist_get_rank(bad) == -1 && dist_get_world_size(bad) == -1);
    CHECK(dist_group_local_rank(bad) == -1 && dist_group_local_size(bad) == -1);
    CHECK(dist_group_host_index(bad) == -1 && dist_group_host_count(bad) == -1);
    CHECK(dist_group_name(bad, text, sizeof(text)) == 0);
    CHECK(dist_group_backend(bad, text, sizeof(text)) == 0);
    CHECK(dist_group_error(bad, text, sizeof(text)) == 0);
    CHECK_STATUS(dist_all_reduce(bad, x, x, 1, DIST_F32, DIST_SUM, NULL, NULL), HANDLE);
    CHECK_STATUS(dist_reduce(bad, x, x, 1, DIST_F32, DIST_SUM, 0, NULL, NULL), HANDLE);
    CHECK_STATUS(dist_reduce_scatter(bad, x, x, 1, DIST_F32, DIST_SUM, NULL, NULL), HANDLE);
    CHECK_STATUS(dist_broadcast(bad, x, 1, DIST_F32, 0, NULL, NULL), HANDLE);
    CHECK_STATUS(dist_all_gather(bad, x, x, 1, DIST_F32, NULL, NULL), HANDLE);
    CHECK_REFUSED(dist_barrier(bad, NULL, NULL), HANDLE, "dist_barrier");
}

static void check_store_is_refused(dist_store_t *bad)
{
    static const char *const keys[1] = { "k" };
    static const void *const values[1] = { "v" };
    static const size_t lens[1] = { 1 };
    char text[8];
    int32_t flag = 0;
    int64_t n = 0;
    dist_blob_t *blob = NULL;
    dist_store_t *store_out = NULL;
    dist_group_t *group = NULL;
    dist_init_options_t init = DIST_INIT_OPTIONS_INIT;
    init.store = bad;
    CHECK_STATUS(dist_init(&init), HANDLE);
    CHECK_STATUS(join_group(bad, "g", 0, 1, &group), HANDLE);
    CHECK(group == NULL);
    CHECK_REFUSED(dist_store_release(bad), HANDLE, "dist_store_t");
    CHECK_STATUS(dist_store_clone(bad, &store_out), HANDLE);
    CHECK_STATUS(dist_store_prefix_create("p", DIST_TERMINATED, bad, &store_out), HANDLE);
    CHECK(store_out == NULL);
    CHECK_STATUS(dist_store_set(bad, "k", DIST_TERMINATED, "v", 1), HANDLE);
    CHECK_STATUS(dist_store_get(bad, "k", DIST_TERMINATED, &blob), HANDLE);
    CHECK_STATUS(dist_store_add(bad, "n", DIST_TERMINATED, 1, &n), HANDLE);
    CHECK_STATUS(dist_store_compare_set(bad, "k", DIST_TERMINATED, "v", 1, "w", 1, &blob), HANDLE);
    CHECK_STATUS(dist_store_wait(bad, keys, NULL, 1, 1), HANDLE);
    CHECK_STATUS(dist_store_check(bad, keys, NULL, 1, &flag), HANDLE);
    CHECK_STATUS(dist_store_num_keys(bad, &n), HANDLE);
    CHECK_STATUS(dist_store_delete_key(bad, "k", DIST_TERMINATED, &flag), HANDLE);
    CHECK_STATUS(dist_store_append(bad, "k", DIST_TERMINATED, "v", 1), HANDLE);
    CHECK_STATUS(dist_store_multi_get(bad, keys, NULL, 1, &blob), HANDLE);
    CHECK_STATUS(dist_store_multi_set(bad, keys, NULL, values, lens, 1), HANDLE);
    CHECK(blob == NULL && n == 0 && flag == 0);
    CHECK_STATUS(dist_store_set_timeout(bad, 5), HANDLE);
    CHECK(dist_store_get_timeout(bad) == 0);
    CHECK(dist_store_port(bad) == -1);
    CHECK(dist_store_host(bad, text, sizeof(text)) == 0);
}

static void check_blob_is_refused(dist_blob_t *bad)
{
    const void *data = NULL;
    size_t len = 0;
    CHECK(dist_blob_count(bad) == 0);
    CHECK_STATUS(dist_blob_data(bad, 0, &data, &len), HANDLE);
    CHECK(data == NULL);
    CHECK_REFUSED(dist_blob_release(bad), HANDLE, "dist_blob_t");
}

static dist_blob_t *new_blob(dist_store_t *store)
{
    dist_blob_t *blob = NULL;
    REQUIRE_OK(dist_store_set(store, "k", DIST_TERMINATED, "value", 5));
    REQUIRE_OK(dist_store_get(store, "k", DIST_TERMINATED, &blob));
    return blob;
}

/* Numbers that no constructor has returned. */
static void invented_handles_are_refused(dist_store_t *valid_store)
{
    static const uintptr_t numbers[] = { 1, 2, 3, 4, 15, 16, 0xdeadbeef, 1u << 31 };
    const uintptr_t invented[] = { UINTPTR_MAX, UINTPTR_MAX - 15, UINTPTR_MAX / 2, (uintptr_t)valid_store + 16,
                               (uintptr_t)valid_store * 2, (uintptr_t)&valid_store };
    size_t i;
    for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        check_group_is_refused((dist_group_t *)numbers[i]);
        check_store_is_refused((dist_store_t *)numbers[i]);
        check_blob_is_refused((dist_blob_t *)numbers[i]);
    }
    for (i = 0; i < sizeof(invented) / sizeof(invented[0]); i++) {
        check_group_is_refused((dist_group_t *)invented[i]);
        check_store_is_refused((dist_store_t *)invented[i]);
        check_blob_is_refused((dist_blob_t *)invented[i]);
    }
}

/* A valid handle of another type. */
static void handles_of_another_type_are_refused(dist_store_t *store, dist_group_t *group, dist_blob_t *blob)
{
    check_group_is_refused((dist_group_t *)store);
    check_group_is_refused((dist_group_t *)blob);
    check_store_is_refused((dist_store_t *)group);
    check_store_is_refused((dist_store_t *)blob);
    check_blob_is_refused((dist_blob_t *)store);
    check_blob_is_refused((dist_blob_t *)group);
}

/* A new object uses the slot of a released one; the old handle stays invalid. */
static void handle_of_a_reused_slot_is_refused(void)
{
    dist_store_t *first = new_store();
    dist_store_t *second;
    int round;
    for (round = 0; round < 100; round++) {
        REQUIRE_OK(dist_store_release(first));
        second = new_store();
        CHECK(second != first);
        CHECK_STATUS(dist_store_set(first, "k", DIST_TERMINATED, "v", 1), HANDLE);
        CHECK_OK(dist_store_set(second, "k", DIST_TERMINATED, "v", 1));
        first = second;
    }
    CHECK_OK(dist_store_release(first));
}

/* An object lives on while another object uses it, even after its handle is released. */
static void store_outlives_its_handle_while_used(void)
{
    dist_store_t *store = new_store();
    dist_store_t *copy = NULL;
    dist_store_t *prefixed = NULL;
    dist_blob_t *blob = NULL;
    const void *data = NULL;
    size_t len = 0;
    CHECK_OK(dist_store_clone(store, &copy));
    CHECK_OK(dist_store_prefix_create("p", DIST_TERMINATED, copy, &prefixed));
    CHECK_OK(dist_store_set(prefixed, "k", DIST_TERMINATED, "v", 1));
    CHECK_OK(dist_store_release(store));
    CHECK_OK(dist_store_get(copy, "p/k", DIST_TERMINATED, &blob));
    CHECK_OK(dist_store_release(copy));
    CHECK_OK(dist_store_append(prefixed, "k", DIST_TERMINATED, "w", 1));
    CHECK_OK(dist_store_release(prefixed));
    CHECK_OK(dist_blob_data(blob, 0, &data, &len));
    CHECK(len == 1 && memcmp(data, "v", 2) == 0);
    CHECK_REFUSED(dist_blob_data(blob, 1, &data, &len), DIST_ERR_INVALID_ARGUMENT, "1 items");
    CHECK(data == NULL);
    CHECK_OK(dist_blob_release(blob));
    check_store_is_refused(store);
    check_blob_is_refused(blob);
}

int main(void)
{
    dist_store_t *store = new_store();
    dist_blob_t *blob = new_blob(store);
    dist_group_t *group = NULL;
    dist_group_t *world;
    REQUIRE_OK(join_group(store, "handles", 0, 1, &group));
    handles_of_another_type_are_refused(store, group, blob);
    invented_handles_are_refused(store);
    CHECK_OK(dist_barrier(group, NULL, NULL));
    CHECK_OK(dist_group_release(group));
    check_group_is_refused(group);
    CHECK_OK(dist_blob_release(blob));
    check_blob_is_refused(blob);
    CHECK_OK(dist_store_release(store));
    check_store_is_refused(store);
    handle_of_a_reused_slot_is_refused();
    store_outlives_its_handle_while_used();

    start_world();
    world = dist_world();
    CHECK_REFUSED(dist_group_release(world), DIST_ERR_INVALID_ARGUMENT, "dist_finalize");
    CHECK_OK(dist_barrier(world, NULL, NULL));
    CHECK_OK(dist_finalize());
    check_group_is_refused(world);
    return check_report();
}
