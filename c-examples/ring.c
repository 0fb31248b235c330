/*
 * A ring of ranks: in each turn every rank sends to the next rank and receives from the previous
 * one. After size - 1 turns every rank has seen every block. The sum of all blocks must equal
 * the result of dist_all_reduce.
 *
 * A batch issues both calls of a turn together. If the blocks are too large for the library's
 * buffers, two consecutive blocking calls deadlock: every rank sends, and no rank receives.
 *
 *     distrun --nproc-per-node 4 ./ring
 */
#include "common/check.h"

#define COUNT (1 << 18) /* doubles: 2 MiB, far more than is buffered for a receiver */

/* Sends `out` to the next rank and receives `in` from the previous one. */
static void exchange_blocks(dist_group_t *world, int rank, int size, const double *out, double *in)
{
    check(dist_batch_begin(NULL, 0));
    check(dist_send(world, out, COUNT, DIST_F64, (rank + 1) % size, 0, NULL, NULL));
    check(dist_recv(world, in, COUNT, DIST_F64, (rank + size - 1) % size, 0, NULL, NULL, NULL));
    check(dist_batch_end(NULL));
}

static double *allocate_block(void)
{
    double *block = malloc(COUNT * sizeof *block);
    if (block == NULL) {
        fprintf(stderr, "no memory for a block\n");
        exit(3);
    }
    return block;
}

int main(void)
{
    check(dist_init(NULL));
    dist_group_t *world = dist_world();
    int rank = (int)dist_get_rank(world);
    int size = (int)dist_get_world_size(world);

    double *out = allocate_block();
    double *in = allocate_block();
    double *sum = allocate_block();
    double *expected = allocate_block();
    for (int i = 0; i < COUNT; i++) {
        out[i] = sum[i] = expected[i] = rank * 0.5 + i; /* exact in any order of addition */
    }

    for (int step = 1; step < size; step++) {
        exchange_blocks(world, rank, size, out, in);
        for (int i = 0; i < COUNT; i++) {
            sum[i] += in[i];
        }
        double *sent_block = out; /* the received block is sent in the next turn */
        out = in;
        in = sent_block;
    }

    check(dist_all_reduce(world, expected, expected, COUNT, DIST_F64, DIST_SUM, NULL, NULL));
    int n_wrong = 0;
    for (int i = 0; i < COUNT; i++) {
        n_wrong += sum[i] != expected[i];
    }
    printf("rank %d of %d: %s after %d turns\n", rank, size, n_wrong == 0 ? "the sums agree" : "the sums DIFFER",
           size - 1);

    free(out);
    free(in);
    free(sum);
    free(expected);
    check(dist_finalize());
    return n_wrong == 0 ? 0 : 1;
}
