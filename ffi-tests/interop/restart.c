/*
 * A job whose first attempt fails, under a launcher that restarts it on the same store.
 *
 * Attempt 0 forms a group, reduces, records the group's id and the published data of each rank,
 * and fails on one rank. Attempt 1 finds this data in the store and must ignore it: it forms its
 * own group with another id, in which the sums are right.
 *
 *     torchrun --nproc-per-node N --max-restarts 1 --no-python restart
 */
#include "../c/check.h"

#define COUNT 1000

static dist_store_t *connect_to_job_store(void)
{
    dist_store_tcp_options_t options = DIST_STORE_TCP_OPTIONS_INIT;
    const char *port = getenv("MASTER_PORT");
    dist_store_t *store = NULL;
    options.host = getenv("MASTER_ADDR");
    options.port = port != NULL ? atoi(port) : 0;
    options.timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_store_tcp_create(&options, &store));
    return store;
}

/* Reads the world group's id from its description. */
static void read_id(char *id, size_t cap)
{
    const char *field = "\"id\":\"";
    const char *at;
    const void *data = NULL;
    dist_blob_t *json = NULL;
    size_t len = 0, i = 0;
    char *text;
    REQUIRE_OK(dist_group_describe(dist_world(), &json));
    REQUIRE_OK(dist_blob_data(json, 0, &data, &len));
    text = calloc(len + 1, 1);
    REQUIRE(text != NULL);
    memcpy(text, data, len);
    at = strstr(text, field);
    REQUIRE(at != NULL);
    at += strlen(field);
    while (i + 1 < cap && at[i] != '"' && at[i] != '\0') {
        id[i] = at[i];
        i++;
    }
    id[i] = '\0';
    CHECK(i > 0);
    free(text);
    CHECK_OK(dist_blob_release(json));
}

static int are_sums_correct(int rank, int size, int attempt)
{
    static float values[COUNT];
    int i, wrong = 0;
    for (i = 0; i < COUNT; i++) {
        values[i] = (float)((rank + 1) * i + attempt);
    }
    REQUIRE_OK(dist_all_reduce(dist_world(), values, values, COUNT, DIST_F32, DIST_SUM, NULL, NULL));
    for (i = 0; i < COUNT; i++) {
        wrong += values[i] != (float)(size * (size + 1) / 2 * i + size * attempt);
    }
    return wrong == 0;
}

/* Returns true if two keys of attempt 0 have the same value. */
static int is_unchanged(dist_store_t *store, const char *key, const char *recorded_key)
{
    const char *keys[2];
    const void *values[2];
    size_t lens[2];
    dist_blob_t *blob = NULL;
    int equal;
    keys[0] = key;
    keys[1] = recorded_key;
    REQUIRE_OK(dist_store_multi_get(store, keys, NULL, 2, &blob));
    REQUIRE_OK(dist_blob_data(blob, 0, &values[0], &lens[0]));
    REQUIRE_OK(dist_blob_data(blob, 1, &values[1], &lens[1]));
    equal = lens[0] == lens[1] && memcmp(values[0], values[1], lens[0]) == 0;
    CHECK_OK(dist_blob_release(blob));
    return equal;
}

static void record_value(dist_store_t *store, const char *key, const char *recorded_key)
{
    dist_blob_t *blob = NULL;
    const void *data = NULL;
    size_t len = 0;
    REQUIRE_OK(dist_store_get(store, key, DIST_TERMINATED, &blob));
    REQUIRE_OK(dist_blob_data(blob, 0, &data, &len));
    REQUIRE_OK(dist_store_set(store, recorded_key, DIST_TERMINATED, data, len));
    REQUIRE_OK(dist_blob_release(blob));
}

int main(void)
{
    const char *count = getenv("TORCHELASTIC_RESTART_COUNT");
    const char *number = getenv("RANK");
    char published[64], recorded_key[64], id[64], old_id[64];
    dist_store_t *store = connect_to_job_store();
    int attempt, rank, size;
    REQUIRE(count != NULL && number != NULL);
    attempt = atoi(count);
    snprintf(published, sizeof(published), "dist/world/rank/%.8s", number);
    snprintf(recorded_key, sizeof(recorded_key), "noted/%.8s", number);
    if (attempt > 0) {
        /* This process has not published anything yet, so the data is from attempt 0. */
        const char *key = recorded_key;
        int32_t is_present = 0;
        CHECK_OK(dist_store_check(store, &key, NULL, 1, &is_present));
        REQUIRE(is_present == 1);
        REQUIRE(is_unchanged(store, published, recorded_key));
    }

    REQUIRE_OK(dist_init(NULL));
    rank = (int)dist_get_rank(dist_world());
    size = (int)dist_get_world_size(dist_world());
    REQUIRE(are_sums_correct(rank, size, attempt));
    read_id(id, sizeof(id));
    if (attempt == 0) {
        record_value(store, published, recorded_key);
        REQUIRE_OK(dist_store_set(store, "noted id", DIST_TERMINATED, id, strlen(id)));
        REQUIRE_OK(dist_barrier(dist_world(), NULL, NULL));
        if (rank == size - 1) {
            exit(7);
        }
        /* The other ranks get an error, or the launcher ends them. */
        CHECK_STATUS(dist_barrier(dist_world(), NULL, NULL), DIST_ERR_PEER_FAILED);
        exit(8);
    }
    CHECK(!is_unchanged(store, published, recorded_key));
    snprintf(old_id, sizeof(old_id), "id of attempt %d", attempt);
    REQUIRE_OK(dist_store_set(store, old_id, DIST_TERMINATED, id, strlen(id)));
    CHECK(!is_unchanged(store, old_id, "noted id"));
    CHECK(are_sums_correct(rank, size, attempt));
    printf("rank %d of %d: attempt %d formed a group of its own\n", rank, size, attempt);
    CHECK_OK(dist_finalize());
    CHECK_OK(dist_store_release(store));
    return check_report();
}
