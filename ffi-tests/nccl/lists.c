/*
 * Collectives on lists of tensors in device memory and in host memory: values, streams of the
 * caller and of the library, works, batches, and lists whose kinds of memory differ. The test runs
 * over NCCL. With the argument `staging`, it runs with staging through host memory, in several
 * pieces.
 */
#include "ranks.h"

#include <stdint.h>

#define N_TENSORS 12
#define MOST_BYTES (MAX_RANKS * 80000)

/* A list with alternating kinds of memory. The lengths are for one block, in elements of 1, 4 or 8
 * bytes. */
static const size_t lengths[N_TENSORS] = { 1, 3, 20000, 70, 0, 0, 1025, 70001, 4096, 9, 2, 33 };
static const dist_dtype_t types[N_TENSORS] = { DIST_U8,  DIST_U32, DIST_U32, DIST_U8, DIST_U64, DIST_U8,
                                               DIST_U64, DIST_U8,  DIST_U8,  DIST_U8, DIST_U32, DIST_U64 };

struct list {
    dist_tensor_t tensors[N_TENSORS];
    int64_t shapes[N_TENSORS][2];
    char names[N_TENSORS][16];
    void *memory[N_TENSORS];
    size_t bytes[N_TENSORS];
    int blocks;
};

static int is_on_device(size_t i)
{
    return i % 2 == 0;
}

static unsigned char byte_of(size_t tensor, size_t at, int rank)
{
    return (unsigned char)((tensor * 5 + at * 3 + at / 251 + (size_t)rank * 7) % 50 + 1);
}

static struct list new_list(const struct rank *self, int blocks)
{
    struct list list = { .blocks = blocks };
    for (size_t i = 0; i < N_TENSORS; i++) {
        static const dist_tensor_t init = DIST_TENSOR_INIT;
        dist_tensor_t *tensor = &list.tensors[i];
        *tensor = init;
        list.bytes[i] = lengths[i] * (size_t)blocks * dist_dtype_size(types[i]);
        list.memory[i] = is_on_device(i) ? device_memory(list.bytes[i] + 1, NULL) : malloc(list.bytes[i] + 1);
        REQUIRE(list.memory[i] != NULL && list.bytes[i] <= MOST_BYTES * sizeof(uint64_t));
        sprintf(list.names[i], "t%zu", i);
        list.shapes[i][0] = blocks;
        list.shapes[i][1] = (int64_t)lengths[i];
        tensor->data = list.bytes[i] == 0 ? NULL : list.memory[i];
        tensor->dtype = types[i];
        tensor->n_shape = 2;
        if (is_on_device(i)) {
            tensor->fields = DIST_FIELD_DEVICE;
            tensor->device = self->device;
        }
    }
    return list;
}

/* Sets the addresses of names and shapes, which belong to this object, and writes the data. */
static void fill(struct rank *self, struct list *list)
{
    for (size_t i = 0; i < N_TENSORS; i++) {
        unsigned char *bytes = malloc(list->bytes[i] + 1);
        REQUIRE(bytes != NULL);
        list->tensors[i].name = list->names[i];
        list->tensors[i].shape = list->shapes[i];
        for (size_t at = 0; at < list->bytes[i]; at++) {
            bytes[at] = byte_of(i, at, self->rank);
        }
        if (is_on_device(i)) {
            write_device(self, list->memory[i], bytes, list->bytes[i]);
        } else {
            memcpy(list->memory[i], bytes, list->bytes[i]);
        }
        free(bytes);
    }
}

/* Checks block `block` of each tensor: the data of the rank `from`, or the sums of all ranks if
 * `from` is negative. Each byte of a sum fits a byte. */
static void check_block(struct rank *self, const struct list *list, int block, int from)
{
    for (size_t i = 0; i < N_TENSORS; i++) {
        size_t len = list->bytes[i] / (size_t)list->blocks;
        unsigned char *bytes = malloc(list->bytes[i] + 1);
        REQUIRE(bytes != NULL);
        if (is_on_device(i)) {
            read_device(self, bytes, list->memory[i], list->bytes[i]);
        } else {
            memcpy(bytes, list->memory[i], list->bytes[i]);
        }
        for (size_t at = (size_t)block * len; at < (size_t)(block + 1) * len; at++) {
            int expected = from >= 0 ? byte_of(i, at, from) : 0;
            for (int rank = 0; from < 0 && rank < self->size; rank++) {
                expected += byte_of(i, at, rank);
            }
            if (!CHECK(bytes[at] == expected)) {
                printf("  tensor %zu, byte %zu: %d, wanted %d\n", i, at, bytes[at], expected);
                break;
            }
        }
        free(bytes);
    }
}

static void free_list(struct list *list)
{
    for (size_t i = 0; i < N_TENSORS; i++) {
        if (is_on_device(i)) {
            free_device(list->memory[i]);
        } else {
            free(list->memory[i]);
        }
    }
}

/* Runs a call: 0 blocks, 1 takes a work, 2 joins a batch. */
#define RUN(form, function, ...) \
    do { \
        dist_work_t *work = NULL; \
        if (form == 2) { \
            REQUIRE_OK(dist_batch_begin(NULL, 0)); \
        } \
        CHECK_OK(function(self->group, __VA_ARGS__, form == 1 ? &work : NULL)); \
        if (form == 2) { \
            REQUIRE_OK(dist_batch_end(&work)); \
        } \
        if (form > 0) { \
            CHECK_OK(dist_work_wait(work, 0)); \
            CHECK_OK(dist_work_synchronize(work, 0)); \
            CHECK_OK(dist_work_release(work)); \
        } else { \
            CHECK(cuStreamSynchronize(self->stream) == CUDA_SUCCESS); \
        } \
    } while (0)

static void check_calls(struct rank *self, const dist_call_options_t *options, int form)
{
    struct list whole = new_list(self, 1), blocks = new_list(self, self->size);
    int root = self->size - 1;
    fill(self, &whole);
    RUN(form, dist_broadcast_list, whole.tensors, N_TENSORS, root, options);
    check_block(self, &whole, 0, root);
    fill(self, &whole);
    RUN(form, dist_all_reduce_list, whole.tensors, N_TENSORS, DIST_SUM, options);
    check_block(self, &whole, 0, -1);
    fill(self, &blocks);
    RUN(form, dist_all_gather_list, blocks.tensors, N_TENSORS, options);
    for (int r = 0; r < self->size; r++) {
        check_block(self, &blocks, r, r);
    }
    fill(self, &blocks);
    RUN(form, dist_reduce_scatter_list, blocks.tensors, N_TENSORS, DIST_SUM, options);
    check_block(self, &blocks, self->rank, -1);
    free_list(&whole);
    free_list(&blocks);
}

static void check_all_forms(struct rank *self)
{
    dist_call_options_t options = stream_options(self);
    /* The location is that of each tensor. */
    options.flags = 0;
    options.device = 0;
    for (int form = 0; form < 3; form++) {
        check_calls(self, NULL, form);
        check_calls(self, &options, form);
    }
}

/* A tensor of one rank is in the other kind of memory. */
static void check_kinds_of_memory(struct rank *self)
{
    struct list list = new_list(self, 1);
    unsigned char other[8] = { 0 };
    fill(self, &list);
    if (self->rank == 0 && self->size > 1) {
        list.tensors[0].data = other;
        list.tensors[0].fields = 0;
    }
    if (self->size > 1) {
        CHECK_REFUSED(dist_broadcast_list(self->group, list.tensors, N_TENSORS, 0, NULL, NULL), DIST_ERR_MISMATCH,
                      "tensor 0 \"t0\": the kinds of memory differ");
    }
    check_block(self, &list, 0, self->rank);
    list.tensors[0].data = list.memory[0];
    list.tensors[0].fields = 0;
    CHECK_REFUSED(dist_broadcast_list(self->group, list.tensors, 1, 0, NULL, NULL), DIST_ERR_INVALID_ARGUMENT,
                  "its description has no device");
    list.tensors[0].fields = DIST_FIELD_DEVICE;
    CHECK_OK(dist_broadcast_list(self->group, list.tensors, N_TENSORS, 0, NULL, NULL));
    check_block(self, &list, 0, 0);
    free_list(&list);
}

static void run_all_checks(struct rank *self)
{
    check_all_forms(self);
    check_kinds_of_memory(self);
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
}

/* All tensors in device memory need one launch of NCCL, also in a group without collectives in host
 * memory. */
static void tensors_share_a_launch(struct rank *self)
{
    struct list list = new_list(self, 1);
    dist_tensor_t on_device[N_TENSORS / 2];
    fill(self, &list);
    for (size_t i = 0; i < N_TENSORS / 2; i++) {
        on_device[i] = list.tensors[2 * i];
    }
    unsigned long before = launched_groups();
    CHECK_OK(dist_all_reduce_list(self->group, on_device, N_TENSORS / 2, DIST_SUM, NULL, NULL));
    CHECK(launched_groups() == before + has_stubs());
    free_list(&list);
}

int main(int argc, char **argv)
{
    int is_staged = argc > 1 && strcmp(argv[1], "staging") == 0;
    for (int size = 1; size <= MAX_RANKS; size++) {
        if (is_staged) {
            run_on_ranks_with_options(size, "native", "staging.chunk_bytes=4096", run_all_checks);
        } else {
            run_on_ranks(size, "cpu:native,cuda:nccl", run_all_checks);
        }
    }
    if (is_staged) {
        run_on_ranks_with_options(3, "native", "staging.chunk_bytes=4096;host_id=", run_all_checks);
    } else {
        run_on_ranks(1, "nccl", tensors_share_a_launch);
    }
    check_nothing_leaked();
    return check_report();
}
