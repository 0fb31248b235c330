/*
 * Prints the size of every public type and the offset of every field as the C compiler sees
 * them. The Rust test compares each line with its own.
 */
#include <dist_backend.h>

#include <stddef.h>
#include <stdio.h>

#define TYPE(type) printf("%s %lu\n", #type, (unsigned long)sizeof(type))
#define FIELD(type, field) \
    printf("%s.%s %lu %lu\n", #type, #field, (unsigned long)offsetof(type, field), \
           (unsigned long)sizeof(((type *)0)->field))

static void options(void)
{
    TYPE(dist_init_options_t);
    FIELD(dist_init_options_t, struct_size);
    FIELD(dist_init_options_t, fields);
    FIELD(dist_init_options_t, backend);
    FIELD(dist_init_options_t, init_method);
    FIELD(dist_init_options_t, store);
    FIELD(dist_init_options_t, rank);
    FIELD(dist_init_options_t, world_size);
    FIELD(dist_init_options_t, timeout_ms);
    FIELD(dist_init_options_t, connect_timeout_ms);
    FIELD(dist_init_options_t, group_name);
    FIELD(dist_init_options_t, backend_options);
    FIELD(dist_init_options_t, device);
    FIELD(dist_init_options_t, reserved);

    TYPE(dist_group_options_t);
    FIELD(dist_group_options_t, struct_size);
    FIELD(dist_group_options_t, fields);
    FIELD(dist_group_options_t, store);
    FIELD(dist_group_options_t, rank);
    FIELD(dist_group_options_t, world_size);
    FIELD(dist_group_options_t, backend);
    FIELD(dist_group_options_t, name);
    FIELD(dist_group_options_t, timeout_ms);
    FIELD(dist_group_options_t, connect_timeout_ms);
    FIELD(dist_group_options_t, backend_options);
    FIELD(dist_group_options_t, global_ranks);
    FIELD(dist_group_options_t, n_global_ranks);
    FIELD(dist_group_options_t, device);
    FIELD(dist_group_options_t, reserved);

    TYPE(dist_group_new_options_t);
    FIELD(dist_group_new_options_t, struct_size);
    FIELD(dist_group_new_options_t, name);
    FIELD(dist_group_new_options_t, backend);
    FIELD(dist_group_new_options_t, backend_options);
    FIELD(dist_group_new_options_t, timeout_ms);
    FIELD(dist_group_new_options_t, connect_timeout_ms);
    FIELD(dist_group_new_options_t, use_local_synchronization);
    TYPE(dist_shrink_options_t);
    FIELD(dist_shrink_options_t, struct_size);
    FIELD(dist_shrink_options_t, timeout_ms);
    FIELD(dist_shrink_options_t, connect_timeout_ms);

    TYPE(dist_tensor_t);
    FIELD(dist_tensor_t, struct_size);
    FIELD(dist_tensor_t, fields);
    FIELD(dist_tensor_t, name);
    FIELD(dist_tensor_t, data);
    FIELD(dist_tensor_t, shape);
    FIELD(dist_tensor_t, n_shape);
    FIELD(dist_tensor_t, dtype);
    FIELD(dist_tensor_t, device);

    TYPE(dist_spawn_options_t);
    FIELD(dist_spawn_options_t, struct_size);
    FIELD(dist_spawn_options_t, join_timeout_ms);
    FIELD(dist_spawn_options_t, grace_ms);

    TYPE(dist_recv_status_t);
    FIELD(dist_recv_status_t, struct_size);
    FIELD(dist_recv_status_t, source);
    FIELD(dist_recv_status_t, tag);
    FIELD(dist_recv_status_t, count);
    FIELD(dist_recv_status_t, dtype);
    FIELD(dist_recv_status_t, reserved);
}

static void reducer(void)
{
    TYPE(dist_sampler_options_t);
    FIELD(dist_sampler_options_t, struct_size);
    FIELD(dist_sampler_options_t, fields);
    FIELD(dist_sampler_options_t, num_replicas);
    FIELD(dist_sampler_options_t, rank);
    FIELD(dist_sampler_options_t, seed);
    FIELD(dist_sampler_options_t, flags);

    TYPE(dist_param_t);
    FIELD(dist_param_t, struct_size);
    FIELD(dist_param_t, fields);
    FIELD(dist_param_t, name);
    FIELD(dist_param_t, data);
    FIELD(dist_param_t, grad);
    FIELD(dist_param_t, shape);
    FIELD(dist_param_t, n_shape);
    FIELD(dist_param_t, count);
    FIELD(dist_param_t, dtype);
    FIELD(dist_param_t, grad_dtype);
    FIELD(dist_param_t, device);
    FIELD(dist_param_t, reserved);
    FIELD(dist_param_t, flags);
    FIELD(dist_param_t, tag);

    TYPE(dist_reducer_options_t);
    FIELD(dist_reducer_options_t, struct_size);
    FIELD(dist_reducer_options_t, flags);
    FIELD(dist_reducer_options_t, bucket_bytes);
    FIELD(dist_reducer_options_t, first_bucket_bytes);
    FIELD(dist_reducer_options_t, divide);
    FIELD(dist_reducer_options_t, missing);
    FIELD(dist_reducer_options_t, timeout_ms);
    FIELD(dist_reducer_options_t, layout);
    FIELD(dist_reducer_options_t, layout_bytes);
    FIELD(dist_reducer_options_t, name);
    FIELD(dist_reducer_options_t, stream);
    FIELD(dist_reducer_options_t, hook);
    FIELD(dist_reducer_options_t, hook_settings);
    FIELD(dist_reducer_options_t, hook_function);
    FIELD(dist_reducer_options_t, hook_user);

    TYPE(dist_bucket_t);
    FIELD(dist_bucket_t, struct_size);
    FIELD(dist_bucket_t, index);
    FIELD(dist_bucket_t, n_buckets);
    FIELD(dist_bucket_t, data);
    FIELD(dist_bucket_t, count);
    FIELD(dist_bucket_t, dtype);
    FIELD(dist_bucket_t, reserved);
    FIELD(dist_bucket_t, params);
    FIELD(dist_bucket_t, offsets);
    FIELD(dist_bucket_t, n_params);
    FIELD(dist_bucket_t, step);

    TYPE(dist_reducer_stats_t);
    FIELD(dist_reducer_stats_t, struct_size);
    FIELD(dist_reducer_stats_t, steps);
    FIELD(dist_reducer_stats_t, n_buckets);
    FIELD(dist_reducer_stats_t, bytes_reduced);
    FIELD(dist_reducer_stats_t, bytes_saved);
    FIELD(dist_reducer_stats_t, bytes_copied);
    FIELD(dist_reducer_stats_t, first_ready_to_last_ready_ns);
    FIELD(dist_reducer_stats_t, communication_ns);
    FIELD(dist_reducer_stats_t, exposed_ns);
    FIELD(dist_reducer_stats_t, step_ns);
    FIELD(dist_reducer_stats_t, rebuilds);
    FIELD(dist_reducer_stats_t, retries);
}

static void shards(void)
{
    TYPE(dist_shard_options_t);
    FIELD(dist_shard_options_t, struct_size);
    FIELD(dist_shard_options_t, states);
    FIELD(dist_shard_options_t, n_states);
    FIELD(dist_shard_options_t, copies);
    FIELD(dist_shard_options_t, reserved);
    FIELD(dist_shard_options_t, timeout_ms);

    TYPE(dist_shard_range_t);
    FIELD(dist_shard_range_t, struct_size);
    FIELD(dist_shard_range_t, param);
    FIELD(dist_shard_range_t, begin);
    FIELD(dist_shard_range_t, count);
    FIELD(dist_shard_range_t, bucket);
    FIELD(dist_shard_range_t, offset);
    FIELD(dist_shard_range_t, data);
    FIELD(dist_shard_range_t, grad);

    TYPE(dist_outer_options_t);
    FIELD(dist_outer_options_t, struct_size);
    FIELD(dist_outer_options_t, every);
    FIELD(dist_outer_options_t, fragments);
    FIELD(dist_outer_options_t, optimizer);
    FIELD(dist_outer_options_t, learning_rate);
    FIELD(dist_outer_options_t, momentum);
    FIELD(dist_outer_options_t, function);
    FIELD(dist_outer_options_t, user);
    FIELD(dist_outer_options_t, timeout_ms);
    FIELD(dist_outer_options_t, hook);
    FIELD(dist_outer_options_t, hook_settings);
    FIELD(dist_outer_options_t, name);

    TYPE(dist_outer_stats_t);
    FIELD(dist_outer_stats_t, struct_size);
    FIELD(dist_outer_stats_t, steps);
    FIELD(dist_outer_stats_t, updates);
    FIELD(dist_outer_stats_t, restores);
    FIELD(dist_outer_stats_t, bytes_reduced);
    FIELD(dist_outer_stats_t, bytes_saved);
    FIELD(dist_outer_stats_t, communication_ns);
}

static void calls(void)
{
    TYPE(dist_culprit_t);
    FIELD(dist_culprit_t, struct_size);
    FIELD(dist_culprit_t, rank);
    FIELD(dist_culprit_t, kind);
    FIELD(dist_culprit_t, pid);
    FIELD(dist_culprit_t, host);

    TYPE(dist_call_options_t);
    FIELD(dist_call_options_t, struct_size);
    FIELD(dist_call_options_t, timeout_ms);
    FIELD(dist_call_options_t, premul_scale);
    FIELD(dist_call_options_t, algorithm);
    FIELD(dist_call_options_t, flags);
    FIELD(dist_call_options_t, stream);
    FIELD(dist_call_options_t, device);
    FIELD(dist_call_options_t, reserved);
    FIELD(dist_call_options_t, label);
}

static void stores(void)
{
    TYPE(dist_store_tcp_options_t);
    FIELD(dist_store_tcp_options_t, struct_size);
    FIELD(dist_store_tcp_options_t, fields);
    FIELD(dist_store_tcp_options_t, host);
    FIELD(dist_store_tcp_options_t, port);
    FIELD(dist_store_tcp_options_t, is_server);
    FIELD(dist_store_tcp_options_t, world_size);
    FIELD(dist_store_tcp_options_t, wait_for_workers);
    FIELD(dist_store_tcp_options_t, listen_fd);
    FIELD(dist_store_tcp_options_t, multi_tenant);
    FIELD(dist_store_tcp_options_t, timeout_ms);
    FIELD(dist_store_tcp_options_t, bind_address);
    FIELD(dist_store_tcp_options_t, secret);
    FIELD(dist_store_tcp_options_t, secret_len_bytes);

    TYPE(dist_store_file_options_t);
    FIELD(dist_store_file_options_t, struct_size);
    FIELD(dist_store_file_options_t, job_id);
    FIELD(dist_store_file_options_t, timeout_ms);

    TYPE(dist_store_vtable_t);
    FIELD(dist_store_vtable_t, struct_size);
    FIELD(dist_store_vtable_t, set);
    FIELD(dist_store_vtable_t, get);
    FIELD(dist_store_vtable_t, add);
    FIELD(dist_store_vtable_t, wait);
    FIELD(dist_store_vtable_t, check);
    FIELD(dist_store_vtable_t, delete_key);
    FIELD(dist_store_vtable_t, destroy);
    FIELD(dist_store_vtable_t, compare_set);
    FIELD(dist_store_vtable_t, append);
    FIELD(dist_store_vtable_t, num_keys);
    FIELD(dist_store_vtable_t, list_keys);
    FIELD(dist_store_vtable_t, queue_push);
    FIELD(dist_store_vtable_t, queue_pop);
    FIELD(dist_store_vtable_t, queue_len);
    FIELD(dist_store_vtable_t, clone);
    FIELD(dist_store_vtable_t, interrupt);
}

static void backends(void)
{
    TYPE(dist_backend_outcome_t);
    FIELD(dist_backend_outcome_t, struct_size);
    FIELD(dist_backend_outcome_t, culprit);
    FIELD(dist_backend_outcome_t, peer);
    FIELD(dist_backend_outcome_t, tag);
    FIELD(dist_backend_outcome_t, len_bytes);
    FIELD(dist_backend_outcome_t, text);
    FIELD(dist_backend_outcome_t, text_cap);
    FIELD(dist_backend_outcome_t, flags);

    TYPE(dist_backend_operation_t);
    FIELD(dist_backend_operation_t, struct_size);
    FIELD(dist_backend_operation_t, kind);
    FIELD(dist_backend_operation_t, dtype);
    FIELD(dist_backend_operation_t, op);
    FIELD(dist_backend_operation_t, root);
    FIELD(dist_backend_operation_t, peer);
    FIELD(dist_backend_operation_t, device);
    FIELD(dist_backend_operation_t, tag);
    FIELD(dist_backend_operation_t, send);
    FIELD(dist_backend_operation_t, recv);
    FIELD(dist_backend_operation_t, count);
    FIELD(dist_backend_operation_t, send_counts);
    FIELD(dist_backend_operation_t, send_displs);
    FIELD(dist_backend_operation_t, recv_counts);
    FIELD(dist_backend_operation_t, recv_displs);
    FIELD(dist_backend_operation_t, send_count);
    FIELD(dist_backend_operation_t, recv_count);
    FIELD(dist_backend_operation_t, factor);
    FIELD(dist_backend_operation_t, timeout_ms);
    FIELD(dist_backend_operation_t, sequence);
    FIELD(dist_backend_operation_t, part);
    FIELD(dist_backend_operation_t, stream);
    FIELD(dist_backend_operation_t, flags);
    FIELD(dist_backend_operation_t, ticket);
    FIELD(dist_backend_operation_t, grow);
    FIELD(dist_backend_operation_t, grow_arg);

    TYPE(dist_backend_query_t);
    FIELD(dist_backend_query_t, struct_size);
    FIELD(dist_backend_query_t, kind);
    FIELD(dist_backend_query_t, dtype);
    FIELD(dist_backend_query_t, op);
    FIELD(dist_backend_query_t, device);

    TYPE(dist_backend_host_t);
    FIELD(dist_backend_host_t, struct_size);
    FIELD(dist_backend_host_t, version);
    FIELD(dist_backend_host_t, library_version);
    FIELD(dist_backend_host_t, context);
    FIELD(dist_backend_host_t, store_set);
    FIELD(dist_backend_host_t, store_get);
    FIELD(dist_backend_host_t, store_add);
    FIELD(dist_backend_host_t, store_check);
    FIELD(dist_backend_host_t, store_delete);
    FIELD(dist_backend_host_t, log);
    FIELD(dist_backend_host_t, is_aborted);
    FIELD(dist_backend_host_t, complete);
}

static void backend_setup(void)
{
    TYPE(dist_backend_setup_t);
    FIELD(dist_backend_setup_t, struct_size);
    FIELD(dist_backend_setup_t, rank);
    FIELD(dist_backend_setup_t, size);
    FIELD(dist_backend_setup_t, epoch);
    FIELD(dist_backend_setup_t, device);
    FIELD(dist_backend_setup_t, group_id);
    FIELD(dist_backend_setup_t, group_name);
    FIELD(dist_backend_setup_t, options);
    FIELD(dist_backend_setup_t, timeout_ms);
    FIELD(dist_backend_setup_t, create_timeout_ms);
    FIELD(dist_backend_setup_t, host);
    FIELD(dist_backend_setup_t, exchange);
    FIELD(dist_backend_setup_t, exchange_arg);

    TYPE(dist_backend_created_t);
    FIELD(dist_backend_created_t, struct_size);
    FIELD(dist_backend_created_t, part);
    FIELD(dist_backend_created_t, kinds);
    FIELD(dist_backend_created_t, serves_device);
    FIELD(dist_backend_created_t, reserved);

    TYPE(dist_backend_vtable_t);
    FIELD(dist_backend_vtable_t, struct_size);
    FIELD(dist_backend_vtable_t, create);
    FIELD(dist_backend_vtable_t, destroy);
    FIELD(dist_backend_vtable_t, submit);
    FIELD(dist_backend_vtable_t, release);
    FIELD(dist_backend_vtable_t, test);
    FIELD(dist_backend_vtable_t, wait);
    FIELD(dist_backend_vtable_t, abort);
    FIELD(dist_backend_vtable_t, failure);
    FIELD(dist_backend_vtable_t, supports);
    FIELD(dist_backend_vtable_t, allocate);
    FIELD(dist_backend_vtable_t, free_memory);
    FIELD(dist_backend_vtable_t, describe);
    FIELD(dist_backend_vtable_t, run);

    TYPE(dist_backend_plugin_t);
    FIELD(dist_backend_plugin_t, struct_size);
    FIELD(dist_backend_plugin_t, version);
    FIELD(dist_backend_plugin_t, reserved);
    FIELD(dist_backend_plugin_t, name);
    FIELD(dist_backend_plugin_t, functions);
    FIELD(dist_backend_plugin_t, user);
}

int main(void)
{
    TYPE(dist_status_t);
    TYPE(dist_dtype_t);
    TYPE(dist_op_t);
    TYPE(dist_log_fn);
    TYPE(dist_store_sink_fn);
    TYPE(dist_work_fn);
    TYPE(dist_bucket_fn);
    TYPE(dist_spawn_fn);
    TYPE(dist_backend_plugin_fn);
    options();
    reducer();
    shards();
    calls();
    stores();
    backends();
    backend_setup();
    return 0;
}
