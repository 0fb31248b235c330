/*
 * Integrates 4 / (1 + x * x) from 0 to 1, which is pi, on several processes without a launcher:
 * the program forks its ranks itself. Each rank sums its share of the strips, and an all-reduce
 * adds the shares.
 *
 *     ./spawn [ranks]
 */
#include "common/check.h"

struct job {
    int ranks;
    long strips;
};

/* Runs in a separate process for each rank, which has a copy of the job. Returns the rank's exit
 * status, 0 for success. */
static int32_t integrate(int32_t rank, void *arg)
{
    const struct job *job = arg;
    double width = 1.0 / (double)job->strips;
    double sum = 0.0;

    check(dist_init(NULL));
    for (long i = rank; i < job->strips; i += job->ranks) {
        double x = ((double)i + 0.5) * width;
        sum += width * 4.0 / (1.0 + x * x);
    }
    check(dist_all_reduce(dist_world(), &sum, &sum, 1, DIST_F64, DIST_SUM, NULL, NULL));
    if (rank == 0) {
        printf("pi is about %.10f, says each of %d ranks\n", sum, job->ranks);
    }
    check(dist_finalize());
    return sum > 3.14159265 && sum < 3.14159266 ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct job job = { argc > 1 ? atoi(argv[1]) : 4, 10000000 };

    /* The call must be the first one to libdist, while the process has only one thread. */
    check(dist_spawn(integrate, &job, job.ranks, NULL));
    return 0;
}
