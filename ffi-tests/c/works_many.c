/*
 * Waiting for several works at once; the time of issue of a work, the number of collectives of a
 * group, and the rank that an error names.
 */
#define _POSIX_C_SOURCE 200809L

#include "check.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#define RANKS 2
#define N_WORKS 64

struct rank {
    dist_store_t *store;
    dist_group_t *first;
    dist_group_t *second;
    int rank;
};

static int gates[8];

static void open_gate(int gate)
{
    __atomic_store_n(&gates[gate], 1, __ATOMIC_RELEASE);
}

static void pass_gate(int gate)
{
    time_t start = time(NULL);
    while (!__atomic_load_n(&gates[gate], __ATOMIC_ACQUIRE)) {
        REQUIRE(time(NULL) - start < LIMIT_MS / 1000);
        sched_yield();
    }
}

static dist_work_t *start_barrier(dist_group_t *group)
{
    dist_work_t *work = NULL;
    REQUIRE_OK(dist_barrier(group, NULL, &work));
    return work;
}

static dist_work_t *start_receive(dist_group_t *group, int *buffer, int peer, int tag, int timeout_ms)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    dist_work_t *work = NULL;
    options.timeout_ms = timeout_ms;
    REQUIRE_OK(dist_recv(group, buffer, 1, DIST_I32, peer, tag, NULL, &options, &work));
    return work;
}

static void release_all(dist_work_t **works, size_t n)
{
    size_t i;
    for (i = 0; i < n; i++) {
        CHECK_OK(dist_work_release(works[i]));
    }
}

/* Lists without works, and lists with invalid handles. */
static void empty_and_invalid_lists(const struct rank *me)
{
    dist_work_t *works[3] = { NULL, NULL, NULL };
    size_t index = 77;
    CHECK_OK(dist_work_wait_all(NULL, 0, 0));
    CHECK_OK(dist_work_wait_all(works, 3, 0));
    CHECK_OK(dist_work_wait_any(works, 3, 0, &index));
    CHECK(index == 3);
    CHECK_OK(dist_work_test_any(NULL, 0, &index));
    CHECK(index == 0);
    works[0] = start_barrier(me->first);
    works[2] = start_barrier(me->first);
    CHECK_OK(dist_work_wait_all(works, 3, 0));
    CHECK_OK(dist_work_release(works[2]));
    CHECK_REFUSED(dist_work_wait_all(works, 3, 0), DIST_ERR_INVALID_HANDLE, "works[2]");
    CHECK_REFUSED(dist_work_wait_any(works, 3, 0, &index), DIST_ERR_INVALID_HANDLE, "works[2]");
    CHECK(index == 3);
    CHECK_REFUSED(dist_work_test_any(works, 3, &index), DIST_ERR_INVALID_HANDLE, "works[2]");
    works[2] = NULL;
    CHECK_REFUSED(dist_work_wait_any(works, 3, -3, &index), DIST_ERR_INVALID_ARGUMENT, "timeout_ms");
    CHECK_REFUSED(dist_work_wait_any(works, 3, 0, NULL), DIST_ERR_INVALID_ARGUMENT, "index");
    CHECK_REFUSED(dist_work_wait_all(NULL, 3, 0), DIST_ERR_INVALID_ARGUMENT, "works");
    CHECK_OK(dist_work_wait_any(works, 3, 0, &index));
    CHECK(index == 0);
    CHECK_OK(dist_work_release(works[0]));
}

/* Every work is found once, for all kinds and groups; rank 1 determines the order of completion. */
static void wait_any_finds_each_work_once(const struct rank *me, int kinds, int gate)
{
    static int sent[RANKS] = { 41, 42 };
    static int actual[RANKS][N_WORKS];
    dist_work_t *works[N_WORKS];
    int found[N_WORKS] = { 0 };
    size_t n = 0;
    size_t index;
    size_t round;
    int i;
    int peer = 1 - me->rank;
    if (me->rank == 1) {
        pass_gate(gate);
    }
    for (i = 0; i < 8; i++) {
        if (kinds & 1) {
            works[n++] = start_barrier(me->first);
        }
        if (kinds & 2) {
            works[n] = start_receive(me->first, &actual[me->rank][n], peer, i, LIMIT_MS);
            n++;
        }
        if (kinds & 4) {
            works[n++] = start_barrier(me->second);
        }
    }
    if (me->rank == 0) {
        CHECK_STATUS(dist_work_test_any(works, n, &index), DIST_IN_PROGRESS);
        CHECK(index == n);
        CHECK_STATUS(dist_work_wait_any(works, n, DIST_NO_WAIT, &index), DIST_IN_PROGRESS);
        CHECK_STATUS(dist_work_wait_any(works, n, 20, &index), DIST_IN_PROGRESS);
        CHECK_STATUS(dist_work_wait_all(works, n, 20), DIST_IN_PROGRESS);
        open_gate(gate);
    }
    for (i = 7; i >= 0 && (kinds & 2); i--) {
        REQUIRE_OK(dist_send(me->first, &sent[me->rank], 1, DIST_I32, peer, i, NULL, NULL));
    }
    for (round = 0; round < n; round++) {
        REQUIRE_OK(dist_work_wait_any(works, n, 0, &index));
        REQUIRE(index < n);
        CHECK(!found[index]);
        found[index] = 1;
        CHECK_OK(dist_work_release(works[index]));
        works[index] = NULL;
    }
    CHECK_OK(dist_work_wait_any(works, n, 0, &index));
    CHECK(index == n);
}

/* Works of all kinds and of two groups in one list. */
static void wait_all_accepts_all_kinds(const struct rank *me)
{
    static int sent[RANKS] = { 1, 2 };
    static int actual[RANKS];
    static float x[RANKS];
    dist_work_t *works[5] = { NULL, NULL, NULL, NULL, NULL };
    size_t index;
    int peer = 1 - me->rank;
    works[0] = start_receive(me->first, &actual[me->rank], peer, 5, LIMIT_MS);
    works[2] = start_barrier(me->second);
    REQUIRE_OK(dist_send(me->first, &sent[me->rank], 1, DIST_I32, peer, 5, NULL, &works[3]));
    REQUIRE_OK(dist_batch_begin(NULL, 0));
    REQUIRE_OK(dist_all_reduce(me->first, &x[me->rank], &x[me->rank], 1, DIST_F32, DIST_SUM, NULL, NULL));
    REQUIRE_OK(dist_barrier(me->second, NULL, &works[1]));
    CHECK_REFUSED(dist_work_wait_any(&works[1], 1, 0, &index), DIST_ERR_INVALID_ARGUMENT, "dist_batch_end");
    CHECK_REFUSED(dist_work_wait_all(&works[1], 1, 0), DIST_ERR_INVALID_ARGUMENT, "dist_batch_end");
    REQUIRE_OK(dist_batch_end(&works[4]));
    CHECK_OK(dist_work_wait_all(works, 5, 0));
    CHECK_OK(dist_work_wait_all(works, 5, DIST_NO_WAIT));
    CHECK(actual[me->rank] == sent[peer]);
    release_all(works, 5);
}

/* The operations' own deadlines end the wait. */
static void operation_deadlines_end_the_wait(const struct rank *me)
{
    static int actual[RANKS][3];
    dist_work_t *works[3];
    size_t index;
    int *buffer = actual[me->rank];
    int peer = 1 - me->rank;
    CHECK_OK(dist_barrier(me->first, NULL, NULL));
    works[0] = start_receive(me->first, &buffer[0], peer, 90, 120);
    works[1] = start_receive(me->first, &buffer[1], peer, 91, 60);
    works[2] = start_receive(me->second, &buffer[2], peer, 92, 90);
    CHECK_REFUSED(dist_work_wait_any(works, 2, 0, &index), DIST_ERR_TIMEOUT, "tag 91");
    CHECK(index == 1);
    CHECK_REFUSED(dist_work_wait_all(works, 3, 0), DIST_ERR_TIMEOUT, "works[0]");
    CHECK_MESSAGE("tag 90");
    CHECK_REFUSED(dist_work_test_any(works, 3, &index), DIST_ERR_TIMEOUT, "works[0]");
    CHECK(index == 0);
    CHECK_REFUSED(dist_work_wait_all(&works[2], 1, 0), DIST_ERR_TIMEOUT, "tag 92");
    release_all(works, 3);
}

/* The time at which a work was issued, and the number of a group's collectives. */
static void issue_time_and_count_are_reported(const struct rank *me)
{
    struct timespec issue_time;
    dist_work_t *work;
    uint64_t before = dist_group_sequence(me->first);
    uint64_t start;
    int64_t difference_ns;
    REQUIRE(clock_gettime(CLOCK_REALTIME, &issue_time) == 0);
    work = start_barrier(me->first);
    CHECK(dist_group_sequence(me->first) == before + 1);
    start = dist_work_start_ns(work);
    difference_ns = (int64_t)start - ((int64_t)issue_time.tv_sec * 1000000000 + issue_time.tv_nsec);
    CHECK(difference_ns > -1000000000 && difference_ns < 2000000000);
    CHECK_OK(dist_work_wait(work, 0));
    CHECK(dist_work_start_ns(work) == start);
    CHECK(dist_work_sequence(work) == before + 1);
    CHECK_OK(dist_work_release(work));
    CHECK(dist_work_start_ns(work) == 0);
    CHECK(dist_group_sequence((dist_group_t *)&issue_time) == 0);
}

/* Inside a callback, polls are allowed and waits are refused. */
static struct {
    dist_work_t *pending;
    int done;
} callback_state;

static void wait_in_callback(dist_status_t status, const char *message, void *user)
{
    size_t index;
    (void)message;
    (void)user;
    CHECK_OK(status);
    CHECK_STATUS(dist_work_test_any(&callback_state.pending, 1, &index), DIST_IN_PROGRESS);
    CHECK_STATUS(dist_work_wait_any(&callback_state.pending, 1, DIST_NO_WAIT, &index), DIST_IN_PROGRESS);
    CHECK_REFUSED(dist_work_wait_any(&callback_state.pending, 1, 0, &index), DIST_ERR_INVALID_ARGUMENT, "callback");
    CHECK_REFUSED(dist_work_wait_all(&callback_state.pending, 1, 0), DIST_ERR_INVALID_ARGUMENT, "callback");
    __atomic_store_n(&callback_state.done, 1, __ATOMIC_RELEASE);
}

static void check_callbacks(const struct rank *me)
{
    static int actual;
    static int sent = 3;
    dist_work_t *work;
    time_t start = time(NULL);
    if (me->rank == 0) {
        callback_state.pending = start_receive(me->first, &actual, 1, 70, LIMIT_MS);
        work = start_barrier(me->first);
        CHECK_OK(dist_work_on_complete(work, wait_in_callback, NULL));
        CHECK_OK(dist_work_wait(work, 0));
        while (!__atomic_load_n(&callback_state.done, __ATOMIC_ACQUIRE)) {
            REQUIRE(time(NULL) - start < LIMIT_MS / 1000);
            sched_yield();
        }
        CHECK_OK(dist_work_release(work));
        open_gate(6);
        CHECK_OK(dist_work_wait(callback_state.pending, 0));
        CHECK_OK(dist_work_release(callback_state.pending));
    } else {
        CHECK_OK(dist_barrier(me->first, NULL, NULL));
        pass_gate(6);
        CHECK_OK(dist_send(me->first, &sent, 1, DIST_I32, 0, 70, NULL, NULL));
    }
}

static void check_culprit(const dist_culprit_t *culprit, int rank, int kind)
{
    CHECK(culprit->struct_size == sizeof(*culprit));
    CHECK(culprit->rank == rank && culprit->kind == kind);
    CHECK(culprit->pid == (rank < 0 ? 0 : (int64_t)getpid()));
    CHECK((culprit->host[0] == '\0') == (rank < 0));
    CHECK(memchr(culprit->host, '\0', sizeof(culprit->host)) != NULL);
}

/* The fields name the rank that aborts a group; the first error in the list is returned after
 * all works are done. */
static void failure_names_the_rank(const struct rank *me)
{
    dist_culprit_t culprit = DIST_CULPRIT_INIT;
    dist_work_t *works[3];
    dist_work_t *good_work;
    size_t index;
    good_work = start_barrier(me->second);
    CHECK_OK(dist_work_wait(good_work, 0));
    CHECK_OK(dist_work_culprit(good_work, &culprit));
    check_culprit(&culprit, -1, DIST_CULPRIT_NONE);
    CHECK_OK(dist_group_culprit(me->first, &culprit));
    check_culprit(&culprit, -1, DIST_CULPRIT_NONE);
    if (me->rank == 1) {
        pass_gate(7);
        CHECK_OK(dist_group_abort(me->first, "enough of it"));
    } else {
        works[0] = good_work;
        works[1] = start_barrier(me->first);
        works[2] = start_barrier(me->first);
        CHECK_OK(dist_work_culprit(works[1], &culprit));
        check_culprit(&culprit, -1, DIST_CULPRIT_NONE);
        open_gate(7);
        CHECK_REFUSED(dist_work_wait_all(works, 3, 0), DIST_ERR_ABORTED, "works[1]");
        CHECK_MESSAGE("enough of it");
        CHECK_REFUSED(dist_work_wait_any(&works[1], 2, 0, &index), DIST_ERR_ABORTED, "works[0]");
        CHECK(index == 0);
        CHECK_OK(dist_work_culprit(works[2], &culprit));
        check_culprit(&culprit, 1, DIST_CULPRIT_ABORTED);
        release_all(&works[1], 2);
    }
    CHECK_OK(dist_group_culprit(me->first, &culprit));
    check_culprit(&culprit, 1, DIST_CULPRIT_ABORTED);
    CHECK_STATUS(dist_work_culprit((dist_work_t *)&culprit, &culprit), DIST_ERR_INVALID_HANDLE);
    check_culprit(&culprit, -1, DIST_CULPRIT_NONE);
    CHECK_REFUSED(dist_work_culprit(good_work, NULL), DIST_ERR_INVALID_ARGUMENT, "out");
    culprit.struct_size = 8;
    CHECK_REFUSED(dist_group_culprit(me->first, &culprit), DIST_ERR_INVALID_ARGUMENT, "struct_size");
    CHECK_OK(dist_work_release(good_work));
}

static void *run_all_checks(void *argument)
{
    struct rank *me = argument;
    REQUIRE_OK(join_group(me->store, "first", me->rank, RANKS, &me->first));
    REQUIRE_OK(join_group(me->store, "second", me->rank, RANKS, &me->second));
    empty_and_invalid_lists(me);
    wait_any_finds_each_work_once(me, 1, 0);
    wait_any_finds_each_work_once(me, 2, 1);
    wait_any_finds_each_work_once(me, 7, 2);
    wait_all_accepts_all_kinds(me);
    operation_deadlines_end_the_wait(me);
    issue_time_and_count_are_reported(me);
    check_callbacks(me);
    CHECK_OK(dist_barrier(me->second, NULL, NULL));
    failure_names_the_rank(me);
    CHECK_OK(dist_barrier(me->second, NULL, NULL));
    CHECK_OK(dist_group_release(me->first));
    CHECK_OK(dist_group_release(me->second));
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
        ranks[r].rank = r;
        REQUIRE(pthread_create(&threads[r], NULL, run_all_checks, &ranks[r]) == 0);
    }
    for (r = 0; r < RANKS; r++) {
        REQUIRE(pthread_join(threads[r], NULL) == 0);
    }
    CHECK_OK(dist_store_release(store));
    return check_report();
}
