/*
 * The training loop of a rank. The reducer sums the gradients of one layer while the backward
 * pass computes the next one.
 */
#define _POSIX_C_SOURCE 200112L

#include "trainer.h"

#include "../common/check.h"
#include "memory.h"
#include "recover.h"
#include "restart.h"
#include "text.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <string.h>

/* The other ranks may still be sending the parameters of the step before. */
static void use_values(void *user, size_t tensor)
{
    trainer_t *trainer = user;
    optimizer_wait(&trainer->optimizer, tensor);
}

/*
 * The backward pass writes into memory of the reducer, which other ranks of this host read without
 * a copy. With --zero 2 the reducer has memory for a few gradients, and gives each its place when
 * it is needed.
 */
static float *open_gradient(void *user, size_t tensor)
{
    const trainer_t *trainer = user;
    void *gradient;
    size_t count;
    check(dist_reducer_grad(trainer->reducer, tensor, &gradient, &count));
    if (trainer->is_first_micro_batch) {
        memset(gradient, 0, count * sizeof(float));
    }
    return gradient;
}

/* From now on the ranks may reduce the gradient, while the backward pass computes the next ones. */
static void close_gradient(void *user, size_t tensor)
{
    const trainer_t *trainer = user;
    const gpt_options_t *options = trainer->options;
    const int is_kill_point = tensor == trainer->model.n_tensors / 2;
    if (is_kill_point && trainer->finished_steps + 1 == options->die_at &&
        (uint64_t)trainer->world_rank == options->die_rank) {
        raise(SIGKILL);
    }
    check(dist_reducer_ready(trainer->reducer, tensor));
}

/* This rank has the sequences i of a batch with i % size == rank. */
static size_t count_own_sequences(const trainer_t *trainer)
{
    const size_t batch = (size_t)trainer->options->batch;
    const size_t rank = (size_t)trainer->rank;
    const size_t size = (size_t)trainer->size;
    return batch / size + (rank < batch % size);
}

/* Computes the losses and gradients of this rank's sequences `begin` to `end` - 1. Returns this
 * rank's vote. */
static uint64_t compute_gradients(trainer_t *trainer, size_t begin, size_t end)
{
    const gpt_options_t *options = trainer->options;
    const size_t length = (size_t)options->context + 1;
    uint8_t *tokens = allocate(length, sizeof *tokens);
    trainer->pass.sequences = 0;
    for (size_t i = begin; i < end; i++) {
        const size_t index = (size_t)trainer->rank + i * (size_t)trainer->size;
        text_sequence(options->seed, trainer->finished_steps, index, tokens, length);
        pass_add_sequence(&trainer->pass, tokens);
    }
    free(tokens);
    trainer->own_loss += pass_forward(&trainer->pass);
    if (!isfinite(trainer->own_loss)) {
        return DIST_VOTE_NON_FINITE;
    }
    /* The mean over the positions of this rank. The reducer weights it with the number of
     * sequences. */
    pass_backward(&trainer->pass, trainer->own_positions > 0.0 ? (float)(1.0 / trainer->own_positions) : 0.0f);
    return DIST_VOTE_COMMIT;
}

/* Ends the step, also if ranks die: the ranks that are left repeat it with the gradients that
 * they have. */
static uint64_t end_step(trainer_t *trainer, uint64_t vote)
{
    dist_status_t status;
    uint64_t all_votes;
    while ((status = dist_reducer_end(trainer->reducer, vote, &all_votes, NULL)) != DIST_OK) {
        recover(trainer, status);
    }
    return all_votes;
}

/* Sends the updated parameters, also if ranks die: the ranks that are left share out the states
 * of the optimizer again. */
static void gather_parameters(trainer_t *trainer)
{
    dist_status_t status;
    while ((status = optimizer_gather(&trainer->optimizer)) != DIST_OK) {
        recover(trainer, status);
    }
}

/* All ranks have the same votes and the same norm, so all of them make the same decision. */
static void update_parameters(trainer_t *trainer, uint64_t all_votes)
{
    if (all_votes == DIST_VOTE_COMMIT && isfinite(optimizer_clip(&trainer->optimizer))) {
        trainer->updates++;
        optimizer_update(&trainer->optimizer, trainer->updates);
    } else if (trainer->rank == 0) {
        printf("step %" PRIu64 "  no update: a loss or a gradient is infinite or NaN\n", trainer->finished_steps + 1);
        fflush(stdout);
    }
}

static void train_step(trainer_t *trainer)
{
    const size_t own = count_own_sequences(trainer);
    const size_t n_micro_batches = (size_t)trainer->options->accumulate;
    uint64_t vote = DIST_VOTE_COMMIT;
    /* a rank has more sequences after another one has died */
    pass_reserve(&trainer->pass, (own + n_micro_batches - 1) / n_micro_batches);
    trainer->loss = NAN;
    trainer->own_loss = 0.0;
    trainer->own_positions = (double)(own * trainer->model.shape.context);
    for (size_t micro_batch = 0; micro_batch < n_micro_batches; micro_batch++) {
        const int is_last = micro_batch + 1 == n_micro_batches;
        check(dist_reducer_begin(trainer->reducer, (double)own, is_last ? 0 : DIST_STEP_NO_SYNC));
        trainer->is_first_micro_batch = micro_batch == 0;
        vote |= compute_gradients(trainer, own * micro_batch / n_micro_batches,
                                  own * (micro_batch + 1) / n_micro_batches);
        if (!is_last) {
            check(dist_reducer_end(trainer->reducer, vote, NULL, NULL));
        }
    }
    update_parameters(trainer, end_step(trainer, vote));
    gather_parameters(trainer);
    trainer->finished_steps++;
}

/* Prints the mean loss of the last step over all ranks. It stays unknown if a rank dies. */
static void print_loss(trainer_t *trainer)
{
    double sums[2] = {trainer->own_loss, trainer->own_positions};
    if (!call_succeeded(trainer, dist_all_reduce(trainer->group, sums, sums, 2, DIST_F64, DIST_SUM, NULL, NULL))) {
        return;
    }
    trainer->loss = sums[0] / sums[1];
    if (trainer->rank == 0) {
        printf("step %" PRIu64 "  loss %.9f\n", trainer->finished_steps, trainer->loss);
        fflush(stdout);
    }
}

void trainer_run(trainer_t *trainer)
{
    const gpt_options_t *options = trainer->options;
    while (trainer->finished_steps < options->steps) {
        train_step(trainer);
        if (!is_at_same_step(trainer)) {
            continue;
        }
        const int is_last = trainer->finished_steps == options->steps;
        if (is_last || trainer->finished_steps % options->log_every == 0) {
            print_loss(trainer);
        }
        if (options->checkpoint != NULL && (is_last || trainer->finished_steps % options->checkpoint_every == 0)) {
            restart_save(trainer);
        }
    }
}

static uint64_t reducer_flags(const gpt_options_t *options)
{
    if (options->survive) {
        return DIST_REDUCER_RETRYABLE;
    }
    return options->zero == 2 ? DIST_REDUCER_SHARDED | DIST_REDUCER_SHARE_GRADS : 0;
}

static void create_reducer(trainer_t *trainer)
{
    const model_t *model = &trainer->model;
    dist_param_t *params = allocate(model->n_tensors, sizeof *params);
    for (size_t i = 0; i < model->n_tensors; i++) {
        const tensor_t *tensor = &model->tensors[i];
        params[i] = (dist_param_t)DIST_PARAM_INIT;
        params[i].name = tensor->name;
        params[i].data = tensor->values;
        params[i].shape = tensor->extents;
        params[i].n_shape = tensor->dimensions;
        params[i].count = tensor->count;
        params[i].dtype = DIST_F32;
        params[i].tag = tensor->block; /* the gradients of a layer do not wait for those of another one */
    }
    dist_reducer_options_t reducer_options = DIST_REDUCER_OPTIONS_INIT;
    reducer_options.name = "gpt";
    /* The mean over the sequences of all ranks, however many of them each rank has. */
    reducer_options.divide = DIST_DIVIDE_WEIGHTED;
    reducer_options.flags = reducer_flags(trainer->options);
    check(dist_reducer_create(trainer->group, params, model->n_tensors, &reducer_options, &trainer->reducer));
    free(params);
}

void trainer_create(trainer_t *trainer, dist_group_t *group, const gpt_options_t *options)
{
    const model_shape_t shape = {(size_t)options->layers, (size_t)options->heads, (size_t)options->width,
                                 (size_t)options->context, TEXT_TOKENS};
    memset(trainer, 0, sizeof *trainer);
    trainer->options = options;
    trainer->group = group;
    trainer->rank = trainer->world_rank = (int)dist_get_rank(group);
    trainer->size = (int)dist_get_world_size(group);
    trainer->loss = NAN;
    trainer->model = model_create(shape);
    if (trainer->rank == 0) { /* the other ranks get the values of rank 0 */
        model_initialise(&trainer->model, options->seed);
    }
    const pass_hooks_t hooks = {use_values, open_gradient, close_gradient, trainer};
    trainer->pass = pass_create(&trainer->model, hooks);
    checkpoint_t checkpoint;
    void *states;
    restart_load_parameters(trainer, &checkpoint, &states);
    create_reducer(trainer);
    optimizer_create(&trainer->optimizer, options, &trainer->model, trainer->reducer);
    restart_load_states(trainer, &checkpoint, states);
}

void trainer_release(trainer_t *trainer)
{
    optimizer_release(&trainer->optimizer);
    check(dist_reducer_release(trainer->reducer));
    if (trainer->group != dist_world()) {
        check(dist_group_release(trainer->group));
    }
    pass_free(&trainer->pass);
    model_free(&trainer->model);
}

int trainer_report(trainer_t *trainer)
{
    optimizer_wait_all(&trainer->optimizer);
    dist_status_t status;
    dist_blob_t *differences;
    while ((status = dist_reducer_check(trainer->reducer, DIST_REDUCER_PARAMS, &differences)) != DIST_OK) {
        recover(trainer, status);
    }
    const size_t n = dist_blob_count(differences);
    for (size_t i = 0; i < n && trainer->rank == 0; i++) {
        const void *text;
        size_t length;
        check(dist_blob_data(differences, i, &text, &length));
        printf("%.*s\n", (int)length, (const char *)text);
    }
    check(dist_blob_release(differences));
    if (n == 0 && trainer->rank == 0) {
        if (!isnan(trainer->loss)) {
            printf("final loss %.9f  ", trainer->loss);
        }
        printf("parameters %016" PRIx64 ", identical on %d ranks\n", model_hash(&trainer->model), trainer->size);
    }
    return n == 0;
}
