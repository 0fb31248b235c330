/*
 * Late writes to peers' memory: a rank is stopped during an operation. Its peers reach their
 * deadline, fill their buffers with canaries and continue in a new group. Then the stopped rank
 * resumes in the middle of its copy. No canary may change, and no call may have reported success
 * with a wrong result.
 *
 *     late_write [SEED [ROUNDS]]
 *
 * The parent forks the ranks of each round before any of them uses the library, and never uses
 * the library itself.
 */
#define _DEFAULT_SOURCE
#include "check.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS 3
#define VICTIM 2
#define COUNT (1 << 20) /* floats: 4 MiB, several hundred microseconds of copying */
#define DEADLINE_MS 400
#define CANARY 0xC5

enum operation { ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, RING, OPERATIONS };
static const char *const names[OPERATIONS] = { "all_reduce", "broadcast", "all_gather", "reduce_scatter", "ring" };

/* Memory that the parent and the ranks share. */
struct round {
    int port;
    int started[RANKS]; /* the rank runs its operations */
    int failed[RANKS];  /* the rank has failed and written its canaries */
    int resumed;        /* the victim runs again */
};

static int load_flag(const int *flag)
{
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

static void store_flag(int *flag, int value)
{
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}

static void sleep_us(long microseconds)
{
    struct timespec time = { microseconds / 1000000, microseconds % 1000000 * 1000 };
    nanosleep(&time, NULL);
}

static void await_flag(const int *flag)
{
    for (int turn = 0; load_flag(flag) == 0; turn++) {
        REQUIRE(turn < LIMIT_MS);
        sleep_us(1000);
    }
}

static void *allocate_buffer(size_t floats)
{
    void *memory = malloc(floats * sizeof(float));
    REQUIRE(memory != NULL);
    return memory;
}

static int all_equal_to(const float *values, size_t count, float expected)
{
    for (size_t i = 0; i < count; i++) {
        if (values[i] != expected) {
            return 0;
        }
    }
    return 1;
}

static void fill(float *values, size_t count, float value)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = value;
    }
}

/* Makes one operation of the given kind and checks its result if it succeeds. */
static dist_status_t run_operation(dist_group_t *group, enum operation operation, int rank, float *send, float *recv)
{
    dist_status_t status = DIST_OK;
    fill(send, operation == REDUCE_SCATTER ? RANKS * COUNT : COUNT, (float)(rank + 1));
    switch (operation) {
    case ALL_REDUCE:
        status = dist_all_reduce(group, send, recv, COUNT, DIST_F32, DIST_SUM, NULL, NULL);
        CHECK(status != DIST_OK || all_equal_to(recv, COUNT, 6));
        break;
    case BROADCAST:
        fill(recv, COUNT, rank == 0 ? 9 : 0);
        status = dist_broadcast(group, recv, COUNT, DIST_F32, 0, NULL, NULL);
        CHECK(status != DIST_OK || all_equal_to(recv, COUNT, 9));
        break;
    case ALL_GATHER:
        status = dist_all_gather(group, send, recv, COUNT, DIST_F32, NULL, NULL);
        CHECK(status != DIST_OK || (all_equal_to(recv, COUNT, 1) && all_equal_to(recv + 2 * COUNT, COUNT, 3)));
        break;
    case REDUCE_SCATTER:
        status = dist_reduce_scatter(group, send, recv, COUNT, DIST_F32, DIST_SUM, NULL, NULL);
        CHECK(status != DIST_OK || all_equal_to(recv, COUNT, 6));
        break;
    default:
        CHECK_OK(dist_batch_begin(NULL, 0));
        CHECK_OK(dist_send(group, send, COUNT, DIST_F32, (rank + 1) % RANKS, 5, NULL, NULL));
        CHECK_OK(dist_recv(group, recv, COUNT, DIST_F32, (rank + RANKS - 1) % RANKS, 5, NULL, NULL, NULL));
        status = dist_batch_end(NULL);
        CHECK(status != DIST_OK || all_equal_to(recv, COUNT, (float)((rank + RANKS - 1) % RANKS + 1)));
    }
    return status;
}

static int are_canaries_intact(const void *memory, size_t floats)
{
    const unsigned char *bytes = memory;
    for (size_t i = 0; i < floats * sizeof(float); i++) {
        if (bytes[i] != CANARY) {
            return 0;
        }
    }
    return 1;
}

/* The survivors use a new group with other memory. */
static void continue_in_new_group(dist_store_t *store, int rank)
{
    dist_group_t *group = NULL;
    REQUIRE_OK(join_group(store, "survivors", rank, RANKS - 1, &group));
    float *values = allocate_buffer(COUNT);
    for (int turn = 0; turn < 5; turn++) {
        fill(values, COUNT, 1);
        CHECK_OK(dist_all_reduce(group, values, values, COUNT, DIST_F32, DIST_SUM, NULL, NULL));
        CHECK(all_equal_to(values, COUNT, 2));
    }
    free(values);
    CHECK_OK(dist_group_release(group));
}

static int run_rank(struct round *round, enum operation operation, int rank)
{
    dist_store_t *store = NULL;
    dist_store_tcp_options_t position = DIST_STORE_TCP_OPTIONS_INIT;
    position.host = "127.0.0.1";
    position.is_server = rank == 0;
    position.timeout_ms = LIMIT_MS;
    if (rank != 0) {
        await_flag(&round->port);
        position.port = load_flag(&round->port);
    }
    REQUIRE_OK(dist_store_tcp_create(&position, &store));
    if (rank == 0) {
        store_flag(&round->port, (int)dist_store_port(store));
    }

    dist_group_t *group = NULL;
    REQUIRE_OK(join_group(store, "all", rank, RANKS, &group));
    size_t floats = (size_t)RANKS * COUNT;
    float *send = allocate_buffer(floats);
    float *recv = allocate_buffer(floats);
    REQUIRE_OK(dist_group_set_timeout(group, DEADLINE_MS));
    store_flag(&round->started[rank], 1);

    dist_status_t status = DIST_OK;
    while (status == DIST_OK) {
        status = run_operation(group, operation, rank, send, recv);
    }
    /* The calls have returned, so the library no longer uses the memory. */
    memset(send, CANARY, floats * sizeof(float));
    memset(recv, CANARY, floats * sizeof(float));
    CHECK(status == DIST_ERR_TIMEOUT || status == DIST_ERR_PEER_FAILED || status == DIST_ERR_ABORTED);
    store_flag(&round->failed[rank], 1);

    if (rank != VICTIM) {
        continue_in_new_group(store, rank);
        await_flag(&round->resumed);
        await_flag(&round->failed[VICTIM]);
        continue_in_new_group(store, rank);
    }
    CHECK(are_canaries_intact(send, floats));
    CHECK(are_canaries_intact(recv, floats));
    CHECK_OK(dist_group_release(group));
    sleep_us(2000);
    CHECK(are_canaries_intact(send, floats));
    CHECK(are_canaries_intact(recv, floats));
    free(send);
    free(recv);
    CHECK_OK(dist_store_release(store));
    return check_report();
}

/* Forks the ranks of a round, stops and resumes the victim, and waits for all ranks. */
static void run_round(enum operation operation, long moment_us)
{
    struct round *round =
        mmap(NULL, sizeof *round, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(round != MAP_FAILED);
    fflush(stdout);
    pid_t ranks[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        ranks[rank] = fork();
        REQUIRE(ranks[rank] >= 0);
        if (ranks[rank] == 0) {
            int outcome = run_rank(round, operation, rank);
            fflush(stdout);
            _exit(outcome);
        }
    }
    for (int rank = 0; rank < RANKS; rank++) {
        await_flag(&round->started[rank]);
    }
    sleep_us(moment_us);
    kill(ranks[VICTIM], SIGSTOP);
    await_flag(&round->failed[0]);
    await_flag(&round->failed[1]);
    kill(ranks[VICTIM], SIGCONT);
    store_flag(&round->resumed, 1);
    for (int rank = 0; rank < RANKS; rank++) {
        int outcome = 0;
        CHECK(waitpid(ranks[rank], &outcome, 0) == ranks[rank]);
        CHECK(WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0);
    }
    munmap(round, sizeof *round);
}

int main(int argc, char **argv)
{
    unsigned long long random = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    int rounds = argc > 2 ? atoi(argv[2]) : OPERATIONS;
    for (int i = 0; i < rounds; i++) {
        random = random * 6364136223846793005ULL + 1442695040888963407ULL;
        long moment_us = (long)(random >> 33) % 20000;
        printf("%s, stopped after %ld us\n", names[i % OPERATIONS], moment_us);
        run_round((enum operation)(i % OPERATIONS), moment_us);
    }
    return check_report();
}
