/*
 * Completion events: the descriptor of a group in a real epoll, over each transport; callbacks
 * that are withdrawn, stopped as a whole, and called before dist_finalize lets the world go.
 */
#define _POSIX_C_SOURCE 200809L

#include "check.h"
#include "nap.h"

#include <sched.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define RANKS 2
#define ROUNDS 30
#define RACES 500

struct rank {
    dist_store_t *store;
    dist_group_t *group;
    const char *transport;
    int rank;
    int epoll;
};

/* The turn of both ranks. */
static int turn;

static void await_turn(int number)
{
    time_t start = time(NULL);
    while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) < number) {
        REQUIRE(time(NULL) - start < LIMIT_MS / 1000);
        sched_yield();
    }
}

static void finish_turn(void)
{
    __atomic_add_fetch(&turn, 1, __ATOMIC_ACQ_REL);
}

static int is_readable(const struct rank *me, int timeout_ms)
{
    struct epoll_event event;
    return epoll_wait(me->epoll, &event, 1, timeout_ms) == 1;
}

/* Sleeps in the kernel until the group has one more completed work, and takes it, without any
 * other library call. */
static void take_completed(const struct rank *me, dist_work_t *expected)
{
    dist_work_t *taken[2] = { NULL, NULL };
    int32_t done = 0;
    REQUIRE(is_readable(me, LIMIT_MS));
    CHECK(dist_group_take_done(me->group, taken, 2) == 1);
    CHECK(taken[0] == expected && taken[1] == NULL);
    CHECK(!is_readable(me, 0));
    CHECK(dist_group_take_done(me->group, taken, 2) == 0);
    CHECK_OK(dist_work_test(expected, &done));
    CHECK(done == 1);
    CHECK_OK(dist_work_release(expected));
}

/* Rank 0 sleeps in epoll; rank 1 sends and enters the barrier later. */
static void events_wake_epoll(const struct rank *me)
{
    static int value[RANKS];
    int tag = 3;
    int round;
    dist_work_t *work = NULL;
    for (round = 0; round < ROUNDS; round++) {
        if (me->rank == 1) {
            await_turn(round + 1);
            /* In every tenth round the pause is long enough for the other rank to sleep. */
            nap_ms(round % 10 == 0 ? 30 : 0);
            REQUIRE_OK(dist_send(me->group, &value[1], 1, DIST_I32, 0, tag, NULL, NULL));
            nap_ms(round % 10 == 5 ? 30 : 0);
            REQUIRE_OK(dist_barrier(me->group, NULL, NULL));
            continue;
        }
        REQUIRE_OK(dist_recv(me->group, &value[0], 1, DIST_I32, 1, tag, NULL, NULL, &work));
        finish_turn();
        take_completed(me, work);
        REQUIRE_OK(dist_barrier(me->group, NULL, &work));
        take_completed(me, work);
    }
}

/* A large message needs progress on both sides repeatedly. */
static void large_message_needs_repeated_progress(const struct rank *me)
{
    enum { COUNT = 4 * 1024 * 1024 };
    char *bytes = calloc(COUNT, 1);
    dist_work_t *work = NULL;
    REQUIRE(bytes != NULL);
    if (me->rank == 0) {
        REQUIRE_OK(dist_recv(me->group, bytes, COUNT, DIST_U8, 1, 9, NULL, NULL, &work));
    } else {
        memset(bytes, 7, COUNT);
        REQUIRE_OK(dist_send(me->group, bytes, COUNT, DIST_U8, 0, 9, NULL, &work));
    }
    take_completed(me, work);
    CHECK(bytes[0] == 7 && bytes[COUNT - 1] == 7);
    free(bytes);
}

static void watch_events(struct rank *me)
{
    struct epoll_event event;
    int fd = dist_group_fd(me->group);
    REQUIRE(fd > 2);
    CHECK(dist_group_fd(me->group) == fd);
    memset(&event, 0, sizeof(event));
    event.events = EPOLLIN;
    me->epoll = epoll_create1(EPOLL_CLOEXEC);
    REQUIRE(me->epoll >= 0);
    REQUIRE(epoll_ctl(me->epoll, EPOLL_CTL_ADD, fd, &event) == 0);
}

static void *run_over_transport(void *argument)
{
    struct rank *me = argument;
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    options.store = me->store;
    options.name = me->transport;
    options.fields = DIST_FIELD_RANK;
    options.rank = me->rank;
    options.world_size = RANKS;
    options.connect_timeout_ms = LIMIT_MS;
    options.timeout_ms = LIMIT_MS;
    options.backend_options = me->transport;
    REQUIRE_OK(dist_group_create(&options, &me->group));
    watch_events(me);
    events_wake_epoll(me);
    large_message_needs_repeated_progress(me);
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
    CHECK(close(me->epoll) == 0);
    CHECK_OK(dist_group_release(me->group));
    return NULL;
}

static void run_in_epoll(const char *transport)
{
    struct rank ranks[RANKS];
    pthread_t threads[RANKS];
    dist_store_t *store = new_store();
    int r;
    turn = 0;
    for (r = 0; r < RANKS; r++) {
        ranks[r].store = store;
        ranks[r].transport = transport;
        ranks[r].rank = r;
        REQUIRE(pthread_create(&threads[r], NULL, run_over_transport, &ranks[r]) == 0);
    }
    for (r = 0; r < RANKS; r++) {
        REQUIRE(pthread_join(threads[r], NULL) == 0);
    }
    CHECK_OK(dist_store_release(store));
}

static dist_work_t *completed_barrier(dist_group_t *group)
{
    dist_work_t *work = NULL;
    REQUIRE_OK(dist_barrier(group, NULL, &work));
    REQUIRE_OK(dist_work_wait(work, 0));
    return work;
}

/* Tests which works a group of one rank lists. */
static void completed_works_are_listed(void)
{
    struct rank me;
    dist_work_t *works[4];
    dist_work_t *taken[4];
    dist_group_t *other = NULL;
    dist_store_t *store = new_store();
    int value = 1;
    int copy = dup(0);
    REQUIRE_OK(join_group(store, "alone", 0, 1, &me.group));
    REQUIRE_OK(join_group(store, "other", 0, 1, &other));
    CHECK(dist_group_take_done(me.group, taken, 4) == 0);
    /* The works complete before the first call for the descriptor, whose number is above the
     * standard streams. */
    works[0] = completed_barrier(me.group);
    works[1] = completed_barrier(other);
    REQUIRE(close(0) == 0);
    CHECK(dist_group_fd(me.group) > 2);
    REQUIRE(dup2(copy, 0) == 0 && close(copy) == 0);
    watch_events(&me);
    take_completed(&me, works[0]);
    CHECK_OK(dist_work_release(works[1]));
    /* The works are listed in completion order, as many as fit. Works without a handle, or with
     * a released one, are not listed. */
    works[0] = completed_barrier(me.group);
    works[1] = completed_barrier(me.group);
    works[2] = completed_barrier(me.group);
    CHECK_OK(dist_barrier(me.group, NULL, NULL));
    REQUIRE(is_readable(&me, LIMIT_MS));
    CHECK_OK(dist_work_release(works[1]));
    while (dist_group_take_done(me.group, taken, 1) == 0) {
        sched_yield();
    }
    CHECK(taken[0] == works[0]);
    REQUIRE(is_readable(&me, LIMIT_MS));
    CHECK(dist_group_take_done(me.group, NULL, 0) == 0);
    CHECK(dist_group_take_done(me.group, taken, 4) == 1);
    CHECK(taken[0] == works[2] && !is_readable(&me, 0));
    CHECK_OK(dist_work_release(works[0]));
    CHECK_OK(dist_work_release(works[2]));
    works[0] = completed_barrier(me.group);
    REQUIRE(is_readable(&me, LIMIT_MS));
    CHECK_OK(dist_work_release(works[0]));
    CHECK(!is_readable(&me, 0));
    /* The work of a batch is listed if all its calls are on the group. */
    REQUIRE_OK(dist_batch_begin(NULL, 0));
    REQUIRE_OK(dist_barrier(me.group, NULL, NULL));
    REQUIRE_OK(dist_send(me.group, &value, 1, DIST_I32, 0, 1, NULL, NULL));
    REQUIRE_OK(dist_recv(me.group, &value, 1, DIST_I32, 0, 1, NULL, NULL, NULL));
    REQUIRE_OK(dist_batch_end(&works[0]));
    take_completed(&me, works[0]);
    REQUIRE_OK(dist_batch_begin(NULL, 0));
    REQUIRE_OK(dist_barrier(other, NULL, NULL));
    REQUIRE_OK(dist_barrier(me.group, NULL, &works[1]));
    REQUIRE_OK(dist_batch_end(&works[0]));
    take_completed(&me, works[1]);
    CHECK_OK(dist_work_wait(works[0], 0));
    CHECK(!is_readable(&me, 20));
    CHECK_OK(dist_work_release(works[0]));
    CHECK(dist_group_take_done(me.group, NULL, 1) == 0);
    CHECK_MESSAGE("out");
    CHECK(dist_group_fd((dist_group_t *)&me) == -1);
    CHECK(close(me.epoll) == 0);
    CHECK_OK(dist_group_release(me.group));
    CHECK_OK(dist_group_release(other));
    CHECK_OK(dist_store_release(store));
}

/* The records of the callbacks. */
static struct {
    int n_calls;
    int gate;
    int is_started;
    int n_without_world;
    dist_status_t status;
} callback_log;

static int count_calls(void)
{
    return __atomic_load_n(&callback_log.n_calls, __ATOMIC_ACQUIRE);
}

static void wait_for_calls(int expected)
{
    time_t start = time(NULL);
    while (count_calls() < expected) {
        REQUIRE(time(NULL) - start < LIMIT_MS / 1000);
        sched_yield();
    }
}

static void record_call(dist_status_t status, const char *message, void *user)
{
    (void)message;
    (void)user;
    callback_log.status = status;
    __atomic_add_fetch(&callback_log.n_calls, 1, __ATOMIC_ACQ_REL);
}

/* Blocks the callback thread until the gate opens. */
static void wait_at_gate(dist_status_t status, const char *message, void *user)
{
    CHECK_REFUSED(dist_callbacks_stop(0), DIST_ERR_INVALID_ARGUMENT, "callback");
    __atomic_store_n(&callback_log.is_started, 1, __ATOMIC_RELEASE);
    while (!__atomic_load_n(&callback_log.gate, __ATOMIC_ACQUIRE)) {
        sched_yield();
    }
    record_call(status, message, user);
}

static dist_work_t *pending_receive(dist_group_t *group)
{
    static int value;
    dist_work_t *work = NULL;
    REQUIRE_OK(dist_recv(group, &value, 1, DIST_I32, 0, 1, NULL, NULL, &work));
    return work;
}

static void send_message(dist_group_t *group)
{
    static int value = 5;
    REQUIRE_OK(dist_send(group, &value, 1, DIST_I32, 0, 1, NULL, NULL));
}

/* Keeps the callback thread busy until the gate opens. */
static dist_work_t *keep_busy(dist_group_t *group)
{
    dist_work_t *work = completed_barrier(group);
    callback_log.gate = 0;
    callback_log.is_started = 0;
    REQUIRE_OK(dist_work_on_complete(work, wait_at_gate, NULL));
    while (!__atomic_load_n(&callback_log.is_started, __ATOMIC_ACQUIRE)) {
        sched_yield();
    }
    return work;
}

static void *enter_barrier(void *argument)
{
    send_message(argument);
    return NULL;
}

/* A callback is either called or withdrawn. */
static void callback_is_called_or_withdrawn(dist_group_t *group)
{
    dist_work_t *work = pending_receive(group);
    dist_work_t *busy;
    pthread_t thread;
    int x = 0;
    int round;
    callback_log.n_calls = 0;
    CHECK_OK(dist_work_on_complete(work, record_call, &x));
    CHECK_OK(dist_work_on_complete(work, record_call, NULL));
    CHECK_OK(dist_work_on_complete(work, record_call, &x));
    CHECK_OK(dist_work_remove_callback(work, record_call, &x));
    CHECK_STATUS(dist_work_remove_callback(work, wait_at_gate, &x), DIST_ERR_NOT_FOUND);
    CHECK_REFUSED(dist_work_remove_callback(work, NULL, &x), DIST_ERR_INVALID_ARGUMENT, "function");
    send_message(group);
    CHECK_OK(dist_work_wait(work, 0));
    wait_for_calls(2);
    CHECK_REFUSED(dist_work_remove_callback(work, record_call, NULL), DIST_ERR_NOT_FOUND, "no such callback");
    /* A callback of a completed work can be withdrawn before it runs; a running one cannot. */
    busy = keep_busy(group);
    CHECK_OK(dist_work_on_complete(work, record_call, &x));
    CHECK_STATUS(dist_work_remove_callback(busy, wait_at_gate, NULL), DIST_ERR_NOT_FOUND);
    CHECK_OK(dist_work_remove_callback(work, record_call, &x));
    CHECK_STATUS(dist_work_remove_callback(work, record_call, &x), DIST_ERR_NOT_FOUND);
    __atomic_store_n(&callback_log.gate, 1, __ATOMIC_RELEASE);
    wait_for_calls(3);
    CHECK_OK(dist_work_release(work));
    CHECK_OK(dist_work_release(busy));
    CHECK_STATUS(dist_work_remove_callback(work, record_call, &x), DIST_ERR_INVALID_HANDLE);
    for (round = 0; round < RACES; round++) {
        dist_status_t status;
        callback_log.n_calls = 0;
        work = pending_receive(group);
        REQUIRE_OK(dist_work_on_complete(work, record_call, &x));
        REQUIRE(pthread_create(&thread, NULL, enter_barrier, group) == 0);
        if (round % 2 == 0) {
            sched_yield();
        } else {
            CHECK_OK(dist_work_wait(work, 0));
        }
        status = dist_work_remove_callback(work, record_call, &x);
        REQUIRE(pthread_join(thread, NULL) == 0);
        CHECK_OK(dist_work_wait(work, 0));
        if (status == DIST_OK) {
            nap_ms(round % 50 == 0 ? 5 : 0);
            CHECK(count_calls() == 0);
        } else {
            CHECK(status == DIST_ERR_NOT_FOUND);
            wait_for_calls(1);
        }
        CHECK_OK(dist_work_release(work));
    }
}

/* Stopping calls the callbacks of done works, drops those of pending works, and waits for a
 * running one. */
static void stop_drops_pending_callbacks(dist_group_t *group)
{
    dist_work_t *work = pending_receive(group);
    dist_work_t *busy = keep_busy(group);
    dist_work_t *done = completed_barrier(group);
    callback_log.n_calls = 0;
    CHECK_OK(dist_work_on_complete(done, record_call, NULL));
    CHECK_OK(dist_work_on_complete(work, record_call, NULL));
    CHECK_REFUSED(dist_callbacks_stop(-5), DIST_ERR_INVALID_ARGUMENT, "timeout_ms");
    __atomic_store_n(&callback_log.gate, 1, __ATOMIC_RELEASE);
    CHECK_OK(dist_callbacks_stop(0));
    CHECK(count_calls() == 2);
    CHECK_REFUSED(dist_work_on_complete(done, record_call, NULL), DIST_ERR_NOT_INITIALIZED, "dist_callbacks_start");
    send_message(group);
    CHECK_OK(dist_work_wait(work, 0));
    CHECK_OK(dist_callbacks_stop(DIST_NO_WAIT));
    CHECK_OK(dist_callbacks_start());
    CHECK_OK(dist_work_on_complete(done, record_call, NULL));
    wait_for_calls(3);
    CHECK_OK(dist_work_release(busy));
    /* The call waits for a running callback, and drops the next one at the deadline. */
    busy = keep_busy(group);
    callback_log.n_calls = 0;
    CHECK_OK(dist_work_on_complete(done, record_call, NULL));
    CHECK_STATUS(dist_callbacks_stop(20), DIST_IN_PROGRESS);
    CHECK_STATUS(dist_callbacks_stop(DIST_NO_WAIT), DIST_IN_PROGRESS);
    CHECK_STATUS(dist_work_remove_callback(done, record_call, NULL), DIST_ERR_NOT_FOUND);
    __atomic_store_n(&callback_log.gate, 1, __ATOMIC_RELEASE);
    CHECK_OK(dist_callbacks_stop(DIST_WAIT_FOREVER));
    CHECK(count_calls() == 1);
    CHECK_OK(dist_callbacks_start());
    CHECK_OK(dist_callbacks_start());
    CHECK_OK(dist_work_release(work));
    CHECK_OK(dist_work_release(busy));
    CHECK_OK(dist_work_release(done));
}

/* Checks that the world group exists, and issues further works. */
static void check_world_in_callback(dist_status_t status, const char *message, void *user)
{
    int *n_left = user;
    dist_work_t *work = NULL;
    nap_ms(5);
    if (dist_world() == NULL || !dist_is_initialized() || dist_get_rank(dist_world()) != 0) {
        __atomic_store_n(&callback_log.n_without_world, 1, __ATOMIC_RELEASE);
    }
    if (*n_left > 0) {
        *n_left -= 1;
        if (dist_barrier(dist_world(), NULL, &work) == DIST_OK) {
            CHECK_OK(dist_work_on_complete(work, check_world_in_callback, user));
            CHECK_OK(dist_work_release(work));
        }
    }
    record_call(status, message, user);
}

/* The world group exists for the callbacks of all its works; some callbacks issue further works. */
static void world_outlives_its_callbacks(void)
{
    int none = 0;
    int n_works = 20;
    int i;
    dist_work_t *work = NULL;
    callback_log.n_calls = 0;
    start_world();
    for (i = 0; i < 20; i++) {
        REQUIRE_OK(dist_barrier(dist_world(), NULL, &work));
        CHECK_OK(dist_work_on_complete(work, check_world_in_callback, &none));
        CHECK_OK(dist_work_release(work));
    }
    REQUIRE_OK(dist_barrier(dist_world(), NULL, &work));
    CHECK_OK(dist_work_on_complete(work, check_world_in_callback, &n_works));
    CHECK_OK(dist_work_release(work));
    CHECK_OK(dist_finalize());
    CHECK(count_calls() == 41 && !callback_log.n_without_world);
    CHECK(dist_world() == NULL && !dist_is_initialized());
    /* An operation that never completes is aborted first. */
    callback_log.n_calls = 0;
    start_world();
    work = pending_receive(dist_world());
    CHECK_OK(dist_work_on_complete(work, check_world_in_callback, &none));
    CHECK_OK(dist_finalize());
    CHECK(count_calls() == 1 && !callback_log.n_without_world && callback_log.status == DIST_ERR_ABORTED);
    CHECK_STATUS(dist_work_wait(work, DIST_NO_WAIT), DIST_ERR_ABORTED);
    CHECK_OK(dist_work_release(work));
    CHECK_STATUS(dist_finalize(), DIST_ERR_NOT_INITIALIZED);
}

/* A callback that does not return does not block the end of the world group; later callbacks are
 * dropped. */
static void stuck_callback_does_not_block_the_end(void)
{
    dist_work_t *busy;
    dist_work_t *work;
    int none = 0;
    callback_log.n_calls = 0;
    start_world();
    busy = keep_busy(dist_world());
    work = completed_barrier(dist_world());
    CHECK_OK(dist_work_on_complete(work, check_world_in_callback, &none));
    CHECK_OK(dist_finalize());
    __atomic_store_n(&callback_log.gate, 1, __ATOMIC_RELEASE);
    wait_for_calls(1);
    CHECK_OK(dist_callbacks_stop(0));
    CHECK(count_calls() == 1 && !callback_log.n_without_world);
    CHECK_OK(dist_callbacks_start());
    CHECK_OK(dist_work_release(busy));
    CHECK_OK(dist_work_release(work));
}

int main(void)
{
    dist_group_t *group = NULL;
    dist_store_t *store = new_store();
    run_in_epoll("transport=inproc");
    run_in_epoll("transport=shm");
    run_in_epoll("transport=tcp");
    completed_works_are_listed();
    REQUIRE_OK(join_group(store, "callbacks", 0, 1, &group));
    callback_is_called_or_withdrawn(group);
    stop_drops_pending_callbacks(group);
    CHECK_OK(dist_group_release(group));
    CHECK_OK(dist_store_release(store));
    world_outlives_its_callbacks();
    stuck_callback_does_not_block_the_end();
    return check_report();
}
