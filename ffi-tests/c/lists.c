/*
 * Collectives on lists of tensors: values over each transport and between mixed hosts, with and
 * without the checks of DIST_DEBUG_DETAIL; lists that differ between ranks; works and batches;
 * refusals.
 */
#include "ranks.h"

/* The small tensors of one type together exceed the memory of one copy (4 MiB). */
#define N_SMALL 80
#define SMALL_COUNT 60000
#define HUGE_COUNT 1500000

enum { EVERY_TYPE = 17, N_TENSORS = EVERY_TYPE + N_SMALL + 3 };

/* A list with its memory. The first 17 tensors have one type each; then come small ones of one
 * type, an empty one, a huge one, and one without dimensions. */
struct list {
    dist_tensor_t tensors[N_TENSORS];
    int64_t shapes[N_TENSORS][2];
    char names[N_TENSORS][32];
    unsigned char *memory[N_TENSORS];
    size_t bytes[N_TENSORS];
    size_t n;
};

static unsigned char byte_of(size_t tensor, size_t at, int rank)
{
    return (unsigned char)(tensor * 31 + at * 7 + at / 253 + (size_t)rank * 101 + 1);
}

static void set_tensor(struct list *list, size_t i, dist_dtype_t dtype, int64_t rows, int64_t columns)
{
    static const dist_tensor_t init = DIST_TENSOR_INIT;
    dist_tensor_t *tensor = &list->tensors[i];
    *tensor = init;
    sprintf(list->names[i], "layer.%lu", (unsigned long)i);
    list->shapes[i][0] = rows;
    list->shapes[i][1] = columns;
    list->bytes[i] = (size_t)(rows * columns) * dist_dtype_size(dtype);
    list->memory[i] = malloc(list->bytes[i] + 1);
    REQUIRE(list->memory[i] != NULL);
    list->memory[i][list->bytes[i]] = 0x5a;
    tensor->name = list->names[i];
    tensor->dtype = dtype;
    tensor->shape = list->shapes[i];
    tensor->n_shape = 2;
    tensor->data = list->bytes[i] == 0 ? NULL : list->memory[i];
}

/* Makes a list whose tensors have `blocks` blocks. */
static struct list *new_list(int blocks)
{
    static const dist_dtype_t types[EVERY_TYPE] = {
        DIST_I8, DIST_U8, DIST_I16, DIST_U16, DIST_I32, DIST_U32, DIST_I64, DIST_U64, DIST_F16,
        DIST_BF16, DIST_F32, DIST_F64, DIST_C64, DIST_C128, DIST_BOOL, DIST_F8E4M3, DIST_F8E5M2
    };
    struct list *list = malloc(sizeof(*list));
    size_t i;
    REQUIRE(list != NULL);
    for (i = 0; i < EVERY_TYPE; i++) {
        set_tensor(list, i, types[i], blocks, (int64_t)i + 1);
    }
    for (; i < EVERY_TYPE + N_SMALL; i++) {
        set_tensor(list, i, DIST_U8, blocks, SMALL_COUNT / blocks);
    }
    set_tensor(list, i, DIST_U32, blocks, 0);
    set_tensor(list, i + 1, DIST_U32, blocks, HUGE_COUNT / blocks);
    set_tensor(list, i + 2, DIST_U16, 1, 1);
    list->tensors[i + 2].shape = NULL;
    list->tensors[i + 2].n_shape = 0;
    /* A tensor without dimensions has no blocks. */
    list->n = blocks == 1 ? N_TENSORS : N_TENSORS - 1;
    return list;
}

static void fill(struct list *list, int rank)
{
    size_t i, at;
    for (i = 0; i < list->n; i++) {
        for (at = 0; at < list->bytes[i]; at++) {
            list->memory[i][at] = byte_of(i, at, rank);
        }
    }
}

static void free_list(struct list *list)
{
    size_t i;
    for (i = 0; i < N_TENSORS; i++) {
        CHECK(list->memory[i][list->bytes[i]] == 0x5a);
        free(list->memory[i]);
    }
    free(list);
}

/* Checks the bytes of a part of each tensor: those of the rank `from`. */
static void check_bytes(const struct list *list, int from, int block, int blocks)
{
    size_t i, at;
    for (i = 0; i < list->n; i++) {
        size_t len = list->bytes[i] / (size_t)blocks;
        for (at = (size_t)block * len; at < (size_t)(block + 1) * len; at++) {
            if (list->memory[i][at] != byte_of(i, at, from)) {
                printf("tensor %lu, byte %lu\n", (unsigned long)i, (unsigned long)at);
                CHECK(list->memory[i][at] == byte_of(i, at, from));
                return;
            }
        }
    }
}

/* Checks a part of each tensor of integers without sign: the maximum of all ranks. */
static void check_maxima(const struct list *list, int block, int blocks, int size)
{
    size_t i, at;
    int rank;
    for (i = 0; i < list->n; i++) {
        size_t len = list->bytes[i] / (size_t)blocks;
        if (list->tensors[i].dtype != DIST_U8) {
            continue;
        }
        for (at = (size_t)block * len; at < (size_t)(block + 1) * len; at++) {
            unsigned char most = 0;
            for (rank = 0; rank < size; rank++) {
                unsigned char byte = byte_of(i, at, rank);
                most = byte > most ? byte : most;
            }
            if (list->memory[i][at] != most) {
                CHECK(list->memory[i][at] == most);
                return;
            }
        }
    }
}

/* Removes the tensors for which DIST_MAX is not defined: complex numbers. */
static void keep_ordered_types(struct list *list)
{
    size_t i;
    for (i = 0; i < EVERY_TYPE; i++) {
        if (list->tensors[i].dtype == DIST_C64 || list->tensors[i].dtype == DIST_C128) {
            list->tensors[i].dtype = DIST_F32;
            list->shapes[i][0] = 0;
        }
    }
}

static void check_values(const struct rank *me)
{
    struct list *whole = new_list(1), *blocks = new_list(me->size);
    int root = me->size - 1;
    int r;
    fill(whole, me->rank);
    CHECK_OK(dist_broadcast_list(me->group, whole->tensors, whole->n, root, NULL, NULL));
    check_bytes(whole, root, 0, 1);
    fill(blocks, me->rank);
    CHECK_OK(dist_all_gather_list(me->group, blocks->tensors, blocks->n, NULL, NULL));
    for (r = 0; r < me->size; r++) {
        check_bytes(blocks, r, r, me->size);
    }
    keep_ordered_types(whole);
    keep_ordered_types(blocks);
    fill(whole, me->rank);
    CHECK_OK(dist_all_reduce_list(me->group, whole->tensors, whole->n, DIST_MAX, NULL, NULL));
    check_maxima(whole, 0, 1, me->size);
    fill(blocks, me->rank);
    CHECK_OK(dist_reduce_scatter_list(me->group, blocks->tensors, blocks->n, DIST_MAX, NULL, NULL));
    check_maxima(blocks, me->rank, me->size, me->size);
    for (r = 0; r < me->size; r++) {
        if (r != me->rank) {
            check_bytes(blocks, me->rank, r, me->size);
        }
    }
    CHECK_OK(dist_broadcast_list(me->group, NULL, 0, 0, NULL, NULL));
    CHECK_OK(dist_all_reduce_list(me->group, NULL, 0, DIST_SUM, NULL, NULL));
    free_list(whole);
    free_list(blocks);
}

/* All ranks, also the one that differs, get the same text. */
static void check_mismatch(const struct rank *me, struct list *list, size_t n, const char *text)
{
    dist_work_t *work = NULL;
    fill(list, me->rank);
    CHECK_REFUSED(dist_broadcast_list(me->group, list->tensors, n, 0, NULL, NULL), DIST_ERR_MISMATCH, text);
    CHECK_MESSAGE("on rank 0 (");
    CHECK_OK(dist_all_reduce_list(me->group, list->tensors, n, DIST_BOR, NULL, &work));
    CHECK_REFUSED(dist_work_wait(work, 0), DIST_ERR_MISMATCH, text);
    CHECK_OK(dist_work_release(work));
    check_bytes(list, me->rank, 0, 1);
}

static void check_differences(const struct rank *me)
{
    struct list *list = new_list(1);
    dist_culprit_t culprit = DIST_CULPRIT_INIT;
    int odd = me->size - 1;
    int differs = me->rank == odd;
    /* Only integers, so that each operation is defined. */
    size_t n = 8;
    char text[128];
    list->n = n;
    if (differs) {
        list->tensors[3].name = "other";
    }
    sprintf(text, "tensor 3: the names differ: \"other\" on rank %d (", odd);
    check_mismatch(me, list, n, text);
    list->tensors[3].name = list->names[3];
    if (differs) {
        list->shapes[5][0] = 6;
        list->shapes[5][1] = 1;
    }
    sprintf(text, "tensor 5 \"layer.5\": the shapes differ: [6, 1] on rank %d (", odd);
    check_mismatch(me, list, n, text);
    list->shapes[5][0] = 1;
    list->shapes[5][1] = 6;
    if (differs) {
        list->tensors[4].dtype = DIST_U32;
    }
    sprintf(text, "tensor 4 \"layer.4\": the types differ: u32 on rank %d (", odd);
    check_mismatch(me, list, n, text);
    list->tensors[4].dtype = DIST_I32;
    sprintf(text, "tensor 7: the lists have different lengths: only 7 tensors on rank %d (", odd);
    check_mismatch(me, list, differs ? 7 : n, text);
    CHECK_REFUSED(dist_broadcast_list(me->group, list->tensors, n, differs ? 1 : 0, NULL, NULL), DIST_ERR_MISMATCH,
                  "the operations differ: broadcast_list (root 1) on rank");
    /* The group works on. */
    CHECK_OK(dist_group_culprit(me->group, &culprit));
    CHECK(culprit.rank == -1);
    fill(list, me->rank);
    CHECK_OK(dist_broadcast_list(me->group, list->tensors, n, 0, NULL, NULL));
    check_bytes(list, 0, 0, 1);
    list->n = N_TENSORS;
    free_list(list);
}

/* The calls run in the order of their issue, with other calls between them. */
static void check_works_and_batches(const struct rank *me)
{
    struct list *one = new_list(1), *other = new_list(me->size);
    dist_work_t *works[3] = { NULL, NULL, NULL };
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    float value = (float)me->rank;
    int r;
    options.label = "weights";
    fill(one, me->rank);
    fill(other, me->rank);
    CHECK_OK(dist_broadcast_list(me->group, one->tensors, one->n, 0, &options, &works[0]));
    CHECK_OK(dist_all_reduce(me->group, &value, &value, 1, DIST_F32, DIST_SUM, NULL, &works[1]));
    CHECK_OK(dist_all_gather_list(me->group, other->tensors, other->n, &options, &works[2]));
    CHECK_OK(dist_work_wait_all(works, 3, 0));
    CHECK(dist_work_sequence(works[2]) == dist_work_sequence(works[0]) + 2);
    check_bytes(one, 0, 0, 1);
    CHECK(value == (float)(me->size * (me->size - 1) / 2));
    for (r = 0; r < me->size; r++) {
        check_bytes(other, r, r, me->size);
    }
    for (r = 0; r < 3; r++) {
        CHECK_OK(dist_work_release(works[r]));
    }
    fill(one, me->rank);
    fill(other, me->rank);
    CHECK_OK(dist_batch_begin(NULL, 0));
    CHECK_OK(dist_broadcast_list(me->group, one->tensors, one->n, 0, NULL, NULL));
    CHECK_OK(dist_all_gather_list(me->group, other->tensors, other->n, NULL, NULL));
    CHECK_OK(dist_batch_end(NULL));
    check_bytes(one, 0, 0, 1);
    for (r = 0; r < me->size; r++) {
        check_bytes(other, r, r, me->size);
    }
    free_list(one);
    free_list(other);
}

static void check_refusals(const struct rank *me)
{
    struct list *list = new_list(1);
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    dist_tensor_t *tensors = list->tensors;
    int64_t negative = -1;
#define REFUSE(n, status, text) \
    CHECK_REFUSED(dist_broadcast_list(me->group, tensors, n, 0, NULL, NULL), status, text)
    CHECK_REFUSED(dist_broadcast_list(me->group, tensors, 1, me->size, NULL, NULL), DIST_ERR_INVALID_ARGUMENT, "root");
    tensors[1].struct_size = 48;
    REFUSE(2, DIST_ERR_INVALID_ARGUMENT, "tensors[1]");
    tensors[1].struct_size = sizeof(dist_tensor_t);
    tensors[1].name = NULL;
    REFUSE(2, DIST_ERR_INVALID_ARGUMENT, "name");
    tensors[1].name = list->names[1];
    tensors[1].fields = 1U << 30;
    REFUSE(2, DIST_ERR_UNSUPPORTED, "fields");
    tensors[1].fields = DIST_FIELD_DEVICE;
    REFUSE(2, DIST_ERR_UNSUPPORTED, "tensor 1 \"layer.1\"");
    tensors[1].fields = 0;
    tensors[1].shape = &negative;
    tensors[1].n_shape = 1;
    REFUSE(2, DIST_ERR_INVALID_ARGUMENT, "negative extent -1");
    tensors[1].shape = list->shapes[1];
    tensors[1].n_shape = 2;
    tensors[1].data = tensors[2].data;
    REFUSE(3, DIST_ERR_INVALID_ARGUMENT, "overlap");
    tensors[1].data = list->memory[1];
    REFUSE(32769, DIST_ERR_INVALID_ARGUMENT, "n is 32769");
    options.algorithm = "ring";
    CHECK_REFUSED(dist_all_reduce_list(me->group, tensors, 1, DIST_SUM, &options, NULL), DIST_ERR_INVALID_ARGUMENT,
                  "algorithm");
    options.algorithm = NULL;
    options.flags = DIST_CALL_DEVICE;
    options.device = DIST_DEVICE_HOST;
    CHECK_REFUSED(dist_all_reduce_list(me->group, tensors, 1, DIST_SUM, &options, NULL), DIST_ERR_INVALID_ARGUMENT,
                  "DIST_CALL_DEVICE");
    CHECK_REFUSED(dist_all_reduce_list(me->group, tensors + 12, 1, DIST_MAX, NULL, NULL), DIST_ERR_UNSUPPORTED,
                  "tensor 0 \"layer.12\"");
    CHECK_REFUSED(dist_all_reduce_list(me->group, tensors, 1, 1 << 30, NULL, NULL), DIST_ERR_UNSUPPORTED,
                  "dist_op_create");
    if (me->size > 1) {
        CHECK_REFUSED(dist_all_gather_list(me->group, tensors, 1, NULL, NULL), DIST_ERR_INVALID_ARGUMENT,
                      "tensor 0 \"layer.0\": 1 elements");
    }
    free_list(list);
}

static void run_all_checks(const struct rank *me)
{
    check_values(me);
    check_works_and_batches(me);
    check_refusals(me);
    if (me->size > 1) {
        check_differences(me);
    }
    CHECK_OK(dist_barrier(me->group, NULL, NULL));
}

/* Two hosts: ranks 0 and 2, and ranks 1 and 3. */
static void run_between_hosts(const struct rank *me)
{
    struct rank mixed = *me;
    char host[32];
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    sprintf(host, "host_id=host%d", me->rank % 2);
    options.store = me->store;
    options.name = "mixed";
    options.fields = DIST_FIELD_RANK;
    options.rank = me->rank;
    options.world_size = me->size;
    options.backend_options = host;
    options.connect_timeout_ms = LIMIT_MS;
    options.timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_group_create(&options, &mixed.group));
    run_all_checks(&mixed);
    CHECK_OK(dist_group_release(mixed.group));
}

int main(void)
{
    run_ranks("inproc", 1, run_all_checks);
    run_ranks("inproc", 3, run_all_checks);
    run_ranks("shm", 2, run_all_checks);
    run_ranks("tcp", 3, run_all_checks);
    run_ranks("inproc", 4, run_between_hosts);
    CHECK_OK(dist_set_debug_level(DIST_DEBUG_DETAIL));
    CHECK_OK(dist_set_log_level(DIST_LOG_OFF));
    run_ranks("tcp", 2, run_all_checks);
    run_ranks("inproc", 3, run_all_checks);
    return check_report();
}
