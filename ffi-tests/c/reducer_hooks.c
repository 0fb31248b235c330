/*
 * Hooks of a reducer: each finds the minimum that a training without a hook finds, all ranks have
 * the same bits, and the figures have the bytes that were not sent. Hooks that are functions of
 * the caller, and what happens if one fails.
 */
#include "ranks.h"

#include <math.h>

#define ROWS 96
#define COLUMNS 64
#define BIAS 77
#define STEPS 100

/* The model: a distance to a matrix and a vector of each rank, so that the minimum is their
 * mean. */
struct model {
    float *weight, *bias;    /* values */
    float *g_weight, *g_bias; /* the caller's gradients, or places */
    float *r_weight, *r_bias; /* results */
    dist_reducer_t *reducer;
};

struct hook {
    const char *name, *settings;
    double tolerance; /* largest distance from the minimum */
    double max_sent;  /* of the bytes of the gradients */
};

static const struct hook hooks[] = {
    { "all_reduce", "", 1e-4, 1.0 },
    { "f16", NULL, 2e-3, 0.5 },
    { "bf16", NULL, 2e-2, 0.5 },
    { "int8", NULL, 2e-2, 0.27 },
    { "int8", "block=32", 2e-2, 0.3 },
    { "powersgd", "rank=2;start=3", 3e-2, 0.1 },
    { "powersgd", "rank=4;start=0;warm=0", 3e-2, 0.15 },
    { "powersgd", "start=1000", 1e-4, 1.0 },
};

/* Matrices of rank 2, and a little noise. */
static float target_value(int rank, int i)
{
    int row = i / COLUMNS, column = i % COLUMNS;
    double low = sin(0.3 * row + rank) * cos(0.2 * column) + cos(0.1 * row) * sin(0.5 * column + 2 * rank);
    return (float)(low + 0.01 * sin(17.0 * i + rank));
}

static float mean_target(int size, int i)
{
    double sum = 0;
    int r;
    for (r = 0; r < size; r++) {
        sum += (double)target_value(r, i);
    }
    return (float)(sum / size);
}

static void open_model(struct model *m, const struct rank *me, const dist_reducer_options_t *options, int is_owned)
{
    static const dist_param_t init = DIST_PARAM_INIT;
    static const int64_t shape[2] = { ROWS, COLUMNS };
    dist_param_t params[2];
    void *gradient = NULL;
    memset(m, 0, sizeof(*m));
    m->weight = calloc(ROWS * COLUMNS, sizeof(float));
    m->bias = calloc(BIAS, sizeof(float));
    REQUIRE(m->weight != NULL && m->bias != NULL);
    params[0] = params[1] = init;
    params[0].name = "weight";
    params[0].data = m->weight;
    params[0].shape = shape;
    params[0].n_shape = 2;
    params[0].count = ROWS * COLUMNS;
    params[0].dtype = params[1].dtype = DIST_F32;
    params[1].name = "bias";
    params[1].data = m->bias;
    params[1].count = BIAS;
    if (is_owned) {
        params[0].grad = m->g_weight = calloc(ROWS * COLUMNS, sizeof(float));
        params[1].grad = m->g_bias = calloc(BIAS, sizeof(float));
        REQUIRE(m->g_weight != NULL && m->g_bias != NULL);
    }
    REQUIRE_OK(dist_reducer_create(me->group, params, 2, options, &m->reducer));
    REQUIRE_OK(dist_reducer_grad(m->reducer, 0, &gradient, NULL));
    m->g_weight = gradient;
    REQUIRE_OK(dist_reducer_grad(m->reducer, 1, &gradient, NULL));
    m->g_bias = gradient;
    REQUIRE_OK(dist_reducer_result(m->reducer, 0, &gradient, NULL));
    m->r_weight = gradient;
    REQUIRE_OK(dist_reducer_result(m->reducer, 1, &gradient, NULL));
    m->r_bias = gradient;
}

static void close_model(struct model *m, int is_owned)
{
    CHECK_OK(dist_reducer_release(m->reducer));
    if (is_owned) {
        free(m->g_weight);
        free(m->g_bias);
    }
    free(m->weight);
    free(m->bias);
}

static dist_status_t run_step(struct model *m, const struct rank *me, float rate)
{
    dist_status_t status;
    int i;
    CHECK_OK(dist_reducer_begin(m->reducer, 1 + me->rank, 0));
    for (i = 0; i < ROWS * COLUMNS; i++) {
        m->g_weight[i] = m->weight[i] - target_value(me->rank, i);
    }
    CHECK_OK(dist_reducer_ready(m->reducer, 0));
    for (i = 0; i < BIAS; i++) {
        m->g_bias[i] = m->bias[i] - target_value(me->rank, i);
    }
    CHECK_OK(dist_reducer_ready(m->reducer, 1));
    status = dist_reducer_end(m->reducer, DIST_VOTE_COMMIT, NULL, NULL);
    for (i = 0; status == DIST_OK && i < ROWS * COLUMNS; i++) {
        m->weight[i] -= rate * m->r_weight[i];
    }
    for (i = 0; status == DIST_OK && i < BIAS; i++) {
        m->bias[i] -= rate * m->r_bias[i];
    }
    return status;
}

static void check_equal_on_all(const struct model *m)
{
    dist_blob_t *differences = NULL;
    REQUIRE_OK(dist_reducer_check(m->reducer, DIST_REDUCER_PARAMS | DIST_REDUCER_GRADS, &differences));
    CHECK(dist_blob_count(differences) == 0);
    CHECK_OK(dist_blob_release(differences));
}

static double distance_to_minimum(const struct model *m, int size)
{
    double largest = 0;
    int i;
    for (i = 0; i < ROWS * COLUMNS; i++) {
        largest = fmax(largest, fabs((double)(m->weight[i] - mean_target(size, i))));
    }
    for (i = 0; i < BIAS; i++) {
        largest = fmax(largest, fabs((double)(m->bias[i] - mean_target(size, i))));
    }
    return largest;
}

static void check_convergence(const struct rank *me, const struct hook *hook, uint64_t flags, int is_owned)
{
    dist_reducer_options_t options = DIST_REDUCER_OPTIONS_INIT;
    dist_reducer_stats_t stats = DIST_REDUCER_STATS_INIT;
    struct model m;
    double off, sent;
    int s;
    options.hook = hook->name;
    options.hook_settings = hook->settings;
    options.flags = flags;
    open_model(&m, me, &options, is_owned);
    for (s = 0; s < STEPS; s++) {
        /* Smaller steps at the end, as in a training. */
        REQUIRE_OK(run_step(&m, me, s < STEPS / 2 ? 0.3f : 0.05f));
    }
    check_equal_on_all(&m);
    off = distance_to_minimum(&m, me->size);
    REQUIRE_OK(dist_reducer_stats(m.reducer, &stats));
    sent = (double)(stats.bytes_reduced - stats.bytes_saved) / (double)stats.bytes_reduced;
    if (!(off <= hook->tolerance) || !(sent <= hook->max_sent)) {
        printf("%s %s on %d: off by %g, sent %g\n", hook->name, hook->settings ? hook->settings : "", me->size, off, sent);
    }
    CHECK(off <= hook->tolerance);
    CHECK(sent <= hook->max_sent);
    close_model(&m, is_owned);
}

static void every_hook_converges(const struct rank *me)
{
    size_t h;
    for (h = 0; h < sizeof(hooks) / sizeof(hooks[0]); h++) {
        check_convergence(me, &hooks[h], h % 2 ? DIST_REDUCER_RETRYABLE : 0, h % 3 == 0);
    }
}

/* Without communication each rank finds its own minimum. */
static void hook_none_communicates_nothing(const struct rank *me)
{
    dist_reducer_options_t options = DIST_REDUCER_OPTIONS_INIT;
    dist_reducer_stats_t stats = DIST_REDUCER_STATS_INIT;
    struct model m;
    int s, i;
    options.hook = "none";
    open_model(&m, me, &options, 0);
    for (s = 0; s < STEPS; s++) {
        REQUIRE_OK(run_step(&m, me, 0.3f));
    }
    for (i = 0; i < ROWS * COLUMNS; i++) {
        CHECK(fabsf(m.weight[i] - target_value(me->rank, i)) < 1e-4f);
    }
    REQUIRE_OK(dist_reducer_stats(m.reducer, &stats));
    CHECK(stats.bytes_saved == stats.bytes_reduced && stats.bytes_saved > 0);
    close_model(&m, 0);
}

struct hook_function {
    int calls;
    int failing_call, waiting_call; /* numbers of calls; -1 for never */
    dist_status_t failure;
};

/* Does the same as the reducer itself, in the group of the hook. */
static dist_status_t sum_over_ranks(dist_group_t *group, const dist_bucket_t *bucket, uint64_t *bytes_sent, void *user)
{
    struct hook_function *f = user;
    int call = f->calls++;
    CHECK(bucket->struct_size == sizeof(*bucket) && bucket->dtype == DIST_F32 && bucket->n_params > 0);
    CHECK(*bytes_sent == bucket->count * sizeof(float));
    *bytes_sent /= 4;
    if (call == f->failing_call) {
        return f->failure;
    }
    if (call == f->waiting_call) {
        return dist_barrier(group, NULL, NULL);
    }
    return dist_all_reduce(group, bucket->data, bucket->data, bucket->count, DIST_F32, DIST_SUM, NULL, NULL);
}

static void set_hook_function(dist_reducer_options_t *options, struct hook_function *f)
{
    f->calls = 0;
    f->failing_call = f->waiting_call = -1;
    f->failure = DIST_ERR_SYSTEM;
    options->hook = "add up";
    options->hook_function = sum_over_ranks;
    options->hook_user = f;
}

static void function_may_use_all_reduce(const struct rank *me)
{
    static const int32_t divides[] = { DIST_DIVIDE_WORLD, DIST_DIVIDE_NONE, DIST_DIVIDE_WEIGHTED };
    size_t d;
    for (d = 0; d < 3; d++) {
        dist_reducer_options_t plain = DIST_REDUCER_OPTIONS_INIT, hooked = DIST_REDUCER_OPTIONS_INIT;
        dist_reducer_stats_t stats = DIST_REDUCER_STATS_INIT;
        struct model a, b;
        struct hook_function f;
        int i;
        plain.divide = hooked.divide = divides[d];
        set_hook_function(&hooked, &f);
        open_model(&a, me, &plain, 0);
        open_model(&b, me, &hooked, d == 1);
        REQUIRE_OK(run_step(&a, me, 0.1f));
        REQUIRE_OK(run_step(&b, me, 0.1f));
        for (i = 0; i < ROWS * COLUMNS; i++) {
            CHECK(fabsf(a.weight[i] - b.weight[i]) < 1e-6f);
        }
        CHECK(f.calls >= 1);
        REQUIRE_OK(dist_reducer_stats(b.reducer, &stats));
        CHECK(stats.bytes_saved >= stats.bytes_reduced / 2);
        close_model(&a, 0);
        close_model(&b, d == 1);
    }
}

/* The error of one rank's function is one of the step on all ranks, and soon. */
/* Each rank has finished its earlier calls when a rank returns. A failure right afterwards may
 * end this call, too. */
static void meet_before_failure(const struct rank *me)
{
    dist_status_t status = dist_barrier(me->group, NULL, NULL);
    (void)status;
}

static void failing_function_fails_the_step(const struct rank *me)
{
    dist_reducer_options_t options = DIST_REDUCER_OPTIONS_INIT;
    struct model m;
    struct hook_function f;
    set_hook_function(&options, &f);
    if (me->rank == me->size - 1) {
        f.failing_call = 1;
    }
    open_model(&m, me, &options, 0);
    REQUIRE_OK(run_step(&m, me, 0.1f));
    meet_before_failure(me);
    if (me->rank == me->size - 1) {
        CHECK_REFUSED(run_step(&m, me, 0.1f), DIST_ERR_SYSTEM, "the hook \"add up\"");
    } else {
        CHECK(run_step(&m, me, 0.1f) != DIST_OK);
    }
    close_model(&m, 0);
}

/* A rank that reports the failure of another rank is not excluded from the group that goes on. */
static void function_reports_a_peer(const struct rank *me)
{
    dist_reducer_options_t options = DIST_REDUCER_OPTIONS_INIT;
    dist_shrink_options_t shrink = DIST_SHRINK_OPTIONS_INIT;
    dist_group_t *left = NULL;
    struct model m;
    struct hook_function f;
    set_hook_function(&options, &f);
    f.failing_call = me->rank == me->size - 1 ? 0 : -1;
    f.failure = DIST_ERR_PEER_FAILED;
    open_model(&m, me, &options, 0);
    meet_before_failure(me);
    CHECK(run_step(&m, me, 0.1f) != DIST_OK);
    shrink.timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_group_shrink(me->group, &shrink, &left));
    CHECK(dist_get_world_size(left) == me->size);
    CHECK_OK(dist_group_release(left));
    close_model(&m, 0);
}

/* An abort reaches a function that waits for the other ranks. */
static void function_is_aborted(const struct rank *me)
{
    dist_reducer_options_t options = DIST_REDUCER_OPTIONS_INIT;
    struct model m;
    struct hook_function f;
    set_hook_function(&options, &f);
    open_model(&m, me, &options, 0);
    meet_before_abort(me->group);
    if (me->rank == 0) {
        f.waiting_call = 0;
        CHECK_STATUS(run_step(&m, me, 0.1f), DIST_ERR_ABORTED);
    } else {
        CHECK_OK(dist_group_abort(me->group, "a test"));
        CHECK(run_step(&m, me, 0.1f) != DIST_OK);
    }
    close_model(&m, 0);
}

static void wrong_hooks_are_refused(const struct rank *me)
{
    static const dist_reducer_options_t init = DIST_REDUCER_OPTIONS_INIT;
    static const dist_param_t param_init = DIST_PARAM_INIT;
    dist_reducer_options_t options = init;
    dist_param_t param = param_init;
    dist_reducer_t *reducer = NULL;
    int32_t numbers[4] = { 0 };
    struct hook_function f;
    param.name = "numbers";
    param.data = numbers;
    param.count = 4;
    param.dtype = DIST_F32;
#define CHECK_REFUSED_WITH(change, status, word) \
    do { \
        options = init; \
        options.change; \
        CHECK_REFUSED(dist_reducer_create(me->group, &param, 1, &options, &reducer), status, word); \
    } while (0)
    CHECK_REFUSED_WITH(hook = "int4", DIST_ERR_INVALID_ARGUMENT, "\"powersgd\"");
    CHECK_REFUSED_WITH(hook = "int8"; options.hook_settings = "block=0", DIST_ERR_INVALID_ARGUMENT, "block=0");
    CHECK_REFUSED_WITH(hook = "f16"; options.hook_settings = "rank=2", DIST_ERR_INVALID_ARGUMENT, "\"rank\"");
    CHECK_REFUSED_WITH(hook_function = sum_over_ranks, DIST_ERR_INVALID_ARGUMENT, "name");
    param.dtype = DIST_I32;
    options.divide = DIST_DIVIDE_NONE;
    CHECK_REFUSED_WITH(hook = "int8"; options.divide = DIST_DIVIDE_NONE, DIST_ERR_UNSUPPORTED, "\"numbers\"");
#undef CHECK_REFUSED_WITH
    if (me->size > 1) {
        /* One rank has other settings. */
        param.dtype = DIST_F32;
        options = init;
        set_hook_function(&options, &f);
        options.hook_settings = me->rank == 1 ? "a" : "b";
        CHECK_REFUSED(dist_reducer_create(me->group, &param, 1, &options, &reducer), DIST_ERR_MISMATCH, "rank 1");
    }
}

int main(void)
{
    static const char *const transports[] = { "inproc", "shm", "tcp" };
    int size, t;
    for (size = 1; size <= 4; size++) {
        run_ranks(transports[size % 3], size, every_hook_converges);
        run_ranks(transports[(size + 1) % 3], size, hook_none_communicates_nothing);
        run_ranks(transports[size % 3], size, wrong_hooks_are_refused);
    }
    run_everywhere(function_may_use_all_reduce);
    for (t = 0; t < 3; t++) {
        run_ranks(transports[t], 3, failing_function_fails_the_step);
        run_ranks(transports[t], 3, function_reports_a_peer);
        run_ranks(transports[t], 3, function_is_aborted);
    }
    return check_report();
}
