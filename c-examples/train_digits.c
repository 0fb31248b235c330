/*
 * Trains a small neural network on images of hand-written digits, on all ranks of a job together
 * (data parallel).
 *
 *     distrun --nproc-per-node 4 ./train_digits
 *
 * Every rank holds the whole network and a share of every batch. The program uses these
 * functions of libdist:
 *
 *     dist_reducer_create   all ranks get rank 0's initial weights;
 *     dist_reducer_end      after each batch, sums the gradients over the ranks;
 *     dist_all_reduce       after each epoch, sums the losses over the ranks;
 *     dist_all_gather       at the end, each rank gets the hash of every rank's weights.
 *
 * All ranks shuffle the rows with the same seed, and rank r takes row i of a batch if i % size
 * == r. So the batches do not depend on the number of ranks, and the training differs only by
 * rounding. The reduced gradients have the same bits on all ranks, so the weights stay identical
 * without another transfer.
 */
#define _POSIX_C_SOURCE 200112L

#include "common/check.h"
#include "digits_training/digits_data.h"
#include "digits_training/mlp.h"
#include "digits_training/rng.h"
#include "digits_training/train_options.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

/* The state of this process. */
typedef struct trainer {
    dist_group_t *world;
    int rank, size;
    train_options_t options;
    const digit_t *digits; /* DIGITS_ROWS rows: the first TRAIN_ROWS train, the rest is held out */
    mlp_t mlp;
    dist_reducer_t *reducer;
    float *gradient; /* memory of the reducer for mlp.count numbers */
} trainer_t;

static void *require_memory(void *memory)
{
    if (memory == NULL) {
        fprintf(stderr, "train_digits: out of memory\n");
        exit(2);
    }
    return memory;
}

/* Only rank 0 draws the initial weights; the other ranks receive them when the reducer is
 * created. */
static void create_reducer(trainer_t *trainer)
{
    mlp_t *mlp = &trainer->mlp;
    if (trainer->rank == 0) {
        rng_t rng = {trainer->options.seed};
        mlp_initialise(mlp, &rng);
    }
    dist_param_t weights = DIST_PARAM_INIT;
    weights.name = "weights";
    weights.data = mlp->weights;
    weights.count = mlp->count;
    weights.dtype = DIST_F32;
    dist_reducer_options_t reducer_options = DIST_REDUCER_OPTIONS_INIT;
    reducer_options.divide = DIST_DIVIDE_NONE; /* mlp_step divides by the number of rows */
    void *gradient;
    check(dist_reducer_create(trainer->world, &weights, 1, &reducer_options, &trainer->reducer));
    check(dist_reducer_grad(trainer->reducer, 0, &gradient, NULL));
    trainer->gradient = gradient;
}

/* Trains on rows[0..count], and adds the sum of this rank's losses and its number of rows to the
 * epoch's. */
static void train_batch(trainer_t *trainer, const uint32_t *rows, size_t count, double *epoch_loss, double *epoch_rows)
{
    mlp_t *mlp = &trainer->mlp;
    int sync = trainer->options.sync;
    size_t own_rows = 0;

    check(dist_reducer_begin(trainer->reducer, 0, sync ? 0 : DIST_STEP_NO_SYNC));
    memset(trainer->gradient, 0, mlp->count * sizeof *trainer->gradient);
    for (size_t i = (size_t)trainer->rank; i < count; i += (size_t)trainer->size) {
        *epoch_loss += mlp_accumulate(mlp, &trainer->digits[rows[i]], trainer->gradient);
        own_rows++;
    }
    *epoch_rows += (double)own_rows;
    check(dist_reducer_ready(trainer->reducer, 0));
    check(dist_reducer_end(trainer->reducer, DIST_VOTE_COMMIT, NULL, NULL));

    size_t reduced_rows = sync ? count : own_rows;
    if (reduced_rows > 0) { /* without the exchange, a rank may have no row of a small batch */
        mlp_step(mlp, trainer->gradient, (float)reduced_rows, trainer->options.learning_rate);
    }
}

/* The mean loss of an epoch: over the rows of all ranks, or of this rank without the exchange. */
static double mean_loss(const trainer_t *trainer, double loss, double rows)
{
    double sums[2] = {loss, rows};
    if (trainer->options.sync) {
        check(dist_all_reduce(trainer->world, sums, sums, 2, DIST_F64, DIST_SUM, NULL, NULL));
    }
    return sums[0] / sums[1];
}

static void pause_ms(uint32_t ms)
{
    struct timespec time = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000L};
    nanosleep(&time, NULL);
}

static void train(trainer_t *trainer)
{
    const train_options_t *options = &trainer->options;
    rng_t rng = {options->seed + 1};
    uint32_t rows[TRAIN_ROWS];
    for (uint32_t i = 0; i < TRAIN_ROWS; i++) {
        rows[i] = i;
    }
    for (uint32_t epoch = 1; epoch <= options->epochs; epoch++) {
        double loss = 0.0;
        double trained_rows = 0.0;
        rng_shuffle(&rng, rows, TRAIN_ROWS);
        for (size_t first = 0; first < TRAIN_ROWS; first += options->batch) {
            size_t rows_left = TRAIN_ROWS - first;
            train_batch(trainer, rows + first, rows_left < options->batch ? rows_left : options->batch, &loss,
                        &trained_rows);
        }
        loss = mean_loss(trainer, loss, trained_rows);
        if (trainer->rank == 0) {
            printf("epoch %2" PRIu32 "/%" PRIu32 "  loss %.6f\n", epoch, options->epochs, loss);
            fflush(stdout);
        }
        if (options->sleep_ms_per_epoch > 0) {
            pause_ms(options->sleep_ms_per_epoch);
        }
    }
}

/* Returns true if all ranks hold the same weights. If they differ, rank 0 prints all hashes. */
static int has_identical_weights(const trainer_t *trainer)
{
    uint64_t hash = mlp_hash(&trainer->mlp);
    uint64_t *hashes = require_memory(malloc((size_t)trainer->size * sizeof *hashes));
    check(dist_all_gather(trainer->world, &hash, hashes, 1, DIST_U64, NULL, NULL));
    int is_identical = 1;
    for (int r = 1; r < trainer->size; r++) {
        is_identical = is_identical && hashes[r] == hashes[0];
    }
    if (!is_identical && trainer->rank == 0) {
        printf("weights differ:");
        for (int r = 0; r < trainer->size; r++) {
            printf("%s rank %d %016" PRIx64, r == 0 ? "" : ",", r, hashes[r]);
        }
        printf("\n");
    }
    free(hashes);
    return is_identical;
}

/* Returns the share of recognised held-out digits, in percent. */
static double held_out_accuracy(trainer_t *trainer)
{
    int64_t counts[2] = {0, 0}; /* right, seen */
    for (size_t i = TRAIN_ROWS + (size_t)trainer->rank; i < DIGITS_ROWS; i += (size_t)trainer->size) {
        counts[0] += mlp_classify(&trainer->mlp, &trainer->digits[i]) == trainer->digits[i].label;
        counts[1] += 1;
    }
    check(dist_all_reduce(trainer->world, counts, counts, 2, DIST_I64, DIST_SUM, NULL, NULL));
    return 100.0 * (double)counts[0] / (double)counts[1];
}

int main(int argc, char **argv)
{
    trainer_t trainer = {0};
    trainer.options = train_options_parse(argc, argv);
    digit_t *digits = digits_load_split(trainer.options.data);
    if (digits == NULL) {
        return 2;
    }
    trainer.digits = digits;
    if (mlp_create(&trainer.mlp, trainer.options.hidden) != 0) {
        require_memory(NULL);
    }

    dist_init_options_t init_options = DIST_INIT_OPTIONS_INIT;
    init_options.backend = trainer.options.backend;
    check(dist_init(&init_options));
    trainer.world = dist_world();
    trainer.rank = (int)dist_get_rank(trainer.world);
    trainer.size = (int)dist_get_world_size(trainer.world);

    create_reducer(&trainer);
    train(&trainer);
    int is_identical = has_identical_weights(&trainer);
    if (is_identical) {
        double accuracy = held_out_accuracy(&trainer);
        if (trainer.rank == 0) {
            printf("held-out accuracy: %.1f %%, weights identical on %d ranks\n", accuracy, trainer.size);
        }
    }

    check(dist_reducer_release(trainer.reducer));
    check(dist_finalize());
    mlp_free(&trainer.mlp);
    free(digits);
    return is_identical ? 0 : 1;
}
