/*
 * Ranks of one host that may read and write each other's memory when they meet, and lose this right
 * later. Some drop their privileges or are no longer dumpable. For others, a filter of system calls
 * forbids one direction for one pair. The calls go on through shared memory, with the same bits as
 * before, and each pair logs at most one line. Nothing changes if the right returns.
 */
#define _GNU_SOURCE
#include "forked_ranks.h"

#include <fcntl.h>

#define RANKS 3
#define MOST_COUNT 500000
#define NOBODY 65534

enum loss { UNDUMPABLE, UNDUMPABLE_DURING_CALLS, SETUID, NO_READ_BY_ONE, NO_WRITE_BY_ONE };
struct job {
    enum loss loss;
    int ranks; /* a bit for each rank that loses the right, or whose memory becomes closed */
    int delay_us;
};

/* The number of lines about refused access in this process. */
static int refusals;

static void count_refusals(int32_t level, const char *line, void *user)
{
    (void)user;
    if (level <= DIST_LOG_WARN && strstr(line, "refuses access to the memory") != NULL) {
        __atomic_add_fetch(&refusals, 1, __ATOMIC_RELAXED);
    }
}

/* The memory of a rank is open for processes of the same user, if it is dumpable. */
static void become_ordinary_user(void)
{
    if (getuid() == 0) {
        REQUIRE(setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
    }
    REQUIRE(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
}

struct lane {
    dist_group_t *group;
    int rank;
    float *own, *result, *expected;
};

static void fill(const struct lane *lane, size_t count)
{
    uint32_t state = 12345U + (uint32_t)lane->rank * 977U;
    size_t i;
    for (i = 0; i < count; i++) {
        state = state * 1664525U + 1013904223U;
        lane->own[i] = (float)(state >> 8) * 1e-5F - 50.0F;
    }
}

typedef dist_status_t (*operation)(const struct lane *lane, size_t count, const dist_call_options_t *options);

static dist_status_t all_reduce(const struct lane *lane, size_t count, const dist_call_options_t *options)
{
    return dist_all_reduce(lane->group, lane->own, lane->result, count, DIST_F32, DIST_SUM, options, NULL);
}

static dist_status_t all_reduce_in_place(const struct lane *lane, size_t count, const dist_call_options_t *options)
{
    memcpy(lane->result, lane->own, count * sizeof(float));
    return dist_all_reduce(lane->group, lane->result, lane->result, count, DIST_F32, DIST_AVG, options, NULL);
}

static dist_status_t all_reduce_scaled(const struct lane *lane, size_t count, const dist_call_options_t *options)
{
    dist_call_options_t scaled = *options;
    scaled.premul_scale = 0.1 * (lane->rank + 1);
    return dist_all_reduce(lane->group, lane->own, lane->result, count, DIST_F32, DIST_PREMUL_SUM, &scaled, NULL);
}

static dist_status_t reduce_scatter(const struct lane *lane, size_t count, const dist_call_options_t *options)
{
    return dist_reduce_scatter(lane->group, lane->own, lane->result, count / RANKS, DIST_F32, DIST_SUM, options, NULL);
}

static dist_status_t all_gather(const struct lane *lane, size_t count, const dist_call_options_t *options)
{
    return dist_all_gather(lane->group, lane->own, lane->result, count / RANKS, DIST_F32, options, NULL);
}

static dist_status_t all_to_all(const struct lane *lane, size_t count, const dist_call_options_t *options)
{
    return dist_all_to_all(lane->group, lane->own, lane->result, count / RANKS, DIST_F32, options, NULL);
}

static dist_status_t broadcast(const struct lane *lane, size_t count, const dist_call_options_t *options)
{
    memcpy(lane->result, lane->own, count * sizeof(float));
    return dist_broadcast(lane->group, lane->result, count, DIST_F32, 1, options, NULL);
}

/* Messages in a ring; both sides wait for each message, so both may copy. */
static dist_status_t messages(const struct lane *lane, size_t count, const dist_call_options_t *options)
{
    dist_status_t status = DIST_OK;
    int sender;
    (void)options;
    for (sender = 0; sender < RANKS && status == DIST_OK; sender++) {
        int receiver = (sender + 1) % RANKS;
        if (lane->rank == sender) {
            status = dist_send(lane->group, lane->own, count, DIST_F32, receiver, 3, NULL, NULL);
        } else if (lane->rank == receiver) {
            status = dist_recv(lane->group, lane->result, count, DIST_F32, sender, 3, NULL, NULL, NULL);
        }
    }
    return status;
}

static const struct {
    const char *name;
    operation run;
    const char *algorithm; /* NULL for the library's choice */
} operations[] = {
    { "all_reduce", all_reduce, NULL },
    { "all_reduce by reads", all_reduce, "cma_read" },
    { "all_reduce by writes", all_reduce, "cma_write" },
    { "all_reduce in place", all_reduce_in_place, NULL },
    { "all_reduce in place by reads", all_reduce_in_place, "cma_read" },
    { "all_reduce in place by writes", all_reduce_in_place, "cma_write" },
    { "all_reduce with factors by writes", all_reduce_scaled, "cma_write" },
    { "reduce_scatter by reads", reduce_scatter, "cma_read" },
    { "all_gather by reads", all_gather, "cma_read" },
    { "all_gather by writes", all_gather, "cma_write" },
    { "all_to_all by reads", all_to_all, "cma_read" },
    { "all_to_all by writes", all_to_all, "cma_write" },
    { "broadcast by writes", broadcast, "cma_write" },
    { "messages", messages, NULL },
};
#define OPERATIONS (sizeof(operations) / sizeof(operations[0]))

/* Runs an operation. The first call stores the expected result. */
static void run_operation(const struct lane *lane, size_t o, size_t count, int is_first)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    float *expected = lane->expected + o * MOST_COUNT;
    options.algorithm = operations[o].algorithm;
    memset(lane->result, 0, count * sizeof(float));
    if (!CHECK_OK(operations[o].run(lane, count, &options))) {
        printf("rank %d: %s of %d elements failed\n", lane->rank, operations[o].name, (int)count);
        return;
    }
    if (is_first) {
        memcpy(expected, lane->result, count * sizeof(float));
    } else if (!CHECK(memcmp(expected, lane->result, count * sizeof(float)) == 0)) {
        printf("rank %d: %s of %d elements has other bits\n", lane->rank, operations[o].name, (int)count);
    }
}

static void lose_right(const struct job *job, int rank, const struct shared_page *page)
{
    int victim = (rank + 1) % RANKS;
    if (!(job->ranks >> rank & 1)) {
        return;
    }
    switch (job->loss) {
    case NO_READ_BY_ONE: REQUIRE(refuse_syscall_on(SYS_process_vm_readv, page->pids[victim])); break;
    case NO_WRITE_BY_ONE: REQUIRE(refuse_syscall_on(SYS_process_vm_writev, page->pids[victim])); break;
    case SETUID: REQUIRE(setgid(NOBODY) == 0 && setuid(NOBODY) == 0); break;
    default: REQUIRE(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0);
    }
}

struct late_loss {
    const struct job *job;
    int rank;
};

static void *lose_right_later(void *arg)
{
    const struct late_loss *late = arg;
    struct timespec delay = { 0, 0 };
    delay.tv_nsec = late->job->delay_us * 1000L;
    nanosleep(&delay, NULL);
    lose_right(late->job, late->rank, NULL);
    return NULL;
}

static void run_all(const struct lane *lane, size_t count, int is_first)
{
    size_t o;
    for (o = 0; o < OPERATIONS; o++) {
        run_operation(lane, o, count, is_first);
    }
}

static int run_rank(struct shared_page *page, int rank, void *arg)
{
    const struct job *job = arg;
    const size_t count = job->loss == UNDUMPABLE_DURING_CALLS ? MOST_COUNT : MOST_COUNT / 2;
    struct lane lane = { NULL, rank, NULL, NULL, NULL };
    dist_store_t *store;
    if (job->loss != SETUID) {
        become_ordinary_user();
    }
    lane.own = malloc(MOST_COUNT * sizeof(float));
    lane.result = malloc(MOST_COUNT * sizeof(float));
    lane.expected = malloc(OPERATIONS * MOST_COUNT * sizeof(float));
    REQUIRE(lane.own != NULL && lane.result != NULL && lane.expected != NULL);
    REQUIRE_OK(dist_set_log_level(DIST_LOG_WARN));
    REQUIRE_OK(dist_set_log_callback(count_refusals, NULL));
    store = open_shared_store(page, rank);
    REQUIRE_OK(join_group(store, "all", rank, RANKS, &lane.group));
    fill(&lane, count);
    run_all(&lane, count, 1);
    CHECK(refusals == 0);
    if (job->loss == UNDUMPABLE_DURING_CALLS) {
        struct late_loss late;
        pthread_t thread;
        late.job = job;
        late.rank = rank;
        REQUIRE_OK(dist_barrier(lane.group, NULL, NULL));
        REQUIRE(pthread_create(&thread, NULL, lose_right_later, &late) == 0);
        run_all(&lane, count, 0);
        REQUIRE(pthread_join(thread, NULL) == 0);
    } else {
        REQUIRE_OK(dist_barrier(lane.group, NULL, NULL));
        lose_right(job, rank, page);
        REQUIRE_OK(dist_barrier(lane.group, NULL, NULL));
    }
    run_all(&lane, count, 0);
    /* A rank refuses, and others notice; no rank logs more than one line for each peer. */
    CHECK(refusals <= RANKS - 1);
    if (job->loss == NO_READ_BY_ONE || job->loss == NO_WRITE_BY_ONE) {
        CHECK(refusals == (job->ranks >> rank & 1));
    } else if (getuid() != 0) {
        /* A single rank that closes its memory can still read the others. */
        CHECK(refusals >= (job->loss != SETUID && job->ranks == 1 << rank ? 0 : 1));
        /* The right returns. */
        CHECK(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
    }
    run_all(&lane, count, 0);
    CHECK_OK(dist_group_release(lane.group));
    CHECK_OK(dist_store_release(store));
    return check_report();
}

/* Returns true if ordinary processes may read each other's memory here; if not, the library never
 * uses it, and there is no right to lose. */
static int can_read_siblings(void)
{
    int ready[2], outcome = 0;
    char byte = 1, target = 7;
    pid_t reader, owner = fork();
    REQUIRE(owner >= 0);
    if (owner == 0) {
        become_ordinary_user();
        nap_ms(3000);
        _exit(0);
    }
    nap_ms(200);
    REQUIRE(pipe(ready) == 0);
    reader = fork();
    REQUIRE(reader >= 0);
    if (reader == 0) {
        struct {
            void *start;
            size_t len;
        } remote = { &target, 1 }, local = { &byte, 1 };
        become_ordinary_user();
        _exit(syscall(SYS_process_vm_readv, owner, &local, 1, &remote, 1, 0) != 1);
    }
    REQUIRE(waitpid(reader, &outcome, 0) == reader && waitpid(owner, NULL, 0) == owner);
    return WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0;
}

int main(void)
{
    static struct job jobs[] = {
        { UNDUMPABLE, 1, 0 }, { UNDUMPABLE, 7, 0 }, { UNDUMPABLE, 6, 0 },
        { NO_READ_BY_ONE, 1, 0 }, { NO_READ_BY_ONE, 5, 0 }, { NO_WRITE_BY_ONE, 2, 0 }, { NO_WRITE_BY_ONE, 7, 0 },
        { SETUID, 7, 0 }, { SETUID, 2, 0 },
    };
    size_t j;
    int delay;
    if (!can_read_siblings()) {
        printf("processes may not read each other's memory here: there is no right to lose\n");
        return 0;
    }
    for (j = 0; j < sizeof(jobs) / sizeof(jobs[0]); j++) {
        int needs_root = jobs[j].loss == SETUID, needs_filter = jobs[j].loss > SETUID;
        if ((needs_root && getuid() != 0) || (needs_filter && !can_filter_syscalls())) {
            continue;
        }
        run_forks(RANKS, run_rank, &jobs[j]);
    }
    for (delay = 0; delay < 9; delay++) {
        struct job late = { UNDUMPABLE_DURING_CALLS, delay % 3 == 0 ? 7 : 1 << delay % 3, 0 };
        late.delay_us = 500 + delay * delay * 1500;
        run_forks(RANKS, run_rank, &late);
    }
    return check_report();
}
