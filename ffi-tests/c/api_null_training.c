/* Samplers, reducers, shards and outer optimizers with NULL for every pointer (null.h). */
#include "null.h"

static dist_group_t *group;

static void check_samplers(void)
{
    dist_sampler_t *sampler = NULL;
    dist_sampler_options_t options = DIST_SAMPLER_OPTIONS_INIT;
    uint64_t index;
    size_t n;
    REFUSED(dist_sampler_create, group, dist_sampler_create(NULL, 8, NULL, &sampler), HANDLE);
    REFUSED(dist_sampler_create, out, dist_sampler_create(group, 8, &options, NULL), ARGUMENT);
    ACCEPTED(dist_sampler_create, options, dist_sampler_create(group, 8, NULL, &sampler), DIST_OK);
    REFUSED(dist_sampler_set_epoch, sampler, dist_sampler_set_epoch(NULL, 1), HANDLE);
    REFUSED(dist_sampler_next, sampler, dist_sampler_next(NULL, &index, 1, &n), HANDLE);
    REFUSED(dist_sampler_next, indices, dist_sampler_next(sampler, NULL, 1, &n), ARGUMENT);
    REFUSED(dist_sampler_next, n, dist_sampler_next(sampler, &index, 1, NULL), ARGUMENT);
    REFUSED(dist_sampler_len, sampler, dist_sampler_len(NULL), 0);
    REFUSED(dist_sampler_position, sampler, dist_sampler_position(NULL), 0);
    REFUSED(dist_sampler_seek, sampler, dist_sampler_seek(NULL, 0), HANDLE);
    CHECK_OK(dist_sampler_release(sampler));
    ACCEPTED(dist_sampler_release, sampler, dist_sampler_release(NULL), DIST_OK);
}

static dist_reducer_t *new_reducer(float *data)
{
    dist_param_t param = DIST_PARAM_INIT;
    dist_reducer_t *reducer = NULL;
    param.name = "weight";
    param.data = data;
    param.count = 2;
    param.dtype = DIST_F32;
    REFUSED(dist_reducer_create, group, dist_reducer_create(NULL, &param, 1, NULL, &reducer), HANDLE);
    REFUSED(dist_reducer_create, params, dist_reducer_create(group, NULL, 1, NULL, &reducer), ARGUMENT);
    REFUSED(dist_reducer_create, out, dist_reducer_create(group, &param, 1, NULL, NULL), ARGUMENT);
    ACCEPTED(dist_reducer_create, options, dist_reducer_create(group, &param, 1, NULL, &reducer), DIST_OK);
    return reducer;
}

static void check_gradients_and_values(dist_reducer_t *reducer)
{
    void *grad = NULL;
    size_t count = 0;
    const int64_t *rows = NULL;
    dist_blob_t *blob = NULL;
    dist_reducer_stats_t stats = DIST_REDUCER_STATS_INIT;
    REFUSED(dist_reducer_grad, reducer, dist_reducer_grad(NULL, 0, &grad, &count), HANDLE);
    REFUSED(dist_reducer_grad, grad, dist_reducer_grad(reducer, 0, NULL, &count), ARGUMENT);
    ACCEPTED(dist_reducer_grad, count, dist_reducer_grad(reducer, 0, &grad, NULL), DIST_OK);
    REFUSED(dist_reducer_result, reducer, dist_reducer_result(NULL, 0, &grad, &count), HANDLE);
    REFUSED(dist_reducer_result, grad, dist_reducer_result(reducer, 0, NULL, &count), ARGUMENT);
    ACCEPTED(dist_reducer_result, count, dist_reducer_result(reducer, 0, &grad, NULL), DIST_OK);
    REFUSED(dist_reducer_rows, reducer, dist_reducer_rows(NULL, 0, &rows, &grad, &count), HANDLE);
    REFUSED(dist_reducer_rows, rows, dist_reducer_rows(reducer, 0, NULL, &grad, &count), ARGUMENT);
    REFUSED(dist_reducer_rows, values, dist_reducer_rows(reducer, 0, &rows, NULL, &count), ARGUMENT);
    REFUSED(dist_reducer_rows, n_rows, dist_reducer_rows(reducer, 0, &rows, &grad, NULL), ARGUMENT);
    REFUSED(dist_reducer_broadcast, reducer, dist_reducer_broadcast(NULL, 0, DIST_REDUCER_PARAMS), HANDLE);
    REFUSED(dist_reducer_check, reducer, dist_reducer_check(NULL, DIST_REDUCER_PARAMS, &blob), HANDLE);
    REFUSED(dist_reducer_check, differences, dist_reducer_check(reducer, DIST_REDUCER_PARAMS, NULL), ARGUMENT);
    REFUSED(dist_reducer_regroup, reducer, dist_reducer_regroup(NULL, group), HANDLE);
    REFUSED(dist_reducer_regroup, group, dist_reducer_regroup(reducer, NULL), HANDLE);
    REFUSED(dist_reducer_layout, reducer, dist_reducer_layout(NULL, &blob), HANDLE);
    REFUSED(dist_reducer_layout, out, dist_reducer_layout(reducer, NULL), ARGUMENT);
    REFUSED(dist_reducer_stats, reducer, dist_reducer_stats(NULL, &stats), HANDLE);
    REFUSED(dist_reducer_stats, out, dist_reducer_stats(reducer, NULL), ARGUMENT);
    REFUSED(dist_reducer_describe, reducer, dist_reducer_describe(NULL, &blob), HANDLE);
    REFUSED(dist_reducer_describe, json, dist_reducer_describe(reducer, NULL), ARGUMENT);
}

static void ignore_bucket(const dist_bucket_t *bucket, void *user)
{
    CHECK(bucket != NULL && user == NULL);
}

static void check_steps(dist_reducer_t *reducer)
{
    uint64_t all_votes = 0, joined = 0;
    double norm = 0;
    size_t param = 0;
    const int64_t first_row = 0;
    dist_work_t *work = NULL;
    REFUSED(dist_reducer_on_bucket, reducer, dist_reducer_on_bucket(NULL, ignore_bucket, NULL), HANDLE);
    ACCEPTED(dist_reducer_on_bucket, user, dist_reducer_on_bucket(reducer, ignore_bucket, NULL), DIST_OK);
    ACCEPTED(dist_reducer_on_bucket, function, dist_reducer_on_bucket(reducer, NULL, NULL), DIST_OK);
    REFUSED(dist_reducer_begin, reducer, dist_reducer_begin(NULL, 0, 0), HANDLE);
    REFUSED(dist_reducer_ready, reducer, dist_reducer_ready(NULL, 0), HANDLE);
    REFUSED(dist_reducer_ready_many, reducer, dist_reducer_ready_many(NULL, &param, 1), HANDLE);
    REFUSED(dist_reducer_ready_many, params, dist_reducer_ready_many(reducer, NULL, 1), ARGUMENT);
    REFUSED(dist_reducer_ready_rows, reducer, dist_reducer_ready_rows(NULL, 0, &first_row, &norm, 1), HANDLE);
    REFUSED(dist_reducer_ready_rows, rows, dist_reducer_ready_rows(reducer, 0, NULL, &norm, 1), ARGUMENT);
    ACCEPTED(dist_reducer_ready_rows, values, dist_reducer_ready_rows(reducer, 0, &first_row, NULL, 1), ARGUMENT);
    REFUSED(dist_reducer_unused, reducer, dist_reducer_unused(NULL, 0), HANDLE);
    REFUSED(dist_reducer_end, reducer, dist_reducer_end(NULL, 0, &all_votes, &work), HANDLE);
    CHECK_OK(dist_reducer_begin(reducer, 0, 0));
    CHECK_OK(dist_reducer_unused(reducer, 0));
    ACCEPTED(dist_reducer_end, all_votes, dist_reducer_end(reducer, 0, NULL, &work), DIST_OK);
    CHECK_OK(dist_work_wait(work, 0));
    CHECK_OK(dist_work_release(work));
    CHECK_OK(dist_reducer_begin(reducer, 0, DIST_STEP_NO_SYNC));
    ACCEPTED(dist_reducer_end, work, dist_reducer_end(reducer, 0, &all_votes, NULL), DIST_OK);
    REFUSED(dist_reducer_clip, reducer, dist_reducer_clip(NULL, 1, 2, &norm), HANDLE);
    ACCEPTED(dist_reducer_clip, norm, dist_reducer_clip(reducer, 1, 2, NULL), DIST_OK);
    REFUSED(dist_reducer_join, reducer, dist_reducer_join(NULL, &joined), HANDLE);
    ACCEPTED(dist_reducer_join, steps, dist_reducer_join(reducer, NULL), ARGUMENT);
    CHECK_MESSAGE("DIST_REDUCER_UNEVEN");
}

static void check_shards(dist_reducer_t *reducer)
{
    dist_shard_t *shard = NULL;
    dist_shard_range_t range = DIST_SHARD_RANGE_INIT;
    dist_work_t *work = NULL;
    dist_blob_t *blob = NULL;
    float *values = NULL;
    size_t n = 0;
    REFUSED(dist_shard_create, reducer, dist_shard_create(NULL, NULL, &shard), HANDLE);
    REFUSED(dist_shard_create, out, dist_shard_create(reducer, NULL, NULL), ARGUMENT);
    ACCEPTED(dist_shard_create, options, dist_shard_create(reducer, NULL, &shard), DIST_OK);
    REFUSED(dist_shard_ranges, shard, dist_shard_ranges(NULL, &range, 1, &n), HANDLE);
    REFUSED(dist_shard_ranges, ranges, dist_shard_ranges(shard, NULL, 1, &n), ARGUMENT);
    REFUSED(dist_shard_ranges, n_ranges, dist_shard_ranges(shard, &range, 1, NULL), ARGUMENT);
    REFUSED(dist_shard_state, shard, dist_shard_state(NULL, 0, &values, &n), HANDLE);
    REFUSED(dist_shard_state, values, dist_shard_state(shard, 0, NULL, &n), ARGUMENT);
    ACCEPTED(dist_shard_state, count, dist_shard_state(shard, 0, &values, NULL), ARGUMENT);
    REFUSED(dist_shard_gather, shard, dist_shard_gather(NULL, &work), HANDLE);
    ACCEPTED(dist_shard_gather, work, dist_shard_gather(shard, NULL), DIST_OK);
    REFUSED(dist_shard_wait, shard, dist_shard_wait(NULL, 0), HANDLE);
    REFUSED(dist_shard_save, shard, dist_shard_save(NULL, 0, &blob), HANDLE);
    REFUSED(dist_shard_save, out, dist_shard_save(shard, 0, NULL), ARGUMENT);
    REFUSED(dist_shard_load, shard, dist_shard_load(NULL, "", 0, 0), HANDLE);
    REFUSED(dist_shard_load, bytes, dist_shard_load(shard, NULL, 0, 0), ARGUMENT);
    CHECK_OK(dist_shard_release(shard));
    ACCEPTED(dist_shard_release, shard, dist_shard_release(NULL), DIST_OK);
}

static void check_outers(float *data)
{
    dist_param_t param = DIST_PARAM_INIT;
    dist_outer_options_t options = DIST_OUTER_OPTIONS_INIT;
    dist_outer_stats_t stats = DIST_OUTER_STATS_INIT;
    dist_outer_t *outer = NULL;
    dist_blob_t *blob = NULL;
    float *global = NULL, *state = NULL;
    int64_t fragment = 0;
    uint64_t all_votes = 0;
    size_t count = 0;
    param.name = "weight";
    param.data = data;
    param.count = 2;
    param.dtype = DIST_F32;
    options.every = 1;
    REFUSED(dist_outer_create, group, dist_outer_create(NULL, &param, 1, &options, &outer), HANDLE);
    REFUSED(dist_outer_create, params, dist_outer_create(group, NULL, 1, &options, &outer), ARGUMENT);
    REFUSED(dist_outer_create, options, dist_outer_create(group, &param, 1, NULL, &outer), ARGUMENT);
    REFUSED(dist_outer_create, out, dist_outer_create(group, &param, 1, &options, NULL), ARGUMENT);
    REQUIRE_OK(dist_outer_create(group, &param, 1, &options, &outer));
    REFUSED(dist_outer_step, outer, dist_outer_step(NULL, 0, &fragment, &all_votes), HANDLE);
    ACCEPTED(dist_outer_step, fragment, dist_outer_step(outer, 0, NULL, &all_votes), DIST_OK);
    ACCEPTED(dist_outer_step, all_votes, dist_outer_step(outer, 0, &fragment, NULL), DIST_OK);
    REFUSED(dist_outer_regroup, outer, dist_outer_regroup(NULL, group), HANDLE);
    REFUSED(dist_outer_regroup, group, dist_outer_regroup(outer, NULL), HANDLE);
    REFUSED(dist_outer_values, outer, dist_outer_values(NULL, 0, &global, &state, &count), HANDLE);
    REFUSED(dist_outer_values, global, dist_outer_values(outer, 0, NULL, &state, &count), ARGUMENT);
    ACCEPTED(dist_outer_values, state, dist_outer_values(outer, 0, &global, NULL, &count), DIST_OK);
    ACCEPTED(dist_outer_values, count, dist_outer_values(outer, 0, &global, &state, NULL), DIST_OK);
    REFUSED(dist_outer_save, outer, dist_outer_save(NULL, &blob), HANDLE);
    REFUSED(dist_outer_save, out, dist_outer_save(outer, NULL), ARGUMENT);
    REFUSED(dist_outer_load, outer, dist_outer_load(NULL, "", 0, 0), HANDLE);
    REFUSED(dist_outer_load, bytes, dist_outer_load(outer, NULL, 0, 0), ARGUMENT);
    REFUSED(dist_outer_stats, outer, dist_outer_stats(NULL, &stats), HANDLE);
    REFUSED(dist_outer_stats, out, dist_outer_stats(outer, NULL), ARGUMENT);
    CHECK_OK(dist_outer_release(outer));
    ACCEPTED(dist_outer_release, outer, dist_outer_release(NULL), DIST_OK);
}

int main(void)
{
    float data[2] = { 1, 2 };
    dist_store_t *store = new_store();
    dist_reducer_t *reducer;
    start_world();
    REQUIRE_OK(join_group(store, "null", 0, 1, &group));
    check_samplers();
    reducer = new_reducer(data);
    check_gradients_and_values(reducer);
    check_steps(reducer);
    check_shards(reducer);
    check_outers(data);
    CHECK_OK(dist_reducer_release(reducer));
    ACCEPTED(dist_reducer_release, reducer, dist_reducer_release(NULL), DIST_OK);
    CHECK_OK(dist_group_release(group));
    CHECK_OK(dist_store_release(store));
    CHECK_OK(dist_finalize());
    return check_report();
}
