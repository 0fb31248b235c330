/*
 * Random trainings with gradients in device memory (../c/reducer_random.h), over NCCL and
 * through host memory. Arguments: the first seed and the number of seeds.
 */
#include "ranks.h"

#include "../c/reducer_random.h"

static uint64_t seed;

/* The rank of the calling thread. */
static __thread struct rank *own;

static void *memory_new(int rank, size_t bytes)
{
    (void)rank;
    return device_memory(bytes, NULL);
}

static void memory_free(int rank, void *memory)
{
    (void)rank;
    free_device(memory);
}

static void memory_write(int rank, void *to, const void *from, size_t bytes)
{
    (void)rank;
    if (bytes > 0) {
        write_device(own, to, from, bytes);
    }
}

static void memory_read(int rank, void *to, const void *from, size_t bytes)
{
    (void)rank;
    if (bytes > 0) {
        read_device(own, to, from, bytes);
    }
}

static void memory_place(int rank, dist_param_t *param)
{
    (void)rank;
    param->fields |= DIST_FIELD_DEVICE;
    param->device = own->device;
}

static void run_rank(struct rank *self)
{
    struct trainer trainer;
    struct plan *plan = new_plan(seed, 0);
    memset(&trainer, 0, sizeof(trainer));
    own = self;
    /* Every second seed uses a stream of the caller. */
    plan->options.stream = seed % 2 ? (void *)self->stream : NULL;
    trainer.plan = plan;
    trainer.rank = self->rank;
    trainer.group = self->group;
    train(&trainer);
    self->group = NULL; /* released */
    free(plan);
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, seeds = argc > 2 ? strtoull(argv[2], NULL, 10) : 60;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (seed = first; seed < first + seeds; seed++) {
        struct plan *plan = new_plan(seed, 0);
        int failed = checks.failed;
        run_on_ranks(plan->size, seed % 3 == 0 ? "native" : "cpu:native,cuda:nccl", run_rank);
        if (checks.failed != failed) {
            printf("seed %lu fails: %d ranks\n", (unsigned long)seed, plan->size);
            return 1;
        }
        free(plan);
    }
    printf("%lu seeds from %lu\n", (unsigned long)seeds, (unsigned long)first);
    check_nothing_leaked();
    return check_report();
}
