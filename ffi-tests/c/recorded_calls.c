/*
 * The flight recorder and the trace show each call as the one call that it is, with its sizes.
 * The ranks are threads, so one dump and one trace have the calls of all ranks.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <unistd.h>

#define RANKS 2
#define MAX_TEXT (1 << 20)

struct rank {
    dist_store_t *store;
    dist_group_t *group;
    int rank;
};

/* Returns the number of times that a text contains a word. */
static int count_of(const char *text, const char *word)
{
    int count = 0;
    for (text = strstr(text, word); text != NULL; text = strstr(text + 1, word)) {
        count++;
    }
    return count;
}

/* Starts and ends a trace around the calls of `run`, and copies the recorder's text about the
 * group and the text of the trace. Only rank 0 does this. */
static void record_calls(const struct rank *me, void (*run)(const struct rank *me), char *dump, char *trace)
{
    char path[] = "/tmp/dist-recorded-XXXXXX";
    const void *text = NULL;
    dist_blob_t *blob = NULL;
    size_t len = 0;
    FILE *file;
    if (me->rank == 0) {
        int created = mkstemp(path);
        REQUIRE(created >= 0);
        close(created);
        REQUIRE_OK(dist_trace_start(path));
    }
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
    run(me);
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
    if (me->rank == 0) {
        CHECK_OK(dist_trace_stop());
        REQUIRE_OK(dist_flight_recorder_dump(me->group, &blob));
        REQUIRE_OK(dist_blob_data(blob, 0, &text, &len));
        REQUIRE(len < MAX_TEXT);
        memcpy(dump, text, len + 1);
        CHECK_OK(dist_blob_release(blob));
        file = fopen(path, "r");
        REQUIRE(file != NULL);
        trace[fread(trace, 1, MAX_TEXT - 1, file)] = '\0';
        fclose(file);
        unlink(path);
    }
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
}

static void call_with_byte_strings(const struct rank *me)
{
    dist_blob_t *blob = NULL;
    dist_work_t *work = NULL;
    CHECK_OK(dist_all_gather_bytes(me->group, "abcdefg", me->rank == 0 ? 4 : 6, &blob, NULL, NULL));
    CHECK_OK(dist_blob_release(blob));
    CHECK_OK(dist_broadcast_bytes(me->group, "abcdefg", 2, 1, &blob, NULL, &work));
    CHECK_OK(dist_work_wait(work, 0));
    CHECK_OK(dist_work_release(work));
    CHECK_OK(dist_blob_release(blob));
}

static void check_byte_strings(const char *dump, const char *trace)
{
    CHECK(count_of(dump, "\"operation\":\"all_gather_bytes\"") == RANKS);
    CHECK(count_of(dump, "\"operation\":\"broadcast_bytes\"") == RANKS);
    CHECK(count_of(dump, "(10 bytes)\"") == RANKS && count_of(dump, "\"bytes\":10,") == RANKS);
    CHECK(count_of(dump, "(root 1, 2 bytes)\"") == RANKS);
    /* The operations that a call consists of are not shown. */
    CHECK(strstr(dump, "all_gather_v") == NULL && strstr(dump, "\"broadcast\"") == NULL);
    CHECK(strstr(dump, "lengths") == NULL);
    CHECK(count_of(trace, "\"name\":\"all_gather_bytes\"") == RANKS);
    CHECK(count_of(trace, "\"name\":\"broadcast_bytes\"") == RANKS);
    CHECK(count_of(trace, "\"bytes\":10,") == RANKS);
    CHECK(strstr(trace, "all_gather_v") == NULL && strstr(trace, "\"broadcast\"") == NULL);
}

/* Rank 1 enters the second barrier after rank 0 has given up. */
static void meet_in_monitored_barriers(const struct rank *me)
{
    CHECK_OK(dist_monitored_barrier(me->group, 0, 1, NULL, NULL));
    if (me->rank == 1) {
        CHECK_OK(dist_barrier(me->group, NULL, NULL));
    }
    CHECK_STATUS(dist_monitored_barrier(me->group, 50, 1, NULL, NULL), DIST_ERR_TIMEOUT);
    if (me->rank == 0) {
        CHECK_OK(dist_barrier(me->group, NULL, NULL));
    }
}

static void check_monitored_barriers(const char *dump, const char *trace)
{
    CHECK(count_of(dump, "\"kind\":\"monitored_barrier\"") == 2 * RANKS);
    CHECK(count_of(dump, "\"monitored_barrier #2\"") == RANKS);
    CHECK(count_of(dump, "\"timeout_ms\":50") == RANKS);
    CHECK(count_of(dump, "\"missing\":[1]") == RANKS && count_of(dump, "\"missing\":[]") == RANKS);
    CHECK(count_of(trace, "\"name\":\"monitored_barrier\"") == 2 * RANKS);
    CHECK(count_of(trace, "\"missing\":[1]") == RANKS && count_of(trace, "\"timeout_ms\":50") == RANKS);
}

/* Rank 0 gives 3 elements, and rank 1 gives 5. */
static void call_with_sizes(const struct rank *me)
{
    const int64_t shape[2] = { 2, 4 };
    const size_t counts[RANKS] = { 3, 5 };
    float data[8] = { 0 }, first[3], second[5], all[14];
    void *outputs[RANKS];
    dist_tensor_t tensor = DIST_TENSOR_INIT;
    outputs[0] = first;
    outputs[1] = second;
    CHECK_OK(dist_all_gather(me->group, data, all, 7, DIST_F32, NULL, NULL));
    CHECK_OK(dist_all_gather_v(me->group, data, outputs, counts, DIST_F32, NULL, NULL));
    tensor.name = "weights";
    tensor.data = data;
    tensor.shape = shape;
    tensor.n_shape = 2;
    tensor.dtype = DIST_F32;
    CHECK_OK(dist_broadcast_list(me->group, &tensor, 1, 0, NULL, NULL));
}

static void check_sizes(const char *text)
{
    CHECK(count_of(text, "\"input_sizes\":[[7]]") == RANKS && count_of(text, "\"output_sizes\":[[2,7]]") == RANKS);
    CHECK(count_of(text, "\"input_sizes\":[[3]]") == 1 && count_of(text, "\"input_sizes\":[[5]]") == 1);
    CHECK(count_of(text, "\"output_sizes\":[[3],[5]]") == RANKS);
    CHECK(count_of(text, "\"input_sizes\":[[2,4]]") == 1 && count_of(text, "\"output_sizes\":[[2,4]]") == RANKS);
}

static void *run_all_checks(void *arg)
{
    static char dump[MAX_TEXT], trace[MAX_TEXT];
    struct rank *me = arg;
    REQUIRE_OK(join_group(me->store, "recorded", me->rank, RANKS, &me->group));
    record_calls(me, call_with_byte_strings, dump, trace);
    if (me->rank == 0) {
        check_byte_strings(dump, trace);
    }
    record_calls(me, call_with_sizes, dump, trace);
    if (me->rank == 0) {
        check_sizes(dump);
        check_sizes(trace);
    }
    record_calls(me, meet_in_monitored_barriers, dump, trace);
    if (me->rank == 0) {
        check_monitored_barriers(dump, trace);
    }
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
    CHECK_OK(dist_group_release(me->group));
    return NULL;
}

int main(void)
{
    struct rank ranks[RANKS];
    pthread_t threads[RANKS];
    dist_store_t *store = new_store();
    int r;
    for (r = 0; r < RANKS; r++) {
        ranks[r].store = store;
        ranks[r].group = NULL;
        ranks[r].rank = r;
        REQUIRE(pthread_create(&threads[r], NULL, run_all_checks, &ranks[r]) == 0);
    }
    for (r = 0; r < RANKS; r++) {
        REQUIRE(pthread_join(threads[r], NULL) == 0);
    }
    CHECK_OK(dist_store_release(store));
    return check_report();
}
