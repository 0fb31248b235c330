/*
 * A rank of a peer that uses UCC directly.
 *
 *     ucc RANK RANKS PREFIX
 *
 * PREFIX is the path prefix of the rank's files; rank.h describes them. The ranks exchange the data
 * that creates the team through files with this prefix.
 */
#define _GNU_SOURCE
#include "rank.h"
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <ucc/api/ucc.h>

static ucc_context_h context;
static ucc_team_h team;
static int gathers;

static void fail(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    exit(1);
}

static void check(ucc_status_t status, const char *what)
{
    if (status != UCC_OK) {
        fprintf(stderr, "%s\n", ucc_status_string(status));
        fail(what);
    }
}

static void file_name(char *name, size_t length, int of_rank, const char *suffix)
{
    snprintf(name, length, "%s.oob.%d.%d%s", path_prefix, gathers, of_rank, suffix);
}

/* Gathers bytes of all ranks: each rank writes a file, and reads those of the others. */
static ucc_status_t gather(void *from, void *into, size_t bytes, void *info, void **request)
{
    char name[PATH_MAX], complete[PATH_MAX];
    file_name(name, sizeof name, rank, ".part");
    file_name(complete, sizeof complete, rank, "");
    FILE *file = fopen(name, "wb");
    if (file == NULL || fwrite(from, 1, bytes, file) != bytes || fclose(file) != 0 || rename(name, complete) != 0) {
        fail("cannot write a file of the exchange");
    }
    for (int other = 0; other < ranks; other++) {
        file_name(name, sizeof name, other, "");
        while ((file = fopen(name, "rb")) == NULL) {
            if (errno != ENOENT) {
                fail("cannot read a file of the exchange");
            }
            usleep(1000);
        }
        if (fread((char *)into + (size_t)other * bytes, 1, bytes, file) != bytes) {
            fail("a file of the exchange is too short");
        }
        fclose(file);
    }
    gathers++;
    (void)info;
    *request = &gathers;
    return UCC_OK;
}

static ucc_status_t is_gathered(void *request)
{
    (void)request;
    return UCC_OK;
}

static void create_team(void)
{
    ucc_lib_config_h lib_config;
    ucc_context_config_h config;
    ucc_lib_h lib;
    ucc_lib_params_t params = {.mask = UCC_LIB_PARAM_FIELD_THREAD_MODE, .thread_mode = UCC_THREAD_SINGLE};
    ucc_context_params_t context_params = {.mask = UCC_CONTEXT_PARAM_FIELD_TYPE, .type = UCC_CONTEXT_EXCLUSIVE};
    ucc_team_params_t team_params = {.mask = UCC_TEAM_PARAM_FIELD_EP | UCC_TEAM_PARAM_FIELD_EP_RANGE |
                                             UCC_TEAM_PARAM_FIELD_OOB};
    ucc_status_t status;
    check(ucc_lib_config_read(NULL, NULL, &lib_config), "ucc_lib_config_read");
    check(ucc_init(&params, lib_config, &lib), "ucc_init");
    check(ucc_context_config_read(lib, NULL, &config), "ucc_context_config_read");
    check(ucc_context_create(lib, &context_params, config, &context), "ucc_context_create");
    team_params.ep = (uint64_t)rank;
    team_params.oob = (ucc_team_oob_coll_t){gather, is_gathered, is_gathered, NULL, (uint32_t)ranks, (uint32_t)rank};
    check(ucc_team_create_post(&context, 1, &team_params, &team), "ucc_team_create_post");
    do {
        ucc_context_progress(context);
        status = ucc_team_create_test(team);
    } while (status == UCC_INPROGRESS);
    check(status, "ucc_team_create_test");
}

/* Runs a collective to its end. Returns 0 if UCC does not support it. */
static int run(ucc_coll_args_t *args)
{
    ucc_coll_req_h request;
    ucc_status_t status;
    args->mask |= UCC_COLL_ARGS_FIELD_FLAGS;
    args->flags |= UCC_COLL_ARGS_FLAG_COUNT_64BIT | UCC_COLL_ARGS_FLAG_DISPLACEMENTS_64BIT;
    status = ucc_collective_init(args, &request, team);
    if (status == UCC_ERR_NOT_SUPPORTED || status == UCC_ERR_NOT_IMPLEMENTED) {
        return 0;
    }
    check(status, "ucc_collective_init");
    check(ucc_collective_post(request), "ucc_collective_post");
    while ((status = ucc_collective_test(request)) == UCC_INPROGRESS) {
        ucc_context_progress(context);
    }
    check(status, "the collective");
    check(ucc_collective_finalize(request), "ucc_collective_finalize");
    return 1;
}

static ucc_datatype_t type_of(const struct request *request)
{
    static const ucc_datatype_t types[] = {UCC_DT_INT8,   UCC_DT_UINT8,  UCC_DT_INT16,  UCC_DT_UINT16,  UCC_DT_INT32,
                                           UCC_DT_UINT32, UCC_DT_INT64,  UCC_DT_UINT64, UCC_DT_FLOAT32, UCC_DT_FLOAT64};
    return types[request->dtype->kind];
}

/* A message is a broadcast between two ranks. */
static int transfer(const struct request *request, void *buffer, int from, int to)
{
    ucc_coll_args_t args = {.mask = UCC_COLL_ARGS_FIELD_ACTIVE_SET, .coll_type = UCC_COLL_TYPE_BCAST};
    args.src.info =
        (ucc_coll_buffer_info_t){buffer, (uint64_t)request->count, type_of(request), UCC_MEMORY_TYPE_HOST};
    args.root = (uint64_t)from;
    args.active_set.start = (uint64_t)from;
    args.active_set.stride = to - from;
    args.active_set.size = 2;
    return run(&args);
}

static int call(const struct request *request, struct buffers *buffers)
{
    static const ucc_coll_type_t kinds[] = {UCC_COLL_TYPE_ALLREDUCE, UCC_COLL_TYPE_BCAST, UCC_COLL_TYPE_ALLGATHER,
                                            UCC_COLL_TYPE_REDUCE_SCATTER, UCC_COLL_TYPE_ALLTOALL, UCC_COLL_TYPE_BARRIER,
                                            0, UCC_COLL_TYPE_REDUCE, UCC_COLL_TYPE_GATHER};
    char *a = buffers->first, *b = buffers->second;
    uint64_t n = (uint64_t)request->count, k = (uint64_t)request->block;
    ucc_coll_args_t args = {.root = ROOT};
    int is_root = rank == ROOT, has_root = request->op == REDUCE || request->op == GATHER;
    if (request->op == SENDRECV) {
        return is_root ? transfer(request, a, ROOT, 1) && transfer(request, b, 1, ROOT)
                       : transfer(request, b, ROOT, 1) && transfer(request, a, 1, ROOT);
    }
    /* UCC 1.2 has no scatter, and writes all blocks of a reduce_scatter in place. */
    if (request->op >= SCATTER || (request->op == REDUCE_SCATTER && request->in_place)) {
        return 0;
    }
    args.coll_type = kinds[request->op];
    args.op = request->redop == MIN ? UCC_OP_MIN : request->redop == MAX ? UCC_OP_MAX : UCC_OP_SUM;
    args.src.info = args.dst.info = (ucc_coll_buffer_info_t){a, n, type_of(request), UCC_MEMORY_TYPE_HOST};
    args.dst.info.buffer = request->in_place && request->op != ALL_TO_ALL ? a : b;
    if (request->op == ALL_GATHER || request->op == GATHER) {
        args.src.info.count = k;
    }
    if (request->op == REDUCE_SCATTER) {
        args.dst.info.count = k;
    }
    if (args.dst.info.buffer == a && (is_root || !has_root) && request->op != BROADCAST && request->op != BARRIER) {
        args.flags = UCC_COLL_ARGS_FLAG_IN_PLACE;
    }
    return run(&args);
}

static void sync_participants(const struct request *request)
{
    if (request->op == SENDRECV) {
        static char byte;
        struct request one = *request;
        one.count = 1;
        one.dtype = &DTYPES[0];
        transfer(&one, &byte, 1, ROOT);
    } else {
        sync_all();
    }
}

static void sync_all(void)
{
    ucc_coll_args_t args = {.coll_type = UCC_COLL_TYPE_BARRIER};
    run(&args);
}

int main(int argc, char **argv)
{
    /* If the launcher dies, no request will arrive: the kernel kills this rank. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc != 4) {
        fail("only dist-bench starts this program: ucc RANK RANKS PREFIX");
    }
    rank = atoi(argv[1]);
    ranks = atoi(argv[2]);
    path_prefix = argv[3];
    create_team();
    serve(argv[3]);
    return 0;
}
