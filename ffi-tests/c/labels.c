/*
 * Labels of calls. Calls that differ only in their labels are mismatches, between threads and
 * between processes, and reports show the labels.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 3
#define LONGEST_LABEL "0123456789abcdef0123456789abcdef"

struct rank {
    int rank;
    int size;
    dist_store_t *store;
    const char *name;
    const char *transport;
    void (*body)(int rank, dist_group_t *group);
};

static dist_call_options_t with_label(const char *label)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    options.label = label;
    return options;
}

static dist_status_t reduce_with_label(dist_group_t *group, float *value, const char *label)
{
    dist_call_options_t options = with_label(label);
    return dist_all_reduce(group, value, value, 1, DIST_F32, DIST_SUM, &options, NULL);
}

/* Two buckets of one size, which rank 1 issues in the opposite order; without labels it would
 * sum different buckets. */
static void swapped_labels_are_a_mismatch(int rank, dist_group_t *group)
{
    float a = 1.0F, b = 10.0F, *first = &a, *second = &b;
    const char *labels[2] = { "bucket a", "bucket b" };
    if (rank == 1) {
        first = &b;
        second = &a;
        labels[0] = "bucket b";
        labels[1] = "bucket a";
    }
    CHECK_STATUS(reduce_with_label(group, first, labels[0]), DIST_ERR_MISMATCH);
    CHECK_MESSAGE("\"bucket a\"");
    CHECK_MESSAGE("\"bucket b\"");
    CHECK_MESSAGE("rank 1 (pid ");
    CHECK_STATUS(reduce_with_label(group, second, labels[1]), DIST_ERR_MISMATCH);
}

/* Without labels the calls succeed with exchanged sums, as in other libraries. */
static void unlabelled_calls_may_swap(int rank, dist_group_t *group)
{
    float a = 1.0F, b = 10.0F;
    int32_t size = dist_get_world_size(group);
    CHECK_OK(reduce_with_label(group, rank == 1 ? &b : &a, NULL));
    CHECK_OK(reduce_with_label(group, rank == 1 ? &a : &b, ""));
    CHECK(rank == 1 || (a == (float)(size + 9) && b == (float)(10 * size - 9)));
}

/* Calls with equal labels give the same results as calls without; each label is used repeatedly. */
static void equal_labels_match(int rank, dist_group_t *group)
{
    int32_t size = dist_get_world_size(group);
    char label[33];
    int round, bucket;
    for (round = 0; round < 5; round++) {
        for (bucket = 0; bucket < 100; bucket++) {
            float value = (float)bucket;
            (void)snprintf(label, sizeof(label), "layer%d.weight", bucket);
            CHECK_OK(reduce_with_label(group, &value, bucket % 7 == 0 ? NULL : label));
            CHECK(value == (float)(bucket * size));
        }
    }
    (void)rank;
}

/* The calls of a batch become one operation: the order of their labels matters, and the error
 * names the differing call. */
static void order_of_labels_in_a_batch_matters(int rank, dist_group_t *group)
{
    float values[12] = { 0 };
    char label[33];
    int i;
    dist_work_t *work = NULL;
    CHECK_OK(dist_batch_begin(NULL, 0));
    for (i = 0; i < 12; i++) {
        int bucket = rank == 1 && (i == 4 || i == 5) ? 9 - i : i;
        (void)snprintf(label, sizeof(label), "a.long.label.of.layer%d", bucket);
        CHECK_OK(reduce_with_label(group, &values[i], label));
    }
    CHECK_OK(dist_batch_end(&work));
    CHECK_STATUS(dist_work_wait(work, 0), DIST_ERR_MISMATCH);
    CHECK_MESSAGE("call 5 of the batch has the label");
    CHECK_MESSAGE("\"a.long.label.of.layer4\"");
    CHECK_MESSAGE("\"a.long.label.of.layer5\"");
    CHECK_OK(dist_work_release(work));
}

static void equal_batches_match(int rank, dist_group_t *group)
{
    float values[3] = { 1, 2, 3 };
    int32_t size = dist_get_world_size(group);
    dist_work_t *work = NULL;
    (void)rank;
    CHECK_OK(dist_batch_begin(NULL, 0));
    CHECK_OK(reduce_with_label(group, &values[0], "a"));
    CHECK_OK(reduce_with_label(group, &values[1], NULL));
    CHECK_OK(reduce_with_label(group, &values[2], "c"));
    CHECK_OK(dist_batch_end(&work));
    CHECK_OK(dist_work_wait(work, 0));
    CHECK_OK(dist_work_release(work));
    CHECK(values[0] == (float)size && values[1] == (float)(2 * size) && values[2] == (float)(3 * size));
}

/* Two short labels in a batch, and an asynchronous call after a matching one. */
static void labels_of_works_are_compared(int rank, dist_group_t *group)
{
    float value = 1.0F;
    dist_call_options_t options = with_label("first");
    dist_work_t *first = NULL, *second = NULL;
    CHECK_OK(dist_barrier(group, &options, &first));
    options.label = rank == 1 ? "one" : "two";
    CHECK_OK(dist_all_reduce(group, &value, &value, 1, DIST_F32, DIST_SUM, &options, &second));
    /* The library borrows the text only for the call. */
    options.label = NULL;
    CHECK_OK(dist_work_wait(first, 0));
    CHECK_STATUS(dist_work_wait(second, 0), DIST_ERR_MISMATCH);
    CHECK_MESSAGE("\"one\"");
    CHECK_MESSAGE("\"two\"");
    CHECK_OK(dist_work_release(first));
    CHECK_OK(dist_work_release(second));
}

static void labels_of_byte_strings_are_compared(int rank, dist_group_t *group)
{
    dist_call_options_t options = with_label(rank == 1 ? "config" : "checkpoint");
    dist_blob_t *blob = NULL;
    CHECK_STATUS(dist_all_gather_bytes(group, "x", 1, &blob, &options, NULL), DIST_ERR_MISMATCH);
    CHECK_MESSAGE("all_gather_bytes #1");
    CHECK_MESSAGE("\"config\"");
    CHECK_MESSAGE("\"checkpoint\"");
    CHECK(blob == NULL);
}

/* A message is matched by rank and tag; its label does not matter. */
static void labels_of_messages_are_ignored(int rank, dist_group_t *group)
{
    int32_t value = rank, small[1] = { 0 };
    dist_call_options_t options = with_label(rank == 0 ? "sent" : "taken");
    int64_t big[2] = { 1, 2 };
    if (rank == 0) {
        CHECK_OK(dist_send(group, &value, 1, DIST_I32, 1, 3, &options, NULL));
        CHECK_OK(dist_send(group, big, 2, DIST_I64, 1, 4, NULL, NULL));
    } else if (rank == 1) {
        CHECK_OK(dist_recv(group, &value, 1, DIST_I32, 0, 3, NULL, &options, NULL));
        CHECK(value == 0);
        CHECK_STATUS(dist_recv(group, small, 1, DIST_I32, 0, 4, NULL, &options, NULL),
                     DIST_ERR_MISMATCH);
        CHECK_MESSAGE("\"taken\"");
    }
}

/* The report of a time-out shows the label of the call. */
static void timeout_report_shows_the_label(int rank, dist_group_t *group)
{
    dist_call_options_t options = with_label("phase 2");
    options.timeout_ms = 200;
    if (rank == 0) {
        CHECK_STATUS(dist_barrier(group, &options, NULL), DIST_ERR_TIMEOUT);
        CHECK_MESSAGE("barrier #1 \"phase 2\" on group timeouts, rank 0: timed out");
    } else {
        /* The rank stays in the group until the group has failed. */
        int32_t value = 0;
        CHECK_STATUS(dist_recv(group, &value, 1, DIST_I32, 0, 5, NULL, NULL, NULL), DIST_ERR_TIMEOUT);
    }
}

static void *run_rank(void *argument)
{
    struct rank *me = argument;
    dist_group_t *group = NULL;
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    char requested[64];
    (void)snprintf(requested, sizeof(requested), me->transport, 'a' + me->rank);
    options.store = me->store;
    options.name = me->name;
    options.fields = DIST_FIELD_RANK;
    options.rank = me->rank;
    options.world_size = me->size;
    options.connect_timeout_ms = LIMIT_MS;
    options.timeout_ms = LIMIT_MS;
    options.backend_options = requested;
    REQUIRE_OK(dist_group_create(&options, &group));
    me->body(me->rank, group);
    CHECK_OK(dist_group_release(group));
    return NULL;
}

static void run_on_threads(const char *name, const char *transport, int size,
                           void (*body)(int rank, dist_group_t *group))
{
    dist_store_t *store = new_store();
    struct rank ranks[RANKS];
    pthread_t threads[RANKS];
    int i;
    for (i = 0; i < size; i++) {
        ranks[i].rank = i;
        ranks[i].size = size;
        ranks[i].store = store;
        ranks[i].name = name;
        ranks[i].transport = transport;
        ranks[i].body = body;
        REQUIRE(pthread_create(&threads[i], NULL, run_rank, &ranks[i]) == 0);
    }
    for (i = 0; i < size; i++) {
        REQUIRE(pthread_join(threads[i], NULL) == 0);
    }
    CHECK_OK(dist_store_release(store));
}

/* Runs the ranks as processes with shared memory; each child starts before the library has
 * started any thread. */
static void run_on_processes(void (*body)(int rank, dist_group_t *group))
{
    char url[64], path[] = "/tmp/dist-labels-XXXXXX";
    pid_t children[2];
    int i, file = mkstemp(path);
    REQUIRE(file >= 0);
    REQUIRE(close(file) == 0);
    (void)snprintf(url, sizeof(url), "file://%s", path);
    for (i = 0; i < 2; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
            options.init_method = url;
            options.fields = DIST_FIELD_RANK;
            options.rank = i;
            options.world_size = 2;
            options.connect_timeout_ms = LIMIT_MS;
            options.timeout_ms = LIMIT_MS;
            options.backend_options = "transport=shm";
            REQUIRE_OK(dist_init(&options));
            body(i, dist_world());
            CHECK_OK(dist_finalize());
            exit(check_report());
        }
    }
    for (i = 0; i < 2; i++) {
        int status = 1;
        REQUIRE(waitpid(children[i], &status, 0) == children[i]);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    (void)unlink(path);
}

static void long_labels_are_refused(int rank, dist_group_t *group)
{
    dist_call_options_t options = with_label(LONGEST_LABEL "x");
    float value = 1.0F;
    (void)rank;
    CHECK_REFUSED(dist_barrier(group, &options, NULL), DIST_ERR_INVALID_ARGUMENT, "longer than 32");
    CHECK(strlen(LONGEST_LABEL) == DIST_LABEL_BYTES);
    CHECK_OK(reduce_with_label(group, &value, LONGEST_LABEL));
    options.label = "\xff";
    CHECK_REFUSED(dist_barrier(group, &options, NULL), DIST_ERR_INVALID_ARGUMENT, "not UTF-8");
    /* The label ends in an incomplete character. */
    options.label = "layer \xc3";
    CHECK_REFUSED(dist_barrier(group, &options, NULL), DIST_ERR_INVALID_ARGUMENT, "not UTF-8");
    options.label = "sch\xc3\xb6n";
    CHECK_OK(dist_barrier(group, &options, NULL));
    /* A caller that was compiled before labels existed: the library does not read beyond its
     * struct. */
    options.label = LONGEST_LABEL "x";
    options.struct_size = offsetof(dist_call_options_t, label);
    CHECK_OK(dist_barrier(group, &options, NULL));
}

/* Returns the recorder's text about a group. */
static const char *recorder_text(dist_group_t *group, dist_blob_t **dump)
{
    const void *text = NULL;
    size_t len = 0;
    REQUIRE_OK(dist_flight_recorder_dump(group, dump));
    REQUIRE_OK(dist_blob_data(*dump, 0, &text, &len));
    return text;
}

/* The recorder has a label only for calls with one. */
static void recorder_shows_labels(int rank, dist_group_t *group)
{
    dist_call_options_t options = with_label("layer3.weight");
    dist_blob_t *dump = NULL;
    const char *found;
    (void)rank;
    CHECK_OK(dist_barrier(group, NULL, NULL));
    CHECK(strstr(recorder_text(group, &dump), "\"label\"") == NULL);
    CHECK_OK(dist_blob_release(dump));
    CHECK_OK(dist_barrier(group, &options, NULL));
    found = recorder_text(group, &dump);
    CHECK(strstr(found, "barrier #2 \\\"layer3.weight\\\"") != NULL);
    found = strstr(found, "\"label\":\"layer3.weight\"");
    CHECK(found != NULL && strstr(found + 1, "\"label\"") == NULL);
    CHECK_OK(dist_blob_release(dump));
}

int main(void)
{
    static const char *const transports[] = { "", "transport=tcp;host_id=%c" };
    size_t i;
    run_on_processes(swapped_labels_are_a_mismatch);
    run_on_processes(unlabelled_calls_may_swap);
    run_on_processes(equal_labels_match);
    run_on_processes(order_of_labels_in_a_batch_matters);
    CHECK_OK(dist_set_log_level(DIST_LOG_OFF));
    run_on_threads("refused", "", 1, long_labels_are_refused);
    run_on_threads("recorded", "", 1, recorder_shows_labels);
    for (i = 0; i < sizeof(transports) / sizeof(transports[0]); i++) {
        run_on_threads("swapped", transports[i], 2, swapped_labels_are_a_mismatch);
        run_on_threads("swapped by one", transports[i], RANKS, swapped_labels_are_a_mismatch);
        run_on_threads("unlabelled", transports[i], 2, unlabelled_calls_may_swap);
        run_on_threads("alike", transports[i], 2, equal_labels_match);
        run_on_threads("batch", transports[i], 2, order_of_labels_in_a_batch_matters);
        run_on_threads("good batch", transports[i], 2, equal_batches_match);
        run_on_threads("works", transports[i], RANKS, labels_of_works_are_compared);
        run_on_threads("byte strings", transports[i], 2, labels_of_byte_strings_are_compared);
        run_on_threads("messages", transports[i], 2, labels_of_messages_are_ignored);
        run_on_threads("timeouts", transports[i], 2, timeout_report_shows_the_label);
    }
    return check_report();
}
