/*
 * Operations of two groups at the same time: in one stream they have an order. In two streams they
 * have none, and the log has one line about it. The stub makes each operation slow, so that the
 * first one still runs when the second one begins.
 */
#include "ranks.h"

#include <stdatomic.h>

static atomic_int n_warnings;

static void count_warnings(int32_t level, const char *line, void *user)
{
    (void)user;
    if (level == DIST_LOG_WARN && strstr(line, "enqueues an operation of NCCL") != NULL) {
        atomic_fetch_add(&n_warnings, 1);
    }
}

static void start_sum(dist_group_t *group, float *memory, CUstream stream, dist_work_t **work)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    options.stream = stream;
    REQUIRE_OK(dist_all_reduce(group, memory, memory, 1, DIST_F32, DIST_SUM, &options, work));
}

/* Runs an operation of each of two groups, the second one while the first one runs. */
static void run_two_groups(struct rank *self, dist_group_t *other, float *const memory[2], CUstream second)
{
    dist_work_t *works[2];
    start_sum(self->group, memory[0], self->stream, &works[0]);
    /* The work ends when the operation is in the stream. */
    CHECK_OK(dist_work_wait(works[0], LIMIT_MS));
    start_sum(other, memory[1], second, &works[1]);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(dist_work_synchronize(works[i], LIMIT_MS));
        CHECK_OK(dist_work_release(works[i]));
    }
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
}

static void groups_without_an_order_are_logged_once(struct rank *self)
{
    dist_group_t *other = NULL;
    float value = 1, *memory[2] = { device_memory(sizeof value, &value), device_memory(sizeof value, &value) };
    CUstream second;
    REQUIRE(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE_OK(make_group(self, "unordered", &other));
    run_two_groups(self, other, memory, self->stream);
    CHECK(atomic_load(&n_warnings) == 0);
    CHECK_OK(dist_barrier(self->group, NULL, NULL));
    run_two_groups(self, other, memory, second);
    CHECK(atomic_load(&n_warnings) == 1);
    run_two_groups(self, other, memory, second);
    CHECK(atomic_load(&n_warnings) == 1);
    CHECK_OK(dist_group_release(other));
    CHECK(cuStreamDestroy_v2(second) == CUDA_SUCCESS);
    free_device(memory[0]);
    free_device(memory[1]);
}

int main(void)
{
    CHECK_OK(dist_set_log_level(DIST_LOG_WARN));
    CHECK_OK(dist_set_log_callback(count_warnings, NULL));
    run_on_ranks(2, "cpu:native,cuda:nccl", groups_without_an_order_are_logged_once);
    check_nothing_leaked();
    return check_report();
}
