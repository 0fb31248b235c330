/*
 * Two-level groups on devices: NCCL inside hosts, and the native back end between hosts, on equal
 * and unequal hosts. With an argument: a map of two back ends, with device memory by the second.
 */
#include "ranks.h"

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#define MOST 40000
#define NAME "inside=nccl,between=native"
#define UNSUPPORTED DIST_ERR_UNSUPPORTED

static const size_t counts[] = { 1, 9, 4096, 16387, MOST };
#define COUNTS (sizeof counts / sizeof counts[0])

/* The hosts of the ranks: ranks with the same letter are on one host. */
static const char *layout = "";
static int is_map;

static int32_t input(int rank, size_t index)
{
    return (rank + 1) * (int32_t)(index % 7 + 1);
}

static int32_t sum_of(int size, size_t index)
{
    return size * (size + 1) / 2 * (int32_t)(index % 7 + 1);
}

/* Checks device memory: the sums from element `first` on, or the input of the rank `from`. */
static void check_memory(struct rank *self, const char *call, const int32_t *memory, int from, size_t first,
                         size_t count)
{
    int32_t *found = calloc(count + 1, sizeof *found);
    REQUIRE(found != NULL);
    read_device(self, found, memory, count * sizeof *found);
    for (size_t i = 0; i < count; i++) {
        int32_t expected = from < 0 ? sum_of(self->size, first + i) : input(from, i);
        if (!CHECK(found[i] == expected)) {
            printf("  %s of %zu: rank %d of %s, element %zu: %d, not %d\n", call, count, self->rank, layout, i,
                   (int)found[i], (int)expected);
            break;
        }
    }
    free(found);
}

static void check_count(struct rank *self, size_t count)
{
    size_t all = count * (size_t)self->size, own = count * (size_t)self->rank;
    int32_t *values = calloc(all, sizeof *values);
    REQUIRE(values != NULL);
    for (size_t i = 0; i < all; i++) {
        values[i] = input(self->rank, i);
    }
    int32_t *send = device_memory(all * sizeof *values, values);
    int32_t *recv = device_memory(all * sizeof *values, NULL);
    CHECK_OK(dist_all_reduce(self->group, send, recv, count, DIST_I32, DIST_SUM, NULL, NULL));
    check_memory(self, "all_reduce", recv, -1, 0, count);
    for (int root = 0; root < self->size; root++) {
        CHECK_OK(dist_reduce(self->group, send, recv, count, DIST_I32, DIST_SUM, root, NULL, NULL));
        check_memory(self, "reduce", recv, -1, 0, self->rank == root ? count : 0);
        write_device(self, recv, values, count * sizeof *values);
        CHECK_OK(dist_broadcast(self->group, recv, count, DIST_I32, root, NULL, NULL));
        check_memory(self, "broadcast", recv, root, 0, count);
    }
    CHECK_OK(dist_reduce_scatter(self->group, send, recv, count, DIST_I32, DIST_SUM, NULL, NULL));
    check_memory(self, "reduce_scatter", recv, -1, own, count);
    CHECK_OK(dist_all_gather(self->group, send, recv, count, DIST_I32, NULL, NULL));
    for (int from = 0; from < self->size; from++) {
        check_memory(self, "all_gather", recv + (size_t)from * count, from, 0, count);
    }
    write_device(self, recv, values, all * sizeof *values);
    CHECK_OK(dist_reduce_scatter(self->group, recv, recv + own, count, DIST_I32, DIST_SUM, NULL, NULL));
    check_memory(self, "reduce_scatter in place", recv + own, -1, own, count);
    CHECK_OK(dist_all_reduce(self->group, send, send, count, DIST_I32, DIST_SUM, NULL, NULL));
    check_memory(self, "all_reduce in place", send, -1, 0, count);
    free_device(send);
    free_device(recv);
    free(values);
}

static void check_averages(struct rank *self)
{
    float value = (float)self->rank, average = 0;
    float *memory = device_memory(sizeof value, &value);
    CHECK_OK(dist_all_reduce(self->group, memory, memory, 1, DIST_F32, DIST_AVG, NULL, NULL));
    read_device(self, &average, memory, sizeof average);
    CHECK(average > (float)(self->size - 1) / 2 - 0.001f && average < (float)(self->size - 1) / 2 + 0.001f);
    free_device(memory);
}

/* A call begins after the earlier work in the caller's stream; works end in order. */
static void check_streams_and_works(struct rank *self)
{
    int32_t value = self->rank + 1, sum = 0;
    int32_t *memory = device_memory(sizeof value, NULL);
    dist_call_options_t options = stream_options(self);
    dist_work_t *works[2] = { NULL, NULL };
    REQUIRE(cuMemcpyHtoDAsync_v2((CUdeviceptr)(uintptr_t)memory, &value, sizeof value, self->stream) == CUDA_SUCCESS);
    REQUIRE_OK(dist_all_reduce(self->group, memory, memory, 1, DIST_I32, DIST_SUM, &options, &works[0]));
    REQUIRE_OK(dist_all_reduce(self->group, memory, memory, 1, DIST_I32, DIST_MAX, &options, &works[1]));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(dist_work_wait(works[i], LIMIT_MS));
        CHECK_OK(dist_work_release(works[i]));
    }
    read_device(self, &sum, memory, sizeof sum);
    CHECK(sum == self->size * (self->size + 1) / 2);
    free_device(memory);
}

static void check_refusals(struct rank *self)
{
    int32_t *memory = device_memory(4 * MAX_RANKS * sizeof *memory, NULL);
    int32_t host = 1;
    CHECK_REFUSED(dist_gather(self->group, memory, memory, 1, DIST_I32, 0, NULL, NULL), UNSUPPORTED, "use all_gather");
    CHECK_MESSAGE(NAME);
    CHECK_REFUSED(dist_send(self->group, memory, 1, DIST_I32, 0, 1, NULL, NULL), UNSUPPORTED, "host memory");
    CHECK_REFUSED(dist_all_reduce(self->group, memory, memory, 1, DIST_I16, DIST_SUM, NULL, NULL), UNSUPPORTED, "i16");
    CHECK_REFUSED(dist_all_reduce(self->group, memory, memory, 1, DIST_I32, DIST_AVG, NULL, NULL), UNSUPPORTED, "use SUM");
    if (is_map) {
        CHECK_OK(dist_all_reduce(self->group, &host, &host, 1, DIST_I32, DIST_SUM, NULL, NULL));
        CHECK(host == self->size);
    } else {
        CHECK_REFUSED(dist_all_reduce(self->group, &host, &host, 1, DIST_I32, DIST_SUM, NULL, NULL), UNSUPPORTED,
                      "cpu:native,cuda:" NAME);
    }
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
    free_device(memory);
}

static void check_group(struct rank *self)
{
    char name[80] = "", options[32];
    snprintf(options, sizeof options, "host_id=%c", layout[self->rank]);
    self->backend_options = options;
    REQUIRE_OK(make_group(self, "two", &self->group));
    (void)dist_group_backend(self->group, name, sizeof name);
    CHECK(strcmp(name, self->backend) == 0);
    for (size_t i = 0; i < COUNTS; i++) {
        check_count(self, counts[i]);
    }
    check_averages(self);
    check_streams_and_works(self);
    check_refusals(self);
    CHECK_OK(dist_group_release(self->group));
}

/* Waits until all ranks have come here: a rank may return from a barrier before the others do. */
static void await_all(const struct rank *self)
{
    static atomic_int n_arrived;
    struct timespec nap = { 0, 200000 };
    long naps = 0;
    atomic_fetch_add(&n_arrived, 1);
    while (atomic_load(&n_arrived) % self->size != 0 && naps++ < LIMIT_MS * 5L) {
        nanosleep(&nap, NULL);
    }
    REQUIRE(atomic_load(&n_arrived) % self->size == 0);
}

/* The last rank aborts, and the others wait on their devices and for each other. */
static void check_abort(struct rank *self)
{
    char options[32];
    int32_t *memory = device_memory(sizeof *memory, NULL);
    snprintf(options, sizeof options, "host_id=%c", layout[self->rank]);
    self->backend_options = options;
    REQUIRE_OK(make_group(self, "aborted", &self->group));
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
    await_all(self);
    if (self->rank == self->size - 1) {
        CHECK_OK(dist_group_abort(self->group, "enough"));
    }
    CHECK_REFUSED(dist_all_reduce(self->group, memory, memory, 1, DIST_I32, DIST_SUM, NULL, NULL), DIST_ERR_ABORTED, "enough");
    CHECK_OK(dist_group_release(self->group));
    free_device(memory);
}

static void check_second_back_end(struct rank *self)
{
    int32_t value = self->rank + 1, sum = 0;
    int32_t *memory = device_memory(sizeof value, &value);
    char name[40] = "";
    REQUIRE_OK(make_group(self, "second", &self->group));
    (void)dist_group_backend(self->group, name, sizeof name);
    CHECK(strcmp(name, self->backend) == 0);
    CHECK_OK(dist_all_reduce(self->group, memory, memory, 1, DIST_I32, DIST_SUM, NULL, NULL));
    read_device(self, &sum, memory, sizeof sum);
    CHECK(sum == self->size * (self->size + 1) / 2);
    CHECK_OK(dist_all_reduce(self->group, &value, &sum, 1, DIST_I32, DIST_MAX, NULL, NULL));
    CHECK(sum == self->size);
    /* Only the second back end lacks this type. */
    CHECK_REFUSED(dist_all_reduce(self->group, memory, memory, 1, DIST_F16, DIST_SUM, NULL, NULL), UNSUPPORTED, "store");
    dist_blob_t *json = NULL;
    const void *text = "";
    size_t length = 0;
    char *copy = NULL;
    REQUIRE_OK(dist_group_describe(self->group, &json));
    REQUIRE_OK(dist_blob_data(json, 0, &text, &length));
    copy = calloc(length + 1, 1);
    REQUIRE(copy != NULL);
    memcpy(copy, text, length);
    CHECK(strstr(copy, "\"backend\":\"native\"") != NULL && strstr(copy, "\"backend\":\"store\"") != NULL);
    free(copy);
    CHECK_OK(dist_blob_release(json));
    if (self->rank == 0) {
        CHECK_OK(dist_group_abort(self->group, "enough"));
    }
    CHECK_REFUSED(dist_all_reduce(self->group, memory, memory, 1, DIST_I32, DIST_SUM, NULL, NULL), DIST_ERR_ABORTED, "enough");
    CHECK_OK(dist_group_release(self->group));
    free_device(memory);
}

int main(int argc, char **argv)
{
    static const char *const layouts[] = { "a", "aa", "ab", "aab", "aabb", "abab", "aaab", "abaa" };
    if (argc > 1) {
        for (int size = 2; size <= 3; size++) {
            run_on_bare_ranks(size, argv[1], NULL, check_second_back_end);
        }
        check_nothing_leaked();
        return check_report();
    }
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        layout = layouts[i];
        is_map = i % 2;
        run_on_bare_ranks((int)strlen(layout), is_map ? "cpu:native,cuda:" NAME : NAME, NULL, check_group);
    }
    layout = "aaab";
    run_on_bare_ranks(4, NAME, NULL, check_abort);
    layout = "aabb";
    run_on_bare_ranks(4, NAME, NULL, check_abort);
    check_nothing_leaked();
    return check_report();
}
