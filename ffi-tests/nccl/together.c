/*
 * A batch on devices is enqueued as one operation. The cases are: the groups of several ranks on
 * one thread, several groups on several streams, and a group that has an earlier operation. The
 * argument is the name of a case.
 */
#include "ranks.h"

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#define N 1000
#define BYTES (N * sizeof(float))
#define BACKEND "cpu:native,cuda:nccl"

static long now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static void await(atomic_int *flag)
{
    long limit = now_ms() + LIMIT_MS;
    while (!atomic_load(flag) && now_ms() < limit) {
        struct timespec nap = { 0, 200000 };
        nanosleep(&nap, NULL);
    }
    REQUIRE(atomic_load(flag));
}

static float *floats(float value)
{
    float values[N];
    for (int i = 0; i < N; i++) {
        values[i] = value;
    }
    return device_memory(BYTES, values);
}

static void check_floats(struct rank *self, const float *memory, float value)
{
    float found[N];
    read_device(self, found, memory, BYTES);
    for (int i = 0; i < N; i++) {
        if (!CHECK(found[i] == value)) {
            printf("  rank %d, element %d: %g, and not %g\n", self->rank, i, (double)found[i], (double)value);
            return;
        }
    }
}

static dist_status_t start_sum(dist_group_t *group, float *memory, CUstream stream, dist_work_t **work)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    options.stream = stream;
    return dist_all_reduce(group, memory, memory, N, DIST_F32, DIST_SUM, &options, work);
}

/* Ranks that several threads create and the first rank's thread uses. */
static struct rank *all_ranks[MAX_RANKS];
static float *memories[3][MAX_RANKS];
static pthread_barrier_t rank_barrier;

/* Consecutive collectives of each rank, which NCCL launches together as one group. */
static void collectives_launch_together(int size)
{
    dist_work_t *work = NULL;
    float host[MAX_RANKS];
    unsigned long before = launched_groups();
    REQUIRE_OK(dist_batch_begin(NULL, 0));
    for (int i = 0; i < size; i++) {
        struct rank *rank = all_ranks[i];
        dist_call_options_t options = stream_options(rank);
        host[i] = (float)(i + 1);
        /* Two consecutive calls in one stream. */
        CHECK_OK(dist_all_reduce(rank->group, memories[0][i], memories[1][i], N, DIST_F32, DIST_SUM, &options, NULL));
        options.premul_scale = i + 1;
        CHECK_OK(dist_all_reduce(rank->group, memories[0][i], memories[2][i], N, DIST_F32, DIST_PREMUL_SUM, &options, NULL));
        /* Small and equal calls; the library must not fuse calls of different ranks. */
        CHECK_OK(dist_all_reduce(rank->group, &host[i], &host[i], 1, DIST_F32, DIST_SUM, NULL, NULL));
    }
    REQUIRE_OK(dist_batch_end(&work));
    CHECK_OK(dist_work_synchronize(work, LIMIT_MS));
    CHECK_OK(dist_work_release(work));
    CHECK(launched_groups() == before + has_stubs());
    int of_factors = 0;
    for (int i = 0; i < size; i++) {
        of_factors += (i + 1) * (i + 1);
    }
    for (int i = 0; i < size; i++) {
        CHECK(cuCtxSetCurrent(all_ranks[i]->context) == CUDA_SUCCESS);
        CHECK(host[i] == (float)(size * (size + 1) / 2));
        check_floats(all_ranks[i], memories[1][i], (float)(size * (size + 1) / 2));
        check_floats(all_ranks[i], memories[2][i], (float)of_factors);
    }
    CHECK(cuCtxSetCurrent(all_ranks[0]->context) == CUDA_SUCCESS);
}

/* Messages in a ring with a collective, on streams of the library and of the caller. */
static void messages_and_collectives_launch_together(int size)
{
    unsigned long before = launched_groups();
    REQUIRE_OK(dist_batch_begin(NULL, 0));
    for (int i = 0; i < size; i++) {
        struct rank *rank = all_ranks[i];
        dist_call_options_t options = stream_options(rank);
        CHECK_OK(dist_send(rank->group, memories[0][i], N, DIST_F32, (i + 1) % size, 0, &options, NULL));
        CHECK_OK(start_sum(rank->group, memories[2][i], NULL, NULL));
        CHECK_OK(dist_recv(rank->group, memories[1][i], N, DIST_F32, (i + size - 1) % size, 0, NULL, NULL, NULL));
    }
    /* The call blocks until the devices have finished. */
    CHECK_OK(dist_batch_end(NULL));
    CHECK(launched_groups() == before + has_stubs());
    int of_factors = 0;
    for (int i = 0; i < size; i++) {
        of_factors += (i + 1) * (i + 1);
    }
    for (int i = 0; i < size; i++) {
        CHECK(cuCtxSetCurrent(all_ranks[i]->context) == CUDA_SUCCESS);
        check_floats(all_ranks[i], memories[1][i], (float)((i + size - 1) % size + 1));
        check_floats(all_ranks[i], memories[2][i], (float)(size * of_factors));
    }
    CHECK(cuCtxSetCurrent(all_ranks[0]->context) == CUDA_SUCCESS);
}

static void one_thread_drives_all_ranks(struct rank *self)
{
    all_ranks[self->rank] = self;
    REQUIRE_OK(make_group(self, "one thread", &self->group));
    for (int i = 0; i < 3; i++) {
        memories[i][self->rank] = floats((float)(self->rank + 1));
    }
    pthread_barrier_wait(&rank_barrier);
    if (self->rank == 0) {
        collectives_launch_together(self->size);
        messages_and_collectives_launch_together(self->size);
        long start = now_ms();
        for (int i = 0; i < self->size; i++) {
            CHECK_OK(dist_group_release(all_ranks[i]->group));
        }
        /* No release waits for a later release; NCCL would wait for 5 s. */
        CHECK(now_ms() - start < 4000);
    }
    pthread_barrier_wait(&rank_barrier);
    for (int i = 0; i < 3; i++) {
        free_device(memories[i][self->rank]);
    }
}

/* Three groups, which the ranks add to their batches in different orders, on one stream and on
 * two. */
static void batches_of_groups_in_different_orders(struct rank *self)
{
    enum { GROUPS = 3 };
    dist_group_t *groups[GROUPS] = { self->group };
    float *memory[GROUPS];
    CUstream other;
    REQUIRE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    for (int i = 1; i < GROUPS; i++) {
        REQUIRE_OK(dist_group_split(self->group, 0, 0, NULL, &groups[i]));
    }
    for (int i = 0; i < GROUPS; i++) {
        memory[i] = floats((float)(self->rank + i));
    }
    for (int round = 0; round < 4; round++) {
        dist_work_t *work = NULL;
        REQUIRE_OK(dist_batch_begin(NULL, 0));
        for (int i = 0; i < GROUPS; i++) {
            int which = (i + self->rank) % GROUPS;
            CHECK_OK(start_sum(groups[which], memory[which], round % 2 == 1 && which == 1 ? other : self->stream,
                               NULL));
        }
        REQUIRE_OK(dist_batch_end(&work));
        CHECK_OK(dist_work_synchronize(work, LIMIT_MS));
        CHECK_OK(dist_work_release(work));
    }
    float of_ranks = (float)(self->size * (self->size - 1) / 2), growth = (float)(self->size * self->size * self->size);
    for (int i = 0; i < GROUPS; i++) {
        check_floats(self, memory[i], growth * (of_ranks + (float)(i * self->size)));
        free_device(memory[i]);
    }
    for (int i = 1; i < GROUPS; i++) {
        CHECK_OK(dist_group_release(groups[i]));
    }
    CHECK(cuStreamDestroy_v2(other) == CUDA_SUCCESS);
}

static atomic_int may_enter, has_failed, was_notified;

/* Two groups; the first one has an earlier barrier, which the other rank has not entered yet. */
struct blocked_batch {
    dist_group_t *other;
    float *memory[2];
    dist_work_t *barrier;
    dist_work_t *works[2];
    dist_work_t *batch;
};

static void start_blocked_batch(struct rank *self, struct blocked_batch *batch_state, int64_t timeout_ms)
{
    dist_call_options_t options = stream_options(self);
    REQUIRE_OK(make_group(self, "other", &batch_state->other));
    batch_state->memory[0] = floats((float)(self->rank + 1));
    batch_state->memory[1] = floats((float)(self->rank + 1));
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
    if (self->rank == 1) {
        await(&may_enter);
    }
    long start = now_ms();
    REQUIRE_OK(dist_barrier(self->group, NULL, &batch_state->barrier));
    REQUIRE_OK(dist_batch_begin(NULL, 0));
    options.timeout_ms = timeout_ms;
    CHECK_OK(dist_all_reduce(self->group, batch_state->memory[0], batch_state->memory[0], N, DIST_F32, DIST_SUM,
                             &options, &batch_state->works[0]));
    options.timeout_ms = 0;
    CHECK_OK(dist_all_reduce(batch_state->other, batch_state->memory[1], batch_state->memory[1], N, DIST_F32, DIST_SUM,
                             &options, &batch_state->works[1]));
    REQUIRE_OK(dist_batch_end(&batch_state->batch));
    if (self->rank == 0) {
        CHECK(now_ms() - start < LIMIT_MS / 4);
        CHECK_STATUS(dist_work_wait(batch_state->batch, 20), DIST_IN_PROGRESS);
        CHECK_STATUS(dist_work_wait(batch_state->works[1], DIST_NO_WAIT), DIST_IN_PROGRESS);
    }
}

static void finish_blocked_batch(struct blocked_batch *batch_state)
{
    CHECK_OK(dist_work_release(batch_state->barrier));
    CHECK_OK(dist_work_release(batch_state->works[0]));
    CHECK_OK(dist_work_release(batch_state->works[1]));
    CHECK_OK(dist_work_release(batch_state->batch));
    CHECK_OK(dist_group_release(batch_state->other));
    free_device(batch_state->memory[0]);
    free_device(batch_state->memory[1]);
}

/* The batch does not block the caller, and runs after the other rank enters the barrier. */
static void batch_waits_for_an_earlier_barrier(struct rank *self)
{
    struct blocked_batch batch_state;
    start_blocked_batch(self, &batch_state, 0);
    atomic_store(&may_enter, 1);
    CHECK_OK(dist_work_wait(batch_state.barrier, LIMIT_MS));
    CHECK_OK(dist_work_synchronize(batch_state.batch, LIMIT_MS));
    check_floats(self, batch_state.memory[0], 3);
    check_floats(self, batch_state.memory[1], 3);
    finish_blocked_batch(&batch_state);
}

/* The waiting group is aborted: its call ends immediately, and the other group's call continues. */
static void abort_of_one_group_ends_only_its_call(struct rank *self)
{
    struct blocked_batch batch_state = { 0 };
    if (self->rank == 1) {
        /* This rank uses only the other group. */
        REQUIRE_OK(make_group(self, "other", &batch_state.other));
        batch_state.memory[1] = floats(2);
        CHECK_OK(dist_barrier(self->group, NULL, NULL));
        await(&has_failed);
        CHECK_OK(start_sum(batch_state.other, batch_state.memory[1], self->stream, NULL));
        check_floats(self, batch_state.memory[1], 3);
        CHECK_OK(dist_group_release(batch_state.other));
        free_device(batch_state.memory[1]);
        return;
    }
    start_blocked_batch(self, &batch_state, 0);
    long start = now_ms();
    CHECK_OK(dist_group_abort(self->group, "the test wants it"));
    CHECK_STATUS(dist_work_wait(batch_state.works[0], LIMIT_MS), DIST_ERR_ABORTED);
    CHECK(now_ms() - start < LIMIT_MS / 4);
    atomic_store(&has_failed, 1);
    CHECK_OK(dist_work_synchronize(batch_state.works[1], LIMIT_MS));
    CHECK_STATUS(dist_work_synchronize(batch_state.batch, LIMIT_MS), DIST_ERR_ABORTED);
    check_floats(self, batch_state.memory[1], 3);
    finish_blocked_batch(&batch_state);
}

/* As abort_of_one_group_ends_only_its_call, with a deadline in place of the abort. */
static void timeout_of_one_group_ends_only_its_call(struct rank *self)
{
    struct blocked_batch batch_state = { 0 };
    if (self->rank == 1) {
        REQUIRE_OK(make_group(self, "other", &batch_state.other));
        batch_state.memory[1] = floats(2);
        CHECK_OK(dist_barrier(self->group, NULL, NULL));
        await(&has_failed);
        CHECK_OK(start_sum(batch_state.other, batch_state.memory[1], self->stream, NULL));
        check_floats(self, batch_state.memory[1], 3);
        CHECK_OK(dist_group_release(batch_state.other));
        free_device(batch_state.memory[1]);
        return;
    }
    start_blocked_batch(self, &batch_state, 500);
    CHECK_STATUS(dist_work_wait(batch_state.works[0], LIMIT_MS), DIST_ERR_TIMEOUT);
    CHECK_MESSAGE("waiting for earlier operations");
    atomic_store(&has_failed, 1);
    CHECK_OK(dist_work_synchronize(batch_state.works[1], LIMIT_MS));
    check_floats(self, batch_state.memory[1], 3);
    finish_blocked_batch(&batch_state);
}

/* The first collective of a group, for which NCCL connects the ranks. A rank that issues it as a
 * work, alone or in a batch, continues. Its peers may need it for other calls before they make
 * this call. */
static void first_collective_does_not_block(struct rank *self)
{
    float *memory[2] = { floats((float)(self->rank + 1)), floats((float)(self->rank + 1)) };
    dist_group_t *groups[2] = { self->group, NULL };
    dist_work_t *works[2] = { NULL, NULL };
    long start = 0;
    REQUIRE_OK(make_group(self, "another", &groups[1]));
    if (self->rank == 1) {
        await(&may_enter);
    }
    start = now_ms();
    REQUIRE_OK(start_sum(groups[0], memory[0], self->stream, &works[0]));
    REQUIRE_OK(dist_batch_begin(NULL, 0));
    CHECK_OK(start_sum(groups[1], memory[1], self->stream, NULL));
    REQUIRE_OK(dist_batch_end(&works[1]));
    CHECK(now_ms() - start < LIMIT_MS / 4);
    if (self->rank == 0) {
        /* A real NCCL may connect the ranks at another time. */
        CHECK(dist_work_wait(works[0], 20) == DIST_IN_PROGRESS || !has_stubs());
        atomic_store(&may_enter, 1);
    }
    for (int i = 0; i < 2; i++) {
        CHECK_OK(dist_work_synchronize(works[i], LIMIT_MS));
        CHECK_OK(dist_work_release(works[i]));
        check_floats(self, memory[i], 3);
        free_device(memory[i]);
    }
    CHECK_OK(dist_group_release(groups[1]));
}

/* A batch contains messages of a group and a collective that fails before its turn; the messages
 * are still sent. */
static void messages_are_sent_after_a_failed_collective(struct rank *self)
{
    dist_group_t *other = NULL;
    dist_work_t *barrier = NULL, *batch = NULL, *message = NULL;
    float *memory = floats((float)(self->rank + 1)), *more = floats(0);
    dist_call_options_t options = stream_options(self);
    REQUIRE_OK(make_group(self, "other", &other));
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
    if (self->rank == 1) {
        await(&was_notified);
        CHECK_OK(dist_recv(other, memory, N, DIST_F32, 0, 0, NULL, &options, NULL));
        check_floats(self, memory, 1);
    } else {
        REQUIRE_OK(dist_barrier(self->group, NULL, &barrier));
        REQUIRE_OK(dist_batch_begin(NULL, 0));
        CHECK_OK(start_sum(self->group, more, self->stream, NULL));
        CHECK_OK(dist_send(other, memory, N, DIST_F32, 1, 0, &options, &message));
        REQUIRE_OK(dist_batch_end(&batch));
        CHECK_STATUS(dist_work_wait(message, 20), DIST_IN_PROGRESS);
        CHECK_OK(dist_group_abort(self->group, "the test wants it"));
        atomic_store(&was_notified, 1);
        CHECK_OK(dist_work_synchronize(message, LIMIT_MS));
        CHECK_STATUS(dist_work_wait(batch, LIMIT_MS), DIST_ERR_ABORTED);
        CHECK_OK(dist_work_release(barrier));
        CHECK_OK(dist_work_release(message));
        CHECK_OK(dist_work_release(batch));
    }
    CHECK_OK(dist_group_release(other));
    free_device(memory);
    free_device(more);
}

/* One rank leaves a group and uses another group before its peer leaves the first group. Neither
 * waits for the other, although the free of the communicator's memory waits for the device. */
static void release_of_a_group_waits_for_no_peer(struct rank *self)
{
    dist_group_t *other = NULL;
    dist_work_t *work = NULL;
    float *memory = floats((float)(self->rank + 1));
    REQUIRE_OK(make_group(self, "left", &other));
    /* The first calls connect the ranks of both groups. */
    CHECK_OK(start_sum(other, memory, self->stream, NULL));
    CHECK_OK(start_sum(self->group, memory, self->stream, NULL));
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
    long start = now_ms();
    if (self->rank == 1) {
        await(&may_enter);
    }
    CHECK_OK(dist_group_release(other));
    REQUIRE_OK(start_sum(self->group, memory, self->stream, &work));
    if (self->rank == 0) {
        atomic_store(&may_enter, 1);
    }
    CHECK_OK(dist_work_synchronize(work, LIMIT_MS));
    CHECK(now_ms() - start < 3000);
    CHECK_OK(dist_work_release(work));
    check_floats(self, memory, 12);
    free_device(memory);
}

/* A rank makes the first collective of a group without its peer, for which NCCL connects the
 * ranks: the call ends at its deadline. */
static void first_collective_alone_times_out(struct rank *self)
{
    dist_group_t *other = NULL;
    dist_call_options_t options = stream_options(self);
    float *memory = floats(1);
    REQUIRE_OK(make_group(self, "alone", &other));
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
    if (self->rank == 0) {
        long start = now_ms();
        options.timeout_ms = 700;
        dist_work_t *work = NULL;
        dist_status_t status = dist_all_reduce(other, memory, memory, N, DIST_F32, DIST_SUM, &options, &work);
        /* The operation may be enqueued already, or refused by then. */
        if (status == DIST_OK) {
            status = dist_work_synchronize(work, LIMIT_MS);
            CHECK_OK(dist_work_release(work));
        }
        CHECK(status == DIST_ERR_TIMEOUT);
        CHECK(now_ms() - start >= 600 && now_ms() - start < 4000);
    } else {
        CHECK(dist_barrier(other, NULL, NULL) != DIST_OK);
    }
    CHECK_OK(dist_group_release(other));
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
    free_device(memory);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*body)(struct rank *self);
    } of_two[] = {
        { "behind", batch_waits_for_an_earlier_barrier },
        { "aborted_behind", abort_of_one_group_ends_only_its_call },
        { "late_behind", timeout_of_one_group_ends_only_its_call },
        { "messages_behind", messages_are_sent_after_a_failed_collective },
        { "first_ones", first_collective_does_not_block },
        { "left_behind", release_of_a_group_waits_for_no_peer },
        { "alone_first", first_collective_alone_times_out },
    };
    REQUIRE(argc == 2);
    for (size_t i = 0; i < sizeof of_two / sizeof of_two[0]; i++) {
        if (strcmp(argv[1], of_two[i].name) == 0) {
            run_on_ranks(2, BACKEND, of_two[i].body);
        }
    }
    for (int size = 1; size <= MAX_RANKS; size++) {
        if (strcmp(argv[1], "one_thread") == 0) {
            pthread_barrier_init(&rank_barrier, NULL, (unsigned)size);
            run_on_bare_ranks(size, BACKEND, NULL, one_thread_drives_all_ranks);
            pthread_barrier_destroy(&rank_barrier);
        } else if (strcmp(argv[1], "many_groups") == 0) {
            run_on_ranks(size, BACKEND, batches_of_groups_in_different_orders);
        }
    }
    check_nothing_leaked();
    return check_report();
}
