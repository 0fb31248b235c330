/*
 * The training of train_digits, which continues when ranks die.
 *
 *     ./survive --ranks 8 --kill 0@100 --kill 3@100 --kill 6@100 --kill 1@300 --kill 7@300
 *
 * starts eight ranks, kills three of them during step 100 and two more during step 300, and ends
 * with the accuracy that eight ranks reach. Under a launcher that keeps the surviving ranks of a
 * job, the program is one rank of that job.
 *
 * If a call fails because a rank died, each survivor makes these calls:
 *
 *     dist_group_shrink   makes a group of the survivors;
 *     dist_all_gather     gives the last finished step of each rank, since the
 *                         failed sum may have completed on some ranks only;
 *     dist_broadcast      sends the state of the most advanced rank to all ranks.
 *
 * Then the survivors share the rows of the next batch. The batches do not depend on the number
 * of ranks. No step is lost or repeated, so only the rounding of the sums differs from a run
 * without failures.
 */
#define _POSIX_C_SOURCE 200112L

#include "../common/check.h"
#include "../digits_training/digits_data.h"
#include "../digits_training/mlp.h"
#include "../digits_training/rng.h"
#include "../digits_training/train_options.h"
#include "survive_job.h"

#include <inttypes.h>
#include <signal.h>
#include <string.h>

/* The maximum time between two calls of a live rank. */
#define SHRINK_TIMEOUT_MS 20000

/* The progress of a rank, without its weights. */
typedef struct progress {
    int64_t steps; /* finished */
    double loss;   /* of this epoch so far: the sum over its rows */
    double rows;
} progress_t;

/* The state of this process. */
typedef struct trainer {
    dist_group_t *group; /* of the surviving ranks */
    int rank, size;      /* in the group */
    int world_rank;      /* in the world group */
    train_options_t options;
    const survive_job_t *job;
    const digit_t *digits; /* DIGITS_ROWS rows: the first TRAIN_ROWS train, the rest is held out */
    uint32_t order[TRAIN_ROWS];
    rng_t rng;
    int64_t n_shuffles; /* the number of shuffles */
    mlp_t mlp;
    float *sums; /* the data of one all-reduce: the gradient, the loss, the number of rows */
    progress_t progress;
} trainer_t;

static void *require_memory(void *memory)
{
    if (memory == NULL) {
        fprintf(stderr, "survive: out of memory\n");
        exit(2);
    }
    return memory;
}

static void set_group(trainer_t *trainer, dist_group_t *group)
{
    trainer->group = group;
    trainer->rank = (int)dist_get_rank(group);
    trainer->size = (int)dist_get_world_size(group);
}

/* All ranks take over the state of the lowest rank with the most finished steps. */
static dist_status_t synchronise_state(trainer_t *trainer)
{
    progress_t *all = require_memory(malloc((size_t)trainer->size * sizeof *all));
    dist_status_t status =
        dist_all_gather(trainer->group, &trainer->progress, all, sizeof *all, DIST_U8, NULL, NULL);
    int32_t root = 0;
    if (status == DIST_OK) {
        for (int32_t rank = 1; rank < trainer->size; rank++) {
            root = all[rank].steps > all[root].steps ? rank : root;
        }
        trainer->progress = all[root];
    }
    free(all);
    if (status == DIST_OK) {
        status = dist_broadcast(trainer->group, trainer->mlp.weights, trainer->mlp.count, DIST_F32, root, NULL, NULL);
    }
    if (status == DIST_OK) {
        status = dist_broadcast(trainer->group, trainer->mlp.momentum, trainer->mlp.count, DIST_F32, root, NULL, NULL);
    }
    return status;
}

/* Returns true if the job may continue after a call with this status. */
static int is_survivable(dist_status_t status)
{
    return status == DIST_ERR_PEER_FAILED || status == DIST_ERR_ABORTED || status == DIST_ERR_TIMEOUT ||
           status == DIST_ERR_CONNECTION;
}

/* Continues with the survivors. If a rank dies during the recovery, the loop repeats it without
 * that rank. */
static void recover(trainer_t *trainer, dist_status_t status)
{
    dist_shrink_options_t options = DIST_SHRINK_OPTIONS_INIT;
    options.timeout_ms = SHRINK_TIMEOUT_MS;
    while (status != DIST_OK) {
        dist_group_t *survivors = NULL;
        if (!is_survivable(status)) {
            check(status);
        }
        check(dist_group_shrink(trainer->group, &options, &survivors));
        if (trainer->group != dist_world()) {
            check(dist_group_release(trainer->group));
        }
        int old_size = trainer->size;
        set_group(trainer, survivors);
        status = synchronise_state(trainer);
        if (status == DIST_OK && trainer->rank == 0) {
            printf("after step %" PRId64 ": %d of %d ranks go on\n", trainer->progress.steps, trainer->size, old_size);
            fflush(stdout);
        }
    }
}

/* Returns the shuffled row order of an epoch, counted from 0. */
static const uint32_t *shuffle_for_epoch(trainer_t *trainer, int64_t epoch)
{
    for (; trainer->n_shuffles <= epoch; trainer->n_shuffles++) {
        rng_shuffle(&trainer->rng, trainer->order, TRAIN_ROWS);
    }
    return trainer->order;
}

/* Trains on one batch. If it fails, the state is unchanged. */
static dist_status_t train_step(trainer_t *trainer)
{
    mlp_t *mlp = &trainer->mlp;
    const train_options_t *options = &trainer->options;
    progress_t *progress = &trainer->progress;
    const int64_t steps_per_epoch = (TRAIN_ROWS + options->batch - 1) / options->batch;
    const int64_t epoch = progress->steps / steps_per_epoch;
    const size_t first = (size_t)(progress->steps % steps_per_epoch) * options->batch;
    const size_t rows_left = TRAIN_ROWS - first;
    const uint32_t *rows = shuffle_for_epoch(trainer, epoch) + first;
    const size_t length = mlp->count + 2;

    memset(trainer->sums, 0, length * sizeof *trainer->sums);
    for (size_t i = (size_t)trainer->rank; i < rows_left && i < options->batch; i += (size_t)trainer->size) {
        trainer->sums[mlp->count] += mlp_accumulate(mlp, &trainer->digits[rows[i]], trainer->sums);
        trainer->sums[mlp->count + 1] += 1.0f;
    }
    if (survive_job_kills_rank(trainer->job, trainer->world_rank, progress->steps + 1)) {
        raise(SIGKILL);
    }
    dist_status_t status =
        dist_all_reduce(trainer->group, trainer->sums, trainer->sums, length, DIST_F32, DIST_SUM, NULL, NULL);
    if (status != DIST_OK) {
        return status;
    }
    const float loss = trainer->sums[mlp->count];
    const float trained_rows = trainer->sums[mlp->count + 1];
    mlp_step(mlp, trainer->sums, trained_rows, options->learning_rate);
    if (first == 0) {
        progress->loss = 0.0;
        progress->rows = 0.0;
    }
    progress->loss += loss;
    progress->rows += trained_rows;
    progress->steps++;
    if (progress->steps % steps_per_epoch == 0 && trainer->rank == 0) {
        printf("epoch %2" PRId64 "/%" PRIu32 "  loss %.6f\n", epoch + 1, options->epochs,
               progress->loss / progress->rows);
        fflush(stdout);
    }
    return DIST_OK;
}

/* Compares the weights of all ranks, and measures the share of held-out digits that are
 * recognised. */
static dist_status_t evaluate(trainer_t *trainer, int *identical, double *accuracy)
{
    uint64_t hash = mlp_hash(&trainer->mlp);
    uint64_t reference_hash = hash;
    int64_t counts[3] = {0, 0, 0}; /* right, seen, ranks with the weights of rank 0 */
    dist_status_t status = dist_broadcast(trainer->group, &reference_hash, 1, DIST_U64, 0, NULL, NULL);
    if (status != DIST_OK) {
        return status;
    }
    for (size_t i = TRAIN_ROWS + (size_t)trainer->rank; i < DIGITS_ROWS; i += (size_t)trainer->size) {
        counts[0] += mlp_classify(&trainer->mlp, &trainer->digits[i]) == trainer->digits[i].label;
        counts[1] += 1;
    }
    counts[2] = hash == reference_hash;
    status = dist_all_reduce(trainer->group, counts, counts, 3, DIST_I64, DIST_SUM, NULL, NULL);
    *identical = counts[2] == trainer->size;
    *accuracy = 100.0 * (double)counts[0] / (double)counts[1];
    return status;
}

/* Trains to the end with the surviving ranks. */
static int train(trainer_t *trainer)
{
    const int64_t steps_per_epoch = (TRAIN_ROWS + trainer->options.batch - 1) / trainer->options.batch;
    const int64_t steps = steps_per_epoch * trainer->options.epochs;
    int identical = 0;
    double accuracy = 0.0;
    for (;;) {
        int is_trained = trainer->progress.steps >= steps;
        dist_status_t status = is_trained ? evaluate(trainer, &identical, &accuracy) : train_step(trainer);
        if (status != DIST_OK) {
            recover(trainer, status);
        } else if (is_trained) {
            break;
        }
    }
    if (trainer->rank == 0) {
        printf("held-out accuracy: %.1f %%, weights %s on %d ranks\n", accuracy, identical ? "identical" : "differ",
               trainer->size);
    }
    return identical;
}

int main(int argc, char **argv)
{
    survive_job_t job = survive_job_parse(&argc, argv);
    if (!survive_job_is_rank()) {
        return survive_job_start(&job);
    }
    trainer_t trainer = {0};
    trainer.options = train_options_parse(argc, argv);
    trainer.job = &job;
    digit_t *digits = digits_load_split(trainer.options.data);
    if (digits == NULL) {
        return 2;
    }
    trainer.digits = digits;
    if (mlp_create(&trainer.mlp, trainer.options.hidden) != 0) {
        require_memory(NULL);
    }
    trainer.sums = require_memory(malloc((trainer.mlp.count + 2) * sizeof *trainer.sums));
    trainer.rng.state = trainer.options.seed + 1;
    for (uint32_t i = 0; i < TRAIN_ROWS; i++) {
        trainer.order[i] = i;
    }

    check(dist_init(NULL));
    set_group(&trainer, dist_world());
    trainer.world_rank = trainer.rank;
    /* All ranks draw the same weights; the synchronisation after a failure also ensures this. */
    rng_t rng = {trainer.options.seed};
    mlp_initialise(&trainer.mlp, &rng);
    dist_status_t status = synchronise_state(&trainer);
    if (status != DIST_OK) {
        recover(&trainer, status);
    }

    int identical = train(&trainer);
    if (trainer.group != dist_world()) {
        check(dist_group_release(trainer.group));
    }
    check(dist_finalize());
    free(trainer.sums);
    mlp_free(&trainer.mlp);
    free(digits);
    return identical ? 0 : 1;
}
