/*
 * Tests of the back end "mpi" beyond collectives: messages, subgroups, works, deadlines, calls that
 * are in place on some ranks only, and each thread level of a program that initialises MPI.
 *
 *     mpirun -n N ./behaviour [own | multiple | serialized | funneled | late | differ | differ_detail | deadlock]
 *
 * "own" (the default): libdist initialises MPI. "late": as "own", and rank 0 does not call a
 * collective; the launcher then reports a failed job. "differ" and "differ_detail": as "own", and
 * the last rank calls a collective with another label. "deadlock": as "own", with two ranks that wait
 * for each other. With the other modes, this program
 * initialises MPI with that thread level.
 */
#include "check.h"

#include <mpi.h>
#include <unistd.h>

static int rank, size;

#define MAX_TAG 2147483647

static void messages_match_by_tag_and_sender(void)
{
    int32_t right = (rank + 1) % size, left = (rank + size - 1) % size;
    int32_t tags[] = { 0, 7, 268435455, 268435456, MAX_TAG - 1, MAX_TAG };
    dist_work_t *works[6];
    int64_t sent[6], received;
    int i;
    for (i = 0; i < 6; i++) {
        sent[i] = 1000 * rank + i;
        CHECK_STATUS(dist_send(dist_world(), &sent[i], 1, DIST_I64, right, tags[i], NULL, &works[i]), DIST_OK);
    }
    /* Receives in reverse order of sending; the last two match any tag, in order. */
    for (i = 3; i >= 0; i--) {
        dist_recv_status_t status = DIST_RECV_STATUS_INIT;
        CHECK_STATUS(dist_recv(dist_world(), &received, 1, DIST_I64, DIST_ANY_SOURCE, tags[i], &status, NULL, NULL),
                     DIST_OK);
        CHECK(received == 1000 * left + i && status.source == left && status.tag == tags[i]);
    }
    for (i = 4; i < 6; i++) {
        CHECK_STATUS(dist_recv(dist_world(), &received, 1, DIST_I64, left, DIST_ANY_TAG, NULL, NULL, NULL), DIST_OK);
        CHECK(received == 1000 * left + i);
    }
    for (i = 0; i < 6; i++) {
        CHECK_STATUS(dist_work_wait(works[i], DIST_WAIT_FOREVER), DIST_OK);
        dist_work_release(works[i]);
    }
}

static void receives_posted_before_sends_match(void)
{
    int32_t left = (rank + size - 1) % size, right = (rank + 1) % size;
    size_t n = 300000, i;
    float *out = calloc(n, sizeof(*out)), *in = calloc(n, sizeof(*in));
    dist_work_t *receive, *send;
    REQUIRE(out != NULL && in != NULL);
    for (i = 0; i < n; i++) {
        out[i] = (float)(i % 1000) + (float)rank;
    }
    CHECK_STATUS(dist_recv(dist_world(), in, n, DIST_F32, left, 5, NULL, NULL, &receive), DIST_OK);
    CHECK_STATUS(dist_barrier(dist_world(), NULL, NULL), DIST_OK);
    CHECK_STATUS(dist_send(dist_world(), out, n, DIST_F32, right, 5, NULL, &send), DIST_OK);
    CHECK_STATUS(dist_work_wait(receive, DIST_WAIT_FOREVER), DIST_OK);
    CHECK_STATUS(dist_work_wait(send, DIST_WAIT_FOREVER), DIST_OK);
    CHECK(in[0] == (float)left && in[n - 1] == (float)((n - 1) % 1000) + (float)left);
    dist_work_release(receive);
    dist_work_release(send);
    free(out);
    free(in);
}

static void too_long_message_remains_receivable(void)
{
    int32_t left = (rank + size - 1) % size, right = (rank + 1) % size;
    int32_t out[4] = { rank, 1, 2, 3 }, in[4] = { -1, -1, -1, -1 };
    dist_work_t *send;
    CHECK_STATUS(dist_send(dist_world(), out, 4, DIST_I32, right, 9, NULL, &send), DIST_OK);
    CHECK_STATUS(dist_recv(dist_world(), in, 3, DIST_I32, left, 9, NULL, NULL, NULL), DIST_ERR_MISMATCH);
    CHECK(in[0] == -1);
    CHECK_STATUS(dist_recv(dist_world(), in, 4, DIST_I32, left, 9, NULL, NULL, NULL), DIST_OK);
    CHECK(in[0] == left && in[3] == 3);
    CHECK_STATUS(dist_work_wait(send, DIST_WAIT_FOREVER), DIST_OK);
    dist_work_release(send);
}

static void unmatched_receive_is_cancelled(void)
{
    dist_call_options_t short_timeout = DIST_CALL_OPTIONS_INIT;
    int32_t left = (rank + size - 1) % size, right = (rank + 1) % size, in = -1, out = 40 + rank;
    dist_work_t *send;
    short_timeout.timeout_ms = 100;
    CHECK_STATUS(dist_recv(dist_world(), &in, 1, DIST_I32, left, 11, NULL, &short_timeout, NULL), DIST_ERR_TIMEOUT);
    CHECK_STATUS(dist_barrier(dist_world(), NULL, NULL), DIST_OK);
    CHECK_STATUS(dist_send(dist_world(), &out, 1, DIST_I32, right, 11, NULL, &send), DIST_OK);
    CHECK_STATUS(dist_recv(dist_world(), &in, 1, DIST_I32, left, 11, NULL, NULL, NULL), DIST_OK);
    CHECK(in == 40 + left);
    CHECK_STATUS(dist_work_wait(send, DIST_WAIT_FOREVER), DIST_OK);
    dist_work_release(send);
}

static void bytes_of_unknown_length_are_received(void)
{
    int32_t left = (rank + size - 1) % size, right = (rank + 1) % size;
    size_t n = 1000 * (size_t)rank + 3, received = 0;
    const void *data = NULL;
    char *out = malloc(n);
    dist_blob_t *in = NULL;
    dist_work_t *send;
    REQUIRE(out != NULL);
    memset(out, 'a' + rank, n);
    CHECK_STATUS(dist_send_bytes(dist_world(), out, n, right, 3, NULL, &send), DIST_OK);
    CHECK_STATUS(dist_recv_bytes(dist_world(), &in, 1 << 20, left, 3, NULL, NULL, NULL), DIST_OK);
    CHECK_STATUS(dist_blob_data(in, 0, &data, &received), DIST_OK);
    CHECK(received == 1000 * (size_t)left + 3);
    CHECK(((const char *)data)[0] == 'a' + left && ((const char *)data)[received - 1] == 'a' + left);
    CHECK_STATUS(dist_work_wait(send, DIST_WAIT_FOREVER), DIST_OK);
    dist_work_release(send);
    dist_blob_release(in);
    free(out);
}

static void subgroups_communicate(void)
{
    int round;
    for (round = 0; round < 3; round++) {
        dist_group_t *half = NULL;
        int32_t sum = rank, expected = 0, r;
        CHECK_STATUS(dist_group_split(dist_world(), rank % 2, -rank, NULL, &half), DIST_OK);
        CHECK_STATUS(dist_all_reduce(half, &sum, &sum, 1, DIST_I32, DIST_SUM, NULL, NULL), DIST_OK);
        for (r = rank % 2; r < size; r += 2) {
            expected += r;
        }
        CHECK(sum == expected);
        CHECK(dist_get_rank(half) == (size - 1 - rank) / 2 || size % 2 == 1);
        CHECK_STATUS(dist_group_release(half), DIST_OK);
    }
}

static void in_place_and_separate_buffers_may_mix(void)
{
    size_t n = 50000, i, wrong = 0;
    double *out = calloc(n, sizeof(*out)), *in = calloc(n, sizeof(*in));
    double *result = rank % 2 == 0 ? out : in;
    REQUIRE(out != NULL && in != NULL);
    for (i = 0; i < n; i++) {
        out[i] = (double)rank + (double)i;
    }
    CHECK_STATUS(dist_all_reduce(dist_world(), out, result, n, DIST_F64, DIST_SUM, NULL, NULL), DIST_OK);
    for (i = 0; i < n; i++) {
        wrong += result[i] != (double)(size * (size - 1) / 2) + (double)size * (double)i;
    }
    CHECK(wrong == 0);
    free(out);
    free(in);
}

/* Two small tensors share a bucket; the third is too long for it. */
static void lists_are_compared_and_transferred(void)
{
    static float small[2][100], large[100000];
    float *const data[3] = { small[0], small[1], large };
    static const char *const names[3] = { "a", "b", "c" };
    int64_t counts[3] = { 100, 100, 100000 };
    dist_tensor_t tensors[3] = { DIST_TENSOR_INIT, DIST_TENSOR_INIT, DIST_TENSOR_INIT };
    int i, j;
    for (i = 0; i < 3; i++) {
        tensors[i].name = names[i];
        tensors[i].data = data[i];
        tensors[i].dtype = DIST_F32;
        tensors[i].shape = &counts[i];
        tensors[i].n_shape = 1;
        for (j = 0; j < counts[i]; j++) {
            data[i][j] = (float)(rank + i);
        }
    }
    if (rank == size - 1) {
        counts[1] = 50;
    }
    if (size > 1) {
        CHECK_STATUS(dist_all_reduce_list(dist_world(), tensors, 3, DIST_SUM, NULL, NULL), DIST_ERR_MISMATCH);
        CHECK(strstr(dist_last_error(), "tensor 1 \"b\": the shapes differ: [50] on rank") != NULL);
    }
    counts[1] = 100;
    CHECK_STATUS(dist_all_reduce_list(dist_world(), tensors, 3, DIST_SUM, NULL, NULL), DIST_OK);
    for (i = 0; i < 3; i++) {
        CHECK(data[i][0] == (float)(size * (size - 1) / 2 + size * i) && data[i][counts[i] - 1] == data[i][0]);
        data[i][0] = (float)rank;
    }
    CHECK_STATUS(dist_broadcast_list(dist_world(), tensors, 3, size - 1, NULL, NULL), DIST_OK);
    CHECK(small[0][0] == (float)(size - 1) && small[1][0] == small[0][0] && large[0] == small[0][0]);
}

static void works_run_concurrently_with_messages(void)
{
    dist_work_t *works[8];
    int64_t values[8];
    int i;
    for (i = 0; i < 8; i++) {
        values[i] = rank + i;
        CHECK_STATUS(dist_all_reduce(dist_world(), &values[i], &values[i], 1, DIST_I64, DIST_SUM, NULL, &works[i]), DIST_OK);
    }
    messages_match_by_tag_and_sender();
    for (i = 0; i < 8; i++) {
        CHECK_STATUS(dist_work_wait(works[i], DIST_WAIT_FOREVER), DIST_OK);
        dist_work_release(works[i]);
        CHECK(values[i] == (int64_t)size * (size - 1) / 2 + (int64_t)size * i);
    }
}

static void monitored_barrier_completes(void)
{
    CHECK_STATUS(dist_monitored_barrier(dist_world(), DIST_WAIT_FOREVER, 1, NULL, NULL), DIST_OK);
}

/* A thread that did not initialise MPI is refused; the error names the remedy. */
static void *call_on_other_thread(void *refused)
{
    int32_t value = 1;
    int status = dist_send(dist_world(), &value, 1, DIST_I32, rank, 1, NULL, NULL);
    *(int *)refused = status != DIST_OK && strstr(dist_last_error(), "MPI_THREAD_SERIALIZED") != NULL;
    return NULL;
}

static void other_thread_is_refused(void)
{
    pthread_t thread;
    int refused = 0;
    REQUIRE(pthread_create(&thread, NULL, call_on_other_thread, &refused) == 0);
    pthread_join(thread, NULL);
    CHECK(refused);
}

/*
 * MPI cannot cancel a collective. The error reports that the buffers may still be used, so the test
 * does not reuse them.
 */
static void late_rank_times_out_the_collective(void)
{
    static int64_t value = 1, sum;
    dist_call_options_t short_timeout = DIST_CALL_OPTIONS_INIT;
    short_timeout.timeout_ms = 300;
    if (rank > 0) {
        CHECK_STATUS(dist_all_reduce(dist_world(), &value, &sum, 1, DIST_I64, DIST_SUM, &short_timeout, NULL),
                     DIST_ERR_TIMEOUT);
        CHECK_MESSAGE("may still use the buffers");
        CHECK_MESSAGE("MPI cannot cancel a collective");
    } else {
        int32_t in;
        /* The failure of the other ranks ends a wait of this rank. */
        CHECK_STATUS(dist_recv(dist_world(), &in, 1, DIST_I32, 1, 1, NULL, NULL, NULL), DIST_ERR_ABORTED);
    }
}

/*
 * MPI compares nothing, so dist_finalize finds the difference in the last call. With the debug level
 * DETAIL, the call itself finds it.
 */
static void difference_is_an_error_of_all_ranks(int has_detail)
{
    int64_t value = 1, sum = 0;
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    options.label = rank == size - 1 ? "other" : "label";
    CHECK_STATUS(dist_all_reduce(dist_world(), &value, &sum, 1, DIST_I64, DIST_SUM, &options, NULL),
                 has_detail ? DIST_ERR_MISMATCH : DIST_OK);
    CHECK_STATUS(dist_finalize(), has_detail ? DIST_OK : DIST_ERR_MISMATCH);
}

/*
 * The ranks use two groups in opposite orders. MPI cannot cancel the collectives, so the buffers are
 * not used again.
 */
static dist_group_t *new_group(void)
{
    dist_group_t *group = NULL;
    CHECK_STATUS(dist_group_new(dist_world(), NULL, 0, NULL, &group), DIST_OK);
    return group;
}

enum { LARGE = 4 << 20 };

static char large[LARGE], other[LARGE];

static dist_status_t send_large(dist_group_t *group, int32_t tag)
{
    return dist_send(group, large, LARGE, DIST_U8, 1 - rank, tag, NULL, NULL);
}

static dist_status_t receive_large(dist_group_t *group, int32_t tag)
{
    return dist_recv(group, other, LARGE, DIST_U8, 1 - rank, tag, NULL, NULL, NULL);
}

/* Each of two ranks receives before it sends. An earlier message of another tag waits. */
static void receives_of_both_ranks(dist_group_t *group)
{
    int64_t value = rank;
    CHECK_STATUS(dist_sendrecv(group, &large, 1, 1 - rank, 7, &other, 1, 1 - rank, 7, DIST_U8, NULL, NULL, NULL),
                 DIST_OK);
    CHECK_STATUS(dist_send(group, &value, 1, DIST_I64, 1 - rank, 8, NULL, NULL), DIST_OK);
    CHECK_STATUS(receive_large(group, 7), DIST_ERR_DEADLOCK);
    CHECK_MESSAGE("rank 0 waits for rank 1 in receive from rank 1, tag 7");
}

static void receive_from_any_rank(dist_group_t *group)
{
    int32_t from = rank == 0 ? DIST_ANY_SOURCE : 0;
    CHECK_STATUS(dist_recv(group, large, 1, DIST_U8, from, 7, NULL, NULL, NULL), DIST_ERR_DEADLOCK);
    CHECK_MESSAGE("rank 0 waits for rank 1 in receive from any rank, tag 7");
}

/* Each of two ranks sends much before it receives. */
static void sends_of_both_ranks(dist_group_t *group)
{
    CHECK_STATUS(dist_sendrecv(group, large, LARGE, 1 - rank, 7, other, LARGE, 1 - rank, 7, DIST_U8, NULL, NULL, NULL),
                 DIST_OK);
    CHECK_STATUS(send_large(group, 7), DIST_ERR_DEADLOCK);
    CHECK_MESSAGE("rank 0 waits for rank 1 in send to rank 1, tag 7");
}

static void collectives_in_opposite_orders(dist_group_t *group)
{
    static int64_t value = 1, sum;
    dist_group_t *groups[2] = { group, new_group() };
    CHECK_STATUS(dist_all_reduce(groups[rank % 2], &value, &sum, 1, DIST_I64, DIST_SUM, NULL, NULL), DIST_ERR_DEADLOCK);
    CHECK_MESSAGE("rank 0 waits for rank 1 in all_reduce #1 of group");
}

/* Waits that end are no deadlocks. */
static void late_messages_arrive(dist_group_t *group)
{
    if (rank == 1) {
        CHECK_STATUS(receive_large(group, 1), DIST_OK);
        sleep(2);
        CHECK_STATUS(send_large(group, 2), DIST_OK);
    } else {
        sleep(2);
        CHECK_STATUS(send_large(group, 1), DIST_OK);
        CHECK_STATUS(receive_large(group, 2), DIST_OK);
    }
    CHECK_STATUS(dist_barrier(group, NULL, NULL), DIST_OK);
}

static void deadlocks_are_reported(void)
{
    static void (*const bodies[])(dist_group_t *) = {
        late_messages_arrive, receives_of_both_ranks,         receive_from_any_rank,
        sends_of_both_ranks,  collectives_in_opposite_orders,
    };
    size_t i;
    for (i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        bodies[i](new_group());
    }
}

static int parse_thread_level(const char *mode)
{
    return strcmp(mode, "multiple") == 0     ? MPI_THREAD_MULTIPLE
           : strcmp(mode, "serialized") == 0 ? MPI_THREAD_SERIALIZED
                                             : MPI_THREAD_FUNNELED;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "own";
    int is_late = strcmp(mode, "late") == 0, is_deadlock = strcmp(mode, "deadlock") == 0;
    int is_different = strncmp(mode, "differ", 6) == 0;
    int has_detail = strcmp(mode, "differ_detail") == 0;
    int is_own = is_late || is_deadlock || is_different || strcmp(mode, "own") == 0, provided = 0;
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    if (!is_own && MPI_Init_thread(&argc, &argv, parse_thread_level(mode), &provided) != MPI_SUCCESS) {
        return 1;
    }
    /* A group compares each call if it was created with this level. */
    CHECK_STATUS(dist_set_debug_level(has_detail ? DIST_DEBUG_DETAIL : DIST_DEBUG_OFF), DIST_OK);
    options.backend = "mpi";
    options.timeout_ms = 60000;
    REQUIRE(CHECK_STATUS(dist_init(&options), DIST_OK));
    rank = dist_get_rank(dist_world());
    size = dist_get_world_size(dist_world());
    if (is_late) {
        late_rank_times_out_the_collective();
        return check_report();
    }
    if (is_deadlock) {
        deadlocks_are_reported();
        /* The launcher ends the other rank when this one ends. */
        sleep(1);
        return check_report();
    }
    if (is_different) {
        difference_is_an_error_of_all_ranks(has_detail);
        return check_report();
    }
    in_place_and_separate_buffers_may_mix();
    lists_are_compared_and_transferred();
    if (is_own || provided >= MPI_THREAD_SERIALIZED) {
        messages_match_by_tag_and_sender();
        receives_posted_before_sends_match();
        too_long_message_remains_receivable();
        unmatched_receive_is_cancelled();
        bytes_of_unknown_length_are_received();
        subgroups_communicate();
        works_run_concurrently_with_messages();
        monitored_barrier_completes();
    } else {
        other_thread_is_refused();
    }
    CHECK_STATUS(dist_barrier(dist_world(), NULL, NULL), DIST_OK);
    CHECK_STATUS(dist_finalize(), DIST_OK);
    if (!is_own) {
        MPI_Finalize();
    }
    return check_report();
}
