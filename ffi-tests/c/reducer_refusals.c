/*
 * Calls of the reducer that are refused, and reducers whose ranks differ.
 */
#include "ranks.h"

static dist_param_t params[3];
static float data[3][4];

static void describe_params(void)
{
    static const char *const names[3] = { "first", "second", "mean" };
    static const dist_param_t init = DIST_PARAM_INIT;
    int p;
    for (p = 0; p < 3; p++) {
        params[p] = init;
        params[p].name = names[p];
        params[p].data = data[p];
        params[p].count = 4;
        params[p].dtype = DIST_F32;
    }
    params[2].flags = DIST_PARAM_BUFFER;
}

static void check_create_refused(const struct rank *me, const dist_param_t *list, const dist_reducer_options_t *options,
                                 dist_status_t expected, const char *word)
{
    dist_reducer_t *reducer = (dist_reducer_t *)&data;
    CHECK_REFUSED(dist_reducer_create(me->group, list, 3, options, &reducer), expected, word);
    CHECK(reducer == NULL);
}

static void wrong_params_are_refused(const struct rank *me)
{
    static const int64_t shape[2] = { 2, 3 };
    dist_param_t list[3];
#define CHECK_REFUSED_WITH(change, status, word) \
    do { \
        memcpy(list, params, sizeof(list)); \
        list[1].change; \
        check_create_refused(me, list, NULL, status, word); \
    } while (0)
    CHECK_REFUSED_WITH(name = NULL, DIST_ERR_INVALID_ARGUMENT, "params[1]");
    CHECK_REFUSED_WITH(name = "", DIST_ERR_INVALID_ARGUMENT, "params[1].name");
    CHECK_REFUSED_WITH(name = "first", DIST_ERR_INVALID_ARGUMENT, "\"first\"");
    CHECK_REFUSED_WITH(data = NULL, DIST_ERR_INVALID_ARGUMENT, "data");
    CHECK_REFUSED_WITH(dtype = DIST_SUM, DIST_ERR_INVALID_ARGUMENT, "params[1]");
    CHECK_REFUSED_WITH(grad_dtype = 7, DIST_ERR_INVALID_ARGUMENT, "grad_dtype");
    CHECK_REFUSED_WITH(grad_dtype = DIST_BOOL, DIST_ERR_UNSUPPORTED, "\"second\"");
    CHECK_REFUSED_WITH(count = (size_t)-1, DIST_ERR_INVALID_ARGUMENT, "params[1]");
    CHECK_REFUSED_WITH(shape = shape; list[1].n_shape = 2, DIST_ERR_INVALID_ARGUMENT, "[2, 3]");
    CHECK_REFUSED_WITH(flags = 64, DIST_ERR_UNSUPPORTED, "flags");
    CHECK_REFUSED_WITH(flags = 3, DIST_ERR_INVALID_ARGUMENT, "DIST_PARAM_FROZEN");
    CHECK_REFUSED_WITH(reserved = 1, DIST_ERR_INVALID_ARGUMENT, "reserved");
    CHECK_REFUSED_WITH(struct_size = 8, DIST_ERR_INVALID_ARGUMENT, "struct_size");
    CHECK_REFUSED_WITH(fields = DIST_FIELD_DEVICE, DIST_ERR_UNSUPPORTED, "DIST_FIELD_DEVICE");
#undef CHECK_REFUSED_WITH
}

static void wrong_options_are_refused(const struct rank *me)
{
    static const dist_reducer_options_t init = DIST_REDUCER_OPTIONS_INIT;
    dist_reducer_options_t options;
#define CHECK_REFUSED_WITH(change, status, word) \
    do { \
        options = init; \
        options.change; \
        check_create_refused(me, params, &options, status, word); \
    } while (0)
    CHECK_REFUSED_WITH(flags = 1u << 20, DIST_ERR_UNSUPPORTED, "flags");
    CHECK_REFUSED_WITH(divide = 9, DIST_ERR_INVALID_ARGUMENT, "DIST_DIVIDE_");
    CHECK_REFUSED_WITH(missing = -1, DIST_ERR_INVALID_ARGUMENT, "DIST_MISSING_");
    CHECK_REFUSED_WITH(timeout_ms = -5, DIST_ERR_INVALID_ARGUMENT, "timeout_ms");
    CHECK_REFUSED_WITH(layout_bytes = 5, DIST_ERR_INVALID_ARGUMENT, "layout");
    CHECK_REFUSED_WITH(layout = "nonsense"; options.layout_bytes = 8, DIST_ERR_INVALID_ARGUMENT, "dist_reducer_layout");
    CHECK_REFUSED_WITH(struct_size = 3, DIST_ERR_INVALID_ARGUMENT, "struct_size");
#undef CHECK_REFUSED_WITH
}

static void wrong_calls_are_refused(const struct rank *me)
{
    dist_reducer_t *reducer = NULL;
    dist_blob_t *differences = NULL;
    void *grad = NULL;
    size_t list[3] = { 0, 1, 1 };
    double norm;
    REQUIRE_OK(dist_reducer_create(me->group, params, 3, NULL, &reducer));
    CHECK_REFUSED(dist_reducer_grad(reducer, 3, &grad, NULL), DIST_ERR_INVALID_ARGUMENT, "parameter 3");
    CHECK_REFUSED(dist_reducer_grad(reducer, 2, &grad, NULL), DIST_ERR_INVALID_ARGUMENT, "\"mean\"");
    CHECK_REFUSED(dist_reducer_ready(reducer, 0), DIST_ERR_INVALID_ARGUMENT, "dist_reducer_begin");
    CHECK_REFUSED(dist_reducer_end(reducer, 0, NULL, NULL), DIST_ERR_INVALID_ARGUMENT, "no step has begun");
    CHECK_REFUSED(dist_reducer_clip(reducer, 1, 2, &norm), DIST_ERR_INVALID_ARGUMENT, "after the end of a step");
    CHECK_REFUSED(dist_reducer_clip(reducer, -1, 2, &norm), DIST_ERR_INVALID_ARGUMENT, "max_norm");
    CHECK_REFUSED(dist_reducer_clip(reducer, 1, 0, &norm), DIST_ERR_INVALID_ARGUMENT, "norm_type");
    CHECK_REFUSED(dist_reducer_begin(reducer, -1, 0), DIST_ERR_INVALID_ARGUMENT, "weight");
    CHECK_STATUS(dist_reducer_begin(reducer, 0, 8), DIST_ERR_UNSUPPORTED);
    CHECK_REFUSED(dist_reducer_broadcast(reducer, 0, 0), DIST_ERR_INVALID_ARGUMENT, "what");
    CHECK_REFUSED(dist_reducer_broadcast(reducer, -1, 1), DIST_ERR_INVALID_ARGUMENT, "root");
    CHECK_REFUSED(dist_reducer_broadcast(reducer, me->size, 1), DIST_ERR_INVALID_ARGUMENT, "root");
    CHECK_REFUSED(dist_reducer_broadcast(reducer, 0, DIST_REDUCER_GRADS), DIST_ERR_INVALID_ARGUMENT, "gradients");
    CHECK_STATUS(dist_reducer_check(reducer, 64, &differences), DIST_ERR_UNSUPPORTED);
    CHECK_REFUSED(dist_reducer_join(reducer, NULL), DIST_ERR_INVALID_ARGUMENT, "DIST_REDUCER_UNEVEN");
    REQUIRE_OK(dist_reducer_begin(reducer, 0, 0));
    CHECK_REFUSED(dist_reducer_begin(reducer, 0, 0), DIST_ERR_INVALID_ARGUMENT, "a step is open");
    CHECK_REFUSED(dist_reducer_on_bucket(reducer, NULL, NULL), DIST_ERR_INVALID_ARGUMENT, "between steps");
    CHECK_REFUSED(dist_reducer_regroup(reducer, me->group), DIST_ERR_INVALID_ARGUMENT, "a step is open");
    CHECK_REFUSED(dist_reducer_check(reducer, 1, &differences), DIST_ERR_INVALID_ARGUMENT, "between steps");
    CHECK_REFUSED(dist_reducer_ready(reducer, 7), DIST_ERR_INVALID_ARGUMENT, "parameter 7");
    CHECK_REFUSED(dist_reducer_ready_many(reducer, list, 3), DIST_ERR_INVALID_ARGUMENT, "\"second\" was marked twice");
    CHECK_REFUSED(dist_reducer_unused(reducer, 0), DIST_ERR_INVALID_ARGUMENT, "\"first\" was marked twice");
    CHECK_OK(dist_reducer_end(reducer, 0, NULL, NULL));
    CHECK_OK(dist_reducer_release(reducer));
    CHECK_STATUS(dist_reducer_begin(reducer, 0, 0), DIST_ERR_INVALID_HANDLE);
}

static void changed_static_graph_is_refused(const struct rank *me)
{
    dist_reducer_options_t options = DIST_REDUCER_OPTIONS_INIT;
    dist_reducer_t *reducer = NULL;
    int step;
    options.flags = DIST_REDUCER_STATIC_GRAPH;
    REQUIRE_OK(dist_reducer_create(me->group, params, 3, &options, &reducer));
    for (step = 0; step < 2; step++) {
        REQUIRE_OK(dist_reducer_begin(reducer, 0, 0));
        CHECK_OK(dist_reducer_ready(reducer, 0));
        CHECK_OK(dist_reducer_ready(reducer, 0));
        if (step == 0) {
            CHECK_OK(dist_reducer_unused(reducer, 1));
        } else {
            CHECK_REFUSED(dist_reducer_ready(reducer, 0), DIST_ERR_INVALID_ARGUMENT, "marked twice");
            CHECK_REFUSED(dist_reducer_ready(reducer, 1), DIST_ERR_INVALID_ARGUMENT, "not in the first step");
        }
        CHECK_OK(dist_reducer_end(reducer, 0, NULL, NULL));
    }
    CHECK_OK(dist_reducer_release(reducer));
}

static void released_group_is_refused(const struct rank *me)
{
    dist_reducer_t *reducer = NULL;
    dist_group_t *group = NULL;
    REQUIRE_OK(join_group(me->store, "released", me->rank, me->size, &group));
    REQUIRE_OK(dist_reducer_create(group, params, 3, NULL, &reducer));
    CHECK_OK(dist_group_release(group));
    CHECK_REFUSED(dist_reducer_begin(reducer, 0, 0), DIST_ERR_INVALID_HANDLE, "was released");
    CHECK_OK(dist_reducer_release(reducer));
}

/* The last rank differs in one thing; all ranks get the same error. */
static void differing_ranks_are_refused(const struct rank *me)
{
    dist_param_t list[3];
    dist_reducer_options_t options = DIST_REDUCER_OPTIONS_INIT;
    int is_other = me->rank == me->size - 1, n = 0;
    char other[40];
    if (me->size == 1) {
        return;
    }
    sprintf(other, "of rank %d", me->size - 1);
    for (n = 0; n < 4; n++) {
        memcpy(list, params, sizeof(list));
        if (is_other && n == 0) {
            list[0].name = "another";
        } else if (is_other && n == 1) {
            list[1].count = 3;
        } else if (is_other && n == 2) {
            list[1].grad_dtype = DIST_F64;
        } else if (is_other) {
            options.bucket_bytes = 5;
        }
        check_create_refused(me, list, &options, DIST_ERR_MISMATCH, n < 3 ? other : "bucket_bytes 5");
    }
}

int main(void)
{
    describe_params();
    run_ranks("shm", 1, wrong_params_are_refused);
    run_ranks("shm", 1, wrong_options_are_refused);
    run_ranks("shm", 1, wrong_calls_are_refused);
    run_everywhere(changed_static_graph_is_refused);
    run_everywhere(released_group_is_refused);
    run_everywhere(differing_ranks_are_refused);
    return check_report();
}
