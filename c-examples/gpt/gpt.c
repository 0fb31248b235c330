/*
 * Trains a transformer with the shape of GPT-2, data parallel. Every rank holds the whole model
 * and computes the gradients of its own sequences, and a reducer averages them.
 *
 *     distrun --nproc-per-node 4 ./gpt
 *     distrun --nproc-per-node 4 ./gpt --steps 500 --checkpoint gpt.ckpt --resume
 *     distrun --nproc-per-node 4 ./gpt --zero 2
 *     distrun --nproc-per-node 4 --on-failure continue \
 *         ./gpt --zero 1 --survive --die-at 20 --die-rank 1
 *
 * These files call libdist; read them in this order:
 *
 *   - trainer.c: a step; gradients are reduced while the backward pass computes the next ones
 *   - optimizer.c: the update of the parameters, by every rank or in shares
 *   - recover.c: what the ranks do when one of them dies
 *   - restart.c: checkpoints of the training
 *
 * The other files are plain C:
 *
 *   - model.c: the parameters, tensors with the names of GPT-2
 *   - pass.c: the memory of the passes through the model
 *   - forward.c, backward.c: the two passes
 *   - layers.c, attention.c: the arithmetic of the layers
 *   - adam.c: AdamW
 *   - checkpoint.c: the file of a checkpoint
 *   - text.c: the text, sentences from a small grammar
 *   - options.c: the command line
 *
 * The sequences of a step depend on the seed and the number of the step only, and the ranks share
 * them. So every number of ranks computes the same losses, except for rounding.
 */
#include "../common/check.h"
#include "options.h"
#include "trainer.h"

int main(int argc, char **argv)
{
    const gpt_options_t options = gpt_options_parse(argc, argv);
    trainer_t trainer;
    check(dist_init(NULL));
    trainer_create(&trainer, dist_world(), &options);
    trainer_run(&trainer);
    const int is_identical = trainer_report(&trainer);
    trainer_release(&trainer);
    check(dist_finalize());
    return is_identical ? 0 : 1;
}
