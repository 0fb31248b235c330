/*
 * One rank of a job over the back end "ucc". The first argument selects the test:
 *
 * - works: collectives, works, subgroups and messages.
 * - stub: the collectives of the stub of UCC.
 * - kill, stop, abort, late: the last rank dies, stops, aborts or comes late during collectives. All
 *   other ranks get an error that names it.
 * - refused: a call fails with the text in the second argument.
 * - no_group: the creation of the group fails with this text.
 */
#include "../c/check.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LARGE = 1 << 20, TIME_LIMIT_S = 20 };

static int rank, size;
static float input[LARGE], output[LARGE];

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static dist_status_t sum(dist_group_t *group, size_t count, const dist_call_options_t *options)
{
    return dist_all_reduce(group, input, output, count, DIST_F32, DIST_SUM, options, NULL);
}

static void collectives_return_the_sum(dist_group_t *group, int ranks)
{
    static const size_t counts[] = { 0, 1, 1000, LARGE };
    size_t i, j;
    for (i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        for (j = 0; j < counts[i]; j++) {
            input[j] = (float)(j % 7);
            output[j] = -1;
        }
        CHECK_STATUS(sum(group, counts[i], NULL), DIST_OK);
        for (j = 0; j < counts[i] && output[j] == (float)ranks * (float)(j % 7); j++) {
        }
        CHECK(j == counts[i]);
    }
    CHECK_STATUS(dist_barrier(group, NULL, NULL), DIST_OK);
}

static void works_complete_in_order(void)
{
    enum { WORKS = 16 };
    static int64_t values[WORKS], sums[WORKS];
    dist_work_t *works[WORKS];
    int i;
    for (i = 0; i < WORKS; i++) {
        values[i] = rank + i;
        REQUIRE(CHECK_STATUS(
            dist_all_reduce(dist_world(), &values[i], &sums[i], 1, DIST_I64, DIST_SUM, NULL, &works[i]), DIST_OK));
    }
    for (i = WORKS - 1; i >= 0; i--) {
        CHECK_STATUS(dist_work_wait(works[i], DIST_WAIT_FOREVER), DIST_OK);
        dist_work_release(works[i]);
        CHECK(sums[i] == (int64_t)size * (size - 1) / 2 + (int64_t)size * i);
    }
}

/* Groups share the context of the process. A subgroup has other rank numbers. */
static void subgroups_run_collectives(void)
{
    int32_t members[2] = { size - 1, 0 };
    dist_group_t *all = NULL, *ends = NULL;
    CHECK_STATUS(dist_group_new(dist_world(), NULL, 0, NULL, &all), DIST_OK);
    collectives_return_the_sum(all, size);
    if (size > 2) {
        CHECK_STATUS(dist_group_new(dist_world(), members, 2, NULL, &ends), DIST_OK);
        CHECK((ends != NULL) == (rank == 0 || rank == size - 1));
    }
    if (ends != NULL) {
        collectives_return_the_sum(ends, 2);
        CHECK_STATUS(dist_group_release(ends), DIST_OK);
    }
    collectives_return_the_sum(all, size);
    CHECK_STATUS(dist_group_release(all), DIST_OK);
}

static void messages_match_by_tag(void)
{
    int32_t to = (rank + 1) % size, from = (rank + size - 1) % size, out = rank, in = -1;
    CHECK_STATUS(dist_sendrecv(dist_world(), &out, 1, to, 7, &in, 1, from, 7, DIST_I32, NULL, NULL, NULL), DIST_OK);
    CHECK(in == from);
}

/* Blocks of other lengths on each rank, in the opposite order. */
static void uneven_blocks_arrive(void)
{
    static int32_t blocks[8][8];
    int32_t own[8];
    void *recv[8];
    size_t counts[8];
    int i, j;
    for (i = 0; i < size; i++) {
        counts[i] = (size_t)i;
        recv[i] = blocks[size - 1 - i];
        own[i] = rank;
    }
    CHECK_STATUS(dist_all_gather_v(dist_world(), own, recv, counts, DIST_I32, NULL, NULL), DIST_OK);
    for (i = 0; i < size; i++) {
        for (j = 0; j < i; j++) {
            CHECK(blocks[size - 1 - i][j] == i);
        }
    }
}

static void works(void)
{
    collectives_return_the_sum(dist_world(), size);
    works_complete_in_order();
    if (size > 1) {
        messages_match_by_tag();
    }
    uneven_blocks_arrive();
    subgroups_run_collectives();
    CHECK_STATUS(dist_finalize(), DIST_OK);
}

/* The last rank ends in this way after some collectives. */
static void end_last_rank(const char *way)
{
    if (strcmp(way, "kill") == 0) {
        raise(SIGKILL);
    }
    if (strcmp(way, "stop") == 0) {
        raise(SIGSTOP);
    }
    dist_group_abort(dist_world(), "the test aborts");
    /* The reason reaches other hosts while this process lives. */
    sleep(1);
}

static void failure_names_the_last_rank(const char *way)
{
    double start = now();
    char name[32];
    dist_status_t status = DIST_OK;
    sprintf(name, "rank %d", size - 1);
    while (status == DIST_OK && now() - start < TIME_LIMIT_S) {
        if (rank == size - 1 && now() - start > 0.2) {
            end_last_rank(way);
        }
        status = sum(dist_world(), LARGE, NULL);
    }
    if (rank == size - 1) {
        return;
    }
    CHECK_STATUS(status, strcmp(way, "abort") == 0 ? DIST_ERR_ABORTED : DIST_ERR_PEER_FAILED);
    CHECK_MESSAGE(name);
    if (strcmp(way, "abort") != 0) {
        CHECK_MESSAGE("all_reduce #");
    }
    /* Later calls fail at once, with the same reason. */
    start = now();
    CHECK_STATUS(sum(dist_world(), 1, NULL), status);
    CHECK(now() - start < 1);
}

/* The ranks that wait name the rank that is late, if it is on their host. */
static void late_rank_is_named(int is_on_host)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    char name[32];
    sprintf(name, "rank %d", size - 1);
    options.timeout_ms = 500;
    CHECK_STATUS(sum(dist_world(), 1, NULL), DIST_OK);
    if (rank == size - 1) {
        sleep(2);
        CHECK(sum(dist_world(), LARGE, NULL) != DIST_OK);
        return;
    }
    CHECK(sum(dist_world(), LARGE, &options) != DIST_OK);
    CHECK_MESSAGE("did not complete within");
    CHECK_MESSAGE("may still use the buffers");
    if (is_on_host) {
        CHECK_MESSAGE(name);
    }
}

/* With the stub of UCC: no rank enters the operation, and the error says it. */
static void call_fails_with(const char *text)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    options.timeout_ms = 1000;
    /* Rank 0 has the store, and must not end before the others have joined. */
    messages_match_by_tag();
    CHECK(sum(dist_world(), 1000, &options) != DIST_OK);
    CHECK_MESSAGE(text);
    /* The end of this process would be an error of the other rank. */
    sleep(1);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "works";
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    dist_status_t status;
    options.backend = argc > 3 ? argv[3] : "ucc";
    options.timeout_ms = 1000 * TIME_LIMIT_S;
    options.connect_timeout_ms = 1000 * TIME_LIMIT_S;
    status = dist_init(&options);
    if (strcmp(mode, "no_group") == 0) {
        CHECK(status != DIST_OK);
        CHECK_MESSAGE(argv[2]);
        return check_report();
    }
    REQUIRE(CHECK_STATUS(status, DIST_OK));
    rank = dist_get_rank(dist_world());
    size = dist_get_world_size(dist_world());
    if (strcmp(mode, "works") == 0) {
        works();
    } else if (strcmp(mode, "stub") == 0) {
        collectives_return_the_sum(dist_world(), size);
        subgroups_run_collectives();
        CHECK_STATUS(dist_finalize(), DIST_OK);
    } else if (strcmp(mode, "late") == 0) {
        late_rank_is_named(argc < 3);
    } else if (strcmp(mode, "refused") == 0) {
        call_fails_with(argv[2]);
    } else {
        failure_names_the_last_rank(mode);
    }
    return check_report();
}
