/*
 * Back ends that violate the interface, and ranks that are late or give up: the caller gets an
 * error in time that names the rank and the fault.
 *
 *     backend_trouble PLUGIN    PLUGIN is the example's shared object
 *
 * This file implements the back end "odd". Its option selects the violation; its ranks do not
 * communicate.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <dist_backend.h>

#include <stddef.h>
#include <time.h>

static void nap(long ms)
{
    struct timespec time;
    time.tv_sec = ms / 1000;
    time.tv_nsec = ms % 1000 * 1000000;
    nanosleep(&time, NULL);
}

/* ---- The odd one ---- */

struct odd {
    char does[32];
    const dist_backend_host_t *host;
    pthread_mutex_t lock;
    int aborted;
    int is_good; /* until its first operation has ended */
    uint64_t ticket;
};

/* The prefix of violations from the second operation on; the first one succeeds. */
static const char then[] = "then ";

static int does(const struct odd *odd, const char *what)
{
    return strcmp(odd->does, what) == 0;
}

static int is_aborted(struct odd *odd)
{
    int aborted;
    pthread_mutex_lock(&odd->lock);
    aborted = odd->aborted;
    pthread_mutex_unlock(&odd->lock);
    return aborted;
}

static dist_status_t create(void *user, const dist_backend_setup_t *setup, dist_backend_created_t *created,
                            dist_backend_outcome_t *outcome)
{
    struct odd *odd = calloc(1, sizeof(*odd));
    (void)user;
    REQUIRE(odd != NULL && strlen(setup->group_id) == 32 && strcmp(setup->group_name, "odd") == 0);
    REQUIRE(setup->struct_size == sizeof(*setup) && created->struct_size == sizeof(*created));
    odd->is_good = strncmp(setup->options, then, strlen(then)) == 0;
    snprintf(odd->does, sizeof(odd->does), "%s", setup->options + (odd->is_good ? strlen(then) : 0));
    odd->host = setup->host;
    pthread_mutex_init(&odd->lock, NULL);
    created->part = odd;
    created->kinds = does(odd, "bad kinds") ? (uint64_t)1 << 40 : 0;
    if (does(odd, "no create")) {
        snprintf(outcome->text, outcome->text_cap, "no cable is plugged in");
        free(odd);
        return DIST_ERR_CONNECTION;
    }
    return DIST_OK;
}

static void destroy(void *part)
{
    free(part);
}

static void *complete_later(void *arg)
{
    struct odd *odd = arg;
    dist_backend_outcome_t outcome = DIST_BACKEND_OUTCOME_INIT;
    static char text[] = "the fuse has blown";
    int fails = does(odd, "completes badly");
    outcome.culprit = 0;
    outcome.text = text;
    nap(20);
    CHECK_OK(odd->host->complete(odd->host->context, odd->ticket, fails ? DIST_ERR_PEER_FAILED : DIST_OK, &outcome));
    return NULL;
}

static dist_status_t submit(void *part, const dist_backend_operation_t *what, void **request,
                            dist_backend_outcome_t *outcome)
{
    struct odd *odd = part;
    pthread_t thread;
    *request = odd;
    odd->ticket = what->ticket;
    if (does(odd, "unknown status")) {
        return -4711;
    }
    if (does(odd, "no request")) {
        *request = NULL;
        return DIST_IN_PROGRESS;
    }
    if (does(odd, "fails")) {
        outcome->culprit = 0;
        snprintf(outcome->text, outcome->text_cap, "the line is dead");
        return DIST_ERR_PEER_FAILED;
    }
    if (does(odd, "refuses")) {
        return DIST_ERR_UNSUPPORTED;
    }
    if (does(odd, "completes") || does(odd, "completes badly")) {
        CHECK(what->ticket != 0);
        REQUIRE(pthread_create(&thread, NULL, complete_later, odd) == 0);
        REQUIRE(pthread_detach(thread) == 0);
        return DIST_IN_PROGRESS;
    }
    if (does(odd, "completes at once")) {
        CHECK_STATUS(odd->host->complete(odd->host->context, 987654, DIST_OK, NULL), DIST_ERR_INVALID_ARGUMENT);
        CHECK_OK(odd->host->complete(odd->host->context, what->ticket, DIST_OK, NULL));
        CHECK_STATUS(odd->host->complete(odd->host->context, what->ticket, DIST_OK, NULL), DIST_ERR_INVALID_ARGUMENT);
        return DIST_IN_PROGRESS;
    }
    return does(odd, "done") ? DIST_OK : DIST_IN_PROGRESS;
}

static dist_status_t look(void *part, void *request, dist_backend_outcome_t *outcome)
{
    (void)request;
    (void)outcome;
    return does(part, "tested") ? DIST_OK : DIST_IN_PROGRESS;
}

static dist_status_t await(void *part, void *request, int64_t timeout_ms, dist_backend_outcome_t *outcome)
{
    struct odd *odd = part;
    int64_t waited;
    (void)request;
    CHECK(timeout_ms == DIST_NO_WAIT || (timeout_ms >= 1 && timeout_ms <= 1000));
    if (does(odd, "17")) {
        return 17;
    }
    if (does(odd, "too late to refuse")) {
        outcome->culprit = 12345;
        return DIST_ERR_UNSUPPORTED;
    }
    if (does(odd, "early")) {
        return DIST_ERR_TIMEOUT;
    }
    if (does(odd, "late")) {
        nap(timeout_ms + 900);
        return DIST_IN_PROGRESS;
    }
    /* "hangs" waits until an abort; the other variants wait until their deadline. */
    for (waited = 0; (waited < timeout_ms || does(odd, "hangs")) && !is_aborted(odd); waited += 5) {
        nap(5);
    }
    (void)outcome;
    return DIST_IN_PROGRESS;
}

/* Runs an operation in one call. */
static dist_status_t run_odd(void *part, const dist_backend_operation_t *what, int64_t timeout_ms, void **request,
                             dist_backend_outcome_t *outcome)
{
    struct odd *odd = part;
    dist_status_t status = odd->is_good ? DIST_OK : submit(part, what, request, outcome);
    odd->is_good = 0;
    CHECK(outcome->flags == 0 && (timeout_ms == DIST_NO_WAIT || (timeout_ms >= 1 && timeout_ms <= 1000)));
    if (status == DIST_OK) {
        outcome->flags = DIST_BACKEND_SHORT;
    }
    return status == DIST_IN_PROGRESS && *request != NULL ? await(part, *request, timeout_ms, outcome) : status;
}

static dist_status_t take_back(void *part, void *request, dist_backend_outcome_t *outcome)
{
    (void)request;
    snprintf(outcome->text, outcome->text_cap, "it waited for the moon");
    return does(part, "keeps") ? DIST_ERR_BACKEND : DIST_OK;
}

static void abort_part(void *part, dist_status_t status, const char *reason, int32_t culprit)
{
    struct odd *odd = part;
    CHECK(status < 0 && reason != NULL && culprit >= -1);
    pthread_mutex_lock(&odd->lock);
    odd->aborted++;
    CHECK(odd->aborted == 1);
    pthread_mutex_unlock(&odd->lock);
}

static dist_status_t failure(void *part, dist_backend_outcome_t *outcome)
{
    if (!does(part, "finds out")) {
        return DIST_OK;
    }
    snprintf(outcome->text, outcome->text_cap, "another rank has given up");
    return DIST_ERR_ABORTED;
}

static dist_backend_vtable_t table_of(const char *kind)
{
    dist_backend_vtable_t table = DIST_BACKEND_VTABLE_INIT;
    table.create = create;
    table.destroy = destroy;
    table.submit = submit;
    table.release = take_back;
    if (strcmp(kind, "odd-calls") != 0) {
        table.test = look;
    }
    if (strcmp(kind, "odd") == 0 || strcmp(kind, "odd-deaf") == 0 || strcmp(kind, "odd-runs") == 0) {
        table.wait = await;
    }
    if (strcmp(kind, "odd-runs") == 0) {
        table.run = run_odd;
    }
    if (strcmp(kind, "odd-deaf") != 0) {
        table.abort = abort_part;
        table.failure = failure;
    }
    return table;
}

static dist_group_t *odd_group(const char *backend, const char *what)
{
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    dist_group_t *group = NULL;
    dist_store_t *store = new_store();
    options.store = store;
    options.name = "odd";
    options.fields = DIST_FIELD_RANK;
    options.world_size = 1;
    options.backend = backend;
    options.backend_options = what;
    options.timeout_ms = LIMIT_MS;
    options.connect_timeout_ms = LIMIT_MS;
    CHECK((dist_group_create(&options, &group) == DIST_OK) == (group != NULL));
    CHECK_OK(dist_store_release(store));
    return group;
}

static dist_status_t call_within(dist_group_t *group, int64_t timeout_ms)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    int32_t one = 1, sum = 0;
    options.timeout_ms = timeout_ms;
    return dist_all_reduce(group, &one, &sum, 1, DIST_I32, DIST_SUM, &options, NULL);
}

/* Checks the result of one call of an odd back end, and that a failure is permanent. After a
 * successful call, the same call takes the fast path. */
static void ends(const char *backend, const char *what, int64_t timeout_ms, dist_status_t wanted, const char *word)
{
    dist_group_t *group = odd_group(backend, what);
    printf("%s, %s\n", backend, what);
    REQUIRE(group != NULL);
    if (strncmp(what, then, strlen(then)) == 0) {
        CHECK_OK(call_within(group, timeout_ms));
    }
    CHECK_STATUS(call_within(group, timeout_ms), wanted);
    if (wanted != DIST_OK) {
        CHECK_MESSAGE(word);
    }
    CHECK_STATUS(call_within(group, timeout_ms), wanted);
    CHECK_OK(dist_group_release(group));
}

static void registrations(void)
{
    dist_backend_vtable_t table = table_of("odd");
    struct {
        dist_backend_vtable_t known;
        char more;
    } longer;
    static const char *const names[] = { "odd", "odd-deaf", "odd-tests", "odd-calls", "odd-runs" };
    size_t i;
    table.struct_size = 24;
    CHECK_REFUSED(dist_backend_register("x", &table, NULL), DIST_ERR_INVALID_ARGUMENT, "struct_size");
    table = table_of("odd");
    table.submit = NULL;
    CHECK_REFUSED(dist_backend_register("x", &table, NULL), DIST_ERR_INVALID_ARGUMENT, "submit");
    table = table_of("odd-calls");
    table.run = run_odd;
    CHECK_REFUSED(dist_backend_register("x", &table, NULL), DIST_ERR_INVALID_ARGUMENT, "test or wait");
    memset(&longer, 0, sizeof(longer));
    longer.known = table_of("odd");
    longer.known.struct_size = sizeof(longer);
    longer.more = 1;
    CHECK_REFUSED(dist_backend_register("x", &longer.known, NULL), DIST_ERR_UNSUPPORTED, "dist_backend_vtable_t");
    table = table_of("odd");
    CHECK_REFUSED(dist_backend_register("a b", &table, NULL), DIST_ERR_INVALID_ARGUMENT, "a b");
    CHECK_REFUSED(dist_backend_register("Native", &table, NULL), DIST_ERR_INVALID_ARGUMENT, "already");
    CHECK_REFUSED(dist_backend_register("nccl", &table, NULL), DIST_ERR_INVALID_ARGUMENT, "reserved");
    CHECK(!dist_backend_is_available("x"));
    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        table = table_of(names[i]);
        REQUIRE_OK(dist_backend_register(names[i], &table, NULL));
    }
    /* A table of an older version with only the required functions. */
    table = table_of("odd-calls");
    table.struct_size = offsetof(dist_backend_vtable_t, test);
    table.test = look;
    REQUIRE_OK(dist_backend_register("odd-old", &table, NULL));
    CHECK_REFUSED(dist_backend_register("ODD", &table, NULL), DIST_ERR_INVALID_ARGUMENT, "already");
    CHECK(odd_group("odder", "") == NULL);
    CHECK_MESSAGE("odd-old");
}

static void misbehaviour(void)
{
    ends("odd", "done", 500, DIST_OK, "");
    ends("odd", "unknown status", 500, DIST_ERR_BACKEND, "-4711");
    ends("odd", "no request", 500, DIST_ERR_BACKEND, "no request");
    ends("odd", "fails", 500, DIST_ERR_PEER_FAILED, "the line is dead");
    ends("odd", "refuses", 500, DIST_ERR_UNSUPPORTED, "submit of the back end odd");
    ends("odd", "17", 500, DIST_ERR_BACKEND, "returned 17");
    ends("odd", "too late to refuse", 500, DIST_ERR_UNSUPPORTED, "wait of the back end odd");
    ends("odd", "early", 5000, DIST_ERR_TIMEOUT, "ms before the deadline");
    ends("odd", "late", 50, DIST_ERR_TIMEOUT, "ms after its limit");
    ends("odd", "never", 50, DIST_ERR_TIMEOUT, "it waited for the moon");
    ends("odd", "keeps", 50, DIST_ERR_TIMEOUT, "may still use the buffers");
    ends("odd", "finds out", 5000, DIST_ERR_ABORTED, "another rank has given up");
    ends("odd-runs", "done", 500, DIST_OK, "");
    ends("odd-runs", "no request", 500, DIST_ERR_BACKEND, "run of the back end odd-runs reports");
    ends("odd-runs", "fails", 500, DIST_ERR_PEER_FAILED, "the line is dead");
    ends("odd-runs", "refuses", 500, DIST_ERR_UNSUPPORTED, "run of the back end odd-runs");
    ends("odd-runs", "17", 500, DIST_ERR_BACKEND, "run of the back end odd-runs returned 17");
    ends("odd-runs", "early", 5000, DIST_ERR_TIMEOUT, "ms before the deadline");
    ends("odd-runs", "late", 50, DIST_ERR_TIMEOUT, "ms after its limit");
    ends("odd-runs", "never", 50, DIST_ERR_TIMEOUT, "it waited for the moon");
    ends("odd-runs", "keeps", 50, DIST_ERR_TIMEOUT, "may still use the buffers");
    ends("odd-runs", "finds out", 5000, DIST_ERR_ABORTED, "another rank has given up");
    ends("odd-runs", "then done", 500, DIST_OK, "");
    ends("odd-runs", "then no request", 500, DIST_ERR_BACKEND, "run of the back end odd-runs reports");
    ends("odd-runs", "then fails", 500, DIST_ERR_PEER_FAILED, "the line is dead");
    ends("odd-runs", "then refuses", 500, DIST_ERR_UNSUPPORTED, "run of the back end odd-runs");
    ends("odd-runs", "then 17", 500, DIST_ERR_BACKEND, "run of the back end odd-runs returned 17");
    ends("odd-runs", "then early", 5000, DIST_ERR_TIMEOUT, "ms before the deadline");
    ends("odd-runs", "then late", 50, DIST_ERR_TIMEOUT, "ms after its limit");
    ends("odd-runs", "then never", 50, DIST_ERR_TIMEOUT, "it waited for the moon");
    ends("odd-runs", "then keeps", 50, DIST_ERR_TIMEOUT, "may still use the buffers");
    ends("odd-runs", "then finds out", 5000, DIST_ERR_ABORTED, "another rank has given up");
    ends("odd-tests", "tested", 500, DIST_OK, "");
    ends("odd-tests", "never", 50, DIST_ERR_TIMEOUT, "did not complete within");
    ends("odd-calls", "completes", 5000, DIST_OK, "");
    ends("odd-calls", "completes at once", 5000, DIST_OK, "");
    ends("odd-calls", "completes badly", 5000, DIST_ERR_PEER_FAILED, "the fuse has blown");
    ends("odd-calls", "never", 50, DIST_ERR_TIMEOUT, "did not complete within");
    ends("odd-old", "completes", 5000, DIST_OK, "");
    CHECK(odd_group("odd", "no create") == NULL);
    CHECK_MESSAGE("no cable is plugged in");
    CHECK(odd_group("odd", "bad kinds") == NULL);
    CHECK_MESSAGE("kinds");
}

/* ---- Aborts ---- */

static void *waits(void *arg)
{
    CHECK_REFUSED(call_within(arg, 0), DIST_ERR_ABORTED, "enough of it");
    return NULL;
}

/* An abort ends a wait in the back end, whether the back end reacts to the abort or not. */
static void aborts(const char *backend, const char *what)
{
    dist_group_t *group = odd_group(backend, what);
    dist_work_t *work = NULL;
    pthread_t waiting;
    int32_t one = 1, sum = 0;
    printf("abort of %s, %s\n", backend, what);
    REQUIRE(group != NULL);
    CHECK_OK(dist_all_reduce(group, &one, &sum, 1, DIST_I32, DIST_SUM, NULL, &work));
    CHECK_STATUS(dist_work_wait(work, 50), DIST_IN_PROGRESS);
    REQUIRE(pthread_create(&waiting, NULL, waits, group) == 0);
    CHECK_OK(dist_group_abort(group, "enough of it"));
    CHECK_REFUSED(dist_work_wait(work, LIMIT_MS), DIST_ERR_ABORTED, "enough of it");
    REQUIRE(pthread_join(waiting, NULL) == 0);
    CHECK_OK(dist_work_release(work));
    CHECK_OK(dist_group_release(group));
}

/* ---- The example, whose ranks are late, differ, or give up ---- */

#define RANKS 3

struct rank {
    dist_store_t *store;
    void (*body)(dist_group_t *group, int rank);
    const char *name;
    int rank;
};

static void *run(void *arg)
{
    struct rank *me = arg;
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    dist_group_t *group = NULL;
    options.store = me->store;
    options.name = me->name;
    options.fields = DIST_FIELD_RANK;
    options.rank = me->rank;
    options.world_size = RANKS;
    options.backend = "store";
    options.timeout_ms = LIMIT_MS;
    options.connect_timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_group_create(&options, &group));
    me->body(group, me->rank);
    CHECK_OK(dist_group_release(group));
    return NULL;
}

static void together(const char *name, void (*body)(dist_group_t *group, int rank))
{
    struct rank ranks[RANKS];
    pthread_t running[RANKS];
    dist_store_t *store = new_store();
    int r;
    printf("%s\n", name);
    for (r = 0; r < RANKS; r++) {
        ranks[r].store = store;
        ranks[r].body = body;
        ranks[r].name = name;
        ranks[r].rank = r;
        REQUIRE(pthread_create(&running[r], NULL, run, &ranks[r]) == 0);
    }
    for (r = 0; r < RANKS; r++) {
        REQUIRE(pthread_join(running[r], NULL) == 0);
    }
    CHECK_OK(dist_store_release(store));
}

static void is_late(dist_group_t *group, int rank)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    int32_t one = 1, sum = 0;
    CHECK_OK(dist_all_reduce(group, &one, &sum, 1, DIST_I32, DIST_SUM, NULL, NULL));
    if (rank == 2) {
        /* The rank waits until its peers have given up, and gets their abort. */
        CHECK_REFUSED(dist_recv(group, &one, 1, DIST_I32, 0, 1, NULL, NULL, NULL), DIST_ERR_ABORTED,
                      "rank 2 has not come");
        return;
    }
    options.timeout_ms = 300;
    CHECK(dist_all_reduce(group, &one, &sum, 1, DIST_I32, DIST_SUM, &options, NULL) != DIST_OK);
    CHECK_MESSAGE("rank 2 has not come");
    CHECK(dist_barrier(group, NULL, NULL) != DIST_OK);
    CHECK_MESSAGE("rank 2 has not come");
}

static void differs(dist_group_t *group, int rank)
{
    int32_t one[2] = { 1, 1 }, sum[2];
    dist_status_t status = dist_all_reduce(group, one, sum, rank == 1 ? 2 : 1, DIST_I32, DIST_SUM, NULL, NULL);
    CHECK(status == DIST_ERR_MISMATCH || status == DIST_ERR_ABORTED);
    CHECK_MESSAGE("count");
}

static void gives_up(dist_group_t *group, int rank)
{
    int32_t one = 1, sum = 0;
    if (rank == 1) {
        CHECK_OK(dist_group_abort(group, "out of patience"));
    }
    CHECK_REFUSED(dist_all_reduce(group, &one, &sum, 1, DIST_I32, DIST_SUM, NULL, NULL), DIST_ERR_ABORTED,
                  "out of patience");
}

static void message_is_late(dist_group_t *group, int rank)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    int32_t one = 0;
    options.timeout_ms = 50;
    CHECK_REFUSED(dist_recv(group, &one, 1, DIST_I32, rank, 5, NULL, &options, NULL), DIST_ERR_TIMEOUT,
                  "not matched within");
    /* The failure has no effect on other calls, and the next receive takes the message. */
    CHECK_OK(dist_send(group, &one, 1, DIST_I32, rank, 5, NULL, NULL));
    CHECK_OK(dist_recv(group, &one, 1, DIST_I32, rank, 5, NULL, NULL, NULL));
    CHECK_OK(dist_barrier(group, NULL, NULL));
}

/* If a group is released during a message, the group ends after the message, on a thread of the
 * library. */
static void ends_with_a_message(dist_group_t *group, int rank)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    dist_group_t *child = NULL;
    dist_work_t *work = NULL;
    int32_t one = 0;
    options.timeout_ms = 100;
    CHECK_OK(dist_group_split(group, rank, 0, NULL, &child));
    CHECK_OK(dist_recv(child, &one, 1, DIST_I32, 0, 5, NULL, &options, &work));
    CHECK_OK(dist_group_release(child));
    CHECK_REFUSED(dist_work_wait(work, LIMIT_MS), DIST_ERR_TIMEOUT, "not matched within");
    CHECK_OK(dist_work_release(work));
    CHECK_OK(dist_barrier(group, NULL, NULL));
}

static void cannot_shrink(dist_group_t *group, int rank)
{
    dist_group_t *rest = group;
    (void)rank;
    CHECK_REFUSED(dist_group_shrink(group, NULL, &rest), DIST_ERR_UNSUPPORTED, "store");
    CHECK(rest == NULL);
    CHECK_OK(dist_barrier(group, NULL, NULL));
}

int main(int argc, char **argv)
{
    REQUIRE(argc == 2);
    registrations();
    misbehaviour();
    aborts("odd", "never");
    aborts("odd", "hangs");
    aborts("odd-runs", "hangs");
    aborts("odd-deaf", "never");
    aborts("odd-tests", "never");
    aborts("odd-calls", "never");
    REQUIRE_OK(dist_backend_load(argv[1]));
    together("late", is_late);
    together("different", differs);
    together("given-up", gives_up);
    together("messages", message_is_late);
    together("released", ends_with_a_message);
    together("unshrunk", cannot_shrink);
    return check_report();
}
