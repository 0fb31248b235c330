/*
 * Measures the overhead of libdist over MPI. Compares dist_all_reduce over the back end "mpi" with
 * MPI_Iallreduce in the same kind of wait loop, and with MPI's blocking function.
 *
 *     mpicc -O2 -std=gnu99 -I include plugins/mpi/bench/overhead.c -o overhead -L DIR
 *         -Wl,-rpath,DIR -ldist
 *     mpirun -n 2 ./overhead [elements...]
 *
 * DIR has libdist.so and the plug-in (cargo xtask mpi). One process measures all three in turn, a
 * few calls of each at a time, in an order that changes in each round. Rank 0 prints the medians
 * over the rounds, and the median of the differences within a round.
 */
#include <dist.h>
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 1001

static MPI_Comm comm;
static float *input, *output;

static void fail(const char *call)
{
    fprintf(stderr, "overhead: %s: %s\n", call, dist_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void run_dist(int count)
{
    if (dist_all_reduce(dist_world(), input, output, (size_t)count, DIST_F32, DIST_SUM, NULL, NULL) != DIST_OK) {
        fail("dist_all_reduce");
    }
}

static void run_mpi(int count)
{
    MPI_Request request;
    int done = 0;
    MPI_Iallreduce(input, output, count, MPI_FLOAT, MPI_SUM, comm, &request);
    while (!done) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
}

static void run_mpi_blocking(int count)
{
    MPI_Allreduce(input, output, count, MPI_FLOAT, MPI_SUM, comm);
}

static void (*const variants[])(int) = { run_mpi, run_dist, run_mpi_blocking };
#define VARIANTS 3

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof(*values), compare_doubles);
    return values[ROUNDS / 2];
}

static void measure(int count, int calls, int rank)
{
    static double times[VARIANTS][ROUNDS], differences[ROUNDS];
    int round, variant, call;
    double plain_us, dist_us, blocking_us, difference_us;
    for (round = -20; round < ROUNDS; round++) { /* the first ones warm up */
        for (variant = 0; variant < VARIANTS; variant++) {
            int chosen = (variant + round + 30) % VARIANTS;
            double start;
            MPI_Barrier(comm);
            start = MPI_Wtime();
            for (call = 0; call < calls; call++) {
                variants[chosen](count);
            }
            if (round >= 0) {
                times[chosen][round] = (MPI_Wtime() - start) * 1e6 / calls;
            }
        }
    }
    for (round = 0; round < ROUNDS; round++) {
        differences[round] = times[1][round] - times[0][round];
    }
    difference_us = median(differences);
    plain_us = median(times[0]);
    dist_us = median(times[1]);
    blocking_us = median(times[2]);
    if (rank == 0) {
        printf("%9d B   MPI_Iallreduce %10.3f us   dist_all_reduce %10.3f us   MPI_Allreduce %10.3f us   "
               "libdist adds %+8.3f us (%+.1f %%)\n",
               count * (int)sizeof(float), plain_us, dist_us, blocking_us, difference_us,
               100 * difference_us / plain_us);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    static const int all[] = { 1, 16, 256, 4096, 65536, 1048576 };
    const size_t max_count = 1048576;
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    int provided, rank, i, sizes;
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) {
        return 1;
    }
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_rank(comm, &rank);
    options.backend = "mpi";
    if (dist_init(&options) != DIST_OK) {
        fail("dist_init");
    }
    input = calloc(max_count, sizeof(*input));
    output = calloc(max_count, sizeof(*output));
    if (input == NULL || output == NULL) {
        fail("no memory");
    }
    memset(output, 1, max_count * sizeof(*output));
    sizes = argc > 1 ? argc - 1 : (int)(sizeof(all) / sizeof(*all));
    for (i = 0; i < sizes; i++) {
        int count = argc > 1 ? atoi(argv[i + 1]) : all[i];
        if (count < 1 || (size_t)count > max_count) {
            fprintf(stderr, "overhead: the number of elements must be from 1 to %zu\n", max_count);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        measure(count, count <= 256 ? 100 : count <= 65536 ? 10 : 1, rank);
    }
    if (dist_finalize() != DIST_OK) {
        fail("dist_finalize");
    }
    free(input);
    free(output);
    MPI_Comm_free(&comm);
    MPI_Finalize();
    return 0;
}
