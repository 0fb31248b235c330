/*
 * A rank of a training that repeats a step after the death of a rank; a launcher starts it.
 *
 *     reducer_retry STEPS FOLDER HOSTS [kill STEP RANK MARKED]
 *         rank RANK kills itself in STEP after it has marked MARKED gradients
 *     reducer_retry STEPS FOLDER HOSTS [from STEP RANK]
 *         starts at STEP, as the ranks of a job with one more rank, except RANK
 *
 * If the variable RETRY_HOOK is set, it names a hook.
 *
 * At the start of each step rank 0 writes a checkpoint into FOLDER: the weights and the layout.
 * At the end of each step it prints a line: the step, the number of ranks, a hash of the
 * weights, and the time of the end in microseconds.
 */
#define _POSIX_C_SOURCE 200809L

#include "check.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#define PARAMS 12
#define COUNT 50000

struct training_state {
    dist_group_t *group;
    dist_reducer_t *reducer;
    int origin; /* the rank in the job without deaths */
    float weights[PARAMS][COUNT];
    char layout[1000];
    size_t layout_bytes;
};

static struct training_state training;

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* The sum of these values has other bits in another order. */
static float gradient_value(int step, int param, size_t i)
{
    uint32_t mix = (uint32_t)(step * 7919 + param * 104729 + training.origin * 1299709) + (uint32_t)i * 2654435761u;
    mix ^= mix >> 15;
    mix *= 2246822519u;
    mix ^= mix >> 13;
    return (float)mix / 4294967296.0f - 0.5f;
}

static uint64_t hash_bytes(const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    uint64_t h = 14695981039346656037u;
    size_t i;
    for (i = 0; i < n; i++) {
        h = (h ^ at[i]) * 1099511628211u;
    }
    return h;
}

static dist_status_t sum_over_ranks(dist_group_t *group, const dist_bucket_t *bucket, uint64_t *bytes_sent, void *user)
{
    (void)bytes_sent;
    (void)user;
    return dist_all_reduce(group, bucket->data, bucket->data, bucket->count, bucket->dtype, DIST_SUM, NULL, NULL);
}

static void make_reducer(void)
{
    static const dist_param_t init = DIST_PARAM_INIT;
    static char names[PARAMS][8];
    dist_reducer_options_t options = DIST_REDUCER_OPTIONS_INIT;
    dist_param_t params[PARAMS];
    int p;
    for (p = 0; p < PARAMS; p++) {
        sprintf(names[p], "w%d", p);
        params[p] = init;
        params[p].name = names[p];
        params[p].data = training.weights[p];
        params[p].count = COUNT;
        params[p].dtype = DIST_F32;
    }
    options.flags = DIST_REDUCER_RETRYABLE;
    options.hook = getenv("RETRY_HOOK");
    if (options.hook != NULL && strcmp(options.hook, "add up") == 0) {
        options.hook_function = sum_over_ranks;
    }
    if (training.layout_bytes > 0) {
        options.layout = training.layout;
        options.layout_bytes = training.layout_bytes;
    }
    REQUIRE_OK(dist_reducer_create(training.group, params, PARAMS, &options, &training.reducer));
}

static FILE *open_checkpoint(const char *folder, int step, const char *mode)
{
    char path[512];
    FILE *file;
    snprintf(path, sizeof(path), "%s/step%d", folder, step);
    file = fopen(path, mode);
    REQUIRE(file != NULL);
    return file;
}

static void write_checkpoint(const char *folder, int step)
{
    FILE *file;
    dist_blob_t *layout = NULL;
    const void *text = NULL;
    size_t len = 0;
    if (dist_get_rank(training.group) != 0) {
        return;
    }
    REQUIRE_OK(dist_reducer_layout(training.reducer, &layout));
    REQUIRE_OK(dist_blob_data(layout, 0, &text, &len));
    file = open_checkpoint(folder, step, "wb");
    REQUIRE(fwrite(training.weights, sizeof(training.weights), 1, file) == 1);
    REQUIRE(fwrite(text, len, 1, file) == 1);
    REQUIRE(fclose(file) == 0);
    CHECK_OK(dist_blob_release(layout));
}

static void read_checkpoint(const char *folder, int step)
{
    FILE *file = open_checkpoint(folder, step, "rb");
    REQUIRE(fread(training.weights, sizeof(training.weights), 1, file) == 1);
    training.layout_bytes = fread(training.layout, 1, sizeof(training.layout), file);
    REQUIRE(fclose(file) == 0);
}

/* The step has failed: the survivors continue with the same gradients. */
static void recover(void)
{
    dist_shrink_options_t options = DIST_SHRINK_OPTIONS_INIT;
    dist_group_t *left = NULL;
    options.timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_group_shrink(training.group, &options, &left));
    REQUIRE_OK(dist_reducer_regroup(training.reducer, left));
    training.group = left;
}

static void run_step(int step, int dies_after)
{
    double start;
    uint64_t all_votes = 99;
    int p;
    size_t i;
    REQUIRE_OK(dist_reducer_begin(training.reducer, 0, 0));
    for (p = PARAMS; p-- > 0;) {
        void *grad = NULL;
        REQUIRE_OK(dist_reducer_grad(training.reducer, (size_t)p, &grad, NULL));
        for (i = 0; i < COUNT; i++) {
            ((float *)grad)[i] = gradient_value(step, p, i);
        }
        if (PARAMS - 1 - p == dies_after) {
            kill(getpid(), SIGKILL);
        }
        REQUIRE_OK(dist_reducer_ready(training.reducer, (size_t)p));
    }
    if (dies_after == PARAMS) {
        kill(getpid(), SIGKILL);
    }
    start = now_us();
    while (dist_reducer_end(training.reducer, DIST_VOTE_COMMIT, &all_votes, NULL) != DIST_OK) {
        recover();
    }
    CHECK(all_votes == DIST_VOTE_COMMIT);
    for (p = 0; p < PARAMS; p++) {
        void *result = NULL;
        REQUIRE_OK(dist_reducer_result(training.reducer, (size_t)p, &result, NULL));
        for (i = 0; i < COUNT; i++) {
            training.weights[p][i] -= 0.125f * ((const float *)result)[i];
        }
    }
    if (dist_get_rank(training.group) == 0) {
        printf("step %d ranks %d hash %016llx end %.0f us\n", step, (int)dist_get_world_size(training.group),
               (unsigned long long)hash_bytes(training.weights, sizeof(training.weights)), now_us() - start);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    char backend_options[32] = "";
    int steps, hosts, begin = 0, kill_step = -1, kill_rank = -1, marked = 0, step;
    const char *rank = getenv("RANK");
    REQUIRE(argc > 3 && rank != NULL);
    steps = atoi(argv[1]);
    hosts = atoi(argv[3]);
    training.origin = atoi(rank);
    if (argc > 6 && strcmp(argv[4], "from") == 0) {
        training.origin += training.origin >= atoi(argv[6]);
    }
    if (hosts > 1) {
        sprintf(backend_options, "host_id=h%d", training.origin % hosts);
    }
    options.backend_options = backend_options;
    options.timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_init(&options));
    training.group = dist_world();
    if (argc > 7 && strcmp(argv[4], "kill") == 0) {
        kill_step = atoi(argv[5]);
        kill_rank = atoi(argv[6]);
        marked = atoi(argv[7]);
    } else if (argc > 6) {
        begin = atoi(argv[5]);
        read_checkpoint(argv[2], begin);
    }
    make_reducer();
    for (step = begin; step < steps; step++) {
        write_checkpoint(argv[2], step);
        run_step(step, step == kill_step && training.origin == kill_rank ? marked : -1);
    }
    CHECK_OK(dist_reducer_release(training.reducer));
    if (training.group != dist_world()) {
        CHECK_OK(dist_group_release(training.group));
    }
    CHECK_OK(dist_finalize());
    return check_report();
}
