/*
 * A rank of a peer that uses MPI.
 *
 *     mpi PREFIX
 *
 * PREFIX is the path prefix of the rank's files; rank.h describes them.
 */
#define _GNU_SOURCE
#include "rank.h"
#include <mpi.h>
#include <signal.h>
#include <sys/prctl.h>

enum { PING_PONG_TAG, SYNC_TAG }; /* tags */

static void fail(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* In MPI, types and operators are not constants, so functions return them. */
static MPI_Datatype type_of(const struct request *request)
{
    switch (request->dtype->kind) {
    case I8:
        return MPI_INT8_T;
    case U8:
        return MPI_UINT8_T;
    case I16:
        return MPI_INT16_T;
    case U16:
        return MPI_UINT16_T;
    case I32:
        return MPI_INT32_T;
    case U32:
        return MPI_UINT32_T;
    case I64:
        return MPI_INT64_T;
    case U64:
        return MPI_UINT64_T;
    case F32:
        return MPI_FLOAT;
    default:
        return MPI_DOUBLE;
    }
}

static MPI_Op operator_of(const struct request *request)
{
    return request->redop == MIN ? MPI_MIN : request->redop == MAX ? MPI_MAX : MPI_SUM;
}

static int call(const struct request *request, struct buffers *buffers)
{
    char *a = buffers->first, *b = buffers->second;
    MPI_Datatype type = type_of(request);
    MPI_Op redop = operator_of(request);
    MPI_Comm world = MPI_COMM_WORLD;
    int n = request->count, k = request->block, is_root = rank == ROOT;
    int has_root = request->op == REDUCE || request->op == GATHER;
    /* In reduce and gather, only the root uses MPI_IN_PLACE; other ranks have no result. */
    void *from = request->in_place && (is_root || !has_root) ? MPI_IN_PLACE : a;
    void *into = request->in_place ? a : b;
    switch (request->op) {
    case ALL_REDUCE:
        MPI_Allreduce(from, into, n, type, redop, world);
        break;
    case REDUCE:
        MPI_Reduce(from, into, n, type, redop, ROOT, world);
        break;
    case BROADCAST:
        MPI_Bcast(a, n, type, ROOT, world);
        break;
    case ALL_GATHER:
        MPI_Allgather(from, k, type, into, k, type, world);
        break;
    case REDUCE_SCATTER:
        MPI_Reduce_scatter_block(from, into, k, type, redop, world);
        break;
    case ALL_TO_ALL:
        MPI_Alltoall(a, k, type, b, k, type, world);
        break;
    case BARRIER:
        MPI_Barrier(world);
        break;
    case GATHER:
        MPI_Gather(from, k, type, into, k, type, ROOT, world);
        break;
    case SCATTER:
        MPI_Scatter(a, k, type, !is_root ? a : request->in_place ? MPI_IN_PLACE : b, k, type, ROOT, world);
        break;
    case SENDRECV:
        if (is_root) {
            MPI_Send(a, n, type, 1, PING_PONG_TAG, world);
            MPI_Recv(b, n, type, 1, PING_PONG_TAG, world, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(b, n, type, ROOT, PING_PONG_TAG, world, MPI_STATUS_IGNORE);
            MPI_Send(a, n, type, ROOT, PING_PONG_TAG, world);
        }
        break;
    default:
        return 0;
    }
    return 1;
}

static void sync_participants(const struct request *request)
{
    char byte = 0;
    if (request->op != SENDRECV) {
        sync_all();
    } else if (rank == ROOT) {
        MPI_Recv(&byte, 1, MPI_CHAR, 1, SYNC_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Send(&byte, 1, MPI_CHAR, ROOT, SYNC_TAG, MPI_COMM_WORLD);
    }
}

static void sync_all(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    /* If the launcher dies, no request will arrive: the kernel kills this rank. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 2) {
        fail("only dist-bench starts this program: mpi PREFIX");
    }
    serve(argv[1]);
    MPI_Finalize();
    return 0;
}
