/*
 * Sharded optimizers: the weights are those of a training in one process, states are split evenly,
 * and checkpoints load on another number of ranks.
 */
#include "reducer_shard.h"

#define STEPS 12

static unsigned all_ranks(int size)
{
    return (1u << size) - 1;
}

static void run_step(struct trainer *t, struct reference *ref, double max_norm)
{
    double norm = 0;
    run_backward(t);
    REQUIRE_OK(dist_reducer_end(t->reducer, DIST_VOTE_COMMIT, NULL, NULL));
    if (max_norm > 0) {
        REQUIRE_OK(dist_reducer_clip(t->reducer, max_norm, 2, &norm));
        CHECK(norm > max_norm);
    }
    update_shard(t);
    REQUIRE_OK(dist_shard_gather(t->shard, NULL));
    reference_step(ref, all_ranks(dist_get_world_size(t->group)), max_norm);
    check_weights(t, ref);
}

/* All ranks update the same number of elements, except for a difference of one. */
static void check_even_shares(const struct trainer *t)
{
    float *m = NULL;
    size_t count = 0;
    int size = dist_get_world_size(t->group), copies = t->copies < 1 ? 1 : t->copies > size ? size : t->copies;
    size_t min_count = (size_t)copies * (TOTAL / (size_t)size);
    REQUIRE_OK(dist_shard_state(t->shard, 0, &m, &count));
    CHECK(count >= min_count && count <= min_count + (size_t)copies);
}

static void every_mode_matches_the_reference(const struct rank *me)
{
    struct trainer t;
    struct reference ref;
    int mode, s;
    int32_t copies;
    for (mode = ALL_REDUCED; mode <= SHARED; mode++) {
        for (copies = 0; copies <= (mode == ALL_REDUCED ? 3 : 1); copies++) {
            open_trainer(&t, me->group, (enum mode)mode, copies, mode == OWNED ? DIST_REDUCER_CANONICAL : 0);
            reference_init(&ref);
            check_even_shares(&t);
            for (s = 0; s < STEPS; s++) {
                run_step(&t, &ref, s % 3 == 2 ? 1.0 : 0);
            }
            close_trainer(&t);
        }
    }
}

/* The parameters arrive in the background; a parameter is usable when it has arrived. */
static void background_gather_delivers_each_param(const struct rank *me)
{
    struct trainer t;
    struct reference ref;
    int s;
    size_t p, i;
    open_trainer(&t, me->group, REDUCER_MEMORY, 0, 0);
    reference_init(&ref);
    for (s = 0; s < STEPS; s++) {
        dist_work_t *work = NULL;
        run_backward(&t);
        REQUIRE_OK(dist_reducer_end(t.reducer, DIST_VOTE_COMMIT, NULL, NULL));
        update_shard(&t);
        REQUIRE_OK(dist_shard_gather(t.shard, &work));
        reference_step(&ref, all_ranks(me->size), 0);
        for (p = 0; p < PARAMS; p++) {
            REQUIRE_OK(dist_shard_wait(t.shard, p));
            for (i = param_offset(p); i < param_offset(p) + counts[p]; i++) {
                CHECK(fabsf(t.weights[i] - ref.w[i]) <= 2e-5f);
            }
        }
        if (s % 2) {
            REQUIRE_OK(dist_work_wait(work, DIST_WAIT_FOREVER));
        }
        CHECK_OK(dist_work_release(work));
    }
    close_trainer(&t);
}

/* The bytes of a checkpoint. */
static char saved[1 << 16];
static size_t saved_bytes;
static float saved_weights[TOTAL];
static struct reference saved_reference;

static void save_states(const struct rank *me)
{
    struct trainer t;
    struct reference ref;
    dist_blob_t *blob = NULL;
    const void *bytes = NULL;
    int s;
    open_trainer(&t, me->group, ALL_REDUCED, 2, 0);
    reference_init(&ref);
    for (s = 0; s < STEPS / 2; s++) {
        run_step(&t, &ref, 0);
    }
    REQUIRE_OK(dist_shard_save(t.shard, me->size - 1, &blob));
    CHECK((blob != NULL) == (me->rank == me->size - 1));
    if (blob != NULL) {
        REQUIRE_OK(dist_blob_data(blob, 0, &bytes, &saved_bytes));
        REQUIRE(saved_bytes <= sizeof(saved));
        /* Two states, and a header of less than 400 bytes. */
        CHECK(saved_bytes > 2 * 4 * TOTAL && saved_bytes < 2 * 4 * TOTAL + 400);
        memcpy(saved, bytes, saved_bytes);
        memcpy(saved_weights, t.weights, sizeof(saved_weights));
        saved_reference = ref;
        CHECK_OK(dist_blob_release(blob));
    }
    close_trainer(&t);
}

static void load_states(const struct rank *me)
{
    struct trainer t;
    struct reference ref = saved_reference;
    int s, root = me->size / 2;
    open_trainer(&t, me->group, me->size == 2 ? ALL_REDUCED : SHARED, 0, 0);
    memcpy(t.weights, saved_weights, sizeof(saved_weights));
    REQUIRE_OK(dist_shard_load(t.shard, me->rank == root ? saved : NULL, me->rank == root ? saved_bytes : 0, root));
    t.steps = ref.steps;
    for (s = 0; s < STEPS; s++) {
        run_step(&t, &ref, 0);
    }
    close_trainer(&t);
}

/* Wrong checkpoints are refused on all ranks. */
static void wrong_checkpoints_are_refused(const struct rank *me)
{
    static char wrong[sizeof(saved)];
    struct trainer t;
    open_trainer(&t, me->group, ALL_REDUCED, 0, 0);
    CHECK_REFUSED(dist_shard_load(t.shard, NULL, 0, 0), DIST_ERR_INVALID_ARGUMENT, "dist_shard_save");
    CHECK_REFUSED(dist_shard_load(t.shard, "twenty bytes of text", 20, 0), DIST_ERR_INVALID_ARGUMENT, "dist_shard_save");
    CHECK_REFUSED(dist_shard_load(t.shard, saved, saved_bytes - 1, 0), DIST_ERR_INVALID_ARGUMENT, "truncated");
    CHECK_REFUSED(dist_shard_load(t.shard, saved, 30, 0), DIST_ERR_INVALID_ARGUMENT, "truncated");
    REQUIRE_OK(dist_barrier(me->group, NULL, NULL));
    if (me->rank == 0) {
        char *name;
        memcpy(wrong, saved, saved_bytes);
        name = strstr(wrong + 16, "\"name\":\"d\"");
        if (name == NULL) {
            name = strstr(wrong + 16, "\"d\"") - 7;
        }
        name[8] = 'x';
    }
    CHECK_REFUSED(dist_shard_load(t.shard, wrong, saved_bytes, 0), DIST_ERR_INVALID_ARGUMENT, "\"d\"");
    CHECK_STATUS(dist_shard_load(t.shard, saved, saved_bytes, me->size), DIST_ERR_INVALID_ARGUMENT);
    CHECK_OK(dist_shard_load(t.shard, saved, saved_bytes, 0));
    close_trainer(&t);
}

/* Returns the bytes of a reducer's memory after a step with many equal buckets. */
static long reducer_memory(const struct rank *me, uint64_t flags)
{
    enum { BUCKETS = 20, ELEMENTS = 1024 };
    static const dist_param_t init = DIST_PARAM_INIT;
    static float data[MOST_RANKS][BUCKETS][ELEMENTS];
    dist_reducer_options_t options = DIST_REDUCER_OPTIONS_INIT;
    dist_param_t params[BUCKETS];
    char bucket_names[BUCKETS][8];
    dist_reducer_t *reducer = NULL;
    dist_blob_t *json = NULL;
    const void *text = NULL;
    const char *at;
    long bytes;
    size_t p;
    for (p = 0; p < BUCKETS; p++) {
        sprintf(bucket_names[p], "p%d", (int)p);
        params[p] = init;
        params[p].name = bucket_names[p];
        params[p].data = data[me->rank][p];
        params[p].count = ELEMENTS;
        params[p].dtype = DIST_F32;
    }
    options.bucket_bytes = 1;
    options.flags = flags;
    REQUIRE_OK(dist_reducer_create(me->group, params, BUCKETS, &options, &reducer));
    REQUIRE_OK(dist_reducer_begin(reducer, 0, 0));
    for (p = BUCKETS; p-- > 0;) {
        void *grad = NULL;
        REQUIRE_OK(dist_reducer_grad(reducer, p, &grad, NULL));
        memset(grad, 0, ELEMENTS * sizeof(float));
        CHECK_OK(dist_reducer_ready(reducer, p));
    }
    REQUIRE_OK(dist_reducer_end(reducer, DIST_VOTE_COMMIT, NULL, NULL));
    REQUIRE_OK(dist_reducer_describe(reducer, &json));
    REQUIRE_OK(dist_blob_data(json, 0, &text, &p));
    at = strstr(text, "\"memory_bytes\":");
    REQUIRE(at != NULL);
    bytes = atol(at + strlen("\"memory_bytes\":"));
    CHECK_OK(dist_blob_release(json));
    CHECK_OK(dist_reducer_release(reducer));
    return bytes;
}

/* With shared memory for buckets, four buckets have memory at a time, and each rank has its part
 * of the results. */
static void shared_buckets_limit_memory(const struct rank *me)
{
    const long bytes_of_all_ranks = 20 * 4096, own = bytes_of_all_ranks / me->size + 20 * 4;
    CHECK(reducer_memory(me, 0) >= bytes_of_all_ranks);
    CHECK(reducer_memory(me, DIST_REDUCER_SHARDED) >= bytes_of_all_ranks);
    CHECK(reducer_memory(me, DIST_REDUCER_SHARDED | DIST_REDUCER_SHARE_GRADS) <= 4 * 4096 + own);
}

static void wrong_calls_are_refused(const struct rank *me)
{
    static const char *const duplicate_names[2] = { "m", "m" };
    static const char *const one[1] = { "m" };
    dist_shard_options_t options = DIST_SHARD_OPTIONS_INIT;
    dist_reducer_options_t wrong = DIST_REDUCER_OPTIONS_INIT;
    dist_reducer_t *reducer = NULL;
    dist_shard_t *shard = NULL;
    struct trainer t;
    float *values = NULL;
    void *buffer = NULL;
    size_t n = 0;
    wrong.flags = DIST_REDUCER_SHARE_GRADS;
    CHECK_REFUSED(dist_reducer_create(me->group, NULL, 0, &wrong, &reducer), DIST_ERR_INVALID_ARGUMENT, "DIST_REDUCER_SHARDED");
    wrong.flags = DIST_REDUCER_SHARDED | DIST_REDUCER_RETRYABLE;
    CHECK_REFUSED(dist_reducer_create(me->group, NULL, 0, &wrong, &reducer), DIST_ERR_INVALID_ARGUMENT, "copies");
    wrong.flags = DIST_REDUCER_SHARDED;
    wrong.hook = "int8";
    CHECK_REFUSED(dist_reducer_create(me->group, NULL, 0, &wrong, &reducer), DIST_ERR_INVALID_ARGUMENT, "hook");
    wrong.flags = DIST_REDUCER_UNEVEN;
    wrong.hook = NULL;
    REQUIRE_OK(dist_reducer_create(me->group, NULL, 0, &wrong, &reducer));
    CHECK_REFUSED(dist_shard_create(reducer, NULL, &shard), DIST_ERR_INVALID_ARGUMENT, "DIST_REDUCER_UNEVEN");
    CHECK_OK(dist_reducer_release(reducer));
    open_trainer(&t, me->group, SHARED, 0, 0);
    CHECK_REFUSED(dist_shard_create(t.reducer, NULL, &shard), DIST_ERR_INVALID_ARGUMENT, "release");
    CHECK_OK(dist_shard_release(t.shard));
    options.states = duplicate_names;
    options.n_states = 2;
    CHECK_REFUSED(dist_shard_create(t.reducer, &options, &shard), DIST_ERR_INVALID_ARGUMENT, "a distinct, nonempty name");
    options.n_states = 1;
    options.copies = 2;
    CHECK_REFUSED(dist_shard_create(t.reducer, &options, &shard), DIST_ERR_INVALID_ARGUMENT, "copies");
    options.copies = -1;
    CHECK_REFUSED(dist_shard_create(t.reducer, &options, &shard), DIST_ERR_INVALID_ARGUMENT, "copies");
    options.copies = 1;
    options.states = me->rank == 1 ? duplicate_names : one;
    options.n_states = 1;
    CHECK_OK(dist_shard_create(t.reducer, &options, &t.shard));
    CHECK_REFUSED(dist_shard_state(t.shard, 1, &values, NULL), DIST_ERR_INVALID_ARGUMENT, "state 1");
    CHECK_REFUSED(dist_shard_wait(t.shard, PARAMS), DIST_ERR_INVALID_ARGUMENT, "parameter 7");
    CHECK_REFUSED(dist_reducer_result(t.reducer, 0, &buffer, NULL), DIST_ERR_INVALID_ARGUMENT, "dist_shard_ranges");
    CHECK_REFUSED(dist_reducer_grad(t.reducer, 0, &buffer, NULL), DIST_ERR_INVALID_ARGUMENT, "inside a step");
    CHECK_REFUSED(dist_reducer_begin(t.reducer, 0, DIST_STEP_NO_SYNC), DIST_ERR_INVALID_ARGUMENT, "DIST_REDUCER_SHARE_GRADS");
    CHECK_OK(dist_shard_ranges(t.shard, NULL, 0, &n));
    CHECK(n > 0 || me->size > 1);
    close_trainer(&t);
    if (me->size > 1) {
        make_reducer(&t);
        options.states = me->rank == 1 ? (const char *const *)names : one;
        CHECK_REFUSED(dist_shard_create(t.reducer, &options, &shard), DIST_ERR_MISMATCH, "rank 1");
        CHECK(shard == NULL);
        CHECK_OK(dist_reducer_release(t.reducer));
    }
}

int main(void)
{
    run_everywhere(every_mode_matches_the_reference);
    run_everywhere(background_gather_delivers_each_param);
    run_everywhere(shared_buckets_limit_memory);
    run_ranks("shm", 4, save_states);
    run_ranks("inproc", 3, load_states);
    run_ranks("tcp", 2, load_states);
    run_ranks("shm", 1, load_states);
    run_ranks("shm", 3, wrong_checkpoints_are_refused);
    run_ranks("inproc", 1, wrong_calls_are_refused);
    run_ranks("shm", 3, wrong_calls_are_refused);
    return check_report();
}
