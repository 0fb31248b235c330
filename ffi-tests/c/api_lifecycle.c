/*
 * Initialisation of the library: calls before dist_init, a second dist_init, and calls after
 * dist_finalize and a new dist_init.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

/* Every function of the world group returns an error while there is none. */
static void calls_without_a_world_fail(void)
{
    char text[64] = "unchanged";
    float x[1] = { 0 };
    dist_blob_t *json = NULL;
    CHECK(dist_is_initialized() == 0);
    CHECK(dist_world() == NULL);
    CHECK(dist_get_rank(dist_world()) == -1 && dist_get_world_size(dist_world()) == -1);
    CHECK(dist_group_local_rank(dist_world()) == -1 && dist_group_local_size(dist_world()) == -1);
    CHECK(dist_group_host_index(dist_world()) == -1 && dist_group_host_count(dist_world()) == -1);
    CHECK(dist_group_name(dist_world(), text, sizeof(text)) == 0);
    CHECK(dist_group_backend(dist_world(), text, sizeof(text)) == 0);
    CHECK(dist_group_error(dist_world(), text, sizeof(text)) == 0);
    CHECK(strcmp(text, "unchanged") == 0);
    CHECK_STATUS(dist_group_abort(dist_world(), "no"), DIST_ERR_NOT_INITIALIZED);
    CHECK_STATUS(dist_group_set_timeout(dist_world(), 5), DIST_ERR_NOT_INITIALIZED);
    CHECK_STATUS(dist_group_describe(dist_world(), &json), DIST_ERR_NOT_INITIALIZED);
    CHECK(json == NULL);
    CHECK_STATUS(dist_all_reduce(dist_world(), x, x, 1, DIST_F32, DIST_SUM, NULL, NULL),
                 DIST_ERR_NOT_INITIALIZED);
    CHECK_STATUS(dist_reduce(dist_world(), x, x, 1, DIST_F32, DIST_SUM, 0, NULL, NULL),
                 DIST_ERR_NOT_INITIALIZED);
    CHECK_STATUS(dist_reduce_scatter(dist_world(), x, x, 1, DIST_F32, DIST_SUM, NULL, NULL),
                 DIST_ERR_NOT_INITIALIZED);
    CHECK_STATUS(dist_broadcast(dist_world(), x, 1, DIST_F32, 0, NULL, NULL), DIST_ERR_NOT_INITIALIZED);
    CHECK_STATUS(dist_all_gather(dist_world(), x, x, 1, DIST_F32, NULL, NULL), DIST_ERR_NOT_INITIALIZED);
    CHECK_REFUSED(dist_barrier(dist_world(), NULL, NULL), DIST_ERR_NOT_INITIALIZED, "dist_init");
    CHECK_REFUSED(dist_finalize(), DIST_ERR_NOT_INITIALIZED, "dist_init");
    CHECK_OK(dist_group_release(NULL));
}

/* Functions that need no world group. */
static void calls_that_need_no_world_succeed(void)
{
    dist_blob_t *json = NULL;
    CHECK(dist_version() == DIST_VERSION);
    CHECK(strcmp(dist_status_string(DIST_ERR_TIMEOUT), "timed out") == 0);
    CHECK(strcmp(dist_status_string(12345), "unknown status") == 0);
    CHECK(strcmp(dist_status_string(INT32_MIN), "unknown status") == 0);
    CHECK(dist_backend_is_available("native") == 1 && dist_backend_is_available("GLOO") == 1);
    CHECK(dist_backend_is_available("") == 0 && dist_backend_is_available("nonesuch") == 0);
    CHECK(dist_is_elastic_launched() == 0);
    CHECK_OK(dist_flight_recorder_dump(NULL, &json));
    CHECK(dist_blob_count(json) == 1);
    CHECK_OK(dist_blob_release(json));
    CHECK_REFUSED(dist_set_log_level(9), DIST_ERR_INVALID_ARGUMENT, "9");
    CHECK_STATUS(dist_set_log_level(-1), DIST_ERR_INVALID_ARGUMENT);
    CHECK_OK(dist_set_log_level(DIST_LOG_OFF));
}

/* torchrun and distrun set the variable; an empty value counts as none. */
static void launcher_is_found_by_its_variable(void)
{
    REQUIRE(setenv("TORCHELASTIC_RUN_ID", "job", 1) == 0);
    CHECK(dist_is_elastic_launched() == 1);
    REQUIRE(setenv("TORCHELASTIC_RUN_ID", "", 1) == 0);
    CHECK(dist_is_elastic_launched() == 0);
    REQUIRE(unsetenv("TORCHELASTIC_RUN_ID") == 0);
    CHECK(dist_is_elastic_launched() == 0);
}

static void world_may_be_created_twice(void)
{
    char text[64];
    double in[3] = { 1.5, -2, 0 };
    double out[3] = { 0, 0, 0 };
    CHECK(dist_is_initialized() == 1);
    CHECK(dist_get_rank(dist_world()) == 0 && dist_get_world_size(dist_world()) == 1);
    CHECK(dist_get_rank(dist_world()) == 0 && dist_get_world_size(dist_world()) == 1);
    CHECK(dist_group_name(dist_world(), text, sizeof(text)) == 6 && strcmp(text, "world") == 0);
    CHECK(dist_group_error(dist_world(), text, sizeof(text)) == 1 && strcmp(text, "") == 0);
    CHECK_OK(dist_all_reduce(dist_world(), in, out, 3, DIST_F64, DIST_SUM, NULL, NULL));
    CHECK(memcmp(in, out, sizeof(in)) == 0);
    CHECK_OK(dist_barrier(dist_world(), NULL, NULL));
}

/* A text that does not fit is cut and terminated, and the function returns its full length. */
static void long_texts_are_cut_and_terminated(void)
{
    char text[8] = "zzzzzzz";
    size_t needed;
    CHECK(dist_group_name(dist_world(), text, 4) == 6);
    CHECK(memcmp(text, "wor\0zzz", 8) == 0);
    CHECK(dist_group_name(dist_world(), text, 1) == 6 && text[0] == '\0');
    CHECK_STATUS(dist_init(NULL), DIST_ERR_ALREADY_INITIALIZED);
    needed = dist_last_error_copy(NULL, 0);
    CHECK(needed == strlen(dist_last_error()) + 1);
    CHECK(dist_last_error_copy(text, sizeof(text)) == needed && strlen(text) == 7);
}

static void *check_error_of_other_thread(void *message_seen)
{
    *(int *)message_seen = strcmp(dist_last_error(), "") == 0 && dist_is_initialized() == 1;
    return NULL;
}

/* Each thread has its own message, and a successful call does not change it. */
static void error_messages_are_per_thread(void)
{
    pthread_t thread;
    int message_seen = 0;
    CHECK_REFUSED(dist_init(NULL), DIST_ERR_ALREADY_INITIALIZED, "dist_finalize");
    CHECK_OK(dist_barrier(dist_world(), NULL, NULL));
    CHECK_MESSAGE("dist_init");
    REQUIRE(pthread_create(&thread, NULL, check_error_of_other_thread, &message_seen) == 0);
    REQUIRE(pthread_join(thread, NULL) == 0);
    CHECK(message_seen);
}

int main(void)
{
    int round;
    CHECK(strcmp(dist_last_error(), "") == 0);
    CHECK(dist_last_error_copy(NULL, 0) == 1);
    calls_that_need_no_world_succeed();
    launcher_is_found_by_its_variable();
    calls_without_a_world_fail();
    for (round = 0; round < 3; round++) {
        start_world();
        world_may_be_created_twice();
        long_texts_are_cut_and_terminated();
        error_messages_are_per_thread();
        CHECK_OK(dist_finalize());
        calls_without_a_world_fail();
    }
    calls_that_need_no_world_succeed();
    return check_report();
}
