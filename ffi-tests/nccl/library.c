/*
 * Tests which NCCL a process finds; the program is not linked with NCCL. Cases: `refused
 * WORD...` expects an error with these words, `version TEXT` expects this version, `without`
 * makes a group without NCCL, and `staged` makes a group that uses devices with a driver only.
 */
#include "../c/check.h"

static dist_status_t make_group(const char *backend, dist_group_t **group)
{
    dist_store_t *store = new_store();
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    options.store = store;
    options.name = "library";
    options.fields = DIST_FIELD_RANK | DIST_FIELD_DEVICE;
    options.world_size = 1;
    options.backend = backend;
    options.connect_timeout_ms = LIMIT_MS;
    options.timeout_ms = LIMIT_MS;
    dist_status_t status = dist_group_create(&options, group);
    /* The release does not change the last error. */
    CHECK_OK(dist_store_release(store));
    return status;
}

static void check_description(dist_group_t *group, const char *word)
{
    dist_blob_t *blob = NULL;
    const void *text = NULL;
    size_t length = 0;
    REQUIRE_OK(dist_group_describe(group, &blob));
    CHECK_OK(dist_blob_data(blob, 0, &text, &length));
    /* The blob's data is followed by a zero byte. */
    if (!CHECK(strstr(text, word) != NULL)) {
        printf("  \"%s\" is not in %s\n", word, (const char *)text);
    }
    CHECK_OK(dist_blob_release(blob));
}

int main(int argc, char **argv)
{
    dist_group_t *group = NULL;
    REQUIRE(argc >= 2);
    if (strcmp(argv[1], "refused") == 0) {
        CHECK(dist_backend_is_available("nccl") == 0);
        CHECK(make_group("nccl", &group) != DIST_OK);
        for (int i = 2; i < argc; i++) {
            CHECK_MESSAGE(argv[i]);
        }
        CHECK(make_group("cpu:native,cuda:nccl", &group) != DIST_OK);
    } else if (strcmp(argv[1], "version") == 0) {
        CHECK(dist_backend_is_available("nccl") == 1);
        REQUIRE_OK(make_group("nccl", &group));
        check_description(group, argv[2]);
        int is_old = strcmp(argv[2], "2.20.5") == 0;
        CHECK_STATUS(dist_backend_supports(group, DIST_KIND_ALL_REDUCE, DIST_F8E4M3, DIST_SUM, 0),
                     is_old ? DIST_ERR_UNSUPPORTED : DIST_OK);
        /* The broadcast moves the elements as bytes. */
        CHECK_OK(dist_backend_supports(group, DIST_KIND_BROADCAST, DIST_F8E4M3, DIST_SUM, 0));
        CHECK_OK(dist_backend_supports(group, DIST_KIND_ALL_REDUCE, DIST_F32, DIST_PREMUL_SUM, 0));
        CHECK_OK(dist_barrier(group, NULL, NULL));
        CHECK_OK(dist_group_release(group));
    } else if (strcmp(argv[1], "staged") == 0) {
        void *memory = NULL;
        float value = 3;
        REQUIRE_OK(make_group(NULL, &group));
        check_description(group, "has no NCCL");
        check_description(group, "\"cpu:native,cuda:native\"");
        REQUIRE_OK(dist_mem_alloc(group, 4096, 0, &memory));
        CHECK_OK(dist_broadcast(group, memory, 1024, DIST_F32, 0, NULL, NULL));
        CHECK_OK(dist_all_reduce(group, memory, memory, 1024, DIST_U32, DIST_BXOR, NULL, NULL));
        CHECK_OK(dist_all_reduce(group, &value, &value, 1, DIST_F32, DIST_SUM, NULL, NULL));
        CHECK_REFUSED(dist_all_reduce(group, &value, memory, 1, DIST_F32, DIST_SUM, NULL, NULL), DIST_ERR_INVALID_ARGUMENT,
                      "in the same memory");
        CHECK_OK(dist_mem_free(memory));
        CHECK_OK(dist_group_release(group));
    } else {
        float value = 3;
        REQUIRE_OK(make_group(NULL, &group));
        check_description(group, "has no NCCL");
        CHECK_OK(dist_all_reduce(group, &value, &value, 1, DIST_F32, DIST_SUM, NULL, NULL));
        dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
        options.flags = DIST_CALL_DEVICE;
        CHECK_REFUSED(dist_all_reduce(group, &value, &value, 1, DIST_F32, DIST_SUM, &options, NULL), DIST_ERR_UNSUPPORTED,
                      "has no NCCL");
        CHECK_OK(dist_group_release(group));
    }
    return check_report();
}
