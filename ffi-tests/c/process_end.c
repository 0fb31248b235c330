/*
 * Processes that end without releasing their groups. A process that returns from main or calls
 * exit leaves in order. A process that calls _exit or that a signal ends has died. Every rank is a
 * process.
 */
#define _DEFAULT_SOURCE
#define _XOPEN_SOURCE 700
#include "check.h"
#include "nap.h"

#include <signal.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST_RANKS 4
#define COUNT 1024

/* A rank of one case. */
struct rank {
    const char *path;
    dist_group_t *group;
    int rank;
    int size;
};

static float vector[COUNT];

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void join(struct rank *me)
{
    dist_store_t *store = NULL;
    REQUIRE_OK(dist_store_file_create(me->path, me->size, NULL, &store));
    REQUIRE_OK(join_group(store, "ends", me->rank, me->size, &me->group));
}

static void join_world(const struct rank *me)
{
    char method[128];
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    sprintf(method, "file://%s", me->path);
    options.init_method = method;
    options.fields = DIST_FIELD_RANK;
    options.rank = me->rank;
    options.world_size = me->size;
    options.connect_timeout_ms = LIMIT_MS;
    options.timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_init(&options));
}

/* The exit status of a rank that ends now. */
static int result(void)
{
    return checks.failed != 0;
}

/* Runs the ranks of a case. Expects that a rank ends with status 0, or with SIGKILL if `killed`
 * has its bit. */
static void run_case(const char *name, int size, void (*body)(struct rank *me), int killed)
{
    char path[96];
    pid_t pids[MOST_RANKS];
    int r;
    sprintf(path, "/tmp/dist-process-end-%d-%s", (int)getpid(), name);
    fflush(stdout);
    for (r = 0; r < size; r++) {
        pids[r] = fork();
        REQUIRE(pids[r] >= 0);
        if (pids[r] == 0) {
            struct rank me = { NULL, NULL, 0, 0 };
            me.path = path;
            me.rank = r;
            me.size = size;
            body(&me);
            /* The same as a return from main. */
            exit(result());
        }
    }
    for (r = 0; r < size; r++) {
        int status = 0;
        int is_expected;
        REQUIRE(waitpid(pids[r], &status, 0) == pids[r]);
        is_expected = killed >> r & 1 ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                      : WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (!CHECK(is_expected)) {
            printf("%s: rank %d ended with wait status %d\n", name, r, status);
        }
    }
    unlink(path);
}

static dist_status_t reduce(const struct rank *me)
{
    return dist_all_reduce(me->group, vector, vector, COUNT, DIST_F32, DIST_SUM, NULL, NULL);
}

static dist_status_t receive(const struct rank *me, int from)
{
    return dist_recv(me->group, vector, COUNT, DIST_F32, from, 1, NULL, NULL, NULL);
}

static dist_status_t send_to(const struct rank *me, int to)
{
    return dist_send(me->group, vector, COUNT, DIST_F32, to, 1, NULL, NULL);
}

/* --- ends in order --- */

/* The root ends as soon as its own call has returned. */
static void root_returns(struct rank *me)
{
    join(me);
    CHECK_OK(dist_broadcast(me->group, vector, COUNT, DIST_F32, 0, NULL, NULL));
}

static void all_return(struct rank *me)
{
    join(me);
    CHECK_OK(reduce(me));
}

/* Ranks 0 and 1 exchange a message after the others have ended. */
static void others_end(struct rank *me)
{
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
    if (me->rank == 1) {
        nap_ms(200);
        CHECK_OK(send_to(me, 0));
        CHECK_OK(receive(me, 0));
    }
    if (me->rank == 0) {
        CHECK_OK(receive(me, 1));
        CHECK_OK(send_to(me, 1));
    }
}

static void others_return(struct rank *me)
{
    join(me);
    others_end(me);
}

/* A call that needs a rank that has returned fails at once. */
static void needed_rank_returns(struct rank *me)
{
    join(me);
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
    if (me->rank != 2) {
        double start = now();
        CHECK_STATUS(reduce(me), DIST_ERR_PEER_FAILED);
        CHECK_MESSAGE("rank 2");
        CHECK_MESSAGE("has left the group");
        CHECK(now() - start < 5);
    }
}

static void handler_of_exit(void);
static struct rank *rank_of_handler;

/* A handler of exit, and so a destructor of a static object, still has its group. */
static void handler_uses_group(struct rank *me)
{
    rank_of_handler = me;
    REQUIRE(atexit(handler_of_exit) == 0);
    join(me);
    exit(result());
}

static void handler_of_exit(void)
{
    CHECK_OK(reduce(rank_of_handler));
    CHECK_OK(dist_group_release(rank_of_handler->group));
    if (result() != 0) {
        _exit(1);
    }
}

static void *wait_in_call(void *arg)
{
    const struct rank *me = arg;
    receive(me, 0);
    return NULL;
}

/* A thread of the rank that ends is inside a call. */
static void thread_is_in_call(struct rank *me)
{
    join(me);
    if (me->rank == 1) {
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, wait_in_call, me) == 0);
        nap_ms(100);
        return;
    }
    CHECK_STATUS(receive(me, 1), DIST_ERR_PEER_FAILED);
    CHECK_MESSAGE("rank 1");
    CHECK_MESSAGE("has left the group");
}

static void end_in_handler(int signal)
{
    (void)signal;
    exit(result());
}

/* A signal handler calls exit in the middle of calls. The process ends all the same. */
static void handler_exits(struct rank *me)
{
    double start;
    dist_status_t status = DIST_OK;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = end_in_handler;
    sigaction(SIGALRM, &action, NULL);
    join(me);
    if (me->rank == 1) {
        struct itimerval timer = { { 0, 0 }, { 0, 100000 } };
        setitimer(ITIMER_REAL, &timer, NULL);
    }
    for (start = now(); status == DIST_OK && now() - start < 10;) {
        status = reduce(me);
    }
    CHECK(me->rank == 0 && status == DIST_ERR_PEER_FAILED);
    CHECK_MESSAGE("rank 1");
}

/* The end of a forked child is not the end of its parent. */
static void child_exits(struct rank *me)
{
    pid_t child;
    join(me);
    child = fork();
    if (child == 0) {
        exit(0);
    }
    REQUIRE(waitpid(child, NULL, 0) == child);
    CHECK_OK(reduce(me));
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
}

/* The others do not wait in dist_finalize for a rank that has ended without it. */
static void world_returns(struct rank *me)
{
    float value = 1;
    double start;
    join_world(me);
    CHECK_OK(dist_all_reduce(dist_world(), &value, &value, 1, DIST_F32, DIST_SUM, NULL, NULL));
    CHECK(value == (float)me->size);
    if (me->rank == 1) {
        return;
    }
    start = now();
    CHECK_OK(dist_finalize());
    CHECK(now() - start < 3);
}

/* --- deaths --- */

/* The root dies as soon as its own call has returned. */
static void root_dies(struct rank *me)
{
    root_returns(me);
    if (me->rank == 0) {
        _exit(result());
    }
}

static void others_die(struct rank *me)
{
    join(me);
    others_end(me);
    if (me->rank > 1) {
        _exit(result());
    }
}

/* A message that has arrived is received. A message that was not sent is not waited for. */
static void sender_dies(struct rank *me)
{
    join(me);
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
    if (me->rank == 1) {
        CHECK_OK(send_to(me, 0));
        if (result() == 0) {
            raise(SIGKILL);
        }
    }
    if (me->rank == 0) {
        double start;
        char text[256];
        nap_ms(300);
        CHECK(dist_group_error(me->group, text, sizeof text) > 1 && strstr(text, "died") != NULL);
        CHECK_OK(receive(me, 1));
        start = now();
        CHECK_STATUS(receive(me, 1), DIST_ERR_PEER_FAILED);
        CHECK_MESSAGE("rank 1");
        CHECK_MESSAGE("died");
        CHECK(now() - start < 5);
        CHECK_OK(send_to(me, 2));
        CHECK_OK(receive(me, 2));
    }
    if (me->rank == 2) {
        CHECK_OK(receive(me, 0));
        CHECK_OK(send_to(me, 0));
    }
}

/* The number of ranks that have come to meet_survivors, in memory that all ranks share. */
static int *arrivals;

/* Waits, without a call of the library, until this number of ranks has come here. */
static void meet_survivors(int count)
{
    double limit = now() + 20;
    __sync_add_and_fetch(arrivals, 1);
    while (__sync_add_and_fetch(arrivals, 0) < count && CHECK(now() < limit)) {
        nap_ms(1);
    }
}

/* A rooted call succeeds on the ranks whose result does not depend on the dead rank. A call that
 * needs the dead rank fails at once on each rank that makes it. */
static void needed_rank_dies(struct rank *me)
{
    double start;
    join(me);
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
    if (me->rank == 3) {
        raise(SIGKILL);
    }
    nap_ms(300);
    CHECK_OK(dist_broadcast(me->group, vector, COUNT, DIST_F32, 0, NULL, NULL));
    /* The first reduction fails the group, so the other ranks must have ended the broadcast. */
    meet_survivors(3);
    if (me->rank == 2) {
        /* The others do not depend on the arrival of this rank. */
        nap_ms(2000);
    }
    start = now();
    CHECK_STATUS(reduce(me), DIST_ERR_PEER_FAILED);
    CHECK_MESSAGE("rank 3");
    CHECK_MESSAGE("died");
    CHECK(now() - start < 1);
}

/* A shrink after a death that has failed no call yet. */
static void survivors_shrink(struct rank *me)
{
    dist_group_t *rest = NULL;
    join(me);
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
    if (me->rank == 1) {
        raise(SIGKILL);
    }
    nap_ms(300);
    REQUIRE_OK(dist_group_shrink(me->group, NULL, &rest));
    CHECK(dist_get_world_size(rest) == me->size - 1);
    CHECK_OK(dist_barrier(rest, NULL, NULL));
}

int main(void)
{
    int round;
    arrivals = mmap(NULL, sizeof(*arrivals), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(arrivals != MAP_FAILED);
    for (round = 0; round < 10; round++) {
        run_case("root_returns", 4, root_returns, 0);
        run_case("all_return", 4, all_return, 0);
        run_case("others_return", 4, others_return, 0);
        run_case("others_die", 4, others_die, 0);
        run_case("root_dies", 4, root_dies, 0);
    }
    run_case("needed_rank_returns", 4, needed_rank_returns, 0);
    run_case("handler_uses_group", 3, handler_uses_group, 0);
    run_case("thread_is_in_call", 2, thread_is_in_call, 0);
    run_case("handler_exits", 2, handler_exits, 0);
    run_case("child_exits", 2, child_exits, 0);
    run_case("world_returns", 3, world_returns, 0);
    run_case("sender_dies", 3, sender_dies, 1 << 1);
    run_case("needed_rank_dies", 4, needed_rank_dies, 1 << 3);
    run_case("survivors_shrink", 3, survivors_shrink, 1 << 1);
    return check_report();
}
