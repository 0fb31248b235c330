/*
 * Back ends that violate the interface, and ranks that are late or give up: the caller gets an
 * error in time that names the rank and the fault.
 *
 *     backend_trouble PLUGIN    PLUGIN is the example's shared object
 */
#define _POSIX_C_SOURCE 200809L
#include "odd_backend.h"

#include <stddef.h>

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
