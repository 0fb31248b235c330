/*
 * Communication during computation: the program sums each layer's gradients over all ranks while
 * it computes the next layer's gradients, as a trainer does in its backward pass.
 *
 *     distrun --nproc-per-node 4 ./overlap
 *
 * The last layer comes first. The program issues each sum with a work handle, so that the call
 * returns immediately. The library runs the sum on its own thread, and the program waits only
 * when it needs the result.
 */
#include "common/check.h"

#define LAYERS 8
#define COUNT 50000

static float gradients[LAYERS][COUNT];

/* A substitute for the backward pass of one layer. All values are small whole numbers, so that
 * every order of addition gives the same sum. */
static void compute_gradient(float *gradient, int layer, int rank)
{
    for (int i = 0; i < COUNT; i++) {
        gradient[i] = (float)((rank + 1) * (i % 50 + layer));
    }
}

static int is_expected_sum(const float *gradient, int layer, int size)
{
    for (int i = 0; i < COUNT; i++) {
        if (gradient[i] != (float)(size * (size + 1) / 2 * (i % 50 + layer))) {
            return 0;
        }
    }
    return 1;
}

int main(void)
{
    check(dist_init(NULL));
    int rank = (int)dist_get_rank(dist_world());
    int size = (int)dist_get_world_size(dist_world());
    dist_work_t *works[LAYERS];

    for (int layer = LAYERS - 1; layer >= 0; layer--) {
        compute_gradient(gradients[layer], layer, rank);
        /* The library uses the buffer until the work completes. */
        check(dist_all_reduce(dist_world(), gradients[layer], gradients[layer], COUNT, DIST_F32, DIST_SUM, NULL,
                              &works[layer]));
    }

    int done_early = 0;
    for (int layer = 0; layer < LAYERS; layer++) {
        int32_t is_done = 0;
        check(dist_work_test(works[layer], &is_done));
        done_early += is_done;
    }

    int n_wrong = 0;
    for (int layer = LAYERS - 1; layer >= 0; layer--) {
        /* 0: until the operation's own deadline. The sums run in the order of issue. */
        check(dist_work_wait(works[layer], 0));
        n_wrong += !is_expected_sum(gradients[layer], layer, size);
        if (rank == 0) {
            printf("layer %d: sum #%d took %.3f ms\n", layer, (int)dist_work_sequence(works[layer]),
                   (double)dist_work_elapsed_ns(works[layer]) / 1e6);
        }
        check(dist_work_release(works[layer]));
    }
    printf("rank %d of %d: %d layers correct, %d done before they were waited for\n", rank, size, LAYERS - n_wrong,
           done_early);

    check(dist_finalize());
    return n_wrong == 0 ? 0 : 1;
}
