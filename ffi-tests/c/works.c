/*
 * Asynchronous calls between two ranks that are threads: works, their order, waits with limits,
 * callbacks and batches. Also tests works whose group fails, is released, or ends with
 * dist_finalize.
 */
#include "check.h"

#include <sched.h>
#include <time.h>

#define RANKS 2
#define COUNT 1000
#define LAYERS 200

struct rank {
    dist_store_t *store;
    dist_group_t *group;
    int rank;
};

/* The records of the callbacks. */
static struct {
    pthread_mutex_t lock;
    int n_calls;
    int is_in_order;
    int n_refused;
    int n_issued;
    dist_status_t status;
    char message[512];
} callback_log = { PTHREAD_MUTEX_INITIALIZER, 0, 1, 0, 0, 1, "" };

static void wait_for_calls(int expected)
{
    time_t start = time(NULL);
    int calls = 0;
    while (calls < expected) {
        REQUIRE(time(NULL) - start < LIMIT_MS / 1000);
        sched_yield();
        pthread_mutex_lock(&callback_log.lock);
        calls = callback_log.n_calls;
        pthread_mutex_unlock(&callback_log.lock);
    }
}

static dist_work_t *issue_barrier(dist_group_t *group)
{
    dist_work_t *work = NULL;
    REQUIRE_OK(dist_barrier(group, NULL, &work));
    REQUIRE(work != NULL);
    return work;
}

static void finish_work(dist_work_t *work)
{
    CHECK_OK(dist_work_wait(work, 0));
    CHECK_OK(dist_work_release(work));
}

/* Many outstanding sums, waited for in another order, between blocking calls. */
static void waits_in_another_order_succeed(const struct rank *me)
{
    static float values[RANKS][LAYERS][COUNT];
    dist_work_t *works[LAYERS];
    float sum = (float)(me->rank + 1);
    int layer;
    int i;
    int holds = 1;
    for (layer = 0; layer < LAYERS; layer++) {
        for (i = 0; i < COUNT; i++) {
            values[me->rank][layer][i] = (float)((me->rank + 1) * (layer + i));
        }
        REQUIRE_OK(dist_all_reduce(me->group, values[me->rank][layer], values[me->rank][layer], COUNT, DIST_F32,
                                   DIST_SUM, NULL, &works[layer]));
    }
    CHECK_OK(dist_all_reduce(me->group, &sum, &sum, 1, DIST_F32, DIST_SUM, NULL, NULL));
    CHECK(sum == 3);
    for (layer = LAYERS - 1; layer >= 0; layer--) {
        CHECK_OK(dist_work_wait(works[layer], 0));
        for (i = 0; i < COUNT; i++) {
            holds = holds && values[me->rank][layer][i] == (float)(3 * (layer + i));
        }
        CHECK(dist_work_sequence(works[layer]) == (uint64_t)(layer + 1));
        CHECK_OK(dist_work_release(works[layer]));
    }
    CHECK(holds);
}

static void queries_of_a_completed_work(const struct rank *me)
{
    dist_work_t *work = NULL;
    char text[64] = "?";
    float x = 1;
    int32_t done = 7;
    uint64_t elapsed;
    REQUIRE_OK(dist_all_reduce(me->group, &x, &x, 1, DIST_F32, DIST_MAX, NULL, &work));
    CHECK_OK(dist_work_wait(work, DIST_WAIT_FOREVER));
    CHECK_OK(dist_work_wait(work, DIST_NO_WAIT));
    CHECK_OK(dist_work_wait(work, 1));
    CHECK_OK(dist_work_test(work, &done));
    CHECK(done == 1);
    elapsed = dist_work_elapsed_ns(work);
    CHECK(elapsed > 0 && elapsed == dist_work_elapsed_ns(work));
    CHECK(dist_work_error(work, text, sizeof(text)) == 1 && text[0] == '\0');
    CHECK(dist_work_source(work) == -1 && dist_work_tag(work) == -1 && dist_work_received_count(work) == 0);
    CHECK_REFUSED(dist_work_wait(work, -3), DIST_ERR_INVALID_ARGUMENT, "timeout_ms");
    CHECK_OK(dist_work_release(work));
    CHECK_STATUS(dist_work_wait(work, 0), DIST_ERR_INVALID_HANDLE);
    /* A refused call gives no work. */
    work = (dist_work_t *)&x;
    CHECK_STATUS(dist_all_reduce(me->group, &x, &x, 1, 99, DIST_SUM, NULL, &work), DIST_ERR_INVALID_ARGUMENT);
    CHECK(work == NULL);
}

/* Rank 0 calls first and polls; rank 1 calls after a signal. */
static void wait_limits_are_kept(const struct rank *me)
{
    static int ready;
    dist_work_t *work;
    int32_t done = 7;
    if (me->rank == 0) {
        work = issue_barrier(me->group);
        CHECK_STATUS(dist_work_wait(work, DIST_NO_WAIT), DIST_IN_PROGRESS);
        CHECK_STATUS(dist_work_wait(work, 20), DIST_IN_PROGRESS);
        CHECK_OK(dist_work_test(work, &done));
        CHECK(done == 0);
        __atomic_store_n(&ready, 1, __ATOMIC_RELEASE);
    } else {
        while (!__atomic_load_n(&ready, __ATOMIC_ACQUIRE)) {
            sched_yield();
        }
        work = issue_barrier(me->group);
    }
    finish_work(work);
    /* Works complete in order even if no thread waits for them. */
    CHECK_OK(dist_work_release(issue_barrier(me->group)));
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
}

static void record_call(dist_status_t status, const char *message, void *user)
{
    const int *number = user;
    pthread_mutex_lock(&callback_log.lock);
    callback_log.is_in_order = callback_log.is_in_order && *number == callback_log.n_calls;
    callback_log.status = status;
    snprintf(callback_log.message, sizeof(callback_log.message), "%s", message);
    callback_log.n_calls++;
    pthread_mutex_unlock(&callback_log.lock);
}

/* Inside a callback, waits are refused and issuing is allowed. */
static void wait_in_callback(dist_status_t status, const char *message, void *user)
{
    struct rank *me = user;
    dist_work_t *work = NULL;
    dist_store_t *store = new_store();
    dist_group_t *group = NULL;
    (void)message;
    CHECK_OK(status);
    CHECK_REFUSED(dist_barrier(me->group, NULL, NULL), DIST_ERR_INVALID_ARGUMENT, "callback");
    CHECK_REFUSED(dist_store_set(store, "k", DIST_TERMINATED, "v", 1), DIST_ERR_INVALID_ARGUMENT, "callback");
    CHECK_REFUSED(join_group(store, "inside", 0, 1, &group), DIST_ERR_INVALID_ARGUMENT, "callback");
    CHECK_REFUSED(dist_init(NULL), DIST_ERR_INVALID_ARGUMENT, "callback");
    CHECK_REFUSED(dist_finalize(), DIST_ERR_INVALID_ARGUMENT, "callback");
    CHECK_OK(dist_store_release(store));
    CHECK_OK(dist_barrier(me->group, NULL, &work));
    CHECK_OK(dist_work_release(work));
    pthread_mutex_lock(&callback_log.lock);
    callback_log.n_calls++;
    pthread_mutex_unlock(&callback_log.lock);
}

static void check_callbacks(struct rank *me)
{
    static int numbers[4] = { 0, 1, 2, 3 };
    dist_work_t *works[3];
    int i;
    for (i = 0; i < 3; i++) {
        works[i] = issue_barrier(me->group);
        if (me->rank == 0) {
            CHECK_OK(dist_work_on_complete(works[i], record_call, &numbers[i]));
        }
    }
    for (i = 0; i < 3; i++) {
        finish_work(works[i]);
    }
    works[0] = issue_barrier(me->group);
    CHECK_OK(dist_work_wait(works[0], 0));
    if (me->rank == 0) {
        wait_for_calls(3);
        CHECK_OK(dist_work_on_complete(works[0], record_call, &numbers[3]));
        wait_for_calls(4);
        CHECK(callback_log.is_in_order && callback_log.status == DIST_OK && callback_log.message[0] == '\0');
        CHECK_OK(dist_work_on_complete(works[0], wait_in_callback, me));
        wait_for_calls(5);
    } else {
        /* The matching call for the one that the callback issues. */
        CHECK_OK(dist_work_release(issue_barrier(me->group)));
    }
    CHECK_OK(dist_work_release(works[0]));
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
}

static void check_batches(const struct rank *me)
{
    dist_group_t *own_group[1];
    dist_work_t *batch_work = NULL;
    dist_work_t *member = NULL;
    float x = (float)(me->rank + 1);
    float y[RANKS] = { 0, 0 };
    float z = 3;
    own_group[0] = me->group;
    CHECK_REFUSED(dist_batch_end(NULL), DIST_ERR_INVALID_ARGUMENT, "dist_batch_begin");
    CHECK_OK(dist_batch_begin(own_group, 1));
    CHECK_REFUSED(dist_batch_begin(NULL, 0), DIST_ERR_INVALID_ARGUMENT, "dist_batch_end");
    CHECK_OK(dist_all_reduce(me->group, &x, &x, 1, DIST_F32, DIST_SUM, NULL, NULL));
    CHECK_OK(dist_all_gather(me->group, &z, y, 1, DIST_F32, NULL, &member));
    CHECK_STATUS(dist_all_reduce(me->group, NULL, &x, 1, DIST_F32, DIST_SUM, NULL, NULL),
                 DIST_ERR_INVALID_ARGUMENT);
    CHECK(x == (float)(me->rank + 1) && dist_work_sequence(member) == 0);
    CHECK_REFUSED(dist_work_wait(member, 0), DIST_ERR_INVALID_ARGUMENT, "dist_batch_end");
    CHECK_OK(dist_batch_end(&batch_work));
    finish_work(batch_work);
    CHECK_OK(dist_work_wait(member, DIST_NO_WAIT));
    CHECK_OK(dist_work_release(member));
    CHECK(x == 3 && y[0] == 3 && y[1] == 3);
    CHECK_OK(dist_batch_begin(NULL, 0));
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
    CHECK_OK(dist_batch_end(NULL));
}

static void *run_all_checks(void *arg)
{
    struct rank *me = arg;
    REQUIRE_OK(join_group(me->store, "works", me->rank, RANKS, &me->group));
    waits_in_another_order_succeed(me);
    queries_of_a_completed_work(me);
    wait_limits_are_kept(me);
    check_callbacks(me);
    check_batches(me);
    return NULL;
}

/* Works end with their group, and their handles outlive it. */
static void works_end_with_their_group(struct rank *ranks)
{
    static int number;
    char text[256] = "";
    int32_t done = 0;
    dist_work_t *works[2];
    int i;
    works[0] = issue_barrier(ranks[0].group);
    works[1] = issue_barrier(ranks[0].group);
    CHECK_OK(dist_work_on_complete(works[1], record_call, &number));
    CHECK_STATUS(dist_work_wait(works[0], 5), DIST_IN_PROGRESS);
    CHECK_OK(dist_group_release(ranks[0].group));
    CHECK_OK(dist_group_abort(ranks[1].group, "enough of it"));
    for (i = 0; i < 2; i++) {
        CHECK_REFUSED(dist_work_wait(works[i], 0), DIST_ERR_ABORTED, "enough of it");
        CHECK_STATUS(dist_work_wait(works[i], DIST_NO_WAIT), DIST_ERR_ABORTED);
        CHECK_STATUS(dist_work_test(works[i], &done), DIST_ERR_ABORTED);
        CHECK(done == 1);
        CHECK(dist_work_error(works[i], text, sizeof(text)) > 1);
        CHECK(strstr(text, "barrier") != NULL && strstr(text, "group works, rank 0") != NULL);
    }
    wait_for_calls(6);
    CHECK(callback_log.status == DIST_ERR_ABORTED && strstr(callback_log.message, "enough of it") != NULL);
    for (i = 0; i < 2; i++) {
        CHECK_OK(dist_work_release(works[i]));
    }
    CHECK_OK(dist_group_release(ranks[1].group));
}

/* dist_finalize lets works complete; their status is available afterwards. */
static void finalize_completes_works(void)
{
    dist_work_t *work;
    start_world();
    work = issue_barrier(dist_world());
    CHECK_OK(dist_finalize());
    CHECK_OK(dist_work_wait(work, DIST_NO_WAIT));
    CHECK(dist_work_sequence(work) == 1);
    CHECK_OK(dist_work_release(work));
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
    works_end_with_their_group(ranks);
    finalize_completes_works();
    CHECK_OK(dist_store_release(store));
    return check_report();
}
