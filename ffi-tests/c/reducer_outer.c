/*
 * Local SGD and DiLoCo: reach the loss of synchronous training with a fraction of the traffic.
 * Also tests votes, a rank that is lost in an outer step, a rank that joins, and checkpoints.
 */
#include "ranks.h"

#include <math.h>

#define PARAMS 3
#define INPUTS 12
#define HIDDEN 16
#define TOTAL (HIDDEN * INPUTS + HIDDEN + 1)
#define SAMPLES 32 /* of each rank */
#define SYNC_INTERVAL 20

static const size_t counts[PARAMS] = { HIDDEN * INPUTS, HIDDEN, 1 };
static const size_t begins[PARAMS] = { 0, HIDDEN * INPUTS, HIDDEN * INPUTS + HIDDEN };
static const char *const names[PARAMS] = { "inner", "outer", "bias" };

struct trainer {
    dist_group_t *group;
    dist_outer_t *outer;
    int origin; /* the rank whose samples it has */
    float w[TOTAL];
};

static double uniform(uint32_t a, uint32_t b)
{
    uint32_t x = a * 2654435761u + b * 40503u + 12345u;
    x ^= x >> 16;
    x *= 2246822519u;
    x ^= x >> 13;
    x *= 3266489917u;
    x ^= x >> 16;
    return x / 2147483648.0 - 1;
}

static float input_value(int sample, int k)
{
    return (float)uniform((uint32_t)sample * 31u + 7u, (uint32_t)k);
}

/* Returns the value that the network must learn, with noise that it cannot learn. */
static float target_value(int sample)
{
    double sum = 0.3 * uniform((uint32_t)sample, 999u);
    int k;
    for (k = 0; k < INPUTS; k++) {
        sum += sin(k + 1.0) * (double)input_value(sample,
                                                  k) * (k % 3 ? 1 : (double)input_value(sample, (k + 1) % INPUTS));
    }
    return (float)sum;
}

/* Adds the gradient of a sample, if requested; returns its loss. */
static double compute_loss(const float *w, int sample, float *grad, float scale)
{
    float h[HIDDEN], out = w[begins[2]], error;
    int j, k;
    for (j = 0; j < HIDDEN; j++) {
        double sum = 0;
        for (k = 0; k < INPUTS; k++) {
            sum += (double)(w[j * INPUTS + k] * input_value(sample, k));
        }
        h[j] = (float)tanh(sum);
        out += w[begins[1] + (size_t)j] * h[j];
    }
    error = out - target_value(sample);
    for (j = 0; grad != NULL && j < HIDDEN; j++) {
        float inner = scale * error * w[begins[1] + (size_t)j] * (1 - h[j] * h[j]);
        grad[begins[1] + (size_t)j] += scale * error * h[j];
        for (k = 0; k < INPUTS; k++) {
            grad[j * INPUTS + k] += inner * input_value(sample, k);
        }
    }
    if (grad != NULL) {
        grad[begins[2]] += scale * error;
    }
    return (double)(error * error) / 2;
}

static double total_loss(const float *w, int ranks)
{
    double loss = 0;
    int sample;
    for (sample = 0; sample < ranks * SAMPLES; sample++) {
        loss += compute_loss(w, sample, NULL, 0);
    }
    return loss / (ranks * SAMPLES);
}

static void initialise(float *w)
{
    int i;
    for (i = 0; i < TOTAL; i++) {
        w[i] = (float)(0.4 * sin(2.1 * i + 0.5));
    }
}

/* Makes one step of gradient descent on the samples of some ranks. */
static void run_sgd_step(float *w, int first, int ranks, float rate)
{
    float grad[TOTAL] = { 0 };
    int sample, i;
    for (sample = first * SAMPLES; sample < (first + ranks) * SAMPLES; sample++) {
        compute_loss(w, sample, grad, 1.0f / (float)(ranks * SAMPLES));
    }
    for (i = 0; i < TOTAL; i++) {
        w[i] -= rate * grad[i];
    }
}

static void open_trainer(struct trainer *t, dist_group_t *group, const dist_outer_options_t *options)
{
    static const dist_param_t init = DIST_PARAM_INIT;
    dist_param_t params[PARAMS];
    size_t p;
    t->group = group;
    t->origin = dist_get_rank(group);
    initialise(t->w);
    for (p = 0; p < PARAMS; p++) {
        params[p] = init;
        params[p].name = names[p];
        params[p].data = t->w + begins[p];
        params[p].count = counts[p];
        params[p].dtype = DIST_F32;
    }
    REQUIRE_OK(dist_outer_create(group, params, PARAMS, options, &t->outer));
}

static int is_equal_on_all(dist_group_t *group, const float *w)
{
    float low[TOTAL], high[TOTAL];
    REQUIRE_OK(dist_all_reduce(group, w, low, TOTAL, DIST_F32, DIST_MIN, NULL, NULL));
    REQUIRE_OK(dist_all_reduce(group, w, high, TOTAL, DIST_F32, DIST_MAX, NULL, NULL));
    return memcmp(low, high, sizeof(low)) == 0;
}

static void check_diloco(const struct rank *me, const char *hook)
{
    enum { STEPS = 1200 };
    dist_outer_options_t options = DIST_OUTER_OPTIONS_INIT;
    dist_outer_stats_t stats = DIST_OUTER_STATS_INIT;
    struct trainer t;
    float single_weights[TOTAL];
    double distributed_loss, single_loss, share;
    int s;
    options.every = SYNC_INTERVAL;
    options.fragments = (size_t)(me->size > PARAMS ? PARAMS : me->size);
    options.hook = hook;
    open_trainer(&t, me->group, &options);
    initialise(single_weights);
    for (s = 0; s < STEPS; s++) {
        int64_t fragment = -2;
        uint64_t all_votes = 99;
        run_sgd_step(t.w, t.origin, 1, 0.05f);
        REQUIRE_OK(dist_outer_step(t.outer, DIST_VOTE_COMMIT, &fragment, &all_votes));
        CHECK(all_votes == DIST_VOTE_COMMIT && fragment >= -1 &&
              fragment < (int64_t)options.fragments);
        CHECK((fragment == (int64_t)options.fragments - 1) == (s % SYNC_INTERVAL == SYNC_INTERVAL - 1));
        run_sgd_step(single_weights, 0, me->size, 0.05f);
    }
    if (options.fragments == 1) {
        CHECK(is_equal_on_all(me->group, t.w));
    }
    /* The parameters of all ranks equal the global values. */
    for (s = 0; s < PARAMS; s++) {
        float *global = NULL, *state = NULL;
        size_t count = 0;
        REQUIRE_OK(dist_outer_values(t.outer, (size_t)s, &global, &state, &count));
        REQUIRE(count == counts[s] && state != NULL);
        memcpy(t.w + begins[s], global, count * sizeof(float));
    }
    CHECK(is_equal_on_all(me->group, t.w));
    distributed_loss = total_loss(t.w, me->size);
    single_loss = total_loss(single_weights, me->size);
    REQUIRE_OK(dist_outer_stats(t.outer, &stats));
    CHECK(stats.steps == STEPS && stats.restores == 0);
    CHECK(stats.updates == STEPS / SYNC_INTERVAL * options.fragments);
    /* The traffic is compared with one all_reduce of all gradients per step; gaps between
     * gradients count. */
    share = (double)stats.bytes_reduced / (STEPS * (double)TOTAL * sizeof(float));
    if (me->rank == 0) {
        printf("%d ranks: loss %.5f, in one process %.5f, traffic %.4f\n", me->size, distributed_loss, single_loss,
               share);
    }
    CHECK(distributed_loss <= 1.05 * single_loss);
    CHECK(share <= 1.1 / SYNC_INTERVAL);
    CHECK_OK(dist_outer_release(t.outer));
}

static void diloco_converges(const struct rank *me)
{
    check_diloco(me, NULL);
}

static void diloco_with_int8_converges(const struct rank *me)
{
    check_diloco(me, "int8");
}

static void take_average(size_t param, float *global, const float *pseudo_grad, float *state, size_t count, void *user)
{
    size_t i;
    CHECK(param < PARAMS && count == counts[param] && user == (void *)names);
    for (i = 0; i < count; i++) {
        global[i] -= pseudo_grad[i];
        state[i] += 1;
    }
}

/* The average after each step equals synchronous training. */
static void average_equals_synchronous_training(const struct rank *me)
{
    int with_function;
    for (with_function = 0; with_function < 2; with_function++) {
        dist_outer_options_t options = DIST_OUTER_OPTIONS_INIT;
        struct trainer t;
        float single_weights[TOTAL], *global = NULL, *state = NULL;
        int s, i;
        options.every = 1;
        options.optimizer = with_function ? "mine" : "average";
        if (with_function) {
            options.function = take_average;
            options.user = (void *)names;
        }
        open_trainer(&t, me->group, &options);
        initialise(single_weights);
        for (s = 0; s < 30; s++) {
            run_sgd_step(t.w, t.origin, 1, 0.1f);
            REQUIRE_OK(dist_outer_step(t.outer, DIST_VOTE_COMMIT, NULL, NULL));
            run_sgd_step(single_weights, 0, me->size, 0.1f);
        }
        for (i = 0; i < TOTAL; i++) {
            CHECK(fabsf(t.w[i] - single_weights[i]) < 1e-5f);
        }
        REQUIRE_OK(dist_outer_values(t.outer, 1, &global, &state, NULL));
        CHECK(with_function ? state[HIDDEN - 1] == 30 : state == NULL);
        CHECK_OK(dist_outer_release(t.outer));
    }
}

/* After a vote against the step, all ranks restore their values. */
static void rejected_step_restores_values(const struct rank *me)
{
    dist_outer_options_t options = DIST_OUTER_OPTIONS_INIT;
    dist_outer_stats_t stats = DIST_OUTER_STATS_INIT;
    struct trainer t;
    float before[TOTAL];
    uint64_t all = 0;
    int64_t fragment = -2;
    options.every = 2;
    open_trainer(&t, me->group, &options);
    memcpy(before, t.w, sizeof(before));
    run_sgd_step(t.w, t.origin, 1, 0.1f);
    REQUIRE_OK(dist_outer_step(t.outer, DIST_VOTE_NON_FINITE, &fragment, &all));
    CHECK(fragment == -1 && all == 0);
    CHECK(memcmp(before, t.w, sizeof(before)) != 0);
    t.w[0] = me->rank == 0 ? (float)NAN : t.w[0];
    REQUIRE_OK(dist_outer_step(t.outer, me->rank == 0 ? DIST_VOTE_NON_FINITE : DIST_VOTE_COMMIT, &fragment, &all));
    CHECK(fragment == 0 && all == DIST_VOTE_NON_FINITE);
    CHECK(memcmp(before, t.w, sizeof(before)) == 0);
    run_sgd_step(t.w, t.origin, 1, 0.1f);
    REQUIRE_OK(dist_outer_step(t.outer, DIST_VOTE_COMMIT, NULL, NULL));
    REQUIRE_OK(dist_outer_step(t.outer, DIST_VOTE_COMMIT, NULL, &all));
    CHECK(all == DIST_VOTE_COMMIT && memcmp(before, t.w, sizeof(before)) != 0);
    CHECK(is_equal_on_all(me->group, t.w));
    REQUIRE_OK(dist_outer_stats(t.outer, &stats));
    CHECK(stats.steps == 4 && stats.updates == 1 && stats.restores == 1);
    CHECK_OK(dist_outer_release(t.outer));
}

static void copy_globals(const struct trainer *t, float *into)
{
    size_t p;
    for (p = 0; p < PARAMS; p++) {
        float *global = NULL;
        REQUIRE_OK(dist_outer_values(t->outer, p, &global, NULL, NULL));
        memcpy(into + begins[p], global, counts[p] * sizeof(float));
    }
}

/* The last rank is lost in the outer step of fragment 1. Fragment 0 keeps its values, and the
 * survivors agree on fragment 1 with the same differences. */
static void survivors_agree_after_a_lost_rank(const struct rank *me)
{
    dist_outer_options_t options = DIST_OUTER_OPTIONS_INIT;
    dist_group_t *left = NULL;
    struct trainer t;
    float former[TOTAL], after[TOTAL], local[TOTAL], mean[TOTAL];
    int64_t fragment = -2;
    int i, is_lost = me->rank == me->size - 1;
    options.every = 3;
    options.fragments = 3;
    options.optimizer = "average";
    open_trainer(&t, me->group, &options);
    run_sgd_step(t.w, t.origin, 1, 0.1f);
    REQUIRE_OK(dist_outer_step(t.outer, DIST_VOTE_COMMIT, &fragment, NULL));
    CHECK(fragment == 0);
    copy_globals(&t, former);
    run_sgd_step(t.w, t.origin, 1, 0.1f);
    memcpy(local, t.w, sizeof(local));
    meet_before_abort(me->group);
    if (is_lost) {
        CHECK_OK(dist_group_abort(me->group, "lost"));
        CHECK_OK(dist_outer_release(t.outer));
        return;
    }
    CHECK(dist_outer_step(t.outer, DIST_VOTE_COMMIT, &fragment, NULL) != DIST_OK);
    CHECK(memcmp(local, t.w, sizeof(local)) == 0);
    left = make_group(me, "left", me->size - 1);
    REQUIRE_OK(dist_outer_regroup(t.outer, left));
    REQUIRE_OK(dist_outer_step(t.outer, DIST_VOTE_COMMIT, &fragment, NULL));
    CHECK(fragment == 1);
    copy_globals(&t, after);
    CHECK(memcmp(former, after, counts[0] * sizeof(float)) == 0);
    CHECK(memcmp(former + begins[2], after + begins[2], counts[2] * sizeof(float)) == 0);
    CHECK(memcmp(t.w, local, counts[0] * sizeof(float)) == 0);
    REQUIRE_OK(dist_all_reduce(left, local, mean, TOTAL, DIST_F32, DIST_AVG, NULL, NULL));
    for (i = 0; i < (int)counts[1]; i++) {
        CHECK(fabsf(after[begins[1] + (size_t)i] - mean[begins[1] + (size_t)i]) < 1e-6f);
        CHECK(t.w[begins[1] + (size_t)i] == after[begins[1] + (size_t)i]);
    }
    CHECK(is_equal_on_all(left, after));
    REQUIRE_OK(dist_outer_step(t.outer, DIST_VOTE_COMMIT, &fragment, NULL));
    CHECK(fragment == 2);
    CHECK_OK(dist_outer_release(t.outer));
    CHECK_OK(dist_group_release(left));
}

/* The last rank joins and gets the global values, the states and the number of steps. */
static void joining_rank_gets_the_state(const struct rank *me)
{
    dist_outer_options_t options = DIST_OUTER_OPTIONS_INIT;
    dist_group_t *first = NULL;
    struct trainer t;
    float w[TOTAL];
    int64_t fragment = -2;
    int s, is_new = me->rank == me->size - 1;
    options.every = 4;
    options.fragments = 2;
    if (!is_new) {
        first = make_group(me, "first", me->size - 1);
        open_trainer(&t, first, &options);
        for (s = 0; s < 9; s++) {
            run_sgd_step(t.w, t.origin, 1, 0.1f);
            REQUIRE_OK(dist_outer_step(t.outer, DIST_VOTE_COMMIT, NULL, NULL));
        }
        REQUIRE_OK(dist_outer_regroup(t.outer, me->group));
    } else {
        open_trainer(&t, me->group, &options);
        copy_globals(&t, w);
        CHECK(memcmp(w, t.w, sizeof(w)) == 0);
    }
    t.origin = me->rank;
    for (s = 0; s < 8; s++) {
        run_sgd_step(t.w, t.origin, 1, 0.1f);
        REQUIRE_OK(dist_outer_step(t.outer, DIST_VOTE_COMMIT, &fragment, NULL));
        CHECK(fragment == (s % 4 == 0 ? 0 : s % 4 == 2 ? 1 : -1));
        copy_globals(&t, w);
        CHECK(is_equal_on_all(me->group, w));
    }
    CHECK_OK(dist_outer_release(t.outer));
    if (first != NULL) {
        CHECK_OK(dist_group_release(first));
    }
}

/* A training that continues from a checkpoint equals one without interruption. */
static void checkpoint_continues_the_training(const struct rank *me)
{
    dist_outer_options_t options = DIST_OUTER_OPTIONS_INIT;
    struct trainer a, b;
    dist_blob_t *blob = NULL;
    const void *bytes = NULL;
    size_t len = 0;
    int s, root = me->size - 1;
    options.every = 4;
    options.fragments = 2;
    open_trainer(&a, me->group, &options);
    for (s = 0; s < 8; s++) {
        run_sgd_step(a.w, a.origin, 1, 0.1f);
        REQUIRE_OK(dist_outer_step(a.outer, DIST_VOTE_COMMIT, NULL, NULL));
    }
    REQUIRE_OK(dist_outer_save(a.outer, &blob));
    REQUIRE_OK(dist_blob_data(blob, 0, &bytes, &len));
    open_trainer(&b, me->group, &options);
    CHECK_REFUSED(dist_outer_load(b.outer, "nonsense", 8, root), DIST_ERR_INVALID_ARGUMENT, "dist_outer_save");
    CHECK_REFUSED(dist_outer_load(b.outer, bytes, len - 1, root), DIST_ERR_INVALID_ARGUMENT, "truncated");
    CHECK_REFUSED(dist_outer_load(b.outer, NULL, 0, root), DIST_ERR_INVALID_ARGUMENT, "dist_outer_save");
    REQUIRE_OK(dist_outer_load(b.outer, me->rank == root ? bytes : NULL, me->rank == root ? len : 0, root));
    /* The first fragment was agreed on at step 6, and has moved since. */
    memcpy(b.w, a.w, sizeof(b.w));
    for (s = 0; s < 9; s++) {
        run_sgd_step(a.w, a.origin, 1, 0.1f);
        run_sgd_step(b.w, b.origin, 1, 0.1f);
        REQUIRE_OK(dist_outer_step(a.outer, DIST_VOTE_COMMIT, NULL, NULL));
        REQUIRE_OK(dist_outer_step(b.outer, DIST_VOTE_COMMIT, NULL, NULL));
        CHECK(memcmp(a.w, b.w, sizeof(b.w)) == 0);
    }
    CHECK_OK(dist_blob_release(blob));
    CHECK_OK(dist_outer_release(a.outer));
    CHECK_OK(dist_outer_release(b.outer));
}

static void wrong_calls_are_refused(const struct rank *me)
{
    static const dist_outer_options_t init = DIST_OUTER_OPTIONS_INIT;
    static const dist_param_t param_init = DIST_PARAM_INIT;
    dist_outer_options_t options;
    dist_outer_t *outer = NULL;
    dist_param_t param = param_init;
    float values[4] = { 0 }, *global = NULL;
    param.name = "w";
    param.data = values;
    param.count = 4;
    param.dtype = DIST_F32;
#define CHECK_REFUSED_WITH(change, status, word) \
    do { \
        options = init; \
        options.every = 5; \
        options.change; \
        CHECK_REFUSED(dist_outer_create(me->group, &param, 1, &options, &outer), status, word); \
        CHECK(outer == NULL); \
    } while (0)
    CHECK_REFUSED_WITH(every = 0, DIST_ERR_INVALID_ARGUMENT, "every");
    CHECK_REFUSED_WITH(fragments = 2, DIST_ERR_INVALID_ARGUMENT, "fragments");
    CHECK_REFUSED_WITH(optimizer = "adam", DIST_ERR_INVALID_ARGUMENT, "\"nesterov\"");
    CHECK_REFUSED_WITH(momentum = -1, DIST_ERR_INVALID_ARGUMENT, "momentum");
    CHECK_REFUSED_WITH(learning_rate = 0.1; options.optimizer = "average", DIST_ERR_INVALID_ARGUMENT, "learning_rate");
    CHECK_REFUSED_WITH(function = take_average, DIST_ERR_INVALID_ARGUMENT, "name");
    CHECK_REFUSED_WITH(hook = "none", DIST_ERR_INVALID_ARGUMENT, "none");
    CHECK_REFUSED_WITH(hook = "int3", DIST_ERR_INVALID_ARGUMENT, "int3");
    param.dtype = DIST_I32;
    CHECK_REFUSED_WITH(every = 5, DIST_ERR_UNSUPPORTED, "\"w\"");
    param.dtype = DIST_F32;
#undef CHECK_REFUSED_WITH
    CHECK_STATUS(dist_outer_create(me->group, &param, 1, NULL, &outer), DIST_ERR_INVALID_ARGUMENT);
    options = init;
    options.every = 5;
    if (me->size > 1) {
        options.every = 5 + (uint64_t)me->rank;
        CHECK_REFUSED(dist_outer_create(me->group, &param, 1, &options, &outer), DIST_ERR_MISMATCH, "every 6");
        options.every = 5;
    }
    REQUIRE_OK(dist_outer_create(me->group, &param, 1, &options, &outer));
    CHECK_STATUS(dist_outer_values(outer, 1, &global, NULL, NULL), DIST_ERR_INVALID_ARGUMENT);
    CHECK(global == NULL);
    CHECK_OK(dist_outer_release(outer));
    CHECK_STATUS(dist_outer_step(outer, 0, NULL, NULL), DIST_ERR_INVALID_HANDLE);
}

int main(void)
{
    static const char *const transports[] = { "inproc", "shm", "tcp" };
    int t;
    run_ranks("inproc", 2, diloco_converges);
    run_ranks("shm", 4, diloco_converges);
    run_ranks("tcp", 3, diloco_with_int8_converges);
    run_everywhere(average_equals_synchronous_training);
    run_everywhere(rejected_step_restores_values);
    for (t = 0; t < 3; t++) {
        run_ranks(transports[t], 3, survivors_agree_after_a_lost_rank);
        run_ranks(transports[t], 4, joining_rank_gets_the_state);
        run_ranks(transports[t], 2 + t % 2, checkpoint_continues_the_training);
        run_ranks(transports[t], 1 + t, wrong_calls_are_refused);
    }
    return check_report();
}
