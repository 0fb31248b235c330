/*
 * The time that the device needs for operations, in the flight recorder and in the trace. Each
 * operation takes 300 ms on the device, and the calls return before that. The argument is "trace",
 * "recorder" or "off".
 */
#include "ranks.h"

#include <time.h>
#include <unistd.h>

#define RANKS 2
#define N 100
#define MAX_TEXT (1 << 20)
/* The calls of each rank: one alone, one with a work, two in a batch, and a message. */
#define CALLS 5
/* The smallest device time that counts as that of a slow operation. */
#define SLOW_MS 250.0

static const char *mode;
static pthread_barrier_t rank_barrier;
static char text[MAX_TEXT];

static void issue_calls(struct rank *self)
{
    dist_call_options_t options = stream_options(self);
    float *memory = device_memory(2 * N * sizeof(float), NULL);
    dist_work_t *work = NULL;
    CHECK_OK(dist_all_reduce(self->group, memory, memory, N, DIST_F32, DIST_SUM, &options, NULL));
    CHECK_OK(dist_all_reduce(self->group, memory, memory, N, DIST_F32, DIST_SUM, &options, &work));
    CHECK_OK(dist_work_wait(work, 0));
    CHECK_OK(dist_work_release(work));
    CHECK_OK(dist_batch_begin(NULL, 0));
    CHECK_OK(dist_all_reduce(self->group, memory, memory, N, DIST_F32, DIST_SUM, &options, NULL));
    CHECK_OK(dist_all_reduce(self->group, memory + N, memory + N, N, DIST_F32, DIST_SUM, &options, NULL));
    CHECK_OK(dist_batch_end(NULL));
    if (self->rank == 0) {
        CHECK_OK(dist_send(self->group, memory, N, DIST_F32, 1, 0, &options, NULL));
    } else {
        CHECK_OK(dist_recv(self->group, memory, N, DIST_F32, 0, 0, NULL, &options, NULL));
    }
    CHECK(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    free_device(memory);
}

/* Copies the recorder's text about the group. */
static void dump_group(dist_group_t *group)
{
    dist_blob_t *blob = NULL;
    const void *data = NULL;
    size_t len = 0;
    REQUIRE_OK(dist_flight_recorder_dump(group, &blob));
    REQUIRE_OK(dist_blob_data(blob, 0, &data, &len));
    REQUIRE(len < MAX_TEXT);
    memcpy(text, data, len + 1);
    CHECK_OK(dist_blob_release(blob));
}

/* Returns the number of device times of at least `at_least` ms in the text. */
static int count_times(double at_least)
{
    static const char key[] = "\"device_ms\":";
    int count = 0;
    for (const char *found = strstr(text, key); found != NULL; found = strstr(found + 1, key)) {
        const char *value = found + sizeof key - 1;
        double ms = strtod(value, NULL);
        count += strncmp(value, "null", 4) != 0 && ms >= at_least && ms < 60000.0;
    }
    return count;
}

/* The library polls the device, so it notices the end of the last operation later than the
 * stream's owner. */
static void await_device_times(dist_group_t *group, int expected)
{
    struct timespec nap = { 0, 10000000 };
    for (int i = 0; i < 1000; i++) {
        dump_group(group);
        if (count_times(0.0) >= expected) {
            return;
        }
        nanosleep(&nap, NULL);
    }
}

static void check_recorder(dist_group_t *group)
{
    if (strcmp(mode, "off") == 0) {
        dump_group(group);
        CHECK(count_times(0.0) == 0 && strstr(text, "\"device_ms\":null") != NULL);
        return;
    }
    await_device_times(group, CALLS * RANKS);
    CHECK(count_times(0.0) == CALLS * RANKS);
    CHECK(count_times(SLOW_MS) == CALLS * RANKS);
}

static int count_of(const char *word)
{
    int count = 0;
    for (const char *found = strstr(text, word); found != NULL; found = strstr(found + 1, word)) {
        count++;
    }
    return count;
}

static void check_trace(const char *path)
{
    FILE *file = fopen(path, "r");
    REQUIRE(file != NULL);
    text[fread(text, 1, MAX_TEXT - 1, file)] = '\0';
    fclose(file);
    /* Each span has a line for its begin, with the time, and a line for its end. */
    CHECK(count_of("\"cat\":\"device\"") == 2 * CALLS * RANKS);
    CHECK(count_times(SLOW_MS) == CALLS * RANKS);
}

static void body(struct rank *self)
{
    char path[] = "/tmp/dist-timing-XXXXXX";
    int is_traced = strcmp(mode, "trace") == 0;
    if (self->rank == 0 && is_traced) {
        int file = mkstemp(path);
        REQUIRE(file >= 0);
        close(file);
        REQUIRE_OK(dist_trace_start(path));
    }
    pthread_barrier_wait(&rank_barrier);
    issue_calls(self);
    pthread_barrier_wait(&rank_barrier);
    if (self->rank == 0) {
        check_recorder(self->group);
    }
    if (self->rank == 0 && is_traced) {
        CHECK_OK(dist_trace_stop());
        check_trace(path);
        unlink(path);
    }
    pthread_barrier_wait(&rank_barrier);
}

int main(int argc, char **argv)
{
    REQUIRE(argc == 2);
    mode = argv[1];
    REQUIRE(pthread_barrier_init(&rank_barrier, NULL, RANKS) == 0);
    run_on_ranks(RANKS, "cpu:native,cuda:nccl", body);
    check_nothing_leaked();
    return check_report();
}
