/*
 * Compares dist_all_reduce over the back end "ucc" with the same call made directly in UCC, in turns
 * in one process. Each rank is one process; the second UCC team has the same ranks and settings.
 *
 *     RANK=r WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... ./overhead [BLOCKS]
 *
 * Each figure is the median of BLOCKS blocks (501) of calls.
 */
#include "dist.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucc/api/ucc.h>

enum { MAX_BLOCKS = 501, LARGEST = 1 << 20 };

#define REQUIRE(condition)                                                                        \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, dist_last_error());       \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

static ucc_context_h context;
static ucc_team_h team;
static int blocks = MAX_BLOCKS;
static float input[LARGEST / sizeof(float)], output[LARGEST / sizeof(float)];

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* The exchange for the team: a collective of libdist. */
static ucc_status_t gather(void *from, void *into, size_t bytes, void *info, void **request)
{
    (void)info;
    *request = request;
    REQUIRE(dist_all_gather(dist_world(), from, into, bytes, DIST_U8, NULL, NULL) == DIST_OK);
    return UCC_OK;
}

static ucc_status_t is_gathered(void *request)
{
    (void)request;
    return UCC_OK;
}

static void create_team(int rank, int size)
{
    ucc_lib_config_h lib_config;
    ucc_context_config_h config;
    ucc_lib_h lib;
    ucc_lib_params_t params = { .mask = UCC_LIB_PARAM_FIELD_THREAD_MODE, .thread_mode = UCC_THREAD_MULTIPLE };
    ucc_context_params_t context_params = { .mask = UCC_CONTEXT_PARAM_FIELD_TYPE, .type = UCC_CONTEXT_SHARED };
    ucc_team_params_t team_params = { 0 };
    ucc_status_t status;
    REQUIRE(ucc_lib_config_read(NULL, NULL, &lib_config) == UCC_OK);
    REQUIRE(ucc_init(&params, lib_config, &lib) == UCC_OK);
    REQUIRE(ucc_context_config_read(lib, NULL, &config) == UCC_OK);
    REQUIRE(ucc_context_create(lib, &context_params, config, &context) == UCC_OK);
    team_params.mask = UCC_TEAM_PARAM_FIELD_EP | UCC_TEAM_PARAM_FIELD_EP_RANGE | UCC_TEAM_PARAM_FIELD_OOB |
                       UCC_TEAM_PARAM_FIELD_ID;
    team_params.ep = (uint64_t)rank;
    team_params.id = 77;
    team_params.oob = (ucc_team_oob_coll_t){ gather, is_gathered, is_gathered, NULL, (uint32_t)size, (uint32_t)rank };
    REQUIRE(ucc_team_create_post(&context, 1, &team_params, &team) == UCC_OK);
    do {
        ucc_context_progress(context);
        status = ucc_team_create_test(team);
    } while (status == UCC_INPROGRESS);
    REQUIRE(status == UCC_OK);
}

static void call_ucc(size_t count)
{
    ucc_coll_req_h request;
    ucc_coll_args_t args = { 0 };
    args.coll_type = UCC_COLL_TYPE_ALLREDUCE;
    args.mask = UCC_COLL_ARGS_FIELD_FLAGS;
    args.flags = UCC_COLL_ARGS_FLAG_COUNT_64BIT;
    args.src.info = (ucc_coll_buffer_info_t){ input, count, UCC_DT_FLOAT32, UCC_MEMORY_TYPE_HOST };
    args.dst.info = (ucc_coll_buffer_info_t){ output, count, UCC_DT_FLOAT32, UCC_MEMORY_TYPE_HOST };
    args.op = UCC_OP_SUM;
    REQUIRE(ucc_collective_init(&args, &request, team) == UCC_OK);
    REQUIRE(ucc_collective_post(request) == UCC_OK);
    while (ucc_collective_test(request) == UCC_INPROGRESS) {
        ucc_context_progress(context);
    }
    REQUIRE(ucc_collective_test(request) == UCC_OK);
    ucc_collective_finalize(request);
}

static void call_dist(size_t count)
{
    REQUIRE(dist_all_reduce(dist_world(), input, output, count, DIST_F32, DIST_SUM, NULL, NULL) == DIST_OK);
}

static int compare(const void *one, const void *other)
{
    double difference = *(const double *)one - *(const double *)other;
    return difference < 0 ? -1 : difference > 0;
}

static double median(double *values)
{
    qsort(values, (size_t)blocks, sizeof(double), compare);
    return values[blocks / 2];
}

/* Returns the nanoseconds of one call, in a block of calls. */
static double time_block(void (*call)(size_t), size_t count, int calls)
{
    uint64_t start = now_ns();
    int i;
    for (i = 0; i < calls; i++) {
        call(count);
    }
    return (double)(now_ns() - start) / calls;
}

static void measure(int rank, size_t bytes, int calls)
{
    static double direct[MAX_BLOCKS], dist[MAX_BLOCKS];
    size_t count = bytes / sizeof(float);
    int i;
    double ucc_ns, dist_ns;
    for (i = 0; i < blocks; i++) {
        direct[i] = time_block(call_ucc, count, calls);
        dist[i] = time_block(call_dist, count, calls);
    }
    ucc_ns = median(direct);
    dist_ns = median(dist);
    if (rank == 0) {
        printf("%8zu B: UCC %10.0f ns, libdist %10.0f ns, adds %6.0f ns (%.1f %%)\n", bytes, ucc_ns, dist_ns,
               dist_ns - ucc_ns, 100 * (dist_ns - ucc_ns) / ucc_ns);
    }
}

int main(int argc, char **argv)
{
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    int rank, round;
    if (argc > 1) {
        blocks = atoi(argv[1]);
    }
    REQUIRE(blocks > 0 && blocks <= MAX_BLOCKS);
    options.backend = "ucc";
    REQUIRE(dist_init(&options) == DIST_OK);
    rank = dist_get_rank(dist_world());
    create_team(rank, dist_get_world_size(dist_world()));
    for (round = 0; round < 3; round++) {
        measure(rank, 4, 20);
        measure(rank, 1024, 20);
        measure(rank, 65536, 4);
        measure(rank, LARGEST, 1);
    }
    REQUIRE(dist_finalize() == DIST_OK);
    return 0;
}
